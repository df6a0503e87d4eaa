/* jobstore.h - files, batches and jobs on the disk: a folder with an SQLite database.
 *
 *     DIR/jobs.db       the tables below
 *     DIR/files/ID      the bytes of uploaded files and of results
 *     DIR/tmp/          uploads and results that are not complete; emptied when the store opens
 *     DIR/lock          held by the process that has the store open
 *
 * A job is one request to be answered: a line of a batch, or a durable request. Its row is there
 * before the client learns of it, and jobstore_answer changes it from queued to answered once, in one
 * transaction with the counts of its batch. So each job has exactly one answer, however often it
 * was begun.
 *
 * One thread uses a store, between jobstore_begin and jobstore_commit: the journal's (journal.h). Long work
 * (reading the lines of a batch, writing its results) is cut into steps, and what a step did is
 * in its transaction, so that a killed process goes on where it was. */
#ifndef TERN_JOBS_JOBSTORE_H
#define TERN_JOBS_JOBSTORE_H

#include "base/buf.h"
#include "base/err.h"

#include <time.h>

struct jobstore;

enum {
    STORE_VERSION = 1,
    STORE_ID = 48,     /* bytes of an id with its NUL */
    STORE_TENANT = 64, /* of a tenant's name */
    STORE_NAME = 256,  /* of a file's name */
    STORE_LINE_MAX = 16 << 20
};

struct jobstore_limits {
    int64_t max_lines;      /* of a batch */
    int64_t tenant_bytes;   /* of the files of a tenant; 0: no limit */
    int64_t tenant_batches; /* that have not ended; 0: no limit */
    int64_t tenant_jobs;    /* durable requests and lines without an answer; 0: no limit */
    int64_t retention_s;    /* how long files, results and ended batches are kept; 0: for ever */
};

enum batch_status {
    BATCH_VALIDATING,
    BATCH_IN_PROGRESS,
    BATCH_FINALIZING,
    BATCH_CANCELLING,
    BATCH_COMPLETED, /* from here on it has ended */
    BATCH_FAILED,
    BATCH_EXPIRED,
    BATCH_CANCELLED,
    BATCH_STATUSES
};
const char *batch_status_name(int status);

/* Makes the folder where it is missing. E_STORE: another process has it open; E_FORMAT: the
 * database is not tern's; E_UNSUPPORTED: it was written by a later version; E_DAMAGED; E_READONLY;
 * E_FULL; E_IO. */
int jobstore_open(struct jobstore **out, const char *dir, const struct jobstore_limits *lim,
                  struct err *e);
void jobstore_close(struct jobstore *s); /* NULL is allowed */
bool jobstore_exists(const char *dir);   /* is there a database? */
int jobstore_make_folders(const char *path, struct err *e);
#define STORE_UPLOAD "up-%d-" /* uploads in DIR/tmp begin with this, with the process id */

int jobstore_begin(struct jobstore *s, struct err *e);
int jobstore_commit(struct jobstore *s, struct err *e); /* on an error nothing of it is kept */
void jobstore_rollback(struct jobstore *s);
/* A part of a transaction that can fail by itself. */
int jobstore_save(struct jobstore *s, struct err *e);
int jobstore_release(struct jobstore *s, bool keep, struct err *e);

int64_t jobstore_now(void); /* seconds since 1970 */
/* "file-" and 24 random letters. */
void jobstore_make_id(char out[STORE_ID], const char *prefix);
/* DIR/files/ID or DIR/tmp/ID. */
void jobstore_path(const struct jobstore *s, char *out, size_t cap, const char *sub,
                   const char *id);

/* ---- files ---- */
struct jobstore_file {
    char id[STORE_ID], tenant[STORE_TENANT], name[STORE_NAME], purpose[32];
    int64_t bytes, created, expires; /* expires 0: by the retention of the store */
};
/* Moves DIR/tmp/ID to DIR/files/ID and adds its row. E_QUEUE_FULL: the tenant has too many bytes. */
int jobstore_add_file(struct jobstore *s, const struct jobstore_file *f, struct err *e);
int jobstore_find_file(struct jobstore *s, const char *tenant, const char *id,
                       struct jobstore_file *out, struct err *e); /* E_NOTFOUND */
/* E_CONCURRENCY: a batch that has not ended reads it. */
int jobstore_delete_file(struct jobstore *s, const char *tenant, const char *id, struct err *e);
void jobstore_write_file(const struct jobstore_file *f, struct buf *out); /* as a JSON object */

/* A page of a list: newest first. Appends a JSON list object. */
struct jobstore_page {
    const char *tenant, *after, *purpose; /* after: the last id of the page before; or "" */
    int limit;
    bool oldest_first;
};
/* {"object":"list","data":[...]}: rows are written by the caller between the two. */
struct jsonw;
void jobstore_begin_list(struct jsonw *w);
void jobstore_end_list(struct jsonw *w, const char *first, const char *last, bool more);
int jobstore_list_files(struct jobstore *s, const struct jobstore_page *p, struct buf *out,
                        struct err *e);

/* ---- batches ---- */
struct jobstore_batch {
    char id[STORE_ID], tenant[STORE_TENANT], endpoint[64], input[STORE_ID], window[16];
    int64_t window_s;
    struct str metadata; /* JSON; p NULL: none */
};
/* E_NOTFOUND: no such input file; E_INVALID: its purpose is another; E_QUEUE_FULL: limits. */
int jobstore_add_batch(struct jobstore *s, const struct jobstore_batch *b, struct err *e);
int jobstore_write_batch(struct jobstore *s, const char *tenant, const char *id, struct buf *out,
                         struct err *e);
int jobstore_list_batches(struct jobstore *s, const struct jobstore_page *p, struct buf *out,
                          struct err *e);
/* E_CONCURRENCY: it has ended already. */
int jobstore_cancel_batch(struct jobstore *s, const char *tenant, const char *id, struct err *e);
/* *out: enum batch_status */
int jobstore_batch_status(struct jobstore *s, const char *id, int *out, struct err *e);
/* Reads some more lines of the input. *more: there are lines left; else the batch is in progress, or
 * failed. */
int jobstore_validate_step(struct jobstore *s, const char *id, bool *more, struct err *e);
/* Writes some more results of a batch that is finalizing or cancelling. *after: where to go on, 0
 * at first. *more: call again; else the batch has ended. */
int jobstore_finish_step(struct jobstore *s, const char *id, int64_t *after, bool *more,
                         struct err *e);
/* Batches past their time become finalizing. */
int jobstore_expire_batches(struct jobstore *s, int64_t now, struct err *e);

/* Batches that have not ended, in the order of their creation, and tenants that have durable requests
 * (id "", in progress), for the runner. */
struct jobstore_active {
    char id[STORE_ID], tenant[STORE_TENANT];
    int status;
    int64_t expires;
};
int jobstore_list_active(struct jobstore *s, struct jobstore_active **out, int *n, struct err *e);

/* ---- jobs ---- */
struct jobstore_job { /* one to run; freed by jobstore_free_jobs */
    int64_t seq;
    char id[STORE_ID], tenant[STORE_TENANT], endpoint[64];
    int64_t deadline; /* seconds since 1970; 0: none */
    char *body;       /* JSON; NULL: the line cannot be read any more */
    size_t n_body;
    struct jobstore_job *next;
};
/* Up to max queued jobs after `seq`: lines of a batch, or with batch "" durable requests of the tenant.
 * *last: the list ends with the last one there is now. */
int jobstore_fetch_jobs(struct jobstore *s, const char *batch, const char *tenant, int64_t seq,
                        int max, struct jobstore_job **out, bool *last, struct err *e);
void jobstore_free_jobs(struct jobstore_job *list);

struct jobstore_new_job {
    char id[STORE_ID], tenant[STORE_TENANT], endpoint[64];
    struct str body;
    struct str key; /* a repeated request with the same key is the same job; p NULL: none */
    int64_t deadline;
};
/* *seq 0: there is one with this key, whose id replaces that of j. E_QUEUE_FULL. */
int jobstore_add_job(struct jobstore *s, struct jobstore_new_job *j, int64_t *seq, struct err *e);
struct jobstore_answer {
    int status; /* of HTTP */
    struct str request_id, body;
    const char *error; /* code, with status 0: it got no answer; NULL: none */
};
/* *first: this was the answer; else it had one, or is gone. *ended: its batch is finalizing now. */
int jobstore_answer_job(struct jobstore *s, int64_t seq, const struct jobstore_answer *a,
                        bool *first, bool *ended, struct err *e);
int jobstore_write_job(struct jobstore *s, const char *tenant, const char *id, struct buf *out,
                       struct err *e);
int jobstore_list_jobs(struct jobstore *s, const struct jobstore_page *p, struct buf *out,
                       struct err *e);
/* *seq: of the job that was queued. E_CONCURRENCY: it has an answer. */
int jobstore_cancel_job(struct jobstore *s, const char *tenant, const char *id, int64_t *seq,
                        struct err *e);

/* ---- all ---- */
struct jobstore_counts {
    int64_t batches[BATCH_STATUSES];
    int64_t files, file_bytes;
    int64_t queued, queued_lines, answered; /* durable requests; lines; durable requests */
    int64_t oldest;                         /* created, of those without an answer; 0: none */
};
int jobstore_count(struct jobstore *s, struct jobstore_counts *out, struct err *e);
/* Removes what is older than the retention. */
int jobstore_purge(struct jobstore *s, int64_t now, struct err *e);
#endif
