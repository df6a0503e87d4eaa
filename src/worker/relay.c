/* relay.c - calls on their way between a client and a worker process: api_opt.forward.
 *
 *     client ──HTTP──► API ──begin──► REQUEST, BODY… ──► worker
 *     client ◄──HTTP── forward_write ◄── REPLY, DATA…, END ◄──
 *
 * Bytes of the answer are passed on as they come. The worker may send more only when the client has
 * read what was sent before (link_consumed), so a slow client costs one window of memory here and
 * its queue in the worker. At the end of the server it may send all at once: the rest waits here, as
 * that of a local call does. A relay lives from begin until END, or until the link is lost; f is NULL
 * once the API has forgotten it.
 *
 * The worker is not trusted. The head of a reply is checked before anything of it reaches the client:
 * status, content type, names and values of headers; headers of other names are left out. Bodies that
 * are collected here are bounded. A worker that sends something else is killed, and its calls end as
 * those of one that died.
 *
 * Everything belongs to the loop's thread. */
#include "worker/supervisor_impl.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "net/http.h"
#include "worker/front_impl.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define BODY_MAX (256ull << 20) /* of one reply that is not streamed */
#define HELD_MAX (512ull << 20) /* of all such replies of a worker that are not complete */

enum {
    PREFLIGHT_MS = 5000, /* a heartbeat that is older says nothing about the worker now */
    RETRY_MS = 1000
};

struct relay {
    struct forward *f; /* NULL: forgotten */
    struct worker *w;
    struct relay *prev, *next; /* of the worker */
    struct link_stream *s;
    struct str body; /* of the request, from what is still to send; the HTTP request's */
    struct arena arena;
    struct msg_reply reply; /* its texts are in the arena */
    bool has_reply, body_sent;
    bool bad;           /* the worker broke the rules: nothing more of it is passed on */
    bool pours;         /* the worker may send although the client has not read */
    uint64_t cancel_ns; /* END is awaited since then; 0: it was not cancelled */
    struct buf out;     /* of a reply that is not streamed */
    size_t owed;        /* bytes of a streamed reply that the client has yet to read */
};

/* Headers of a request that the API of a worker reads. */
static const char *const passed_on[] = { "x-deadline", "x-stainless-timeout", "x-priority",
                                         "content-type" };
/* Headers of its replies that are passed on, and their content types. */
static const char *const reply_headers[] = { "retry-after",           "x-should-retry",
                                             "x-tern-ignored-fields", "cache-control",
                                             "x-accel-buffering",     "x-tern-ids" };
static const char *const reply_types[] = { "application/json", "text/event-stream; charset=utf-8",
                                           "application/x-ndjson" };

static void free_relay(struct relay *r)
{
    struct worker *w = r->w;

    if (r->prev) r->prev->next = r->next;
    else w->relays = r->next;
    if (r->next) r->next->prev = r->prev;
    if (r->s) r->s->user = NULL;
    w->held_bytes -= r->out.n;
    atomic_fetch_sub(&w->n_relays, 1);
    if (r->f && r->f->q) http_on_sent(r->f->q, NULL, NULL);
    if (r->f) r->f->relay = NULL;
    arena_release(&r->arena);
    buf_release(&r->out);
    mem_free(r);
}

/* ---- the request ---- */

/* Only what the server has believed of a gateway: nothing of the client's headers. */
static void write_hop(struct relay *r, struct msg_request *m)
{
    const struct api_hop *h = &r->f->who->hop;
    char text[160];

    if (!h->ids && !h->resumes && !h->has_created && !h->has_seed) return;
    snprintf(text, sizeof text, "%d %d %d %d %d %lld %d %llu", h->ids, h->resumes, h->n_resume,
             h->n_events, h->has_created, (long long)h->created, h->has_seed,
             (unsigned long long)h->seed);
    m->headers[m->n_headers++] = (struct msg_pair){ FRONT_HOP, arena_cstr(&r->arena, str_c(text)) };
}

/* Texts are copied into the arena: those of a request are not NUL-terminated. */
static void add_headers(struct relay *r, struct msg_request *m)
{
    for (size_t i = 0; i < sizeof passed_on / sizeof *passed_on; i++) {
        struct str v = http_header(r->f->q, passed_on[i]);
        if (v.p)
            m->headers[m->n_headers++] =
                (struct msg_pair){ passed_on[i], arena_cstr(&r->arena, v) };
    }
    m->headers[m->n_headers++] = (struct msg_pair){ FRONT_CALL_ID, r->f->id };
    write_hop(r, m);
}

static int write_head(struct relay *r, struct buf *out, struct err *e)
{
    const struct forward *f = r->f;
    struct msg_request m = { .method = arena_cstr(&r->arena, http_method_name(f->q)),
                             .path = f->target ? f->target : f->path,
                             .query = f->query ? f->query : "",
                             .id = f->who->correlation,
                             .peer = http_peer(f->q),
                             .age_ms = (int64_t)clock_ms_since(f->start_ns),
                             .body_bytes = (int64_t)http_body(f->q).n,
                             .retry = f->n_before };

    m.tenant.name = f->who->name;
    m.tenant.index = f->who->tenant;
    m.tenant.priority_max = f->who->priority_max;
    m.tenant.admin = f->who->admin;
    add_headers(r, &m);
    if (r->arena.failed) return err_nomem(e, "the head of a relayed request");
    msg_write_request(out, &m);
    return buf_check(out, e);
}

static void send_body(struct relay *r)
{
    size_t n;

    if (r->body_sent || !r->s) return;
    n = link_write(r->s, r->body.p, r->body.n, true);
    r->body = str_skip(r->body, n);
    r->body_sent = r->body.n == 0;
}

static struct relay *make_relay(struct forward *f, struct worker *w)
{
    struct relay *r = mem_new(struct relay);

    if (!r) return NULL;
    *r = (struct relay){ .f = f, .w = w, .body = http_body(f->q), .next = w->relays };
    if (w->relays) w->relays->prev = r;
    w->relays = r;
    atomic_fetch_add(&w->n_relays, 1);
    return r;
}

/* Do calls of this route take a place of the engine? */
static bool takes_place(const struct forward *f)
{
    return !f->target && strcmp(f->path, "/tokenize") != 0 && strcmp(f->path, "/detokenize") != 0;
}

/* Refuses what the worker would refuse, before the body is sent to it: its last heartbeat said that its
 * engine is full, and no call of it has ended since. Without a fresh one the worker is asked. */
static int preflight(struct worker *w, const struct forward *f, struct err *e)
{
    int most = w->info.opt.max_requests;
    bool fresh = w->beat_ns && clock_ns() - w->beat_ns <= (uint64_t)PREFLIGHT_MS * 1000000;

    if (!takes_place(f)) return OK;
    w->record->preflights++;
    if (!fresh) return OK;
    w->record->preflight_hits++;
    if (most < 1 || w->beat.admitted < most || w->n_ended > 0) return OK;
    err_set(e, E_QUEUE_FULL, "%lld requests wait or run; the limit is %d",
            (long long)w->beat.admitted, most);
    e->retry_ms = RETRY_MS;
    return E_QUEUE_FULL;
}

/* Why the link has not taken a request. */
static int explain_refusal(struct worker *w, size_t head_bytes, struct err *e)
{
    if (!link_is_open(w->link))
        return err_set(e, E_WORKER, "the process of model '%s' has ended", w->id);
    if (link_is_full(w->link, head_bytes))
        return err_set(e, E_QUEUE_FULL, "the process of the model has too many requests");
    return err_nomem(e, "a relayed request");
}

static int begin(struct forward *f, struct err *e)
{
    struct worker *w = f->model->host_data;
    struct buf head = { 0 };
    struct relay *r;
    int rc;

    if (!w->link || w->link_closed || !link_is_open(w->link))
        return err_set(e, E_WORKER, "the process of model '%s' has ended", f->model->id);
    if ((rc = preflight(w, f, e)) != OK) return rc;
    if (!(r = make_relay(f, w))) return err_nomem(e, "a relayed request");
    if ((rc = write_head(r, &head, e)) == OK) {
        r->body_sent = r->body.n == 0;
        r->s = link_request(w->link, buf_str(&head), r->body_sent, r);
        if (!r->s) rc = explain_refusal(w, head.n, e);
    }
    buf_release(&head);
    if (rc != OK) {
        r->f = NULL;
        free_relay(r);
        return rc;
    }
    f->relay = r;
    if (f->n_before > 0) w->record->retried++;
    send_body(r);
    return OK;
}

void relay_writable(struct link_stream *s)
{
    if (s->user) send_body(s->user);
}

/* ---- the answer ---- */

/* The client has read everything: the worker may send as much again. */
static void on_sent(void *arg)
{
    struct relay *r = arg;

    if (r->s && r->owed) link_consumed(r->s, r->owed);
    r->owed = 0;
}

static void give_credit(struct relay *r, size_t n)
{
    r->owed += n;
    if (r->pours || !r->f || !r->f->q || http_is_gone(r->f->q) || http_unsent(r->f->q) == 0)
        on_sent(r);
}

static void cancel(struct forward *f, enum forward_why why)
{
    static const int reasons[] = {
        [FORWARD_GONE] = MSG_GONE, [FORWARD_ASKED] = MSG_ASKED, [FORWARD_SHUTDOWN] = MSG_SHUTDOWN
    };
    struct relay *r = f->relay;
    struct buf b = { 0 };

    msg_write_cancel(&b, &(struct msg_cancel){ reasons[why] });
    if (!b.failed && r->s) link_stream_send(r->s, FRAME_CANCEL, buf_str(&b));
    buf_release(&b);
    if (!r->cancel_ns) r->cancel_ns = clock_ns();
    if (why != FORWARD_SHUTDOWN) return;
    r->pours = true;
    on_sent(r);
}

/* The worker does not keep to the protocol: nothing of what it says is passed on any more. */
static void distrust(struct relay *r, const char *why)
{
    log_error("the process of model '%s' (pid %d) is killed: %s", r->w->id, (int)r->w->proc.pid,
              why);
    r->bad = true;
    process_signal(&r->w->proc, SIGKILL);
}

static bool is_one_of(const char *name, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcasecmp(name, list[i]) == 0) return true;
    return false;
}
#define IS_ONE_OF(name, list) is_one_of(name, list, sizeof(list) / sizeof *(list))

/* Can the text stand in a line of an HTTP head? */
static bool is_plain(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f) return false;
    return true;
}

/* NULL: the head of a reply can be passed on; else what is wrong with it. */
static const char *check_reply(const struct msg_reply *m)
{
    if (m->status < 200 || m->status > 599) return "the status of its reply is not one of HTTP";
    if (!IS_ONE_OF(m->type, reply_types)) return "its reply has an unknown content type";
    if (!m->streamed && (uint64_t)m->body_bytes > BODY_MAX) return "its reply is too long";
    for (int i = 0; i < m->n_headers; i++)
        if (!is_plain(m->headers[i].name) || !is_plain(m->headers[i].value))
            return "a header of its reply has control characters";
    return NULL;
}

static void set_headers(struct relay *r)
{
    for (int i = 0; i < r->reply.n_headers; i++)
        if (IS_ONE_OF(r->reply.headers[i].name, reply_headers))
            http_set_header(r->f->q, r->reply.headers[i].name, r->reply.headers[i].value);
}

/* The rest of the request's body is not sent any more: it may be freed once bytes of the answer come. */
static void on_reply(struct relay *r, const struct frame *fr)
{
    struct err e = { 0 };
    const char *wrong;

    r->body_sent = true;
    if (msg_read_reply(&r->reply, &r->arena, frame_payload(fr), &e) != OK) {
        distrust(r, e.msg);
        return;
    }
    if ((wrong = check_reply(&r->reply))) {
        distrust(r, wrong);
        return;
    }
    r->has_reply = true;
    if (!r->reply.streamed || !r->f || !r->f->q) return;
    if (!forward_has_head(r->f)) set_headers(r);
    http_on_sent(r->f->q, on_sent, r);
    if (!forward_begin(r->f, (int)r->reply.status, r->reply.type) && r->f)
        cancel(r->f, FORWARD_GONE);
}

/* Only here are the headers set: the call may still be repeated before. */
static void answer(struct relay *r, const char *p, size_t n)
{
    if (!r->f || !r->f->q) return;
    if (!forward_has_head(r->f)) set_headers(r);
    forward_answer(r->f, (int)r->reply.status, r->reply.type, p, n);
}

static void collect(struct relay *r, const struct frame *fr)
{
    if (r->out.n + fr->n > (uint64_t)r->reply.body_bytes) {
        distrust(r, "its reply is longer than its head says");
    } else if (r->w->held_bytes + fr->n > HELD_MAX) {
        distrust(r, "its replies are too long");
    } else {
        size_t before = r->out.n;
        buf_add(&r->out, fr->p, fr->n);
        r->w->held_bytes += r->out.n - before;
    }
}

/* A whole body in one frame is not copied. One with status 503 is held back until END says why. */
static void on_data(struct relay *r, const struct frame *fr)
{
    if (r->reply.streamed) {
        if (r->f && fr->n) forward_write(r->f, fr->p, fr->n);
    } else if (r->out.n == 0 && fr->n == (uint64_t)r->reply.body_bytes && r->reply.status != 503) {
        answer(r, fr->p, fr->n);
    } else {
        collect(r, fr);
    }
    if (!r->bad) give_credit(r, fr->n);
}

/* The process ends, since its model failed or is unloaded, and refused the request while the server goes
 * on. For the client that is a lost process: the request is tried again. */
static bool is_refused_at_end(const struct relay *r, const struct api_end *end)
{
    return r->has_reply && !r->reply.streamed && !r->pours &&
           strcmp(end->code, "shutting_down") == 0;
}

static void on_end(struct relay *r, const struct frame *fr)
{
    struct api_end end = { 0 };
    struct forward *f = r->f;
    struct arena a = { 0 };
    struct err e = { 0 };

    if (msg_read_end(&end, &a, frame_payload(fr), &e) != OK) {
        log_error("%s", e.msg);
        end = (struct api_end){ .status = 500, .code = "internal", .finish = "", .gone = "" };
    }
    if (is_refused_at_end(r, &end)) {
        relay_lost(r->w, r->s);
        arena_release(&a);
        return;
    }
    if (f && f->q && r->has_reply && !r->reply.streamed && !r->out.failed &&
        r->out.n == (size_t)r->reply.body_bytes)
        answer(r, r->out.p, r->out.n);
    r->s = NULL; /* the link closes it */
    r->w->n_ended++;
    free_relay(r);
    if (f) forward_ended(f, &end);
    arena_release(&a);
}

void relay_frame(struct link_stream *s, const struct frame *f)
{
    struct relay *r = s->user;

    if (!r) return;
    if (r->bad) {
        if (f->type == FRAME_END) relay_lost(r->w, s); /* the link forgets it */
        return;
    }
    switch (f->type) {
    case FRAME_REPLY: on_reply(r, f); break;
    case FRAME_DATA: on_data(r, f); break;
    case FRAME_END: on_end(r, f); break;
    default: break;
    }
}

/* ---- the end of a worker, or of our interest ---- */

void relay_lost(struct worker *w, struct link_stream *s)
{
    struct relay *r = s->user;
    struct forward *f = r ? r->f : NULL;
    struct err e = { 0 };

    if (!r) return;
    if (w->cause.code == E_WORKER) e = w->cause; /* it said why: its gang has ended */
    else
        err_set(&e, E_WORKER, "the process of model '%s' ended before the answer was complete",
                w->id);
    r->s = NULL;
    free_relay(r);
    if (f) forward_lost(f, &e);
}

/* A client that reads slowly delays END, too: that is no hang. */
bool relay_is_stuck(struct worker *w, uint64_t now, int ms)
{
    for (struct relay *r = w->relays; r; r = r->next) {
        if (r->cancel_ns && r->owed) r->cancel_ns = now;
        if (r->cancel_ns && now > r->cancel_ns + (uint64_t)ms * 1000000) return true;
    }
    return false;
}

void relay_free_all(struct worker *w)
{
    while (w->relays) free_relay(w->relays);
}

static void drop(struct forward *f)
{
    struct relay *r = f->relay;

    cancel(f, FORWARD_GONE);
    r->f = NULL;
    r->body_sent = true;
}

const struct forward_ops supervisor_forward = { .begin = begin, .cancel = cancel, .drop = drop };
