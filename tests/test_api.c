/* The HTTP API from the outside: event loop, HTTP, pool and engine in this process, a raw client
 * over a Unix socket.
 *
 * Uses the model that ships with tern (models/tern-tales.gguf). Expected texts are compared
 * between routes and modes, not with stored outputs. */
#include "api_world.h"
#include "engine/hard.h"

#include <math.h>
#include <time.h>

static struct world *shared_world;

static int setup(void **state)
{
    (void)state;
    log_set_level(LOG_ERROR);
    /* In hard mode chunks have random sizes. The sums of the reference kernels do not depend on
     * them, so that sampled texts can be compared. */
    shared_world =
        world_open((struct setup){ .engine = { .n_ctx = 512, .max_seqs = 8, .reference = HARD } });
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    world_close(shared_world);
    return 0;
}

static int use_shared_server(void **state)
{
    (void)state;
    w = shared_world;
    return 0;
}

/* A server that runs one sequence at a time with a long context. */
static int open_single_sequence_server(void **state)
{
    (void)state;
    w = world_open((struct setup){
        .engine = { .n_ctx = 8192, .max_seqs = 1, .max_requests = 4, .kv_tokens = 16384 },
        .api = { .ping_ms = 50 },
        .max_unread = 16384 });
    return 0;
}

static int close_single_sequence_server(void **state)
{
    (void)state;
    world_close(w);
    return 0;
}

#define LONG "\"temperature\":0,\"ignore_eos\":true,\"max_tokens\":7000"
#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"Tell me a story about a bird.\"}]"

/* ---- completions and chat ---- */

static void models_are_listed_with_their_properties(void **state)
{
    struct answer a = send_and_read("/v1/models", "", NULL),
                  b = send_and_read("/v1/models/tern-tales", "", NULL);
    struct answer c = send_and_read("/v1/models/org/none", "", NULL);

    (void)state;
    assert_int_equal(a.status, 200);
    assert_string_equal(text_at(a.json, "object"), "list");
    assert_string_equal(text_at(a.json, "data.0.id"), "tern-tales");
    assert_string_equal(text_at(a.json, "data.0.owned_by"), "tern");
    assert_int_equal(b.status, 200);
    assert_string_equal(text_at(b.json, "object"), "model");
    assert_string_equal(text_at(b.json, "meta.state"), "ready");
    assert_int_equal(int_at(b.json, "meta.context"), 512);
    assert_int_equal(int_at(b.json, "meta.vocab"), 4096);
    assert_true(int_at(b.json, "meta.parameters") > 1000000);
    assert_int_equal(c.status, 404);
    assert_string_equal(text_at(c.json, "error.code"), "model_not_found");
    assert_non_null(strstr(text_at(c.json, "error.message"), "org/none"));
    answer_release(&a);
    answer_release(&b);
    answer_release(&c);
}

static void a_stream_has_the_same_text_as_a_body(void **state)
{
    static const char *const bodies[][2] = {
        { "/v1/chat/completions", MESSAGES ",\"max_tokens\":40,\"temperature\":0" },
        { "/v1/chat/completions", MESSAGES ",\"max_tokens\":40,\"seed\":7,\"temperature\":1.2" },
        { "/v1/chat/completions",
          MESSAGES ",\"max_tokens\":30,\"seed\":-9,\"frequency_penalty\":1,\"logprobs\":true" },
        { "/v1/completions",
          "\"prompt\":\"Once upon a time\",\"max_tokens\":40,\"temperature\":0" },
        { "/v1/completions", "\"prompt\":\"Once\",\"max_tokens\":300,\"seed\":3,\"echo\":true" },
        { "/v1/completions", "\"prompt\":\"Once\",\"max_tokens\":20,\"seed\":3,\"n\":3" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        char body[512], finish[16] = "";
        struct answer whole, stream;
        bool chat = strstr(bodies[i][0], "chat") != NULL, done;
        size_t n;
        snprintf(body, sizeof body, "{%s}", bodies[i][1]);
        whole = send_and_read(bodies[i][0], "", body);
        snprintf(body, sizeof body, "{%s,\"stream\":true}", bodies[i][1]);
        stream = send_and_read(bodies[i][0], "", body);
        assert_int_equal(whole.status, 200);
        assert_int_equal(stream.status, 200);
        assert_non_null(strcasestr(stream.head.p, "text/event-stream"));
        json_t *ev = events_of(&stream, &done);
        assert_true(done);
        n = json_array_size(json_at(whole.json, "choices"));
        for (size_t k = 0; k < n; k++) {
            struct buf text = { 0 };
            json_t *c = json_array_get(json_at(whole.json, "choices"), k);
            assert_int_equal(int_at(c, "index"), k);
            stream_text(ev, (int)k, &text, finish);
            assert_string_equal(text.p, text_at(c, chat ? "message.content" : "text"));
            assert_string_equal(finish, text_at(c, "finish_reason"));
            buf_release(&text);
        }
        if (chat) {
            assert_string_equal(text_at(ev, "0.choices.0.delta.role"), "assistant");
            assert_string_equal(text_at(ev, "0.choices.0.delta.content"), "");
            assert_string_equal(text_at(ev, "0.object"), "chat.completion.chunk");
            assert_true(!strncmp(text_at(whole.json, "id"), "chatcmpl-", 9));
            assert_string_equal(text_at(whole.json, "object"), "chat.completion");
        } else {
            assert_string_equal(text_at(whole.json, "object"), "text_completion");
        }
        assert_string_equal(text_at(ev, "0.model"), "tern-tales");
        json_decref(ev);
        answer_release(&whole);
        answer_release(&stream);
    }
}

static void choices_have_consecutive_seeds(void **state)
{
    struct answer many, one;
    char body[256];

    (void)state;
    many = send_and_read("/v1/completions", "",
                         "{\"prompt\":[\"The bird\",\"A "
                         "fox\"],\"n\":2,\"seed\":11,\"max_tokens\":12,\"temperature\":1}");
    assert_int_equal(many.status, 200);
    assert_int_equal(json_array_size(json_at(many.json, "choices")), 4);
    for (int i = 0; i < 4; i++) {
        snprintf(body, sizeof body,
                 "{\"prompt\":\"%s\",\"seed\":%d,\"max_tokens\":12,\"temperature\":1}",
                 i < 2 ? "The bird" : "A fox", 11 + i % 2);
        one = send_and_read("/v1/completions", "", body);
        json_t *c = json_array_get(json_at(many.json, "choices"), (size_t)i);
        assert_int_equal(int_at(c, "index"), i);
        assert_string_equal(text_at(c, "text"), text_at(one.json, "choices.0.text"));
        answer_release(&one);
    }
    assert_int_equal(int_at(many.json, "usage.completion_tokens"), 48);
    answer_release(&many);
}

static void stop_strings_match_across_tokens(void **state)
{
    struct answer a =
        send_and_read("/v1/completions", "",
                      "{\"prompt\":\"Once upon a time\",\"max_tokens\":60,\"temperature\":0}");
    const char *all = text_at(a.json, "choices.0.text");
    struct answer b;
    char body[512], finish[16];

    (void)state;
    assert_true(strlen(all) > 60);
    for (size_t from = 5; from < 50;
         from += 9) { /* nine bytes that begin and end anywhere inside tokens */
        char stop[10], esc[64] = "";
        snprintf(stop, sizeof stop, "%.9s", all + from);
        for (char *s = stop; *s; s++)
            snprintf(esc + strlen(esc), sizeof esc - strlen(esc), "\\u%04x", (unsigned char)*s);
        size_t cut = (size_t)(strstr(all, stop) - all);
        for (int stream = 0; stream < 2; stream++) {
            snprintf(body, sizeof body,
                     "{\"prompt\":\"Once upon a time\",\"max_tokens\":60,\"temperature\":0,"
                     "\"stop\":[\"never-there\",\"%s\"],\"stream\":%s}",
                     esc, stream ? "true" : "false");
            b = send_and_read("/v1/completions", "", body);
            struct buf got = { 0 };
            bool done = true;
            if (stream) {
                json_t *ev = events_of(&b, &done);
                stream_text(ev, 0, &got, finish);
                json_decref(ev);
            } else {
                buf_puts(&got, text_at(b.json, "choices.0.text"));
                snprintf(finish, sizeof finish, "%s", text_at(b.json, "choices.0.finish_reason"));
            }
            assert_true(done);
            assert_string_equal(finish, "stop");
            assert_int_equal(got.n, cut);
            assert_memory_equal(got.p, all, cut);
            buf_release(&got);
            answer_release(&b);
        }
    }
    answer_release(&a);
}

static void logprobs_match_the_text(void **state)
{
    struct answer a = send_and_read(
        "/v1/chat/completions", "",
        "{" MESSAGES ",\"max_tokens\":25,\"temperature\":0,\"logprobs\":true,\"top_logprobs\":3}");
    struct answer b =
        send_and_read("/v1/completions", "",
                      "{\"prompt\":\"Once\",\"max_tokens\":25,\"temperature\":0,\"logprobs\":2}");
    json_t *items = json_at(a.json, "choices.0.logprobs.content"), *item;
    struct buf text = { 0 };
    size_t i;

    (void)state;
    assert_int_equal(a.status, 200);
    assert_true(json_array_size(items) > 10);
    json_array_foreach (items, i, item) {
        double lp = json_number_value(json_at(item, "logprob"));
        assert_true(lp <= 0 && lp > -50);
        assert_int_equal(json_array_size(json_at(item, "top_logprobs")), 3);
        assert_string_equal(text_at(item, "token"),
                            text_at(item, "top_logprobs.0.token")); /* greedy */
        assert_true(json_number_value(json_at(item, "top_logprobs.0.logprob")) >=
                    json_number_value(json_at(item, "top_logprobs.1.logprob")));
        size_t k;
        json_t *v;
        json_array_foreach (json_at(item, "bytes"), k, v)
            buf_putc(&text, (char)json_integer_value(v));
    }
    assert_string_equal(buf_cstr(&text), text_at(a.json, "choices.0.message.content"));

    json_t *l = json_at(b.json, "choices.0.logprobs");
    size_t n = json_array_size(json_at(l, "tokens"));
    assert_int_equal(n, int_at(b.json, "usage.completion_tokens"));
    assert_int_equal(json_array_size(json_at(l, "token_logprobs")), n);
    assert_int_equal(json_array_size(json_at(l, "top_logprobs")), n);
    assert_int_equal(json_array_size(json_at(l, "text_offset")), n);
    buf_clear(&text);
    for (i = 0; i < n; i++) {
        assert_int_equal(json_integer_value(json_array_get(json_at(l, "text_offset"), i)),
                         text.n); /* ASCII */
        buf_puts(&text, json_string_value(json_array_get(json_at(l, "tokens"), i)));
    }
    assert_string_equal(buf_cstr(&text), text_at(b.json, "choices.0.text"));
    buf_release(&text);
    answer_release(&a);
    answer_release(&b);
}

static void token_ids_and_text_give_the_same_answer(void **state)
{
    struct answer t = send_and_read("/tokenize", "",
                                    "{\"content\":\"Once upon a time\",\"add_special\":true}"),
                  a, b, c, d;
    char *list = json_dumps(json_at(t.json, "tokens"), JSON_COMPACT), body[512];

    (void)state;
    assert_int_equal(t.status, 200);
    assert_int_equal(int_at(t.json, "count"), json_array_size(json_at(t.json, "tokens")));
    a = send_and_read(
        "/v1/completions", "",
        "{\"prompt\":\"Once upon a time\",\"max_tokens\":20,\"temperature\":0,\"echo\":true}");
    snprintf(body, sizeof body, "{\"prompt\":%s,\"max_tokens\":20,\"temperature\":0}", list);
    b = send_and_read("/v1/completions", "", body);
    assert_int_equal(b.status, 200);
    assert_int_equal(int_at(a.json, "usage.prompt_tokens"), int_at(t.json, "count"));
    assert_true(!strncmp(text_at(a.json, "choices.0.text"), "Once upon a time", 16));
    assert_string_equal(text_at(a.json, "choices.0.text") + 16, text_at(b.json, "choices.0.text"));
    c = send_and_read("/tokenize", "", "{\"content\":\"Once upon a time\",\"with_pieces\":true}");
    struct buf pieces = { 0 };
    for (size_t i = 0; i < json_array_size(json_at(c.json, "tokens")); i++)
        buf_puts(&pieces, text_at(json_array_get(json_at(c.json, "tokens"), i), "piece"));
    assert_non_null(strstr(buf_cstr(&pieces), "Once upon a time"));
    buf_release(&pieces);
    answer_release(&c);
    c = send_and_read("/tokenize", "", "{\"text\":\"Once upon a time\"}");
    free(list);
    list = json_dumps(json_at(c.json, "tokens"), JSON_COMPACT);
    snprintf(body, sizeof body, "{\"tokens\":%s}", list);
    d = send_and_read("/detokenize", "", body);
    assert_string_equal(text_at(d.json, "content"), "Once upon a time");
    free(list);
    answer_release(&a);
    answer_release(&b);
    answer_release(&c);
    answer_release(&d);
    answer_release(&t);
}

static void usage_is_sent_when_requested(void **state)
{
    struct answer a = send_and_read(
        "/v1/chat/completions", "X-Correlation-Id: abc-1\r\n",
        "{" MESSAGES ",\"max_tokens\":9,\"temperature\":0,\"ignore_eos\":true,\"stream\":true,"
        "\"stream_options\":{\"include_usage\":true},\"zap\":1}");
    struct answer b = send_and_read("/v1/chat/completions", "",
                                    "{" MESSAGES ",\"max_tokens\":9,\"ignore_eos\":true}");
    struct ended x;
    bool done;
    json_t *ev = events_of(&a, &done), *last = json_array_get(ev, json_array_size(ev) - 1);

    (void)state;
    assert_true(done);
    assert_non_null(strstr(a.head.p, "\r\nX-Correlation-Id: abc-1\r\n"));
    assert_non_null(strstr(a.head.p, "\r\nx-request-id: abc-1\r\n"));
    assert_non_null(strstr(a.head.p, "\r\nx-tern-ignored-fields: zap\r\n"));
    assert_int_equal(json_array_size(json_at(last, "choices")), 0);
    assert_int_equal(int_at(last, "usage.completion_tokens"), 9);
    assert_int_equal(int_at(last, "usage.total_tokens"),
                     int_at(last, "usage.prompt_tokens") + int_at(last, "usage.completion_tokens"));
    assert_true(json_is_null(json_at(ev, "0.usage")));
    assert_int_equal(int_at(b.json, "usage.prompt_tokens"), int_at(last, "usage.prompt_tokens"));
    assert_true(int_at(b.json, "usage.prompt_tokens_details.cached_tokens") >= 0);
    assert_true(json_is_number(json_at(b.json, "usage.tern.prefill_ms")));
    x = wait_ended(w, "abc-1");
    assert_int_equal(x.status, 200);
    assert_int_equal(x.output_tokens, 9);
    assert_int_equal(x.prompt_tokens, int_at(last, "usage.prompt_tokens"));
    assert_string_equal(x.finish, "length");
    assert_true(x.stream);
    json_decref(ev);
    answer_release(&a);
    answer_release(&b);
}

static void errors_have_their_status_and_envelope(void **state)
{
    static const struct {
        const char *path, *headers, *body;
        int status;
        const char *code, *param;
    } rows[] = {
        { "/v1/chat/completions", "", "{", 400, "invalid_request", NULL },
        { "/v1/chat/completions", "", "", 400, "invalid_request", NULL },
        { "/v1/chat/completions", "", "[1]", 400, "invalid_request", NULL },
        { "/v1/chat/completions", "", "{}", 400, "invalid_request", "messages" },
        { "/v1/chat/completions", "", "{" MESSAGES ",\"temperature\":3}", 400, "invalid_request",
          "temperature" },
        { "/v1/chat/completions", "", "{" MESSAGES ",\"n\":17}", 400, "invalid_request", "n" },
        { "/v1/chat/completions", "", "{" MESSAGES ",\"model\":\"none\"}", 404, "model_not_found",
          "model" },
        { "/v1/chat/completions", "", "{" MESSAGES ",\"logit_bias\":{\"4096\":1}}", 400,
          "invalid_request", "logit_bias.4096" },
        { "/v1/chat/completions", "", "{" MESSAGES ",\"deadline_ms\":0}", 504, "deadline_exceeded",
          NULL },
        { "/v1/chat/completions", "X-Deadline: 1000\r\n", "{" MESSAGES "}", 504,
          "deadline_exceeded", NULL },
        { "/v1/chat/completions", "X-Deadline: 2001-01-01T00:00:00Z\r\n", "{" MESSAGES "}", 504,
          "deadline_exceeded", NULL },
        { "/v1/chat/completions", "X-Deadline: soon\r\n", "{" MESSAGES "}", 400, "invalid_request",
          "X-Deadline" },
        { "/v1/chat/completions", "x-stainless-timeout: x\r\n", "{" MESSAGES "}", 400,
          "invalid_request", "x-stainless-timeout" },
        { "/v1/chat/completions", "X-Priority: high\r\n", "{" MESSAGES "}", 400, "invalid_request",
          "X-Priority" },
        { "/v1/completions", "", "{\"prompt\":[4096]}", 400, "invalid_request", "prompt[0]" },
        { "/v1/completions", "", "{\"prompt\":[[1],[1,9999]]}", 400, "invalid_request",
          "prompt[1][1]" },
        { "/tokenize", "", "{\"content\":[1]}", 400, "invalid_request", "content" },
        { "/detokenize", "", "{\"tokens\":[4096]}", 400, "invalid_request", "tokens[0]" },
        { "/v1/requests/nobody/cancel", "", "", 404, "not_found", NULL },
        { "/v1/requests//cancel", "", "", 404, "not_found", NULL },
        { "/cancel", "", "{\"id\":\"nobody\"}", 404, "not_found", NULL },
        { "/cancel", "", "{\"id\":5}", 400, "invalid_request", "id" },
        { "/cancel", "", "", 400, "invalid_request", NULL },
        { "/nowhere", "", "", 404, "not_found", NULL },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char headers[256];
        snprintf(headers, sizeof headers, "X-Correlation-Id: row-%zu\r\n%s", i, rows[i].headers);
        struct answer a = send_and_read(rows[i].path, headers, rows[i].body);
        char id[32];
        snprintf(id, sizeof id, "row-%zu", i);
        if (a.status != rows[i].status)
            fail_msg("row %zu: status %d, body %s", i, a.status, a.body.p);
        assert_string_equal(text_at(a.json, "error.code"), rows[i].code);
        assert_string_equal(text_at(a.json, "error.correlation_id"), id);
        assert_true(*text_at(a.json, "error.message"));
        if (rows[i].param) assert_string_equal(text_at(a.json, "error.param"), rows[i].param);
        else assert_true(json_is_null(json_at(a.json, "error.param")));
        snprintf(id, sizeof id, "\r\nx-request-id: row-%zu\r\n", i);
        assert_non_null(strstr(a.head.p, id));
        answer_release(&a);
    }
}

/* ---- embeddings ---- */

static double norm_of(const json_t *v)
{
    double sum = 0;
    for (size_t i = 0; i < json_array_size(v); i++) {
        double x = json_number_value(json_array_get(v, i));
        sum += x * x;
    }
    return sqrt(sum);
}

static double dot_product(const json_t *a, const json_t *b)
{
    double sum = 0;
    assert_int_equal(json_array_size(a), json_array_size(b));
    for (size_t i = 0; i < json_array_size(a); i++)
        sum += json_number_value(json_array_get(a, i)) * json_number_value(json_array_get(b, i));
    return sum;
}

static void embeddings_are_computed_for_texts_and_ids(void **state)
{
    struct answer a = send_and_read(
        "/v1/embeddings", "",
        "{\"input\":[\"Once upon a time\",\"A green frog\",\"Once upon a time\"],\"user\":\"me\"}");
    struct answer t = send_and_read("/tokenize", "",
                                    "{\"content\":\"Once upon a time\",\"add_special\":true}"),
                  b;
    char *ids = json_dumps(json_at(t.json, "tokens"), 0), body[256];
    (void)state;

    assert_int_equal(a.status, 200);
    assert_string_equal(text_at(a.json, "object"), "list");
    assert_string_equal(text_at(a.json, "model"), "tern-tales");
    assert_int_equal(json_array_size(json_at(a.json, "data")), 3);
    for (int i = 0; i < 3; i++) {
        json_t *one = json_array_get(json_at(a.json, "data"), (size_t)i);
        assert_int_equal(int_at(one, "index"), i);
        assert_string_equal(text_at(one, "object"), "embedding");
        assert_true(fabs(norm_of(json_at(one, "embedding")) - 1) < 1e-4);
    }
    assert_true(dot_product(json_at(a.json, "data.0.embedding"),
                            json_at(a.json, "data.2.embedding")) > 0.999);
    assert_true(dot_product(json_at(a.json, "data.0.embedding"),
                            json_at(a.json, "data.1.embedding")) < 0.99);
    assert_true(int_at(a.json, "usage.prompt_tokens") > 8);
    assert_int_equal(int_at(a.json, "usage.prompt_tokens"), int_at(a.json, "usage.total_tokens"));
    snprintf(body, sizeof body, "{\"input\":%s}", ids);
    b = send_and_read("/v1/embeddings", "", body);
    assert_int_equal(b.status, 200);
    assert_true(dot_product(json_at(a.json, "data.0.embedding"),
                            json_at(b.json, "data.0.embedding")) > 0.999);
    free(ids);
    answer_release(&a), answer_release(&b), answer_release(&t);
}

static void embeddings_are_shortened_and_encoded_as_requested(void **state)
{
    struct answer a =
        send_and_read("/v1/embeddings", "", "{\"input\":\"A frog\",\"dimensions\":5}");
    struct answer b =
        send_and_read("/v1/embeddings", "",
                      "{\"input\":\"A frog\",\"dimensions\":5,\"encoding_format\":\"base64\"}");
    const char *coded = text_at(b.json, "data.0.embedding");
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned char raw[24] = { 0 };
    float v[5];
    (void)state;

    assert_int_equal(json_array_size(json_at(a.json, "data.0.embedding")), 5);
    assert_true(fabs(norm_of(json_at(a.json, "data.0.embedding")) - 1) < 1e-4);
    assert_int_equal(strlen(coded), 28);
    for (int i = 0; i < 27; i++) {
        int d = (int)(strchr(digits, coded[i]) - digits), bit = 6 * i;
        raw[bit / 8] |= (unsigned char)(bit % 8 <= 2 ? d << (2 - bit % 8) : d >> (bit % 8 - 2));
        if (bit % 8 > 2) raw[bit / 8 + 1] |= (unsigned char)(d << (10 - bit % 8));
    }
    memcpy(v, raw, sizeof v);
    for (int i = 0; i < 5; i++)
        assert_true(fabs((double)v[i] - json_number_value(json_array_get(
                                            json_at(a.json, "data.0.embedding"), (size_t)i))) <
                    1e-3);
    answer_release(&a), answer_release(&b);
}

static void invalid_embedding_requests_are_refused_naming_the_field(void **state)
{
    static const char *const bodies[][2] = {
        { "{}", "input" },
        { "{\"input\":[]}", "input" },
        { "{\"input\":7}", "input" },
        { "{\"input\":\"x\",\"dimensions\":100000}", "dimensions" },
        { "{\"input\":\"x\",\"encoding_format\":\"hex\"}", "encoding_format" },
        { "{\"input\":[[1],[99999999]]}", "input[1][0]" },
    };
    (void)state;

    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        struct answer a = send_and_read("/v1/embeddings", "", bodies[i][0]);
        assert_int_equal(a.status, 400);
        assert_string_equal(text_at(a.json, "error.param"), bodies[i][1]);
        answer_release(&a);
    }
}

/* More texts than the engine accepts at once: all are embedded, in order. */
static void many_texts_are_embedded_a_few_at_a_time(void **state)
{
    struct buf body = { 0 };
    struct answer a;
    (void)state;

    buf_puts(&body, "{\"dimensions\":8,\"input\":[");
    for (int i = 0; i < 300; i++)
        buf_printf(&body, "%s[%d,%d]", i ? "," : "", i % 7 + 1, i % 5 + 1);
    buf_puts(&body, "]}");
    a = send_and_read("/v1/embeddings", "", buf_cstr(&body));
    assert_int_equal(a.status, 200);
    assert_int_equal(json_array_size(json_at(a.json, "data")), 300);
    for (size_t i = 0; i + 35 < 300; i++)
        assert_true(dot_product(json_at(json_array_get(json_at(a.json, "data"), i), "embedding"),
                                json_at(json_array_get(json_at(a.json, "data"), i + 35),
                                        "embedding")) > 0.99);
    answer_release(&a);
    buf_release(&body);
}

static void prompts_that_do_not_fit_are_refused_with_both_numbers(void **state)
{
    struct buf body = { 0 };
    struct answer a;

    (void)state;
    for (int big = 0; big < 2;
         big++) { /* 0: tokenized completely; 1: refused after its first part */
        buf_clear(&body);
        buf_puts(&body, "{\"prompt\":\"");
        for (int i = 0; i < (big ? 100000 : 600); i++) buf_puts(&body, " bird");
        buf_puts(&body, "\"}");
        a = send_and_read("/v1/completions", "", buf_cstr(&body));
        assert_int_equal(a.status, 400);
        assert_string_equal(text_at(a.json, "error.code"), "context_length_exceeded");
        assert_string_equal(text_at(a.json, "error.param"), "prompt");
        assert_non_null(strstr(text_at(a.json, "error.message"), "512"));
        answer_release(&a);
    }
    buf_release(&body);
}

static void a_disconnect_is_noticed_in_every_state(void **state)
{
    struct buf got = { 0 };
    struct ended x;
    int running, queued;

    (void)state;
    running = send_request(w, "/v1/chat/completions", "X-Correlation-Id: running\r\n",
                           "{" MESSAGES "," LONG ",\"stream\":true}");
    read_until(running, &got, "\"content\":\" ");
    queued = send_request(w, "/v1/chat/completions", "X-Correlation-Id: queued\r\n",
                          "{" MESSAGES "," LONG "}");
    wait_state("queued", "queued");
    close(queued);
    x = wait_ended(w, "queued");
    assert_string_equal(x.finish, "cancelled");
    assert_string_equal(x.gone, "closed");
    assert_int_equal(x.status, 499);
    assert_int_equal(x.output_tokens, 0);
    close(running);
    x = wait_ended(w, "running");
    assert_string_equal(x.finish, "cancelled");
    assert_true(x.gone[0] != 0);
    assert_int_equal(x.status, 200);

    /* disconnects during the prefill of a long prompt */
    struct buf body = { 0 };
    buf_puts(&body, "{\"stream\":true,\"prompt\":\"");
    for (int i = 0; i < 4000; i++) buf_printf(&body, " bird%d", i % 7);
    buf_puts(&body, "\"}");
    int prefill =
        send_request(w, "/v1/completions", "X-Correlation-Id: prefill\r\n", buf_cstr(&body));
    wait_state("prefill", NULL);
    close(prefill);
    x = wait_ended(w, "prefill");
    assert_string_equal(x.finish, "cancelled");
    assert_int_equal(x.output_tokens, 0);
    buf_release(&body);
    buf_release(&got);
}

static void slow_readers_are_disconnected_and_others_continue(void **state)
{
    struct ended x;
    struct answer a;
    int fd, small = 4096;

    (void)state;
    fd = connect_to(w);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    const char *body = "{" MESSAGES "," LONG ",\"stream\":true}";
    char head[256];
    snprintf(head, sizeof head,
             "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Correlation-Id: slow\r\n"
             "Content-Length: %zu\r\n\r\n",
             strlen(body));
    send_all(fd, head, strlen(head));
    send_all(fd, body, strlen(body));
    x = wait_ended(w, "slow");
    assert_string_equal(x.gone, "slow reader");
    assert_string_equal(x.finish, "cancelled");
    close(fd);
    a = send_and_read("/v1/chat/completions", "", "{" MESSAGES ",\"max_tokens\":3}");
    assert_int_equal(a.status, 200);
    answer_release(&a);
}

static void requests_are_cancelled_by_either_id(void **state)
{
    struct buf got = { 0 };
    struct answer a;
    char id[64] = "", path[128];
    const char *from;
    int stream, whole;

    (void)state;
    stream = send_request(w, "/v1/chat/completions", "X-Correlation-Id: talk\r\nx-tenant: 1\r\n",
                          "{" MESSAGES "," LONG ",\"stream\":true}");
    read_until(stream, &got, "\"content\":\" ");
    whole = send_request(w, "/v1/chat/completions", "X-Correlation-Id: wait\r\nx-tenant: 1\r\n",
                         "{" MESSAGES "," LONG "}");
    wait_state("wait", "queued");

    a = send_and_read("/v1/requests/wait/cancel", "x-tenant: 2\r\n",
                      ""); /* a request of another tenant */
    assert_int_equal(a.status, 404);
    answer_release(&a);
    a = send_and_read("/v1/requests/wait/cancel", "x-tenant: 1\r\n", "");
    assert_int_equal(a.status, 200);
    assert_string_equal(text_at(a.json, "object"), "request.cancel");
    assert_string_equal(text_at(a.json, "id"), "wait");
    assert_true(json_is_true(json_at(a.json, "cancelled")));
    answer_release(&a);
    a = read_answer(whole);
    assert_int_equal(a.status, 499);
    assert_string_equal(text_at(a.json, "error.code"), "cancelled");
    answer_release(&a);

    from = strstr(buf_cstr(&got), "chatcmpl-");
    snprintf(id, sizeof id, "%.*s", (int)strcspn(from, "\""), from);
    snprintf(path, sizeof path, "/v1/requests/%s/cancel", id);
    a = send_and_read(path, "x-tenant: 1\r\n", "");
    assert_true(json_is_true(json_at(a.json, "cancelled")));
    answer_release(&a);
    while (read_more(stream, &got)) {}
    close(stream);
    assert_null(strstr(buf_cstr(&got), "[DONE]"));
    assert_non_null(strstr(got.p, "data: {\"error\":{"));
    assert_non_null(strstr(got.p, "\"code\":\"cancelled\""));
    wait_ended(w, "talk");
    for (int i = 0; i < 2; i++) { /* ended, but still known */
        a = send_and_read(path, "x-tenant: 1\r\n", "");
        assert_int_equal(a.status, 200);
        assert_true(json_is_false(json_at(a.json, "cancelled")));
        answer_release(&a);
    }
    buf_release(&got);
}

static void deadlines_end_requests(void **state)
{
    struct answer a = send_and_read("/v1/chat/completions", "",
                                    "{" MESSAGES "," LONG ",\"timeout\":0.3}"),
                  b;
    char headers[128];
    bool done;
    json_t *ev;

    (void)state;
    assert_int_equal(a.status, 504);
    assert_string_equal(text_at(a.json, "error.code"), "deadline_exceeded");
    assert_non_null(strstr(a.head.p, "x-should-retry: false"));
    answer_release(&a);

    /* On a busy machine the deadline may pass before the first token: then a later one is tried. */
    for (int ms = 1400;; ms *= 2) {
        snprintf(headers, sizeof headers, "X-Deadline: %lld\r\nx-stainless-timeout: 600\r\n",
                 (long long)time(NULL) * 1000 + ms);
        b = send_and_read("/v1/chat/completions", headers,
                          "{" MESSAGES "," LONG ",\"stream\":true,\"deadline_ms\":600000}");
        if (b.status == 200) break;
        assert_int_equal(b.status, 504);
        assert_true(ms < 30000);
        answer_release(&b);
    }
    ev = events_of(&b, &done);
    assert_false(done);
    assert_string_equal(text_at(json_array_get(ev, json_array_size(ev) - 1), "error.code"),
                        "deadline_exceeded");
    json_decref(ev);
    answer_release(&b);
}

static void a_full_queue_refuses_all_choices_together(void **state)
{
    struct answer a;
    struct ended x;
    int first = send_request(w, "/v1/chat/completions", "X-Correlation-Id: first\r\n",
                             "{" MESSAGES "," LONG "}");

    (void)state;
    wait_state("first", "decode");
    a = send_and_read("/v1/chat/completions", "X-Correlation-Id: many\r\n",
                      "{" MESSAGES ",\"n\":9}"); /* at most 4 requests may wait and run */
    assert_int_equal(a.status, 429);
    assert_string_equal(text_at(a.json, "error.code"), "queue_full");
    assert_string_equal(text_at(a.json, "error.type"), "rate_limit_error");
    assert_non_null(strcasestr(a.head.p, "\r\nRetry-After: "));
    assert_true(atoi(strcasestr(a.head.p, "\r\nRetry-After: ") + 15) >= 1);
    answer_release(&a);
    x = wait_ended(w, "many");
    assert_int_equal(x.status, 429);
    assert_string_equal(x.code, "queue_full");
    close(first);
    wait_ended(w, "first");
    a = send_and_read("/v1/chat/completions", "", "{" MESSAGES ",\"n\":3,\"max_tokens\":4}");
    assert_int_equal(a.status, 200);
    answer_release(&a);
}

static void silent_streams_get_pings(void **state)
{
    struct buf got = { 0 };
    int first = send_request(w, "/v1/chat/completions", "X-Correlation-Id: busy\r\n",
                             "{" MESSAGES "," LONG "}"),
        second;

    (void)state;
    wait_state("busy", "decode");
    second = send_request(w, "/v1/chat/completions", "X-Correlation-Id: calm\r\n",
                          "{" MESSAGES ",\"max_tokens\":3,\"stream\":true}");
    read_until(second, &got, "\n:");
    assert_non_null(strstr(buf_cstr(&got), "HTTP/1.1 200"));
    close(first);
    read_until(second, &got, "[DONE]");
    close(second);
    buf_release(&got);
}

static void requests_during_shutdown_get_503(void **state)
{
    struct buf got = { 0 };
    struct answer a;
    int fd = send_request(w, "/v1/chat/completions", "X-Correlation-Id: last\r\n",
                          "{" MESSAGES "," LONG ",\"stream\":true}");

    (void)state;
    read_until(fd, &got, "\"content\":\" ");
    pool_drain(w->pool);
    a = send_and_read("/v1/chat/completions", "", "{" MESSAGES "}");
    assert_int_equal(a.status, 503);
    assert_string_equal(text_at(a.json, "error.code"), "shutting_down");
    assert_non_null(strcasestr(a.head.p, "\r\nRetry-After: "));
    answer_release(&a);
    pool_abort(w->pool);
    while (read_more(fd, &got)) {}
    close(fd);
    assert_non_null(strstr(buf_cstr(&got), "\"code\":\"shutting_down\""));
    wait_ended(w, "last");
    buf_release(&got);
}

static void api_close_answers_all_calls(void **state)
{
    struct buf got = { 0 };
    int stream =
        send_request(w, "/v1/chat/completions", "", "{" MESSAGES "," LONG ",\"stream\":true}");
    int queued = send_request(w, "/v1/chat/completions", "X-Correlation-Id: q\r\n",
                              "{" MESSAGES "," LONG "}");

    (void)state;
    read_until(stream, &got, "\"content\":\" ");
    wait_state("q", "queued");
    world_close(w);
    open_single_sequence_server(state);
    while (read_more(stream, &got)) {}
    while (read_more(queued, &got)) {}
    close(stream);
    close(queued);
    buf_release(&got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(models_are_listed_with_their_properties, use_shared_server),
        cmocka_unit_test_setup(a_stream_has_the_same_text_as_a_body, use_shared_server),
        cmocka_unit_test_setup(choices_have_consecutive_seeds, use_shared_server),
        cmocka_unit_test_setup(stop_strings_match_across_tokens, use_shared_server),
        cmocka_unit_test_setup(logprobs_match_the_text, use_shared_server),
        cmocka_unit_test_setup(token_ids_and_text_give_the_same_answer, use_shared_server),
        cmocka_unit_test_setup(usage_is_sent_when_requested, use_shared_server),
        cmocka_unit_test_setup(errors_have_their_status_and_envelope, use_shared_server),
        cmocka_unit_test_setup(prompts_that_do_not_fit_are_refused_with_both_numbers,
                               use_shared_server),
        cmocka_unit_test_setup(embeddings_are_computed_for_texts_and_ids, use_shared_server),
        cmocka_unit_test_setup(embeddings_are_shortened_and_encoded_as_requested,
                               use_shared_server),
        cmocka_unit_test_setup(invalid_embedding_requests_are_refused_naming_the_field,
                               use_shared_server),
        cmocka_unit_test_setup(many_texts_are_embedded_a_few_at_a_time, use_shared_server),
        cmocka_unit_test_setup_teardown(a_disconnect_is_noticed_in_every_state,
                                        open_single_sequence_server, close_single_sequence_server),
        cmocka_unit_test_setup_teardown(slow_readers_are_disconnected_and_others_continue,
                                        open_single_sequence_server, close_single_sequence_server),
        cmocka_unit_test_setup_teardown(requests_are_cancelled_by_either_id,
                                        open_single_sequence_server, close_single_sequence_server),
        cmocka_unit_test_setup_teardown(deadlines_end_requests, open_single_sequence_server,
                                        close_single_sequence_server),
        cmocka_unit_test_setup_teardown(a_full_queue_refuses_all_choices_together,
                                        open_single_sequence_server, close_single_sequence_server),
        cmocka_unit_test_setup_teardown(silent_streams_get_pings, open_single_sequence_server,
                                        close_single_sequence_server),
        cmocka_unit_test_setup_teardown(requests_during_shutdown_get_503,
                                        open_single_sequence_server, close_single_sequence_server),
        cmocka_unit_test_setup_teardown(api_close_answers_all_calls, open_single_sequence_server,
                                        close_single_sequence_server),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
