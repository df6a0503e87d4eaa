/* gwstore.h - files and batches of gateways with --nats: JetStream keeps them, and any gateway answers for
 * them.
 *
 *     POST /v1/files ─► a file without a name here ─► pieces in JetStream ─► its record ─► 200
 *     POST /v1/batches ─► its record ─► 200 ─► lines, a few at a time ─► relay ─► a worker
 *     the record ◄─ results as files ◄─ one answer for each line ◄─────────────────┘
 *
 * A batch is run by the gateway that its record names as holder. The holder rewrites the record each
 * STORE_RENEW_MS; another gateway that sees no change for STORE_SILENCE_MS takes the batch over. A change of
 * a record names the message that it replaces, so that one gateway wins. The answer of a line is written
 * once: JetStream refuses a second one. Everything but the steps of operations (storelink.h, batchwork.c)
 * runs on the loop's thread. */
#ifndef TERN_CLUSTER_GWSTORE_H
#define TERN_CLUSTER_GWSTORE_H

#include "base/buf.h"
#include "base/err.h"

struct gateway;
struct gw_who;
struct gwstore;
struct http_req;
struct jsonw;

int gwstore_open(struct gwstore **out, struct gateway *g, struct err *e);
/* After relay_abort_all. NULL is allowed. */
void gwstore_close(struct gwstore *s);
void gwstore_process(struct gwstore *s);        /* after a wake-up of the loop */
void gwstore_drain(struct gwstore *s);          /* batches go to other gateways */
int gwstore_n_asked(const struct gwstore *s);   /* requests of clients that wait for NATS */
int gwstore_n_running(const struct gwstore *s); /* lines of batches */
bool gwstore_is_path(struct str path);
bool gwstore_is_upload(const struct http_req *q);
/* An upload before its body: gives it a sink. false: q was answered. */
bool gwstore_admit(struct gwstore *s, struct http_req *q, const struct gw_who *who);
/* Answers q, now or later. */
void gwstore_begin(struct gwstore *s, struct http_req *q, const struct gw_who *who);
void gwstore_write_status(struct gwstore *s, struct jsonw *w);
void gwstore_write_metrics(struct gwstore *s, struct buf *out);
#endif
