/* metrics.h - GET /metrics in Prometheus' text format, from tables over struct engine_stats. */
#ifndef TERN_SERVER_METRICS_H
#define TERN_SERVER_METRICS_H

#include <stddef.h>
#include <stdint.h>

struct buf;
struct server;

enum metric_kind { METRIC_COUNTER, METRIC_GAUGE, METRIC_HIST };

struct metric {
    const char *name, *help;
    enum metric_kind kind;
    size_t at; /* offset in struct engine_stats */
};

/* clang-format off */
#define METRIC(metric_name, k, field, text) \
    { metric_name, text, METRIC_##k, offsetof(struct engine_stats, field) }
/* clang-format on */

/* The labels collected in b. If b found no memory, out fails too: a series without its labels would
 * be another one. */
const char *metrics_labels(struct buf *b, struct buf *out);

/* Writes the labels of a model. */
typedef void label_fn(struct server *v, int model, struct buf *out);
/* Writes each metric of the table, with one series for each model that is ready. */
void metrics_write_table(struct server *v, const struct metric *table, size_t n, label_fn *labels,
                         struct buf *out);

/* metrics_compat.c: the same numbers under the names of other servers; dialects: "vllm,llamacpp" */
void metrics_write_compat(struct server *v, const char *dialects, struct buf *out);

void metrics_write_pool(struct server *v, struct buf *out);    /* metrics_pool.c */
void metrics_write_workers(struct server *v, struct buf *out); /* metrics_worker.c */
void metrics_write_gangs(struct server *v, struct buf *out);   /* metrics_gang.c */

void metrics_init(struct server *v); /* before the first request */
uint64_t metrics_rss(void);          /* resident memory of the process in bytes; 0: unknown */
uint64_t metrics_rss_peak(void);
#endif
