/* metrics_worker.c - metrics of the processes of isolated models: starts, deaths, the breaker, the
 * heartbeat, and the use of their connections. Without such processes there are none of these. */
#include "base/stat.h"
#include "pool/pool.h"
#include "server/metrics.h"
#include "server/server_impl.h"
#include "worker/supervisor.h"

struct table {
    struct server *v;
    struct buf *b, *out; /* b: labels of a row */
};

static bool read_view(const struct table *t, int i, struct supervisor_view *x)
{
    return supervisor_view(t->v->workers, pool_at(t->v->pool, i)->id, x);
}

static void label_model(const struct table *t, int i)
{
    buf_clear(t->b);
    stat_label(t->b, "model", str_c(pool_at(t->v->pool, i)->id));
}

/* A counter of struct supervisor_view with a value for each kind of death. */
static void write_by_death(const struct table *t, const char *name, const char *help, size_t at)
{
    struct supervisor_view x;

    for (int i = 0; i < pool_n(t->v->pool); i++) {
        if (!read_view(t, i, &x)) continue;
        for (int k = PROCESS_EXITED; k < N_SUPERVISOR_DEATHS; k++, help = NULL) {
            label_model(t, i);
            stat_label(t->b, "reason", str_c(supervisor_death_name(k)));
            stat_counter(t->out, name, metrics_labels(t->b, t->out), help,
                         ((const uint64_t *)((const char *)&x + at))[k]);
        }
    }
}

static void write_counter(const struct table *t, const char *name, const char *help, size_t at)
{
    struct supervisor_view x;

    for (int i = 0; i < pool_n(t->v->pool); i++) {
        if (!read_view(t, i, &x)) continue;
        label_model(t, i);
        stat_counter(t->out, name, metrics_labels(t->b, t->out), help,
                     *(const uint64_t *)((const char *)&x + at));
        help = NULL;
    }
}

static double breaker_of(const struct supervisor_view *x) { return x->breaker; }
static double rtt_of(const struct supervisor_view *x) { return (double)x->rtt_us / 1e6; }
static double calls_of(const struct supervisor_view *x) { return x->calls; }
static double is_up(const struct supervisor_view *x) { return x->pid > 0; }

static void write_gauge(const struct table *t, const char *name, const char *help,
                        double (*value)(const struct supervisor_view *x))
{
    struct supervisor_view x;

    for (int i = 0; i < pool_n(t->v->pool); i++) {
        if (!read_view(t, i, &x)) continue;
        label_model(t, i);
        stat_gauge(t->out, name, metrics_labels(t->b, t->out), help, value(&x));
        help = NULL;
    }
}

/* Sums over all models. A request finds a connection that is there already, unless it is the first of
 * its process. */
static void write_sums(const struct table *t)
{
    uint64_t restarts = 0, requests = 0, connections = 0, preflights = 0, hits = 0;
    struct supervisor_view x;

    for (int i = 0; i < pool_n(t->v->pool); i++) {
        if (!read_view(t, i, &x)) continue;
        for (int k = 0; k < N_SUPERVISOR_DEATHS; k++) restarts += x.restarts[k];
        requests += x.requests;
        connections += x.connections;
        preflights += x.preflights;
        hits += x.preflight_hits;
    }
    stat_counter(t->out, "tern_restarts_total", "", "Processes started again after a death",
                 restarts);
    stat_gauge(t->out, "tern_worker_connection_reuse_rate", "",
               "Share of relayed requests that found an open connection to their process",
               requests ? (double)(requests - connections) / (double)requests : 0);
    stat_gauge(t->out, "tern_preflight_cache_hit_rate", "",
               "Share of relayed requests that were checked by a fresh heartbeat of their process",
               preflights ? (double)hits / (double)preflights : 0);
}

#define AT(field) offsetof(struct supervisor_view, field)

void metrics_write_workers(struct server *v, struct buf *out)
{
    struct buf b = { 0 };
    struct table t = { v, &b, out };

    if (!v->workers) return;
    write_gauge(&t, "tern_worker_up", "1: the model has a process", is_up);
    write_counter(&t, "tern_worker_starts_total", "Processes started", AT(starts));
    write_by_death(&t, "tern_worker_restarts_total",
                   "Processes started again after a death, by the kind of the death", AT(restarts));
    write_by_death(&t, "tern_worker_deaths_total", "Processes that ended unasked, by kind",
                   AT(deaths));
    write_gauge(&t, "tern_worker_breaker_state",
                "0: closed, 1: one start on trial, 2: open, the process is not started",
                breaker_of);
    write_gauge(&t, "tern_worker_heartbeat_rtt_seconds", "Round trip of the last heartbeat",
                rtt_of);
    write_gauge(&t, "tern_worker_calls", "Requests that the process has now", calls_of);
    write_counter(&t, "tern_worker_requests_total", "Requests relayed to the process",
                  AT(requests));
    write_counter(&t, "tern_worker_connections_total", "Connections that carried them",
                  AT(connections));
    write_counter(&t, "tern_worker_retried_total",
                  "Requests relayed again after the death of the process that had them",
                  AT(retried));
    write_counter(&t, "tern_worker_preflights_total",
                  "Requests that were checked by the last heartbeat before they were relayed",
                  AT(preflights));
    write_counter(&t, "tern_worker_preflight_hits_total", "Those for which it was fresh",
                  AT(preflight_hits));
    write_sums(&t);
    buf_release(&b);
}
