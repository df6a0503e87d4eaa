/* batchfile_remote.c - lines of a batch as requests to a server: several connections, one request on each.
 * A server that does not answer, or has no room, is asked again. */
#include "cli/batchfile.h"

#include "base/mem.h"

#include <stdio.h>

enum { TICK_MS = 50, LOST_MAX = 40 /* failures to connect in a row, with pauses up to 10 s */ };

struct remote_run;

struct lane {
    struct remote_run *run;
    struct load_client *client;
    int line; /* -1: free */
    bool ended;
    enum load_end end;
};

struct remote_run {
    struct batchfile *b;
    struct remote *remote;
    struct lane *lanes; /* [n_lanes] */
    int n_lanes, n_lost;
    struct event *tick;
    volatile sig_atomic_t *stop;
    int rc;
    struct err err;
};

static void on_done(void *arg, enum load_end end)
{
    struct lane *l = arg;

    l->ended = true;
    l->end = end;
}

static bool is_temporary(int status) { return status == 429 || status == 503 || status == 502; }

static void end_line(struct remote_run *r, struct lane *l)
{
    const struct load_http *h = load_client_reply(l->client);
    int line = l->line;

    l->line = -1;
    l->ended = false;
    if (l->end == LOAD_END_REPLY && !is_temporary(h->status)) {
        r->n_lost = 0;
        batchfile_answer(r->b, line, h->status, str_c(h->request_id), buf_str(&h->body));
        return;
    }
    batchfile_retry(r->b, line);
    if (l->end == LOAD_END_REPLY) return;
    if (++r->n_lost <= LOST_MAX + r->n_lanes) return;
    r->remote->lost = true;
    r->rc = err_set(&r->err, E_IO, "%s: no server answers there; run the command again to go on",
                    r->remote->url);
}

static void start_line(struct remote_run *r, struct lane *l)
{
    char path[64];
    struct str body;
    struct err e = { 0 };

    if ((l->line = batchfile_next(r->b, path, &body, &e)) < 0) return;
    load_client_send(l->client, path, "X-Priority: batch\r\n", body);
}

static void take_turn(struct remote_run *r)
{
    for (int i = 0; i < r->n_lanes; i++)
        if (r->lanes[i].ended) end_line(r, &r->lanes[i]);
    if (*r->stop || r->rc != OK || batchfile_is_over(r->b)) {
        event_base_loopbreak(r->remote->target.base);
        return;
    }
    for (int i = 0; i < r->n_lanes; i++)
        if (r->lanes[i].line < 0) start_line(r, &r->lanes[i]);
}

/* Also takes the answers: a client must not be used from inside its callback. */
static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    struct remote_run *r = arg;

    (void)fd, (void)what;
    load_arm(r->tick, r->b->n_running ? 5 : TICK_MS);
    batchfile_show(r->b);
    take_turn(r);
}

int batchfile_run_remote(struct batchfile *b, struct remote *remote, int at_once,
                         volatile sig_atomic_t *stop, struct err *e)
{
    static const struct load_calls calls = { .done = on_done };
    struct remote_run r = {
        .b = b, .remote = remote, .stop = stop, .n_lanes = at_once > 0 ? at_once : 8
    };
    int rc = OK;

    if (!(r.lanes = mem_array((size_t)r.n_lanes, sizeof *r.lanes))) return err_nomem(e, "a batch");
    for (int i = 0; i < r.n_lanes && rc == OK; i++) {
        r.lanes[i] = (struct lane){ .run = &r, .line = -1 };
        r.lanes[i].client = load_client_open(&remote->target, &calls, &r.lanes[i]);
        if (!r.lanes[i].client) rc = err_nomem(e, "a connection");
    }
    if (rc == OK &&
        (!(r.tick = evtimer_new(remote->target.base, on_tick, &r)) || !load_arm(r.tick, 0)))
        rc = err_nomem(e, "a timer");
    if (rc == OK) {
        event_base_dispatch(remote->target.base);
        rc = r.rc != OK ? r.rc : b->rc;
        if (rc != OK) *e = r.rc != OK ? r.err : b->err;
    }
    for (int i = 0; i < r.n_lanes; i++) load_client_close(r.lanes[i].client);
    if (r.tick) event_free(r.tick);
    mem_free(r.lanes);
    return rc;
}
