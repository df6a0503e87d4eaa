/* batchrun.c - lines of batches on the loop: which begin now, and what becomes of their answers.
 *
 *     read (batchwork.c) ─► held ─► running (relay.c) ─┬─► answered ─► written (batchwork.c)
 *                            ▲                         │
 *                            └── no room, worker lost ─┘
 *
 * Lines have the lowest priority at the workers. Each worker has at most `batch-inflight` of them, and
 * `batch-inflight-busy` while the gateway has requests of clients; none begins while a request waits at a
 * worker. */
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cluster/gateway_impl.h"
#include "cluster/gwjobs.h"
#include "cluster/gwstore_impl.h"
#include "net/loop.h"
#include "server/limit.h"
#include "server/settings.h"

#include <stdio.h>

enum {
    PRIORITY_LINES = -100, /* as tern serve's own */
    PER_WORKER = 8,
    AHEAD = 4, /* lines of a batch that are read before they can begin */
    PAUSE_MS = 100,
    PAUSE_MOST_MS = 5000,
    RETRY_MS = 300,     /* of a step that failed */
    MISSING_MS = 10000, /* its model may be on a worker that starts again */
    TELL_MS = 10000
};

#define MS UINT64_C(1000000)

/* ---- one line ---- */

void gwline_free(struct gwline *l)
{
    jobcall_release(&l->call);
    buf_release(&l->body);
    buf_release(&l->answer);
    mem_free(l);
}

static void set_answer(struct gwline *l, int status, const char *error, struct str body)
{
    struct linerec r = { .status = status, .body = body };

    snprintf(r.error, sizeof r.error, "%s", error);
    buf_clear(&l->answer);
    linerec_write(&r, &l->answer);
    l->status = status;
    l->state = LINE_ANSWERED;
}

/* jobcall.done, from inside the relay: the next turn goes on with it. */
static void on_reply(struct jobcall *c) { loop_wake(((struct gwline *)c)->b->s->g->loop); }

static const struct tenant *find_limits(struct gateway *g, const char *name, int *rate,
                                        int *at_once)
{
    const struct tenant *t = auth_find(g->auth, name);

    *rate = t && t->rate_per_min >= 0 ? t->rate_per_min : (int)g->s->rate_per_min;
    *at_once = t && t->concurrency >= 0 ? t->concurrency : (int)g->s->concurrency;
    return t;
}

/* false: the limits of its tenant have no room now. */
static bool start_line(struct gwline *l)
{
    struct gwstore *s = l->b->s;
    struct gateway *g = s->g;
    struct gw_who who = { .name = l->b->tenant, .priority_max = PRIORITY_LINES };
    const struct tenant *t;
    int rate, at_once;
    char id[48], *body;

    t = find_limits(g, who.name, &rate, &at_once);
    who.tenant = t ? t->index : 0;
    if (t && t->priority_max < who.priority_max) who.priority_max = t->priority_max;
    if (!limit_has_room(g->limit, who.tenant, rate, at_once, 1, clock_ns())) return false;
    if (!(body = mem_dup(l->body.p, l->body.n + 1))) { /* a buf ends with a NUL */
        l->not_before = clock_ns() + PAUSE_MOST_MS * MS;
        return true;
    }
    snprintf(id, sizeof id, "batch_req_%.18s_%d", l->b->id + strlen(l->b->id) - 18, l->n);
    jobcall_release(&l->call);
    l->call = (struct jobcall){ 0 };
    jobcall_init(&l->call, "batch", l->b->endpoint, id, body, l->body.n, on_reply);
    limit_take_room(g->limit, who.tenant, rate);
    who.limited = true;
    l->n_lost = 0;
    l->state = LINE_RUNNING;
    s->n_running++;
    relay_begin_job(g, &l->call.req, &who, body, &l->n_lost);
    return true;
}

static void hold_line(struct gwline *l)
{
    int ms = PAUSE_MS;

    for (int i = 0; i < l->n_tries && ms < PAUSE_MOST_MS; i++) ms *= 2;
    l->n_tries++;
    l->state = LINE_HELD;
    l->not_before = clock_ns() + (uint64_t)(ms < PAUSE_MOST_MS ? ms : PAUSE_MOST_MS) * MS;
    counter_add(&l->b->s->n.retried, 1);
}

static bool is_missing(struct gwline *l)
{
    if (l->call.status != 404) return false;
    if (!l->missing_ns) l->missing_ns = clock_ns();
    return clock_ns() - l->missing_ns < MISSING_MS * MS;
}

/* The relay has answered the call. */
static void collect_line(struct gwline *l)
{
    char msg[200];

    l->b->s->n_running--;
    if (l->n_lost && ++l->n_begun >= LINE_BEGINS) {
        snprintf(msg, sizeof msg,
                 "the request was begun %d times, and its worker was lost each time", LINE_BEGINS);
        set_answer(l, 0, "job_failed", str_c(msg));
    } else if (l->n_lost || jobcall_is_temporary(&l->call) || l->call.status == 502 ||
               is_missing(l)) {
        hold_line(l);
    } else {
        set_answer(l, l->call.status, "", buf_str(&l->call.reply));
    }
    if (l->answer.failed) { /* no memory: it is computed again */
        buf_release(&l->answer);
        hold_line(l);
    }
}

/* ---- one batch ---- */

static void collect_lines(struct gwbatch *b)
{
    for (struct gwline *l = b->lines; l; l = l->next)
        if (l->state == LINE_RUNNING && l->call.ended) collect_line(l);
}

static bool has_running(const struct gwbatch *b)
{
    for (const struct gwline *l = b->lines; l; l = l->next)
        if (l->state == LINE_RUNNING) return true;
    return false;
}

void batchrun_stop(struct gwbatch *b)
{
    for (struct gwline *l = b->lines; l; l = l->next)
        if (l->state == LINE_RUNNING && !l->call.ended && l->call.gone)
            l->call.gone(l->call.gone_arg); /* as a client that leaves */
}

/* answers: they stay. */
static void drop_lines(struct gwbatch *b, bool answers)
{
    struct gwline **p = &b->lines;

    batchrun_stop(b);
    while (*p) {
        struct gwline *l = *p;
        if ((l->state == LINE_RUNNING && !l->call.ended) ||
            (answers && l->state == LINE_ANSWERED)) {
            p = &l->next;
            continue;
        }
        if (l->state == LINE_RUNNING) b->s->n_running--;
        *p = l->next;
        b->n_lines--;
        gwline_free(l);
    }
}

void batchrun_free(struct gwbatch *b)
{
    struct gwline *lists[] = { b->lines, b->answered, b->fresh };

    for (int i = 0; i < 3; i++)
        for (struct gwline *l = lists[i], *next; l; l = next) {
            next = l->next;
            gwline_free(l);
        }
    batchwork_free(b->work);
    batchrec_release(&b->rec);
    mem_free(b);
}

/* ledger_op.done */
static void on_step(struct ledger_op *op)
{
    struct gwbatch *b = (struct gwbatch *)op;
    struct gwline **end = &b->lines;
    uint64_t now = clock_ns();

    b->busy = false;
    b->status = b->rec.status;
    while (*end) end = &(*end)->next;
    *end = b->fresh; /* lines begin in the order of the input */
    for (const struct gwline *l = b->fresh; l; l = l->next) b->n_lines++;
    b->fresh = NULL;
    if (op->rc == OK) return;
    b->next_ns = now + RETRY_MS * MS;
    if (b->lost) {
        log_info("batch %s: %s", b->rec.id, op->err.msg);
    } else if (now - b->told_ns > TELL_MS * MS) {
        b->told_ns = now;
        log_warn("batch %s: %s; trying again", b->rec.id, op->err.msg);
    }
}

/* Answers go to the ledger's thread with the next step. */
static void move_answers(struct gwbatch *b)
{
    for (struct gwline **p = &b->lines; *p;) {
        struct gwline *l = *p;
        if (l->state != LINE_ANSWERED) {
            p = &l->next;
            continue;
        }
        *p = l->next;
        b->n_lines--;
        l->next = b->answered;
        b->answered = l;
    }
}

static void start_step(struct gwbatch *b, int share, uint64_t now)
{
    bool due, works = b->status != BATCH_IN_PROGRESS;

    if (b->busy || now < b->next_ns) return;
    move_answers(b);
    b->want = share + AHEAD - b->n_lines;
    due = now - b->put_ns > STORE_RENEW_MS * MS;
    if (!works && !due && !b->answered && (b->want <= 0 || b->exhausted)) return;
    b->op.kind = LEDGER_OP_CALL;
    b->op.run = batchwork_run;
    b->op.done = on_step;
    b->busy = true;
    ledger_add_op(b->s->ledger, &b->op);
}

/* ---- all batches ---- */

static int count_room(struct gwstore *s)
{
    const struct settings *set = s->g->s;
    int per = set->batch_inflight ? (int)set->batch_inflight : PER_WORKER, ready = 0;
    int live = s->g->n_relays - s->n_running - gwjobs_n_running(s->g->jobs);
    bool waits = false;

    if (live > 0 && set->batch_inflight_busy < per) per = (int)set->batch_inflight_busy;
    for (int i = 0; i < fleet_n(s->g->fleet); i++) {
        const struct worker *w = fleet_at(s->g->fleet, i);
        if (!w || w->state != WORKER_READY) continue;
        ready++;
        waits |= live > 0 && w->waiting > 0;
    }
    return waits || s->draining ? 0 : ready * per;
}

static void step_lines(struct gwbatch *b, int *room, uint64_t now)
{
    int share = b->s->n_batches ? (*room + b->s->n_batches - 1) / b->s->n_batches : 0;

    for (struct gwline *l = b->lines; l; l = l->next) {
        if (l->state == LINE_RUNNING && l->call.ended) collect_line(l);
        if (l->state != LINE_HELD || share <= 0 || *room <= 0 || now < l->not_before) continue;
        if (!start_line(l)) break;
        if (l->state == LINE_RUNNING) share--, --*room;
    }
}

static bool is_over(const struct gwbatch *b) { return b->lost || b->status >= BATCH_COMPLETED; }

/* Gives the batch to other gateways: the answers there are, and its record without a holder. */
static void release_batch(struct gwbatch *b)
{
    struct gwline *l;

    move_answers(b);
    while ((l = b->lines)) { /* none of them runs */
        b->lines = l->next;
        gwline_free(l);
    }
    b->n_lines = 0;
    b->op.kind = LEDGER_OP_CALL;
    b->op.run = batchwork_release;
    b->op.done = on_step;
    b->busy = b->released = true;
    ledger_add_op(b->s->ledger, &b->op);
}

/* false: it is gone. */
static bool step_batch(struct gwbatch *b, int *room, int share, uint64_t now)
{
    struct gwstore *s = b->s;

    if (b->busy) {
        if (b->status == BATCH_IN_PROGRESS && !s->draining) step_lines(b, room, now);
        return true;
    }
    if (is_over(b) || s->draining || b->status != BATCH_IN_PROGRESS) {
        if (s->draining) collect_lines(b);
        drop_lines(b, s->draining);
        if (is_over(b) || b->released) return b->lines != NULL;
        if (s->draining) {
            if (!has_running(b)) release_batch(b);
            return true;
        }
    } else {
        step_lines(b, room, now);
    }
    start_step(b, share, now);
    return true;
}

void batchrun_turn(struct gwstore *s)
{
    uint64_t now = clock_ns();
    int room = count_room(s), share = s->n_batches ? (room + s->n_batches - 1) / s->n_batches : 0;

    room -= s->n_running;
    for (struct gwbatch **p = &s->batches; *p;) {
        struct gwbatch *b = *p;
        if (step_batch(b, &room, share, now)) {
            p = &b->next;
            continue;
        }
        *p = b->next;
        s->n_batches--;
        batchrun_free(b);
    }
    if (s->batches && s->batches->next) { /* another one is first with the next turn */
        struct gwbatch *first = s->batches, *last = first;
        while (last->next) last = last->next;
        s->batches = first->next;
        last->next = first;
        first->next = NULL;
    }
}
