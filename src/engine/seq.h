/* seq.h - one sequence that has begun: its tokens, its KV blocks, its sampler and its text.
 *
 * All memory it needs while it runs is allocated when it opens; a token costs no allocation. It is
 * closed after its request got the last event. The engine thread owns it. */
#ifndef TERN_ENGINE_SEQ_H
#define TERN_ENGINE_SEQ_H

#include "engine/request.h"
#include "engine/stream.h"
#include "grammar/matcher.h"
#include "kv/chain.h"
#include "sample/sampler.h"

struct seq {
    struct request *r;  /* the engine's reference */
    struct ids tokens;  /* the prompt, then the sampled tokens; room for n_max */
    int n_kv;           /* of the tokens: the first so many have their keys and values in chain */
    int n_published;    /* of those: added to the prefix cache */
    int n_max;          /* tokens at most, prompt included */
    bool running;       /* false: preempted; it has no blocks and no slot */
    struct chain chain; /* KV blocks */
    int slot;           /* of recurrent state while it runs; -1: the model has none */
    int n_moved;        /* tokens of the snapshot that moves on with it; 0: it has none */
    struct sampler *sampler;
    struct stream stream;
    struct matcher matcher; /* its position in the grammar; cache NULL: it has none */
    bool closed_early;      /* the grammar was completed before the length limit cut it */
    bool one_by_one; /* tokens of r->resume are computed as they were sampled, one in a step */
    enum finish resumed_to; /* the finish that the tokens of r->resume led to */
    bool failed;            /* no memory for its text: it ends with an error in the next round */
    struct buf text;        /* of the token appended last */
    int32_t pending_id;     /* that token, while its text is not made yet; -1: it is */
    uint64_t last_ns;       /* when its last token was sampled */
    uint64_t began_ns;      /* with r->predict_ns: when its first token was */
    bool has_line;          /* with r->predict_ns: its text has a newline */
    double *vec_sum;        /* embed: [vec_room] sum of the hidden rows so far */
};

struct seq_limits {
    int n_ctx;
    int n_vocab;     /* ids the model knows */
    int n_sample;    /* of those, ids that may be sampled: the others have no text */
    int n_vec;       /* numbers of a vector */
    int vec_room;    /* of the sum it is made from (model/pooler.h) */
    bool no_text;    /* the model has no logits: vectors only */
    bool classifies; /* the vector is scores of classes */
};

/* Checks what admission does not: an empty prompt, ids outside the vocabulary, settings. Any
 * thread. */
int seq_check(const struct request *r, const struct seq_limits *lim, struct err *e);
int seq_open(struct seq **out, struct request *r, const struct seq_limits *lim,
             const struct tokenizer *tok, struct err *e);
void seq_close(struct seq *s, struct block_pool *pool); /* NULL is allowed */
/* Gives its blocks back; their tokens are computed again when it resumes. */
void seq_drop_kv(struct seq *s, struct block_pool *pool);
/* Appends a sampled token and returns the finish it leads to, or FINISH_NONE: everything the next
 * step depends on. Its text is made here if it could end the request, else by
 * seq_make_text. */
enum finish seq_append(struct seq *s, int32_t id, bool is_end);
/* Appends the tokens of r->resume; their text goes to r->resumed. Returns the finish that they lead
 * to. Called once, before the sequence runs. */
enum finish seq_resume(struct seq *s, bool (*is_end)(void *arg, int32_t id), void *arg);
/* Makes the text of the token appended last, in s->text. */
void seq_make_text(struct seq *s);
#endif
