/* Frames and their payloads: the bytes of the header, the limits of each type, the JSON messages.
 * Reads no files. */
#include "support.h"

#include "api/api.h"
#include "base/arena.h"
#include "worker/frame.h"
#include "worker/handshake.h"
#include "worker/message.h"

#include <string.h>

static int unpack(struct frame f, enum frame_role from, bool *known, struct err *e)
{
    unsigned char head[FRAME_HEAD];
    struct frame out;

    frame_pack(head, &f);
    return frame_unpack(&out, known, head, from, 1000, e);
}

static void assert_refused(struct frame f, enum frame_role from, const char *why)
{
    struct err e = { 0 };
    bool known;

    assert_int_equal(unpack(f, from, &known, &e), E_FORMAT);
    if (!strstr(e.msg, why)) fail_msg("'%s' is not in '%s'", why, e.msg);
    assert_non_null(strstr(e.msg, "at byte 1000"));
}

static void a_header_has_the_bytes_of_the_specification(void **state)
{
    struct frame f = { .type = FRAME_DATA, .n = 0x1234, .stream = 0x0102030405060708u }, g;
    unsigned char head[FRAME_HEAD];
    bool known;
    static const unsigned char want[] = { 0x34, 0x12, 0, 0, 35, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1 };

    (void)state;
    frame_pack(head, &f);
    assert_memory_equal(head, want, FRAME_HEAD);
    assert_int_equal(frame_unpack(&g, &known, head, FRAME_WORKER, 0, NULL), OK);
    assert_true(known);
    assert_int_equal(g.type, FRAME_DATA);
    assert_int_equal(g.n, 0x1234);
    assert_int_equal(g.stream, f.stream);
}

static void what_a_type_does_not_allow_is_refused_by_name(void **state)
{
    struct err e = { 0 };
    bool known;

    (void)state;
    assert_refused((struct frame){ .type = FRAME_DATA, .n = FRAME_BULK + 1, .stream = 7 },
                   FRAME_WORKER, "frame DATA on stream 7 at byte 1000: 65537 bytes");
    assert_refused((struct frame){ .type = FRAME_DATA, .stream = 7 }, FRAME_SERVER,
                   "the server must not send it");
    assert_refused((struct frame){ .type = FRAME_REQUEST, .stream = 7 }, FRAME_WORKER,
                   "the worker must not send it");
    assert_refused((struct frame){ .type = FRAME_DATA }, FRAME_WORKER, "needs a stream");
    assert_refused((struct frame){ .type = FRAME_PING, .stream = 1 }, FRAME_WORKER,
                   "must be on stream 0");
    assert_refused((struct frame){ .type = FRAME_DATA, .flags = FRAME_LAST, .stream = 1 },
                   FRAME_WORKER, "flags 0x01");
    assert_refused((struct frame){ .type = FRAME_CREDIT, .n = 3, .stream = 1 }, FRAME_WORKER,
                   "4 bytes");
    assert_refused((struct frame){ .type = 0 }, FRAME_WORKER, "of type 0 on stream 0");
    assert_refused((struct frame){ .type = 200 }, FRAME_WORKER, "unknown type");
    assert_int_equal(unpack((struct frame){ .type = FRAME_END, .n = 16 << 10, .stream = 1 },
                            FRAME_WORKER, &known, &e),
                     OK);
}

static void reserved_bytes_must_be_zero(void **state)
{
    unsigned char head[FRAME_HEAD] = { [4] = FRAME_PING, [7] = 1 };
    struct frame f;
    struct err e;
    bool known;

    (void)state;
    assert_int_equal(frame_unpack(&f, &known, head, FRAME_WORKER, 0, &e), E_FORMAT);
    assert_non_null(strstr(e.msg, "bytes 6 and 7"));
}

static void an_unknown_type_may_be_ignored_if_it_says_so(void **state)
{
    struct frame f = { .type = 99, .flags = FRAME_MAY_IGNORE | 0x0a, .n = FRAME_IGNORED_MAX };
    bool known = true;

    (void)state;
    assert_int_equal(unpack(f, FRAME_WORKER, &known, NULL), OK);
    assert_false(known);
    f.n++;
    assert_refused(f, FRAME_WORKER, "over 65536 bytes");
}

static void every_type_has_a_name_and_a_limit(void **state)
{
    int n = 0;

    (void)state;
    for (int t = -1; t < 300; t++) {
        if (frame_max(t) == 0) {
            assert_string_equal(frame_name(t), "?");
            continue;
        }
        n++;
        assert_true(frame_max(t) <= 1 << 20);
        assert_int_equal(frame_is_bulk(t) + frame_is_json(t) + (t == FRAME_CREDIT), 1);
    }
    assert_int_equal(n, 23);
}

/* ---- messages ---- */

static void a_request_survives_the_way_there(void **state)
{
    struct msg_request m = { .method = "POST",
                             .path = "/v1/chat/completions",
                             .query = "a=b",
                             .headers = { { "x-deadline-ms", "100" }, { "accept", "\"q\"\n" } },
                             .n_headers = 2,
                             .tenant = { "alice", 3, -2, true },
                             .id = "req-1",
                             .peer = "127.0.0.1:5",
                             .deadline_ms = 1500,
                             .age_ms = 2,
                             .body_bytes = 1 << 30 },
                       got;
    struct buf b = { 0 };
    struct arena a = { 0 };
    struct err e;

    (void)state;
    msg_write_request(&b, &m);
    if (msg_read_request(&got, &a, buf_str(&b), &e) != OK) fail_msg("%s", e.msg);
    assert_string_equal(got.method, "POST");
    assert_string_equal(got.path, m.path);
    assert_string_equal(got.query, "a=b");
    assert_int_equal(got.n_headers, 2);
    assert_string_equal(msg_header(got.headers, 2, "accept"), "\"q\"\n");
    assert_null(msg_header(got.headers, 2, "accepts"));
    assert_string_equal(got.tenant.name, "alice");
    assert_int_equal(got.tenant.index, 3);
    assert_int_equal(got.tenant.priority_max, -2);
    assert_true(got.tenant.admin);
    assert_int_equal(got.deadline_ms, 1500);
    assert_int_equal(got.body_bytes, 1 << 30);
    arena_release(&a);
    buf_release(&b);
}

static void an_end_carries_all_of_api_end(void **state)
{
    struct api_end m = { .model = "tales",
                         .status = 200,
                         .code = "",
                         .finish = "stop",
                         .gone = "",
                         .stream = true,
                         .n_choices = 1,
                         .prompt_tokens = 7,
                         .cached_tokens = 3,
                         .output_tokens = 40,
                         .total_ms = 12.5,
                         .queue_ms = 1,
                         .prefill_ms = 2,
                         .decode_ms = 3,
                         .first_ms = 4,
                         .has_phases = true,
                         .admission_ms = 5,
                         .scheduling_ms = 6,
                         .dispatch_ms = 7,
                         .compute_ms = 8,
                         .prompt = { "a\0b", 3 } },
                   got;
    struct buf b = { 0 }, again = { 0 };
    struct arena a = { 0 };
    struct err e;

    (void)state;
    msg_write_end(&b, &m);
    if (msg_read_end(&got, &a, buf_str(&b), &e) != OK) fail_msg("%s", e.msg);
    msg_write_end(&again, &got);
    assert_int_equal(b.n, again.n);
    assert_memory_equal(b.p, again.p, b.n);
    assert_string_equal(got.finish, "stop");
    assert_string_equal(got.code, "");
    assert_true(got.has_phases && got.stream);
    assert_true(got.total_ms == 12.5 && got.compute_ms == 8);
    assert_int_equal(got.prompt.n, 3);
    assert_memory_equal(got.prompt.p, "a\0b", 3);
    arena_release(&a);
    buf_release(&b);
    buf_release(&again);
}

static void lists_and_raw_json_survive(void **state)
{
    struct msg_ready m = { .task = "generate",
                           .name = "Tales",
                           .n_ctx = 512,
                           .weight_bytes = UINT64_MAX, /* cut to what JSON integers hold */
                           .load_ms = 1.25,
                           .chat = true,
                           .device = { { "cpu", 1, 2, 3 }, { "cuda:0", 4, 5, 6 } },
                           .n_devices = 2,
                           .more = STR("{\"a\": [1, null]}") },
                     got;
    struct buf b = { 0 };
    struct arena a = { 0 };
    struct err e;

    (void)state;
    msg_write_ready(&b, &m);
    if (msg_read_ready(&got, &a, buf_str(&b), &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(got.n_devices, 2);
    assert_string_equal(got.device[1].name, "cuda:0");
    assert_int_equal(got.device[1].scratch_bytes, 6);
    assert_int_equal(got.weight_bytes, INT64_MAX);
    assert_true(got.chat && got.load_ms == 1.25);
    assert_string_equal(got.arch, ""); /* missing texts are empty, not NULL */
    assert_true(str_is(got.more, "{\"a\":[1,null]}"));
    arena_release(&a);
    buf_release(&b);
}

/* Sizes follow from it: not a bit may be lost. */
static void the_room_of_a_model_survives_exactly(void **state)
{
    struct msg_room m = { (1ull << 62) + 1, 7, 5, 3, 1.0 / 3, 2.0 / 3 }, got;
    struct buf b = { 0 };
    struct arena a = { 0 };
    struct err e;

    (void)state;
    msg_write_room(&b, &m);
    if (msg_read_room(&got, &a, buf_str(&b), &e) != OK) fail_msg("%s", e.msg);
    assert_memory_equal(&got, &m, sizeof m);
    assert_int_equal(msg_read_room(&got, &a, STR("{}"), &e), OK); /* nothing is known */
    assert_int_equal(got.host_bytes, 0);
    arena_release(&a);
    buf_release(&b);
}

/* Every table of keys ends where it should: an empty message is read, and what is written, too. */
static void small_messages_survive(void **state)
{
    struct msg_sleep sleep;
    struct msg_asleep asleep;
    struct msg_admit admit;
    struct msg_stop stop;
    struct msg_failure failure;
    struct msg_progress progress;
    struct buf b = { 0 };
    struct arena a = { 0 };
    struct err e;

    (void)state;
    msg_write_sleep(&b, &(struct msg_sleep){ 1 << 20 });
    assert_int_equal(msg_read_sleep(&sleep, &a, buf_str(&b), &e), OK);
    assert_int_equal(sleep.park_bytes, 1 << 20);
    assert_int_equal(msg_read_sleep(&sleep, &a, STR("{}"), &e), OK);
    assert_int_equal(sleep.park_bytes, 0);
    buf_clear(&b);
    msg_write_asleep(&b, &(struct msg_asleep){ 12, 4096 });
    assert_true(str_is(buf_str(&b), "{\"parked_blocks\":12,\"parked_bytes\":4096}"));
    assert_int_equal(msg_read_asleep(&asleep, &a, buf_str(&b), &e), OK);
    assert_int_equal(asleep.parked_blocks, 12);
    assert_int_equal(asleep.parked_bytes, 4096);
    assert_int_equal(msg_read_asleep(&asleep, &a, STR("{}"), &e), OK);
    assert_int_equal(msg_read_admit(&admit, &a, STR("{}"), &e), OK);
    assert_int_equal(msg_read_stop(&stop, &a, STR("{}"), &e), OK);
    assert_int_equal(msg_read_failure(&failure, &a, STR("{\"code\":\"io\"}"), &e), OK);
    assert_int_equal(msg_read_progress(&progress, &a, STR("{\"percent\":1}"), &e), OK);
    arena_release(&a);
    buf_release(&b);
}

struct bad {
    const char *json, *why;
};

static void assert_bad(struct bad b, int (*read)(struct str json, struct arena *a, struct err *e))
{
    struct arena a = { 0 };
    struct err e = { 0 };

    if (read(str_c(b.json), &a, &e) != E_FORMAT) fail_msg("accepted: %s", b.json);
    if (!strstr(e.msg, b.why)) fail_msg("'%s' is not in '%s'", b.why, e.msg);
    arena_release(&a);
}

static int read_hello(struct str json, struct arena *a, struct err *e)
{
    struct msg_hello m;
    return msg_read_hello(&m, a, json, e);
}

static int read_plan(struct str json, struct arena *a, struct err *e)
{
    struct msg_plan m;
    return msg_read_plan(&m, a, json, e);
}

static int read_room(struct str json, struct arena *a, struct err *e)
{
    struct msg_room m;
    return msg_read_room(&m, a, json, e);
}

static int read_reply(struct str json, struct arena *a, struct err *e)
{
    struct msg_reply m;
    return msg_read_reply(&m, a, json, e);
}

static int read_cancel(struct str json, struct arena *a, struct err *e)
{
    struct msg_cancel m;
    return msg_read_cancel(&m, a, json, e);
}

static void bad_payloads_are_refused_by_key(void **state)
{
    static const struct bad hello[] = {
        { "", "frame HELLO" },
        { "[]", "must be a JSON object" },
        { "{}", "role: is missing" },
        { "{\"role\":7}", "role: must be a string" },
        { "{\"role\":\"a\\u0000b\"}", "role: the text holds a NUL byte" },
        { "{\"role\":\"worker\",\"version_min\":0}", "version_min: the number is out of range" },
        { "{\"role\":\"worker\",\"version_min\":1.5}", "version_min: must be an integer" },
        { "{\"role\":\"worker\",\"role\":\"server\"}", "duplicate" },
        { "{\"role\":\"worker\"} x", "frame HELLO" },
    };
    static const struct bad plan[] = {
        { "{\"devices\":{}}", "devices: must be an array" },
        { "{\"devices\":[{}]}", "name: is missing" },
        { "{\"devices\":[3]}", "must be a JSON object" },
        { "{\"devices\":[{\"name\":\"cpu\",\"kv_bytes\":-1}]}", "kv_bytes: the number is out" },
        { "{\"devices\":[{\"name\":\"cpu\",\"kv_bytes\":1e30}]}", "kv_bytes: must be an integer" },
        { "{\"devices\":[0,0,0,0,0,0,0,0,0]}", "devices: has too many items" },
        { "{\"kv_tokens\":4294967296}", "kv_tokens: the number is out of range" },
        { "{\"refused\":[]}", "refused: must be a string" },
    };
    static const struct bad room[] = {
        { "{\"host_bytes\":-1}", "host_bytes: the number is out of range" },
        { "{\"limit_bytes\":\"1\"}", "limit_bytes: must be an integer" },
        { "{\"share\":-0.5}", "share: must not be negative" },
        { "{\"share\":null}", "share: must be a number" },
    };
    static const struct bad reply[] = {
        { "{\"status\":99}", "status: the number is out of range" },
        { "{\"status\":200,\"streamed\":1}", "streamed: must be true or false" },
        { "{\"status\":200,\"headers\":[[\"a\"]]}", "headers: must hold pairs" },
        { "{\"status\":200,\"headers\":[[\"a\",1]]}", "headers: must be a string" },
    };
    static const struct bad cancel[] = { { "{\"why\":\"because\"}", "why: unknown value" } };

    (void)state;
    for (size_t i = 0; i < sizeof hello / sizeof *hello; i++) assert_bad(hello[i], read_hello);
    for (size_t i = 0; i < sizeof plan / sizeof *plan; i++) assert_bad(plan[i], read_plan);
    for (size_t i = 0; i < sizeof room / sizeof *room; i++) assert_bad(room[i], read_room);
    for (size_t i = 0; i < sizeof reply / sizeof *reply; i++) assert_bad(reply[i], read_reply);
    assert_bad(cancel[0], read_cancel);
}

static void keys_of_later_versions_are_ignored(void **state)
{
    struct msg_progress m;
    struct arena a = { 0 };

    (void)state;
    assert_int_equal(msg_read_progress(&m, &a, STR("{\"percent\":40,\"eta\":{\"s\":[3]}}"), NULL),
                     OK);
    assert_int_equal(m.percent, 40);
    assert_string_equal(m.stage, "");
    arena_release(&a);
}

static void every_reason_to_cancel_has_a_word(void **state)
{
    (void)state;
    for (int i = 0; i < N_MSG_WHY; i++) {
        struct msg_cancel m = { i }, got;
        struct buf b = { 0 };
        struct arena a = { 0 };
        msg_write_cancel(&b, &m);
        assert_int_equal(msg_read_cancel(&got, &a, buf_str(&b), NULL), OK);
        assert_int_equal(got.why, i);
        buf_release(&b);
        arena_release(&a);
    }
}

/* ---- the proof of the token ---- */

static void a_mac_depends_on_token_role_and_both_hellos(void **state)
{
    char mac[6][HANDSHAKE_HEX + 1];
    const struct str token = STR("0123456789abcdef"), s = STR("{1}"), w = STR("{2}");

    (void)state;
    assert_int_equal(handshake_mac(mac[0], token, FRAME_SERVER, s, w, NULL), OK);
    assert_int_equal(handshake_mac(mac[1], token, FRAME_WORKER, s, w, NULL), OK);
    assert_int_equal(handshake_mac(mac[2], STR("0123456789abcdeX"), FRAME_SERVER, s, w, NULL), OK);
    assert_int_equal(handshake_mac(mac[3], token, FRAME_SERVER, w, s, NULL), OK);
    assert_int_equal(handshake_mac(mac[4], token, FRAME_SERVER, s, STR("{2"), NULL), OK);
    assert_int_equal(handshake_mac(mac[5], token, FRAME_SERVER, s, w, NULL), OK);
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < i; k++) assert_false(handshake_equal(mac[i], mac[k]));
    assert_true(handshake_equal(mac[0], mac[5]));
    assert_true(handshake_is_hex(mac[0]));
    /* Computed with Python's hmac module: the specification, not this code, says so. */
    assert_string_equal(mac[0], "9872df6c75682e1d237ea110b256f1a194742839f7cc2b9217048abb19f238f1");
}

static void nonces_differ(void **state)
{
    char a[HANDSHAKE_HEX + 1], b[HANDSHAKE_HEX + 1];

    (void)state;
    assert_int_equal(handshake_nonce(a, NULL), OK);
    assert_int_equal(handshake_nonce(b, NULL), OK);
    assert_true(handshake_is_hex(a) && handshake_is_hex(b));
    assert_string_not_equal(a, b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_header_has_the_bytes_of_the_specification),
        cmocka_unit_test(what_a_type_does_not_allow_is_refused_by_name),
        cmocka_unit_test(reserved_bytes_must_be_zero),
        cmocka_unit_test(an_unknown_type_may_be_ignored_if_it_says_so),
        cmocka_unit_test(every_type_has_a_name_and_a_limit),
        cmocka_unit_test(a_request_survives_the_way_there),
        cmocka_unit_test(an_end_carries_all_of_api_end),
        cmocka_unit_test(lists_and_raw_json_survive),
        cmocka_unit_test(the_room_of_a_model_survives_exactly),
        cmocka_unit_test(small_messages_survive),
        cmocka_unit_test(bad_payloads_are_refused_by_key),
        cmocka_unit_test(keys_of_later_versions_are_ignored),
        cmocka_unit_test(every_reason_to_cancel_has_a_word),
        cmocka_unit_test(a_mac_depends_on_token_role_and_both_hellos),
        cmocka_unit_test(nonces_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
