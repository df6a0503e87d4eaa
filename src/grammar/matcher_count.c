/* matcher_count.c - token masks inside a counted repetition of characters, for all counts at once.
 *
 * A string of 50 to 500 characters has another token mask at every length near its bounds. These
 * masks differ only in the tokens that are too long, or that close the string too early. So the
 * vocabulary is walked once for a state, whatever the count: each token that stays inside is noted
 * with the number of rounds it takes, each token that leaves the rule with its rounds and its
 * remaining bytes. The mask of a count is then made by comparing rounds. */
#include "grammar/matcher_impl.h"

#include "base/mem.h"

#include <stdlib.h>

enum { MIN_OVERRUNS = 1 << 15 /* that may always be listed */ };

/* The states of a rule lie next to each other. */
static int count_states(const struct pda *a, const struct pda_rule *r)
{
    int n = 0;

    while (r->start + n < a->n_states && a->states[r->start + n].rule == a->states[r->start].rule)
        n++;
    return n;
}

/* A counted rule without calls to other rules. */
bool count_mask_applies(const struct pda *a, int32_t state)
{
    const struct pda_rule *r = &a->rules[a->states[state].rule];
    int n = r->counted ? count_states(a, r) : 0;

    for (int i = 0; i < n; i++)
        if (a->states[r->start + i].n_calls) return false;
    return n > 0;
}

/* [state of the rule][byte class] → state of the rule, -1: none. NULL: out of memory. */
static int16_t *make_transitions(const struct pda *a, const struct pda_rule *r)
{
    int n = count_states(a, r), n_classes = a->n_classes;
    int16_t *t = mem_array((size_t)n * (size_t)n_classes, sizeof *t);

    if (!t) return NULL;
    memset(t, 0xff, (size_t)n * (size_t)n_classes * sizeof *t);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < a->states[r->start + i].n_edges; k++) {
            const struct dfa_edge *x = &a->edges[a->states[r->start + i].edge + k];
            for (int b = x->lo; b <= x->hi; b++)
                t[i * n_classes + a->class_of[b]] = (int16_t)(x->to - r->start);
        }
    return t;
}

struct count_walk {
    struct matcher_cache *c;
    struct count_mask *m;
    uint8_t *rounds; /* [n_ids] rounds of a token that stays inside; 0: it does not */
    int cap, max;    /* of overruns */
};

/* id: a token; from: how many of its bytes the rule reads in `rounds` rounds. */
static void add_overrun(struct count_walk *w, int32_t id, int from, int rounds)
{
    struct str s = str_skip(vocabtrie_bytes(w->c->vocab, id), (size_t)from);
    struct count_mask *m = w->m;

    if (m->n_overruns >= w->max) m->direct = true;
    else if (!mem_ensure(m->overruns, w->cap, m->n_overruns + 1)) w->c->failed = true;
    else
        m->overruns[m->n_overruns++] =
            (struct overrun){ { (const uint8_t *)s.p, (uint16_t)s.n, id }, (uint8_t)rounds };
}

/* State 0 of the rule is its start: a token that is there between two of its bytes may leave. */
static void walk_vocabulary(struct count_walk *w, const int16_t *transitions,
                            const struct pda_rule *r, int from)
{
    const struct toktrie *t = &w->c->vocab->trie;
    const struct pda *a = w->c->pda;
    int16_t at[TOKTRIE_MAX_DEPTH + 1];
    uint8_t rounds[TOKTRIE_MAX_DEPTH + 1] = { 0 }, over[TOKTRIE_MAX_DEPTH + 1];
    int n_over[TOKTRIE_MAX_DEPTH + 1] = { 0 };

    at[0] = (int16_t)from;
    for (int i = 0; i < t->n_nodes && !w->m->direct && !w->c->failed;) {
        const struct toktrie_node *n = &t->nodes[i];
        int d = n->depth, k = n_over[d - 1], s = at[d - 1];
        int to = s < 0 ? -1 : transitions[s * a->n_classes + a->class_of[n->byte]];
        if (d > 1 && s == 0 && r->follow[n->byte / 64] >> (n->byte % 64) & 1)
            over[k++] = (uint8_t)(d - 1);
        if (to < 0 && k == 0) {
            i = (int)n->skip;
            continue;
        }
        at[d] = (int16_t)to;
        rounds[d] = (uint8_t)(rounds[d - 1] + (to == 0));
        n_over[d] = k;
        for (int j = 0; j < n->n_tokens; j++) {
            int32_t id = t->tokens[n->token + (uint32_t)j];
            if (to >= 0) w->rounds[id] = (uint8_t)(rounds[d] + (to != 0));
            for (int o = 0; o < k; o++) add_overrun(w, id, over[o], rounds[over[o]]);
        }
        i++;
    }
}

/* Counting sort of the tokens inside, by falling number of rounds. */
static bool sort_tokens(struct count_walk *w)
{
    struct matcher_cache *c = w->c;
    struct count_mask *m = w->m;
    int count[257] = { 0 };

    for (int32_t id = 0; id < c->vocab->n_ids; id++) count[w->rounds[id]]++;
    for (int k = 255; k >= 1; k--) m->longer[k - 1] = m->longer[k] + count[k];
    m->bits = mem_array((size_t)c->n_words, sizeof *m->bits);
    m->tokens = mem_array((size_t)m->longer[0] + 1, sizeof *m->tokens);
    if (!m->bits || !m->tokens) return false;
    memcpy(count, m->longer, sizeof m->longer);
    for (int32_t id = 0; id < c->vocab->n_ids; id++) {
        if (!w->rounds[id]) continue;
        m->tokens[count[w->rounds[id]]++] = id;
        m->bits[id / 64] |= UINT64_C(1) << (id % 64);
    }
    return true;
}

/* qsort order. */
static int by_bytes(const void *a, const void *b)
{
    return toktrie_compare(&((const struct overrun *)a)->word, &((const struct overrun *)b)->word);
}

static void count_mask_close(struct count_mask *m)
{
    if (!m) return;
    mem_free(m->bits);
    mem_free(m->tokens);
    mem_free(m->overruns);
    mem_free(m);
}

/* NULL: out of memory. */
static struct count_mask *count_mask_open(struct matcher_cache *c, int32_t state)
{
    const struct pda_rule *r = &c->pda->rules[c->pda->states[state].rule];
    struct count_mask *m = mem_new(struct count_mask);
    struct count_walk w = { .c = c, .m = m };
    int16_t *transitions = make_transitions(c->pda, r);
    bool ok = false;

    w.max = MIN_OVERRUNS > c->vocab->n_ids ? MIN_OVERRUNS : c->vocab->n_ids;
    w.rounds = mem_array((size_t)c->vocab->n_ids + 1, 1);
    if (m && transitions && w.rounds) {
        m->state = state;
        walk_vocabulary(&w, transitions, r, state - r->start);
        ok = !c->failed && sort_tokens(&w);
    }
    mem_free(transitions);
    mem_free(w.rounds);
    if (!ok) {
        count_mask_close(m);
        return NULL;
    }
    if (m->n_overruns) qsort(m->overruns, (size_t)m->n_overruns, sizeof *m->overruns, by_bytes);
    return m;
}

/* NULL: out of memory. */
static const struct count_mask *find_or_make_count(struct matcher_cache *c, int32_t state)
{
    struct count_mask *m;

    for (int i = 0; i < c->n_counts; i++)
        if (c->counts[i]->state == state) return c->counts[i];
    if (!mem_ensure(c->counts, c->cap_counts, c->n_counts + 1)) return NULL;
    if (!(m = count_mask_open(c, state))) return NULL;
    c->mask_bytes += (size_t)c->n_words * sizeof *m->bits +
                     (size_t)m->longer[0] * sizeof *m->tokens +
                     (size_t)m->n_overruns * sizeof *m->overruns;
    return c->counts[c->n_counts++] = m;
}

/* Overruns with a permitted number of rounds that are not tokens inside the rule anyway. */
static bool build_beyond(const struct count_mask *m, int min, int max, const uint64_t *bits,
                         struct toktrie *beyond)
{
    struct toktrie_word *words = mem_array((size_t)m->n_overruns + 1, sizeof *words);
    bool ok = words != NULL;
    int n = 0;

    for (int i = 0; ok && i < m->n_overruns; i++) {
        const struct overrun *o = &m->overruns[i];
        if (o->rounds < min || o->rounds > max || bits[o->word.id / 64] >> (o->word.id % 64) & 1)
            continue;
        words[n++] = o->word;
    }
    if (n) ok = toktrie_build_sorted(beyond, words, n);
    mem_free(words);
    return ok;
}

/* Tokens with more rounds than are left are taken out of the mask; they come first in `tokens`. */
bool count_mask_fill(struct matcher_cache *c, int32_t state, int32_t count, uint64_t *bits,
                     struct toktrie *beyond)
{
    const struct count_mask *m = find_or_make_count(c, state);
    const struct pda_rule *r = &c->pda->rules[c->pda->states[state].rule];
    int max = r->max == RULES_UNBOUNDED || r->max - count > 255 ? 255 : r->max - count;
    int min = r->min - count > 1 ? r->min - count : 1;

    if (!m) c->failed = true;
    if (!m || m->direct) return false;
    memcpy(bits, m->bits, (size_t)c->n_words * sizeof *bits);
    for (int i = 0; i < m->longer[max]; i++)
        bits[m->tokens[i] / 64] &= ~(UINT64_C(1) << (m->tokens[i] % 64));
    if (!build_beyond(m, min, max, bits, beyond)) c->failed = true;
    return !c->failed;
}

void count_masks_evict(struct matcher_cache *c)
{
    for (int i = 0; i < c->n_counts; i++) count_mask_close(c->counts[i]);
    mem_free(c->counts);
    c->counts = NULL;
    c->n_counts = c->cap_counts = 0;
}
