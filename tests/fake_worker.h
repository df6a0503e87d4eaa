/* fake_worker.h - a worker process for tests: it speaks the protocol, and then misbehaves as the name of its
 * model says. The test program is started again by the supervisor: its main calls run_fake if argv[1] is
 * "worker". The last argument is a file for a byte about SIGTERM. */
#ifndef TERN_TESTS_FAKE_WORKER_H
#define TERN_TESTS_FAKE_WORKER_H

#include "api/api.h"
#include "base/arena.h"
#include "base/buf.h"
#include "net/loop.h"
#include "worker/link.h"
#include "worker/message.h"
#include "worker/process.h"

#include <assert.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { FLOOD = 900 << 10, FAKE_PLACES = 4 };

static struct fake {
    struct loop *loop;
    struct link *link;
    const char *id;
    const char *log; /* file for a line about SIGTERM */
    size_t flooded;
    size_t body;   /* bytes of the request's body */
    int64_t retry; /* the request was at so many processes before */
    bool woken;
    struct keyset *keys;
} fake;

static bool fake_behaves(const char *what) { return strncmp(fake.id, what, strlen(what)) == 0; }

static void fake_send_text(enum frame_type type, struct buf *b)
{
    assert(!b->failed);
    link_send(fake.link, type, buf_str(b));
    buf_release(b);
}

static void fake_opened(void *arg, struct link *l)
{
    struct msg_plan m = { .devices = { { "cpu", 1000, 1000, 1000 } }, .n_devices = 1 };
    struct buf b = { 0 };

    (void)arg, (void)l;
    if (fake_behaves("no-plan")) return;
    if (fake_behaves("dies")) _exit(3);
    msg_write_plan(&b, &m);
    fake_send_text(FRAME_PLAN, &b);
}

static void fake_send_ready(void)
{
    struct msg_ready m = { .name = fake.id,
                           .arch = "fake",
                           .task = "generate",
                           .dtype = "f16",
                           .devices = "cpu",
                           .kv_type = "f16",
                           .n_ctx = 512,
                           .max_seqs = 4,
                           .max_requests = FAKE_PLACES,
                           .digest = "",
                           .sandbox = "" };
    struct buf b = { 0 };

    if (fake_behaves("no-ready") || fake_behaves("stay-loading")) return;
    msg_write_ready(&b, &m);
    fake_send_text(FRAME_READY, &b);
}

/* It keeps as many bytes of blocks in its memory as it may. */
static void fake_sleep(const struct frame *f)
{
    struct msg_sleep m;
    struct arena a = { 0 };
    struct buf b = { 0 };

    if (!fake_behaves("sleeps") && !fake_behaves("stay-sleeps")) return;
    if (msg_read_sleep(&m, &a, frame_payload(f), NULL) != OK) _exit(5);
    arena_release(&a);
    msg_write_asleep(&b, &(struct msg_asleep){ 1, m.park_bytes });
    fake_send_text(FRAME_ASLEEP, &b);
}

static void fake_end_stream(struct link_stream *s)
{
    struct api_end end = { .model = "", .code = "", .finish = "stop", .gone = "", .status = 200 };
    struct buf b = { 0 };

    if (fake_behaves("ending")) end.code = "shutting_down";
    if (fake.retry && fake_behaves("stream-pings-refused")) end.status = 400, end.code = "invalid";
    msg_write_end(&b, &end);
    link_end_stream(s, buf_str(&b));
    buf_release(&b);
}

/* The head of a reply, with one thing that is not allowed. */
static void fake_make_head(struct msg_reply *m)
{
    static char long_value[] = "7\r\nSet-Cookie: evil=1";

    *m = (struct msg_reply){ .status = 200, .type = "application/json", .body_bytes = 11 };
    if (fake_behaves("stream")) m->streamed = true, m->type = "text/event-stream; charset=utf-8";
    if (fake_behaves("flood")) m->streamed = true, m->type = "text/event-stream; charset=utf-8";
    if (fake_behaves("bad-type")) m->type = "text/html";
    if (fake_behaves("bad-split-type")) m->type = "application/json\r\nSet-Cookie: evil=1";
    if (fake_behaves("bad-status-low")) m->status = 101;
    if (fake_behaves("ending")) m->status = 503;
    if (fake_behaves("bad-status-high")) m->status = 1000;
    if (fake_behaves("bad-split-name"))
        m->headers[m->n_headers++] = (struct msg_pair){ "retry-after: 1\r\nset-cookie", "evil=1" };
    if (fake_behaves("bad-split-value"))
        m->headers[m->n_headers++] = (struct msg_pair){ "retry-after", long_value };
    if (fake_behaves("bad-huge")) m->body_bytes = INT64_MAX;
    if (fake_behaves("bad-long")) m->body_bytes = 3;
    if (fake_behaves("good-header")) {
        m->headers[m->n_headers++] = (struct msg_pair){ "Retry-After", "7" };
        m->headers[m->n_headers++] = (struct msg_pair){ "set-cookie", "evil=1" };
    }
}

static void fake_pour(struct link_stream *s)
{
    static char bytes[FLOOD];

    fake.flooded += link_write(s, bytes + fake.flooded, sizeof bytes - fake.flooded, false);
    if (fake.flooded == sizeof bytes) fake_end_stream(s);
}

static void fake_read_request(const struct frame *f)
{
    struct msg_request m;
    struct arena a = { 0 };

    if (msg_read_request(&m, &a, frame_payload(f), NULL) != OK) _exit(5);
    fake.retry = m.retry;
    fake.body = 0;
    arena_release(&a);
}

/* Its first process sends pings and dies; the next one answers, dies as well, or refuses. */
static void fake_ping(struct link_stream *s)
{
    static const char pings[] = ": ping\n\nevent: ping\ndata: {}\n\n";
    char text[64];

    if (fake.retry == 0 || fake_behaves("stream-pings-twice")) {
        link_write(s, pings, sizeof pings - 1, false);
        link_flush(fake.link);
        raise(SIGKILL);
    }
    snprintf(text, sizeof text, "data: {\"body\":%zu}\n\n", fake.body);
    link_write(s, text, strlen(text), false);
    fake_end_stream(s);
}

/* The leader of a gang that has lost a member. */
static void fake_lose_gang(void)
{
    struct buf b = { 0 };

    msg_write_failure(&b,
                      &(struct msg_failure){ "worker_lost", "the gang has ended: member 1", 0 });
    fake_send_text(FRAME_FAILED, &b);
    link_flush(fake.link);
    _exit(1);
}

static void fake_answer(struct link_stream *s)
{
    struct msg_reply m;
    struct buf b = { 0 };

    if (fake_behaves("gang-dies") || (fake_behaves("gang") && fake.retry == 0)) fake_lose_gang();
    if (fake_behaves("hold") || fake_behaves("no-end")) return;
    fake_make_head(&m);
    if (fake.retry && fake_behaves("stream-pings-refused"))
        m = (struct msg_reply){ .status = 400, .type = "application/json", .body_bytes = 11 };
    msg_write_reply(&b, &m);
    link_stream_send(s, FRAME_REPLY, buf_str(&b));
    buf_release(&b);
    if (fake_behaves("stream-dies") || fake_behaves("stream-gang")) {
        link_write(s, "data: {}\n\n", 10, false);
        link_flush(fake.link);
        if (fake_behaves("stream-gang")) fake_lose_gang();
        raise(SIGKILL);
    }
    if (fake_behaves("flood")) {
        fake_pour(s);
        return;
    }
    if (m.streamed && fake_behaves("stream-pings")) {
        fake_ping(s);
        return;
    }
    link_write(s, "{\"ok\":true}", 11, false);
    fake_end_stream(s);
}

static void fake_frame(void *arg, struct link *l, struct link_stream *s, const struct frame *f)
{
    (void)arg, (void)l;
    if (f->type == FRAME_ADMIT) fake_send_ready();
    if (f->type == FRAME_SLEEP) fake_sleep(f);
    if (f->type == FRAME_WAKE) fake.woken = true;
    if (f->type == FRAME_ROOM && fake.woken) fake_opened(NULL, NULL);
    if (f->type == FRAME_REQUEST) fake_read_request(f);
    if (f->type == FRAME_BODY) link_consumed(s, f->n), fake.body += f->n;
    if ((f->type == FRAME_REQUEST || f->type == FRAME_BODY) && (f->flags & FRAME_LAST))
        fake_answer(s);
    if (f->type == FRAME_CANCEL && fake_behaves("hold")) fake_end_stream(s);
}

static void fake_writable(void *arg, struct link_stream *s)
{
    (void)arg;
    if (fake_behaves("flood")) fake_pour(s);
}

static void fake_closed(void *arg, struct link *l, enum link_why why, const struct err *e)
{
    (void)arg, (void)l, (void)why, (void)e;
    if (!fake_behaves("stay")) _exit(0);
}

/* One that stays says that it was asked, and goes on. */
static void fake_on_term(void *arg)
{
    int fd;

    (void)arg;
    if (!fake_behaves("stay")) _exit(0);
    fd = open(fake.log, O_WRONLY | O_APPEND);
    if (fd >= 0 && write(fd, "t", 1) == 1) close(fd);
}

/* One that is full says so, and would take a request all the same. */
static void fake_beat(void *arg, struct msg_beat *out)
{
    (void)arg;
    out->admitted = fake_behaves("full") ? FAKE_PLACES : 0;
}

static int run_fake(int argc, char **argv)
{
    unsigned char token[PROCESS_TOKEN];
    struct err e = { 0 };
    struct link_opt o = { .fd = PROCESS_FD,
                          .role = FRAME_WORKER,
                          .build = "fake",
                          .check_peer = true,
                          .ping_ms = 200,
                          .opened = fake_opened,
                          .frame = fake_frame,
                          .writable = fake_writable,
                          .beat = fake_beat,
                          .closed = fake_closed };

    if (argc < 9) return 9;
    fake.id = argv[5];
    fake.log = argv[8];
    if (process_read_token(PROCESS_FD, token, &e) != OK ||
        process_read_keys(PROCESS_FD, &fake.keys, &e) != OK || loop_open(&fake.loop, &e) != OK ||
        loop_on_signal(fake.loop, SIGTERM, fake_on_term, NULL, &e) != OK)
        return 8;
    o.loop = fake.loop;
    o.token = str_of((char *)token, sizeof token);
    if (link_open(&fake.link, &o, &e) != OK) return 7;
    loop_run(fake.loop);
    return 0;
}
#endif
