/* load_run.h - carries a load plan out: starts requests at their times and collects the statistics. */
#ifndef TERN_LOADTEST_LOAD_RUN_H
#define TERN_LOADTEST_LOAD_RUN_H

#include "loadtest/load_client.h"
#include "loadtest/load_plan.h"

#include <signal.h>

/* Asks the server for its first model if the plan names none, and measures tokens_per_word. E_IO:
 * no server; E_DENIED: it does not accept the key. */
int load_probe(struct load_target *t, struct load_plan *p, struct err *e);

/* The state of a run, four times a second. */
struct load_progress {
    bool warming_up;
    int64_t n_warm_done; /* warm-up requests that have ended */
    double seconds;      /* since the counted requests began */
    size_t n_done, n_failed;
    int running;
    double tokens_per_s; /* smoothed */
};

struct load_run_opt {
    void (*progress)(void *arg, const struct load_progress *p); /* NULL: none */
    void *progress_arg;
    const volatile sig_atomic_t *stop; /* NULL, or: the run ends soon after it becomes non-zero */
};

/* Runs until all requests have ended, the duration has passed or *stop is set. The statistics are
 * valid also after a stop; the caller releases them. E_NOMEM: the run ended early, or values are
 * missing. Takes the calling thread; not reentrant. */
int load_run(struct load_target *t, const struct load_plan *p, const struct load_run_opt *opt,
             struct load_stats *out, struct err *e);
#endif
