/* mask.c - which tokens may come: what each top of a stack says of the vocabulary, and of stacks
 * together. */
#include "grammar/guide_impl.h"

#include "base/mem.h"

#include <math.h>

enum { SLOTS = 32, BEYOND_LEAST = 1 << 15 };

static inline void set_bit(uint64_t *bits, int32_t id)
{
    bits[id / 64] |= UINT64_C(1) << (id % 64);
}

static inline void set_toks(uint64_t *bits, const struct lex_trie *t, const struct lex_node *n)
{
    for (int i = 0; i < n->n_toks; i++) set_bit(bits, t->toks[n->tok + (uint32_t)i]);
}

/* All words of t that the set of stacks `from` can go along with, and after which `most` bytes are
 * enough. */
static void walk(struct guide *m, const struct lex_trie *t, int32_t from, int most, bool strip,
                 uint64_t *bits)
{
    int32_t at[LEXICON_DEPTH + 1];

    at[0] = from;
    for (int i = 0; i < t->n_nodes;) {
        const struct lex_node *n = &t->nodes[i];
        bool lead = strip && n->depth == 1 && n->byte == ' '; /* this space will not be written */
        int32_t to = lead ? from : conf_next(m, at[n->depth - 1], n->byte);
        if (to == CONF_DEAD) {
            i = (int)n->skip;
            continue;
        }
        at[n->depth] = to;
        if (n->n_toks && !lead && m->confs[to].least <= most) set_toks(bits, t, n);
        i++;
    }
}

/* ---- one top ---- */

struct beyond {
    struct lex_word *words;
    int n, cap, most;
};

/* The token's bytes behind the first `from`. */
static void add_beyond(struct beyond *b, const struct lexicon *lex, int32_t id, int from)
{
    struct str s = str_skip(lexicon_word(lex, id), (size_t)from);

    if (b->n >= b->most) {
        b->n = b->most + 1;
        return;
    }
    if (b->n == b->cap) {
        b->cap = b->cap ? 2 * b->cap : 256;
        b->words = mem_grow(b->words, (size_t)b->cap * sizeof *b->words);
    }
    b->words[b->n++] = (struct lex_word){ (const uint8_t *)s.p, (uint16_t)s.n, id };
}

static bool follows(const uint64_t follow[4], uint8_t byte)
{
    return follow[byte / 64] >> (byte % 64) & 1;
}

/* As walk, with nothing known below the top: where its rule may be over inside a word, the rest of
 * the word is noted. */
static void walk_top(struct guide *m, int32_t from, const uint64_t follow[4], uint64_t *bits,
                     struct beyond *b)
{
    const struct lex_trie *t = &m->lex->trie;
    int32_t at[LEXICON_DEPTH + 1];
    int n_over[LEXICON_DEPTH + 1] = { 0 }; /* of `over`, by depth */
    uint8_t over[LEXICON_DEPTH + 1];       /* after how many bytes the rule may be over */

    at[0] = from;
    for (int i = 0; i < t->n_nodes && b->n <= b->most;) {
        const struct lex_node *n = &t->nodes[i];
        int d = n->depth, k = n_over[d - 1];
        int32_t to = conf_next(m, at[d - 1], n->byte);
        if (d > 1 && m->confs[at[d - 1]].pops && follows(follow, n->byte))
            over[k++] = (uint8_t)(d - 1);
        if (to == CONF_DEAD && k == 0) {
            i = (int)n->skip;
            continue;
        }
        at[d] = to;
        n_over[d] = k;
        if (n->n_toks && to != CONF_DEAD) set_toks(bits, t, n);
        else
            for (int j = 0; j < n->n_toks; j++)
                for (int o = 0; o < k; o++)
                    add_beyond(b, m->lex, t->toks[n->tok + (uint32_t)j], over[o]);
        i++;
    }
}

/* Counts that no token of this vocabulary can tell apart are one. */
static int32_t same_count(const struct guide *m, int32_t state, int32_t count)
{
    const struct gauto_rule *r = &m->a->rules[m->a->states[state].rule];
    int32_t far = m->lex->max_len + 1, base = r->min > 1 ? r->min : 1;

    if (!r->counted || count == 0) return count;
    if (r->min - count > far) return r->min - far > 1 ? r->min - far : 1;
    if (count >= base && (r->max == GNODE_MANY || r->max - count > far)) return base;
    return count;
}

static uint64_t lmask_hash(int32_t state, int32_t count)
{
    return hash_ints((int32_t[]){ state, count }, 2);
}

static void lmask_index(struct guide *m)
{
    table_grow(&m->lmask_ids);
    for (int i = 0; i < m->n_lmasks; i++)
        table_put(&m->lmask_ids, lmask_hash(m->lmasks[i].state, m->lmasks[i].count), i);
}

static void lmask_make(struct guide *m, struct lmask *l)
{
    const struct gauto_rule *r = &m->a->rules[m->a->states[l->state].rule];
    struct beyond b = { .most = BEYOND_LEAST > m->lex->n_ids ? BEYOND_LEAST : m->lex->n_ids };
    int32_t from = conf_alone(m, frame_id(m, l->state, l->count, FRAME_LOCAL));

    l->bits = mem_array((size_t)m->n_words, sizeof *l->bits);
    if (!tally_fits(m->a, l->state) || !tally_mask(m, l->state, l->count, l->bits, &l->beyond)) {
        walk_top(m, from, r->follow, l->bits, &b);
        l->direct = b.n > b.most;
        if (!l->direct && b.n) lex_trie_make(&l->beyond, b.words, b.n);
        mem_free(b.words);
    }
    m->lmask_bytes += (size_t)m->n_words * sizeof *l->bits +
                      (size_t)l->beyond.n_nodes * sizeof *l->beyond.nodes +
                      (size_t)l->beyond.n_toks * sizeof *l->beyond.toks;
}

static int lmask_of(struct guide *m, int32_t state, int32_t count)
{
    struct ids_table *t = &m->lmask_ids;
    struct lmask l = { .state = state, .count = count = same_count(m, state, count) };

    if (t->p)
        for (size_t at = table_first(t, lmask_hash(state, count)); t->p[at];
             at = table_next(t, at)) {
            const struct lmask *x = &m->lmasks[t->p[at] - 1];
            if (x->state == state && x->count == count) return t->p[at] - 1;
        }
    lmask_make(m, &l);
    if (m->n_lmasks == m->cap_lmasks) {
        m->cap_lmasks = m->cap_lmasks ? 2 * m->cap_lmasks : 64;
        m->lmasks = mem_grow(m->lmasks, (size_t)m->cap_lmasks * sizeof *m->lmasks);
    }
    m->lmasks[m->n_lmasks] = l;
    if (table_is_tight(t)) lmask_index(m);
    table_put(t, lmask_hash(state, count), m->n_lmasks);
    return m->n_lmasks++;
}

/* ---- stacks together ---- */

static void add_top(struct guide *m, int32_t frame, uint64_t *bits)
{
    const struct frame f = m->frames[frame];
    int i = lmask_of(m, f.state, f.count);
    struct lmask *l = &m->lmasks[i];

    if (l->direct) {
        walk(m, &m->lex->trie, conf_alone(m, frame), GAUTO_FAR, false, bits);
        return;
    }
    if (l->stamp != m->mask_stamp)
        for (int k = 0; k < m->n_words; k++) bits[k] |= l->bits[k];
    l->stamp = m->mask_stamp;
    if (l->beyond.n_nodes && f.parent != FRAME_END)
        walk(m, &l->beyond, conf_popped(m, f.parent), GAUTO_FAR, false, bits);
}

static struct slot *slot_take(struct guide *m, int32_t conf)
{
    struct slot *s = NULL;

    if (!m->slots) m->slots = mem_array(SLOTS, sizeof *m->slots);
    if (m->n_slots < SLOTS) {
        s = &m->slots[m->n_slots++];
        s->bits = mem_array((size_t)m->n_words + 1, sizeof *s->bits);
    } else {
        for (int i = 0; i < SLOTS; i++)
            if (!s || m->slots[i].used < s->used) s = &m->slots[i];
        if (s->conf >= 0) m->confs[s->conf].slot = -1;
        memset(s->bits, 0, (size_t)m->n_words * sizeof *s->bits);
    }
    s->conf = conf;
    s->used = ++m->tick;
    return s;
}

const uint64_t *match_mask(struct match *x)
{
    struct guide *m = x->m;
    int32_t at = x->at;
    struct slot *s;

    if (!x->first && m->confs[at].slot >= 0) {
        s = &m->slots[m->confs[at].slot];
        s->used = ++m->tick;
        return s->bits;
    }
    s = slot_take(m, x->first ? -1 : at);
    if (x->first) {
        walk(m, &m->lex->trie, at, GAUTO_FAR, true, s->bits);
    } else {
        m->confs[at].slot = (int32_t)(s - m->slots);
        m->mask_stamp++;
        for (int i = 0; i < m->confs[at].n; i++)
            add_top(m, m->items[m->confs[at].item + (uint32_t)i], s->bits);
    }
    return s->bits;
}

const uint64_t *match_closing(struct match *x, int left)
{
    struct slot *s = slot_take(x->m, -1);

    walk(x->m, &x->m->lex->trie, x->at, left, x->first, s->bits);
    return s->bits;
}

void masks_forget(struct guide *m)
{
    for (int i = 0; i < m->n_lmasks; i++) {
        mem_free(m->lmasks[i].bits);
        lex_trie_release(&m->lmasks[i].beyond);
    }
    tallies_forget(m);
    for (int i = 0; i < m->n_slots; i++) mem_free(m->slots[i].bits);
    mem_free(m->lmasks);
    mem_free(m->slots);
    table_release(&m->lmask_ids);
    m->lmasks = NULL;
    m->slots = NULL;
    m->n_lmasks = m->cap_lmasks = m->n_slots = 0;
    m->lmask_bytes = 0;
}

size_t masks_bytes(const struct guide *m)
{
    return m->lmask_bytes + (size_t)m->n_slots * (size_t)m->n_words * sizeof(uint64_t);
}

typedef int32_t lanes __attribute__((vector_size(16)));

/* Four at a time: the bits of an infinite float where the mask has none. */
static inline void apply_four(uint32_t bits, const float *in, float *out)
{
    const lanes which = { 1, 2, 4, 8 }, none = { (int32_t)0xff800000, (int32_t)0xff800000,
                                                 (int32_t)0xff800000, (int32_t)0xff800000 };
    lanes all = { (int32_t)bits, (int32_t)bits, (int32_t)bits, (int32_t)bits }, x, keep;

    memcpy(&x, in, sizeof x);
    keep = (all & which) == which;
    x = (x & keep) | (none & ~keep);
    memcpy(out, &x, sizeof x);
}

void mask_apply(const uint64_t *mask, const float *in, float *out, int n)
{
    int i = 0;

    for (; i + 64 <= n; i += 64) {
        uint64_t w = mask[i / 64];
        if (w == UINT64_MAX) memcpy(out + i, in + i, 64 * sizeof *in);
        else
            for (int k = 0; k < 64; k += 4) apply_four((uint32_t)(w >> k), in + i + k, out + i + k);
    }
    for (; i < n; i++) out[i] = mask[i / 64] >> (i % 64) & 1 ? in[i] : -INFINITY;
}
