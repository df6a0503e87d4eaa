/* metrics.h - tables of metrics over an engine's statistics, and how they are printed. */
#ifndef TERN_SERVER_METRICS_H
#define TERN_SERVER_METRICS_H

#include "server/server_impl.h"

enum metric_kind { METRIC_COUNTER, METRIC_GAUGE, METRIC_HIST };

struct metric {
    const char *name, *help;
    enum metric_kind kind;
    size_t at; /* in struct engine_stats */
};

#define METRIC(metric_name, k, field, text)                                 \
    {                                                                       \
        metric_name, text, METRIC_##k, offsetof(struct engine_stats, field) \
    }

/* Each metric with a line (or a histogram) for each ready model; `labels` writes the model's. */
typedef void label_fn(struct server *v, int model, struct buf *out);
void metrics_table(struct server *v, const struct metric *table, size_t n, label_fn *labels,
                   struct buf *out);
#endif
