/* gateway.c - wiring, the way of a request through keys and limits, the routes of the gateway's own,
 * and the shutdown.
 *
 * Paths that are in no row of `routes` are forwarded: the worker knows them, or answers 404. */
#include "cluster/gateway.h"

#include "api/fail.h"
#include "base/clock.h"
#include "base/jsonr.h"
#include "base/jsonw.h"
#include "base/log.h"
#include "base/mem.h"
#include "cluster/gateway_impl.h"
#include "cluster/gwjobs.h"
#include "cluster/gwmodels.h"
#include "cluster/gwstore.h"
#include "cluster/script.h"
#include "cluster/stored.h"
#include "member/member.h"
#include "net/loop.h"
#include "server/cors.h"
#include "server/descriptors.h"
#include "server/limit.h"
#include "server/origin.h"
#include "server/settings.h"
#include "server/web.h"

#include <signal.h>
#include <stdio.h>
#include <strings.h>
#include <sys/random.h>

enum {
    ENDING_MS = 5,
    SETTLE_MS = 200,
    INDEX_BLOCKS = 1 << 20,
    OPERATOR_BYTES = 64 << 10 /* of a body of an operator */
};

/* One request while the gateway decides about it. */
struct pass {
    struct gateway *g;
    struct http_req *q;
    struct gw_who who;
    char correlation[72];
    bool quiet;
};

/* ---- replies of the gateway's own ---- */

void gateway_note_end(struct gateway *g, const struct gw_end *end)
{
    int class = end->status / 100;
    struct log_event ev;

    if (end->who->limited) limit_give(g->limit, end->who->tenant);
    if (class > 0 && class < GW_STATUS_CLASSES) counter_add(&g->n.replies[class], 1);
    if (!g->s->access_log) return;
    log_begin(&ev, end->quiet && end->status < 400 ? LOG_DEBUG : LOG_INFO, "access");
    log_str(&ev, "id", str_c(end->correlation));
    if (end->trace.n) log_str(&ev, "traceparent", end->trace);
    if (end->who->name) log_str(&ev, "tenant", str_c(end->who->name));
    log_str(&ev, "peer", str_c(end->peer));
    log_str(&ev, "method", str_c(end->method));
    log_str(&ev, "path", str_c(end->path));
    if (*end->model) log_str(&ev, "model", str_c(end->model));
    if (*end->worker) log_str(&ev, "worker", str_c(end->worker));
    log_int(&ev, "status", end->status);
    if (*end->code) log_str(&ev, "code", str_c(end->code));
    if (*end->gone) log_str(&ev, "gone", str_c(end->gone));
    if (end->attempts > 1) log_int(&ev, "attempts", end->attempts);
    if (end->replays) log_int(&ev, "replays", end->replays);
    if (end->n_ids) log_int(&ev, "tokens", end->n_ids);
    if (end->first_ms > 0) log_ms(&ev, "first_ms", end->first_ms);
    log_ms(&ev, "total_ms", end->start_ns ? clock_ms_since(end->start_ns) : 0);
    log_end(&ev);
}

/* Fields of the log are copied before the reply: q is invalid after it. */
struct noted {
    char peer[96], path[160], method[16];
    uint64_t start_ns;
};

static void note_request(const struct pass *p, struct noted *n)
{
    struct str path = http_path(p->q), method = http_method_name(p->q);

    snprintf(n->peer, sizeof n->peer, "%s", http_peer(p->q));
    snprintf(n->path, sizeof n->path, "%.*s", (int)(path.n < 150 ? path.n : 150),
             path.p ? path.p : "");
    snprintf(n->method, sizeof n->method, "%.*s", (int)(method.n < 15 ? method.n : 15),
             method.p ? method.p : "");
    n->start_ns = http_start_ns(p->q);
}

static void end_pass(struct pass *p, const struct noted *n, int status, const char *code)
{
    struct gw_end end = { .who = &p->who,
                          .correlation = p->correlation,
                          .peer = n->peer,
                          .method = n->method,
                          .path = n->path,
                          .model = "",
                          .worker = "",
                          .code = code,
                          .gone = "",
                          .status = status,
                          .start_ns = n->start_ns,
                          .quiet = p->quiet };

    gateway_note_end(p->g, &end);
}

static void set_cors(struct pass *p) { cors_set_headers(p->g->s, p->q); }

static void send_reply(struct pass *p, int status, const char *type, struct str body)
{
    struct noted n;

    note_request(p, &n);
    set_cors(p);
    end_pass(p, &n, http_reply(p->q, status, type, body.p, body.n), "");
}

static void send_json(struct pass *p, int status, struct buf *b)
{
    struct noted n;

    if (!b->failed) {
        send_reply(p, status, "application/json", buf_str(b));
        return;
    }
    note_request(p, &n);
    end_pass(p, &n, http_reply_nomem(p->q), fail_lookup(E_NOMEM).code);
}

static void send_error(struct pass *p, const struct err *e)
{
    struct noted n;

    note_request(p, &n);
    set_cors(p);
    end_pass(p, &n, fail_send(p->q, e, NULL, p->correlation), fail_lookup(e->code).code);
}

static void send_status(struct pass *p, int status, const char *code, const char *msg)
{
    struct noted n;

    note_request(p, &n);
    set_cors(p);
    end_pass(p, &n, fail_send_status(p->q, status, code, msg, p->correlation), code);
}

/* ---- handlers ---- */

static int count_state(struct gateway *g, enum worker_state s)
{
    int n = 0;

    for (int i = 0; i < fleet_n(g->fleet); i++)
        n += fleet_at(g->fleet, i) && fleet_at(g->fleet, i)->state == s;
    return n;
}

static void get_health(struct pass *p)
{
    struct buf b = { 0 };
    struct jsonw w = { .out = &b };

    jsonw_obj(&w);
    jsonw_key(&w, "status"), jsonw_str(&w, STR("ok"));
    jsonw_key(&w, "role"), jsonw_str(&w, STR("gateway"));
    jsonw_end(&w);
    send_json(p, 200, &b);
    buf_release(&b);
}

static void get_ready(struct pass *p)
{
    int n = count_state(p->g, WORKER_READY);
    bool ready = n > 0 && !p->g->draining;
    struct buf b = { 0 };
    struct jsonw w = { .out = &b };

    jsonw_obj(&w);
    jsonw_key(&w, "ready"), jsonw_bool(&w, ready);
    jsonw_key(&w, "status"), jsonw_str(&w, ready            ? STR("ready")
                                           : p->g->draining ? STR("draining")
                                                            : STR("no_worker"));
    jsonw_key(&w, "workers"), jsonw_int(&w, n);
    jsonw_end(&w);
    send_json(p, ready ? 200 : 503, &b);
    buf_release(&b);
}

static void get_status(struct pass *p)
{
    struct buf b = { 0 };

    gateway_write_status(p->g, &b);
    send_json(p, 200, &b);
    buf_release(&b);
}

static void get_metrics(struct pass *p)
{
    struct buf b = { 0 };

    gateway_write_metrics(p->g, &b);
    if (b.failed) send_json(p, 200, &b);
    else send_reply(p, 200, "text/plain; version=0.0.4; charset=utf-8", buf_str(&b));
    buf_release(&b);
}

static void get_models(struct pass *p)
{
    struct buf b = { 0 };

    gateway_write_models(p->g, &b);
    send_json(p, 200, &b);
    buf_release(&b);
}

static void get_model(struct pass *p)
{
    struct str id = str_skip(http_path(p->q), strlen("/v1/models/"));
    struct buf b = { 0 };
    struct err e = { 0 };

    if (gateway_write_model(p->g, id, &b)) {
        send_json(p, 200, &b);
    } else {
        err_set(&e, E_NOTFOUND,
                "model '%.*s' not found; GET /v1/models lists the models of all workers",
                STR_ARG(str_take(id, 100)));
        send_error(p, &e);
    }
    buf_release(&b);
}

/* {"url": URL, ...}: the worker that an operator means. */
static int read_worker(struct pass *p, json_t **root, struct worker **out, struct err *e)
{
    struct str body = http_body(p->q);
    const char *url;

    *root =
        body.n > OPERATOR_BYTES || str_json_parts(body) > 1000 ? NULL : jsonr_load(body, 0, NULL);
    url = json_string_value(json_object_get(*root, "url"));
    if (!url)
        return err_set(e, E_INVALID, "the body must be a JSON object with the 'url' of a worker");
    if (!(*out = fleet_find(p->g->fleet, str_c(url))))
        return err_set(e, E_NOTFOUND, "no worker has the URL '%.200s'; GET /status lists them",
                       url);
    return OK;
}

/* Drains a worker, or with "drain": false takes it back. */
static void post_drain(struct pass *p)
{
    struct worker *w = NULL;
    json_t *root = NULL, *on;
    struct err e = { 0 };

    if (read_worker(p, &root, &w, &e) != OK) {
        send_error(p, &e);
    } else {
        on = json_object_get(root, "drain");
        fleet_drain(w, !json_is_false(on));
        get_status(p);
    }
    json_decref(root);
}

static void post_weights(struct pass *p)
{
    struct worker *w = NULL;
    json_t *root = NULL, *v;
    struct err e = { 0 };
    double weight;

    if (read_worker(p, &root, &w, &e) == OK) {
        v = json_object_get(root, "weight");
        weight = json_number_value(v);
        if (!json_is_number(v) || !(weight >= 0 && weight <= 1000))
            err_set(&e, E_INVALID, "weight must be a number from 0 to 1000");
        else w->weight = weight;
    }
    if (e.code != OK) send_error(p, &e);
    else get_status(p);
    json_decref(root);
}

/* ---- routes ---- */

enum access { ANYONE, WITH_KEY, ADMIN };

struct gw_route {
    enum http_method method;
    const char *path; /* one that ends with a slash: all below it */
    enum access access;
    bool limited, quiet;
    void (*own)(struct pass *p); /* NULL: forwarded as */
    enum relay_kind kind;
};

/* clang-format off */
static const struct gw_route routes[] = {
    { HTTP_POST, "/v1/chat/completions", WITH_KEY, .limited = true, .kind = RELAY_GENERATE },
    { HTTP_POST, "/v1/completions", WITH_KEY, .limited = true, .kind = RELAY_GENERATE },
    { HTTP_POST, "/v1/messages", WITH_KEY, .limited = true, .kind = RELAY_GENERATE },
    { HTTP_POST, "/v1/responses", WITH_KEY, .limited = true, .kind = RELAY_GENERATE },
    { HTTP_POST, "/api/chat", WITH_KEY, .limited = true, .kind = RELAY_GENERATE },
    { HTTP_POST, "/api/generate", WITH_KEY, .limited = true, .kind = RELAY_GENERATE },
    { HTTP_POST, "/chat/completions", WITH_KEY, .limited = true, .kind = RELAY_GENERATE },
    { HTTP_POST, "/completions", WITH_KEY, .limited = true, .kind = RELAY_GENERATE },
    { HTTP_POST, "/messages", WITH_KEY, .limited = true, .kind = RELAY_GENERATE },
    { HTTP_POST, "/responses", WITH_KEY, .limited = true, .kind = RELAY_GENERATE },
    { HTTP_POST, "/v2/execute", WITH_KEY, .limited = true, .kind = RELAY_GENERATE },
    { HTTP_POST, "/execute", WITH_KEY, .limited = true, .kind = RELAY_GENERATE },
    { HTTP_GET, "/v1/models", WITH_KEY, .own = get_models },
    { HTTP_GET, "/models", WITH_KEY, .own = get_models },
    { HTTP_GET, "/v1/models/", WITH_KEY, .own = get_model },
    { HTTP_POST, "/models/load", ADMIN, .kind = RELAY_ONCE },
    { HTTP_POST, "/models/unload", ADMIN, .kind = RELAY_ONCE },
    { HTTP_POST, "/models/verify", ADMIN, .kind = RELAY_ONCE },
    { HTTP_POST, "/api/v1/models/", ADMIN, .kind = RELAY_ONCE },
    { HTTP_POST, "/sleep", ADMIN, .kind = RELAY_ONCE },
    { HTTP_POST, "/wake_up", ADMIN, .kind = RELAY_ONCE },
    { HTTP_POST, "/v1/requests/", WITH_KEY, .kind = RELAY_CANCEL },
    { HTTP_POST, "/cancel", WITH_KEY, .kind = RELAY_CANCEL },
    { HTTP_GET, "/health", ANYONE, .quiet = true, .own = get_health },
    { HTTP_GET, "/live", ANYONE, .quiet = true, .own = get_health },
    { HTTP_GET, "/ready", ANYONE, .quiet = true, .own = get_ready },
    { HTTP_GET, "/metrics", ADMIN, .quiet = true, .own = get_metrics },
    { HTTP_GET, "/status", ADMIN, .quiet = true, .own = get_status },
    { HTTP_POST, "/cluster/drain", ADMIN, .own = post_drain },
    { HTTP_POST, "/cluster/weights", ADMIN, .own = post_weights },
    { HTTP_POST, "/", WITH_KEY, .limited = true, .kind = RELAY_COMPUTE },
    { HTTP_GET, "/", WITH_KEY, .kind = RELAY_COMPUTE },
    { HTTP_DELETE, "/", WITH_KEY, .kind = RELAY_ONCE },
    { HTTP_PUT, "/", WITH_KEY, .kind = RELAY_ONCE },
};
/* clang-format on */

static bool matches_path(const char *pattern, struct str path)
{
    struct str p = str_c(pattern);

    return str_ends(p, STR("/")) ? str_starts(path, p) && (path.n > p.n || p.n == 1)
                                 : str_eq(p, path);
}

/* The first row that matches. NULL: no row has this method. */
static const struct gw_route *find_route(struct str path, enum http_method m)
{
    if (m == HTTP_HEAD) m = HTTP_GET;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        if (routes[i].method == m && matches_path(routes[i].path, path)) return &routes[i];
    return NULL;
}

static bool is_vital(void *arg, const struct http_req *q)
{
    const struct gw_route *r = find_route(http_path(q), http_method(q));

    (void)arg;
    return r && r->access == ANYONE;
}

/* ---- keys and limits ---- */

static int find_tenant(struct pass *p, enum access access, const struct tenant **out, struct err *e)
{
    struct gateway *g = p->g;
    int rc = auth_check(g->auth, http_header(p->q, "Authorization"), http_header(p->q, "x-api-key"),
                        out, e);

    if (rc != OK) return rc;
    p->who = (struct gw_who){ .name = auth_name(g->auth, (*out)->index),
                              .tenant = (*out)->index,
                              .priority_max = (*out)->priority_max,
                              .admin = (*out)->admin };
    if (access == ADMIN && auth_has_admin(g->auth) && !(*out)->admin)
        return err_set(e, E_DENIED, "this path needs the key of an admin");
    return OK;
}

static int take_limits(struct pass *p, const struct tenant *t, struct err *e)
{
    const struct settings *s = p->g->s;
    int rate = t->rate_per_min < 0 ? (int)s->rate_per_min : t->rate_per_min;
    int at_once = t->concurrency < 0 ? (int)s->concurrency : t->concurrency;
    int rc = limit_take(p->g->limit, t->index, rate, at_once, clock_ns(), e);

    if (rc == OK) p->who.limited = true;
    return rc;
}

/* As tern serve: no web page of a stranger (server/origin.h). true: refused. */
static bool refuse_foreign(struct pass *p, bool vital)
{
    const struct settings *s = p->g->s;
    struct str host = http_header(p->q, "Host"), origin = http_header(p->q, "Origin"),
               site = http_header(p->q, "Sec-Fetch-Site");
    bool checked = auth_is_open(p->g->auth) || *s->allowed_hosts;

    if (vital || strcmp(http_peer(p->q), "unix") == 0) return false;
    if (checked &&
        (host.n ? !origin_host_allowed(host, s->host, s->allowed_hosts) : origin.p || site.p)) {
        send_status(p, 403, "host_not_allowed",
                    "this host is not allowed: add the name to --allowed-hosts, or give "
                    "--api-key-file");
        return true;
    }
    if (cors_allows(s, p->q) || !origin_is_foreign(host, origin, site)) return false;
    send_status(p, 403, "origin_not_allowed",
                "requests from pages of another origin are not allowed; start the gateway with "
                "--cors or --cors-origins to allow them");
    return true;
}

static bool send_web_file(struct pass *p)
{
    const struct web_file *f = web_find(http_path(p->q));
    enum http_method m = http_method(p->q);

    if (!f || (m != HTTP_GET && m != HTTP_HEAD)) return false;
    p->quiet = true;
    if (str_is(http_path(p->q), "/")) http_set_header(p->q, "Vary", "Accept");
    if (web_is_greeting(http_path(p->q), http_header(p->q, "Accept"))) {
        send_reply(p, 200, "text/plain; charset=utf-8", STR(WEB_GREETING));
        return true;
    }
    http_set_header(p->q, "ETag", f->etag);
    http_set_header(p->q, "Cache-Control", "no-cache");
    http_set_header(p->q, "X-Content-Type-Options", "nosniff");
    http_set_header(p->q, "Content-Security-Policy", WEB_POLICY);
    send_reply(p, 200, f->type, str_of((const char *)f->data, f->n));
    return true;
}

static void pass_begin(struct pass *p, struct gateway *g, struct http_req *q)
{
    *p = (struct pass){ .g = g, .q = q, .who.name = "" };
    snprintf(p->correlation, sizeof p->correlation, "%s", http_id(q));
}

/* http_fn. */
static void handle_request(void *arg, struct http_req *q)
{
    const struct gw_route *r = find_route(http_path(q), http_method(q));
    const struct tenant *t = NULL;
    struct err e = { 0 };
    struct pass p;

    pass_begin(&p, arg, q);
    if (refuse_foreign(&p, r && r->access == ANYONE)) return;
    if (r && !r->own && r->kind == RELAY_COMPUTE && send_web_file(&p)) return;
    if (!r) {
        if (http_method(q) == HTTP_OPTIONS && cors_allows(p.g->s, q)) {
            cors_set_preflight(q, STR("GET, HEAD, POST, PUT, DELETE"));
            p.quiet = true;
            send_reply(&p, 204, "text/plain", STR(""));
            return;
        }
        http_set_header(q, "Allow", "GET, HEAD, POST, PUT, DELETE");
        send_status(&p, 405, "method_not_allowed", "method not allowed");
        return;
    }
    p.quiet = r->quiet;
    if ((r->access != ANYONE && find_tenant(&p, r->access, &t, &e) != OK) ||
        (p.g->draining && !r->own &&
         err_set(&e, E_SHUTDOWN, "the gateway is shutting down and takes no more requests") !=
             OK) ||
        (r->limited && take_limits(&p, t, &e) != OK))
        send_error(&p, &e);
    else if (r->own) r->own(&p);
    else if (p.g->jobs && gwjobs_is_path(http_path(q))) {
        set_cors(&p);
        gwjobs_begin(p.g->jobs, q, &p.who);
    } else if (p.g->store && gwstore_is_path(http_path(q))) {
        set_cors(&p);
        gwstore_begin(p.g->store, q, &p.who);
    } else {
        set_cors(&p);
        relay_begin(p.g, q, &p.who, stored_is_work(http_path(q)) ? RELAY_STORE : r->kind);
    }
}

/* http_opt.streams */
static bool is_upload(void *arg, const struct http_req *q)
{
    return ((struct gateway *)arg)->store && gwstore_is_upload(q);
}

/* http_admit_fn: an upload is admitted before any of its bytes are read, also a small one. */
static enum http_admission admit_body(void *arg, struct http_req *q)
{
    const struct tenant *t = NULL;
    struct err e = { 0 };
    struct pass p;

    if (!is_upload(arg, q)) return HTTP_ADMIT;
    pass_begin(&p, arg, q);
    if (refuse_foreign(&p, false)) return HTTP_ANSWERED;
    if (find_tenant(&p, WITH_KEY, &t, &e) != OK ||
        (p.g->draining &&
         err_set(&e, E_SHUTDOWN, "the gateway is shutting down and takes no more requests") !=
             OK)) {
        send_error(&p, &e);
        return HTTP_ANSWERED;
    }
    set_cors(&p);
    return gwstore_admit(p.g->store, q, &p.who) ? HTTP_ADMIT : HTTP_ANSWERED;
}

static void handle_bad(void *arg, struct http_req *q, int status, const char *code, const char *msg,
                       struct buf *out)
{
    const char *type = status >= 500   ? "server_error"
                       : status == 429 ? "rate_limit_error"
                                       : "invalid_request_error";
    struct noted n;
    struct pass p;

    pass_begin(&p, arg, q);
    note_request(&p, &n);
    fail_write_body(out, fail_form_of(str_c(n.path)),
                    &(struct fail){ .status = status, .type = type, .code = code }, msg, NULL,
                    p.correlation);
    end_pass(&p, &n, status, code);
}

/* ---- the shutdown ---- */

static void on_ending(void *arg)
{
    struct gateway *g = arg;
    double ms = clock_ms_since(g->drain_ns);

    loop_timer_set(g->ending, ENDING_MS); /* first: it cannot fail then */
    if ((g->n_relays || gwjobs_n_asked(g->jobs) || gwstore_n_asked(g->store)) &&
        ms < (double)g->s->drain_timeout_ms && !g->aborted)
        return;
    relay_abort_all(g);
    http_stop_listening(g->http);
    if (!g->aborted) {
        g->aborted = true;
        g->drain_ns = clock_ns();
        return;
    }
    if (ms < SETTLE_MS) return;
    loop_timer_stop(g->ending);
    loop_stop(g->loop);
}

static void on_stop_signal(void *arg)
{
    struct gateway *g = arg;

    if (g->draining) {
        g->aborted = true;
        return;
    }
    log_info("shutting down: %d requests are in flight and have up to %.1f s to end", g->n_relays,
             (double)g->s->drain_timeout_ms / 1e3);
    g->draining = true;
    g->drain_ns = clock_ns();
    http_drain(g->http);
    gwjobs_drain(g->jobs);
    gwstore_drain(g->store);
    if (!loop_timer_set(g->ending, 1)) loop_stop(g->loop);
}

static void on_reload_signal(void *arg)
{
    struct gateway *g = arg;
    struct err e = { 0 };

    if (auth_reload(g->auth, &e) != OK) log_error("API keys are unchanged: %s", e.msg);
    else log_info("API keys were reloaded: %d", auth_n_keys(g->auth));
}

/* ---- opening ---- */

static bool is_loopback(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 ||
           strcasecmp(host, "localhost") == 0;
}

static int check_settings(const struct gateway *g, struct err *e)
{
    const struct settings *s = g->s;

    if (!*s->peers && !*s->nats)
        return err_set(e, E_INVALID,
                       "no workers: give --peers URL,URL or --nats URL where workers register");
    if (origin_check_setting(s->allowed_hosts, e) != OK) return e->code;
    if (origin_check_list(s->cors_origins, e) != OK) return e->code;
    if (*s->host && !is_loopback(s->host) && auth_is_open(g->auth) && !s->allow_open)
        return err_set(e, E_INVALID,
                       "host is '%s' and there is no API key: everyone who reaches it could use "
                       "the workers. Give --api-key-file, listen on 127.0.0.1, or set --allow-open",
                       s->host);
    return OK;
}

/* ---- members of NATS ---- */

/* A worker that is not listed any more is gone if it does not answer either: a NATS server that lost
 * its memory must not empty the fleet. */
static void apply_listing(struct gateway *g, int n)
{
    struct err e = { 0 };

    for (int i = 0; i < fleet_n(g->fleet); i++)
        if (fleet_at(g->fleet, i)) fleet_at(g->fleet, i)->is_listed = false;
    for (int i = 0; i < n; i++) {
        struct worker *w = fleet_add(g->fleet, str_c(g->members[i].url), g->members[i].weight, &e);
        if (!w) log_warn("a worker that NATS lists is left out: %s", e.msg);
        else w->is_listed = true;
    }
    for (int i = 0; i < fleet_n(g->fleet); i++) {
        struct worker *w = fleet_at(g->fleet, i);
        if (w && !w->is_listed && !w->is_static && w->state != WORKER_READY)
            fleet_remove(g->fleet, w);
    }
}

static void on_wake(void *arg)
{
    struct gateway *g = arg;
    int n = roster_take(g->roster, g->members, FLEET_MAX);

    if (n >= 0) apply_listing(g, n);
    gwjobs_process(g->jobs);
    gwstore_process(g->store);
}

static void on_listing(void *arg) { loop_wake(((struct gateway *)arg)->loop); } /* NATS' thread */

static int open_nats(struct gateway *g, struct err *e)
{
    int rc;

    if (!*g->s->nats) return OK;
    if (!(g->members = mem_array(FLEET_MAX, sizeof *g->members)))
        return err_nomem(e, "the list of members");
    loop_on_wake(g->loop, on_wake, g);
    if ((rc = roster_open(&g->roster, g->s->nats, on_listing, g, e)) != OK) return rc;
    if ((rc = gwjobs_open(&g->jobs, g, e)) != OK) return rc;
    return gwstore_open(&g->store, g, e);
}

static void on_lost(void *arg, struct worker *w) { relay_worker_lost(arg, w); }
static void on_changed(void *arg) { relay_workers_changed(arg); }

static int open_fleet(struct gateway *g, struct err *e)
{
    const struct settings *s = g->s;
    struct fleet_opt o = { .loop = g->loop,
                           .cluster_key = s->cluster_key,
                           .ca_file = s->peer_ca,
                           .beat_ms = (int)s->beat_ms,
                           .detect_ms = (int)s->detect_ms,
                           .affinity = g->affinity,
                           .changed = on_changed,
                           .lost = on_lost,
                           .arg = g };
    int rc;

    place_policy_by_name(s->policy, &o.policy);
    if (*s->policy_script && (rc = script_open(&g->script, s->policy_script, e)) != OK) return rc;
    if (g->script) o.choose = script_choose, o.choose_arg = g->script;
    if ((rc = fleet_open(&g->fleet, &o, e)) != OK) return rc;
    return *s->peers ? fleet_add_peers(g->fleet, s->peers, e) : OK;
}

static const char *null_if_empty(const char *s) { return *s ? s : NULL; }

static int open_http(struct gateway *g, struct err *e)
{
    const struct settings *s = g->s;
    struct http_opt o = { .host = null_if_empty(s->host),
                          .port = (int)s->port,
                          .socket_path = null_if_empty(s->socket),
                          .tls_cert = null_if_empty(s->tls_cert),
                          .tls_key = null_if_empty(s->tls_key),
                          .max_body_bytes = (size_t)s->max_body,
                          .max_bodies_bytes = (size_t)s->max_bodies,
                          .max_header_bytes = (size_t)s->max_header,
                          .max_unread_bytes = (size_t)s->max_unread,
                          .max_conns = g->max_conns,
                          .header_ms = (int)s->header_timeout_ms,
                          .body_ms = (int)s->body_timeout_ms,
                          .idle_ms = (int)s->idle_timeout_ms,
                          .write_ms = (int)s->write_timeout_ms,
                          .nomem_body = FAIL_NOMEM_BODY,
                          .handler = handle_request,
                          .fail = handle_bad,
                          .admit = admit_body,
                          .vital = is_vital,
                          .streams = is_upload,
                          .max_stream_bytes = UINT64_MAX / 4, /* gwstore_admit has the limit */
                          .arg = g };

    return http_open(&g->http, g->loop, &o, e);
}

static int open_signals(struct gateway *g, struct err *e)
{
    int rc;

    if ((rc = loop_on_signal(g->loop, SIGTERM, on_stop_signal, g, e)) != OK) return rc;
    if ((rc = loop_on_signal(g->loop, SIGINT, on_stop_signal, g, e)) != OK) return rc;
    return loop_on_signal(g->loop, SIGHUP, on_reload_signal, g, e);
}

static void init_stats(struct gateway *g)
{
    uint64_t seed;

    hist_init(&g->n.place_us, hist_short, 15);
    hist_init(&g->n.first_ms, hist_short, 15);
    hist_init(&g->n.pause_ms, hist_short, 15);
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed) seed = clock_ns();
    rng_seed(&g->rng, seed);
    g->start_ns = clock_ns();
}

static int gateway_open(struct gateway *g, struct err *e)
{
    const struct settings *s = g->s;
    enum log_level level;
    int rc;

    init_stats(g);
    if (log_level_by_name(str_c(s->log_level), &level)) log_set_level(level);
    log_set_format(strcmp(s->log_format, "json") == 0 ? LOG_JSON : LOG_TEXT);
    if ((rc = auth_open(&g->auth, s->api_key, s->api_key_file, e)) != OK) return rc;
    if ((rc = check_settings(g, e)) != OK) return rc;
    if ((rc = descriptors_fit((int)s->max_connections, 1, &g->max_conns, e)) != OK) return rc;
    if ((rc = limit_open(&g->limit, e)) != OK) return rc;
    if ((rc = promptkeys_open(&g->keys, s->models, s->aliases, s->n_models, e)) != OK) return rc;
    if ((rc = affinity_open(&g->affinity, INDEX_BLOCKS, e)) != OK) return rc;
    if ((rc = loop_open(&g->loop, e)) != OK) return rc;
    if ((rc = open_signals(g, e)) != OK) return rc;
    if (!(g->ending = loop_timer(g->loop, on_ending, g))) return err_nomem(e, "a timer");
    if ((rc = open_fleet(g, e)) != OK) return rc;
    if ((rc = gwmodels_open(&g->models, g, e)) != OK) return rc;
    if ((rc = open_http(g, e)) != OK) return rc;
    return open_nats(g, e);
}

static void gateway_close(struct gateway *g)
{
    roster_close(g->roster); /* its thread wakes the loop */
    if (g->fleet) relay_abort_all(g);
    gwstore_close(g->store);
    gwjobs_close(g->jobs);
    gwmodels_close(g->models);
    fleet_close(g->fleet);
    http_close(g->http);
    loop_timer_close(g->ending);
    loop_close(g->loop);
    affinity_close(g->affinity);
    script_close(g->script);
    mem_free(g->members);
    promptkeys_close(g->keys);
    limit_close(g->limit);
    auth_close(g->auth);
}

static void log_start(const struct gateway *g)
{
    const struct settings *s = g->s;
    bool v6 = strchr(s->host, ':') && s->host[0] != '[';

    if (http_port(g->http))
        log_info("tern %s gateway listens on http%s://%s%s%s:%d/", TERN_VERSION,
                 *s->tls_cert ? "s" : "", v6 ? "[" : "", s->host, v6 ? "]" : "",
                 http_port(g->http));
    log_info(
        "policy %s; %d workers are named; a worker that is silent for %lld ms gets no requests",
        s->policy, fleet_n(g->fleet), (long long)s->detect_ms);
}

int gateway_run(struct settings *s, struct err *e)
{
    struct gateway g = { .s = s };
    int rc = gateway_open(&g, e);

    if (rc == OK) {
        log_start(&g);
        loop_run(g.loop);
        log_info("shut down in %.0f ms", clock_ms_since(g.drain_ns));
    }
    gateway_close(&g);
    log_set_format(LOG_PLAIN);
    return rc;
}
