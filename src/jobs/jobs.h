/* jobs.h - durable work of a server: files, batches, and requests that outlive it.
 *
 * The journal (journal.h) has them on the disk; the runner submits jobs to the API, a bounded number
 * at a time, and stores their answers. Lines of batches run in the gaps of live traffic: opt.room
 * says how many may run. A job whose tenant is at its limits (opt.may_run), or that finds no room in
 * the API (429, 503), waits and is tried again; jobs of other tenants go on meanwhile. Nothing is
 * opened before the first file, batch or durable request, unless the folder has a database.
 *
 * Everything here belongs to the loop's thread. */
#ifndef TERN_JOBS_JOBS_H
#define TERN_JOBS_JOBS_H

#include "jobs/journal.h"

struct http_req;
struct jobs;
struct loop;

struct jobs_room {
    int start; /* lines that may be in flight for another one to begin */
    int keep;  /* lines above this number are stopped, and run again later */
};

struct jobs_opt {
    struct loop *loop;
    const char *dir;
    struct jobstore_limits lim;
    int max_durable; /* durable requests in flight */
    /* Hands q to the API. user: for stop. batch: it runs behind all live traffic. */
    void (*submit)(void *arg, struct http_req *q, const char *endpoint, const char *tenant,
                   void *user, bool batch);
    void (*stop)(void *arg, void *user); /* cancels it: it is answered soon */
    struct jobs_room (*room)(void *arg);
    /* May another job of the tenant begin now? submit then counts it. NULL: always. */
    bool (*may_run)(void *arg, const char *tenant, bool batch);
    void *arg;
};

int jobs_open(struct jobs **out, const struct jobs_opt *opt, struct err *e);
void jobs_process(struct jobs *j); /* after a wake-up of the loop */
/* No job begins any more, and lines of batches are stopped; they run after the next start. */
void jobs_drain(struct jobs *j);
bool jobs_is_idle(const struct jobs *j); /* nothing is being written, and no job runs */
/* After the API is closed: calls done of all operations. NULL is allowed. */
void jobs_close(struct jobs *j);
struct journal *jobs_journal(struct jobs *j);
const char *jobs_dir(const struct jobs *j);

/* After the commit: */
void jobs_batch_added(struct jobs *j, const char *id, int64_t expires);
void jobs_batch_cancelled(struct jobs *j, const char *id);
void jobs_job_added(struct jobs *j, const char *tenant);
void jobs_job_cancelled(struct jobs *j, int64_t seq);

struct jobs_stats {
    bool is_open; /* the store was used or found */
    int lines_running, durable_running;
    uint64_t lines_done, lines_failed, durable_done, durable_failed, retried, stopped;
    struct jobstore_counts counts; /* some seconds old */
    const struct journal_stats *journal;
};
void jobs_stats(const struct jobs *j, struct jobs_stats *out);
#endif
