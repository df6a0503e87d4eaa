/* request.h - what was asked, and what came of it so far. */
#ifndef TERN_ENGINE_REQUEST_H
#define TERN_ENGINE_REQUEST_H

#include "base/buf.h"
#include "sample/sampler.h"
#include "token/tokenizer.h"

enum finish { FINISH_NONE, FINISH_STOP, FINISH_LENGTH, FINISH_CANCELLED, FINISH_ERROR };

struct request {
    /* asked; immutable once submitted */
    struct ids prompt;
    int max_tokens;              /* 0: until the context is full */
    struct sample_opt sample;
    bool ignore_eos;
    /* came of it; written by engine_step only */
    struct ids out;
    enum finish finish;
    struct err err;              /* with FINISH_ERROR */
    int n_cached;                /* prompt tokens found in KV */
    uint64_t submit_ns, start_ns, first_ns, end_ns;
    /* set by anyone, read every step */
    int cancel;                  /* atomic */
    void *seq;                   /* the engine's */
};

void request_release(struct request *r);                 /* frees what the struct owns */
#endif
