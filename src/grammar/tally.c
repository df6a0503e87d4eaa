/* tally.c - tokens inside a counted repetition of characters: by how many rounds each takes, looked
 * up once.
 *
 * A string of 50 to 500 characters has another mask at every length near its bounds. They differ
 * only in tokens that are too long, or close too early: so the vocabulary is walked once for a
 * state, whatever the count. */
#include "grammar/guide_impl.h"

#include "base/mem.h"

#include <stdlib.h>

enum { OVER_LEAST = 1 << 15 };

static int n_states_of(const struct gauto *a, const struct gauto_rule *r)
{
    int n = 0;

    while (r->start + n < a->n_states && a->states[r->start + n].rule == a->states[r->start].rule)
        n++;
    return n;
}

bool tally_fits(const struct gauto *a, int32_t state)
{
    const struct gauto_rule *r = &a->rules[a->states[state].rule];
    int n = r->counted ? n_states_of(a, r) : 0;

    for (int i = 0; i < n; i++)
        if (a->states[r->start + i].n_calls) return false;
    return n > 0;
}

/* [state of the rule][class] → state of the rule, -1: none */
static int16_t *make_table(const struct gauto *a, const struct gauto_rule *r)
{
    int n = n_states_of(a, r), nc = a->n_classes;
    int16_t *t = mem_array((size_t)n * (size_t)nc, sizeof *t);

    memset(t, 0xff, (size_t)n * (size_t)nc * sizeof *t);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < a->states[r->start + i].n_edges; k++) {
            const struct fsm_edge *x = &a->edges[a->states[r->start + i].edge + k];
            for (int b = x->lo; b <= x->hi; b++)
                t[i * nc + a->class_of[b]] = (int16_t)(x->to - r->start);
        }
    return t;
}

struct walk {
    struct guide *m;
    struct tally *t;
    uint8_t *rounds; /* [ids] that a token inside takes; 0: it is not */
    int cap, most;
};

static void add_over(struct walk *w, int32_t id, int from, int rounds)
{
    struct str s = str_skip(lexicon_word(w->m->lex, id), (size_t)from);
    struct tally *t = w->t;

    if (t->n_over >= w->most) {
        t->direct = true;
        return;
    }
    if (t->n_over == w->cap) {
        w->cap = w->cap ? 2 * w->cap : 256;
        t->over = mem_grow(t->over, (size_t)w->cap * sizeof *t->over);
    }
    t->over[t->n_over++] =
        (struct over){ { (const uint8_t *)s.p, (uint16_t)s.n, id }, (uint8_t)rounds };
}

static void walk_all(struct walk *w, const int16_t *table, const struct gauto_rule *r, int from)
{
    const struct lex_trie *t = &w->m->lex->trie;
    const struct gauto *a = w->m->a;
    int16_t at[LEXICON_DEPTH + 1];
    uint8_t rounds[LEXICON_DEPTH + 1] = { 0 }, over[LEXICON_DEPTH + 1];
    int n_over[LEXICON_DEPTH + 1] = { 0 };

    at[0] = (int16_t)from;
    for (int i = 0; i < t->n_nodes && !w->t->direct;) {
        const struct lex_node *n = &t->nodes[i];
        int d = n->depth, k = n_over[d - 1], s = at[d - 1];
        int to = s < 0 ? -1 : table[s * a->n_classes + a->class_of[n->byte]];
        if (d > 1 && s == 0 && r->follow[n->byte / 64] >> (n->byte % 64) & 1)
            over[k++] = (uint8_t)(d - 1);
        if (to < 0 && k == 0) {
            i = (int)n->skip;
            continue;
        }
        at[d] = (int16_t)to;
        rounds[d] = (uint8_t)(rounds[d - 1] + (to == 0));
        n_over[d] = k;
        for (int j = 0; j < n->n_toks; j++) {
            int32_t id = t->toks[n->tok + (uint32_t)j];
            if (to >= 0) w->rounds[id] = (uint8_t)(rounds[d] + (to != 0));
            for (int o = 0; o < k; o++) add_over(w, id, over[o], rounds[over[o]]);
        }
        i++;
    }
}

/* Tokens inside, the longest first. */
static void sort_tokens(struct guide *m, struct tally *t, const uint8_t *rounds)
{
    int count[257] = { 0 };

    for (int32_t id = 0; id < m->lex->n_ids; id++) count[rounds[id]]++;
    for (int k = 255; k >= 1; k--) t->longer[k - 1] = t->longer[k] + count[k];
    t->bits = mem_array((size_t)m->n_words, sizeof *t->bits);
    t->toks = mem_array((size_t)t->longer[0] + 1, sizeof *t->toks);
    memcpy(count, t->longer, sizeof t->longer);
    for (int32_t id = 0; id < m->lex->n_ids; id++) {
        if (!rounds[id]) continue;
        t->toks[count[rounds[id]]++] = id;
        t->bits[id / 64] |= UINT64_C(1) << (id % 64);
    }
}

static int by_bytes(const void *a, const void *b)
{
    return lex_word_order(&((const struct over *)a)->word, &((const struct over *)b)->word);
}

static struct tally *tally_of(struct guide *m, int32_t state)
{
    const struct gauto_rule *r = &m->a->rules[m->a->states[state].rule];
    struct tally *t;
    struct walk w = { .m = m };
    int16_t *table;

    for (int i = 0; i < m->n_tallies; i++)
        if (m->tallies[i]->state == state) return m->tallies[i];
    m->tallies = mem_grow(m->tallies, (size_t)(m->n_tallies + 1) * sizeof *m->tallies);
    m->tallies[m->n_tallies++] = w.t = t = mem_new(struct tally);
    t->state = state;
    w.most = OVER_LEAST > m->lex->n_ids ? OVER_LEAST : m->lex->n_ids;
    w.rounds = mem_array((size_t)m->lex->n_ids + 1, 1);
    table = make_table(m->a, r);
    walk_all(&w, table, r, state - r->start);
    sort_tokens(m, t, w.rounds);
    if (t->n_over) qsort(t->over, (size_t)t->n_over, sizeof *t->over, by_bytes);
    m->lmask_bytes += (size_t)m->n_words * 8 + (size_t)t->longer[0] * sizeof *t->toks +
                      (size_t)t->n_over * sizeof *t->over;
    mem_free(table);
    mem_free(w.rounds);
    return t;
}

bool tally_mask(struct guide *m, int32_t state, int32_t count, uint64_t *bits,
                struct lex_trie *beyond)
{
    const struct tally *t = tally_of(m, state);
    const struct gauto_rule *r = &m->a->rules[m->a->states[state].rule];
    int most = r->max == GNODE_MANY || r->max - count > 255 ? 255 : r->max - count;
    int least = r->min - count > 1 ? r->min - count : 1, n = 0;
    struct lex_word *words;

    if (t->direct) return false;
    memcpy(bits, t->bits, (size_t)m->n_words * sizeof *bits);
    for (int i = 0; i < t->longer[most]; i++)
        bits[t->toks[i] / 64] &= ~(UINT64_C(1) << (t->toks[i] % 64));
    words = mem_array((size_t)t->n_over + 1, sizeof *words);
    for (int i = 0; i < t->n_over; i++) {
        int32_t id = t->over[i].word.id;
        if (t->over[i].rounds < least || t->over[i].rounds > most || bits[id / 64] >> (id % 64) & 1)
            continue;
        words[n++] = t->over[i].word;
    }
    if (n) lex_trie_build(beyond, words, n);
    mem_free(words);
    return true;
}

void tallies_forget(struct guide *m)
{
    for (int i = 0; i < m->n_tallies; i++) {
        mem_free(m->tallies[i]->bits);
        mem_free(m->tallies[i]->toks);
        mem_free(m->tallies[i]->over);
        mem_free(m->tallies[i]);
    }
    mem_free(m->tallies);
    m->tallies = NULL;
    m->n_tallies = 0;
}
