/* routes.c - the table of routes, and the way of a request through it.
 *
 *     request ─► route ─► host, origin ─► key ─► limits ─► handler of the server or the API
 *
 * A path that is in no row is looked up among the files of the web page. Every refusal is answered
 * with the envelope of the API and counted by its code (refused.h). */
#include "server/routes.h"

#include "api/fail.h"
#include "base/clock.h"
#include "base/log.h"
#include "net/http.h"
#include "server/auth.h"
#include "server/cors.h"
#include "server/hopin.h"
#include "server/limit.h"
#include "server/origin.h"
#include "server/pulls.h"
#include "server/server_impl.h"
#include "server/visit.h"
#include "server/web.h"
#include "server/work.h"

enum access { ANYONE, WITH_KEY, ADMIN };
enum {
    MAX_REFUSALS = 8, /* of large bodies of a tenant in a second that are answered at once */
    /* Bytes of a body on paths that compute nothing (cancel, load, show, batches). They are not limited
     * by rate, since whoever is at a limit may still cancel, and their bodies are parsed on the loop:
     * so those are small, and parsing one costs no more than reading its request. */
    MAX_SMALL_BODY = 16 << 10
};

struct route_row {
    enum http_method method;
    const char *path; /* a part in braces matches any text, slashes included */
    enum access access;
    bool lasts; /* keeps its connection until the client leaves: refused while the server drains */
    bool limited; /* computes: counts against rate, concurrency and bytes of its tenant */
    bool durable; /* "durable": true makes it a job */
    bool quiet;   /* polled by monitors: logged at level debug */
    bool vital;   /* says nothing but whether the server works: answered to everyone, always */
    /* The handler: of the server, or of the API. */
    void (*own)(struct visit *t);
    void (*api)(struct api *a, struct http_req *q, const struct api_who *who);
};

/* clang-format off */
static const struct route_row routes[] = {
    { HTTP_POST, "/v1/chat/completions", WITH_KEY, .limited = true, .durable = true, .api = api_chat },
    { HTTP_POST, "/v1/completions", WITH_KEY, .limited = true, .durable = true, .api = api_completions },
    { HTTP_POST, "/v1/responses", WITH_KEY, .limited = true, .api = api_responses },
    { HTTP_POST, "/v1/responses/{id}/cancel", WITH_KEY, .api = api_cancel_response },
    { HTTP_GET, "/v1/responses/{id}/input_items", WITH_KEY, .api = api_response_items },
    { HTTP_GET, "/v1/responses/{id}", WITH_KEY, .api = api_get_response },
    { HTTP_DELETE, "/v1/responses/{id}", WITH_KEY, .api = api_delete_response },
    { HTTP_POST, "/v1/messages", WITH_KEY, .limited = true, .api = api_messages },
    { HTTP_POST, "/v1/messages/count_tokens", WITH_KEY, .limited = true, .api = api_count_tokens },
    { HTTP_POST, "/v1/chat/completions/input_tokens", WITH_KEY, .limited = true, .api = api_count_chat },
    { HTTP_POST, "/api/chat", WITH_KEY, .limited = true, .api = api_ollama_chat },
    { HTTP_POST, "/api/generate", WITH_KEY, .limited = true, .api = api_ollama_generate },
    { HTTP_POST, "/api/embed", WITH_KEY, .limited = true, .api = api_ollama_embed },
    { HTTP_POST, "/api/embeddings", WITH_KEY, .limited = true, .api = api_ollama_embed },
    { HTTP_GET, "/api/tags", WITH_KEY, .api = api_ollama_tags },
    { HTTP_GET, "/api/ps", WITH_KEY, .quiet = true, .api = api_ollama_ps },
    { HTTP_POST, "/api/show", WITH_KEY, .api = api_ollama_show },
    { HTTP_GET, "/api/version", WITH_KEY, .quiet = true, .api = api_ollama_version },
    { HTTP_POST, "/api/copy", ADMIN, .api = api_ollama_copy },
    { HTTP_DELETE, "/api/delete", ADMIN, .api = api_ollama_delete },
    { HTTP_POST, "/api/pull", ADMIN, .lasts = true, .own = pulls_post },
    { HTTP_POST, "/completion", WITH_KEY, .limited = true, .api = api_native_completion },
    { HTTP_POST, "/infill", WITH_KEY, .limited = true, .api = api_infill },
    { HTTP_POST, "/apply-template", WITH_KEY, .limited = true, .api = api_apply_template },
    { HTTP_GET, "/props", WITH_KEY, .quiet = true, .api = api_props },
    { HTTP_GET, "/slots", WITH_KEY, .quiet = true, .api = api_slots },
    { HTTP_POST, "/v1/embeddings", WITH_KEY, .limited = true, .api = api_embeddings },
    { HTTP_POST, "/v1/classify", WITH_KEY, .limited = true, .api = api_classify },
    { HTTP_POST, "/classify", WITH_KEY, .limited = true, .api = api_classify },
    { HTTP_POST, "/v1/rerank", WITH_KEY, .limited = true, .api = api_rerank },
    { HTTP_POST, "/v1/reranking", WITH_KEY, .limited = true, .api = api_rerank },
    { HTTP_POST, "/v2/rerank", WITH_KEY, .limited = true, .api = api_rerank },
    { HTTP_POST, "/v2/execute", WITH_KEY, .limited = true, .api = api_execute },
    { HTTP_POST, "/execute", WITH_KEY, .limited = true, .api = api_execute },
    { HTTP_GET, "/v1/models", WITH_KEY, .api = api_models },
    { HTTP_GET, "/v1/models/{id}", WITH_KEY, .api = api_model },
    { HTTP_GET, "/models", WITH_KEY, .api = api_models },
    { HTTP_GET, "/models/sse", WITH_KEY, .lasts = true, .api = api_models_sse },
    { HTTP_POST, "/models/load", ADMIN, .api = api_load },
    { HTTP_POST, "/models/unload", ADMIN, .api = api_unload },
    { HTTP_POST, "/models/verify", ADMIN, .api = api_verify },
    { HTTP_GET, "/api/v1/models", WITH_KEY, .api = api_list_instances },
    { HTTP_POST, "/api/v1/models/load", ADMIN, .api = api_load_instance },
    { HTTP_POST, "/api/v1/models/unload", ADMIN, .api = api_unload_instance },
    { HTTP_POST, "/sleep", ADMIN, .api = api_sleep },
    { HTTP_POST, "/wake_up", ADMIN, .api = api_wake_up },
    { HTTP_GET, "/is_sleeping", WITH_KEY, .quiet = true, .api = api_is_sleeping },
    { HTTP_POST, "/tokenize", WITH_KEY, .limited = true, .api = api_tokenize },
    { HTTP_POST, "/detokenize", WITH_KEY, .limited = true, .api = api_detokenize },
    { HTTP_POST, "/v1/requests/{id}/cancel", WITH_KEY, .api = api_cancel },
    { HTTP_POST, "/cancel", WITH_KEY, .api = api_cancel },
    { HTTP_POST, "/v1/files", WITH_KEY, .own = files_post },
    { HTTP_GET, "/v1/files", WITH_KEY, .own = files_list },
    { HTTP_GET, "/v1/files/{id}/content", WITH_KEY, .own = files_content },
    { HTTP_GET, "/v1/files/{id}", WITH_KEY, .own = files_get },
    { HTTP_DELETE, "/v1/files/{id}", WITH_KEY, .own = files_delete },
    { HTTP_POST, "/v1/batches", WITH_KEY, .own = batches_post },
    { HTTP_GET, "/v1/batches", WITH_KEY, .own = batches_list },
    { HTTP_POST, "/v1/batches/{id}/cancel", WITH_KEY, .own = batches_cancel },
    { HTTP_GET, "/v1/batches/{id}", WITH_KEY, .own = batches_get },
    { HTTP_GET, "/v1/jobs", WITH_KEY, .own = durable_list },
    { HTTP_POST, "/v1/jobs/{id}/cancel", WITH_KEY, .own = durable_cancel },
    { HTTP_GET, "/v1/jobs/{id}", WITH_KEY, .own = durable_get },
    { HTTP_GET, "/health", ANYONE, .quiet = true, .vital = true, .own = health_get_live },
    { HTTP_GET, "/ready", ANYONE, .quiet = true, .vital = true, .own = health_get_ready },
    { HTTP_GET, "/cluster/state", WITH_KEY, .quiet = true, .own = clusterstate_get },
    { HTTP_GET, "/metrics", ADMIN, .quiet = true, .own = metrics_get },
    { HTTP_GET, "/status", ADMIN, .quiet = true, .own = status_get },
};
/* clang-format on */
enum { N_ROUTES = sizeof routes / sizeof *routes };
_Static_assert(N_ROUTES <= ROUTES_MAX, "server.replies has a row for each route");

const char *routes_name(int i) { return i < N_ROUTES ? routes[i].path : NULL; }

static const char *method_name(enum http_method m)
{
    return m == HTTP_GET ? "GET" : m == HTTP_DELETE ? "DELETE" : "POST";
}

const char *routes_method(int i)
{
    return i < 0 || i >= N_ROUTES ? "" : method_name(routes[i].method);
}

bool routes_is_limited(int i) { return i >= 0 && i < N_ROUTES && routes[i].limited; }

/* "/v1/models/{id}": the part in braces matches at least one character. */
static bool matches_path(const char *pattern, struct str path)
{
    struct str p = str_c(pattern), before, after;
    ptrdiff_t open = str_find(p, STR("{"));

    if (open < 0) return str_eq(p, path);
    before = str_take(p, (size_t)open);
    after = str_skip(p, (size_t)str_find(p, STR("}")) + 1);
    return path.n > before.n + after.n && str_starts(path, before) && str_ends(path, after);
}

/* A path of /v1 is also found without it: many clients are given the address of the server only. */
static bool matches_without_v1(const char *pattern, struct str path)
{
    return str_starts(str_c(pattern), STR("/v1/")) && matches_path(pattern + 3, path);
}

/* The route of path and method, -1: none; *allow collects the methods of the path. */
static int find_route(struct str path, enum http_method method, struct buf *allow)
{
    int found = -1;
    bool exact = false;

    if (method == HTTP_HEAD) method = HTTP_GET;
    for (int i = 0; i < N_ROUTES && !exact; i++) exact = matches_path(routes[i].path, path);
    for (int i = 0; i < N_ROUTES; i++) {
        if (exact ? !matches_path(routes[i].path, path) : !matches_without_v1(routes[i].path, path))
            continue;
        if (routes[i].method == method && found < 0) found = i;
        buf_printf(allow, "%s%s", allow->n ? ", " : "",
                   routes[i].method == HTTP_GET ? "GET, HEAD" : method_name(routes[i].method));
    }
    return found;
}

bool routes_is_vital(void *arg, const struct http_req *q)
{
    enum http_method m = http_method(q);

    (void)arg;
    for (int i = 0; i < N_ROUTES && (m == HTTP_GET || m == HTTP_HEAD); i++)
        if (routes[i].vital && str_is(http_path(q), routes[i].path)) return true;
    return false;
}

/* ---- paths that there are not ---- */

/* 404 with the path that was probably meant. */
static void refuse_path(struct visit *t, struct str path)
{
    char msg[300];
    const char *near = NULL;
    int least = 99;

    for (int i = 0; i < N_ROUTES; i++) {
        const char *p = routes[i].path;
        bool v1 = str_starts(str_c(p), STR("/v1/")) && !str_starts(path, STR("/v1"));
        int d = strchr(p, '{') ? 99 : str_distance(path, str_c(v1 ? p + 3 : p));
        if (d < least) least = d, near = p;
    }
    if (near && least <= (int)path.n / 3 + 1)
        snprintf(msg, sizeof msg, "route not found: '%.*s'; did you mean %s?",
                 STR_ARG(str_take(path, 100)), near);
    else snprintf(msg, sizeof msg, "route not found");
    visit_fail_status(t, 404, "not_found", msg);
}

/* ---- pages of other origins (CORS) ---- */

/* The browser asks before it sends a request of another origin. */
static void answer_preflight(struct visit *t, struct str methods)
{
    cors_set_preflight(t->q, methods);
    t->quiet = true;
    visit_reply(t, 204, "text/plain", STR(""));
}

/* The Host header is checked where no key protects the server, or where the operator lists hosts. A
 * request without one is of HTTP/1.0, and comes from no browser unless it says so; an empty one is
 * no host of this machine. */
static bool is_host_allowed(const struct visit *t, struct str host, bool from_page)
{
    const struct settings *s = t->v->s;

    if (!auth_is_open(t->v->auth) && !*s->allowed_hosts) return true;
    if (!host.p) return !from_page;
    return origin_host_allowed(host, s->host, s->allowed_hosts);
}

static void refuse_host(struct visit *t, struct str host)
{
    char msg[400];

    snprintf(msg, sizeof msg,
             "the host '%.*s' is not allowed: a server without API keys answers to localhost and "
             "loopback addresses only. Add the name to --allowed-hosts, or give --api-key-file",
             STR_ARG(str_take(host, 100)));
    visit_fail_status(t, 403, "host_not_allowed", msg);
}

/* Refuses what a page of a stranger may have sent; true: it did. Such a page may load the files of
 * our page, and ask whether the server lives, but not by a rebound name. Clients of the Unix socket
 * are no browsers. */
static bool refuse_foreign(struct visit *t, enum http_method m)
{
    struct str host = http_header(t->q, "Host"), origin = http_header(t->q, "Origin"),
               site = http_header(t->q, "Sec-Fetch-Site");
    bool reads = m == HTTP_GET || m == HTTP_HEAD;

    if (strcmp(t->peer, "unix") == 0) return false;
    if (!is_host_allowed(t, host, origin.p || site.p)) {
        refuse_host(t, host);
        return true;
    }
    if (cors_allows(t->v->s, t->q) || (reads && (t->route < 0 || routes[t->route].vital)))
        return false;
    if (!origin_is_foreign(host, origin, site)) return false;
    visit_fail_status(t, 403, "origin_not_allowed",
                      "requests from pages of another origin are not allowed; start the server "
                      "with --cors or --cors-origins to allow them");
    return true;
}

/* ---- the web page ---- */

/* The files are built into the program and carry an ETag, so a browser loads them once. The policy
 * forbids inline code and anything from other hosts. false: no file has this path. */
static bool send_web_file(struct visit *t)
{
    const struct web_file *f = web_find(http_path(t->q));
    struct str known = http_header(t->q, "If-None-Match");
    enum http_method m = http_method(t->q);

    if (!f) return false;
    if (str_is(http_path(t->q), "/")) http_set_header(t->q, "Vary", "Accept");
    if (m != HTTP_GET && m != HTTP_HEAD) {
        http_set_header(t->q, "Allow", "GET, HEAD");
        visit_fail_status(t, 405, "method_not_allowed",
                          "method not allowed: this path supports GET and HEAD");
        return true;
    }
    t->quiet = true;
    if (web_is_greeting(http_path(t->q), http_header(t->q, "Accept"))) {
        visit_reply(t, 200, "text/plain; charset=utf-8", STR(WEB_GREETING));
        return true;
    }
    http_set_header(t->q, "ETag", f->etag);
    http_set_header(t->q, "Cache-Control", "no-cache");
    http_set_header(t->q, "X-Content-Type-Options", "nosniff");
    http_set_header(t->q, "Referrer-Policy", "no-referrer");
    http_set_header(t->q, "Cross-Origin-Resource-Policy", "same-origin");
    http_set_header(t->q, "Content-Security-Policy", WEB_POLICY);
    if (known.n && str_find(known, str_c(f->etag)) >= 0) visit_reply(t, 304, f->type, STR(""));
    else visit_reply(t, 200, f->type, str_of((const char *)f->data, f->n));
    return true;
}

/* ---- keys and limits ---- */

/* Finds the tenant of the request's key and fills t->who. */
static int find_tenant(struct visit *t, enum access access, const struct tenant **out,
                       struct err *e)
{
    struct server *v = t->v;
    int rc;

    if (hopin_is_hop(t)) {
        if ((rc = hopin_read(t, out, e)) != E_DENIED || *v->s->cluster_key) return rc;
        t->who.hop = (struct api_hop){ 0 }; /* its API key decides, as of any other client */
    }
    rc = auth_check(v->auth, http_header(t->q, "Authorization"), http_header(t->q, "x-api-key"),
                    out, e);

    if (rc == OK) {
        t->who.name = auth_name(v->auth, (*out)->index);
        t->who.tenant = (*out)->index;
        t->who.keyed = !auth_is_open(v->auth);
        t->who.admin = (*out)->admin;
        t->who.priority_max = (*out)->priority_max;
    }
    if (rc == OK && access == ADMIN && auth_has_admin(v->auth) && !(*out)->admin)
        rc = err_set(e, E_DENIED, "this path needs the key of an admin");
    return rc;
}

/* Bytes of bodies that a tenant may have at a time; 0: no limit. Without keys all clients are one
 * tenant, which the limit of the server is for. */
static size_t max_bytes(const struct server *v)
{
    if (v->s->max_tenant_bodies) return (size_t)v->s->max_tenant_bodies;
    return auth_is_open(v->auth) ? 0 : (size_t)v->s->max_bodies / 2;
}

/* Counts the bytes of the body, as far as they are known. */
static int count_bytes(struct visit *t, const struct tenant *who, struct err *e)
{
    int rc = http_count_body(t->q, who->index, max_bytes(t->v), e);

    if (rc != E_BYTES) return rc;
    err_wrap(e, "the requests of this key in flight have too large bodies");
    e->retry_ms = 1000;
    return rc;
}

/* Limits of the key override those of the server. take: the request is counted. */
static int check_limits(struct visit *t, const struct tenant *who, bool take, struct err *e)
{
    struct server *v = t->v;
    int rate = who->rate_per_min < 0 ? (int)v->s->rate_per_min : who->rate_per_min;
    int at_once = who->concurrency < 0 ? (int)v->s->concurrency : who->concurrency;
    int rc = count_bytes(t, who, e);

    if (rc != OK) return rc;
    if (take) return limit_take(v->limit, who->index, rate, at_once, clock_ns(), e);
    return limit_check(v->limit, who->index, rate, at_once, clock_ns(), e);
}

/* While the server drains, only what computes is refused: its state can be asked for, and requests can
 * be cancelled. */
static int check_life(const struct server *v, const struct route_row *r, struct err *e)
{
    if (v->life == LIFE_RUN || !(r->limited || r->lasts)) return OK;
    return err_set(e, E_SHUTDOWN, "the server is shutting down and takes no more requests");
}

/* The key and the limits of a route, then its handler. */
static void follow_route(struct visit *t, const struct route_row *r)
{
    const struct tenant *who = NULL;
    struct err e = { 0 };

    t->quiet = r->quiet;
    if (!r->limited && http_body(t->q).n > MAX_SMALL_BODY) {
        visit_fail_status(t, 413, "request_too_large", "this path takes no large body");
        return;
    }
    if ((r->access != ANYONE && find_tenant(t, r->access, &who, &e) != OK) ||
        check_life(t->v, r, &e) != OK || (r->limited && check_limits(t, who, true, &e) != OK)) {
        visit_fail(t, &e);
    } else if (r->own) {
        r->own(t);
    } else {
        t->who.may_keep = r->durable;
        visit_hand_over(t);
        r->api(t->v->api, t->q, &t->who);
    }
}

/* A tenant that sends one large body after the other beyond its limits would cost the server a
 * connection, a reply and the discarding of the body each time. After some in a second the next ones
 * are held before they are answered. They may be within the limits by then. */
static bool must_hold(struct visit *t, const struct tenant *who, int code)
{
    if (code != E_RATE && code != E_CONCURRENCY && code != E_BYTES) return false;
    if (http_was_held(t->q)) return false;
    return limit_count_refusal(t->v->limit, who->index, clock_ns()) > MAX_REFUSALS;
}

/* An upload is admitted before any of its bytes are read, also a small one. */
static enum http_admission admit_upload(struct visit *t, const struct route_row *r)
{
    const struct tenant *who = NULL;
    struct err e = { 0 };

    if (refuse_foreign(t, HTTP_POST)) return HTTP_ANSWERED;
    if (find_tenant(t, r->access, &who, &e) == OK && t->v->life != LIFE_RUN)
        err_set(&e, E_SHUTDOWN, "the server is shutting down and takes no more requests");
    if (e.code == OK) return files_admit(t) ? HTTP_ADMIT : HTTP_ANSWERED;
    visit_fail(t, &e);
    return HTTP_ANSWERED;
}

bool routes_submit(struct server *v, const char *path, struct http_req *q,
                   const struct api_who *who)
{
    for (int i = 0; i < N_ROUTES; i++)
        if (routes[i].api && routes[i].limited && strcmp(routes[i].path, path) == 0) {
            routes[i].api(v->api, q, who);
            return true;
        }
    fail_send_status(q, 404, "not_found", "route not found", who->correlation);
    return false;
}

/* http_admit_fn, before a large body is read. A request that its key or its limits refuse is
 * answered now, or held; one that needs no body is handled now. */
enum http_admission routes_admit(void *arg, struct http_req *q)
{
    struct buf allow = { 0 };
    const struct tenant *who = NULL;
    struct err e = { 0 };
    const struct route_row *r;
    struct visit t;

    visit_begin(&t, arg, q);
    t.route = t.who.route = find_route(http_path(q), http_method(q), &allow);
    buf_release(&allow);
    r = t.route >= 0 ? &routes[t.route] : NULL;
    if (files_streams(NULL, q)) return admit_upload(&t, r);
    if (!r || r->own) {
        routes_handle(arg, q);
        return HTTP_ANSWERED;
    }
    if (refuse_foreign(&t, http_method(q))) return HTTP_ANSWERED;
    if (!r->limited) {
        visit_fail_status(&t, 413, "request_too_large", "this path takes no large body");
        return HTTP_ANSWERED;
    }
    if (find_tenant(&t, r->access, &who, &e) == OK && check_life(t.v, r, &e) == OK &&
        check_limits(&t, who, false, &e) == OK)
        return HTTP_ADMIT;
    if (who && must_hold(&t, who, e.code)) return HTTP_HOLD;
    visit_fail(&t, &e);
    return HTTP_ANSWERED;
}

/* http_fn: every complete request comes here. */
void routes_handle(void *arg, struct http_req *q)
{
    struct server *v = arg;
    struct visit t;
    struct buf allow = { 0 };
    struct err e = { 0 };
    struct str path = http_path(q);
    enum http_method m = http_method(q);

    visit_begin(&t, v, q);
    t.route = t.who.route = find_route(path, m, &allow);
    if (buf_check(&allow, &e) != OK) {
        visit_fail(&t, &e);
    } else if (refuse_foreign(&t, m)) {
        goto out;
    } else if (m == HTTP_OPTIONS && cors_allows(v->s, q) && (allow.n || web_find(path))) {
        answer_preflight(&t, allow.n ? buf_str(&allow) : STR("GET, HEAD"));
    } else if (t.route >= 0) {
        follow_route(&t, &routes[t.route]);
    } else if (allow.n) {
        http_set_header(q, "Allow", buf_cstr(&allow));
        visit_fail_status(&t, 405, "method_not_allowed",
                          "method not allowed; the Allow header lists the methods of this path");
    } else if (!send_web_file(&t)) {
        refuse_path(&t, path);
    }
out:
    buf_release(&allow);
}

/* http_fail_fn: malformed, too large, too slow, too many. The route is that of the path, as far as it
 * was read. */
void routes_fail(void *arg, struct http_req *q, int status, const char *code, const char *msg,
                 struct buf *out)
{
    struct buf allow = { 0 };
    struct visit t;

    visit_begin(&t, arg, q);
    t.route = find_route(http_path(q), http_method(q), &allow);
    visit_refuse(&t, status, code, msg, out);
    buf_release(&allow);
}
