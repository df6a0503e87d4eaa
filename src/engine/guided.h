/* guided.h - the grammars of an engine: compiled once, at work for any number of sequences.
 *
 * Compiling is for whoever submits, on any thread; equal texts are compiled once and kept for a
 * while. Guides and what they learned of the vocabulary are the engine's thread's; those without a
 * sequence are kept while there is room. The vocabulary's bytes are sorted when first needed, or
 * when the engine is warmed up. */
#ifndef TERN_ENGINE_GUIDED_H
#define TERN_ENGINE_GUIDED_H

#include "engine/ends.h"
#include "grammar/grammar.h"
#include "grammar/matcher.h"

#include <pthread.h>

enum { GUIDED_KEPT = 64 };

struct guided {
    const struct tokenizer *tok; /* NULL: there is no text to guide */
    const struct ends *ends;
    int n_pick;

    pthread_mutex_t warming; /* over vocab until it is there */
    struct vocabtrie *vocab; /* NULL: not needed so far */
    pthread_mutex_t lock;    /* over those below; never held for long */
    struct kept {
        struct grammar_spec spec; /* text: owned */
        struct grammar *g;
        uint64_t used;
    } kept[GUIDED_KEPT];
    uint64_t tick;

    /* the engine's thread */
    struct matcher_use {
        struct grammar *g;
        struct matcher_cache *cache;
        int n; /* sequences */
        uint64_t used;
    } * uses;
    int n_uses, cap_uses;
    uint64_t n_begun;
    float *logits; /* [n_pick] of a sequence, without what may not come */
};

void guided_init(struct guided *d, const struct tokenizer *tok, const struct ends *ends,
                 int n_pick);
void guided_release(struct guided *d); /* a zeroed one is fine; no sequence is left */

/* Any thread. E_INVALID says what is wrong with the grammar. *out is the caller's to unref. */
int guided_compile(struct guided *d, const struct grammar_spec *spec, struct grammar **out,
                   struct err *e);
/* One that was compiled before and is still there, with a reference; NULL: none. Any thread, at
 * once. */
struct grammar *guided_kept(struct guided *d, const struct grammar_spec *spec);
int guided_warm(struct guided *d, struct err *e);

/* The engine's thread. at_start: the text is a new one. */
int guided_begin(struct guided *d, struct matcher *x, struct grammar *g, bool at_start,
                 struct err *e);
void guided_end(struct guided *d, struct matcher *x); /* a zeroed one is fine */
#endif
