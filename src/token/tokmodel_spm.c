#include "token/tokmodel.h"

#include "base/utf8.h"

#include <math.h>
#include <stdio.h>

static const double unk_penalty = 10.0;

void spm_finish(struct spm *s, bool unigram)
{
    double least = INFINITY;
    size_t bytes = 0;
    char text[8];

    for (int i = 0; i < 256; i++) {
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)i);
        s->fallback[i] = s->byte_fallback ? vocab_find(s->vocab, str_c(text)) : -1;
    }
    if (!unigram) return;
    for (int i = 0; i < s->vocab->n; i++)
        if (s->vocab->pieces[i].p && s->scores[i] < least) least = s->scores[i];
    s->unk_score = (isinf(least) ? 0 : least) - unk_penalty;
    for (int i = 0; i < s->vocab->n; i++) bytes += s->vocab->pieces[i].n;
    trie_reserve(&s->trie, bytes / 2);
    for (int i = 0; i < s->vocab->n + s->vocab->n_aliases; i++) {
        int32_t id;
        struct str piece = vocab_at(s->vocab, i, &id);
        if (piece.n) trie_add(&s->trie, piece, vocab_find(s->vocab, piece));
    }
}

void spm_release(struct spm *s) { trie_release(&s->trie); }

/* A stretch that is no piece: its bytes if all have one, else the unknown piece. */
static bool put_unknown(const struct spm *s, struct str text, struct ids *out)
{
    bool bytes = s->byte_fallback;

    for (size_t i = 0; bytes && i < text.n; i++) bytes = s->fallback[(unsigned char)text.p[i]] >= 0;
    if (bytes)
        for (size_t i = 0; i < text.n; i++) ids_push(out, s->fallback[(unsigned char)text.p[i]]);
    else if (s->unk >= 0) ids_push(out, s->unk);
    return bytes || s->unk >= 0;
}

/* ---- unigram ---- */

static void consider(struct scratch *w, size_t from, size_t to, double score, int32_t id)
{
    if (w->prev[to] >= 0 && score <= w->scores[to]) return;
    w->scores[to] = score;
    w->prev[to] = (int32_t)from;
    w->ids[to] = id;
}

/* Best way to each place: scores, where its last piece begins (prev), which piece (ids). */
static void search(const struct spm *s, struct scratch *w, struct str text)
{
    for (size_t i = 0; i <= text.n; i++) w->prev[i] = -1;
    w->scores[0] = 0;
    for (size_t i = 0, len; i < text.n; i += len) {
        uint32_t node = TRIE_ROOT;
        bool single = false;
        int32_t cp;
        len = (size_t)utf8_next(str_skip(text, i), &cp);
        for (size_t k = i;
             k < text.n && (node = trie_step(&s->trie, node, (unsigned char)text.p[k])); k++) {
            int32_t id = s->trie.values[node];
            if (id < 0) continue;
            consider(w, i, k + 1, w->scores[i] + s->scores[id], id);
            single |= k + 1 - i == len;
        }
        if (!single) consider(w, i, i + len, w->scores[i] + s->unk_score, s->unk);
    }
}

int spm_unigram(const struct spm *s, struct scratch *w, struct str text, struct ids *out,
                struct err *e)
{
    size_t n = 0;

    scratch_symbols(w, text.n + 1);
    scratch_scores(w, text.n + 1);
    search(s, w, text);
    for (size_t at = text.n; at; at = (size_t)w->prev[at])
        w->next[n++] = (int32_t)at; /* from the end */
    for (size_t i = n, from = 0; i-- > 0;) {
        size_t to = (size_t)w->next[i];
        while (w->ids[to] == s->unk && i && w->ids[w->next[i - 1]] == s->unk)
            to = (size_t)w->next[--i];
        struct str part = str_of(text.p + from, to - from);
        int32_t id = w->ids[to] == s->unk ? vocab_find(s->vocab, part) : w->ids[to];
        if (id >= 0) ids_push(out, id);
        else if (!put_unknown(s, part, out))
            return err_set(
                e, E_FORMAT,
                "the text has a character without a piece, and there is no unknown piece");
        from = to;
    }
    return OK;
}

/* ---- merging by score ---- */

/* Order of a heap that has the best score on top: the smaller number is the better score. */
static uint32_t order_of(double score)
{
    float f = (float)score;
    uint32_t u;

    if (isnan(f)) return UINT32_MAX;
    memcpy(&u, &f, 4);
    return u & 0x80000000u ? u : ~(u | 0x80000000u);
}

/* While merging, ids[at] is where the symbol that begins at byte `at` ends (0: it is gone),
 * ranks[at] the order of its pair with the next symbol. */
static void offer(const struct spm *s, struct scratch *w, struct str text, int32_t at)
{
    int32_t right = w->next[at], id = -1;
    size_t n = right < 0 ? 0 : (size_t)(w->ids[right] - at);

    if (right >= 0) id = vocab_find(s->vocab, str_of(text.p + at, n));
    w->ranks[at] = id < 0 ? UINT32_MAX : order_of(s->scores[id]);
    if (id >= 0) heap_push(w, (uint64_t)w->ranks[at] << 32 | (uint32_t)at);
}

static void first_symbols(struct scratch *w, struct str text)
{
    int32_t last = -1, cp;

    for (size_t i = 0, n; i < text.n; i += n) {
        n = (size_t)utf8_next(str_skip(text, i), &cp);
        memset(w->ids + i, 0, n * sizeof *w->ids);
        w->ids[i] = (int32_t)(i + n);
        w->prev[i] = last;
        w->next[i] = i + n < text.n ? (int32_t)(i + n) : -1;
        last = (int32_t)i;
    }
}

void spm_merge(const struct spm *s, struct scratch *w, struct str text, struct ids *out)
{
    scratch_symbols(w, text.n + 1);
    first_symbols(w, text);
    w->n_heap = 0;
    for (int32_t i = text.n ? 0 : -1; i >= 0; i = w->next[i]) offer(s, w, text, i);
    while (w->n_heap) {
        uint64_t top = heap_pop(w);
        int32_t at = (int32_t)(uint32_t)top, right = w->next[at];
        if (!w->ids[at] || right < 0 || w->ranks[at] != top >> 32) continue;
        w->ids[at] = w->ids[right];
        w->ids[right] = 0;
        w->next[at] = w->next[right];
        if (w->next[at] >= 0) w->prev[w->next[at]] = at;
        offer(s, w, text, at);
        if (w->prev[at] >= 0) offer(s, w, text, w->prev[at]);
    }
    for (int32_t i = text.n ? 0 : -1; i >= 0; i = w->next[i]) {
        struct str part = str_of(text.p + i, (size_t)(w->ids[i] - i));
        int32_t id = vocab_find(s->vocab, part);
        if (id >= 0) ids_push(out, id);
        else put_unknown(s, part, out);
    }
}
