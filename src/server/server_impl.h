/* server_impl.h - what a running server is made of; seen by the files of server/ only.
 *
 * Everything here belongs to the loop's thread, except `pool_news`. */
#ifndef TERN_SERVER_SERVER_IMPL_H
#define TERN_SERVER_SERVER_IMPL_H

#include "api/api.h"
#include "base/stat.h"
#include "engine/engine.h"
#include "net/http.h"
#include "pool/pool.h"
#include "server/auth.h"
#include "server/gpus.h"
#include "server/limit.h"
#include "server/recent.h"
#include "server/server.h"

#include <stdatomic.h>

#define HISTORY 120 /* seconds of samples */
#define RATE_S 5    /* rates are over so many */
#define ROUTES_MAX 32
#define CLASSES 6 /* 1xx to 5xx; 0: none */

enum life { LIFE_RUN, LIFE_DRAIN, LIFE_ABORT, LIFE_FLUSH };

/* Why a server is not ready, most important first. */
enum ready { READY_OK, READY_DRAINING, READY_FAILED, READY_LOADING, READY_STALLED };

struct health {
    enum ready ready;
    char reason[512]; /* "" when ready */
    struct buf body;  /* of GET /ready, made when something changes */
    uint64_t n_asked;
    bool stalled[SETTINGS_MODELS];
};

/* Sums over all models at one moment. */
struct sums {
    uint64_t at_ns, generated, prompt, finished, steps;
    uint64_t busy_ns; /* of all devices */
    int64_t running, waiting, kv_used;
};

struct history {
    struct sums at[HISTORY + 1];
    int n; /* ever taken; the newest is at[(n - 1) % (HISTORY + 1)] */
};

enum { TURNED_RATE, TURNED_CONCURRENCY, TURNED_DENIED, TURNED_ORIGIN, TURNED_LOADING, N_TURNED };

/* A traceparent of a request in flight, until its access line. */
struct trace {
    struct trace *next;
    char correlation[72], parent[64];
};

struct server {
    struct settings *s;
    struct loop *loop;
    struct http *http;
    struct api *api;
    struct pool *pool;
    struct auth *auth;
    struct limit *limit;
    struct gpus *gpus; /* NULL: no model is on one, or nobody tells of them */

    uint64_t start_ns;
    int64_t start_ms; /* since 1970 */
    double listen_ms; /* start to listening */

    struct loop_timer *tick, *ending;
    enum life life;
    uint64_t drain_ns, phase_ns; /* when draining began; when this phase of it did */
    atomic_bool pool_news;
    bool told[SETTINGS_MODELS], told_ready; /* models and readiness that the log knows of */
    struct err failed;                      /* why it stopped by itself */

    struct health health;
    struct history history;
    struct recent recent;
    struct counter turned[N_TURNED]; /* away, before the API saw them */
    struct counter replies[ROUTES_MAX][CLASSES];
    uint64_t replied_ns; /* when the last reply was given */
    struct trace *traces;
    int n_traces;
};

/* One request as the server sees it, until it is answered or handed on. */
struct visit {
    struct server *v;
    struct http_req *q;
    struct api_who who;
    int route;  /* index in routes; -1: none */
    bool quiet; /* logged at level debug */
    char peer[96], path[160], method[16];
    uint64_t start_ns;
};

/* routes.c */
void routes_handle(void *arg, struct http_req *q);                         /* http_fn */
void routes_fail(void *arg, int status, const char *msg, struct buf *out); /* http_fail_fn */
const char *routes_name(int i);           /* "/v1/chat/completions"; NULL: no more */
int routes_find(const char *name);        /* -1: none */
const char *routes_method(int i);         /* "GET", "POST"; "": no such route */
bool routes_is_limited(const char *name); /* counted by limit_take */

/* access.c */
void visit_begin(struct visit *t, struct server *v, struct http_req *q);
void visit_reply(struct visit *t, int status, const char *type, struct str body);
void visit_fail(struct visit *t, const struct err *e);
void visit_fail_status(struct visit *t, int status, const char *code, const char *msg);
void visit_hand_on(struct visit *t); /* the API answers: headers it does not know of */
void access_ended(void *arg, const struct api_end *end); /* api_opt.ended */
void access_release(struct server *v);
void access_make_correlation(char out[72]);

/* health.c */
void health_update(struct server *v);
void health_tick(struct server *v); /* once a second */
void health_live(struct visit *t);
void health_ready(struct visit *t);
void server_sums(struct server *v, struct sums *out);
/* The sample about so many seconds before the newest; NULL: there is none. */
const struct sums *history_before(const struct history *h, int seconds);
const struct sums *history_last(const struct history *h);
const char *ready_name(enum ready r); /* "ready", "draining", ... */

/* metrics.c, metrics_compat.c, status.c, plan.c */
void metrics_get(struct visit *t);
void metrics_compat(struct server *v, const char *dialects, struct buf *out);
void status_get(struct visit *t);
uint64_t process_rss(void);
uint64_t process_rss_peak(void);
void plan_listening(const struct server *v);
void plan_model(const struct server *v, const struct pool_model *m);

/* devices.c */
uint64_t devices_busy(struct server *v);              /* ns in all */
double devices_utilization(struct server *v);         /* share of the last seconds they were busy */
void devices_json(struct server *v, struct jsonw *w); /* the values of "devices" in /status */
void devices_metrics(struct server *v, struct buf *out);

/* The statistics of model i; NULL: it is not ready. */
static inline struct engine_stats *server_stats(struct server *v, int i)
{
    struct pool_model *m = pool_at(v->pool, i);
    bool ready = atomic_load_explicit(&m->state, memory_order_acquire) == POOL_READY;
    return ready ? engine_stats(m->engine) : NULL;
}
#endif
