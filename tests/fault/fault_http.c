/* The server without memory: requests from HTTP bytes to their end.
 *
 * Server, engine and client share this thread: the test turns the event loop and steps the engine
 * (engine_opt.manual), so the n-th allocation is the same one in every run. libevent allocates
 * through the wrapped malloc too. The server stays open over all runs of a scenario, as it does in
 * production: a request that fails must leave nothing behind, and the next one must work.
 *
 * Every fault ends in a complete answer, a 503, or a closed connection. Any other status would be a
 * failed allocation that was taken for something else. */
#include "fault.h"

#include "api/api.h"
#include "api/fail.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "net/http.h"
#include "net/loop.h"
#include "pool/pool.h"
#include "server/auth.h"
#include "server/limit.h"
#include "server/routes.h"
#include "server/server_impl.h"
#include "server/visit.h"

#include <errno.h>
#include <event2/event.h>
#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { ANSWER_MAX = 1 << 20, TURNS_MAX = 200000 };

static struct world {
    struct settings s;
    struct server v;
    char path[108];
    char answer[ANSWER_MAX + 1]; /* what the client has read */
    size_t n;
} w;

/* ---- the server ---- */

static void on_wake(void *arg)
{
    (void)arg;
    api_process_events(w.v.api);
}

static const char template[] =
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}<|assistant|>\n";

static void open_pool(void)
{
    const char *path = repo("models/tern-tales.gguf");
    struct pool_opt o = { .paths = &path,
                          .n = 1,
                          .chat_template = temp_file("chat.jinja", template, sizeof template - 1) };
    struct err e = { 0 };

    o.engine.n_ctx = 512;
    o.engine.max_seqs = 2;
    o.engine.manual = true;
    o.engine.n_threads = 1;
    if (pool_open(&w.v.pool, &o, &e) != OK) fail_msg("%s", e.msg);
    while (pool_n_loaded(w.v.pool) < 1) usleep(1000);
    if (pool_state(w.v.pool, 0, &e) != POOL_READY) fail_msg("%s", e.msg);
}

static void open_world(void)
{
    char *argv[] = { "serve" };
    struct err e = { 0 };
    bool helped;
    struct api_opt ao = { .failed = access_failed, .ended = access_ended, .arg = &w.v };
    struct http_opt ho = { .socket_path = w.path,
                           .nomem_body = FAIL_NOMEM_BODY,
                           .handler = routes_handle,
                           .fail = routes_fail,
                           .arg = &w.v };

    memset(&w, 0, sizeof w);
    snprintf(w.path, sizeof w.path, "%s/server", temp_dir());
    w.v.s = &w.s;
    w.v.start_ns = clock_ns();
    if (settings_load(&w.s, 1, argv, &helped, &e) != OK || loop_open(&w.v.loop, &e) != OK ||
        auth_open(&w.v.auth, NULL, NULL, &e) != OK || limit_open(&w.v.limit, &e) != OK)
        fail_msg("%s", e.msg);
    open_pool();
    ao.loop = w.v.loop;
    ao.pool = w.v.pool;
    if (api_open(&w.v.api, &ao, &e) != OK || http_open(&w.v.http, w.v.loop, &ho, &e) != OK)
        fail_msg("%s", e.msg);
    loop_on_wake(w.v.loop, on_wake, NULL);
    health_tick(&w.v);
}

static void close_world(void)
{
    pool_stop(w.v.pool);
    api_close(w.v.api);
    pool_close(w.v.pool);
    http_close(w.v.http);
    loop_close(w.v.loop);
    limit_close(w.v.limit);
    auth_close(w.v.auth);
    access_release(&w.v);
    buf_release(&w.v.health.body);
    mem_free(w.v.notes);
    settings_release(&w.s);
}

static bool is_idle(void)
{
    struct http_stats h;

    http_stats(w.v.http, &h);
    return h.conns == 0 && api_n_calls(w.v.api) == 0 && pool_is_idle(w.v.pool);
}

/* One turn of everything. */
static void turn(void)
{
    struct pool_instance *m = pool_acquire(w.v.pool, 0);
    const char *violated;

    event_base_loop(loop_base(w.v.loop), EVLOOP_NONBLOCK);
    engine_step(m->engine);
    pool_release(m);
    if ((violated = http_check(w.v.http))) fail_msg("connections: %s", violated);
}

/* ---- the client ---- */

struct ask {
    const char *name, *path, *body; /* body NULL: GET */
    const char *want;               /* part of a complete answer */
    int status;                     /* 0: 200 */
    const char *raw;                /* sent in place of a request with path and body */
    uint64_t hash;                  /* of the generated parts of the first complete answer */
};

static int send_request(const struct ask *a)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    static char text[8192];
    int fd = socket(AF_UNIX, SOCK_STREAM, 0), n;

    memcpy(at.sun_path, w.path, sizeof w.path);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    n = a->raw
            ? snprintf(text, sizeof text, "%s", a->raw)
            : snprintf(
                  text, sizeof text,
                  "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %zu\r\n"
                  "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\r\n%s",
                  a->body ? "POST" : "GET", a->path, a->body ? strlen(a->body) : 0,
                  a->body ? a->body : "");
    assert_true(n < (int)sizeof text);
    assert_int_equal(send(fd, text, (size_t)n, MSG_NOSIGNAL), n);
    return fd;
}

/* true: the server has closed. */
static bool read_some(int fd)
{
    ssize_t k = recv(fd, w.answer + w.n, ANSWER_MAX - w.n, MSG_DONTWAIT);

    if (k > 0) w.n += (size_t)k;
    w.answer[w.n] = 0;
    return k == 0 || (k < 0 && errno != EAGAIN);
}

/* The generated parts of an answer: texts, arguments, tokens, vectors. Times and ids are left out. */
static uint64_t hash_generated(void)
{
    static const char *const keys[] = { "\"content\":\"", "\"text\":\"",    "\"arguments\":\"",
                                        "\"token\":\"",   "\"embedding\":", "\"finish_reason\":\"",
                                        "\"piece\":\"",   "\"count\":" };
    uint64_t h = 0xcbf29ce484222325u;

    for (const char *p = w.answer; *p; p++)
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            if (strncmp(p, keys[k], strlen(keys[k])) != 0) continue;
            for (p += strlen(keys[k]); *p && *p != '"' && *p != ']' && *p != '}'; p++)
                h = (h ^ (unsigned char)*p) * 0x100000001b3u;
        }
    return h;
}

/* What the client has got: OK for a complete answer, else a typed error. A complete answer is the
 * same in every run. */
static int judge(struct ask *a, struct err *e)
{
    int status = 0;

    if (w.n == 0) return err_set(e, E_IO, "the connection was closed");
    if (sscanf(w.answer, "HTTP/1.1 %d", &status) != 1) fail_msg("not HTTP: %s", w.answer);
    if (status == 503) {
        assert_non_null(strstr(w.answer, "\r\nRetry-After: 1\r\n"));
        assert_non_null(strstr(w.answer, "\"code\":\"memory_admission\""));
        return err_set(e, E_NOMEM, "503");
    }
    if (status != (a->status ? a->status : 200))
        fail_msg("%s: status %d: %s", a->name, status, w.answer);
    if (strstr(w.answer, a->want)) {
        if (!a->hash) a->hash = hash_generated();
        if (a->hash != hash_generated()) fail_msg("%s: another answer: %s", a->name, w.answer);
        return OK;
    }
    if (strstr(w.answer, "data: {\"error\":")) return err_set(e, E_NOMEM, "an error event");
    return err_set(e, E_IO, "the connection was closed within the answer");
}

static int run_request(void *arg, struct err *e)
{
    struct ask *a = arg;
    bool closed = false;
    int fd, rc;

    fault_pause();
    w.n = 0;
    fd = send_request(a);
    fault_resume();
    for (int i = 0; !closed; i++) {
        turn();
        closed = read_some(fd);
        if (i > 1000) usleep(100); /* a grammar is being compiled by its thread */
        if (i > TURNS_MAX) fail_msg("%s: no end; so far: %s", a->name, w.answer);
    }
    close(fd);
    for (int i = 0; !is_idle(); i++) {
        turn();
        if (i > 1000) usleep(100);
        if (i > TURNS_MAX) fail_msg("%s: the server is not idle", a->name);
    }
    fault_pause();
    rc = judge(a, e);
    fault_resume();
    return rc;
}

/* ---- scenarios ---- */

#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"Tell me a story.\"}]"
#define SHORT "\"max_tokens\":4,\"ignore_eos\":true,\"seed\":1"
#define TOOLS                                                                         \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"w\",\"parameters\":{" \
    "\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[1]}}}"                      \
    "}}],\"tool_choice\":\"required\""

#define ASK(n, p, b, w, ...)                                    \
    {                                                           \
        .name = n, .path = p, .body = b, .want = w, __VA_ARGS__ \
    }

/* Requests that run the model. */
static struct ask model_asks[] = {
    ASK("chat, streamed", "/v1/chat/completions",
        "{" MESSAGES ",\"stream\":true,\"stream_options\":{\"include_usage\":true}," SHORT "}",
        "data: [DONE]"),
    ASK("chat with a tool call", "/v1/chat/completions",
        "{" MESSAGES "," TOOLS ",\"max_tokens\":60,\"seed\":1}",
        "\"finish_reason\":\"tool_calls\""),
    ASK("chat with a tool call, streamed", "/v1/chat/completions",
        "{" MESSAGES "," TOOLS ",\"max_tokens\":60,\"seed\":1,\"stream\":true}", "data: [DONE]"),
    ASK("chat with a JSON schema", "/v1/chat/completions",
        "{" MESSAGES ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":"
        "{\"enum\":[1,2]}}},\"seed\":1}",
        "\"usage\":"),
    ASK("chat with logprobs, n and stop", "/v1/chat/completions",
        "{" MESSAGES ",\"n\":2,\"logprobs\":true,\"top_logprobs\":2,\"stop\":[\"zzz\"],"
        "\"logit_bias\":{\"5\":1},\"unknown\":1," SHORT "}",
        "\"usage\":"),
    ASK("completions, streamed with logprobs", "/v1/completions",
        "{\"prompt\":\"Once\",\"stream\":true,\"logprobs\":2," SHORT "}", "data: [DONE]"),
    ASK("completions of a list", "/v1/completions",
        "{\"prompt\":[\"Once\",\"Then\"],\"echo\":true," SHORT "}", "\"usage\":"),
    ASK("execute", "/v2/execute", "{" MESSAGES "," SHORT "}", "\"usage\":"),
    ASK("embeddings", "/v1/embeddings", "{\"input\":[\"one\",\"two\"]}", "\"usage\":"),
    ASK("embeddings as base64", "/v1/embeddings",
        "{\"input\":\"one\",\"encoding_format\":\"base64\",\"dimensions\":8}", "\"usage\":"),
    ASK("a completion in llama-server's form", "/completion",
        "{\"prompt\":\"Once\",\"temperature\":0,\"n_predict\":3,\"n_probs\":1,\"return_tokens\":"
        "true,\"stop\":[\"|\"],\"response_fields\":[\"content\",\"timings/predicted_n\"]}",
        "\"predicted_n\":3"),
    ASK("a response after a call of a tool", "/v1/responses",
        "{\"max_output_tokens\":2,\"temperature\":0,\"input\":[{\"type\":\"custom_tool_call\","
        "\"call_id\":\"1\",\"name\":\"f\",\"input\":\"x\"},{\"type\":\"custom_tool_call_output\","
        "\"call_id\":\"1\",\"output\":"
        "\"y\"},{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
        "\"b\"}]}",
        "\"object\":\"response\""),
};

static struct ask other_asks[] = {
    ASK("tokenize", "/tokenize", "{\"content\":\"Once upon a time\",\"with_pieces\":true}",
        "\"count\":"),
    ASK("detokenize", "/detokenize", "{\"tokens\":[5,6,7,8]}", "\"content\":"),
    ASK("models", "/v1/models", NULL, "tern-tales"),
    ASK("one model", "/v1/models/tern-tales", NULL, "tern-tales"),
    ASK("a model that is not there", "/v1/models/none", NULL, "model_not_found", .status = 404),
    ASK("cancel", "/v1/requests/chatcmpl-none/cancel", "{}", "not_found", .status = 404),
    ASK("cancel by body", "/cancel", "{\"id\":\"none\"}", "not_found", .status = 404),
    ASK("a body that is not JSON", "/v1/completions", "{\"prompt\":", "invalid_request",
        .status = 400),
    ASK("a field out of range", "/v1/chat/completions", "{" MESSAGES ",\"temperature\":9}",
        "temperature", .status = 400),
    ASK("a route that is not there", "/nothing", NULL, "route not found", .status = 404),
    ASK("a method that is not allowed", "/v1/chat/completions", NULL, "Allow: POST", .status = 405),
    ASK("bytes that are not HTTP", NULL, NULL, "invalid_request", .status = 400,
        .raw = "nonsense\r\n\r\n"),
    ASK("a chunked body", NULL, NULL, "\"count\":",
        .raw = "POST /tokenize HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: "
               "chunked\r\n"
               "Expect: 100-continue\r\n\r\n11\r\n{\"content\":\"Once\"\r\n1\r\n}\r\n0\r\n\r\n"),
    ASK("two requests on one connection", NULL, NULL, "tern-tales",
        .raw = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
               "GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
    ASK("health", "/health", NULL, "ok"),
    ASK("ready", "/ready", NULL, "ready"),
    ASK("status", "/status", NULL, "\"settings\":"),
    ASK("metrics", "/metrics", NULL, "tern_build_info"),
    ASK("the web page", "/index.html", NULL, "</html>"),
};

static uint64_t count_refused(const char *reason)
{
    int i = 0;

    while (refused_name(i) && strcmp(refused_name(i), reason) != 0) i++;
    return refused_name(i) ? counter_get(&w.v.refused.n[i]) : 0;
}

static void run_asks(struct ask *asks, size_t n)
{
    open_world();
    for (size_t i = 0; i < n; i++) fault_run(asks[i].name, run_request, &asks[i]);
    assert_true(count_refused("out_of_memory") > 0); /* counted where it is answered */
    assert_int_equal(count_refused("other"), 0);
    close_world();
}

static void ignore_signal(void *arg) { (void)arg; }

/* Both listeners, a signal and the timers, without any model. */
static int open_and_close(void *arg, struct err *e)
{
    static const struct pool *none;
    struct http_opt ho = { .host = "127.0.0.1", .socket_path = arg, .fail = routes_fail };
    struct api_opt ao = { .pool = (struct pool *)&none };
    struct loop *l = NULL;
    struct http *h = NULL;
    struct api *a = NULL;
    int rc = loop_open(&l, e);

    ao.loop = l;
    if (rc == OK) rc = loop_on_signal(l, SIGUSR1, ignore_signal, NULL, e);
    if (rc == OK) rc = api_open(&a, &ao, e);
    if (rc == OK) rc = http_open(&h, l, &ho, e);
    api_close(a);
    http_close(h);
    loop_close(l);
    assert_int_not_equal(access(arg, F_OK), 0); /* no socket is left behind */
    return rc;
}

static void opening_survives_every_fault(void **state)
{
    static char path[108];

    (void)state;
    snprintf(path, sizeof path, "%s/open", temp_dir());
    fault_run("loop, API and HTTP opened", open_and_close, path);
}

static void requests_that_run_the_model_survive_every_fault(void **state)
{
    (void)state;
    run_asks(model_asks, sizeof model_asks / sizeof *model_asks);
}

static void other_requests_survive_every_fault(void **state)
{
    (void)state;
    run_asks(other_asks, sizeof other_asks / sizeof *other_asks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_survives_every_fault),
        cmocka_unit_test(other_requests_survive_every_fault),
        cmocka_unit_test(requests_that_run_the_model_survive_every_fault),
    };

    fault_init();
    event_set_mem_functions(malloc, realloc, free);
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
