/* load_ask.c - one request that is waited for: the event base runs until the reply is complete, the
 * connection fails or the time is over. */
#include "loadtest/load_client.h"

struct asking {
    const struct load_ask *ask;
    struct load_target *target;
    struct load_reply *out;
    bool over;
};

static void on_timeout(evutil_socket_t fd, short what, void *arg)
{
    struct asking *a = arg;

    (void)fd, (void)what;
    event_base_loopbreak(a->target->base);
}

static void on_sent(void *arg)
{
    struct asking *a = arg;
    a->out->connected = true;
}

static void on_event(void *arg, struct str data)
{
    struct asking *a = arg;
    if (a->ask->event) a->ask->event(a->ask->arg, data);
}

static void on_done(void *arg, enum load_end end)
{
    struct asking *a = arg;

    a->over = true;
    a->out->end = end;
    event_base_loopbreak(a->target->base);
}

/* Moves the body out of the client. */
static int take_reply(struct load_client *c, struct load_reply *out, struct err *e)
{
    const struct load_http *h = load_client_reply(c);

    if (out->end == LOAD_END_NOMEM) return err_nomem(e, "an HTTP request");
    if (out->end == LOAD_END_BAD) out->why = h->why;
    if (out->end != LOAD_END_REPLY) return OK;
    out->status = h->status;
    buf_put_str(&out->body, buf_str(&h->body));
    return buf_check(&out->body, e);
}

int load_ask(struct load_target *t, const struct load_ask *a, struct load_reply *out, struct err *e)
{
    static const struct load_calls calls = { .sent = on_sent, .event = on_event, .done = on_done };
    struct asking now = { .ask = a, .target = t, .out = out };
    struct load_client *c = load_client_open(t, &calls, &now);
    struct event *timeout = evtimer_new(t->base, on_timeout, &now);
    bool ready = c && timeout && (a->timeout_ms <= 0 || load_arm(timeout, a->timeout_ms));
    int rc = ready ? OK : err_nomem(e, "an HTTP client");

    *out = (struct load_reply){ .end = LOAD_END_TIMEOUT };
    if (ready) load_client_send(c, a->path, a->headers ? a->headers : "", a->body);
    if (ready && !now.over) event_base_dispatch(t->base);
    if (timeout) event_free(timeout);
    if (ready && now.over) rc = take_reply(c, out, e);
    load_client_close(c);
    return rc;
}
