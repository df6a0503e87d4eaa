/* matcher_mask.c - token masks: the part that follows from the top frame of a stack, computed once
 * and kept; and the masks of whole configurations, put together from those parts.
 *
 * Both are found by walking the vocabulary's prefix trie in step with the automaton. A node that
 * the automaton cannot read is skipped with all tokens below it. */
#include "grammar/matcher_impl.h"

#include "base/mem.h"

#include <math.h>

enum {
    MASK_SLOTS = 32,      /* finished masks that are kept */
    MIN_BEYOND = 1 << 15, /* context-dependent tokens of one top frame that may always be listed */
};

static inline void set_bit(uint64_t *bits, int32_t id)
{
    bits[id / 64] |= UINT64_C(1) << (id % 64);
}

static inline void set_tokens(uint64_t *bits, const struct toktrie *t, const struct toktrie_node *n)
{
    for (int i = 0; i < n->n_tokens; i++) set_bit(bits, t->tokens[n->token + (uint32_t)i]);
}

/* Sets the bits of all words of the trie that configuration `from` can read and after which at most
 * `max_bytes` bytes complete the text. strip: a leading space is not written. */
static void walk_trie(struct matcher_cache *c, const struct toktrie *t, int32_t from, int max_bytes,
                      bool strip, uint64_t *bits)
{
    int32_t at[TOKTRIE_MAX_DEPTH + 1]; /* configuration after each byte of the current path */

    at[0] = from;
    for (int i = 0; i < t->n_nodes;) {
        const struct toktrie_node *n = &t->nodes[i];
        bool stripped = strip && n->depth == 1 && n->byte == ' ';
        int32_t to = stripped ? from : config_next(c, at[n->depth - 1], n->byte);
        if (config_is_stuck(to)) {
            if (c->failed) return;
            i = (int)n->skip;
            continue;
        }
        at[n->depth] = to;
        if (n->n_tokens && !stripped && c->configs[to].min_bytes <= max_bytes)
            set_tokens(bits, t, n);
        i++;
    }
}

/* ---- the part of one top frame ---- */

/* Context-dependent tokens of a top frame, by their bytes behind the end of its rule. */
struct beyond {
    struct toktrie_word *words;
    int n, cap, max;
    bool overflow;
};

/* id: a token; from: how many of its bytes the rule reads. */
static void add_beyond(struct matcher_cache *c, struct beyond *b, int32_t id, int from)
{
    struct str s = str_skip(vocabtrie_bytes(c->vocab, id), (size_t)from);

    if (b->n >= b->max) b->overflow = true;
    else if (!mem_ensure(b->words, b->cap, b->n + 1)) c->failed = true;
    else b->words[b->n++] = (struct toktrie_word){ (const uint8_t *)s.p, (uint16_t)s.n, id };
}

/* A set of bytes, a bit for each. */
static bool has_byte(const uint64_t set[4], uint8_t byte)
{
    return set[byte / 64] >> (byte % 64) & 1;
}

/* As walk_trie over the whole vocabulary, with nothing known below the top frame. Where the rule
 * may be over inside a token, the token's remaining bytes are added to b. A byte that cannot follow
 * the rule anywhere in the grammar ends no rule. */
static void walk_top(struct matcher_cache *c, int32_t from, const uint64_t follow[4],
                     uint64_t *bits, struct beyond *b)
{
    const struct toktrie *t = &c->vocab->trie;
    int32_t at[TOKTRIE_MAX_DEPTH + 1];
    int n_over[TOKTRIE_MAX_DEPTH + 1] = { 0 }; /* entries of `over` at each depth */
    uint8_t over[TOKTRIE_MAX_DEPTH + 1];       /* depths at which the rule may be over */

    at[0] = from;
    for (int i = 0; i < t->n_nodes && !b->overflow && !c->failed;) {
        const struct toktrie_node *n = &t->nodes[i];
        int d = n->depth, k = n_over[d - 1];
        int32_t to = config_next(c, at[d - 1], n->byte);
        if (d > 1 && c->configs[at[d - 1]].pops && has_byte(follow, n->byte))
            over[k++] = (uint8_t)(d - 1);
        if (config_is_stuck(to) && k == 0) {
            i = (int)n->skip;
            continue;
        }
        at[d] = to;
        n_over[d] = k;
        if (n->n_tokens && !config_is_stuck(to)) set_tokens(bits, t, n);
        else
            for (int j = 0; j < n->n_tokens; j++)
                for (int o = 0; o < k; o++)
                    add_beyond(c, b, t->tokens[n->token + (uint32_t)j], over[o]);
        i++;
    }
}

/* One count for all counts that no token of this vocabulary can distinguish: farther from the
 * minimum and from the maximum than the longest token reaches. */
static int32_t canonical_count(const struct matcher_cache *c, int32_t state, int32_t count)
{
    const struct pda_rule *r = &c->pda->rules[c->pda->states[state].rule];
    int32_t far = c->vocab->max_len + 1, base = r->min > 1 ? r->min : 1;

    if (!r->counted || count == 0) return count;
    if (r->min - count > far) return r->min - far > 1 ? r->min - far : 1;
    if (count >= base && (r->max == RULES_UNBOUNDED || r->max - count > far)) return base;
    return count;
}

/* Frees the parts of a mask, finished or not. */
static void top_release(struct top_mask *t)
{
    mem_free(t->bits);
    toktrie_release(&t->beyond);
}

static size_t top_bytes(const struct matcher_cache *c, const struct top_mask *t)
{
    return (size_t)c->n_words * sizeof *t->bits +
           (size_t)t->beyond.n_nodes * sizeof *t->beyond.nodes +
           (size_t)t->beyond.n_tokens * sizeof *t->beyond.tokens;
}

/* Fills the mask of t->state and t->count. On failure c->failed is set and t may be half filled. */
static void top_fill(struct matcher_cache *c, struct top_mask *t)
{
    const struct pda_rule *r = &c->pda->rules[c->pda->states[t->state].rule];
    struct beyond b = { .max = MIN_BEYOND > c->vocab->n_ids ? MIN_BEYOND : c->vocab->n_ids };
    int32_t from = config_of_frame(c, frame_intern(c, t->state, t->count, FRAME_LOCAL));

    if (!(t->bits = mem_array((size_t)c->n_words, sizeof *t->bits))) c->failed = true;
    if (c->failed) return;
    if (count_mask_applies(c->pda, t->state) &&
        count_mask_fill(c, t->state, t->count, t->bits, &t->beyond))
        return;
    walk_top(c, from, r->follow, t->bits, &b);
    t->direct = b.overflow;
    if (!t->direct && b.n && !toktrie_build(&t->beyond, b.words, b.n)) c->failed = true;
    mem_free(b.words);
}

/* Top masks are found by state and canonical count. */
static uint64_t top_hash(int32_t state, int32_t count)
{
    return hash_ints((int32_t[]){ state, count }, 2);
}

/* Room for one more top mask. */
static bool grow_tops(struct matcher_cache *c)
{
    if (!mem_ensure(c->tops, c->cap_tops, c->n_tops + 1)) return false;
    if (!intern_is_full(&c->top_index)) return true;
    if (!intern_grow(&c->top_index)) return false;
    for (int i = 0; i < c->n_tops; i++)
        intern_add(&c->top_index, top_hash(c->tops[i].state, c->tops[i].count), i);
    return true;
}

/* NULL: out of memory. The pointer is valid until the next call. */
static struct top_mask *find_or_make_top(struct matcher_cache *c, int32_t state, int32_t count)
{
    const struct intern_index *t = &c->top_index;
    struct top_mask top = { .state = state, .count = count = canonical_count(c, state, count) };

    if (t->slots)
        for (size_t at = intern_first(t, top_hash(state, count)); t->slots[at];
             at = intern_next(t, at)) {
            struct top_mask *x = &c->tops[t->slots[at] - 1];
            if (x->state == state && x->count == count) return x;
        }
    if (!grow_tops(c)) c->failed = true;
    else top_fill(c, &top);
    if (c->failed) {
        top_release(&top);
        return NULL;
    }
    c->mask_bytes += top_bytes(c, &top);
    c->tops[c->n_tops] = top;
    intern_add(&c->top_index, top_hash(state, count), c->n_tops);
    return &c->tops[c->n_tops++];
}

/* ---- the mask of a configuration ---- */

/* The union of what its stacks allow. Masks of a few configurations are kept, because texts come
 * back to the same ones: inside of a string every character leads to the configuration before it. */

/* Adds the tokens that the stack with this frame on top allows. */
static void add_stack(struct matcher_cache *c, int32_t frame, uint64_t *bits)
{
    const struct stack_frame f = c->frames[frame];
    struct top_mask *t = find_or_make_top(c, f.state, f.count);

    if (!t) return;
    if (t->direct) {
        int32_t from = config_of_frame(c, frame);
        if (!c->failed) walk_trie(c, &c->vocab->trie, from, PDA_FAR, false, bits);
        return;
    }
    if (t->stamp != c->mask_stamp) /* several stacks may have the same top */
        for (int k = 0; k < c->n_words; k++) bits[k] |= t->bits[k];
    t->stamp = c->mask_stamp;
    if (t->beyond.n_nodes && f.parent != FRAME_END)
        walk_trie(c, &t->beyond, config_popped(c, f.parent), PDA_FAR, false, bits);
}

/* A slot with zeroed bits. NULL: out of memory. */
static struct mask_slot *take_slot(struct matcher_cache *c)
{
    struct mask_slot *s = NULL;

    if (!c->slots && !(c->slots = mem_array(MASK_SLOTS, sizeof *c->slots))) return NULL;
    if (c->n_slots < MASK_SLOTS) {
        s = &c->slots[c->n_slots];
        if (!(s->bits = mem_array((size_t)c->n_words + 1, sizeof *s->bits))) return NULL;
        c->n_slots++;
    } else {
        for (int i = 0; i < MASK_SLOTS; i++)
            if (!s || c->slots[i].used < s->used) s = &c->slots[i];
        if (s->config >= 0) c->configs[s->config].slot = -1;
        memset(s->bits, 0, (size_t)c->n_words * sizeof *s->bits);
    }
    s->config = -1;
    s->used = ++c->tick;
    return s;
}

const uint64_t *matcher_mask(struct matcher *x)
{
    struct matcher_cache *c = x->cache;
    int32_t at = x->config;
    struct mask_slot *s;

    if (!x->at_start && c->configs[at].slot >= 0) {
        s = &c->slots[c->configs[at].slot];
        s->used = ++c->tick;
        return s->bits;
    }
    c->failed = false;
    if (!(s = take_slot(c))) return NULL;
    if (x->at_start) {
        walk_trie(c, &c->vocab->trie, at, PDA_FAR, true, s->bits);
    } else {
        c->mask_stamp++;
        for (int i = 0; i < c->configs[at].n && !c->failed; i++)
            add_stack(c, c->items[c->configs[at].item + (uint32_t)i], s->bits);
    }
    if (c->failed) return NULL;
    if (!x->at_start) {
        s->config = at;
        c->configs[at].slot = (int32_t)(s - c->slots);
    }
    return s->bits;
}

const uint64_t *matcher_closing_mask(struct matcher *x, int left)
{
    struct matcher_cache *c = x->cache;
    struct mask_slot *s = take_slot(c);

    if (!s) return NULL;
    c->failed = false;
    walk_trie(c, &c->vocab->trie, x->config, left, x->at_start, s->bits);
    return c->failed ? NULL : s->bits;
}

/* Configurations keep the numbers of slots that are gone: the caller drops the configurations too. */
void masks_evict(struct matcher_cache *c)
{
    for (int i = 0; i < c->n_tops; i++) top_release(&c->tops[i]);
    count_masks_evict(c);
    for (int i = 0; i < c->n_slots; i++) mem_free(c->slots[i].bits);
    mem_free(c->tops);
    mem_free(c->slots);
    intern_release(&c->top_index);
    c->tops = NULL;
    c->slots = NULL;
    c->n_tops = c->cap_tops = c->n_slots = 0;
    c->mask_bytes = 0;
}

size_t masks_bytes(const struct matcher_cache *c)
{
    return c->mask_bytes + (size_t)c->n_slots * (size_t)c->n_words * sizeof(uint64_t);
}

/* ---- applying a mask ---- */

typedef int32_t lanes __attribute__((vector_size(16)));

/* Four logits at a time: -Inf, as the bits of a float, where the mask has a zero. */
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

void matcher_apply_mask(const uint64_t *mask, const float *in, float *out, int n)
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
