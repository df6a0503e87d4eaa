/* api_world.h - a server in this process and a client that sends raw HTTP, for tests of the API.
 *
 * The server has the model that ships with tern and listens on a Unix socket. Its event loop
 * runs in a thread of its own; the test is the client. `w` is the server of the running test. */
#ifndef TERN_TESTS_API_WORLD_H
#define TERN_TESTS_API_WORLD_H

#include "support.h"

#include "api/api.h"
#include "api/fail.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "engine/stats.h"
#include "net/http.h"
#include "net/loop.h"
#include "pool/pool.h"
#include "worker/supervisor.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* ---- the server ---- */

struct ended {
    char route[64], code[32], finish[16], gone[24], correlation[72];
    int status, n_choices, prompt_tokens, output_tokens;
    bool stream;
};

struct world {
    struct loop *loop;
    struct http *http;
    struct pool *pool;
    struct api *api;
    struct supervisor *workers; /* NULL: the model runs in this process */
    bool (*more)(struct world *me, struct http_req *q);
    pthread_t thread;
    pthread_mutex_t lock;
    struct ended ended[256];
    int n_ended;
    char path[108];
};

static struct world *w; /* server of the running test */

static void on_ended(void *arg, const struct api_end *end)
{
    struct world *me = arg;
    struct ended *x;

    pthread_mutex_lock(&me->lock);
    x = &me->ended[me->n_ended++ % 256];
    *x = (struct ended){ .status = end->status,
                         .n_choices = end->n_choices,
                         .prompt_tokens = end->prompt_tokens,
                         .output_tokens = end->output_tokens,
                         .stream = end->stream };
    snprintf(x->route, sizeof x->route, "%s", end->route);
    snprintf(x->code, sizeof x->code, "%s", end->code);
    snprintf(x->finish, sizeof x->finish, "%s", end->finish);
    snprintf(x->gone, sizeof x->gone, "%s", end->gone);
    snprintf(x->correlation, sizeof x->correlation, "%s", end->who->correlation);
    pthread_mutex_unlock(&me->lock);
}

static void handle_request(void *arg, struct http_req *q)
{
    struct world *me = arg;
    struct str path = http_path(q), tenant = http_header(q, "x-tenant");
    struct api_who who = { .name = "default", .priority_max = 100 };
    int64_t n;

    snprintf(who.correlation, sizeof who.correlation, "%s", http_id(q));
    if (tenant.p && str_to_i64(tenant, &n)) who.tenant = (uint32_t)n, who.keyed = true;
    if (str_is(path, "/v1/chat/completions")) api_chat(me->api, q, &who);
    else if (str_is(path, "/v1/completions")) api_completions(me->api, q, &who);
    else if (str_is(path, "/v1/embeddings")) api_embeddings(me->api, q, &who);
    else if (str_is(path, "/v1/models") || str_is(path, "/models")) api_models(me->api, q, &who);
    else if (str_is(path, "/models/load")) api_load(me->api, q, &who);
    else if (str_is(path, "/models/unload")) api_unload(me->api, q, &who);
    else if (str_is(path, "/models/verify")) api_verify(me->api, q, &who);
    else if (str_is(path, "/models/sse")) api_models_sse(me->api, q, &who);
    else if (str_is(path, "/api/v1/models")) api_list_instances(me->api, q, &who);
    else if (str_is(path, "/api/v1/models/load")) api_load_instance(me->api, q, &who);
    else if (str_is(path, "/api/v1/models/unload")) api_unload_instance(me->api, q, &who);
    else if (str_is(path, "/sleep")) api_sleep(me->api, q, &who);
    else if (str_is(path, "/wake_up")) api_wake_up(me->api, q, &who);
    else if (str_is(path, "/is_sleeping")) api_is_sleeping(me->api, q, &who);
    else if (str_starts(path, STR("/v1/models/"))) api_model(me->api, q, &who);
    else if (str_is(path, "/tokenize")) api_tokenize(me->api, q, &who);
    else if (str_is(path, "/detokenize")) api_detokenize(me->api, q, &who);
    else if (str_starts(path, STR("/v1/requests/")) || str_is(path, "/cancel"))
        api_cancel(me->api, q, &who);
    else if (str_is(path, "/calls")) {
        struct buf b = { 0 };
        api_status(me->api, &b);
        http_reply(q, 200, "application/json", b.p, b.n);
        buf_release(&b);
    } else if (!me->more || !me->more(me, q))
        fail_send_status(q, 404, "not_found", "no such path", who.correlation);
}

static void on_wake(void *arg)
{
    struct world *me = arg;
    const char *violated = http_check(me->http);

    if (violated) fprintf(stderr, "connections: %s\n", violated);
    assert(!violated);
    api_process_events(me->api);
    supervisor_process(me->workers);
    api_models_changed(me->api);
}

static void on_pool_change(void *arg) { loop_wake(((struct world *)arg)->loop); }

static void *run_loop(void *arg)
{
    loop_run(((struct world *)arg)->loop);
    return NULL;
}

struct setup {
    struct engine_opt engine;
    struct api_opt api;
    size_t max_unread;
    const struct pool_host *host;
    const struct supervisor_opt *workers; /* models run in processes */
    int retry_ms;                         /* of the pool, as is the next */
    uint64_t memory_limit;
    bool (*more)(struct world *me, struct http_req *q); /* further routes, on the loop */
};

static void open_workers(struct world *me, const struct setup *s, struct pool_opt *po)
{
    struct supervisor_opt o = *s->workers;
    struct err e;

    o.loop = me->loop;
    if (supervisor_open(&me->workers, &o, &e) != OK) fail_msg("%s", e.msg);
    po->host = supervisor_host(me->workers);
}

static struct world *world_open(struct setup s)
{
    static int n;
    struct world *me = mem_new(struct world);
    const char *path = repo("models/tern-tales.gguf");
    struct http_opt ho = { .socket_path = me->path,
                           .handler = handle_request,
                           .arg = me,
                           .max_unread_bytes = s.max_unread,
                           .nomem_body = FAIL_NOMEM_BODY };
    struct pool_opt po = { .paths = &path,
                           .n = 1,
                           .engine = s.engine,
                           .host = s.host,
                           .retry_ms = s.retry_ms,
                           .memory_limit = s.memory_limit,
                           .changed = on_pool_change,
                           .arg = me };
    struct err e;

    pthread_mutex_init(&me->lock, NULL);
    snprintf(me->path, sizeof me->path, "%s/api-%d", temp_dir(), n++);
    po.engine.n_threads = 1;
    if (loop_open(&me->loop, &e) != OK) fail_msg("%s", e.msg);
    if (s.workers) open_workers(me, &s, &po);
    if (pool_open(&me->pool, &po, &e) != OK) fail_msg("%s", e.msg);
    me->more = s.more;
    if (s.workers) s.api.forward = &supervisor_forward;
    s.api.loop = me->loop;
    s.api.pool = me->pool;
    s.api.ended = on_ended;
    s.api.arg = me;
    if (api_open(&me->api, &s.api, &e) != OK || http_open(&me->http, me->loop, &ho, &e) != OK)
        fail_msg("%s", e.msg);
    loop_on_wake(me->loop, on_wake, me);
    pthread_create(&me->thread, NULL, run_loop, me);
    while (!pool_is_ready(me->pool)) {
        if (pool_state(me->pool, 0, &e) == POOL_FAILED) fail_msg("%s", e.msg);
        usleep(2000);
    }
    return me;
}

static void world_close(struct world *me)
{
    loop_stop(me->loop);
    pthread_join(me->thread, NULL);
    supervisor_stop(me->workers);
    pool_stop(me->pool);
    api_close(me->api);
    pool_close(me->pool);
    supervisor_close(me->workers);
    http_close(me->http);
    loop_close(me->loop);
    pthread_mutex_destroy(&me->lock);
    mem_free(me);
}

/* ---- the client ---- */

struct answer {
    int status;
    struct buf head, body; /* body: chunks joined */
    json_t *json;          /* NULL: the body is not JSON */
};

static void answer_release(struct answer *a)
{
    buf_release(&a->head);
    buf_release(&a->body);
    json_decref(a->json);
    *a = (struct answer){ 0 };
}

static int connect_to(struct world *me)
{
    struct sockaddr_un json_at = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval limit = { .tv_sec = 300 }; /* sanitizers are slow */

    memcpy(json_at.sun_path, me->path, sizeof me->path);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (connect(fd, (struct sockaddr *)&json_at, sizeof json_at) != 0)
        fail_msg("cannot connect to %s", me->path);
    return fd;
}

static void send_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k <= 0) fail_msg("cannot send");
        p += k;
        n -= (size_t)k;
    }
}

/* Sends a request (POST with a body, GET if body is NULL) and returns the connection. headers:
 * "" or lines, each with its CRLF. */
static int send_request(struct world *me, const char *path, const char *headers, const char *body)
{
    struct buf b = { 0 };
    int fd = connect_to(me);

    buf_printf(&b, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s", body ? "POST" : "GET",
               path, headers);
    if (body)
        buf_printf(&b, "Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(body));
    buf_puts(&b, "\r\n");
    if (body) buf_puts(&b, body);
    send_all(fd, b.p, b.n);
    buf_release(&b);
    return fd;
}

static bool read_more(int fd, struct buf *b)
{
    char part[8192];
    ssize_t n;

    do n = recv(fd, part, sizeof part, 0);
    while (n < 0 && errno == EINTR);
    if (n > 0) buf_add(b, part, (size_t)n);
    return n > 0;
}

/* Reads until the text `what` was received. */
__attribute__((unused)) static void read_until(int fd, struct buf *b, const char *what)
{
    while (b->n == 0 || str_find(buf_str(b), str_c(what)) < 0)
        if (!read_more(fd, b)) fail_msg("'%s' was not received, but: %s", what, buf_cstr(b));
}

static void unchunk(struct str in, struct buf *out)
{
    while (in.n) {
        char *end;
        unsigned long n = strtoul(in.p, &end, 16);
        size_t skip = (size_t)(end - in.p) + 2;
        if (skip + n + 2 > in.n) fail_msg("the body ends inside a chunk");
        buf_add(out, in.p + skip, n);
        in = str_skip(in, skip + n + 2);
        if (n == 0) break;
    }
}

static struct answer read_answer(int fd)
{
    struct answer a = { 0 };
    struct buf all = { 0 };
    ptrdiff_t json_at;

    while (read_more(fd, &all)) {}
    close(fd);
    json_at = str_find(buf_str(&all), STR("\r\n\r\n"));
    if (json_at < 0 || sscanf(buf_cstr(&all), "HTTP/1.1 %d", &a.status) != 1)
        fail_msg("the reply is incomplete: %s", buf_cstr(&all));
    buf_add(&a.head, all.p, (size_t)json_at + 2);
    buf_cstr(&a.head);
    buf_cstr(&all);
    if (strcasestr(a.head.p, "transfer-encoding: chunked"))
        unchunk(str_skip(buf_str(&all), (size_t)json_at + 4), &a.body);
    else buf_put_str(&a.body, str_skip(buf_str(&all), (size_t)json_at + 4));
    buf_cstr(&a.body);
    a.json = json_loadb(a.body.p, a.body.n, 0, NULL);
    buf_release(&all);
    return a;
}

static struct answer send_and_read(const char *path, const char *headers, const char *body)
{
    return read_answer(send_request(w, path, headers, body));
}

/* The value at a path such as "choices.0.message.content"; NULL: absent. */
static json_t *json_at(json_t *j, const char *path)
{
    char part[64];

    while (j && *path) {
        size_t n = strcspn(path, ".");
        snprintf(part, sizeof part, "%.*s", (int)n, path);
        j = json_is_array(j) ? json_array_get(j, strtoul(part, NULL, 10))
                             : json_object_get(j, part);
        path += n + (path[n] == '.');
    }
    return j;
}

static const char *text_at(json_t *j, const char *path)
{
    json_t *v = json_at(j, path);
    if (!json_is_string(v)) fail_msg("%s is not a string", path);
    return json_string_value(v);
}

static int int_at(json_t *j, const char *path)
{
    json_t *v = json_at(j, path);
    if (!json_is_integer(v)) fail_msg("%s is not an integer", path);
    return (int)json_integer_value(v);
}

/* The events of a stream as a JSON array; *done: [DONE] was the last event. */
__attribute__((unused)) static json_t *events_of(const struct answer *a, bool *done)
{
    json_t *all = json_array();
    struct str rest = buf_str(&a->body);
    ptrdiff_t end;

    *done = false;
    while ((end = str_find(rest, STR("\n\n"))) >= 0) {
        struct str line = str_take(rest, (size_t)end);
        rest = str_skip(rest, (size_t)end + 2);
        if (line.n && line.p[0] == ':') continue;
        assert_true(str_starts(line, STR("data: ")));
        assert_false(*done);
        line = str_skip(line, 6);
        if (str_is(line, "[DONE]")) {
            *done = true;
            continue;
        }
        json_t *j = json_loadb(line.p, line.n, 0, NULL);
        if (!j) fail_msg("not JSON: %.*s", STR_ARG(line));
        json_array_append_new(all, j);
    }
    assert_int_equal(rest.n, 0);
    return all;
}

/* The text of choice `index`, joined from all chunks. */
__attribute__((unused)) static void stream_text(json_t *events, int index, struct buf *out,
                                                char *finish)
{
    size_t i;
    json_t *ev;

    json_array_foreach (events, i, ev) {
        json_t *c = json_at(ev, "choices.0"), *t = json_at(c, "delta.content");
        if (!c || int_at(c, "index") != index) continue;
        if (!t) t = json_at(c, "text");
        if (t) buf_puts(out, json_string_value(t));
        if (json_is_string(json_at(c, "finish_reason")))
            snprintf(finish, 16, "%s", text_at(c, "finish_reason"));
    }
    buf_cstr(out);
}

/* ---- waiting for the end of a request ---- */

static bool find_ended(struct world *me, const char *correlation, struct ended *out)
{
    bool found = false;

    pthread_mutex_lock(&me->lock);
    for (int i = 0; i < me->n_ended && i < 256; i++)
        if (!strcmp(me->ended[i].correlation, correlation)) *out = me->ended[i], found = true;
    pthread_mutex_unlock(&me->lock);
    return found;
}

__attribute__((unused)) static struct ended wait_ended(struct world *me, const char *correlation)
{
    struct ended x = { 0 };

    for (int i = 0; i < 60000; i++) {
        if (find_ended(me, correlation, &x)) return x;
        usleep(1000);
    }
    fail_msg("request %s did not end", correlation);
    return x;
}

/* Waits until the API call with this id is in this state; NULL: any, once its body was read. */
__attribute__((unused)) static void wait_state(const char *id, const char *state)
{
    char last[1024] = "";

    for (int i = 0; i < 5000; i++) {
        struct answer a = send_and_read("/calls", "", NULL);
        bool there = false;
        size_t k;
        json_t *c;
        json_array_foreach (a.json, k, c)
            there |= !strcmp(text_at(c, "correlation_id"), id) &&
                     !strcmp(text_at(c, "state"), "preparing") ==
                         (state && !strcmp(state, "preparing")) &&
                     (!state || !strcmp(text_at(c, "state"), state));
        snprintf(last, sizeof last, "%s", a.body.p);
        answer_release(&a);
        if (there) return;
        usleep(1000);
    }
    fail_msg("request %s did not reach the state %s: %s", id, state ? state : "(any)", last);
}
#endif
