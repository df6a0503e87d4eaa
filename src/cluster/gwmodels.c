#include "cluster/gwmodels.h"

#include "base/clock.h"
#include "base/jsonw.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/stat.h"
#include "cluster/gateway_impl.h"
#include "cluster/replicas.h"
#include "net/loop.h"
#include "server/settings.h"

#include <stdio.h>

enum {
    TICK_MS = 500,
    MODELS_MAX = 256,      /* that are shown and decided about */
    ACTION_MS = 300000,    /* a load that takes longer has failed */
    FAILED_PAUSE_MS = 5000 /* after an action that failed */
};

#define MS UINT64_C(1000000)

struct gwmodel {
    char id[512];
    int demand, waiting; /* waiting: requests at this gateway without a worker */
    struct replica_choice choice;
    uint64_t surplus_ns; /* since when there are too many; 0: there are not */
    bool seen;
};

struct gwmodels {
    struct gateway *g;
    struct loop_timer *timer;
    struct gwmodel *at; /* [MODELS_MAX] */
    int n;
    struct hop *hop; /* an action on its way; NULL: none */
    struct worker *w;
    struct buf body;
    bool loads; /* the action is a load */
    int status;
    uint64_t not_before;
    struct counter n_loads, n_unloads, n_failed;
};

/* ---- what there is ---- */

static struct gwmodel *find_model(struct gwmodels *m, const char *id, bool add)
{
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->at[i].id, id) == 0) return &m->at[i];
    if (!add || m->n == MODELS_MAX) return NULL;
    m->at[m->n] = (struct gwmodel){ 0 };
    snprintf(m->at[m->n].id, sizeof m->at->id, "%s", id);
    return &m->at[m->n++];
}

/* Requests of all gateways at the workers. Models that nobody has or wants in memory are left out. */
static void count_workers(struct gwmodels *m)
{
    bool all = m->g->s->replicas_min > 0;

    for (int i = 0; i < fleet_n(m->g->fleet); i++) {
        const struct worker *w = fleet_at(m->g->fleet, i);
        if (!w || w->state != WORKER_READY) continue;
        for (int k = 0; k < w->n_models; k++) {
            const struct worker_model *o = &w->models[k];
            int requests = o->running + o->waiting;
            struct gwmodel *e =
                find_model(m, o->id, all || o->loaded || o->loading || requests > 0);
            if (!e) continue;
            e->seen = true;
            e->demand += requests;
        }
    }
}

/* Requests of this gateway that wait for a worker. */
static void count_waiting(struct gwmodels *m)
{
    char name[sizeof m->at->id];

    for (int i = 0; i < m->n; i++) {
        snprintf(name, sizeof name, "%s", m->at[i].id);
        m->at[i].waiting = relay_count_waiting(m->g, name);
        m->at[i].demand += m->at[i].waiting;
    }
}

static int fill_workers(struct gwmodels *m, const char *id, struct replica_worker *out)
{
    int n = fleet_n(m->g->fleet);

    for (int i = 0; i < n; i++) {
        const struct worker *w = fleet_at(m->g->fleet, i);
        const struct worker_model *o = NULL;
        out[i] = (struct replica_worker){ 0 };
        for (int k = 0; w && k < w->n_models && !o; k++)
            if (strcmp(w->models[k].id, id) == 0) o = &w->models[k];
        if (!o || w->state != WORKER_READY || w->told_to_drain || w->says_draining) continue;
        out[i] = (struct replica_worker){ .usable = !o->failed,
                                          .loaded = o->loaded,
                                          .loading = o->loading,
                                          .requests = o->running + o->waiting,
                                          .evicts = worker_evicts(w, o),
                                          .free_bytes = w->free_bytes };
    }
    return n;
}

/* ---- actions ---- */

static void on_head(void *arg, int status, bool sse)
{
    (void)sse;
    ((struct gwmodels *)arg)->status = status;
}
static void on_data(void *arg, struct str bytes) { (void)arg, (void)bytes; }
static void on_header(void *arg, struct str name, struct str value)
{
    (void)arg, (void)name, (void)value;
}

static void on_end(void *arg, enum hop_end end)
{
    struct gwmodels *m = arg;
    bool ok = end == HOP_DONE && m->status == 200;

    m->hop = NULL;
    if (ok) {
        counter_add(m->loads ? &m->n_loads : &m->n_unloads, 1);
    } else {
        counter_add(&m->n_failed, 1);
        m->not_before = clock_ns() + FAILED_PAUSE_MS * MS;
        log_warn("worker %s did not %s a model (%s, status %d): %.*s", m->w->url,
                 m->loads ? "load" : "unload", hop_end_name(end), m->status,
                 STR_ARG(buf_str(&m->body)));
    }
    worker_done(m->w, 0, end == HOP_DONE ? WORKER_OK : WORKER_CANCELLED);
    m->w = NULL;
}

static const struct hop_ops action_ops = { on_header, on_head, on_data, on_end };

static void start_action(struct gwmodels *m, const struct gwmodel *e)
{
    struct worker *w = fleet_at(m->g->fleet, e->choice.worker);
    const char *key = m->g->s->cluster_key;
    struct buf headers = { 0 };
    struct jsonw j = { .out = &m->body };
    struct fleet_job job = { .cost = 0 };
    struct hop_request rq = { .method = "POST", .has_body = true, .fresh = true };

    m->loads = e->choice.step == REPLICA_LOAD;
    m->status = 0;
    rq.path = m->loads ? "/models/load" : "/models/unload";
    rq.head_ms = ACTION_MS;
    buf_clear(&m->body);
    jsonw_obj(&j);
    jsonw_key(&j, "model"), jsonw_str(&j, str_c(e->id));
    jsonw_end(&j);
    buf_puts(&headers, "X-Tern-Hop: 1\r\nX-Tern-Tenant: gateway\r\nX-Tern-Admin: 1\r\n"
                       "Content-Type: application/json\r\n");
    if (*key) buf_printf(&headers, "X-Tern-Cluster-Key: %s\r\n", key);
    rq.headers = buf_str(&headers);
    rq.body = buf_str(&m->body);
    if (w->lane && !headers.failed && !m->body.failed)
        m->hop = hop_start(w->lane, &rq, &action_ops, m);
    buf_release(&headers);
    if (!m->hop) return; /* with the next tick */
    m->w = w;
    fleet_take(m->g->fleet, w, &job);
    log_info("model %s: %s on %s (%d requests, %d replicas, %d wanted)", e->id,
             m->loads ? "a replica is loaded" : "a replica is unloaded", w->url, e->demand,
             e->choice.loaded, e->choice.wanted);
}

/* ---- ticks ---- */

static void decide(struct gwmodels *m, struct gwmodel *e, uint64_t now)
{
    const struct settings *s = m->g->s;
    struct replica_opt o = { (int)s->replicas_min, (int)s->replicas_max };
    struct replica_worker w[FLEET_MAX];
    bool late = s->replica_idle_ms > 0 && e->surplus_ns &&
                now - e->surplus_ns > (uint64_t)s->replica_idle_ms * MS;

    e->choice = replicas_choose(&o, e->demand, late, w, fill_workers(m, e->id, w));
    if (!e->choice.surplus) e->surplus_ns = 0;
    else if (!e->surplus_ns) e->surplus_ns = now;
    if (e->choice.step == REPLICA_KEEP || m->hop || now < m->not_before || m->g->draining) return;
    start_action(m, e);
    if (e->choice.step == REPLICA_UNLOAD) e->surplus_ns = now;
}

static void on_tick(void *arg)
{
    struct gwmodels *m = arg;
    int n = 0;

    loop_timer_set(m->timer, TICK_MS); /* first: it cannot fail then */
    for (int i = 0; i < m->n; i++) m->at[i].seen = false, m->at[i].demand = 0;
    count_workers(m);
    count_waiting(m);
    for (int i = 0; i < m->n; i++)
        if (m->at[i].seen) m->at[n++] = m->at[i];
    m->n = n;
    for (int i = 0; i < m->n; i++) decide(m, &m->at[i], clock_ns());
}

int gwmodels_open(struct gwmodels **out, struct gateway *g, struct err *e)
{
    struct gwmodels *m = mem_new(struct gwmodels);

    if (m) m->g = g;
    if (m && (m->at = mem_array(MODELS_MAX, sizeof *m->at)) &&
        (m->timer = loop_timer(g->loop, on_tick, m)) && loop_timer_set(m->timer, TICK_MS)) {
        *out = m;
        return OK;
    }
    gwmodels_close(m);
    return err_nomem(e, "the models of the fleet");
}

void gwmodels_close(struct gwmodels *m)
{
    if (!m) return;
    if (m->hop) {
        hop_cancel(m->hop);
        worker_done(m->w, 0, WORKER_CANCELLED);
    }
    loop_timer_close(m->timer);
    buf_release(&m->body);
    mem_free(m->at);
    mem_free(m);
}

/* ---- seeing it ---- */

void gwmodels_write_status(struct gwmodels *m, struct jsonw *w)
{
    jsonw_arr(w);
    for (int i = 0; i < m->n; i++) {
        const struct gwmodel *e = &m->at[i];
        jsonw_obj(w);
        jsonw_key(w, "name"), jsonw_str(w, str_c(e->id));
        jsonw_key(w, "replicas"), jsonw_int(w, e->choice.loaded);
        jsonw_key(w, "loading"), jsonw_int(w, e->choice.loading);
        jsonw_key(w, "wanted"), jsonw_int(w, e->choice.wanted);
        jsonw_key(w, "demand"), jsonw_int(w, e->demand);
        jsonw_key(w, "waiting"), jsonw_int(w, e->waiting);
        jsonw_end(w);
    }
    jsonw_end(w);
}

void gwmodels_write_metrics(struct gwmodels *m, struct buf *out)
{
    const char *help = "Workers that have the model in memory";

    for (int i = 0; i < m->n; i++, help = NULL) {
        struct buf label = { 0 };
        stat_label(&label, "model", str_c(m->at[i].id));
        stat_gauge(out, "tern_gateway_model_replicas", buf_cstr(&label), help,
                   m->at[i].choice.loaded);
        buf_release(&label);
    }
    help = "Requests of the model that run or wait, at all workers";
    for (int i = 0; i < m->n; i++, help = NULL) {
        struct buf label = { 0 };
        stat_label(&label, "model", str_c(m->at[i].id));
        stat_gauge(out, "tern_gateway_model_demand", buf_cstr(&label), help, m->at[i].demand);
        buf_release(&label);
    }
    stat_counter(out, "tern_gateway_replica_actions_total", "action=\"load\"",
                 "Loads and unloads of models that this gateway asked workers for",
                 counter_get(&m->n_loads));
    stat_counter(out, "tern_gateway_replica_actions_total", "action=\"unload\"", NULL,
                 counter_get(&m->n_unloads));
    stat_counter(out, "tern_gateway_replica_actions_total", "action=\"failed\"", NULL,
                 counter_get(&m->n_failed));
}
