/* cluster_sim.c - placement at the size of a fleet: the gateway's own place.c and affinity.c on
 * workers that only count.
 *
 * Requests arrive by a Poisson process. Each is a turn of one of many conversations, whose prompts
 * grow, below one of some system prompts (Zipf). A worker serves so many tokens a second, prompt
 * tokens that it has computed before cost nothing, and its cache holds so many blocks (oldest out
 * first). With churn a random worker dies now and then and comes back empty.
 *
 *     cluster_sim [--workers 128] [--policy prefix|least|weighted|round-robin] [--seconds 120]
 *                 [--load 0.7] [--churn S] [--conversations 4000] [--seed 1] [-o json]
 *
 * Prints imbalance (work of the most loaded worker above the mean), hit rate (prompt tokens found in
 * the cache, and that of one worker with all the memory), time to the first token, requests moved,
 * time of a placement. bench/cluster-sim runs it over sizes and policies. */
#include "cluster/affinity.h"
#include "cluster/place.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "kv/block.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_WORKERS = 1024,
    TURN_TOKENS = 96,
    OUT_TOKENS = 64,
    SYSTEMS = 64,
    SYSTEM_TOKENS = 256,
    MAX_TOKENS = 6144,
    LATENCIES = 1 << 20
};

#define SPEED 2000.0 /* tokens a second of a worker */

/* The blocks that a worker has computed: a table of hashes, each with the time of its last use. */
struct cache {
    uint64_t *keys;
    uint32_t *used;
    size_t n, room, tick, count;
};

struct sim_worker {
    struct cache cache;
    double free_at;     /* when its queue is empty */
    double done_tokens; /* work it got */
    bool up;
    double back_at;
};

struct talk {
    int system, turns;
};

struct opt {
    int workers, conversations;
    double seconds, load, churn;
    enum place_policy policy;
    const char *policy_name;
    uint64_t seed;
    bool json;
};

static void fail(const char *msg)
{
    fprintf(stderr, "cluster-sim: %s\n", msg);
    exit(2);
}

static void cache_init(struct cache *c, size_t blocks)
{
    c->n = 1;
    while (c->n < 2 * blocks) c->n *= 2;
    c->room = blocks;
    c->keys = mem_array(c->n, sizeof *c->keys);
    c->used = mem_array(c->n, sizeof *c->used);
    if (!c->keys || !c->used) fail("out of memory");
}

static void cache_clear(struct cache *c)
{
    memset(c->keys, 0, c->n * sizeof *c->keys);
    memset(c->used, 0, c->n * sizeof *c->used);
    c->count = 0;
}

/* Four places for a key; the one not used for the longest time is replaced. true: it was there. */
static bool cache_use(struct cache *c, uint64_t key)
{
    size_t base = (key * 0x9e3779b97f4a7c15u >> 20) & (c->n - 1) & ~(size_t)3, oldest = base;

    for (size_t i = base; i < base + 4; i++) {
        if (c->keys[i] == key) {
            c->used[i] = (uint32_t)++c->tick;
            return true;
        }
        if (c->used[i] < c->used[oldest]) oldest = i;
    }
    c->keys[oldest] = key;
    c->used[oldest] = (uint32_t)++c->tick;
    return false;
}

/* Prompt tokens that are cached; the whole prompt is afterwards. */
static int cache_prompt(struct cache *c, const uint64_t *hashes, int n)
{
    int hit = 0;
    bool all = true;

    for (int i = 0; i < n; i++) {
        bool there = cache_use(c, hashes[i]);
        all = all && there;
        hit += all;
    }
    return hit * KV_BLOCK;
}

static int zipf(struct rng *r, int n)
{
    double u = rng_unit(r);
    return (int)(pow((double)n + 1, u)) - 1;
}

/* The ids of a turn of a conversation: the system prompt, then every turn so far. */
static int make_prompt(const struct talk *t, int id, int32_t *ids)
{
    int n = 0;

    for (int i = 0; i < SYSTEM_TOKENS; i++) ids[n++] = t->system * 1000 + i;
    for (int k = 0; k <= t->turns && n + TURN_TOKENS < MAX_TOKENS; k++)
        for (int i = 0; i < TURN_TOKENS; i++) ids[n++] = 1000000 + id * 131 + k * 17 + i;
    return n;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct result {
    double imbalance, hit, hit_one, p50_ms, p95_ms, p99_ms, place_us;
    long requests, moved, lost;
};

struct sim {
    struct opt o;
    struct rng rng;
    struct sim_worker w[MAX_WORKERS];
    struct place_worker seen[MAX_WORKERS];
    double turn[MAX_WORKERS];
    struct affinity *index;
    struct cache one;
    struct talk *talks;
    double *latency;
    long n_latency;
    double place_ns, hit, hit_one, asked, total;
    long requests, moved, lost;
};

/* A worker dies: what waits there goes to others, as further work; it is back after a while. */
static void kill_one(struct sim *s, double now)
{
    struct sim_worker *w = &s->w[rng_u64(&s->rng) % (uint64_t)s->o.workers];
    int i = (int)(w - s->w);

    if (!w->up) return;
    if (w->free_at > now) s->moved += (long)((w->free_at - now) * SPEED / 200) + 1;
    w->up = false;
    w->back_at = now + 10;
    w->free_at = now;
    cache_clear(&w->cache);
    affinity_forget(s->index, i);
}

static void place_one(struct sim *s, double now)
{
    static int32_t ids[MAX_TOKENS];
    static uint64_t hashes[AFFINITY_BLOCKS];
    int match[MAX_WORKERS], n = s->o.workers,
                            id = (int)(rng_u64(&s->rng) % (uint64_t)s->o.conversations), at;
    struct talk *t = &s->talks[id];
    int n_ids = make_prompt(t, id, ids),
        n_hashes = affinity_hash_ids(0, ids, (size_t)n_ids, hashes), hit;
    struct place_job job = { s->o.policy, n_ids + OUT_TOKENS, n_hashes, KV_BLOCK };
    struct place_state st = { s->turn };
    uint64_t begin = clock_ns();
    double work;

    affinity_match(s->index, hashes, n_hashes, match, n);
    for (int i = 0; i < n; i++) {
        s->seen[i].usable = s->w[i].up;
        s->seen[i].match = match[i];
        s->seen[i].outstanding = s->w[i].free_at > now ? (s->w[i].free_at - now) * SPEED : 0;
    }
    at = place_choose(&job, s->seen, n, &st, NULL);
    if (at >= 0) affinity_add(s->index, hashes, n_hashes, at);
    s->place_ns += (double)(clock_ns() - begin);
    s->requests++;
    if (at < 0) {
        s->lost++;
        return;
    }
    hit = cache_prompt(&s->w[at].cache, hashes, n_hashes);
    s->hit += hit;
    s->hit_one += cache_prompt(&s->one, hashes, n_hashes);
    s->asked += n_ids;
    work = n_ids - hit + OUT_TOKENS;
    s->seen[at].assigned += job.cost;
    s->w[at].done_tokens += job.cost;
    if (s->w[at].free_at < now) s->w[at].free_at = now;
    if (s->n_latency < LATENCIES)
        s->latency[s->n_latency++] = (s->w[at].free_at - now + (n_ids - hit) / SPEED) * 1e3;
    s->w[at].free_at += work / SPEED;
    s->total += job.cost;
    if (s->total > 2 * PLACE_WINDOW * n) {
        s->total = 0;
        for (int i = 0; i < n; i++) s->total += s->seen[i].assigned /= 2;
    }
    t->turns = t->turns + 1 < 20 ? t->turns + 1 : 0;
}

static struct result run(struct sim *s)
{
    double now = 0, per_request = SYSTEM_TOKENS / 4 + TURN_TOKENS * 2 + OUT_TOKENS, most = 0,
           mean = 0;
    double rate = s->o.load * s->o.workers * SPEED / per_request,
           next_kill = s->o.churn > 0 ? s->o.churn : 1e300;
    struct result r = { 0 };
    int n_up = 0;

    while (now < s->o.seconds) {
        now += -log(1 - rng_unit(&s->rng)) / rate;
        while (next_kill < now) {
            kill_one(s, next_kill);
            next_kill += s->o.churn;
        }
        for (int i = 0; i < s->o.workers; i++)
            if (!s->w[i].up && s->w[i].back_at <= now) {
                double least =
                    1e300; /* it starts level with the least loaded: not every request is its */
                for (int k = 0; k < s->o.workers; k++)
                    if (s->w[k].up && s->seen[k].assigned < least) least = s->seen[k].assigned;
                s->w[i].up = true;
                s->w[i].free_at = now;
                if (least < 1e300) s->seen[i].assigned = least;
            }
        place_one(s, now);
    }
    for (int i = 0; i < s->o.workers; i++) {
        mean += s->w[i].done_tokens, n_up++;
        if (s->w[i].done_tokens > most) most = s->w[i].done_tokens;
    }
    mean /= n_up;
    qsort(s->latency, (size_t)s->n_latency, sizeof *s->latency, compare);
    r = (struct result){ .imbalance = most / mean - 1,
                         .hit = s->hit / s->asked,
                         .hit_one = s->hit_one / s->asked,
                         .place_us = s->place_ns / 1e3 / (double)s->requests,
                         .requests = s->requests,
                         .moved = s->moved,
                         .lost = s->lost };
    r.p50_ms = s->latency[s->n_latency / 2];
    r.p95_ms = s->latency[s->n_latency * 95 / 100];
    r.p99_ms = s->latency[s->n_latency * 99 / 100];
    return r;
}

static struct opt read_args(int argc, char **argv)
{
    struct opt o = { .workers = 128,
                     .conversations = 4000,
                     .seconds = 120,
                     .load = 0.7,
                     .policy_name = "prefix",
                     .seed = 1 };

    for (int i = 1; i < argc; i += 2) {
        const char *v = i + 1 < argc ? argv[i + 1] : NULL;
        if (!v) fail("a flag needs a value");
        if (strcmp(argv[i], "--workers") == 0) o.workers = atoi(v);
        else if (strcmp(argv[i], "--conversations") == 0) o.conversations = atoi(v);
        else if (strcmp(argv[i], "--seconds") == 0) o.seconds = atof(v);
        else if (strcmp(argv[i], "--load") == 0) o.load = atof(v);
        else if (strcmp(argv[i], "--churn") == 0) o.churn = atof(v);
        else if (strcmp(argv[i], "--seed") == 0) o.seed = (uint64_t)atoll(v);
        else if (strcmp(argv[i], "--policy") == 0) o.policy_name = v;
        else if (strcmp(argv[i], "-o") == 0) o.json = strcmp(v, "json") == 0;
        else fail("unknown flag; see the top of bench/cluster-sim.c");
    }
    if (o.workers < 1 || o.workers > MAX_WORKERS) fail("--workers is from 1 to 1024");
    if (o.conversations < 1 || !(o.load > 0) || !(o.seconds > 0))
        fail("--conversations, --load and --seconds are above 0");
    if (!place_policy_by_name(o.policy_name, &o.policy))
        fail("--policy is prefix, least, weighted or round-robin");
    return o;
}

int main(int argc, char **argv)
{
    static struct sim s;
    struct err e = { 0 };
    struct result r;

    s.o = read_args(argc, argv);
    rng_seed(&s.rng, s.o.seed);
    if (affinity_open(&s.index, 1 << 20, &e) != OK) fail(e.msg);
    s.talks = mem_array((size_t)s.o.conversations, sizeof *s.talks);
    s.latency = mem_array(LATENCIES, sizeof *s.latency);
    if (!s.talks || !s.latency) fail("out of memory");
    for (int i = 0; i < s.o.conversations; i++) s.talks[i].system = zipf(&s.rng, SYSTEMS);
    for (int i = 0; i < s.o.workers; i++) {
        cache_init(&s.w[i].cache, 8192);
        s.w[i].up = true;
        s.seen[i] = (struct place_worker){ .loaded = true, .weight = 1, .kv_free = 1 };
    }
    cache_init(&s.one, (size_t)8192 * (size_t)s.o.workers);
    r = run(&s);
    printf(s.o.json ? "{\"policy\": \"%s\", \"workers\": %d, \"requests\": %ld, \"imbalance\": "
                      "%.4f, \"hit_rate\": %.4f, "
                      "\"hit_rate_of_one\": %.4f, \"first_ms_p50\": %.1f, \"first_ms_p95\": %.1f, "
                      "\"first_ms_p99\": %.1f, "
                      "\"moved\": %ld, \"lost\": %ld, \"place_us\": %.1f}\n"
                    : "policy %s, %d workers: %ld requests, imbalance %.4f, hit rate %.4f (one "
                      "worker: %.4f), first token "
                      "p50 %.1f p95 %.1f p99 %.1f ms, %ld moved, %ld lost, %.1f us a placement\n",
           s.o.policy_name, s.o.workers, r.requests, r.imbalance, r.hit, r.hit_one, r.p50_ms,
           r.p95_ms, r.p99_ms, r.moved, r.lost, r.place_us);
    return 0;
}
