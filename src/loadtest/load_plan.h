/* load_plan.h - the parameters of a load run, and the bodies of its requests.
 *
 * Request i depends on the seed and on i alone, so a run can be repeated whatever its timing was.
 * A plan is read-only during the run. */
#ifndef TERN_LOADTEST_LOAD_PLAN_H
#define TERN_LOADTEST_LOAD_PLAN_H

#include "base/buf.h"
#include "loadtest/load_dist.h"
#include "loadtest/load_stats.h"

struct load_plan {
    const char *url, *key; /* key: NULL or "": none */
    char model[256];       /* "": none is sent */
    bool insecure;         /* accept any TLS certificate */
    bool no_keep_alive;    /* a new connection for each request */
    /* How many requests, and when. */
    int n_clients; /* closed loop: requests at once. Open loop: at most; 0: no limit */
    double rate;   /* open loop: arrivals per second; 0: closed loop */
    double burstiness, ramp_s, duration_s;
    int64_t n_requests; /* 0: until the duration has passed */
    int n_warmup;       /* requests before those that are counted */
    /* The requests. */
    bool completions, no_stream, stop_at_eos;
    struct load_dist prompt, output; /* tokens */
    int n_shared;                    /* tokens of the prefix that prompts share */
    uint64_t shared_seed;            /* of that prefix; 0: seed */
    double share;                    /* fraction of the requests that have it */
    int id_low, id_high;    /* completions of random token ids in [low, high]; high 0: words */
    double tokens_per_word; /* measured, or 1 */
    double temperature;     /* below 0: not sent */
    uint64_t seed;
    uint64_t tag; /* of this run: correlation ids are "load-TAG-INDEX" */
    /* How they end. */
    double cancel, disconnect;   /* probabilities */
    int deadline_ms, timeout_ms; /* 0: none */
    struct load_goals goals;
    double max_error_rate;
};

/* How the client aborts a request. */
enum load_abort {
    ABORT_NONE,
    ABORT_CANCEL, /* by the cancel endpoint */
    ABORT_CLOSE,  /* by closing the connection (FIN) */
    ABORT_RESET   /* by resetting it (RST) */
};

/* One request as planned. */
struct load_request {
    int64_t index;
    int n_prompt, n_output; /* tokens; n_prompt without the shared prefix */
    bool shared;
    enum load_abort abort;
    int abort_events; /* after this many content events; 0: by time */
    double abort_ms;  /* after it was sent */
    struct buf body;  /* reused from request to request */
};

/* Fills out with request `index`. E_NOMEM: the body is incomplete. */
int load_plan_make(const struct load_plan *p, int64_t index, struct load_request *out,
                   struct err *e);
/* Appends n_words random words; the seed determines them. */
void load_plan_words(uint64_t seed, int n_words, struct buf *out);
#endif
