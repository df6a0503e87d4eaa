/* vocabtrie.c - the bytes of all tokens in one block, and the trie over it. It is made once for an
 * engine: sorting a vocabulary of 150 thousand tokens takes a noticeable fraction of a second. */
#include "grammar/vocabtrie.h"

#include "base/mem.h"
#include "grammar/dfa.h"

/* Are all bytes such that UTF-8 can contain them? DFA_TOKEN_BYTE is one that it cannot. */
static bool has_utf8_bytes(struct str s)
{
    for (size_t i = 0; i < s.n; i++)
        if ((uint8_t)s.p[i] >= 0xf8) return false;
    return true;
}

/* Appends the bytes of a token. Tokens that are left out have none. */
static void add_token(struct vocabtrie *v, struct buf *all, int32_t id, struct str word,
                      bool special)
{
    char name[4] = { (char)DFA_TOKEN_BYTE, (char)(id >> 16), (char)(id >> 8), (char)id };

    v->at[id] = (uint32_t)all->n;
    if (special) buf_add(all, name, 4);
    else if (word.n <= TOKTRIE_MAX_DEPTH && has_utf8_bytes(word)) buf_put_str(all, word);
}

/* Sorts all tokens with bytes into the trie. */
static int build_trie(struct vocabtrie *v, struct err *e)
{
    struct toktrie_word *words = mem_array((size_t)v->n_ids + 1, sizeof *words);
    bool ok;
    int n = 0;

    if (!words) return err_nomem(e, "the prefix trie of the vocabulary");
    for (int32_t id = 0; id < v->n_ids; id++) {
        struct str s = vocabtrie_bytes(v, id);
        if (s.n == 0) continue;
        if ((int)s.n > v->max_len) v->max_len = (int)s.n;
        words[n++] = (struct toktrie_word){ (const uint8_t *)s.p, (uint16_t)s.n, id };
    }
    ok = toktrie_build(&v->trie, words, n);
    mem_free(words);
    return ok ? OK : err_nomem(e, "the prefix trie of the vocabulary");
}

/* Takes the bytes over, whether it fails or not. */
static int finish_bytes(struct vocabtrie *v, struct buf *all, struct err *e)
{
    v->at[v->n_ids] = (uint32_t)all->n;
    buf_reserve(all, 1); /* not NULL, even if no token writes anything */
    v->bytes = (uint8_t *)all->p;
    return all->failed ? err_nomem(e, "the bytes of the vocabulary") : build_trie(v, e);
}

/* NULL: e has the error. */
static struct vocabtrie *alloc_vocabtrie(int n_ids, struct err *e)
{
    struct vocabtrie *v = mem_new(struct vocabtrie);

    if (v && (v->at = mem_array((size_t)n_ids + 1, sizeof *v->at))) {
        v->n_ids = n_ids;
        return v;
    }
    vocabtrie_close(v);
    err_nomem(e, "the bytes of the vocabulary");
    return NULL;
}

int vocabtrie_from_bytes(struct vocabtrie **out, const struct str *words, const bool *is_special,
                         int n_ids, struct err *e)
{
    struct vocabtrie *v = alloc_vocabtrie(n_ids, e);
    struct buf all = { 0 };
    int rc;

    if (!v) return E_NOMEM;
    for (int32_t id = 0; id < n_ids; id++)
        add_token(v, &all, id, words[id], is_special && is_special[id]);
    if ((rc = finish_bytes(v, &all, e)) == OK) *out = v;
    else vocabtrie_close(v);
    return rc;
}

static bool is_end(const int32_t *ends, int n, int32_t id)
{
    for (int i = 0; i < n; i++)
        if (ends[i] == id) return true;
    return false;
}

/* Does the first token of a text lose its leading space? Tried with one token that has one. */
static int find_strips_first(struct vocabtrie *v, const struct tokenizer *t, struct err *e)
{
    struct buf alone = { 0 };
    int rc = OK;

    for (int32_t id = 0; id < v->n_ids; id++) {
        struct str w = vocabtrie_bytes(v, id);
        if (w.n < 2 || w.p[0] != ' ' || w.p[1] == ' ' || (uint8_t)w.p[w.n - 1] >= 0x80) continue;
        tokenizer_decode(t, &id, 1, true, &alone);
        rc = buf_check(&alone, e);
        v->strips_first = alone.n == w.n - 1;
        break;
    }
    buf_release(&alone);
    return rc;
}

/* The bytes of a token are those it writes in the middle of a text (struct pieces). */
int vocabtrie_open(struct vocabtrie **out, const struct tokenizer *t, int n_ids,
                   const int32_t *ends, int n_ends, struct err *e)
{
    struct vocabtrie *v = alloc_vocabtrie(n_ids, e);
    struct pieces pieces;
    struct buf all = { 0 };
    int rc;

    if (!v) return E_NOMEM;
    pieces_init(&pieces, t);
    for (int32_t id = 0; id < n_ids; id++) {
        bool special = tokenizer_is_special(t, id), end = is_end(ends, n_ends, id);
        bool empty = end || special || tokenizer_piece(t, id).n == 0;
        add_token(v, &all, id, empty ? STR("") : pieces_of(&pieces, id), special && !end);
    }
    if (pieces.failed) all.failed = true;
    pieces_release(&pieces);
    rc = finish_bytes(v, &all, e);
    if (rc == OK) rc = find_strips_first(v, t, e);
    if (rc == OK) *out = v;
    else vocabtrie_close(v);
    return rc;
}

void vocabtrie_close(struct vocabtrie *v)
{
    if (!v) return;
    toktrie_release(&v->trie);
    mem_free(v->bytes);
    mem_free(v->at);
    mem_free(v);
}
