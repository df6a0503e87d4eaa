#include "grammar/lexicon.h"

#include "base/mem.h"
#include "grammar/fsm.h"

#include <stdlib.h>

/* ---- the trie ---- */

int lex_word_order(const struct lex_word *x, const struct lex_word *y)
{
    int n = x->n < y->n ? x->n : y->n, c = n ? memcmp(x->p, y->p, (size_t)n) : 0;

    if (c) return c;
    return x->n != y->n ? (x->n > y->n) - (x->n < y->n) : (x->id > y->id) - (x->id < y->id);
}

static int by_bytes(const void *a, const void *b) { return lex_word_order(a, b); }

static int common(const struct lex_word *x, const struct lex_word *y)
{
    int n = 0;

    while (n < x->n && n < y->n && x->p[n] == y->p[n]) n++;
    return n;
}

void lex_trie_make(struct lex_trie *out, struct lex_word *words, int n)
{
    if (n) qsort(words, (size_t)n, sizeof *words, by_bytes);
    lex_trie_build(out, words, n);
}

void lex_trie_build(struct lex_trie *out, const struct lex_word *words, int n)
{
    uint32_t path[LEXICON_DEPTH + 1]; /* node of each byte of the word before */
    size_t n_nodes = 1;
    int depth = 0;

    for (int i = 0; i < n; i++)
        n_nodes += (size_t)(words[i].n - (i ? common(&words[i - 1], &words[i]) : 0));
    *out = (struct lex_trie){ .nodes = mem_array(n_nodes, sizeof *out->nodes),
                              .toks = mem_array((size_t)n + 1, sizeof *out->toks),
                              .n_toks = n };
    for (int i = 0; i < n; i++) {
        int same = i ? common(&words[i - 1], &words[i]) : 0;
        while (depth > same) out->nodes[path[depth--]].skip = (uint32_t)out->n_nodes;
        while (depth < words[i].n) {
            path[depth + 1] = (uint32_t)out->n_nodes;
            out->nodes[out->n_nodes++] =
                (struct lex_node){ .byte = words[i].p[depth], .depth = (uint8_t)(depth + 1) };
            depth++;
        }
        if (out->nodes[path[depth]].n_toks++ == 0) out->nodes[path[depth]].tok = (uint32_t)i;
        out->toks[i] = words[i].id;
    }
    while (depth > 0) out->nodes[path[depth--]].skip = (uint32_t)out->n_nodes;
}

void lex_trie_release(struct lex_trie *t)
{
    mem_free(t->nodes);
    mem_free(t->toks);
    *t = (struct lex_trie){ 0 };
}

/* ---- a vocabulary ---- */

/* No text has these bytes; FSM_TOKEN is one of them. */
static bool is_utf8_ever(struct str s)
{
    for (size_t i = 0; i < s.n; i++)
        if ((uint8_t)s.p[i] >= 0xf8) return false;
    return true;
}

static void make_trie(struct lexicon *l)
{
    struct lex_word *words = mem_array((size_t)l->n_ids + 1, sizeof *words);
    int n = 0;

    for (int32_t id = 0; id < l->n_ids; id++) {
        struct str s = lexicon_word(l, id);
        if (s.n == 0 || s.n > LEXICON_DEPTH) continue;
        if ((int)s.n > l->max_len) l->max_len = (int)s.n;
        words[n++] = (struct lex_word){ (const uint8_t *)s.p, (uint16_t)s.n, id };
    }
    lex_trie_make(&l->trie, words, n);
    mem_free(words);
}

static void put_word(struct lexicon *l, struct buf *all, int32_t id, struct str word, bool special)
{
    char name[4] = { (char)FSM_TOKEN, (char)(id >> 16), (char)(id >> 8), (char)id };

    l->at[id] = (uint32_t)all->n;
    if (special) buf_add(all, name, 4);
    else if (word.n <= LEXICON_DEPTH && is_utf8_ever(word)) buf_put_str(all, word);
}

static void finish(struct lexicon *l, struct buf *all)
{
    l->at[l->n_ids] = (uint32_t)all->n;
    buf_reserve(all, 1);
    l->bytes = (uint8_t *)all->p;
    make_trie(l);
}

static struct lexicon *lexicon_new(int n_ids, struct err *e)
{
    struct lexicon *l = mem_new(struct lexicon);

    l->n_ids = n_ids;
    l->at = mem_array((size_t)n_ids + 1, sizeof *l->at);
    if (l->at) return l;
    err_set(e, E_NOMEM, "no memory for the bytes of %d tokens", n_ids);
    lexicon_close(l);
    return NULL;
}

int lexicon_from(struct lexicon **out, const struct str *words, const bool *is_special, int n_ids,
                 struct err *e)
{
    struct lexicon *l = lexicon_new(n_ids, e);
    struct buf all = { 0 };

    if (!l) return E_NOMEM;
    for (int32_t id = 0; id < n_ids; id++)
        put_word(l, &all, id, words[id], is_special && is_special[id]);
    finish(l, &all);
    *out = l;
    return OK;
}

static bool is_end(const int32_t *ends, int n, int32_t id)
{
    for (int i = 0; i < n; i++)
        if (ends[i] == id) return true;
    return false;
}

/* Does a token that begins with a space lose it at the beginning of a text? */
static bool strips_first(const struct lexicon *l, const struct tokenizer *t)
{
    struct buf alone = { 0 };
    bool strips = false;

    for (int32_t id = 0; id < l->n_ids; id++) {
        struct str w = lexicon_word(l, id);
        if (w.n < 2 || w.p[0] != ' ' || w.p[1] == ' ' || (uint8_t)w.p[w.n - 1] >= 0x80) continue;
        tokenizer_decode(t, &id, 1, true, &alone);
        strips = alone.n == w.n - 1;
        break;
    }
    buf_release(&alone);
    return strips;
}

int lexicon_open(struct lexicon **out, const struct tokenizer *t, int n_ids, const int32_t *ends,
                 int n_ends, struct err *e)
{
    struct lexicon *l = lexicon_new(n_ids, e);
    struct pieces pieces;
    struct buf all = { 0 };

    if (!l) return E_NOMEM;
    pieces_init(&pieces, t);
    for (int32_t id = 0; id < n_ids; id++) {
        bool special = tokenizer_is_special(t, id), end = is_end(ends, n_ends, id);
        bool empty = end || special || tokenizer_piece(t, id).n == 0;
        put_word(l, &all, id, empty ? STR("") : pieces_of(&pieces, id), special && !end);
    }
    pieces_release(&pieces);
    finish(l, &all);
    l->strips = strips_first(l, t);
    *out = l;
    return OK;
}

void lexicon_close(struct lexicon *l)
{
    if (!l) return;
    lex_trie_release(&l->trie);
    mem_free(l->bytes);
    mem_free(l->at);
    mem_free(l);
}
