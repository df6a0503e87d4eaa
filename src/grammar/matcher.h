/* matcher.h - texts matched against a compiled grammar over one vocabulary: the position of each
 * text in the pushdown automaton, and the bitmask of the tokens that may come next.
 *
 * The position of a text is a configuration: the set of all stacks that the automaton can have
 * after the bytes so far. Stacks share their lower frames, as in a graph-structured stack (Tomita).
 * Frames and configurations are interned, each has a number, and the table of transitions from a
 * configuration by a byte is filled on demand. This is a lazy subset construction: a transition
 * that some text has taken before is one table lookup.
 *
 * Most tokens are allowed or not by the top frame of the stack alone (context-independent tokens,
 * in the terms of XGrammar). Their bitmask is computed once for a top frame and serves all texts
 * that ever have that frame on top. Tokens that run past the end of the top frame's rule depend on
 * the frames below (context-dependent tokens): their remaining bytes form a small trie, which is
 * walked from the frame below each time a mask is asked for.
 *
 * A matcher is one text. A matcher_cache belongs to one grammar and one vocabulary and holds all
 * that is shared by its matchers. Both belong to one thread. The cache grows when something is met
 * for the first time. Above its limit it evicts everything that no matcher uses.
 *
 * Functions that may grow the cache can run out of memory. They report it, and the matcher stays
 * where it was: the caller ends that request, and others go on. */
#ifndef TERN_GRAMMAR_MATCHER_H
#define TERN_GRAMMAR_MATCHER_H

#include "base/err.h"
#include "base/str.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pda;
struct vocabtrie;
struct matcher_cache;

/* Bytes to the end of a text that cannot be completed, and of any that takes so many. */
enum { MATCHER_FAR = 1 << 28 };
/* An ambiguous grammar can be read in many ways at once, each a stack. A text at which there are
 * more than this many cannot go on. */
enum { MATCHER_MAX_STACKS = 2000 };

/* Both the automaton and the vocabulary are borrowed and must outlive the cache. */
int matcher_cache_open(struct matcher_cache **out, const struct pda *pda,
                       const struct vocabtrie *vocab, struct err *e);
void matcher_cache_close(struct matcher_cache *c);         /* NULL is allowed; no matcher is left */
size_t matcher_cache_bytes(const struct matcher_cache *c); /* memory in use */
/* The cache evicts above this many bytes. The initial limit is 96 MiB. */
void matcher_cache_limit(struct matcher_cache *c, size_t bytes);

struct matcher {
    struct matcher_cache *cache; /* NULL: not begun */
    struct matcher *prev, *next; /* the matchers of the cache */
    int32_t config;              /* the number of the current configuration */
    bool at_start;               /* the first token of the text loses a leading space */
};

/* at_start: the text is a new one and does not continue a prompt. E_INVALID: a text can begin in
 * more than MATCHER_MAX_STACKS ways. */
int matcher_begin(struct matcher *x, struct matcher_cache *c, bool at_start, struct err *e);
void matcher_end(struct matcher *x); /* a zeroed matcher is allowed */

/* A bit for each token id that may come next, end-of-text tokens excluded. NULL: out of memory.
 * The mask is valid until the next call with any matcher of the cache. */
const uint64_t *matcher_mask(struct matcher *x);
/* As matcher_mask, with only the tokens after which at most `left` bytes complete the text. The
 * mask is empty where there are none. */
const uint64_t *matcher_closing_mask(struct matcher *x, int left);

bool matcher_may_end(const struct matcher *x);
bool matcher_is_complete(const struct matcher *x); /* it may end, and no token may follow */
int matcher_min_bytes(const struct matcher *x); /* length of the shortest text that completes it */
/* Length of the shortest text that completes it after a token. MATCHER_FAR: the token may not come.
 * E_UNSUPPORTED: there would be more than MATCHER_MAX_STACKS stacks. E_NOMEM: out of memory. */
int matcher_min_bytes_after(struct matcher *x, int32_t id);

/* Moves past a token, or past bytes. E_INVALID: the grammar does not allow them here.
 * E_UNSUPPORTED: there would be more than MATCHER_MAX_STACKS stacks; a mask may contain such a
 * token. E_NOMEM: out of memory. After an error the matcher has not moved. */
int matcher_accept(struct matcher *x, int32_t id);
int matcher_accept_bytes(struct matcher *x, struct str bytes);

/* out[i] = in[i] where bit i of the mask is set, else -Inf; n logits. */
void matcher_apply_mask(const uint64_t *mask, const float *in, float *out, int n);
#endif
