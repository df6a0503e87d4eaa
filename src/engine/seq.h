/* seq.h - one sequence that has begun: its tokens, the blocks of their keys and values, its
 * sampler, its text.
 *
 * Everything it needs while it runs is taken when it opens; a token costs no allocation. It ends by
 * seq_close, after its request was told. The engine's thread owns it. */
#ifndef TERN_ENGINE_SEQ_H
#define TERN_ENGINE_SEQ_H

#include "engine/request.h"
#include "engine/stream.h"
#include "kv/chain.h"
#include "grammar/matcher.h"

struct seq {
    struct request *r; /* the engine's reference */
    struct ids tokens; /* prompt, then what came */
    int n_kv;          /* the first ones, whose keys and values lie in chain */
    int n_known;       /* of those, what the prefix index was told of */
    int n_max;         /* tokens at most, prompt included */
    bool running;      /* false: preempted */
    struct chain chain;
    int slot; /* of recurrent state, while it runs; -1: the model has none */
    struct sampler *sampler;
    struct stream stream;
    struct matcher matcher; /* where its text stands in the grammar; m NULL: it has none */
    bool closed;      /* the grammar was closed early, so that its text is whole at the limit */
    struct buf text;  /* of the token taken last */
    int32_t untold;   /* that token, while its text is still to be made; -1: it is */
    uint64_t last_ns; /* when its last token came */
    double *pool;     /* embed: [n_embd] sum of hidden states so far */
};

struct seq_limits {
    int n_ctx;
    int n_vocab; /* ids the model knows */
    int n_pick;  /* of those, what may be sampled */
    int n_embd;
    bool encoder;    /* prompts have no answer: embeddings only */
    bool classifies; /* instead of embeddings: n_embd is its classes */
};

/* What admission does not look at: an empty prompt, ids outside the vocabulary, settings. Any
 * thread. */
int seq_check(const struct request *r, struct seq_limits lim, struct err *e);
int seq_open(struct seq **out, struct request *r, struct seq_limits lim,
             const struct tokenizer *tok, struct err *e);
void seq_close(struct seq *s, struct block_pool *pool); /* NULL is fine */
/* Its blocks go back; what they held is computed again later. */
void seq_forget(struct seq *s, struct block_pool *pool);
/* Appends a token that was picked: all that the next step depends on. The finish it leads to, or
 * FINISH_NONE. Its text is made here where a stop string may end it, else by seq_text. */
enum finish seq_take(struct seq *s, int32_t id, bool is_end);
/* The text of the token that was taken last, in s->text. */
void seq_text(struct seq *s);
#endif
