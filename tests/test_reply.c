/* Reply bodies and stream chunks of the API, byte for byte, and the status and code of every error.
 *
 * Expected texts are written by hand. Reads no files. */
#include "support.h"

#include "api/api.h"
#include "api/fail.h"
#include "api/reply.h"
#include "engine/outbox.h"

#include <jansson.h>
#include <math.h>

static struct buf out;
static struct logprobs lp;

static struct str token_text(void *arg, int32_t id)
{
    static const char *const names[] = { " the", "\n", "\"q\"", "\xe2\x82" };
    (void)arg;
    return id == 4 ? STR(" the") : str_c(names[id]);
}

static struct reply make_reply(bool chat, bool usage)
{
    struct reply y = { .chat = chat,
                       .usage = usage,
                       .id = chat ? "chatcmpl-1" : "cmpl-1",
                       .model = "tern/tales",
                       .fingerprint = "fp_1",
                       .created = 1700000000,
                       .piece = token_text };
    reply_render_head(&y);
    return y;
}

/* The buffer `out` must be exactly this text, and valid JSON; clears it. */
static void assert_out(const char *want)
{
    json_t *j = json_loadb(out.p, out.n, 0, NULL);

    assert_string_equal(buf_cstr(&out), want);
    assert_non_null(j);
    json_decref(j);
    buf_clear(&out);
}

static int teardown(void **state)
{
    (void)state;
    buf_release(&out);
    logprobs_release(&lp);
    return 0;
}

#define CHAT_CHUNK                                                                        \
    "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000," \
    "\"model\":\"tern/tales\",\"system_fingerprint\":\"fp_1\",\"choices\":["
#define TEXT_CHUNK                                                              \
    "{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1700000000," \
    "\"model\":\"tern/tales\",\"system_fingerprint\":\"fp_1\",\"choices\":["

static void chat_chunks_are_written_byte_for_byte(void **state)
{
    struct reply y = make_reply(true, false);

    (void)state;
    reply_chunk_role(&y, &out, 0);
    assert_out(CHAT_CHUNK
               "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
               "\"finish_reason\":null}]}");
    reply_chunk_text(&y, &out, 12, STR("a \"b\"\n\xc3\xa9\x01"), NULL);
    assert_out(
        CHAT_CHUNK
        "{\"index\":12,\"delta\":{\"content\":\"a \\\"b\\\"\\n\xc3\xa9\\u0001\"},\"logprobs\":null,"
        "\"finish_reason\":null}]}");
    reply_chunk_finish(&y, &out, 0, "stop");
    assert_out(CHAT_CHUNK
               "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"}]}");
    reply_release(&y);
}

static void completion_chunks_are_written_byte_for_byte(void **state)
{
    struct reply y = make_reply(false, false);

    (void)state;
    reply_chunk_text(&y, &out, 0, STR("x"), NULL);
    assert_out(TEXT_CHUNK
               "{\"index\":0,\"text\":\"x\",\"logprobs\":null,\"finish_reason\":null}]}");
    reply_chunk_finish(&y, &out, 1, "length");
    assert_out(TEXT_CHUNK
               "{\"index\":1,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"length\"}]}");
    reply_release(&y);
}

static void usage_is_null_until_the_last_chunk(void **state)
{
    struct reply y = make_reply(true, true);
    struct usage u = { .prompt = 7,
                       .completion = 3,
                       .cached = 4,
                       .queue_ms = 0.12345,
                       .prefill_ms = 2,
                       .decode_ms = 30.5 };

    (void)state;
    reply_chunk_text(&y, &out, 0, STR("x"), NULL);
    assert_out(
        CHAT_CHUNK
        "{\"index\":0,\"delta\":{\"content\":\"x\"},\"logprobs\":null,\"finish_reason\":null}],"
        "\"usage\":null}");
    reply_chunk_usage(&y, &out, &u);
    assert_out(CHAT_CHUNK
               "],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,\"total_tokens\":10,"
               "\"prompt_tokens_details\":{\"cached_tokens\":4},\"tern\":{\"queue_ms\":0.123,"
               "\"prefill_ms\":2,\"decode_ms\":30.5,\"cached_tokens\":4}}}");
    reply_release(&y);
}

static void bodies_are_written_byte_for_byte(void **state)
{
    struct reply y = make_reply(true, false);
    struct usage u = { .prompt = 1, .completion = 2 };

    (void)state;
    reply_open(&y, &out);
    reply_add_choice(&y, &out, 0, &(struct reply_parts){ .text = STR("hi") }, NULL, "stop");
    reply_add_choice(&y, &out, 1, &(struct reply_parts){ .text = STR("") }, NULL, "length");
    reply_close(&out, &u);
    assert_out(
        "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":"
        "\"tern/tales\","
        "\"system_fingerprint\":\"fp_1\",\"choices\":[{\"index\":0,\"message\":{\"role\":"
        "\"assistant\","
        "\"content\":\"hi\",\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"stop\"},{"
        "\"index\":1,"
        "\"message\":{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null},\"logprobs\":null,"
        "\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2,"
        "\"total_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":0},\"tern\":{\"queue_ms\":"
        "0,"
        "\"prefill_ms\":0,\"decode_ms\":0,\"cached_tokens\":0}}}");
    reply_release(&y);
    y = make_reply(false, false);
    reply_open(&y, &out);
    reply_add_choice(&y, &out, 0, &(struct reply_parts){ .text = STR("hi") }, NULL, "stop");
    buf_puts(&out, "]}");
    assert_out(TEXT_CHUNK
               "{\"index\":0,\"text\":\"hi\",\"logprobs\":null,\"finish_reason\":\"stop\"}]}");
    reply_release(&y);
}

static void logprobs_of_chat_contain_the_bytes_of_tokens(void **state)
{
    struct event ev = {
        .id = 0, .logprob = -0.1f, .n_top = 2, .top = { { 0, -0.1f }, { 3, -INFINITY } }
    };
    struct event bare = { .id = 1, .logprob = 0 };
    struct reply y = make_reply(true, false);

    (void)state;
    logprobs_clear(&lp);
    logprobs_add(&lp, &y, &ev, 0);
    logprobs_add(&lp, &y, &bare, 4);
    assert_int_equal(lp.n, 2);
    reply_chunk_text(&y, &out, 0, STR(" the\n"), &lp);
    assert_out(
        CHAT_CHUNK
        "{\"index\":0,\"delta\":{\"content\":\" the\\n\"},\"logprobs\":{\"content\":["
        "{\"token\":\" the\",\"logprob\":-0.1,\"bytes\":[32,116,104,101],\"top_logprobs\":["
        "{\"token\":\" the\",\"logprob\":-0.1,\"bytes\":[32,116,104,101]},"
        "{\"token\":\"\xef\xbf\xbd\xef\xbf\xbd\",\"logprob\":-9999.0,\"bytes\":[226,130]}]},"
        "{\"token\":\"\\n\",\"logprob\":0,\"bytes\":[10],\"top_logprobs\":[]}],\"refusal\":null},"
        "\"finish_reason\":null}]}");
    reply_release(&y);
}

static void logprobs_of_completions_are_four_lists(void **state)
{
    struct event a = {
        .id = 1, .logprob = -3.25f, .n_top = 3, .top = { { 0, -0.5f }, { 4, -1 }, { 2, -2 } }
    };
    struct event b = { .id = 0, .logprob = -0.25f, .n_top = 1, .top = { { 0, -0.25f } } };
    struct event c = { .id = 2, .logprob = -1 };
    struct reply y = make_reply(false, false);

    (void)state;
    logprobs_clear(&lp);
    logprobs_add(&lp, &y, &a, 0);
    logprobs_add(&lp, &y, &b, 1);
    logprobs_add(&lp, &y, &c, 5);
    reply_chunk_text(&y, &out, 0, STR("x"), &lp);
    assert_out(
        TEXT_CHUNK
        "{\"index\":0,\"text\":\"x\",\"logprobs\":{\"tokens\":[\"\\n\",\" the\",\"\\\"q\\\"\"],"
        "\"token_logprobs\":[-3.25,-0.25,-1],\"top_logprobs\":[{\" "
        "the\":-0.5,\"\\\"q\\\"\":-2,\"\\n\":-3.25},"
        "{\" the\":-0.25},{}],\"text_offset\":[0,1,5]},\"finish_reason\":null}]}");
    reply_release(&y);
}

static void writing_chunks_allocates_nothing_after_the_first(void **state)
{
    struct reply y = make_reply(true, false);
    size_t cap;
    char *at;

    (void)state;
    reply_chunk_text(&y, &out, 0, STR("a longer text than those to come"), NULL);
    cap = out.cap;
    at = out.p;
    for (int i = 0; i < 1000; i++) {
        buf_clear(&out);
        reply_chunk_text(&y, &out, 0, STR("token"), NULL);
        assert_true(out.p == at && out.cap == cap);
    }
    buf_clear(&out);
    reply_release(&y);
}

static void every_error_has_its_status_and_code(void **state)
{
    static const struct {
        int err, status;
        const char *code, *type;
    } rows[] = {
        { E_INVALID, 400, "invalid_request", "invalid_request_error" },
        { E_CONTEXT, 400, "context_exceeded", "invalid_request_error" },
        { E_DENIED, 401, "unauthorized", "authentication_error" },
        { E_NOTFOUND, 404, "model_not_found", "invalid_request_error" },
        { E_QUEUE_FULL, 429, "queue_full", "rate_limit_error" },
        { E_MEMORY, 429, "memory_admission", "rate_limit_error" },
        { E_CONCURRENCY, 429, "concurrency_limit", "rate_limit_error" },
        { E_RATE, 429, "rate_limited", "rate_limit_error" },
        { E_SHUTDOWN, 503, "shutting_down", "server_error" },
        { E_LOADING, 503, "model_loading", "server_error" },
        { E_DEADLINE, 504, "deadline_exceeded", "timeout_error" },
        { E_CANCELLED, 499, "cancelled", "cancelled_error" },
        { E_NOMEM, 503, "memory_admission", "server_error" },
        { E_DEVICE_MEMORY, 500, "device_oom", "server_error" },
        { E_DEVICE, 503, "device_failed", "server_error" },
        { E_DAMAGED, 500, "model_damaged", "server_error" },
        { E_IO, 500, "model_load_failed", "server_error" },
        { E_FORMAT, 500, "model_load_failed", "server_error" },
        { E_UNSUPPORTED, 500, "model_load_failed", "server_error" },
        { E_INTERNAL, 500, "internal", "server_error" },
        { -55, 500, "internal", "server_error" },
    };

    const struct fail t = { 400, "t", "c" }, long_prompt = fail_lookup(E_CONTEXT);

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct fail f = fail_lookup(rows[i].err);
        assert_int_equal(f.status, rows[i].status);
        assert_string_equal(f.code, rows[i].code);
        assert_string_equal(f.type, rows[i].type);
    }
    fail_write_body(&out, FAIL_OPENAI, &t, "say \"no\"\xff", "messages[0]", "id-1");
    assert_out("{\"error\":{\"message\":\"say "
               "\\\"no\\\"\xef\xbf\xbd\",\"type\":\"t\",\"param\":\"messages[0]\","
               "\"code\":\"c\",\"correlation_id\":\"id-1\"}}");
    fail_write_body(&out, FAIL_OPENAI, &t, "m", "", NULL);
    assert_out("{\"error\":{\"message\":\"m\",\"type\":\"t\",\"param\":null,\"code\":\"c\"}}");
    fail_write_body(&out, FAIL_OPENAI, &long_prompt, "m", "messages", NULL);
    assert_out("{\"error\":{\"message\":\"m\",\"type\":\"invalid_request_error\","
               "\"param\":\"messages\",\"code\":\"context_length_exceeded\","
               "\"tern_code\":\"context_exceeded\"}}");
    fail_write_body(&out, FAIL_ANTHROPIC, &long_prompt, "m", "messages", "id-1");
    assert_out("{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\","
               "\"message\":\"m\",\"param\":\"messages\",\"tern_code\":\"context_exceeded\"},"
               "\"request_id\":\"id-1\"}");
    fail_write_body(&out, FAIL_OLLAMA, &long_prompt, "m", "messages", "id-1");
    assert_out("{\"error\":\"m\"}");
    assert_int_equal(fail_form_of(STR("/v1/messages/count_tokens")), FAIL_ANTHROPIC);
    assert_int_equal(fail_form_of(STR("/api/chat")), FAIL_OLLAMA);
    assert_int_equal(fail_form_of(STR("/api/v1/models")), FAIL_OPENAI);
    assert_int_equal(fail_form_of(STR("/v1/responses")), FAIL_OPENAI);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chat_chunks_are_written_byte_for_byte),
        cmocka_unit_test(completion_chunks_are_written_byte_for_byte),
        cmocka_unit_test(usage_is_null_until_the_last_chunk),
        cmocka_unit_test(bodies_are_written_byte_for_byte),
        cmocka_unit_test(logprobs_of_chat_contain_the_bytes_of_tokens),
        cmocka_unit_test(logprobs_of_completions_are_four_lists),
        cmocka_unit_test(writing_chunks_allocates_nothing_after_the_first),
        cmocka_unit_test(every_error_has_its_status_and_code),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
