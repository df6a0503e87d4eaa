/* clusterstate.c - GET /cluster/state: what a gateway needs to know of this worker, in one small reply. */
#include "api/api.h"
#include "base/jsonw.h"
#include "engine/info.h"
#include "engine/stats.h"
#include "base/memavail.h"
#include "pool/pool.h"
#include "server/health.h"
#include "server/hopin.h"
#include "server/registration.h"
#include "server/server_impl.h"
#include "server/visit.h"

#include <string.h>

static void write_load(struct jsonw *w, struct server *v, int i)
{
    const struct engine_stats *s = server_stats(v, i);
    double total = s ? (double)gauge_get(&s->kv_total) : 0;

    jsonw_key(w, "running"), jsonw_int(w, s ? gauge_get(&s->running) : 0);
    jsonw_key(w, "waiting"), jsonw_int(w, s ? gauge_get(&s->waiting) : 0);
    jsonw_key(w, "kv_free"),
        jsonw_num(w, total > 0 ? 1 - (double)gauge_get(&s->kv_used) / total : 1);
}

/* The devices of the models that are ready, each once: "cpu (avx512, 2 threads)". */
static void write_devices(struct jsonw *w, struct server *v)
{
    struct {
        const char *name, *detail;
    } seen[16];
    int n = 0, k;

    jsonw_key(w, "devices"), jsonw_arr(w);
    for (int i = 0; i < pool_n(v->pool); i++) {
        struct engine_info info;
        if (!pool_is_listed(v->pool, i) || !server_engine_info(v, i, &info)) continue;
        for (int d = 0; d < info.n_devices; d++) {
            const char *name = info.device[d].name, *detail = info.device[d].detail;
            for (k = 0; k < n; k++)
                if (strcmp(seen[k].name, name) == 0 && strcmp(seen[k].detail, detail) == 0) break;
            if (k < n || n == 16) continue;
            seen[n].name = name;
            seen[n++].detail = detail;
            jsonw_obj(w);
            jsonw_key(w, "name"), jsonw_str(w, str_c(name));
            jsonw_key(w, "detail"), jsonw_str(w, str_c(detail));
            jsonw_end(w);
        }
    }
    jsonw_end(w);
}

/* Hosts of the members, each once and in their order. */
static void write_hosts(struct jsonw *w, const struct engine_info *i)
{
    int k, before;

    jsonw_key(w, "hosts"), jsonw_arr(w);
    for (k = 0; k < i->n_members; k++) {
        for (before = 0; before < k; before++)
            if (strcmp(i->members[before].host, i->members[k].host) == 0) break;
        if (before == k) jsonw_str(w, str_c(i->members[k].host));
    }
    jsonw_end(w);
}

/* Models that run over several processes, for people. */
static void write_gangs(struct jsonw *w, struct server *v)
{
    jsonw_key(w, "gangs"), jsonw_arr(w);
    for (int i = 0; i < pool_n(v->pool); i++) {
        const struct engine_stats *s = server_stats(v, i);
        struct engine_info info = { 0 };
        if (!pool_is_listed(v->pool, i) || !server_engine_info(v, i, &info)) continue;
        if (info.n_members == 0) continue;
        jsonw_obj(w);
        jsonw_key(w, "model"), jsonw_str(w, str_c(pool_at(v->pool, i)->id));
        jsonw_key(w, "members"), jsonw_int(w, info.n_members);
        jsonw_key(w, "tp"), jsonw_int(w, info.tp);
        jsonw_key(w, "pp"), jsonw_int(w, info.pp);
        jsonw_key(w, "comm_share"), jsonw_num(w, s ? (double)gauge_get(&s->comm_ppm) / 1e6 : 0);
        write_hosts(w, &info);
        jsonw_end(w);
    }
    jsonw_end(w);
}

/* Memory for models that is free, and how many may be loaded besides; null: no limit, or not known. */
static void write_room(struct jsonw *w, struct server *v)
{
    uint64_t limit = pool_limit(v->pool), used = pool_bytes(v->pool);
    int64_t n = v->s->models_max;
    struct memavail machine = { .free = UINT64_MAX };
    struct pool_view o;

    if (!limit) memavail_read(&machine, "");
    for (int i = 0; i < pool_n(v->pool); i++) {
        pool_view(v->pool, i, &o);
        n -= o.state == POOL_LOADING || o.state == POOL_READY || o.state == POOL_DRAINING;
    }
    jsonw_key(w, "room"), jsonw_obj(w);
    jsonw_key(w, "models");
    if (v->s->models_max) jsonw_int(w, n > 0 ? n : 0);
    else jsonw_null(w);
    jsonw_key(w, "bytes");
    if (limit) jsonw_int(w, (int64_t)(limit > used ? limit - used : 0));
    else if (machine.free < INT64_MAX) jsonw_int(w, (int64_t)machine.free);
    else jsonw_null(w);
    jsonw_end(w);
}

/* Of a model in memory; 0: it is not. */
static void write_bytes(struct jsonw *w, struct server *v, int i)
{
    struct pool_view o;

    pool_view(v->pool, i, &o);
    jsonw_key(w, "bytes"), jsonw_int(w, (int64_t)o.bytes);
}

/* instance changes with every start of the process: what a gateway knew of its cache is void then. */
void clusterstate_get(struct visit *t)
{
    struct server *v = t->v;
    struct buf b = { 0 };
    struct jsonw w = { .out = &b };
    char instance[40];

    server_instance(v, instance);
    jsonw_obj(&w);
    jsonw_key(&w, "v"), jsonw_int(&w, 1);
    jsonw_key(&w, "instance"), jsonw_str(&w, str_c(instance));
    jsonw_key(&w, "version"), jsonw_str(&w, STR(TERN_VERSION));
    jsonw_key(&w, "draining"), jsonw_bool(&w, v->life != LIFE_RUN);
    jsonw_key(&w, "store"), jsonw_bool(&w, v->jobs != NULL);
    write_room(&w, v);
    write_devices(&w, v);
    write_gangs(&w, v);
    jsonw_key(&w, "models"), jsonw_arr(&w);
    for (int i = 0; i < pool_n(v->pool); i++) {
        if (!pool_is_listed(v->pool, i)) continue;
        jsonw_obj(&w);
        jsonw_key(&w, "model"), api_write_model(v->api, &w, i);
        write_load(&w, v, i);
        write_bytes(&w, v, i);
        jsonw_end(&w);
    }
    jsonw_end(&w);
    jsonw_end(&w);
    visit_reply_buf(t, 200, "application/json", &b);
    buf_release(&b);
}
