/* A worker connection without memory: both ends on one loop in this thread, from the handshake to
 * the end of a request. A failed allocation closes the link, and both owners learn of it. */
#include "fault.h"

#include "api/api.h"
#include "base/arena.h"
#include "base/buf.h"
#include "net/loop.h"
#include "worker/link.h"
#include "worker/message.h"

#include <event2/event.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BODY_BYTES = 300000, TURNS_MAX = 100000 };

struct end {
    struct link *l;
    bool opened, closed, ended;
    struct link_stream *s;
    size_t n_sent, n_data;
    struct err err;
};

static char body[BODY_BYTES];

static void on_opened(void *arg, struct link *l)
{
    (void)l;
    ((struct end *)arg)->opened = true;
}

/* The worker reads the request and answers with as many bytes as the body had. */
static void answer(struct link_stream *s)
{
    struct buf b = { 0 };
    struct api_end end = { .status = 200, .model = "m", .finish = "stop" };

    msg_write_reply(&b, &(struct msg_reply){ .status = 200, .type = "text/plain" });
    if (b.failed || !link_stream_send(s, FRAME_REPLY, buf_str(&b))) link_write(s, "", 0, false);
    link_write(s, body, 1000, false);
    buf_clear(&b);
    msg_write_end(&b, &end);
    link_end_stream(s, b.failed ? STR("{\"status\":503}") : buf_str(&b));
    buf_release(&b);
}

static void on_frame(void *arg, struct link *l, struct link_stream *s, const struct frame *f)
{
    struct end *x = arg;
    struct arena a = { 0 };
    struct api_end end;
    struct err e = { 0 };

    (void)l;
    if (frame_is_bulk(f->type)) {
        x->n_data += f->n;
        link_consumed(s, f->n);
    }
    if (f->type == FRAME_BODY && (f->flags & FRAME_LAST)) answer(s);
    if (f->type == FRAME_END) {
        x->ended = true;
        if (msg_read_end(&end, &a, frame_payload(f), &e) != OK) x->err = e;
    }
    arena_release(&a);
}

static void on_writable(void *arg, struct link_stream *s)
{
    struct end *x = arg;
    x->n_sent += link_write(s, body + x->n_sent, BODY_BYTES - x->n_sent, true);
}

static void on_closed(void *arg, struct link *l, enum link_why why, const struct err *e)
{
    (void)l, (void)why;
    ((struct end *)arg)->closed = true;
    ((struct end *)arg)->err = *e;
}

static int open_end(struct end *x, struct loop *loop, int fd, enum frame_role role, struct err *e)
{
    struct link_opt opt = { .loop = loop,
                            .fd = fd,
                            .role = role,
                            .token = STR("0123456789abcdef"),
                            .build = "fault",
                            .opened = on_opened,
                            .frame = on_frame,
                            .writable = on_writable,
                            .closed = on_closed,
                            .arg = x };
    return link_open(&x->l, &opt, e);
}

static bool is_over(const struct end *a, const struct end *b)
{
    return a->closed || b->closed || (a->ended && a->l);
}

static int send_request(struct end *x, struct err *e)
{
    struct msg_request m = { .method = "POST", .path = "/v1", .id = "r", .tenant.name = "t" };
    struct buf b = { 0 };
    int rc;

    msg_write_request(&b, &m);
    rc = buf_check(&b, e);
    if (rc == OK && !(x->s = link_request(x->l, buf_str(&b), false, x)))
        rc = err_nomem(e, "a request");
    if (rc == OK) on_writable(x, x->s);
    buf_release(&b);
    return rc;
}

static int run_both(struct loop *loop, struct end *server, struct end *worker, struct err *e)
{
    int rc = OK, turns = 0;

    while (!is_over(server, worker) && rc == OK) {
        event_base_loop(loop_base(loop), EVLOOP_NONBLOCK);
        if (server->opened && !server->s && !server->closed) rc = send_request(server, e);
        if (++turns > TURNS_MAX) return err_set(e, E_INTERNAL, "the two ends hang");
    }
    if (rc != OK) return rc;
    if (server->err.code || worker->err.code) {
        *e = server->err.code ? server->err : worker->err;
        return e->code;
    }
    return server->ended && worker->n_data == BODY_BYTES && server->n_data == 1000 ? OK : E_NOMEM;
}

static int talk(void *arg, struct err *e)
{
    struct end server = { 0 }, worker = { 0 };
    struct loop *loop = NULL;
    int fd[2], rc;

    (void)arg;
    if ((rc = loop_open(&loop, e)) != OK) return rc;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    rc = open_end(&server, loop, fd[0], FRAME_SERVER, e);
    if (rc != OK) close(fd[1]);
    else rc = open_end(&worker, loop, fd[1], FRAME_WORKER, e);
    if (rc == OK) {
        rc = run_both(loop, &server, &worker, e);
        if (rc == E_NOMEM && !*e->msg) err_nomem(e, "a part of the answer");
    }
    link_close(server.l);
    link_close(worker.l);
    loop_close(loop);
    return rc;
}

static void a_connection_survives_or_closes(void **state)
{
    (void)state;
    fault_run("a worker connection", talk, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(a_connection_survives_or_closes) };

    fault_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
