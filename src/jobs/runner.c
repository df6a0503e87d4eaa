/* runner.c - which job runs next, and what becomes of its answer.
 *
 *     source: a batch, or the durable requests of a tenant
 *     store ──fetch──► source.queue ──start──► flight: the API ──► answer ──► store
 *                           ▲                     │
 *                           └──no room, stopped───┘
 *
 * Each source has at most one operation of the journal under way (`busy`), which moves it through its
 * status: validating, in progress, finalizing. Sources take turns; one whose tenant is at its limits
 * waits, with at most FETCH jobs in memory. A flight lives until its answer is
 * committed; an answer that cannot be written is kept and written again later. */
#include "jobs/jobs.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "jobs/jobcall.h"
#include "net/loop.h"

#include <stdio.h>
#include <string.h>

enum {
    TICK_MS = 50,   /* while jobs run */
    SLOW_MS = 1000, /* otherwise */
    FETCH = 32,     /* jobs of a source in memory */
    RETRY_MS = 250, /* first pause of a job that found no room; doubles */
    RETRY_MAX_MS = 8000,
    STORE_RETRY_MS = 1000,
    COUNT_MS = 2000, /* age of the counts for /metrics */
    PURGE_MS = 60000
};

enum op_kind { OP_LOAD, OP_STEP, OP_EXPIRE, OP_COUNT, OP_PURGE, N_OPS };

struct source {
    char id[STORE_ID];              /* "": durable requests of the tenant */
    char tenant[STORE_TENANT];      /* "": of a batch */
    int status;                     /* enum batch_status */
    int64_t expires, cursor, after; /* cursor: last job fetched; after: of jobstore_finish_step */
    bool busy, drained;
    int begun, seen;     /* the status at the beginning of the step, and in the store after it */
    bool more;           /* of the step */
    uint64_t not_before; /* clock_ns: after an error of the store */
    struct jobstore_job *queue, *queue_last;
    int n_queue, n_flying;
    struct journal_op op; /* of its step */
    struct jobstore_job *fetched;
    struct jobs *jobs;
    struct source *next;
};

struct flight {
    struct jobcall call; /* first */
    struct source *source;
    struct jobstore_job *job;
    bool running, stopped, cancelled;
    struct journal_op op; /* writes its answer */
    bool is_first, ended; /* of jobstore_answer_job */
    uint64_t write_ns;    /* not before */
    struct flight *next;
};

/* The pause of a job that found no room. */
struct pause {
    int64_t seq;
    int ms;
    uint64_t until;
};
enum { PAUSES = 256 };

struct jobs {
    struct jobs_opt opt;
    struct journal *journal;
    struct loop_timer *timer;
    struct source *sources;
    struct source *turn[2]; /* that started a job last: of durable requests, of batches */
    struct flight *flights; /* newest first */
    struct pause pauses[PAUSES];
    int n_lines, n_durable; /* that run in the API */
    bool draining, closing, in_turn, loaded;
    struct journal_op ops[N_OPS];
    bool op_busy[N_OPS];
    struct jobstore_active *active;
    int n_active;
    uint64_t counted_ns, purged_ns;
    struct jobstore_counts fresh;
    struct jobs_stats stats;
};

static struct jobs *jobs_of(struct journal_op *op, enum op_kind kind)
{
    return (struct jobs *)((char *)(op - kind) - offsetof(struct jobs, ops));
}

static struct source *source_of(struct journal_op *op)
{
    return (struct source *)((char *)op - offsetof(struct source, op));
}

static bool is_durable(const struct source *s) { return !*s->id; }

static bool is_ended(int status) { return status >= BATCH_COMPLETED; }

/* ---- pauses of jobs that found no room ---- */

static struct pause *find_pause(struct jobs *j, int64_t seq)
{
    for (int i = 0; i < PAUSES; i++)
        if (j->pauses[i].seq == seq) return &j->pauses[i];
    return NULL;
}

/* Without a free place the job is tried again at once. */
static void lengthen_pause(struct jobs *j, int64_t seq)
{
    struct pause *p = find_pause(j, seq);

    for (int i = 0; i < PAUSES && !p; i++) /* a free one, or one of a job that is gone */
        if (!j->pauses[i].seq || j->pauses[i].until + 60000000000u < clock_ns()) p = &j->pauses[i];
    if (!p) return;
    p->ms = p->seq != seq ? RETRY_MS : p->ms * 2 > RETRY_MAX_MS ? RETRY_MAX_MS : p->ms * 2;
    p->seq = seq;
    p->until = clock_ns() + (uint64_t)p->ms * 1000000;
}

static void end_pause(struct jobs *j, int64_t seq)
{
    struct pause *p = find_pause(j, seq);

    if (p) *p = (struct pause){ 0 };
}

static bool is_paused(struct jobs *j, int64_t seq)
{
    const struct pause *p = find_pause(j, seq);

    return p && clock_ns() < p->until;
}

/* ---- sources ---- */

/* tenant: "" for a batch. */
static struct source *find_source(struct jobs *j, const char *id, const char *tenant)
{
    for (struct source *s = j->sources; s; s = s->next)
        if (strcmp(s->id, id) == 0 && strcmp(s->tenant, tenant) == 0) return s;
    return NULL;
}

static struct source *add_source(struct jobs *j, const char *id, const char *tenant, int status,
                                 int64_t expires)
{
    struct source *s = find_source(j, id, tenant), **end = &j->sources;

    if (s) return s;
    if (!(s = mem_new(struct source))) return NULL;
    snprintf(s->id, sizeof s->id, "%s", id);
    snprintf(s->tenant, sizeof s->tenant, "%s", tenant);
    s->status = status;
    s->expires = expires;
    s->jobs = j;
    while (*end) end = &(*end)->next;
    *end = s;
    return s;
}

static void clear_queue(struct source *s)
{
    jobstore_free_jobs(s->queue);
    s->queue = s->queue_last = NULL;
    s->n_queue = 0;
}

static void remove_source(struct jobs *j, struct source *s)
{
    for (struct source **p = &j->sources; *p; p = &(*p)->next)
        if (*p == s) {
            *p = s->next;
            break;
        }
    for (int i = 0; i < 2; i++)
        if (j->turn[i] == s) j->turn[i] = NULL;
    clear_queue(s);
    mem_free(s);
}

static void push_job(struct source *s, struct jobstore_job *job, bool first)
{
    job->next = first ? s->queue : NULL;
    if (first) {
        s->queue = job;
        if (!s->queue_last) s->queue_last = job;
    } else {
        if (s->queue_last) s->queue_last->next = job;
        else s->queue = job;
        s->queue_last = job;
    }
    s->n_queue++;
}

/* The first job that no pause holds back; it leaves the queue. NULL: none. */
static struct jobstore_job *pop_job(struct jobs *j, struct source *s)
{
    struct jobstore_job *before = NULL;

    for (struct jobstore_job *job = s->queue; job; before = job, job = job->next) {
        if (is_paused(j, job->seq)) continue;
        if (before) before->next = job->next;
        else s->queue = job->next;
        if (s->queue_last == job) s->queue_last = before;
        s->n_queue--;
        job->next = NULL;
        return job;
    }
    return NULL;
}

/* ---- steps of a source, on the journal's thread ---- */

static int run_step(struct jobstore *st, struct journal_op *op, struct err *e)
{
    struct source *s = source_of(op);
    int rc = OK;
    bool last = false;

    s->more = false;
    if (s->begun == BATCH_VALIDATING) {
        rc = jobstore_validate_step(st, s->id, &s->more, e);
    } else if (s->begun == BATCH_IN_PROGRESS) {
        rc = jobstore_fetch_jobs(st, s->id, s->tenant, s->cursor, FETCH, &s->fetched, &last, e);
        s->more = !last;
    } else {
        rc = jobstore_finish_step(st, s->id, &s->after, &s->more, e);
    }
    if (rc == OK && s->begun != BATCH_IN_PROGRESS)
        rc = jobstore_batch_status(st, s->id, &s->seen, e);
    return rc;
}

static void take_fetched(struct source *s)
{
    struct jobstore_job *next;

    for (struct jobstore_job *job = s->fetched; job; job = next) {
        next = job->next;
        s->cursor = job->seq;
        push_job(s, job, false);
    }
    s->fetched = NULL;
    s->drained = !s->more;
}

/* The status that the operation began with may have changed meanwhile, by a cancel or expiry. */
static void on_step(struct journal_op *op)
{
    struct source *s = source_of(op);

    s->busy = false;
    if (op->rc != OK) {
        log_warn("%s: %s", is_durable(s) ? "durable requests" : s->id, op->err.msg);
        s->not_before = clock_ns() + STORE_RETRY_MS * 1000000ull;
        s->after = 0;
        jobstore_free_jobs(s->fetched);
        s->fetched = NULL;
        return;
    }
    if (s->begun == BATCH_IN_PROGRESS) take_fetched(s);
    else if (s->status == s->begun || is_ended(s->seen)) s->status = s->seen;
}

static void start_step(struct jobs *j, struct source *s)
{
    s->busy = true;
    s->begun = s->seen = s->status;
    s->op = (struct journal_op){ .run = run_step, .done = on_step };
    journal_add(j->journal, &s->op);
}

/* ---- flights ---- */

static void free_flight(struct jobs *j, struct flight *f)
{
    for (struct flight **p = &j->flights; *p; p = &(*p)->next)
        if (*p == f) {
            *p = f->next;
            break;
        }
    f->source->n_flying--;
    end_pause(j, f->job->seq);
    f->job->body = NULL; /* the call's */
    jobstore_free_jobs(f->job);
    jobcall_release(&f->call);
    mem_free(f);
}

/* Back into the queue, with its body. */
static void requeue(struct jobs *j, struct flight *f)
{
    struct jobstore_job *job = f->job;
    struct source *s = f->source;

    f->call.body = NULL;
    f->job = NULL;
    for (struct flight **p = &j->flights; *p; p = &(*p)->next)
        if (*p == f) {
            *p = f->next;
            break;
        }
    s->n_flying--;
    jobcall_release(&f->call);
    mem_free(f);
    push_job(s, job, true);
}

static struct flight *flight_of(struct journal_op *op)
{
    return (struct flight *)((char *)op - offsetof(struct flight, op));
}

static int run_answer(struct jobstore *st, struct journal_op *op, struct err *e)
{
    struct flight *f = flight_of(op);
    struct jobstore_answer a = { .status = f->call.status,
                                 .request_id = str_c(f->call.id),
                                 .body = buf_str(&f->call.reply) };

    if (!a.body.p) a.body = STR("");
    if (!a.status) a.error = "input_unreadable";
    return jobstore_answer_job(st, f->job->seq, &a, &f->is_first, &f->ended, e);
}

static void count_answer(struct jobs *j, const struct flight *f)
{
    bool good = f->call.status == 200, line = !is_durable(f->source);

    if (!f->is_first) return;
    if (line) good ? j->stats.lines_done++ : j->stats.lines_failed++;
    else good ? j->stats.durable_done++ : j->stats.durable_failed++;
}

static void on_answer(struct journal_op *op)
{
    struct flight *f = flight_of(op);
    struct source *s = f->source;
    struct jobs *j = s->jobs;

    if (op->rc != OK) {
        log_warn("the answer of %s is not written yet: %s", f->job->id, op->err.msg);
        f->write_ns = clock_ns() + STORE_RETRY_MS * 1000000ull;
        return;
    }
    f->write_ns = 0;
    count_answer(j, f);
    if (f->ended && s->status == BATCH_IN_PROGRESS) s->status = BATCH_FINALIZING;
    free_flight(j, f);
}

static void write_answer(struct jobs *j, struct flight *f)
{
    f->write_ns = UINT64_MAX; /* under way */
    f->op = (struct journal_op){ .run = run_answer, .done = on_answer };
    journal_add(j->journal, &f->op);
}

/* jobcall.done, from inside the API: the next turn goes on with it. */
static void on_reply(struct jobcall *c)
{
    struct flight *f = (struct flight *)c;

    loop_wake(f->source->jobs->opt.loop);
}

/* Flights whose call has ended: their answer is written, or they wait for another try. */
static void collect_flights(struct jobs *j)
{
    for (struct flight *f = j->flights, *next; f; f = next) {
        next = f->next;
        if (f->running && f->call.ended) {
            f->running = false;
            if (is_durable(f->source)) j->n_durable--;
            else j->n_lines--;
            if (f->cancelled) {
                free_flight(j, f);
            } else if (f->stopped || jobcall_is_temporary(&f->call)) {
                j->stats.retried++;
                if (!f->stopped) lengthen_pause(j, f->job->seq);
                requeue(j, f);
            } else {
                write_answer(j, f);
            }
        } else if (!f->running && f->write_ns != UINT64_MAX && clock_ns() >= f->write_ns &&
                   !j->closing) {
            write_answer(j, f);
        }
    }
}

/* false: no memory; the job is in the queue again. */
static bool start_job(struct jobs *j, struct source *s, struct jobstore_job *job)
{
    struct flight *f = mem_new(struct flight);
    bool line = !is_durable(s);

    if (!f) {
        push_job(s, job, true);
        return false;
    }
    f->source = s;
    f->job = job;
    f->next = j->flights;
    j->flights = f;
    s->n_flying++;
    jobcall_init(&f->call, line ? "batch" : "durable", job->endpoint, job->id, job->body,
                 job->n_body, on_reply);
    if (!job->body) { /* the input is gone: answered with an error, and not run */
        write_answer(j, f);
        return true;
    }
    f->running = true;
    if (line) j->n_lines++;
    else j->n_durable++;
    j->opt.submit(j->opt.arg, &f->call.req, job->endpoint, job->tenant, f, line);
    return true;
}

static void stop_flight(struct jobs *j, struct flight *f, bool cancelled)
{
    if (!f->running || f->call.ended || f->stopped) return;
    f->stopped = true;
    f->cancelled = cancelled;
    j->stats.stopped++;
    j->opt.stop(j->opt.arg, f);
}

/* The list is newest first: those that have computed the least are stopped. */
static void stop_lines(struct jobs *j, const struct source *only, int keep)
{
    int n = j->n_lines;

    for (struct flight *f = j->flights; f; f = f->next) {
        if (!f->running || is_durable(f->source) || (only && f->source != only)) continue;
        if (!only && n-- <= keep) return;
        stop_flight(j, f, only != NULL);
    }
}

/* ---- a turn ---- */

/* The jobs of a source in memory are all of one tenant. */
static bool may_run(const struct jobs *j, const struct source *s)
{
    if (s->status != BATCH_IN_PROGRESS || !s->queue) return false;
    return !j->opt.may_run || j->opt.may_run(j->opt.arg, s->queue->tenant, !is_durable(s));
}

/* The next source of the kind, after the one that started a job last, with a job for now. */
static struct jobstore_job *next_job(struct jobs *j, bool line, struct source **out)
{
    struct source *s = j->turn[line] ? j->turn[line]->next : NULL;
    struct jobstore_job *job;
    int n = 0;

    for (const struct source *x = j->sources; x; x = x->next) n++;
    for (; n-- > 0; s = s->next) {
        if (!s) s = j->sources;
        if (is_durable(s) == line || !may_run(j, s)) continue;
        if (!(job = pop_job(j, s))) continue;
        *out = j->turn[line] = s;
        return job;
    }
    return NULL;
}

static bool has_lines(const struct jobs *j)
{
    bool has = j->n_lines > 0;

    for (const struct source *s = j->sources; s; s = s->next)
        has |= !is_durable(s) && s->n_queue > 0;
    return has;
}

static void start_jobs(struct jobs *j)
{
    struct jobs_room room = has_lines(j) ? j->opt.room(j->opt.arg) : (struct jobs_room){ 0 };
    struct jobstore_job *job;
    struct source *s;

    if (j->n_lines > room.keep) stop_lines(j, NULL, room.keep);
    while (j->n_durable < j->opt.max_durable && (job = next_job(j, false, &s)))
        if (!start_job(j, s, job)) return;
    while (j->n_lines < room.start && (job = next_job(j, true, &s)))
        if (!start_job(j, s, job)) return;
}

static bool has_answers_to_write(const struct jobs *j, const struct source *s)
{
    for (const struct flight *f = j->flights; f; f = f->next)
        if (f->source == s) return true;
    return false;
}

/* The step that a source needs now, if it has none under way. */
static void advance_source(struct jobs *j, struct source *s)
{
    if (s->busy || clock_ns() < s->not_before) return;
    if (s->status == BATCH_IN_PROGRESS) {
        if (!s->drained && s->n_queue < FETCH / 2) start_step(j, s);
        else if (is_durable(s) && s->drained && !s->queue && s->n_flying == 0) remove_source(j, s);
    } else if (s->status == BATCH_VALIDATING) {
        start_step(j, s);
    } else if (!is_ended(s->status)) {
        clear_queue(s);
        stop_lines(j, s, 0);
        if (!has_answers_to_write(j, s)) start_step(j, s);
    } else if (s->n_flying == 0) {
        remove_source(j, s);
    }
}

/* ---- housekeeping ---- */

static int run_load(struct jobstore *st, struct journal_op *op, struct err *e)
{
    struct jobs *j = jobs_of(op, OP_LOAD);
    return jobstore_list_active(st, &j->active, &j->n_active, e);
}

static void on_load(struct journal_op *op)
{
    struct jobs *j = jobs_of(op, OP_LOAD);
    int n_batches = 0;

    j->op_busy[OP_LOAD] = false;
    if (op->rc != OK) return;
    j->loaded = true;
    for (int i = 0; i < j->n_active; i++) {
        const struct jobstore_active *a = &j->active[i];
        n_batches += *a->id != 0;
        if (!add_source(j, a->id, *a->id ? "" : a->tenant, a->status,
                        *a->id ? a->expires : INT64_MAX))
            log_error("out of memory: %s goes on after the next start",
                      *a->id ? a->id : "a durable request");
    }
    if (n_batches) log_info("%d batches go on", n_batches);
    mem_free(j->active);
    j->active = NULL;
    j->n_active = 0;
}

static int run_expire(struct jobstore *st, struct journal_op *op, struct err *e)
{
    (void)op;
    return jobstore_expire_batches(st, jobstore_now(), e);
}

/* The store did the same for these, or has seen them end. */
static void on_expire(struct journal_op *op)
{
    struct jobs *j = jobs_of(op, OP_EXPIRE);
    int64_t now = jobstore_now();

    j->op_busy[OP_EXPIRE] = false;
    if (op->rc != OK) return;
    for (struct source *s = j->sources; s; s = s->next)
        if (s->expires < now && (s->status == BATCH_VALIDATING || s->status == BATCH_IN_PROGRESS))
            s->status = BATCH_FINALIZING;
}

static int run_count(struct jobstore *st, struct journal_op *op, struct err *e)
{
    struct jobs *j = jobs_of(op, OP_COUNT);

    j->fresh = (struct jobstore_counts){ 0 };
    return jobstore_count(st, &j->fresh, e);
}

static void on_count(struct journal_op *op)
{
    struct jobs *j = jobs_of(op, OP_COUNT);

    j->op_busy[OP_COUNT] = false;
    if (op->rc == OK) j->stats.counts = j->fresh;
    j->stats.is_open = op->rc == OK;
}

static int run_purge(struct jobstore *st, struct journal_op *op, struct err *e)
{
    (void)op;
    return jobstore_purge(st, jobstore_now(), e);
}

static void on_purge(struct journal_op *op) { jobs_of(op, OP_PURGE)->op_busy[OP_PURGE] = false; }

static void add_op(struct jobs *j, enum op_kind kind)
{
    static int (*const runs[])(struct jobstore *, struct journal_op *,
                               struct err *) = { [OP_LOAD] = run_load,
                                                 [OP_EXPIRE] = run_expire,
                                                 [OP_COUNT] = run_count,
                                                 [OP_PURGE] = run_purge };
    static void (*const dones[])(struct journal_op *) = {
        [OP_LOAD] = on_load, [OP_EXPIRE] = on_expire, [OP_COUNT] = on_count, [OP_PURGE] = on_purge
    };

    if (j->op_busy[kind]) return;
    j->op_busy[kind] = true;
    j->ops[kind] = (struct journal_op){ .run = runs[kind], .done = dones[kind] };
    journal_add(j->journal, &j->ops[kind]);
}

static bool is_some_expired(const struct jobs *j)
{
    int64_t now = jobstore_now();

    for (const struct source *s = j->sources; s; s = s->next)
        if (s->expires < now && (s->status == BATCH_VALIDATING || s->status == BATCH_IN_PROGRESS))
            return true;
    return false;
}

static void keep_house(struct jobs *j)
{
    uint64_t now = clock_ns();

    if (is_some_expired(j)) add_op(j, OP_EXPIRE);
    if (now - j->counted_ns > COUNT_MS * 1000000ull) {
        j->counted_ns = now;
        add_op(j, OP_COUNT);
    }
    if (now - j->purged_ns > PURGE_MS * 1000000ull) {
        j->purged_ns = now;
        add_op(j, OP_PURGE);
    }
}

/* ---- the loop ---- */

static void take_turn(struct jobs *j)
{
    if (j->in_turn) return;
    j->in_turn = true;
    collect_flights(j);
    if (!j->draining) {
        for (struct source *s = j->sources, *next; s; s = next) {
            next = s->next;
            advance_source(j, s);
        }
        start_jobs(j);
    }
    j->in_turn = false;
}

/* The store is looked at only after it was found or used. */
static void on_timer(void *arg)
{
    struct jobs *j = arg;

    loop_timer_set(j->timer, j->flights || j->sources ? TICK_MS : SLOW_MS);
    if (!j->loaded) return;
    take_turn(j);
    if (!j->draining) keep_house(j);
}

void jobs_process(struct jobs *j)
{
    journal_process(j->journal);
    if (j->loaded) take_turn(j);
}

/* The first use of the store: batches and requests that it has go on. */
static void ensure_loaded(struct jobs *j)
{
    if (!j->loaded) add_op(j, OP_LOAD);
    loop_timer_set(j->timer, 1);
}

struct journal *jobs_journal(struct jobs *j)
{
    ensure_loaded(j);
    return j->journal;
}

const char *jobs_dir(const struct jobs *j) { return journal_dir(j->journal); }

void jobs_batch_added(struct jobs *j, const char *id, int64_t expires)
{
    if (!add_source(j, id, "", BATCH_VALIDATING, expires))
        log_error("out of memory: %s begins after the next start", id);
    loop_timer_set(j->timer, 1);
}

void jobs_batch_cancelled(struct jobs *j, const char *id)
{
    struct source *s = find_source(j, id, "");

    if (s && !is_ended(s->status) && s->status != BATCH_FINALIZING) s->status = BATCH_CANCELLING;
    loop_timer_set(j->timer, 1);
}

void jobs_job_added(struct jobs *j, const char *tenant)
{
    struct source *s = add_source(j, "", tenant, BATCH_IN_PROGRESS, INT64_MAX);

    if (s) s->drained = false;
    else log_error("out of memory: a durable request begins after the next start");
    loop_timer_set(j->timer, 1);
}

/* false: it is not in the queue. */
static bool remove_job(struct source *s, int64_t seq)
{
    struct jobstore_job *before = NULL, *job = s->queue;

    while (job && job->seq != seq) before = job, job = job->next;
    if (!job) return false;
    if (before) before->next = job->next;
    else s->queue = job->next;
    if (s->queue_last == job) s->queue_last = before;
    s->n_queue--;
    job->next = NULL;
    jobstore_free_jobs(job);
    return true;
}

void jobs_job_cancelled(struct jobs *j, int64_t seq)
{
    for (struct flight *f = j->flights; f; f = f->next)
        if (is_durable(f->source) && f->job->seq == seq) stop_flight(j, f, true);
    for (struct source *s = j->sources; s; s = s->next)
        if (is_durable(s) && remove_job(s, seq)) return;
}

void jobs_drain(struct jobs *j)
{
    j->draining = true;
    stop_lines(j, NULL, 0);
}

bool jobs_is_idle(const struct jobs *j) { return journal_n_waiting(j->journal) == 0; }

void jobs_stats(const struct jobs *j, struct jobs_stats *out)
{
    *out = j->stats;
    out->lines_running = j->n_lines;
    out->durable_running = j->n_durable;
    out->journal = journal_stats(j->journal);
}

/* ---- life ---- */

/* journal_open.wake, on the journal's thread. */
static void on_journal(void *arg)
{
    struct jobs *j = arg;
    loop_wake(j->opt.loop);
}

int jobs_open(struct jobs **out, const struct jobs_opt *opt, struct err *e)
{
    struct jobs *j = mem_new(struct jobs);
    int rc;

    if (!j) return err_nomem(e, "the jobs of the server");
    j->opt = *opt;
    if ((rc = journal_open(&j->journal, opt->dir, &opt->lim, on_journal, j, e)) != OK) {
        mem_free(j);
        return rc;
    }
    if (!(j->timer = loop_timer(opt->loop, on_timer, j))) {
        jobs_close(j);
        return err_nomem(e, "a timer");
    }
    if (jobstore_exists(opt->dir)) ensure_loaded(j);
    *out = j;
    return OK;
}

/* Answers that were not written are of jobs that are still queued in the store. */
void jobs_close(struct jobs *j)
{
    if (!j) return;
    collect_flights(j);
    j->draining = j->closing = true;
    journal_close(j->journal);
    while (j->flights) free_flight(j, j->flights);
    while (j->sources) remove_source(j, j->sources);
    loop_timer_close(j->timer);
    mem_free(j);
}
