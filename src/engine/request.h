/* request.h - what was asked, and what came of it so far.
 *
 * Made by request_open, filled in, and handed to engine_submit; from then on what was asked is
 * immutable. Two parties hold it, who asked and the engine: the last request_unref frees it.
 * Events are read from `out` by one thread, which is told by `notify` that there are some. */
#ifndef TERN_ENGINE_REQUEST_H
#define TERN_ENGINE_REQUEST_H

#include "base/buf.h"
#include "engine/outbox.h"
#include "grammar/grammar.h"
#include "sample/sampler.h"
#include "token/tokenizer.h"

enum finish {
    FINISH_NONE,
    FINISH_STOP,   /* an end token or a stop string */
    FINISH_LENGTH, /* max_tokens, or the context is full */
    FINISH_CANCELLED,
    FINISH_DEADLINE,
    FINISH_ERROR
};

enum request_state { REQ_NEW, REQ_QUEUED, REQ_PREFILL, REQ_DECODE, REQ_PREEMPTED, REQ_DONE };

/* Who cancelled: written once, the first one counts. */
enum cancel { CANCEL_NO, CANCEL_ASKED, CANCEL_GONE, CANCEL_SLOW, CANCEL_SHUTDOWN };

enum { PRIORITY_BATCH = 0, PRIORITY_INTERACTIVE = 10 };

struct request {
    /* ---- asked ---- */
    struct ids prompt;
    int max_tokens;           /* 0: until the context is full */
    int min_tokens;           /* no end token and no stop string before so many */
    struct sample_opt sample; /* sample.bias, if any, is owned: from mem_alloc */
    bool ignore_eos;
    struct grammar
        *grammar; /* what its text must look like, owned: from engine_grammar; NULL: anything */
    struct str *stops; /* [n_stops], one block with their bytes: request_set_stops */
    int n_stops;
    int32_t *shown; /* [n_shown] special tokens that are text here; owned, from mem_alloc */
    int n_shown;
    int n_top;            /* -1: no logprobs; else alternatives wanted, up to TOP_MAX */
    int priority;         /* higher first */
    uint32_t tenant;      /* whose: fairness is between these */
    uint64_t salt;        /* requests with different ones never share a prefix */
    uint64_t deadline_ns; /* clock_ns; 0: none */
    char label[72];       /* correlation id, for logs */
    bool continues; /* its text goes on behind the prompt's (no chat): spaces are kept right */
    bool quiet;     /* warm-up: not counted */
    bool embed;     /* no answer: the prompt's embedding is wanted, in `vec` */
    bool classify;  /* with embed: what its classes score is wanted, there */
    int second;     /* where a second text begins, for models that tell two apart; 0: nowhere */
    /* On the engine's thread: there is something in `out`. It brings a reference of its own that
     * the notified one gives back when it has read; a late one may come after the last event was
     * read. NULL: nobody waits. */
    void (*notify)(struct request *r);
    void *owner; /* the notified one's; the engine does not look at it */

    /* ---- where threads meet ---- */
    struct outbox out;
    atomic_int cancel; /* enum cancel */
    atomic_int state;  /* enum request_state, to be shown */
    atomic_int told;   /* notify was called and `out` not read since */
    atomic_int refs;

    /* ---- came of it: the engine's until the last event was read ---- */
    enum finish finish;
    struct err err; /* with FINISH_ERROR and FINISH_DEADLINE */
    int n_out;      /* tokens made */
    int n_cached;   /* prompt tokens found in KV */
    int n_preempted;
    uint64_t submit_ns, start_ns, first_ns, end_ns;
    _Atomic uint64_t cancel_ns; /* when the cancel was asked for */
    struct admitted { /* what admission counted for it; given back once, whatever its end */
        int tokens;
        int blocks;
        bool held;
    } admitted;
    float *vec;      /* embed: [n_embd], of length 1 if the model does not say otherwise */
    struct seq *seq; /* the engine's: NULL until it begins */
    int n_hit;       /* the engine's: tokens a lookup of its prefix found last */
};

struct request *request_open(void); /* one reference, defaults of sample_defaults */
void request_ref(struct request *r);
void request_unref(struct request *r);                                     /* NULL is fine */
void request_set_stops(struct request *r, const struct str *stops, int n); /* copies */

/* Any thread, also a signal handler; again is fine. true: this call was the first. */
bool request_cancel(struct request *r, enum cancel why);
static inline bool request_is_cancelled(const struct request *r)
{
    return atomic_load_explicit(&r->cancel, memory_order_acquire) != CANCEL_NO;
}
/* The next event, false: none yet. Clears `told` first, so that nothing is missed. */
bool request_next(struct request *r, struct event *ev);

const char *finish_name(enum finish f); /* "stop", "length", "cancelled", ... */
#endif
