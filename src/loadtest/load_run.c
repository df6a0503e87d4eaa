/* load_run.c - two kinds of load on one event loop:
 *
 *   closed loop  n_clients workers, each starts its next request when the last one ended; a slow
 *                server gets fewer requests
 *   open loop    arrivals at random times with a given rate, independent of the server; workers are
 *                made as they are needed, and arrivals beyond n_clients wait
 *
 * Warm-up requests run first as a closed loop and are not counted. A worker's next request always
 * starts from a timer: starting it from inside the end of the last one would recurse. */
#include "loadtest/load_run.h"

#include "base/clock.h"
#include "base/mem.h"
#include "loadtest/load_job.h"

#define TICK_MS 250
#define MAX_WORKERS 65536

struct run;

/* A job with what the run needs of it. In a closed loop each worker is one client. */
struct worker {
    struct run *run;
    struct load_job *job;
    struct event *next_timer; /* starts the next request */
    struct worker *next_idle; /* list of idle workers */
};

struct run {
    struct load_target *target;
    const struct load_plan *plan;
    const struct load_run_opt *opt;
    struct load_stats *stats;
    struct worker **workers, *idle;
    int n_workers, cap_workers;
    struct rng rng;
    bool warming_up; /* warm-up requests run; the counted ones have not begun */
    bool stopped;    /* no more requests are started */
    bool nomem;
    int64_t n_warm_started, n_warm_done, n_started;
    int64_t n_waiting; /* open loop: arrivals for which no worker is free */
    int n_warm_workers, n_warm_idle;
    int running; /* requests in progress */
    uint64_t begin_ns, last_end_ns;
    double arrivals; /* sum of the gaps sampled so far, at rate 1 */
    struct event *arrival, *tick, *over;
    /* for the progress */
    int64_t n_tokens, shown_tokens;
    uint64_t shown_ns;
    double shown_rate;
};

static void begin_counting(struct run *r);

/* Time of the run: 0 is when the counted requests begin. */
static double seconds_since_begin(const struct run *r, uint64_t now)
{
    return (double)(now - r->begin_ns) / 1e9;
}

/* Out of memory: the loop ends, load_run returns E_NOMEM. */
static void fail_run(struct run *r)
{
    r->nomem = true;
    event_base_loopbreak(r->target->base);
}

static void arm_timer(struct run *r, struct event *timer, double ms)
{
    if (!load_arm(timer, ms)) fail_run(r);
}

static void finish_if_idle(struct run *r)
{
    if (r->stopped && !r->running && !r->n_waiting) event_base_loopbreak(r->target->base);
}

/* ---- starting requests ---- */

/* Have all requests of the plan been started, or is it time to stop? */
static bool all_started(const struct run *r)
{
    return r->stopped ||
           (r->plan->n_requests && r->n_started + r->n_waiting >= r->plan->n_requests);
}

static void put_idle(struct run *r, struct worker *w)
{
    w->next_idle = r->idle;
    r->idle = w;
}

static void start_request(struct run *r, struct worker *w)
{
    struct load_second *s;

    r->running++;
    if (r->warming_up) {
        load_job_start(w->job, -++r->n_warm_started);
        return;
    }
    if (r->running > r->stats->running_max) r->stats->running_max = r->running;
    s = load_stats_second(r->stats, seconds_since_begin(r, clock_ns()));
    if (r->running > s->running_max) s->running_max = r->running;
    load_job_start(w->job, r->n_started++);
}

/* The worker is free: starts its next request or puts it into the idle list. */
static void continue_worker(struct run *r, struct worker *w)
{
    if (r->warming_up && r->n_warm_started < r->plan->n_warmup) {
        start_request(r, w);
    } else if (r->warming_up) {
        put_idle(r, w);
        if (++r->n_warm_idle == r->n_warm_workers) begin_counting(r);
    } else if (r->plan->rate > 0 && r->n_waiting) {
        r->n_waiting--;
        start_request(r, w);
    } else if (r->plan->rate > 0 || all_started(r)) {
        if (all_started(r)) r->stopped = true;
        put_idle(r, w);
        finish_if_idle(r);
    } else {
        start_request(r, w);
    }
}

static void on_next_time(evutil_socket_t fd, short what, void *arg)
{
    struct worker *w = arg;

    (void)fd, (void)what;
    continue_worker(w->run, w);
}

/* ---- callbacks of jobs ---- */

/* n_tokens counts warm-up too: it is for the progress. */
static void on_token(void *arg, uint64_t now_ns, double gap_ms, bool counted)
{
    struct run *r = ((struct worker *)arg)->run;

    r->n_tokens++;
    if (!counted) return;
    load_stats_second(r->stats, seconds_since_begin(r, now_ns))->tokens++;
    if (gap_ms >= 0) load_series_add(&r->stats->itl, gap_ms);
}

static void on_ended(void *arg, const struct load_rec *rec, const char *kind, int pause_ms)
{
    struct worker *w = arg;
    struct run *r = w->run;

    r->running--;
    if (load_job_counted(w->job)) {
        r->last_end_ns = clock_ns();
        struct load_second *s = load_stats_second(r->stats, seconds_since_begin(r, r->last_end_ns));
        s->done++;
        s->failed += rec->outcome == LOAD_FAILED;
        load_stats_add(r->stats, rec);
        if (*kind) load_stats_add_kind(r->stats, kind);
    } else {
        r->n_warm_done++;
    }
    arm_timer(r, w->next_timer, pause_ms);
}

/* ---- workers ---- */

static void close_worker(struct worker *w)
{
    if (!w) return;
    if (w->next_timer) event_free(w->next_timer);
    load_job_close(w->job);
    mem_free(w);
}

static struct worker *open_worker(struct run *r)
{
    static const struct load_job_calls calls = { on_token, on_ended };
    struct worker *w = mem_new(struct worker);

    if (!w) return NULL;
    w->run = r;
    w->job = load_job_open(r->target, r->plan, &calls, w);
    w->next_timer = evtimer_new(r->target->base, on_next_time, w);
    if (w->job && w->next_timer && mem_ensure(r->workers, r->cap_workers, r->n_workers + 1)) {
        r->workers[r->n_workers++] = w;
        return w;
    }
    close_worker(w);
    return NULL;
}

/* An idle worker or a new one; NULL: no memory, and the run fails. */
static struct worker *take_worker(struct run *r)
{
    struct worker *w = r->idle;

    if (w) r->idle = w->next_idle;
    else if (!(w = open_worker(r))) fail_run(r);
    return w;
}

/* ---- the course of a run ---- */

/* Open loop: starts all arrivals that are due, then waits for the next one. */
static void on_arrival(evutil_socket_t fd, short what, void *arg)
{
    struct run *r = arg;
    double now = seconds_since_begin(r, clock_ns()), due;

    (void)fd, (void)what;
    for (;;) {
        struct worker *w;
        if (all_started(r)) {
            r->stopped = true;
            finish_if_idle(r);
            return;
        }
        due = load_arrival_time(r->arrivals, r->plan->rate, r->plan->ramp_s);
        if (due > now) break;
        r->arrivals += load_gap_sample(&r->rng, r->plan->burstiness);
        if (r->running >= (r->plan->n_clients ? r->plan->n_clients : MAX_WORKERS)) r->n_waiting++;
        else if ((w = take_worker(r))) start_request(r, w);
        else return;
    }
    arm_timer(r, r->arrival, (due - now) * 1000);
}

/* The duration has passed: requests in progress may end. */
static void on_over(evutil_socket_t fd, short what, void *arg)
{
    struct run *r = arg;

    (void)fd, (void)what;
    r->stopped = true;
    r->n_waiting = 0;
    finish_if_idle(r);
}

/* The warm-up is over. */
static void begin_counting(struct run *r)
{
    const struct load_plan *p = r->plan;
    struct worker *w;

    r->warming_up = false;
    r->begin_ns = r->last_end_ns = clock_ns();
    if (p->duration_s > 0) arm_timer(r, r->over, p->duration_s * 1000);
    if (p->rate > 0) {
        r->arrivals = load_gap_sample(&r->rng, p->burstiness);
        arm_timer(r, r->arrival, 0);
        return;
    }
    for (int i = 0; i < p->n_clients && (w = take_worker(r)); i++)
        arm_timer(r, w->next_timer, 1000 * p->ramp_s * i / p->n_clients);
}

static void begin_warmup(struct run *r)
{
    const struct load_plan *p = r->plan;
    int n = p->n_clients && p->n_clients < p->n_warmup ? p->n_clients : p->n_warmup;
    struct worker *w;

    r->warming_up = true;
    r->n_warm_workers = n;
    for (int i = 0; i < n && (w = take_worker(r)); i++) arm_timer(r, w->next_timer, 0);
    if (!n) begin_counting(r);
}

/* ---- progress ---- */

/* tokens_per_s is an exponential average, so that it does not flicker. */
static void report_progress(struct run *r, uint64_t now)
{
    const struct load_stats *s = r->stats;
    double dt = (double)(now - r->shown_ns) / 1e9;
    double rate = dt > 0 ? (double)(r->n_tokens - r->shown_tokens) / dt : 0;

    r->shown_rate = r->shown_rate > 0 ? 0.7 * r->shown_rate + 0.3 * rate : rate;
    r->shown_tokens = r->n_tokens;
    r->shown_ns = now;
    struct load_progress p = { .warming_up = r->warming_up,
                               .n_warm_done = r->n_warm_done,
                               .seconds = seconds_since_begin(r, now),
                               .n_done =
                                   s->n[LOAD_OK] + s->n[LOAD_CANCELLED] + s->n[LOAD_DISCONNECTED],
                               .n_failed = s->n[LOAD_FAILED],
                               .running = r->running,
                               .tokens_per_s = r->shown_rate };
    r->opt->progress(r->opt->progress_arg, &p);
}

/* Also records the running requests of seconds in which none starts. */
static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    struct run *r = arg;
    uint64_t now = clock_ns();

    (void)fd, (void)what;
    arm_timer(r, r->tick, TICK_MS);
    if (r->opt->stop && *r->opt->stop) event_base_loopbreak(r->target->base);
    if (!r->warming_up) {
        struct load_second *s = load_stats_second(r->stats, seconds_since_begin(r, now));
        if (r->running > s->running_max) s->running_max = r->running;
    }
    if (r->opt->progress) report_progress(r, now);
}

static bool open_timers(struct run *r)
{
    struct event_base *base = r->target->base;

    r->arrival = evtimer_new(base, on_arrival, r);
    r->tick = evtimer_new(base, on_tick, r);
    r->over = evtimer_new(base, on_over, r);
    return r->arrival && r->tick && r->over;
}

static void release_run(struct run *r)
{
    struct event *timers[] = { r->arrival, r->tick, r->over };

    for (int i = 0; i < r->n_workers; i++) {
        r->stats->n_missed += load_job_missed(r->workers[i]->job);
        close_worker(r->workers[i]);
    }
    mem_free(r->workers);
    for (size_t i = 0; i < sizeof timers / sizeof *timers; i++)
        if (timers[i]) event_free(timers[i]);
}

int load_run(struct load_target *t, const struct load_plan *p, const struct load_run_opt *opt,
             struct load_stats *out, struct err *e)
{
    struct run r = { .target = t, .plan = p, .opt = opt, .stats = out };
    int rc = OK;

    *out = (struct load_stats){ .goals = p->goals };
    rng_seed(&r.rng, p->seed ^ 0x10ad);
    r.begin_ns = r.last_end_ns = r.shown_ns = clock_ns();
    if (open_timers(&r)) {
        arm_timer(&r, r.tick, 0);
        begin_warmup(&r);
        if (!r.nomem) event_base_dispatch(t->base);
    } else {
        r.nomem = true;
    }
    out->duration_s = seconds_since_begin(&r, r.last_end_ns);
    release_run(&r);
    if (r.nomem) rc = err_nomem(e, "another client of the load test");
    else if (!load_stats_complete(out)) rc = err_nomem(e, "the statistics of the load test");
    return rc;
}
