/* jobstore_impl.h - the store's state. Private to src/jobs. */
#ifndef TERN_JOBS_JOBSTORE_IMPL_H
#define TERN_JOBS_JOBSTORE_IMPL_H

#include "base/buf.h"
#include "jobs/db.h"
#include "jobs/jobstore.h"

struct jobstore {
    struct db *db;
    char *dir;
    int lock; /* descriptor of DIR/lock */
    struct jobstore_limits lim;
    struct buf gone; /* ids, each with a NUL, of files to remove after the commit */
};

enum job_state { JOB_QUEUED, JOB_ANSWERED };

/* Fixed-size copy of a text column. */
void jobstore_copy(char *out, size_t cap, struct str s);
/* E_QUEUE_FULL if the number of the query, which has one tenant as its value, is above max - more. */
int jobstore_check_limit(struct jobstore *s, const char *sql, const char *tenant, int64_t more,
                         int64_t max, const char *what, struct err *e);
/* The row of a file whose bytes are in DIR/tmp/ID already. */
int jobstore_move_file(struct jobstore *s, const struct jobstore_file *f, struct err *e);
/* Removes the bytes of a file once the transaction is committed. */
void jobstore_unlink_later(struct jobstore *s, const char *id);
int jobstore_sync_folder(const char *path, struct err *e);
int jobstore_errno(struct err *e, const char *what, const char *path); /* by errno */
#endif
