/* guided.h - the grammars of an engine: compiled once, used by any number of sequences.
 *
 * Compiling happens on the submitting thread or one of the compiler's (compile.h); results are cached
 * by the grammar's text, up to a number of bytes. Matcher caches (token masks that a grammar has
 * computed for this vocabulary) belong to the engine thread; those without a sequence stay while
 * there is room. The trie of the vocabulary is built when first needed, or by the engine's
 * warm-up. */
#ifndef TERN_ENGINE_GUIDED_H
#define TERN_ENGINE_GUIDED_H

#include "engine/ends.h"
#include "grammar/grammar.h"
#include "grammar/matcher.h"

#include <pthread.h>

struct budget;
struct engine_stats;

enum { GUIDED_CACHED = 64 };

struct guided {
    const struct tokenizer *tok; /* NULL: there is no text to guide */
    const struct ends *ends;
    int n_sample; /* ids that may be sampled */
    bool has_locks;
    struct engine_stats *stats;

    pthread_mutex_t vocab_lock; /* protects vocab until it is built */
    struct vocabtrie *vocab;    /* NULL: not needed so far */
    pthread_mutex_t lock;       /* protects the cache; never held for long */
    struct cached_grammar {
        struct grammar_spec spec; /* text: owned */
        struct grammar *g;
        uint64_t used; /* tick of the last use */
    } cache[GUIDED_CACHED];
    size_t cached_bytes, max_cached_bytes; /* of their texts and grammars */
    uint64_t tick;

    /* the engine thread's */
    struct matcher_use {
        struct grammar *g;
        struct matcher_cache *cache;
        int n; /* sequences that use it */
        uint64_t used;
    } * uses;
    int n_uses, cap_uses;
    uint64_t n_begun;
    float *logits; /* [n_sample] of a sequence, -Inf where the grammar forbids the token */
};

int guided_init(struct guided *d, const struct tokenizer *tok, const struct ends *ends,
                int n_sample, struct engine_stats *stats, struct err *e);
void guided_release(struct guided *d); /* a zeroed one is allowed; no sequence is left */

/* Any thread. b: what it may take; NULL: the usual (grammar.h). E_INVALID says what is wrong with the
 * grammar; E_MEMORY: compiled grammars hold too much memory. *out is the caller's to unref. */
int guided_compile(struct guided *d, const struct grammar_spec *spec, struct budget *b,
                   struct grammar **out, struct err *e);
/* The cached grammar for spec, with a reference; NULL: it is not cached. Any thread, returns at
 * once. */
struct grammar *guided_find(struct guided *d, const struct grammar_spec *spec);
int guided_warm(struct guided *d, struct err *e); /* builds the vocabulary's trie */

/* The engine thread. at_start: the text is a new one. */
int guided_begin(struct guided *d, struct matcher *x, struct grammar *g, bool at_start,
                 struct err *e);
void guided_end(struct guided *d, struct matcher *x); /* a zeroed one is allowed */
#endif
