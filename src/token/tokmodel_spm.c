/* tokmodel_spm.c - SentencePiece's unigram and BPE models.
 *
 * Both give the ids of SentencePiece itself, including its choice among equal scores: unigram keeps
 * the first best path found from left to right, BPE merges the leftmost of equally good pairs. */
#include "token/tokmodel.h"

#include "base/utf8.h"

#include <math.h>
#include <stdio.h>

static const double unk_penalty = 10.0; /* below the worst score; SentencePiece's kUnkPenalty */

static int build_trie(struct spm *s, struct err *e)
{
    size_t bytes = 0;

    for (int i = 0; i < s->vocab->n; i++) bytes += s->vocab->pieces[i].n;
    if (!trie_reserve(&s->trie, bytes / 2)) return err_nomem(e, "the trie of the vocabulary");
    for (int i = 0; i < s->vocab->n + s->vocab->n_aliases; i++) {
        int32_t id;
        struct str piece = vocab_at(s->vocab, i, &id);
        if (piece.n && trie_add(&s->trie, piece, vocab_find(s->vocab, piece)) < 0)
            return err_nomem(e, "the trie of the vocabulary");
    }
    return OK;
}

int spm_finish(struct spm *s, bool unigram, struct err *e)
{
    double least = INFINITY;
    char text[8];

    for (int i = 0; i < 256; i++) {
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)i);
        s->fallback[i] = s->byte_fallback ? vocab_find(s->vocab, str_c(text)) : -1;
    }
    if (!unigram) return OK;
    for (int i = 0; i < s->vocab->n; i++)
        if (s->vocab->pieces[i].p && s->scores[i] < least) least = s->scores[i];
    s->unk_score = (isinf(least) ? 0 : least) - unk_penalty;
    return build_trie(s, e);
}

void spm_release(struct spm *s) { trie_release(&s->trie); }

/* Appends the tokens of text that is not a piece: its bytes if all have a piece, else the unknown
 * token. false: the model has neither. */
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

/* A path to position `to` whose last piece is text[from, to): keeps it if it is the best so far. */
static void offer_path(struct model_scratch *w, size_t from, size_t to, double score, int32_t id)
{
    if (w->prev[to] >= 0 && score <= w->scores[to]) return;
    w->scores[to] = score;
    w->prev[to] = (int32_t)from;
    w->ids[to] = id;
}

/* Viterbi search. For each position that a piece can end at: the best score of a path to it, where
 * the last piece of the path starts (prev, -1: no path yet) and its id. */
static void search_paths(const struct spm *s, struct model_scratch *w, struct str text)
{
    for (size_t i = 0; i <= text.n; i++) w->prev[i] = -1;
    w->scores[0] = 0;
    for (size_t i = 0, len; i < text.n; i += len) {
        uint32_t node = TRIE_ROOT;
        bool single = false; /* there is a piece of just this character */
        int32_t cp;
        len = (size_t)utf8_next(str_skip(text, i), &cp);
        for (size_t k = i;
             k < text.n && (node = trie_step(&s->trie, node, (unsigned char)text.p[k])); k++) {
            int32_t id = s->trie.values[node];
            if (id < 0) continue;
            offer_path(w, i, k + 1, w->scores[i] + s->scores[id], id);
            single |= k + 1 - i == len;
        }
        if (!single) offer_path(w, i, i + len, w->scores[i] + s->unk_score, s->unk);
    }
}

/* The best path is followed from the end. A run of unknown characters is one token: the piece with
 * this text if there is one, as in Hugging Face's library, else the unknown token. */
bool spm_encode_unigram(const struct spm *s, struct model_scratch *w, struct str text,
                        struct ids *out, bool *unknown)
{
    size_t n = 0;

    *unknown = false;
    if (!model_scratch_reserve_symbols(w, text.n + 1) ||
        !model_scratch_reserve_scores(w, text.n + 1))
        return false;
    search_paths(s, w, text);
    for (size_t at = text.n; at; at = (size_t)w->prev[at])
        w->next[n++] = (int32_t)at; /* ends of the pieces, from right to left */
    for (size_t i = n, from = 0; i-- > 0;) {
        size_t to = (size_t)w->next[i];
        while (w->ids[to] == s->unk && i && w->ids[w->next[i - 1]] == s->unk)
            to = (size_t)w->next[--i]; /* adjacent unknown characters are one unknown token */
        struct str part = str_of(text.p + from, to - from);
        int32_t id = w->ids[to] == s->unk ? vocab_find(s->vocab, part) : w->ids[to];
        if (id >= 0) ids_push(out, id);
        else if (!put_unknown(s, part, out)) *unknown = true;
        from = to;
    }
    return true;
}

/* ---- BPE by scores ---- */

/* A score as the rank of a heap entry: the better score is the smaller number. Flips the bits of an
 * IEEE float so that its order is that of unsigned integers. */
static uint32_t rank_score(double score)
{
    float f = (float)score;
    uint32_t u;

    if (isnan(f)) return UINT32_MAX;
    memcpy(&u, &f, 4);
    return u & 0x80000000u ? u : ~(u | 0x80000000u);
}

/* While merging, a symbol is named by the byte `at` where it starts: ids[at] is the byte where it
 * ends (0: it was merged away), ranks[at] the rank of its pair with the next symbol.
 *
 * Ranks the pair that starts at symbol `at`, and puts it on the heap if it is a piece. */
static void push_pair(const struct spm *s, struct model_scratch *w, struct str text, int32_t at)
{
    int32_t right = w->next[at], id = -1;
    size_t n = right < 0 ? 0 : (size_t)(w->ids[right] - at);

    if (right >= 0) id = vocab_find(s->vocab, str_of(text.p + at, n));
    w->ranks[at] = id < 0 ? UINT32_MAX : rank_score(s->scores[id]);
    if (id >= 0) heap_push(w, (uint64_t)w->ranks[at] << 32 | (uint32_t)at);
}

/* One symbol per character. */
static void fill_symbols(struct model_scratch *w, struct str text)
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

bool spm_encode_bpe(const struct spm *s, struct model_scratch *w, struct str text, struct ids *out)
{
    /* each merge pops an entry and pushes at most two, as in tokmodel_bpe.c */
    if (!model_scratch_reserve_symbols(w, text.n + 1) || !model_scratch_reserve_heap(w, 2 * text.n))
        return false;
    fill_symbols(w, text);
    w->n_heap = 0;
    for (int32_t i = text.n ? 0 : -1; i >= 0; i = w->next[i]) push_pair(s, w, text, i);
    while (w->n_heap) {
        uint64_t top = heap_pop(w);
        int32_t at = (int32_t)(uint32_t)top, right = w->next[at];
        if (!w->ids[at] || right < 0 || w->ranks[at] != top >> 32) continue;
        w->ids[at] = w->ids[right];
        w->ids[right] = 0;
        w->next[at] = w->next[right];
        if (w->next[at] >= 0) w->prev[w->next[at]] = at;
        push_pair(s, w, text, at);
        if (w->prev[at] >= 0) push_pair(s, w, text, w->prev[at]);
    }
    for (int32_t i = text.n ? 0 : -1; i >= 0; i = w->next[i]) {
        struct str part = str_of(text.p + i, (size_t)(w->ids[i] - i));
        int32_t id = vocab_find(s->vocab, part);
        if (id >= 0) ids_push(out, id);
        else put_unknown(s, part, out);
    }
    return true;
}
