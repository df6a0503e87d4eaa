/* gwjobs.h - durable requests of a gateway with --nats: accepted into JetStream, run on workers by any
 * gateway, answered exactly once in the store (ledger/ledger.h).
 *
 *     POST with "durable": true ─► written ─► 202        any gateway: taken ─► relay ─► a worker
 *     GET /v1/jobs/{id} ◄─ store ◄─ the first answer ◄─ removed from the queue ◄─┘
 *
 * A job whose worker is lost is given back to the queue and delivered again, up to GWJOBS_DELIVERIES times;
 * then its answer is the error job_failed. A job that finds no room waits here. Everything runs on the
 * loop's thread. */
#ifndef TERN_CLUSTER_GWJOBS_H
#define TERN_CLUSTER_GWJOBS_H

#include "base/buf.h"
#include "base/err.h"

struct gateway;
struct gw_who;
struct gwjobs;
struct http_req;
struct jsonw;

enum { GWJOBS_DELIVERIES = 8, GWJOBS_AGE_S = 24 * 3600 };

int gwjobs_open(struct gwjobs **out, struct gateway *g, struct err *e);
/* After relay_abort_all: hands its jobs back to the queue. NULL is allowed. */
void gwjobs_close(struct gwjobs *j);
void gwjobs_process(struct gwjobs *j);        /* after a wake-up of the loop */
void gwjobs_drain(struct gwjobs *j);          /* takes no more jobs */
int gwjobs_n_running(const struct gwjobs *j); /* durable requests */
int gwjobs_n_asked(const struct gwjobs *j);   /* requests of clients that wait for NATS */
bool gwjobs_is_path(struct str path);         /* of requests about jobs? */
bool gwjobs_takes(struct str path);           /* can a request of this path be a durable one? */
/* Answers q, a request about jobs, now or later. */
void gwjobs_begin(struct gwjobs *j, struct http_req *q, const struct gw_who *who);
/* Accepts a request with "durable": true. streams: the body also has "stream": true, which is refused. */
void gwjobs_post(struct gwjobs *j, struct http_req *q, const struct gw_who *who, bool streams);
void gwjobs_write_status(struct gwjobs *j, struct jsonw *w);
void gwjobs_write_metrics(struct gwjobs *j, struct buf *out);
#endif
