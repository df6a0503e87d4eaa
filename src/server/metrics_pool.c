/* metrics_pool.c - metrics of models that come and go: states, loads, evictions, waits, switches. */
#include "base/stat.h"
#include "pool/pool.h"
#include "server/metrics.h"
#include "server/server_impl.h"

static const char *labels_of(struct server *v, int i, struct buf *b, struct buf *out)
{
    buf_clear(b);
    stat_label(b, "model", str_c(pool_at(v->pool, i)->id));
    return metrics_labels(b, out);
}

/* One series for each model and state: 1 for the one it is in. */
static void write_states(struct server *v, struct buf *b, struct buf *out)
{
    const char *help = "The state of a model: 1 for the one it is in";

    for (int i = server_next_model(v, 0); i < pool_n(v->pool); i = server_next_model(v, i + 1)) {
        enum pool_state now = pool_state(v->pool, i, NULL);
        for (int s = POOL_UNLOADED; s <= POOL_FAILED; s++, help = NULL) {
            buf_clear(b);
            stat_label(b, "model", str_c(pool_at(v->pool, i)->id));
            stat_label(b, "state", str_c(pool_state_name((enum pool_state)s)));
            stat_gauge(out, "tern_model_state", metrics_labels(b, out), help, s == (int)now);
        }
    }
}

static void write_unloads(struct server *v, struct buf *b, struct buf *out)
{
    static const char *const why[N_POOL_UNLOAD] = { "asked", "room", "idle", "failed" };
    const char *help = "Models unloaded, by reason; room: evicted for another model";

    for (int i = server_next_model(v, 0); i < pool_n(v->pool); i = server_next_model(v, i + 1))
        for (int k = 0; k < N_POOL_UNLOAD; k++, help = NULL) {
            buf_clear(b);
            stat_label(b, "model", str_c(pool_at(v->pool, i)->id));
            stat_label(b, "reason", str_c(why[k]));
            stat_counter(out, "tern_model_unloads_total", metrics_labels(b, out), help,
                         counter_get(&pool_counts(v->pool, i)->unloads[k]));
        }
}

/* One counter or histogram of struct pool_counts, for all models. */
static void write_one(struct server *v, const char *name, const char *help, bool is_hist, size_t at,
                      struct buf *b, struct buf *out)
{
    for (int i = server_next_model(v, 0); i < pool_n(v->pool);
         i = server_next_model(v, i + 1), help = NULL) {
        const char *field = (const char *)pool_counts(v->pool, i) + at;
        const char *labels = labels_of(v, i, b, out);
        if (is_hist) stat_hist(out, name, labels, help, (const struct hist *)field);
        else stat_counter(out, name, labels, help, counter_get((const struct counter *)field));
    }
}

void metrics_write_pool(struct server *v, struct buf *out)
{
    static const struct {
        const char *name, *help;
        bool is_hist;
        size_t at;
    } rows[] = {
        { "tern_model_loads_total", "Loads that ended with a ready model", false,
          offsetof(struct pool_counts, loads) },
        { "tern_model_load_failures_total", "Loads that failed", false,
          offsetof(struct pool_counts, load_failures) },
        { "tern_model_waits_total", "Requests that waited for the model to be loaded", false,
          offsetof(struct pool_counts, waits) },
        { "tern_model_wait_seconds", "Time that requests waited for the model", true,
          offsetof(struct pool_counts, wait_s) },
        { "tern_model_load_seconds", "Time of a load, with the warm-up", true,
          offsetof(struct pool_counts, load_s) },
        { "tern_model_switch_seconds",
          "From the decision to unload another model for this one until it is ready", true,
          offsetof(struct pool_counts, switch_s) },
    };
    struct buf b = { 0 };

    write_states(v, &b, out);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        write_one(v, rows[i].name, rows[i].help, rows[i].is_hist, rows[i].at, &b, out);
    write_unloads(v, &b, out);
    stat_gauge(out, "tern_models_bytes", "", "Planned memory of all loaded models",
               (double)pool_bytes(v->pool));
    stat_gauge(out, "tern_parked_bytes", "", "KV blocks that are parked in memory",
               (double)pool_parked_bytes(v->pool));
    buf_release(&b);
}
