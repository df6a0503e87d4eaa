/* vocabtrie.h - a vocabulary as the bytes that its tokens write, with the prefix trie of them.
 *
 * A special token writes no text. In the trie it stands under four bytes: DFA_TOKEN_BYTE, which no
 * UTF-8 text contains, and the three bytes of its id. Grammars that name a token are compiled to
 * the same four bytes, so the automaton needs no second alphabet. Tokens that end a text are not
 * in the trie at all, and neither are tokens with bytes that UTF-8 never uses.
 *
 * Immutable once made, so any thread may read it. The engine for whose model it was made owns it. */
#ifndef TERN_GRAMMAR_VOCABTRIE_H
#define TERN_GRAMMAR_VOCABTRIE_H

#include "base/err.h"
#include "grammar/toktrie.h"
#include "token/tokenizer.h"

struct vocabtrie {
    int n_ids;
    int max_len;       /* bytes of the longest token in the trie */
    bool strips_first; /* the first token of a text loses a leading space */
    struct toktrie trie;
    uint8_t *bytes; /* of all tokens, one after the other */
    uint32_t *at;   /* [n_ids + 1] where the bytes of each id begin */
};

/* The tokens with ids below n_ids. ends: the ids of tokens that end a text. */
int vocabtrie_open(struct vocabtrie **out, const struct tokenizer *t, int n_ids,
                   const int32_t *ends, int n_ends, struct err *e);
/* From the bytes that each id writes. is_special (or NULL) marks special tokens; their words are
 * ignored. */
int vocabtrie_from_bytes(struct vocabtrie **out, const struct str *words, const bool *is_special,
                         int n_ids, struct err *e);
void vocabtrie_close(struct vocabtrie *v); /* NULL is allowed */

/* Empty: the token is not in the trie. */
static inline struct str vocabtrie_bytes(const struct vocabtrie *v, int32_t id)
{
    return str_of((const char *)v->bytes + v->at[id], v->at[id + 1] - v->at[id]);
}
#endif
