/* load_job.h - one request after the other, each followed from its first byte to its end.
 *
 * A job has a connection of its own and another for cancelling. It knows nothing of when to start:
 * the run starts it and is told when it has ended. */
#ifndef TERN_LOADTEST_LOAD_JOB_H
#define TERN_LOADTEST_LOAD_JOB_H

#include "loadtest/load_client.h"
#include "loadtest/load_plan.h"

struct load_job;

struct load_job_calls {
    void (*token)(void *run, uint64_t now_ns, double gap_ms, bool counted); /* gap < 0: the first */
    /* kind: of a failure, else "". The next request starts from a timer, not from here: in
     * pause_ms. */
    void (*ended)(void *run, struct load_job *j, const struct load_rec *r, const char *kind,
                  int pause_ms);
};

struct load_job *load_job_open(struct load_target *t, const struct load_plan *p,
                               const struct load_job_calls *calls, void *run);
void load_job_close(struct load_job *j); /* NULL is fine */
/* index below 0: a warm-up, not counted. */
void load_job_start(struct load_job *j, int64_t index);
bool load_job_counted(const struct load_job *j);
size_t load_job_missed(const struct load_job *j); /* cancels that found nothing */

void *load_job_run(const struct load_job *j); /* as handed to load_job_open */
/* The run's: a list of idle ones, a timer for pauses. */
struct load_job **load_job_next(struct load_job *j);
struct event **load_job_pause(struct load_job *j);
#endif
