/* A connection between server and worker: handshake, streams, credit, heartbeat, and peers that
 * break the rules. Reads no files. */
#include "link_world.h"

#include "worker/handshake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/un.h>

enum { BIG = 3 << 20 };

static char *make_bytes(size_t n)
{
    char *p = malloc(n);

    assert_non_null(p);
    for (size_t i = 0; i < n; i++) p[i] = (char)(i * 2654435761u >> 13);
    return p;
}

/* ---- the handshake ---- */

static void two_ends_that_have_the_token_open(void **state)
{
    struct link_world w;

    (void)state;
    world_connect(&w);
    assert_true(link_is_open(w.server.l) && link_is_open(w.worker.l));
    assert_string_equal(link_peer_build(w.server.l), "tern test");
    assert_string_equal(link_peer_name(w.server.l), "tales");
    assert_int_equal(link_peer_pid(w.server.l), getpid());
    world_release(&w);
}

static void another_token_is_denied_on_both_sides(void **state)
{
    struct link_world w;
    struct link_opt opt;
    int fd[2];

    (void)state;
    world_init(&w);
    socket_pair(fd);
    end_open(&w.server, end_opt(&w, &w.server, fd[0], FRAME_SERVER));
    opt = end_opt(&w, &w.worker, fd[1], FRAME_WORKER);
    opt.token = STR("another-token-of-32-bytes-length");
    end_open(&w.worker, opt);
    PUMP(&w, w.server.closed && w.worker.closed);
    assert_false(w.server.opened || w.worker.opened);
    assert_true(w.server.why == LINK_DENIED || w.server.why == LINK_REFUSED);
    assert_true(w.worker.why == LINK_DENIED || w.worker.why == LINK_REFUSED);
    assert_int_equal(w.server.err.code, E_DENIED);
    assert_non_null(strstr(w.server.err.msg, "token"));
    world_release(&w);
}

static void two_servers_do_not_open(void **state)
{
    struct link_world w;
    int fd[2];

    (void)state;
    world_init(&w);
    socket_pair(fd);
    end_open(&w.server, end_opt(&w, &w.server, fd[0], FRAME_SERVER));
    end_open(&w.worker, end_opt(&w, &w.worker, fd[1], FRAME_SERVER));
    PUMP(&w, w.server.closed && w.worker.closed);
    assert_false(w.server.opened || w.worker.opened);
    assert_true(w.server.why == LINK_DENIED || w.worker.why == LINK_DENIED);
    world_release(&w);
}

static void a_short_token_and_a_foreign_process_are_refused_at_once(void **state)
{
    struct link_world w;
    struct link_opt opt;
    struct err e;
    int fd[2];

    (void)state;
    world_init(&w);
    socket_pair(fd);
    opt = end_opt(&w, &w.server, fd[0], FRAME_SERVER);
    opt.token = STR("short");
    assert_int_equal(link_open(&w.server.l, &opt, &e), E_INVALID);
    assert_int_equal(fcntl(fd[0], F_GETFD), -1); /* the descriptor is the link's, also then */
    opt = end_opt(&w, &w.server, fd[1], FRAME_SERVER);
    opt.peer_pid = getpid() + 1;
    assert_int_equal(link_open(&w.server.l, &opt, &e), E_DENIED);
    assert_non_null(strstr(e.msg, "the peer is process"));
    assert_int_equal(fcntl(fd[1], F_GETFD), -1);
    world_release(&w);
}

/* ---- a peer by hand ---- */

static void open_raw(struct link_world *w, enum frame_role role)
{
    struct end *x = role == FRAME_SERVER ? &w->server : &w->worker;
    int fd[2];

    world_init(w);
    socket_pair(fd);
    w->raw = fd[1];
    end_open(x, end_opt(w, x, fd[0], role));
}

static void hello_text(struct buf *b, enum frame_role role, int low, int high)
{
    struct msg_hello m = { .role = frame_role_name(role),
                           .version_min = low,
                           .version_max = high,
                           .nonce = "00112233445566778899aabbccddeeff"
                                    "00112233445566778899aabbccddeeff",
                           .window = 1000,
                           .max_streams = 2 };
    msg_write_hello(b, &m);
}

/* A stranger's side of the handshake, from docs/protocol.md. */
static void shake_hands(struct link_world *w, enum frame_role role)
{
    struct buf mine = { 0 }, theirs = { 0 }, b = { 0 };
    char mac[HANDSHAKE_HEX + 1];
    struct msg_welcome m = { .version = 1, .mac = mac };
    struct frame f;
    bool server = role == FRAME_SERVER;

    hello_text(&mine, role, 1, 3);
    raw_send(w->raw, FRAME_HELLO, 0, 0, buf_str(&mine));
    assert_true(raw_recv(w, &f, &theirs));
    assert_int_equal(f.type, FRAME_HELLO);
    assert_int_equal(handshake_mac(mac, str_c(TOKEN), role, buf_str(server ? &mine : &theirs),
                                   buf_str(server ? &theirs : &mine), NULL),
                     OK);
    msg_write_welcome(&b, &m);
    raw_send(w->raw, FRAME_WELCOME, 0, 0, buf_str(&b));
    assert_true(raw_recv(w, &f, &b));
    assert_int_equal(f.type, FRAME_WELCOME);
    PUMP(w, w->server.opened || w->worker.opened);
    buf_release(&mine), buf_release(&theirs), buf_release(&b);
}

/* Reads until ERROR and then the end of the connection. */
static void assert_error_frame(struct link_world *w, const char *code)
{
    struct buf b = { 0 };
    struct arena a = { 0 };
    struct msg_error m = { 0 };
    struct frame f;
    bool found = false;

    while (raw_recv(w, &f, &b))
        if (f.type == FRAME_ERROR) {
            found = true;
            assert_int_equal(msg_read_error(&m, &a, buf_str(&b), NULL), OK);
            assert_string_equal(m.code, code);
        }
    assert_true(found);
    arena_release(&a);
    buf_release(&b);
}

static void another_version_is_refused_with_a_typed_error(void **state)
{
    struct link_world w;
    struct buf b = { 0 };

    (void)state;
    open_raw(&w, FRAME_SERVER);
    hello_text(&b, FRAME_WORKER, 2, 3);
    raw_send(w.raw, FRAME_HELLO, 0, 0, buf_str(&b));
    PUMP(&w, w.server.closed);
    assert_int_equal(w.server.why, LINK_DENIED);
    assert_non_null(strstr(w.server.err.msg, "speaks versions 2 to 3, we speak 1"));
    assert_error_frame(&w, "version");
    buf_release(&b);
    world_release(&w);
}

static void a_mac_cannot_be_sent_back(void **state)
{
    struct link_world w;
    struct buf mine = { 0 }, b = { 0 };
    struct frame f;

    (void)state;
    open_raw(&w, FRAME_SERVER);
    hello_text(&mine, FRAME_WORKER, 1, 1);
    raw_send(w.raw, FRAME_HELLO, 0, 0, buf_str(&mine));
    assert_true(raw_recv(&w, &f, &b));
    assert_true(raw_recv(&w, &f, &b));
    assert_int_equal(f.type, FRAME_WELCOME);
    raw_send(w.raw, FRAME_WELCOME, 0, 0, buf_str(&b));
    PUMP(&w, w.server.closed);
    assert_int_equal(w.server.why, LINK_DENIED);
    assert_error_frame(&w, "token");
    buf_release(&mine), buf_release(&b);
    world_release(&w);
}

static void nothing_but_the_handshake_comes_first(void **state)
{
    struct link_world w;

    (void)state;
    open_raw(&w, FRAME_SERVER);
    raw_send(w.raw, FRAME_READY, 0, 0, STR("{}"));
    PUMP(&w, w.server.closed);
    assert_int_equal(w.server.why, LINK_PROTOCOL);
    assert_error_frame(&w, "state");
    world_release(&w);
}

static void a_peer_that_says_nothing_is_given_up(void **state)
{
    struct link_world w;
    struct link_opt opt;
    int fd[2];

    (void)state;
    world_init(&w);
    socket_pair(fd);
    w.raw = fd[1];
    opt = end_opt(&w, &w.server, fd[0], FRAME_SERVER);
    opt.ping_ms = 5, opt.hello_ms = 20;
    end_open(&w.server, opt);
    PUMP(&w, w.server.closed);
    assert_int_equal(w.server.why, LINK_HANDSHAKE);
    world_release(&w);
}

/* ---- streams ---- */

static void answer_request(struct end *x, struct link_stream *s, const struct frame *f)
{
    (void)x;
    if (f->type != FRAME_REQUEST && f->type != FRAME_BODY) return;
    if (!(f->flags & FRAME_LAST)) return;
    link_stream_send(s, FRAME_REPLY, STR("{\"status\":200}"));
    assert_int_equal(link_write(s, "hello", 5, false), 5);
    assert_true(link_end_stream(s, STR("{\"status\":200}")));
}

static void a_request_is_answered_over_frames(void **state)
{
    struct link_world w;
    struct link_stream *s;

    (void)state;
    world_connect(&w);
    w.worker.on_frame = answer_request;
    s = link_request(w.server.l, STR("{\"method\":\"POST\"}"), false, &w);
    assert_non_null(s);
    assert_ptr_equal(s->user, &w);
    assert_int_equal(link_write(s, "body", 4, true), 4);
    PUMP(&w, w.server.n_type[FRAME_END] == 1);
    assert_true(str_is(buf_str(&w.worker.data), "body"));
    assert_true(str_is(buf_str(&w.server.data), "hello"));
    assert_int_equal(w.server.n_type[FRAME_REPLY], 1);
    world_release(&w);
}

/* The counters are what row "reuse" of /metrics shows: streams carried by one connection. */
static void one_connection_carries_many_streams(void **state)
{
    struct link_world w;
    struct link_stats st;

    (void)state;
    world_connect(&w);
    w.worker.on_frame = answer_request;
    for (int i = 1; i <= 1000; i++) {
        assert_non_null(link_request(w.server.l, STR("{}"), true, NULL));
        if (i % 7 == 0) PUMP(&w, w.server.n_type[FRAME_END] == i);
    }
    PUMP(&w, w.server.n_type[FRAME_END] == 1000);
    link_stats(w.server.l, &st);
    assert_int_equal(st.streams, 1000);
    assert_int_equal(st.open_streams, 0);
    assert_int_equal(st.most_streams, 7);
    assert_true(st.writes < st.frames_out); /* frames of a turn leave together */
    link_stats(w.worker.l, &st);
    assert_int_equal(st.streams, 1000);
    assert_true(st.writes < st.frames_out);
    world_release(&w);
}

static void no_buffer_is_allocated_once_it_runs(void **state)
{
    struct link_world w;
    struct link_stats before, after;

    (void)state;
    world_connect(&w);
    assert_non_null(link_request(w.server.l, STR("{}"), true, NULL));
    PUMP(&w, w.worker.s);
    link_stream_send(w.worker.s, FRAME_REPLY, STR("{\"status\":200}"));
    for (int i = 0; i < 3000; i++) {
        if (i == 100) link_stats(w.worker.l, &before);
        assert_int_equal(link_write(w.worker.s, "data: token\n\n", 13, false), 13);
        PUMP(&w, w.server.n_type[FRAME_DATA] == i + 1);
        buf_clear(&w.server.data);
    }
    link_stats(w.worker.l, &after);
    assert_int_equal(before.buffers, after.buffers);
    link_stats(w.server.l, &after);
    assert_true(after.buffers <= 2);
    world_release(&w);
}

static void a_large_body_obeys_credit_and_arrives_whole(void **state)
{
    struct link_world w;
    char *p = make_bytes(BIG);
    struct link_stream *s;
    struct link_stats st;

    (void)state;
    world_connect(&w);
    w.worker.hoard = true;
    w.server.to_send = p, w.server.n_to_send = BIG;
    s = link_request(w.server.l, STR("{}"), false, NULL);
    end_pour(&w.server, s);
    settle(&w);
    assert_int_equal(w.server.n_sent, 256 << 10); /* the window, and no byte more */
    assert_int_equal(w.worker.data.n, 256 << 10);
    assert_int_equal(link_room(s), 0);
    w.worker.hoard = false;
    link_consumed(w.worker.s, 256 << 10);
    PUMP(&w, w.worker.last_flag);
    assert_int_equal(w.worker.data.n, BIG);
    assert_memory_equal(w.worker.data.p, p, BIG);
    link_stats(w.server.l, &st);
    assert_true(st.blocked > 0);
    free(p);
    world_release(&w);
}

static void one_stream_without_credit_does_not_stop_another(void **state)
{
    struct link_world w;
    char *p = make_bytes(BIG);
    struct link_stream *stuck;

    (void)state;
    world_connect(&w);
    w.worker.hoard = true;
    stuck = link_request(w.server.l, STR("{}"), false, NULL);
    assert_true(link_write(stuck, p, BIG, true) < BIG);
    settle(&w);
    w.worker.on_frame = answer_request;
    assert_non_null(link_request(w.server.l, STR("{}"), true, NULL));
    PUMP(&w, w.server.n_type[FRAME_END] == 1);
    free(p);
    world_release(&w);
}

static void a_payload_can_be_kept(void **state)
{
    struct link_world w;
    char *p = make_bytes(BIG);
    struct link_stream *s;

    (void)state;
    world_connect(&w);
    w.worker.hold_next = true;
    w.server.to_send = p, w.server.n_to_send = BIG;
    s = link_request(w.server.l, STR("{}"), false, NULL);
    end_pour(&w.server, s);
    PUMP(&w, w.worker.last_flag);
    assert_memory_equal(w.worker.held_p, p, w.worker.held_n);
    assert_memory_equal(w.worker.data.p, p, BIG);
    link_close(w.worker.l);
    w.worker.l = NULL;
    assert_memory_equal(w.worker.held_p, p, w.worker.held_n); /* also after the link */
    link_buf_unref(w.worker.held);
    free(p);
    world_release(&w);
}

static void frames_for_a_stream_that_has_ended_are_no_mistake(void **state)
{
    struct link_world w;

    (void)state;
    open_raw(&w, FRAME_WORKER);
    shake_hands(&w, FRAME_SERVER);
    w.worker.on_frame = answer_request;
    raw_send(w.raw, FRAME_REQUEST, FRAME_LAST, 5, STR("{}"));
    PUMP(&w, w.worker.n_type[FRAME_REQUEST] == 1);
    raw_send(w.raw, FRAME_CANCEL, 0, 5, STR("{\"why\":\"gone\"}"));
    raw_send(w.raw, FRAME_BODY, 0, 5, STR("late"));
    raw_send(w.raw, FRAME_CREDIT, 0, 5, STR("\1\0\0\0"));
    raw_send(w.raw, FRAME_REQUEST, FRAME_LAST, 6, STR("{}"));
    PUMP(&w, w.worker.n_type[FRAME_REQUEST] == 2);
    assert_false(w.worker.closed);
    assert_int_equal(w.worker.n_type[FRAME_CANCEL], 0);
    world_release(&w);
}

static void the_server_obeys_the_workers_limit_of_streams(void **state)
{
    struct link_world w;

    (void)state;
    open_raw(&w, FRAME_SERVER);
    shake_hands(&w, FRAME_WORKER);
    assert_non_null(link_request(w.server.l, STR("{}"), true, NULL));
    assert_non_null(link_request(w.server.l, STR("{}"), true, NULL));
    assert_null(link_request(w.server.l, STR("{}"), true, NULL));
    assert_true(link_is_open(w.server.l));
    raw_send(w.raw, FRAME_END, 0, 1, STR("{\"status\":503}"));
    PUMP(&w, w.server.n_type[FRAME_END] == 1);
    assert_non_null(link_request(w.server.l, STR("{}"), true, NULL));
    world_release(&w);
}

static void input_may_be_cut_anywhere(void **state)
{
    struct link_world w;
    struct buf b = { 0 };
    unsigned char head[FRAME_HEAD];

    (void)state;
    open_raw(&w, FRAME_WORKER);
    shake_hands(&w, FRAME_SERVER);
    for (int i = 1; i <= 20; i++) {
        struct frame f = { .type = FRAME_REQUEST, .n = 2, .stream = (uint64_t)i };
        frame_pack(head, &f);
        buf_add(&b, head, FRAME_HEAD), buf_puts(&b, "{}");
        f.type = FRAME_BODY, f.flags = FRAME_LAST, f.n = 3;
        frame_pack(head, &f);
        buf_add(&b, head, FRAME_HEAD), buf_puts(&b, "abc");
    }
    for (size_t i = 0; i < b.n; i++) {
        assert_int_equal(send(w.raw, b.p + i, 1, 0), 1);
        settle(&w);
    }
    assert_int_equal(w.worker.n_type[FRAME_REQUEST], 20);
    assert_int_equal(w.worker.data.n, 60);
    buf_release(&b);
    world_release(&w);
}

static void a_frame_larger_than_a_buffer_arrives(void **state)
{
    struct link_world w;
    struct buf b = { 0 };

    (void)state;
    world_connect(&w);
    buf_puts(&b, "{\"task\":\"generate\",\"name\":\"");
    while (b.n < 250000) buf_puts(&b, "0123456789");
    buf_puts(&b, "\"}");
    assert_true(link_send(w.worker.l, FRAME_READY, buf_str(&b)));
    PUMP(&w, w.server.n_type[FRAME_READY] == 1);
    assert_int_equal(w.server.last.n, b.n);
    assert_memory_equal(w.server.last.p, b.p, b.n);
    assert_false(link_send(w.worker.l, FRAME_PLAN, buf_str(&b))); /* over the limit of its type */
    assert_true(link_is_open(w.worker.l));
    buf_release(&b);
    world_release(&w);
}

/* ---- peers that break the rules ---- */

struct offence {
    int type, flags;
    uint64_t stream;
    struct str payload;
    const char *code, *why;
};

static void assert_offence(enum frame_role role, const struct offence *o)
{
    struct link_world w;
    struct end *x;

    open_raw(&w, role);
    shake_hands(&w, frame_peer(role));
    x = role == FRAME_SERVER ? &w.server : &w.worker;
    if (role == FRAME_SERVER) { /* streams 1 (ended) and 2 (open) */
        assert_non_null(link_request(x->l, STR("{}"), true, NULL));
        assert_non_null(link_request(x->l, STR("{}"), true, NULL));
        raw_send(w.raw, FRAME_END, 0, 1, STR("{}"));
    } else {
        raw_send(w.raw, FRAME_REQUEST, 0, 1, STR("{}"));
        raw_send(w.raw, FRAME_BODY, FRAME_LAST, 1, STR("x"));
        raw_send(w.raw, FRAME_REQUEST, 0, 2, STR("{}"));
    }
    raw_send(w.raw, o->type, o->flags, o->stream, o->payload);
    PUMP(&w, x->closed);
    assert_int_equal(x->why, LINK_PROTOCOL);
    if (!strstr(x->err.msg, o->why)) fail_msg("'%s' is not in '%s'", o->why, x->err.msg);
    assert_int_equal(x->n_lost, role == FRAME_SERVER ? 1 : 2);
    assert_error_frame(&w, o->code);
    world_release(&w);
}

static void a_worker_that_breaks_the_rules_is_cut_off(void **state)
{
    static const struct offence all[] = {
        { FRAME_DATA, 0, 2, { "x", 1 }, "state", "DATA on stream 2 at byte" },
        { FRAME_DATA, 0, 2, { "x", 1 }, "state", "there was no REPLY" },
        { FRAME_END, 0, 1, { "{}", 2 }, "state", "the stream has ended" },
        { FRAME_REPLY, 0, 9, { "{}", 2 }, "state", "never opened" },
        { FRAME_CREDIT, 0, 2, { "\0\0\0\0", 4 }, "format", "grants nothing" },
        { FRAME_CREDIT, 0, 2, { "\377\377\377\377", 4 }, "flow", "more credit" },
        { FRAME_CREDIT, 0, 2, { "\377\377\377\177", 4 }, "flow", "more credit" },
        { FRAME_PONG, 0, 0, { "{\"n\":-1}", 8 }, "format", "n: the number is out of range" },
        { FRAME_HELLO, 0, 0, { "{}", 2 }, "state", "the handshake is over" },
        { FRAME_REQUEST, 0, 3, { "{}", 2 }, "format", "the worker must not send it" },
        { 77, 0, 0, { "", 0 }, "format", "frame of type 77" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) assert_offence(FRAME_SERVER, &all[i]);
}

static void a_server_that_breaks_the_rules_is_cut_off(void **state)
{
    static const struct offence all[] = {
        { FRAME_REQUEST, 0, 2, { "{}", 2 }, "state", "was opened before" },
        { FRAME_BODY, 0, 1, { "x", 1 }, "state", "the body has ended" },
        { FRAME_BODY, 0, 3, { "x", 1 }, "state", "never opened" },
        { FRAME_CANCEL, 0, 3, { "{}", 2 }, "state", "never opened" },
        { FRAME_REPLY, 0, 2, { "{}", 2 }, "format", "the server must not send it" },
        { FRAME_PING, 0, 0, { "{", 1 }, "format", "frame PING" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) assert_offence(FRAME_WORKER, &all[i]);
}

static void bytes_without_credit_are_refused(void **state)
{
    struct link_world w;
    struct link_opt opt;
    int fd[2];
    char bytes[600] = { 0 };

    (void)state;
    world_init(&w);
    socket_pair(fd);
    w.raw = fd[1];
    opt = end_opt(&w, &w.worker, fd[0], FRAME_WORKER);
    opt.window = 1000;
    end_open(&w.worker, opt);
    w.worker.hoard = true;
    shake_hands(&w, FRAME_SERVER);
    raw_send(w.raw, FRAME_REQUEST, 0, 1, STR("{}"));
    raw_send(w.raw, FRAME_BODY, 0, 1, str_of(bytes, 600));
    raw_send(w.raw, FRAME_BODY, 0, 1, str_of(bytes, 401));
    PUMP(&w, w.worker.closed);
    assert_int_equal(w.worker.data.n, 600);
    assert_non_null(strstr(w.worker.err.msg, "more bytes than were granted"));
    assert_error_frame(&w, "flow");
    world_release(&w);
}

static void too_many_streams_are_refused(void **state)
{
    struct link_world w;
    struct link_opt opt;
    int fd[2];

    (void)state;
    world_init(&w);
    socket_pair(fd);
    w.raw = fd[1];
    opt = end_opt(&w, &w.worker, fd[0], FRAME_WORKER);
    opt.max_streams = 3;
    end_open(&w.worker, opt);
    shake_hands(&w, FRAME_SERVER);
    for (int i = 1; i <= 4; i++) raw_send(w.raw, FRAME_REQUEST, 0, (uint64_t)i * 10, STR("{}"));
    PUMP(&w, w.worker.closed);
    assert_int_equal(w.worker.n_type[FRAME_REQUEST], 3);
    assert_int_equal(w.worker.n_lost, 3);
    assert_error_frame(&w, "limit");
    world_release(&w);
}

static void unknown_frames_that_may_be_ignored_are(void **state)
{
    struct link_world w;
    struct link_stats st;

    (void)state;
    open_raw(&w, FRAME_SERVER);
    shake_hands(&w, FRAME_WORKER);
    raw_send(w.raw, 90, FRAME_MAY_IGNORE, 12, STR("from the future"));
    raw_send(w.raw, FRAME_READY, 0, 0, STR("{\"task\":\"generate\"}"));
    PUMP(&w, w.server.n_type[FRAME_READY] == 1);
    link_stats(w.server.l, &st);
    assert_int_equal(st.ignored, 1);
    world_release(&w);
}

/* ---- ends ---- */

static void the_death_of_the_peer_is_noticed_and_streams_are_lost(void **state)
{
    struct link_world w;

    (void)state;
    world_connect(&w);
    for (int i = 0; i < 5; i++) assert_non_null(link_request(w.server.l, STR("{}"), true, NULL));
    PUMP(&w, w.worker.n_type[FRAME_REQUEST] == 5);
    link_close(w.worker.l);
    w.worker.l = NULL;
    PUMP(&w, w.server.closed);
    assert_int_equal(w.server.why, LINK_CLOSED);
    assert_int_equal(w.server.n_lost, 5);
    assert_false(w.worker.closed); /* no callback after one's own link_close */
    assert_null(link_request(w.server.l, STR("{}"), true, NULL));
    assert_false(link_send(w.server.l, FRAME_STOP, STR("{}")));
    world_release(&w);
}

static void what_the_peer_sent_before_it_died_is_read(void **state)
{
    struct link_world w;

    (void)state;
    open_raw(&w, FRAME_SERVER);
    shake_hands(&w, FRAME_WORKER);
    raw_send(w.raw, FRAME_FAILED, 0, 0, STR("{\"code\":\"format\"}"));
    close(w.raw);
    w.raw = -1;
    assert_true(link_send(w.server.l, FRAME_STOP, STR("{}"))); /* this write fails */
    link_flush(w.server.l);
    PUMP(&w, w.server.closed);
    assert_int_equal(w.server.n_type[FRAME_FAILED], 1);
    world_release(&w);
}

static void a_frame_that_is_cut_off_is_reported(void **state)
{
    struct link_world w;

    (void)state;
    open_raw(&w, FRAME_SERVER);
    shake_hands(&w, FRAME_WORKER);
    assert_int_equal(send(w.raw, "\7\0\0\0\24", 5, 0), 5);
    close(w.raw);
    w.raw = -1;
    PUMP(&w, w.server.closed);
    assert_int_equal(w.server.why, LINK_CLOSED);
    assert_non_null(strstr(w.server.err.msg, "in the middle of a frame"));
    world_release(&w);
}

static void a_link_may_be_closed_in_its_callback(void **state)
{
    struct link_world w;

    (void)state;
    world_connect(&w);
    w.worker.close_in_frame = true;
    assert_non_null(link_request(w.server.l, STR("{}"), false, NULL));
    assert_non_null(link_request(w.server.l, STR("{}"), false, NULL));
    PUMP(&w, w.server.closed);
    assert_null(w.worker.l);
    assert_int_equal(w.worker.n_frames, 1);
    world_release(&w);
}

static void a_peer_that_does_not_read_is_cut_off(void **state)
{
    struct link_world w;
    char text[1000];
    int n = 0;

    (void)state;
    open_raw(&w, FRAME_SERVER);
    shake_hands(&w, FRAME_WORKER);
    memset(text, ' ', sizeof text);
    text[0] = '{', text[999] = '}';
    while (link_send(w.server.l, FRAME_STOP, str_of(text, sizeof text))) n++, settle(&w);
    assert_true(n > 1000);
    PUMP(&w, w.server.closed);
    assert_int_equal(w.server.why, LINK_OVERFLOW);
    world_release(&w);
}

/* ---- the heartbeat ---- */

static void both_ends_hear_each_others_numbers(void **state)
{
    struct link_world w;
    struct link_opt opt;
    struct link_stats st;
    int fd[2];

    (void)state;
    world_init(&w);
    socket_pair(fd);
    w.worker.beat = (struct msg_beat){ .steps = 77, .running = 3, .waiting = 4 };
    opt = end_opt(&w, &w.server, fd[0], FRAME_SERVER);
    opt.ping_ms = 5;
    end_open(&w.server, opt);
    opt = end_opt(&w, &w.worker, fd[1], FRAME_WORKER);
    opt.ping_ms = 5;
    end_open(&w.worker, opt);
    PUMP(&w, w.server.n_heard >= 5 && w.worker.n_heard >= 5);
    assert_int_equal(w.server.heard.steps, 77);
    assert_int_equal(w.server.heard.waiting, 4);
    link_stats(w.server.l, &st);
    assert_true(st.rtt_us > 0);
    assert_false(w.server.closed);
    world_release(&w);
}

static void a_silent_peer_is_given_up(void **state)
{
    struct link_world w;
    struct link_opt opt;
    int fd[2];

    (void)state;
    world_init(&w);
    socket_pair(fd);
    w.raw = fd[1];
    opt = end_opt(&w, &w.server, fd[0], FRAME_SERVER);
    opt.ping_ms = 50, opt.silent_ms = 200;
    end_open(&w.server, opt);
    shake_hands(&w, FRAME_WORKER);
    assert_non_null(link_request(w.server.l, STR("{}"), true, NULL));
    PUMP(&w, w.server.closed);
    assert_int_equal(w.server.why, LINK_SILENT);
    assert_string_equal(link_why_name(w.server.why), "silent");
    assert_int_equal(w.server.n_lost, 1);
    assert_error_frame(&w, "silent");
    world_release(&w);
}

/* The process was stopped: bytes that came meanwhile count. */
static void silence_of_our_own_process_is_not_the_peers(void **state)
{
    struct link_world w;
    struct link_opt opt;
    int fd[2];

    (void)state;
    world_init(&w);
    socket_pair(fd);
    w.raw = fd[1];
    opt = end_opt(&w, &w.server, fd[0], FRAME_SERVER);
    opt.ping_ms = 50, opt.silent_ms = 50; /* the first tick would be the end */
    end_open(&w.server, opt);
    shake_hands(&w, FRAME_WORKER);
    raw_send(w.raw, FRAME_PROGRESS, 0, 0, STR("{\"percent\":1}"));
    usleep(200000);
    event_base_loop(loop_base(w.loop), EVLOOP_NONBLOCK);
    assert_int_equal(w.server.n_type[FRAME_PROGRESS], 1);
    assert_false(w.server.closed);
    world_release(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_ends_that_have_the_token_open),
        cmocka_unit_test(another_token_is_denied_on_both_sides),
        cmocka_unit_test(two_servers_do_not_open),
        cmocka_unit_test(a_short_token_and_a_foreign_process_are_refused_at_once),
        cmocka_unit_test(another_version_is_refused_with_a_typed_error),
        cmocka_unit_test(a_mac_cannot_be_sent_back),
        cmocka_unit_test(nothing_but_the_handshake_comes_first),
        cmocka_unit_test(a_peer_that_says_nothing_is_given_up),
        cmocka_unit_test(a_request_is_answered_over_frames),
        cmocka_unit_test(one_connection_carries_many_streams),
        cmocka_unit_test(no_buffer_is_allocated_once_it_runs),
        cmocka_unit_test(a_large_body_obeys_credit_and_arrives_whole),
        cmocka_unit_test(one_stream_without_credit_does_not_stop_another),
        cmocka_unit_test(a_payload_can_be_kept),
        cmocka_unit_test(frames_for_a_stream_that_has_ended_are_no_mistake),
        cmocka_unit_test(the_server_obeys_the_workers_limit_of_streams),
        cmocka_unit_test(input_may_be_cut_anywhere),
        cmocka_unit_test(a_frame_larger_than_a_buffer_arrives),
        cmocka_unit_test(a_worker_that_breaks_the_rules_is_cut_off),
        cmocka_unit_test(a_server_that_breaks_the_rules_is_cut_off),
        cmocka_unit_test(bytes_without_credit_are_refused),
        cmocka_unit_test(too_many_streams_are_refused),
        cmocka_unit_test(unknown_frames_that_may_be_ignored_are),
        cmocka_unit_test(the_death_of_the_peer_is_noticed_and_streams_are_lost),
        cmocka_unit_test(what_the_peer_sent_before_it_died_is_read),
        cmocka_unit_test(a_frame_that_is_cut_off_is_reported),
        cmocka_unit_test(a_link_may_be_closed_in_its_callback),
        cmocka_unit_test(a_peer_that_does_not_read_is_cut_off),
        cmocka_unit_test(both_ends_hear_each_others_numbers),
        cmocka_unit_test(a_silent_peer_is_given_up),
        cmocka_unit_test(silence_of_our_own_process_is_not_the_peers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
