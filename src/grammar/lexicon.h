/* lexicon.h - a vocabulary as the bytes its tokens write, sorted into a trie that is walked in one
 * sweep.
 *
 * Nodes lie in the order of a walk; each says where the walk goes on when nothing below it can
 * match. Special tokens write nothing: they stand under FSM_TOKEN and the bytes of their id. Tokens
 * that end a turn are not in it at all. Immutable once made; the engine it was made for owns it. */
#ifndef TERN_GRAMMAR_LEXICON_H
#define TERN_GRAMMAR_LEXICON_H

#include "base/err.h"
#include "token/tokenizer.h"

#define LEXICON_DEPTH 255 /* bytes; tokens that write more are left out */

struct lex_node {
    uint32_t skip; /* the node behind all that are below */
    uint32_t tok;  /* tokens that end here: the first of them in toks */
    uint16_t n_toks;
    uint8_t depth, byte; /* depth 1: the first byte */
};

struct lex_trie {
    struct lex_node *nodes;
    int32_t *toks; /* ids */
    int n_nodes, n_toks;
};

/* A token's bytes, or the end of them. */
struct lex_word {
    const uint8_t *p;
    uint16_t n;
    int32_t id;
};

struct lexicon {
    int n_ids, max_len; /* longest, in bytes */
    bool strips;        /* the first token of a text loses a space at its beginning */
    struct lex_trie trie;
    uint8_t *bytes;
    uint32_t *at; /* [n_ids + 1] of each id in bytes */
};

/* Of the ids below n_ids. ends: tokens that end a turn. */
int lexicon_open(struct lexicon **out, const struct tokenizer *t, int n_ids, const int32_t *ends,
                 int n_ends, struct err *e);
/* From what each id writes; special ones are empty here and named by is_special (may be NULL). */
int lexicon_from(struct lexicon **out, const struct str *words, const bool *is_special, int n_ids,
                 struct err *e);
void lexicon_close(struct lexicon *l); /* NULL is fine */
static inline struct str lexicon_word(const struct lexicon *l, int32_t id)
{
    return str_of((const char *)l->bytes + l->at[id], l->at[id + 1] - l->at[id]);
}

int lex_word_order(const struct lex_word *x, const struct lex_word *y);
void lex_trie_build(struct lex_trie *out, const struct lex_word *words, int n); /* of sorted ones */
/* Sorts words and makes their trie. */
void lex_trie_make(struct lex_trie *out, struct lex_word *words, int n);
void lex_trie_release(struct lex_trie *t);
#endif
