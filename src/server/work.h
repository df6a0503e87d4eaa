/* work.h - durable work of the server: files, batches, and requests with "durable": true. Private to
 * src/server.
 *
 * work.c opens the jobs (jobs/jobs.h) and gives them to the API; files.c, batches.c and durable.c are
 * the handlers. A handler puts its operation into the journal and answers when that is committed. */
#ifndef TERN_SERVER_WORK_H
#define TERN_SERVER_WORK_H

#include "base/buf.h"
#include "jobs/journal.h"
#include "server/visit.h"

struct jsonw;
struct server;
struct http_req;

int work_open(struct server *v, struct err *e);
void work_write_status(struct server *v, struct jsonw *w); /* the value of "jobs" in /status */
void work_write_metrics(struct server *v, struct buf *out);

/* One request that waits for the journal. */
struct work_op {
    struct journal_op op; /* first */
    struct visit t;
    struct buf out; /* the reply */
    char id[STORE_ID], after[STORE_ID], purpose[32];
    int limit;
    bool oldest_first;
    int64_t seq;
};

/* Takes over the visit. run: on the journal's thread; done NULL: replies 200 with out, or the error. */
void work_begin(struct visit *t, int (*run)(struct jobstore *, struct journal_op *, struct err *),
                void (*done)(struct journal_op *op), const char *before, const char *behind);
/* Starts an operation that the caller has allocated, with w->t filled. */
void work_add(struct work_op *w, int (*run)(struct jobstore *, struct journal_op *, struct err *),
              void (*done)(struct journal_op *op));
void work_fail(struct visit *t, const struct err *e);
void work_free(struct work_op *w);
/* The query's after, limit, order and purpose. */
int work_read_page(struct visit *t, struct work_op *w, struct err *e);
/* The part of the path between the two texts. false: it is not an id. */
bool work_read_id(const struct visit *t, const char *before, const char *behind, char *out);

/* ---- handlers ---- */
bool files_streams(void *arg, const struct http_req *q); /* http_opt.streams */
/* POST /v1/files before its body: gives it a sink. false: it was answered. */
bool files_admit(struct visit *t);
void files_post(struct visit *t);
void files_list(struct visit *t);
void files_get(struct visit *t);
void files_content(struct visit *t);
void files_delete(struct visit *t);
void batches_post(struct visit *t);
void batches_list(struct visit *t);
void batches_get(struct visit *t);
void batches_cancel(struct visit *t);
/* api_opt.keep. The limits were taken; gives them back. */
void durable_post(void *arg, struct http_req *q, const struct api_who *who, char *body, size_t n);
void durable_list(struct visit *t);
void durable_get(struct visit *t);
void durable_cancel(struct visit *t);
#endif
