/* load_plan.h - what is asked for in a load run, and the bodies of its requests.
 *
 * Request i is made from the seed and i alone, so a run can be repeated whatever its timing was. */
#ifndef TERN_LOADTEST_LOAD_PLAN_H
#define TERN_LOADTEST_LOAD_PLAN_H

#include "base/buf.h"
#include "loadtest/load_dist.h"
#include "loadtest/load_stats.h"

struct load_plan {
    const char *url, *key;
    char model[256]; /* "": none is sent */
    bool insecure, no_keep;
    /* how many, when */
    int n_clients; /* closed loop: so many at once. Open loop: at most; 0: no limit */
    double rate;   /* open loop: arrivals a second; 0: closed loop */
    double burstiness, ramp_s, duration_s;
    int64_t n_requests; /* 0: until the duration has passed */
    int n_warmup;
    /* what */
    bool completions, no_stream, stop_at_eos;
    struct load_dist prompt, output;
    int n_shared;           /* tokens of the common beginning */
    uint64_t shared_seed;   /* of that; 0: seed */
    double share;           /* part of the requests that have it */
    int id_low, id_high;    /* completions with random ids in [low, high]; high 0: words */
    double tokens_per_word; /* measured, or 1 */
    double temperature;     /* below 0: not sent */
    uint64_t seed;
    uint64_t tag; /* of this run: correlation ids are "load-TAG-INDEX" */
    /* how they end */
    double cancel, disconnect; /* probabilities */
    int deadline_ms, timeout_ms;
    struct load_goals goals;
    double max_error_rate;
};

enum load_cut { CUT_NONE, CUT_CANCEL, CUT_LEAVE, CUT_RESET };

/* One request as planned. */
struct load_ask {
    int64_t index;
    int n_prompt, n_output;
    bool shared;
    enum load_cut cut;
    int cut_events; /* after so many content events; 0: by time */
    double cut_ms;  /* after it was sent */
    struct buf body;
};

void load_plan_ask(const struct load_plan *p, int64_t index, struct load_ask *out);
void load_plan_words(uint64_t seed, int n_words, struct buf *out);
#endif
