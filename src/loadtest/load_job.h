/* load_job.h - sends planned requests one after the other and measures each of them.
 *
 * A job has one connection for its requests and one for cancelling them. It does not decide when
 * to start: the run starts it, and a callback reports the end of a request. */
#ifndef TERN_LOADTEST_LOAD_JOB_H
#define TERN_LOADTEST_LOAD_JOB_H

#include "loadtest/load_client.h"
#include "loadtest/load_plan.h"

struct load_job;

struct load_job_calls {
    /* A content event. gap_ms: since the one before; below 0: it is the first. */
    void (*token)(void *arg, uint64_t now_ns, double gap_ms, bool counted);
    /* The request has ended. kind: of a failure, else "". The next request is to start pause_ms
     * later, from a timer, not from inside this call. May be called from inside load_job_start. */
    void (*ended)(void *arg, const struct load_rec *r, const char *kind, int pause_ms);
};

/* NULL: no memory. */
struct load_job *load_job_open(struct load_target *t, const struct load_plan *p,
                               const struct load_job_calls *calls, void *arg);
void load_job_close(struct load_job *j); /* NULL is fine */
/* index below 0: a warm-up request, which is not counted. */
void load_job_start(struct load_job *j, int64_t index);
bool load_job_counted(const struct load_job *j);  /* is the current request counted? */
size_t load_job_missed(const struct load_job *j); /* cancels that the server did not accept */
#endif
