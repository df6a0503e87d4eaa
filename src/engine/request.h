/* request.h - one request: what is wanted, and what has come of it so far.
 *
 * Opened by request_open, filled in by the submitter and handed to engine_submit; from then on the
 * wanted part is immutable. Two parties hold references, the submitter and the engine; the last
 * request_unref frees it. One thread reads the events from `out`; `notify` tells it that there are
 * some. */
#ifndef TERN_ENGINE_REQUEST_H
#define TERN_ENGINE_REQUEST_H

#include "base/buf.h"
#include "base/ids.h"
#include "engine/finish.h"
#include "engine/outbox.h"
#include "sample/sampleopt.h"

struct grammar;
struct seq;

enum request_state { REQ_NEW, REQ_QUEUED, REQ_PREFILL, REQ_DECODE, REQ_PREEMPTED, REQ_DONE };

/* Who cancelled a request. Written once: the first call counts. */
enum cancel { CANCEL_NO, CANCEL_ASKED, CANCEL_GONE, CANCEL_SLOW, CANCEL_SHUTDOWN };

enum { PRIORITY_BATCH = 0, PRIORITY_INTERACTIVE = 10 };
enum { REQUEST_STOP_MAX = 1024 }; /* bytes of a stop string */
enum { REQUEST_BORDERS = 3 };
enum { REQUEST_PICKS = 2 };

/* One admission for all requests of a call: counted as one request with the tokens of all, and with
 * one place in the queue, that of the call's arrival. It outlives the requests that refer to it. */
struct ticket {
    /* the submitting thread's */
    int64_t tokens; /* counted for requests that were not submitted yet */
    int blocks;
    uint64_t arrival_ns;
    bool held;
    /* the engine's, while it plans */
    int n_running, n_waiting; /* of its requests */
};

struct request {
    /* ---- wanted ---- */
    struct ids prompt;
    /* Lengths of beginnings of the prompt that a later prompt is likely to share, the shortest first:
     * ends of messages. A model with recurrent state keeps it there. None: the prompt's end. */
    int borders[REQUEST_BORDERS], n_borders;
    struct ids resume; /* tokens of the completion that were sampled before, by another engine: the
                        * completion continues behind them; they count as its tokens */
    int max_tokens;    /* 0: until the context is full */
    int min_tokens;    /* no end token and no stop string before so many */
    struct sample_opt sample; /* sample.bias, if any, is owned (mem_alloc) */
    bool ignore_eos;
    struct grammar *grammar; /* that the text must follow, owned (engine_grammar); NULL: none */
    struct str *stops;       /* [n_stops], one block with their bytes: request_set_stops */
    int n_stops;
    int32_t *shown; /* [n_shown] special tokens that appear as text, owned (mem_alloc) */
    int n_shown;
    int n_top;            /* -1: no log probabilities; else alternatives wanted, up to TOP_MAX */
    int priority;         /* higher first */
    uint32_t tenant;      /* fairness is between tenants */
    uint64_t salt;        /* requests with different salts never share a prefix */
    uint64_t deadline_ns; /* clock_ns; 0: none */
    uint64_t
        predict_ns; /* llama-server's t_max_predict_ms: the completion ends as by max_tokens when
                          * so much time has passed since its first token and it has a newline; 0:
                          * no limit */
    struct ticket *ticket; /* the admission that it is part of; NULL: its own */
    bool is_further;       /* with a ticket: others of it wait or run */
    char label[72];        /* correlation id, for logs */
    bool continues;        /* the text continues the prompt's (no chat): leading spaces are kept */
    bool quiet;            /* warm-up: not counted */
    bool embed;            /* no completion: the prompt's vector is wanted, in `vec` */
    bool classify;         /* with embed: scores of classes are wanted there */
    bool raw;              /* with classify: the scores before softmax or sigmoid */
    /* No completion: the logits of these ids behind the prompt are wanted, in `vec`. */
    int32_t pick[REQUEST_PICKS];
    int n_pick; /* 0: they are not */
    int second; /* position of a second text, for models that take pairs of texts; 0: none */
    /* Called on the engine thread when there is something in `out`. It passes a reference, which
     * the notified thread drops when it has read; a late call may come after the last event was
     * read. NULL: no notification. */
    void (*notify)(struct request *r);
    void *owner;                  /* the submitter's; not used by the engine */
    void (*release)(void *owner); /* called when the last reference is gone; NULL: not */

    /* ---- shared between threads ---- */
    struct outbox out;
    atomic_int cancel;   /* enum cancel */
    atomic_int state;    /* enum request_state, for display */
    atomic_int notified; /* notify was called, and `out` was not read since */
    atomic_int refs;

    /* ---- results: the engine's until the last event was read ---- */
    enum finish finish;
    struct err err;     /* with FINISH_ERROR, FINISH_DEADLINE and FINISH_CANCELLED */
    int n_out;          /* tokens sampled, with those of `resume` */
    struct buf resumed; /* text of `resume`: complete before the first event */
    int stop_hit;       /* index of the stop string that ended it; -1: none */
    int n_cached;       /* prompt tokens found in the prefix cache */
    int n_preempted;
    uint64_t submit_ns, start_ns, first_ns, end_ns; /* submitted, begun, first token, ended */
    uint64_t dispatch_ns;                           /* the device had its first step */
    uint64_t arrival_ns;                            /* its place in the queue */
    _Atomic uint64_t cancel_ns;                     /* when the cancel was requested */
    struct admitted { /* what admission counted for the request; given back exactly once */
        int tokens;
        int blocks;
        bool held;
        bool of_ticket;  /* counted by its ticket, but for its tokens */
        bool is_further; /* counted in n_further */
    } admitted;
    float *vec;      /* embed: [n_vec], pooled by the model's rule (model/pooler.h); or [n_pick] */
    struct seq *seq; /* the engine's: NULL until it begins */
    int n_hit;       /* the engine's: tokens that the last prefix lookup found */
};

struct request *request_open(
    void); /* one reference, defaults of sample_defaults; NULL: no memory */
void request_ref(struct request *r);
void request_unref(struct request *r); /* NULL is allowed */
/* Copies the stop strings. false: no memory; there are none then. */
bool request_set_stops(struct request *r, const struct str *stops, int n);

/* n at most REQUEST_BORDERS. */
void request_set_borders(struct request *r, const int *at, int n);

/* Any thread, also a signal handler; may be repeated. true: this call was the first. */
bool request_cancel(struct request *r, enum cancel why);
static inline bool request_is_cancelled(const struct request *r)
{
    return atomic_load_explicit(&r->cancel, memory_order_acquire) != CANCEL_NO;
}
/* The next event; false: there is none yet. Clears `notified` first, so that no event is missed. */
bool request_next(struct request *r, struct event *ev);
#endif
