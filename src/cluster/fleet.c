/* fleet.c - the table of workers and their signs of life. */
#include "cluster/fleet.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cluster/affinity.h"
#include "net/loop.h"

#include <math.h>
#include <stdio.h>
#include <sys/random.h>

enum {
    BEAT_GIVE_UP_MS = 2000, /* then the next beat is sent on a new connection */
    RETRY_MS = 100,         /* between beats to a worker that refuses connections, at first */
    RETRY_MOST_MS = 1000,
    DETECT_MOST_MS = 1000,
    TICKS = 5, /* looks at the clock in a beat */
    RESOLVE_MS = 5000
};

#define MS UINT64_C(1000000)

struct fleet {
    struct fleet_opt opt;
    struct worker *at[FLEET_MAX];
    int n; /* places used so far */
    struct loop_timer *timer;
    uint64_t tick_ns; /* when the timer should fire */
    double turns[FLEET_MAX];
    struct rng rng;
    struct buf headers; /* of beats */
};

const char *worker_state_name(enum worker_state s)
{
    static const char *const names[] = { "joining", "ready", "draining", "failed", "gone" };
    return names[s];
}

static void on_tick(void *arg);

int fleet_open(struct fleet **out, const struct fleet_opt *opt, struct err *e)
{
    struct fleet *f = mem_new(struct fleet);
    uint64_t seed;

    if (!f) return err_nomem(e, "the list of workers");
    f->opt = *opt;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed) seed = clock_ns();
    rng_seed(&f->rng, seed);
    buf_puts(&f->headers, "X-Tern-Hop: 1\r\n");
    if (*opt->cluster_key) buf_printf(&f->headers, "X-Tern-Cluster-Key: %s\r\n", opt->cluster_key);
    f->timer = loop_timer(opt->loop, on_tick, f);
    f->tick_ns = clock_ns() + MS;
    if (f->headers.failed || !f->timer || !loop_timer_set(f->timer, 1)) {
        fleet_close(f);
        return err_nomem(e, "the list of workers");
    }
    *out = f;
    return OK;
}

static void free_worker(struct worker *w)
{
    if (w->beat) hop_cancel(w->beat);
    lane_close(w->lane);
    fleet_free_models(w->models, w->n_models);
    buf_release(&w->list);
    buf_release(&w->reply);
    mem_free(w->url);
    mem_free(w);
}

void fleet_close(struct fleet *f)
{
    if (!f) return;
    for (int i = 0; i < f->n; i++)
        if (f->at[i]) free_worker(f->at[i]);
    loop_timer_close(f->timer);
    buf_release(&f->headers);
    mem_free(f);
}

/* ---- the list ---- */

int fleet_n(const struct fleet *f) { return f->n; }
struct worker *fleet_at(struct fleet *f, int i) { return i < f->n ? f->at[i] : NULL; }

struct worker *fleet_find(struct fleet *f, struct str url)
{
    for (int i = 0; i < f->n; i++)
        if (f->at[i] && str_is(url, f->at[i]->url)) return f->at[i];
    return NULL;
}

static int find_place(struct fleet *f, struct err *e)
{
    int i = 0;

    while (i < f->n && f->at[i]) i++;
    if (i == FLEET_MAX) return err_set(e, E_MEMORY, "more than %d workers", FLEET_MAX);
    return i;
}

/* A name that cannot be resolved now is tried again later. */
static int open_lane(struct worker *w, struct err *e)
{
    struct fleet *f = w->fleet;
    int rc = lane_open(&w->lane, loop_base(f->opt.loop), w->url, f->opt.ca_file, e);

    if (rc == E_IO) {
        w->retry_ns = clock_ns() + RESOLVE_MS * MS;
        w->why = "its name is not known";
    }
    return rc;
}

struct worker *fleet_add(struct fleet *f, struct str url, double weight, struct err *e)
{
    struct worker *w;
    int i, rc;

    while (str_ends(url, STR("/"))) url.n--;
    if ((w = fleet_find(f, url))) {
        if (w->state == WORKER_GONE) w->state = WORKER_JOINING;
        return w;
    }
    if ((i = find_place(f, e)) < 0) return NULL;
    if (!(w = mem_new(struct worker)) || !(w->url = mem_alloc(url.n + 1))) {
        mem_free(w);
        err_nomem(e, "a worker");
        return NULL;
    }
    memcpy(w->url, url.p, url.n);
    w->fleet = f;
    w->index = i;
    w->weight = weight;
    w->why = "";
    w->seen_ns = clock_ns();
    rc = open_lane(w, e);
    if (rc != OK && rc != E_IO) {
        free_worker(w);
        return NULL;
    }
    if (rc == E_IO) log_warn("worker %s: %s", w->url, e->msg);
    f->at[i] = w;
    f->turns[i] = 0;
    if (i == f->n) f->n++;
    return w;
}

/* "URL weight=2": one peer. */
static int add_peer(struct fleet *f, struct str text, struct err *e)
{
    ptrdiff_t space = str_find(text, STR(" "));
    struct str url = space < 0 ? text : str_take(text, (size_t)space),
               rest = space < 0 ? STR("") : str_trim(str_skip(text, (size_t)space));
    double weight = 1;
    struct worker *w;

    if (rest.n && (!str_starts(rest, STR("weight=")) || !str_to_f64(str_skip(rest, 7), &weight) ||
                   !(weight >= 0 && weight <= 1000)))
        return err_set(e, E_INVALID,
                       "peers: '%.*s' behind %.*s: only weight=W is known, W from 0 to 1000",
                       STR_ARG(str_take(rest, 60)), STR_ARG(str_take(url, 100)));
    if (!(w = fleet_add(f, url, weight, e))) return err_wrap(e, "peers");
    w->is_static = true;
    return OK;
}

int fleet_add_peers(struct fleet *f, const char *peers, struct err *e)
{
    struct str rest = str_c(peers);
    int rc = OK, n = 0;

    while (rest.n && rc == OK) {
        ptrdiff_t comma = str_find(rest, STR(","));
        struct str one = str_trim(comma < 0 ? rest : str_take(rest, (size_t)comma));
        rest = comma < 0 ? STR("") : str_skip(rest, (size_t)comma + 1);
        if (!one.n) continue;
        rc = add_peer(f, one, e);
        n++;
    }
    if (rc == OK && n == 0) return err_set(e, E_INVALID, "peers: no worker is named");
    return rc;
}

/* ---- states ---- */

static bool is_draining(const struct worker *w) { return w->told_to_drain || w->says_draining; }

/* A worker that comes, or comes back, starts level with the least served of the others: the work that
 * they got meanwhile is not owed to it. */
static void level_worker(struct worker *w)
{
    struct fleet *f = w->fleet;
    double least = -1;

    for (int i = 0; i < f->n; i++) {
        const struct worker *o = f->at[i];
        if (!o || o == w || o->state != WORKER_READY || !(o->weight > 0)) continue;
        if (least < 0 || o->assigned / o->weight < least) least = o->assigned / o->weight;
    }
    if (least > 0 && w->assigned < least * w->weight) w->assigned = least * w->weight;
}

static void set_state(struct worker *w, enum worker_state s, const char *why)
{
    struct fleet *f = w->fleet;
    enum worker_state before = w->state;

    w->why = why;
    if (before == s || before == WORKER_GONE) return;
    if (s == WORKER_READY) level_worker(w);
    w->state = s;
    log_info("worker %s: %s%s%s", w->url, worker_state_name(s), *why ? ": " : "", why);
    if (f->opt.changed) f->opt.changed(f->opt.arg);
    if (s == WORKER_FAILED && f->opt.lost) f->opt.lost(f->opt.arg, w);
}

static void fail_worker(struct worker *w, const char *why, bool suspect)
{
    uint64_t now = clock_ns();

    if (w->state == WORKER_FAILED || w->state == WORKER_GONE) return;
    w->failed_ns = now;
    w->suspect = suspect;
    w->n.detect_ms = (double)(now - w->seen_ns) / 1e6;
    if (suspect) w->n.suspects++;
    set_state(w, WORKER_FAILED, why);
}

/* An answer. A worker that was failed by its silence alone was failed wrongly. */
static void note_alive(struct worker *w)
{
    w->seen_ns = clock_ns();
    w->n_missed = 0;
    if (w->state == WORKER_FAILED && w->suspect) w->n.wrong++;
    w->suspect = false;
    if (w->state != WORKER_GONE) set_state(w, is_draining(w) ? WORKER_DRAINING : WORKER_READY, "");
}

void worker_note_seen(struct worker *w) { w->seen_ns = clock_ns(); }

/* The connection of a request failed: the next beat tells whether the worker is gone. */
void worker_note_lost(struct worker *w, enum hop_end end)
{
    if (end == HOP_CONNECT) fail_worker(w, "connection refused", false);
    else if (end == HOP_CUT) fail_worker(w, "connection lost", false);
    w->retry_ns = 0;
    if (end == HOP_CONNECT || end == HOP_CUT) lane_drop_idle(w->lane);
}

void fleet_remove(struct fleet *f, struct worker *w)
{
    (void)f;
    if (w->is_static) return;
    set_state(w, WORKER_GONE, "");
}

void fleet_drain(struct worker *w, bool on)
{
    w->told_to_drain = on;
    if (w->state == WORKER_READY || w->state == WORKER_DRAINING)
        set_state(w, is_draining(w) ? WORKER_DRAINING : WORKER_READY, "");
}

/* ---- signs of life ---- */

static void beat_head(void *arg, int status, bool sse) { (void)arg, (void)status, (void)sse; }

static void beat_data(void *arg, struct str bytes)
{
    struct worker *w = arg;

    worker_note_seen(w);
    if (w->beat_is_state && w->reply.n < (4 << 20)) buf_put_str(&w->reply, bytes);
}

/* Mean and mean deviation, as TCP measures a round trip (RFC 6298). */
static void learn_rtt(struct worker *w, double ms)
{
    if (w->rtt_ms == 0) w->rtt_ms = ms, w->rtt_dev_ms = ms / 2;
    w->rtt_dev_ms += (fabs(ms - w->rtt_ms) - w->rtt_dev_ms) / 4;
    w->rtt_ms += (ms - w->rtt_ms) / 8;
}

/* A worker whose process is a new one has computed no prefix. */
static void take_news(struct worker *w)
{
    struct fleet *f = w->fleet;

    if (w->is_new && f->opt.affinity) affinity_forget(f->opt.affinity, w->index);
    if (w->has_changed && f->opt.changed) f->opt.changed(f->opt.arg);
}

static void beat_end(void *arg, enum hop_end end)
{
    struct worker *w = arg;
    uint64_t now = clock_ns();
    struct err e = { 0 };

    w->beat = NULL;
    if (end == HOP_DONE) {
        learn_rtt(w, (double)(now - w->beat_ns) / 1e6);
        w->n.beats++;
        if (w->beat_is_state && fleet_read_state(w, buf_str(&w->reply), &e) != OK) {
            if (w->state != WORKER_FAILED) log_warn("worker %s: %s", w->url, e.msg);
            fail_worker(w, "its state cannot be read", false);
            w->retry_ns = now + RETRY_MOST_MS * MS;
        } else if (w->instance[0] || w->beat_is_state) {
            if (w->beat_is_state) take_news(w);
            note_alive(w);
        }
        return;
    }
    w->n_missed++;
    w->n.missed++;
    lane_drop_idle(w->lane);
    fail_worker(w, end == HOP_CONNECT ? "connection refused" : "connection lost", false);
    w->retry_ns = now + (uint64_t)fmin(RETRY_MS * pow(1.5, w->n_missed - 1), RETRY_MOST_MS) * MS;
}

static const struct hop_ops beat_ops = { NULL, beat_head, beat_data, beat_end };

/* A worker that failed, or was not seen yet, says first who it is. */
static void send_beat(struct worker *w)
{
    struct fleet *f = w->fleet;
    bool state = w->n_beats++ % STATE_BEATS == 0 || w->state == WORKER_FAILED || !w->instance[0];
    struct hop_request rq = { .method = "GET",
                              .path = state ? "/cluster/state" : "/health",
                              .headers = buf_str(&f->headers) };

    w->beat_is_state = state;
    buf_clear(&w->reply);
    w->beat_ns = clock_ns();
    w->beat = hop_start(w->lane, &rq, &beat_ops, w);
}

/* Usual round trips decide where they are long: an overloaded machine is slow, not dead. */
static double detect_ms(const struct worker *w)
{
    double usual = w->rtt_ms + 6 * w->rtt_dev_ms, beat = w->fleet->opt.beat_ms;
    /* A worker dies up to a beat before one is sent, and ticks are TICKS to a beat. */
    double most = fmax(w->fleet->opt.detect_ms - beat - 2 * beat / TICKS, beat);

    return fmax(most, fmin(usual, DETECT_MOST_MS));
}

static void check_silence(struct worker *w, uint64_t now)
{
    uint64_t since = w->beat_ns > w->seen_ns ? w->beat_ns : w->seen_ns;
    double ms = now > since ? (double)(now - since) / 1e6 : 0;

    if (ms >= detect_ms(w)) fail_worker(w, "silent", true);
    if (now > w->beat_ns && now - w->beat_ns > BEAT_GIVE_UP_MS * MS) {
        hop_cancel(w->beat);
        w->beat = NULL;
        w->n_missed++;
        w->n.missed++;
    }
}

static void remove_gone(struct fleet *f, struct worker *w)
{
    if (w->in_flight > 0) return;
    f->at[w->index] = NULL;
    if (f->opt.affinity) affinity_forget(f->opt.affinity, w->index);
    free_worker(w);
}

static uint64_t beat_ns(const struct fleet *f) { return (uint64_t)f->opt.beat_ms * MS; }

static void tick_worker(struct worker *w, uint64_t now)
{
    struct err e = { 0 };

    if (w->state == WORKER_GONE) {
        /* The lease of a silent worker has ended: its requests move as those of a failed worker. */
        if (w->suspect && w->in_flight > 0 && w->fleet->opt.lost)
            w->fleet->opt.lost(w->fleet->opt.arg, w);
        remove_gone(w->fleet, w);
        return;
    }
    if (!w->lane) {
        if (now >= w->retry_ns) open_lane(w, &e);
        return;
    }
    if (w->state == WORKER_FAILED && w->in_flight > 0 && w->fleet->opt.lost)
        w->fleet->opt.lost(w->fleet->opt.arg, w);
    if (w->beat) check_silence(w, now);
    else if (now >= w->retry_ns && now - w->beat_ns + MS >= beat_ns(w->fleet)) send_beat(w);
}

/* Time that the gateway lost counts for no worker. */
static void on_tick(void *arg)
{
    struct fleet *f = arg;
    uint64_t now = clock_ns(), late = now > f->tick_ns ? now - f->tick_ns : 0;

    uint64_t wait_ms = (uint64_t)(f->opt.beat_ms > TICKS ? f->opt.beat_ms / TICKS : 1);

    loop_timer_set(f->timer, wait_ms); /* first: it cannot fail then */
    f->tick_ns = now + wait_ms * MS;
    for (int i = 0; i < f->n; i++) {
        if (!f->at[i]) continue;
        if (late > 5 * MS) f->at[i]->beat_ns += late;
        tick_worker(f->at[i], now);
    }
}

/* ---- placement ---- */

static bool breaker_allows(const struct worker *w, uint64_t now)
{
    return !w->open_until || (now >= w->open_until && !w->half_open);
}

/* 0: no worker had it in memory yet. */
static double model_bytes(const struct worker *w, const struct worker_model *m)
{
    const struct fleet *f = w->fleet;
    double most = m->bytes;

    for (int i = 0; f && i < f->n && most == 0; i++)
        for (int k = 0; f->at[i] && k < f->at[i]->n_models; k++)
            if (strcmp(f->at[i]->models[k].id, m->id) == 0) most = f->at[i]->models[k].bytes;
    return most;
}

enum place_evicts worker_evicts(const struct worker *w, const struct worker_model *m)
{
    if (m->loading) return EVICTS_NONE;
    if (w->free_models != 0 && (w->free_bytes < 0 || model_bytes(w, m) <= w->free_bytes))
        return EVICTS_NONE;
    for (int i = 0; i < w->n_models; i++)
        if (w->models[i].loaded && w->models[i].running + w->models[i].waiting == 0)
            return EVICTS_IDLE;
    return EVICTS_USED;
}

static struct place_worker describe(struct worker *w, const struct fleet_job *job, uint64_t now,
                                    bool *known)
{
    const struct worker_model *m = job->any_model ? NULL : worker_model(w, job->model);
    struct place_worker p = { .weight = w->weight,
                              .outstanding = w->outstanding,
                              .assigned = w->assigned,
                              .loaded = m ? m->loaded : true,
                              .waiting = m ? m->waiting : w->waiting,
                              .kv_free = m ? m->kv_free : 0 };

    if (m && !m->loaded) p.evicts = worker_evicts(w, m);
    if (w->state == WORKER_GONE) return p;
    *known |= job->any_model || m;
    p.usable = w->state == WORKER_READY && (job->any_model || m) && breaker_allows(w, now) &&
               !(job->tried && job->tried[w->index]);
    return p;
}

void fleet_take(struct fleet *f, struct worker *w, const struct fleet_job *job)
{
    double sum = 0;

    w->in_flight++;
    w->outstanding += job->cost;
    w->assigned += job->cost;
    w->n.requests++;
    if (w->open_until) w->half_open = true;
    if (f->opt.affinity && job->n_hashes)
        affinity_add(f->opt.affinity, job->hashes, job->n_hashes, w->index);
    for (int i = 0; i < f->n; i++) sum += f->at[i] ? f->at[i]->assigned : 0;
    if (sum > 2 * PLACE_WINDOW * (f->n ? f->n : 1))
        for (int i = 0; i < f->n; i++)
            if (f->at[i]) f->at[i]->assigned /= 2;
}

static void note_load(struct worker *w, const struct fleet_job *job);

struct worker *fleet_place(struct fleet *f, const struct fleet_job *job, bool *by_prefix,
                           bool *known)
{
    struct place_worker all[FLEET_MAX];
    int match[FLEET_MAX] = { 0 }, i;
    struct place_state st = { f->turns };
    struct place_job pj = { f->opt.policy, job->cost, job->n_hashes, job->block_tokens };
    uint64_t now = clock_ns();

    *known = *by_prefix = false;
    if (f->opt.affinity && job->n_hashes)
        affinity_match(f->opt.affinity, job->hashes, job->n_hashes, match, f->n);
    for (i = 0; i < f->n; i++) {
        all[i] = f->at[i] ? describe(f->at[i], job, now, known) : (struct place_worker){ 0 };
        all[i].match = match[i];
    }
    i = f->opt.choose ? f->opt.choose(f->opt.choose_arg, f, job, all, f->n) : -1;
    if (i < 0 && (i = place_choose(&pj, all, f->n, &st, by_prefix)) < 0) return NULL;
    fleet_take(f, f->at[i], job);
    note_load(f->at[i], job);
    return f->at[i];
}

/* The request makes the worker load its model: what the worker says next replaces this. */
static void note_load(struct worker *w, const struct fleet_job *job)
{
    const struct worker_model *m = job->any_model ? NULL : worker_model(w, job->model);

    if (!m || m->loaded || m->loading) return;
    if (w->free_models > 0) w->free_models--;
    if (w->free_bytes >= 0) w->free_bytes = fmax(0, w->free_bytes - model_bytes(w, m));
    w->models[m - w->models].loading = true;
}

double fleet_imbalance(struct fleet *f)
{
    struct place_worker all[FLEET_MAX];

    for (int i = 0; i < f->n; i++) {
        struct worker *w = f->at[i];
        all[i] = (struct place_worker){ 0 };
        if (!w || w->state != WORKER_READY) continue;
        all[i].usable = true;
        all[i].weight = w->weight;
        all[i].assigned = w->assigned;
    }
    return place_imbalance(all, f->n);
}

/* ---- the breaker ---- */

static void open_breaker(struct worker *w)
{
    double ms = fmin(BREAKER_FIRST_MS * pow(2, w->n_opened), BREAKER_MOST_MS);

    ms *= 0.5 + rng_unit(&w->fleet->rng);
    w->open_until = clock_ns() + (uint64_t)(ms * 1e6);
    w->n_opened++;
    w->n.opened++;
    log_warn("worker %s: %d requests failed in a row; none is sent for %.0f ms", w->url, w->fails,
             ms);
}

void worker_done(struct worker *w, double cost, enum worker_result r)
{
    bool decides = w->half_open;

    w->in_flight--;
    w->outstanding = fmax(0, w->outstanding - cost);
    if (w->in_flight == 0) w->outstanding = 0;
    if (r == WORKER_CANCELLED) { /* says nothing about the worker */
        if (decides) w->half_open = false;
        return;
    }
    if (r == WORKER_BROKEN) {
        w->n.failures++;
        w->fails++;
        w->half_open = false;
        if (decides || w->fails % BREAKER_FAILS == 0) open_breaker(w);
        return;
    }
    w->fails = w->n_opened = 0;
    w->open_until = 0;
    w->half_open = false;
}
