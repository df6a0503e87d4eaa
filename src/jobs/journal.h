/* journal.h - the thread that owns the store, and group commit.
 *
 *     loop: journal_add ─► queue ─► thread: BEGIN, run of every operation there is, COMMIT (fsync)
 *     loop: journal_process ◄─ done list ◄─┘                                       then wake
 *
 * Adding costs the loop a lock and no I/O. All operations that wait when a transaction begins share
 * its fsync. done is called on the loop's thread after the commit: a client that is told "accepted"
 * then is told the truth. An operation that fails is undone alone; a commit that fails fails all of
 * its group.
 *
 * The thread starts, and opens the store, with the first operation. A store that cannot be opened is
 * tried again with the next ones, so that a disk that is no longer full works again. */
#ifndef TERN_JOBS_JOURNAL_H
#define TERN_JOBS_JOURNAL_H

#include "base/stat.h"
#include "jobs/jobstore.h"

struct journal;

struct journal_op {
    int (*run)(struct jobstore *s, struct journal_op *op,
               struct err *e);           /* on the journal's thread */
    void (*done)(struct journal_op *op); /* on the loop; may free op and add others */
    int rc;                              /* for done: of run, or of the commit */
    struct err err;
    struct journal_op *next; /* the journal's */
};

struct journal_stats {
    struct counter commits, ops, failed;
    struct hist commit_ms; /* of a transaction, with its fsync */
};

/* wake: called on the journal's thread when journal_process has something to do. dir is copied. */
int journal_open(struct journal **out, const char *dir, const struct jobstore_limits *lim,
                 void (*wake)(void *arg), void *arg, struct err *e);
/* Carries out what was added, calls done of all, and ends the thread. NULL is allowed. */
void journal_close(struct journal *j);
void journal_add(struct journal *j, struct journal_op *op); /* the loop's thread */
void journal_process(struct journal *j);                    /* after a wake-up */
int journal_n_waiting(const struct journal *j);             /* added, and done was not called */
const char *journal_dir(const struct journal *j);
const struct journal_stats *journal_stats(const struct journal *j);
#endif
