/* tokmodel_merges.c - loading the list of merges.
 *
 * Loading is bound by cache misses: a merge "a b" needs the ids of a, of b and of ab, each a random
 * access into a table of megabytes. Pairs are collected into a batch; for the whole batch first the
 * slots, then the texts are prefetched, so that many misses are under way at once. */
#include "token/tokmodel.h"

#include <stdio.h>

static bool is_joined(const struct vocab *v, struct str left, struct str right, int32_t id)
{
    struct str s = id < v->n ? v->pieces[id] : STR("");
    return s.n == left.n + right.n && str_starts(s, left) && str_ends(s, right);
}

/* The id that the pair becomes: p->whole, -1: none. Files list merges in the order of their
 * results, so it is mostly the last id or the one after it, and no text needs to be put together.
 * false: no memory; else m->text is the piece that was looked up. */
static bool find_whole(struct merge_loader *m, struct merge_pair *p)
{
    const struct vocab *v = m->bpe->vocab;
    struct str left = p->part[0], right = str_skip(p->part[1], m->bpe->prefix.n);

    p->whole = m->last;
    if (is_joined(v, left, right, p->whole)) return true;
    p->whole = m->last + 1;
    if (is_joined(v, left, right, p->whole)) return true;
    buf_clear(&m->text);
    buf_put_str(&m->text, left);
    buf_put_str(&m->text, right);
    p->whole = vocab_find(v, buf_str(&m->text));
    return !m->text.failed;
}

static int fail_pair(struct merge_loader *m, const struct merge_pair *p, struct str piece)
{
    snprintf(m->why, sizeof m->why, "merge %zu: '%.*s' is not in the vocabulary",
             m->rank + (size_t)(p - m->pairs), STR_ARG(str_take(piece, 100)));
    return E_FORMAT;
}

static int find_pair(struct merge_loader *m, struct merge_pair *p)
{
    const struct vocab *v = m->bpe->vocab;

    for (int k = 0; k < 2; k++) {
        p->ids[k] = vocab_find_guessed(v, p->part[k], p->hash[k], p->ids[k]);
        if (p->ids[k] < 0) return fail_pair(m, p, p->part[k]);
    }
    if (!find_whole(m, p)) return E_NOMEM;
    if (p->whole < 0) return fail_pair(m, p, buf_str(&m->text));
    m->last = p->whole;
    bpe_prefetch(m->bpe, p->ids[0], p->ids[1]);
    return OK;
}

int merge_loader_flush(struct merge_loader *m)
{
    const struct vocab *v = m->bpe->vocab;
    int rc;

    for (size_t i = 0; i < 2 * m->n; i++)
        m->pairs[i / 2].ids[i % 2] = vocab_guess(v, m->pairs[i / 2].hash[i % 2]);
    for (size_t i = 0; i < 2 * m->n; i++) {
        int32_t guess = m->pairs[i / 2].ids[i % 2];
        if (guess >= 0 && guess < v->n) __builtin_prefetch(v->pieces[guess].p);
    }
    for (size_t i = 0; i < m->n; i++)
        if ((rc = find_pair(m, &m->pairs[i])) != OK) return rc;
    for (size_t i = 0; i < m->n; i++) {
        const struct merge_pair *p = &m->pairs[i];
        bpe_add_merge(m->bpe, p->ids[0], p->ids[1], m->rank++, p->whole);
        if (m->note_inner_marks) bpe_note_inner_marks(m->bpe, v->pieces[p->whole]);
    }
    m->n = 0;
    return OK;
}

int merge_loader_add(struct merge_loader *m, struct str left, struct str right)
{
    struct merge_pair *p = &m->pairs[m->n++];

    p->part[0] = left;
    p->part[1] = right;
    for (int k = 0; k < 2; k++) {
        p->hash[k] = vocab_hash(p->part[k]);
        vocab_prefetch(m->bpe->vocab, p->hash[k]);
    }
    return m->n < MERGE_BATCH ? OK : merge_loader_flush(m);
}

void merge_loader_release(struct merge_loader *m) { buf_release(&m->text); }
