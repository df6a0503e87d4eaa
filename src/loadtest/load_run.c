#include "loadtest/load_run.h"

#include "base/clock.h"
#include "base/mem.h"
#include "loadtest/load_job.h"

#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>

#define TICK_MS 250
#define MAX_JOBS 65536

struct run {
    struct load_target *target;
    const struct load_plan *plan;
    struct load_stats *stats;
    struct load_job **jobs, *idle;
    int n_jobs;
    struct rng rng;
    bool warming, stopped; /* warm-ups first; no more are started */
    int64_t n_warm_started, n_warm_done, n_started, n_waiting;
    int n_warm_jobs, n_warm_idle;
    int running;
    uint64_t begin_ns, last_end_ns;
    double arrivals; /* drawn so far, at rate 1 */
    struct event *arrival, *tick, *over, *interrupt;
    /* for the line on the terminal */
    bool progress;
    int64_t n_tokens, shown_tokens;
    uint64_t shown_ns;
    double shown_rate;
};

static void begin(struct run *r);
static struct load_job *job_new(struct run *r);

static double seconds(const struct run *r, uint64_t now)
{
    return (double)(now - r->begin_ns) / 1e9;
}

static void finish_if_idle(struct run *r)
{
    if (r->stopped && !r->running && !r->n_waiting) event_base_loopbreak(r->target->base);
}

/* ---- starting requests ---- */

static bool all_started(const struct run *r)
{
    return r->stopped ||
           (r->plan->n_requests && r->n_started + r->n_waiting >= r->plan->n_requests);
}

static struct load_job *job_take(struct run *r)
{
    struct load_job *j = r->idle;

    if (!j) return job_new(r);
    r->idle = *load_job_next(j);
    return j;
}

static void job_give(struct run *r, struct load_job *j)
{
    *load_job_next(j) = r->idle;
    r->idle = j;
}

static void start(struct run *r, struct load_job *j)
{
    struct load_second *s;

    r->running++;
    if (r->warming) {
        load_job_start(j, -++r->n_warm_started);
        return;
    }
    if (r->running > r->stats->running_max) r->stats->running_max = r->running;
    s = load_stats_second(r->stats, seconds(r, clock_ns()));
    if (r->running > s->running_max) s->running_max = r->running;
    load_job_start(j, r->n_started++);
}

/* A job is free: what it does next. */
static void next(struct run *r, struct load_job *j)
{
    if (r->warming && r->n_warm_started < r->plan->n_warmup) {
        start(r, j);
    } else if (r->warming) {
        job_give(r, j);
        if (++r->n_warm_idle == r->n_warm_jobs) begin(r);
    } else if (r->plan->rate > 0 && r->n_waiting) {
        r->n_waiting--;
        start(r, j);
    } else if (r->plan->rate > 0 || all_started(r)) {
        if (all_started(r)) r->stopped = true;
        job_give(r, j);
        finish_if_idle(r);
    } else {
        start(r, j);
    }
}

static void job_pause(evutil_socket_t fd, short what, void *arg)
{
    struct load_job *j = arg;
    (void)fd, (void)what;
    next(load_job_run(j), j);
}

static void on_arrival(evutil_socket_t fd, short what, void *arg)
{
    struct run *r = arg;
    double now = seconds(r, clock_ns()), due;

    (void)fd, (void)what;
    for (;;) {
        if (all_started(r)) {
            r->stopped = true;
            finish_if_idle(r);
            return;
        }
        due = load_due(r->arrivals, r->plan->rate, r->plan->ramp_s);
        if (due > now) break;
        r->arrivals += load_gap_draw(&r->rng, r->plan->burstiness);
        if (r->running >= (r->plan->n_clients ? r->plan->n_clients : MAX_JOBS)) r->n_waiting++;
        else start(r, job_take(r));
    }
    load_arm(r->arrival, (due - now) * 1000);
}

static void on_over(evutil_socket_t fd, short what, void *arg)
{
    struct run *r = arg;
    (void)fd, (void)what;
    r->stopped = true;
    r->n_waiting = 0;
    finish_if_idle(r);
}

static void on_interrupt(evutil_socket_t fd, short what, void *arg)
{
    struct run *r = arg;
    (void)fd, (void)what;
    event_base_loopbreak(r->target->base);
}

static void begin(struct run *r)
{
    const struct load_plan *p = r->plan;

    r->warming = false;
    r->begin_ns = r->last_end_ns = clock_ns();
    if (p->duration_s > 0) load_arm(r->over, p->duration_s * 1000);
    if (p->rate > 0) {
        r->arrivals = load_gap_draw(&r->rng, p->burstiness);
        load_arm(r->arrival, 0);
        return;
    }
    for (int i = 0; i < p->n_clients; i++) {
        struct load_job *j = job_take(r);
        load_arm(*load_job_pause(j), 1000 * p->ramp_s * i / p->n_clients);
    }
}

/* ---- what jobs say ---- */

static void on_token(void *run, uint64_t now_ns, double gap_ms, bool counted)
{
    struct run *r = run;

    r->n_tokens++;
    if (!counted) return;
    load_stats_second(r->stats, seconds(r, now_ns))->tokens++;
    if (gap_ms >= 0) load_series_add(&r->stats->itl, gap_ms);
}

static void on_ended(void *run, struct load_job *j, const struct load_rec *rec, const char *kind,
                     int pause_ms)
{
    struct run *r = run;
    struct load_second *s;

    r->running--;
    if (load_job_counted(j)) {
        r->last_end_ns = clock_ns();
        s = load_stats_second(r->stats, seconds(r, r->last_end_ns));
        s->done++;
        s->failed += rec->outcome == LOAD_FAILED;
        load_stats_add(r->stats, rec);
        if (*kind) load_stats_kind(r->stats, kind);
    } else {
        r->n_warm_done++;
    }
    load_arm(*load_job_pause(j), pause_ms);
}

static struct load_job *job_new(struct run *r)
{
    static const struct load_job_calls calls = { on_token, on_ended };
    struct load_job *j = load_job_open(r->target, r->plan, &calls, r);

    if ((r->n_jobs & (r->n_jobs - 1)) == 0)
        r->jobs = mem_grow(r->jobs, (size_t)(r->n_jobs ? 2 * r->n_jobs : 1) * sizeof *r->jobs);
    r->jobs[r->n_jobs++] = j;
    *load_job_pause(j) = evtimer_new(r->target->base, job_pause, j);
    return j;
}

/* ---- the line on the terminal ---- */

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    struct run *r = arg;
    uint64_t now = clock_ns();
    double dt = (double)(now - r->shown_ns) / 1e9, rate;
    struct load_stats *s = r->stats;

    (void)fd, (void)what;
    load_arm(r->tick, TICK_MS);
    if (!r->warming) {
        struct load_second *sec = load_stats_second(s, seconds(r, now));
        if (r->running > sec->running_max) sec->running_max = r->running;
    }
    if (!r->progress) return;
    rate = dt > 0 ? (double)(r->n_tokens - r->shown_tokens) / dt : 0;
    r->shown_rate = r->shown_rate > 0 ? 0.7 * r->shown_rate + 0.3 * rate : rate;
    r->shown_tokens = r->n_tokens;
    r->shown_ns = now;
    if (r->warming)
        fprintf(stderr, "\r\033[Kwarming up: %lld of %d", (long long)r->n_warm_done,
                r->plan->n_warmup);
    else
        fprintf(stderr, "\r\033[K%6.1f s   done %zu   running %d   %.1f tok/s   errors %zu",
                seconds(r, now), s->n[LOAD_OK] + s->n[LOAD_CANCELLED] + s->n[LOAD_LEFT], r->running,
                r->shown_rate, s->n[LOAD_FAILED]);
    fflush(stderr);
}

static void raise_file_limit(void)
{
    struct rlimit lim;

    if (getrlimit(RLIMIT_NOFILE, &lim) != 0) return;
    lim.rlim_cur = lim.rlim_max;
    setrlimit(RLIMIT_NOFILE, &lim);
}

int load_run(struct load_target *t, const struct load_plan *p, bool progress,
             struct load_stats *out, struct err *e)
{
    struct run r = { .target = t, .plan = p, .stats = out, .warming = true, .progress = progress };
    int n = p->n_clients && p->n_clients < p->n_warmup ? p->n_clients : p->n_warmup;

    *out = (struct load_stats){ .goals = p->goals };
    raise_file_limit();
    rng_seed(&r.rng, p->seed ^ 0x10ad);
    r.arrival = evtimer_new(t->base, on_arrival, &r);
    r.tick = evtimer_new(t->base, on_tick, &r);
    r.over = evtimer_new(t->base, on_over, &r);
    r.interrupt = evsignal_new(t->base, SIGINT, on_interrupt, &r);
    if (!r.arrival || !r.tick || !r.over || !r.interrupt) return err_set(e, E_NOMEM, "no timers");
    event_add(r.interrupt, NULL);
    r.begin_ns = r.shown_ns = clock_ns();
    load_arm(r.tick, 0);
    for (int i = 0; i < n; i++) load_arm(*load_job_pause(job_new(&r)), 0);
    r.n_warm_jobs = n;
    if (!n) begin(&r);
    event_base_dispatch(t->base);
    if (progress) fprintf(stderr, "\r\033[K");
    out->duration_s = seconds(&r, r.last_end_ns);
    for (int i = 0; i < r.n_jobs; i++) {
        out->n_missed += load_job_missed(r.jobs[i]);
        load_job_close(r.jobs[i]);
    }
    mem_free(r.jobs);
    event_free(r.arrival);
    event_free(r.tick);
    event_free(r.over);
    event_free(r.interrupt);
    return OK;
}
