/* gwjobs.c - jobs that this gateway took from the queue.
 *
 *     taken ─► held ─► running (relay.c) ─┬─► answered: the answer is being written ─► gone
 *               ▲                         ├─► no room now: held, with a growing pause
 *               └─────────────────────────┤
 *                                         └─► its worker was lost: given back to the queue ─► gone
 *
 * While a job is here, JetStream is told so each EXTEND_MS, and does not deliver it to anybody else. An
 * answer that cannot be written is kept and written again later; the job may have been delivered to
 * another gateway by then, and the store takes the first answer. */
#include "cluster/gwjobs.h"

#include "base/clock.h"
#include "base/jsonw.h"
#include "base/log.h"
#include "base/mem.h"
#include "cluster/gateway_impl.h"
#include "cluster/gwjobs_impl.h"
#include "jobs/jobcall.h"
#include "net/loop.h"
#include "server/settings.h"

#include <stdio.h>
#include <time.h>

enum {
    TICK_MS = 100,  /* while there are jobs */
    IDLE_MS = 500,  /* otherwise */
    JOBS_MAX = 64,  /* that a gateway has taken */
    PER_WORKER = 8, /* of them for each worker that is ready */
    EXTEND_MS = LEDGER_ACK_MS / 4,
    PAUSE_MS = 100, /* of a job that found no room, or lost its worker, at first; doubles */
    PAUSE_MOST_MS = 5000,
    RELEASE_MOST_MS = 1000,
    WRITE_MS = 500,     /* between two attempts to write an answer */
    MISSING_MS = 10000, /* its model may be on a worker that starts again */
    TELL_MS = 10000
};

#define MS UINT64_C(1000000)

enum gwjob_state { JOB_HELD, JOB_RUNNING, JOB_ANSWERED, JOB_RELEASED };

struct gwjob {
    struct jobcall call; /* first */
    struct gwjobs *jobs;
    struct ledger_job *job;
    enum gwjob_state state;
    int n_lost;  /* workers that had it when they were lost */
    int n_tries; /* that found no room */
    uint64_t not_before, extended_ns, missing_ns, told_ns;
    struct ledger_op op, extend; /* answer or release; signs of life */
    bool op_busy, extend_busy;
    struct gwjob *next;
};

static int pause_of(int n, int most)
{
    int ms = PAUSE_MS;

    while (n-- > 1 && ms < most) ms *= 2;
    return ms < most ? ms : most;
}

/* ---- the end of a job ---- */

static void free_job(struct gwjob *b)
{
    struct gwjobs *j = b->jobs;

    for (struct gwjob **p = &j->jobs; *p; p = &(*p)->next)
        if (*p == b) {
            *p = b->next;
            break;
        }
    j->n_jobs--;
    buf_release(&b->op.data);
    jobcall_release(&b->call);
    ledger_free_job(b->job);
    mem_free(b);
}

static struct gwjob *job_of_op(struct ledger_op *op)
{
    return (struct gwjob *)((char *)op - offsetof(struct gwjob, op));
}

static struct gwjob *job_of_extend(struct ledger_op *op)
{
    return (struct gwjob *)((char *)op - offsetof(struct gwjob, extend));
}

/* The record of an answer that is not a worker's: code and message. */
static void set_error(struct gwjob *b, const char *code, const char *msg)
{
    struct jobrecord r = b->job->rec;

    r.is_answer = true;
    r.status = 0;
    r.ended = time(NULL);
    if (b->job->rc != OK) { /* the record could not be read */
        r = (struct jobrecord){ .is_answer = true, .ended = r.ended, .created = r.ended };
        snprintf(r.endpoint, sizeof r.endpoint, "/");
    }
    memcpy(r.id, b->job->id, sizeof r.id);
    snprintf(r.error, sizeof r.error, "%s", code);
    r.body = str_c(msg);
    buf_clear(&b->op.data);
    jobrecord_write(&r, &b->op.data);
    b->state = JOB_ANSWERED;
    counter_add(&b->jobs->n.failed, 1);
    log_warn("durable request %s: %s: %s", b->job->id, code, msg);
}

static void set_answer(struct gwjob *b)
{
    struct jobrecord r = b->job->rec;

    r.is_answer = true;
    r.status = b->call.status;
    r.ended = time(NULL);
    r.body = buf_str(&b->call.reply);
    buf_clear(&b->op.data);
    jobrecord_write(&r, &b->op.data);
    b->state = JOB_ANSWERED;
}

/* ledger_op.done */
static void on_finished(struct ledger_op *op)
{
    struct gwjob *b = job_of_op(op);
    struct gwjobs *j = b->jobs;

    b->op_busy = false;
    if (op->rc == OK) {
        counter_add(op->is_new ? &j->n.answered : &j->n.second, 1);
        b->state = JOB_RELEASED; /* gone with the next turn */
    } else if (op->too_large) {
        set_error(b, "answer_too_large", op->err.msg);
    } else {
        b->not_before = clock_ns() + WRITE_MS * MS;
        if (clock_ns() - b->told_ns > TELL_MS * MS) {
            b->told_ns = clock_ns();
            log_warn("the answer of %s is not written yet: %s", b->job->id, op->err.msg);
        }
    }
}

static void write_answer(struct gwjob *b)
{
    if (b->op.data.failed) { /* no memory: the job is computed again */
        buf_release(&b->op.data);
        b->state = JOB_HELD;
        b->not_before = clock_ns() + PAUSE_MOST_MS * MS;
        return;
    }
    b->op.kind = LEDGER_OP_FINISH;
    b->op.done = on_finished;
    b->op.is_new = b->op.too_large = false;
    memcpy(b->op.reply, b->job->reply, sizeof b->op.reply);
    memcpy(b->op.answer, b->job->answer, sizeof b->op.answer);
    b->op_busy = true;
    ledger_add_op(b->jobs->ledger, &b->op);
}

/* Also without success: an unacknowledged job is delivered again. */
static void on_released(struct ledger_op *op) { job_of_op(op)->op_busy = false; }

static void release_job(struct gwjob *b, int delay_ms)
{
    b->state = JOB_RELEASED;
    b->op.kind = LEDGER_OP_RELEASE;
    b->op.done = on_released;
    b->op.delay_ms = delay_ms;
    memcpy(b->op.reply, b->job->reply, sizeof b->op.reply);
    b->op_busy = true;
    counter_add(&b->jobs->n.released, 1);
    ledger_add_op(b->jobs->ledger, &b->op);
}

/* ---- running ---- */

/* jobcall.done, from inside the relay: the next turn goes on with it. */
static void on_reply(struct jobcall *c) { loop_wake(((struct gwjob *)c)->jobs->g->loop); }

static void start_job(struct gwjob *b)
{
    struct gwjobs *j = b->jobs;
    const struct jobrecord *r = &b->job->rec;
    const struct tenant *t = auth_find(j->g->auth, r->tenant);
    struct gw_who who = { .name = r->tenant,
                          .tenant = t ? t->index : 0,
                          .priority_max = t ? t->priority_max : 0 };
    char *body = mem_dup(r->body.p, r->body.n + 1); /* of the message, which ends with a NUL */

    if (!body) {
        b->not_before = clock_ns() + PAUSE_MOST_MS * MS;
        return;
    }
    jobcall_release(&b->call);
    b->call = (struct jobcall){ 0 };
    jobcall_init(&b->call, "durable", r->endpoint, r->id, body, r->body.n, on_reply);
    b->n_lost = 0;
    b->state = JOB_RUNNING;
    j->n_running++;
    relay_begin_job(j->g, &b->call.req, &who, body, &b->n_lost);
}

/* No worker has the job's model: one that has it may be starting, so the job waits for some time. */
static bool is_missing(struct gwjob *b)
{
    if (b->call.status != 404) {
        b->missing_ns = 0;
        return false;
    }
    if (!b->missing_ns) b->missing_ns = clock_ns();
    return clock_ns() - b->missing_ns < MISSING_MS * MS;
}

static void hold_job(struct gwjob *b)
{
    b->n_tries++;
    b->state = JOB_HELD;
    b->not_before = clock_ns() + (uint64_t)pause_of(b->n_tries, PAUSE_MOST_MS) * MS;
}

/* The relay has answered the call. */
static void collect_job(struct gwjob *b)
{
    b->jobs->n_running--;
    if (b->n_lost)
        release_job(b, pause_of((int)(b->job->n_delivered < 100 ? b->job->n_delivered : 100),
                                RELEASE_MOST_MS));
    else if (jobcall_is_temporary(&b->call) || b->call.status == 502 || is_missing(b)) hold_job(b);
    else set_answer(b);
}

/* ---- taking ---- */

static void expire_job(struct gwjob *b)
{
    set_error(b, "job_expired", "the request waited for more than a day");
}

/* A job that was taken but must not be run (expired, unreadable, delivered too often) is answered at once. */
static void judge_job(struct gwjob *b)
{
    const struct ledger_job *d = b->job;
    char msg[200];

    if (d->n_delivered > GWJOBS_DELIVERIES) {
        snprintf(msg, sizeof msg,
                 "the request was begun %d times, and its worker or gateway was lost each time",
                 GWJOBS_DELIVERIES);
        set_error(b, d->rc == OK ? "job_failed" : "job_unreadable", d->rc == OK ? msg : d->err.msg);
    } else if (d->rc == E_UNSUPPORTED) { /* perhaps there is a gateway of that version */
        release_job(b, RELEASE_MOST_MS);
    } else if (d->rc != OK) {
        set_error(b, "job_unreadable", d->err.msg);
    } else if (d->rec.created + GWJOBS_AGE_S < time(NULL)) {
        expire_job(b);
    }
}

static void take_jobs(struct gwjobs *j)
{
    struct ledger_job *d;

    while ((d = ledger_take(j->ledger))) {
        struct gwjob *b = mem_new(struct gwjob);
        if (!b) {
            ledger_free_job(d); /* delivered again after LEDGER_ACK_MS */
            continue;
        }
        b->jobs = j;
        b->job = d;
        b->extended_ns = clock_ns();
        b->next = j->jobs;
        j->jobs = b;
        j->n_jobs++;
        counter_add(&j->n.taken, 1);
        if (d->n_delivered > 1) counter_add(&j->n.redelivered, 1);
        judge_job(b);
    }
}

static void on_extended(struct ledger_op *op) { job_of_extend(op)->extend_busy = false; }

static void extend_job(struct gwjob *b, uint64_t now)
{
    if (b->extend_busy || b->state == JOB_RELEASED || now - b->extended_ns < EXTEND_MS * MS) return;
    b->extended_ns = now;
    b->extend.kind = LEDGER_OP_EXTEND;
    b->extend.done = on_extended;
    memcpy(b->extend.reply, b->job->reply, sizeof b->extend.reply);
    b->extend_busy = true;
    ledger_add_op(b->jobs->ledger, &b->extend);
}

static int count_ready(struct gwjobs *j)
{
    int n = 0;

    for (int i = 0; i < fleet_n(j->g->fleet); i++) {
        const struct worker *w = fleet_at(j->g->fleet, i);
        n += w && w->state == WORKER_READY;
    }
    return n;
}

/* ---- a turn ---- */

static void step_job(struct gwjob *b, uint64_t now, bool has_workers)
{
    struct gwjobs *j = b->jobs;

    if (b->state == JOB_RUNNING && b->call.ended) collect_job(b);
    if (b->state == JOB_HELD && b->job->rec.created + GWJOBS_AGE_S < time(NULL)) expire_job(b);
    else if (b->state == JOB_HELD && (j->draining || j->closing)) release_job(b, 0);
    else if (b->state == JOB_HELD && has_workers && now >= b->not_before) start_job(b);
    if (b->state == JOB_ANSWERED && !b->op_busy && now >= b->not_before) write_answer(b);
    if (!j->closing) extend_job(b, now);
    if (b->state == JOB_RELEASED && !b->op_busy && !b->extend_busy) free_job(b);
}

static void take_turn(struct gwjobs *j)
{
    int ready = count_ready(j), room = ready * PER_WORKER;
    uint64_t now = clock_ns();

    take_jobs(j);
    for (struct gwjob *b = j->jobs, *next; b; b = next) {
        next = b->next;
        step_job(b, now, ready > 0);
    }
    if (room > JOBS_MAX) room = JOBS_MAX;
    ledger_want(j->ledger, j->draining ? 0 : room - j->n_jobs);
}

void gwjobs_process(struct gwjobs *j)
{
    if (!j) return;
    ledger_process(j->ledger);
    take_turn(j);
}

static void on_tick(void *arg)
{
    struct gwjobs *j = arg;

    loop_timer_set(j->timer, j->n_jobs ? TICK_MS : IDLE_MS); /* first: it cannot fail then */
    take_turn(j);
}

/* ---- opening ---- */

static void on_ledger(void *arg) { loop_wake(((struct gwjobs *)arg)->g->loop); }

int gwjobs_open(struct gwjobs **out, struct gateway *g, struct err *e)
{
    struct gwjobs *j = mem_new(struct gwjobs);
    struct ledger_opt o = { .nats_url = g->s->nats,
                            .what = "durable requests",
                            .takes_jobs = true,
                            .wake = on_ledger,
                            .arg = j };
    int rc;

    if (!j) return err_nomem(e, o.what);
    j->g = g;
    j->timer = loop_timer(g->loop, on_tick, j);
    if (!j->timer || !loop_timer_set(j->timer, 1)) rc = err_nomem(e, "a timer");
    else rc = ledger_open(&j->ledger, &o, e);
    if (rc != OK) {
        loop_timer_close(j->timer);
        mem_free(j);
        return rc;
    }
    *out = j;
    return OK;
}

void gwjobs_drain(struct gwjobs *j)
{
    if (!j) return;
    j->draining = true;
    take_turn(j);
}

void gwjobs_close(struct gwjobs *j)
{
    if (!j) return;
    j->draining = j->closing = true;
    take_turn(j);            /* what has an answer is written, the rest given back */
    ledger_close(j->ledger); /* calls done of all */
    j->ledger = NULL;
    while (j->jobs) free_job(j->jobs);
    loop_timer_close(j->timer);
    mem_free(j);
}

/* ---- seeing it ---- */

int gwjobs_n_running(const struct gwjobs *j) { return j ? j->n_running : 0; }
int gwjobs_n_asked(const struct gwjobs *j) { return j ? j->n_asked : 0; }

void gwjobs_write_status(struct gwjobs *j, struct jsonw *w)
{
    int64_t queued = ledger_n_queued(j->ledger);

    jsonw_obj(w);
    jsonw_key(w, "connected"), jsonw_bool(w, ledger_is_connected(j->ledger));
    jsonw_key(w, "queued");
    if (queued < 0) jsonw_null(w);
    else jsonw_int(w, queued);
    jsonw_key(w, "taken"), jsonw_int(w, j->n_jobs);
    jsonw_key(w, "running"), jsonw_int(w, j->n_running);
    jsonw_key(w, "accepted"), jsonw_int(w, (int64_t)counter_get(&j->n.accepted));
    jsonw_key(w, "answered"), jsonw_int(w, (int64_t)counter_get(&j->n.answered));
    jsonw_key(w, "answered_elsewhere"), jsonw_int(w, (int64_t)counter_get(&j->n.second));
    jsonw_key(w, "redelivered"), jsonw_int(w, (int64_t)counter_get(&j->n.redelivered));
    jsonw_key(w, "given_back"), jsonw_int(w, (int64_t)counter_get(&j->n.released));
    jsonw_key(w, "failed"), jsonw_int(w, (int64_t)counter_get(&j->n.failed));
    jsonw_end(w);
}

void gwjobs_write_metrics(struct gwjobs *j, struct buf *out)
{
    const struct {
        const char *label;
        const struct counter *c;
    } rows[] = { { "event=\"accepted\"", &j->n.accepted },
                 { "event=\"refused\"", &j->n.refused },
                 { "event=\"taken\"", &j->n.taken },
                 { "event=\"redelivered\"", &j->n.redelivered },
                 { "event=\"answered\"", &j->n.answered },
                 { "event=\"answered_elsewhere\"", &j->n.second },
                 { "event=\"given_back\"", &j->n.released },
                 { "event=\"failed\"", &j->n.failed } };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        stat_counter(out, "tern_gateway_jobs_total", rows[i].label,
                     i ? NULL : "Durable requests by what happened to them at this gateway",
                     counter_get(rows[i].c));
    stat_gauge(out, "tern_gateway_jobs_running", "", "Durable requests that run over this gateway",
               j->n_running);
}
