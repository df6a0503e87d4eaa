#include "token/tokmodel.h"

#include "base/buf.h"

#include <stdio.h>

static bool is_whole(const struct vocab *v, struct str left, struct str right, int32_t id)
{
    struct str s = id < v->n ? v->pieces[id] : STR("");
    return s.n == left.n + right.n && str_starts(s, left) && str_ends(s, right);
}

/* What the parts make together. Files list merges in the order of their results, so the last id or
 * the one behind it is a good guess. */
static int32_t find_whole(const struct merger *m, const struct merger_pair *p)
{
    const struct vocab *v = m->bpe->vocab;
    struct str left = p->part[0], right = str_skip(p->part[1], m->bpe->prefix.n);
    struct buf text = { 0 };
    int32_t id;

    if (is_whole(v, left, right, m->last)) return m->last;
    if (is_whole(v, left, right, m->last + 1)) return m->last + 1;
    buf_put_str(&text, left);
    buf_put_str(&text, right);
    id = vocab_find(v, buf_str(&text));
    buf_release(&text);
    return id;
}

static bool fail(struct merger *m, const struct merger_pair *p, struct str piece)
{
    snprintf(m->why, sizeof m->why, "merge %zu: '%.*s' is not in the vocabulary",
             m->rank + (size_t)(p - m->pairs), STR_ARG(str_take(piece, 100)));
    return false;
}

static bool find_pair(struct merger *m, struct merger_pair *p)
{
    const struct vocab *v = m->bpe->vocab;
    struct buf text = { 0 };

    for (int k = 0; k < 2; k++) {
        p->ids[k] = vocab_find_guessed(v, p->part[k], p->hash[k], p->ids[k]);
        if (p->ids[k] < 0) return fail(m, p, p->part[k]);
    }
    p->whole = find_whole(m, p);
    if (p->whole < 0) {
        buf_put_str(&text, p->part[0]);
        buf_put_str(&text, str_skip(p->part[1], m->bpe->prefix.n));
        fail(m, p, buf_str(&text));
        buf_release(&text);
        return false;
    }
    m->last = p->whole;
    bpe_prefetch(m->bpe, p->ids[0], p->ids[1]);
    return true;
}

bool merger_flush(struct merger *m)
{
    const struct vocab *v = m->bpe->vocab;

    for (size_t i = 0; i < 2 * m->n; i++)
        m->pairs[i / 2].ids[i % 2] = vocab_guess(v, m->pairs[i / 2].hash[i % 2]);
    for (size_t i = 0; i < 2 * m->n; i++) {
        int32_t guess = m->pairs[i / 2].ids[i % 2];
        if (guess >= 0 && guess < v->n) __builtin_prefetch(v->pieces[guess].p);
    }
    for (size_t i = 0; i < m->n; i++)
        if (!find_pair(m, &m->pairs[i])) return false;
    for (size_t i = 0; i < m->n; i++) {
        const struct merger_pair *p = &m->pairs[i];
        bpe_put(m->bpe, p->ids[0], p->ids[1], m->rank++, p->whole);
        if (m->note_cuts) bpe_note_cuts(m->bpe, v->pieces[p->whole]);
    }
    m->n = 0;
    return true;
}

bool merger_add(struct merger *m, struct str left, struct str right)
{
    struct merger_pair *p = &m->pairs[m->n++];

    p->part[0] = left;
    p->part[1] = right;
    for (int k = 0; k < 2; k++) {
        p->hash[k] = vocab_hash(p->part[k]);
        vocab_prefetch(m->bpe->vocab, p->hash[k]);
    }
    return m->n < MERGER_BATCH || merger_flush(m);
}
