#include "engine/sched.h"

#include <math.h>
#include <stddef.h>

#define BLIND_CHUNK 64    /* prefill tokens beside decodes while costs are not known */
#define LEAST_STRETCH 1.8 /* where decodes alone fill max_step_ns, prompts still get on */

/* ---- rank ---- */

struct rank {
    const struct sched_in *in;
    uint64_t age_ns, tick; /* ticks of age_ns since the clock began */
    int top;               /* highest priority that is there */
    bool deadlines;        /* somebody has one */
};

static struct rank rank_of(const struct sched_in *in)
{
    struct rank k = { .in = in, .age_ns = in->opt.age_ns ? in->opt.age_ns : 1000000000u };
    k.tick = in->now_ns / k.age_ns;
    for (int i = 0; i < in->n_seqs; i++) {
        if (i == 0 || in->seqs[i].priority > k.top) k.top = in->seqs[i].priority;
        k.deadlines |= in->seqs[i].deadline_ns != 0;
    }
    return k;
}

static int64_t effective(const struct rank *k, const struct sched_seq *s)
{
    uint64_t born = s->arrival_ns / k->age_ns, age = k->tick > born ? k->tick - born : 0;
    int64_t room = (int64_t)k->top - s->priority;
    int64_t lift = age < (uint64_t)room ? (int64_t)age : room;
    return s->priority + lift + (k->deadlines && age >= SCHED_OVERDUE);
}

static uint64_t served(const struct sched_in *in, uint32_t tenant)
{
    return in->served && tenant < (uint32_t)in->n_tenants ? in->served[tenant] : 0;
}

static bool ranks_before(const struct rank *k, int a, int b, bool fair)
{
    const struct sched_seq *x = &k->in->seqs[a], *y = &k->in->seqs[b];
    int64_t px = effective(k, x), py = effective(k, y);
    if (px != py) return px > py;
    if (x->deadline_ns != y->deadline_ns)
        return x->deadline_ns - 1 < y->deadline_ns - 1; /* none wraps to the last */
    if (fair && x->tenant != y->tenant) {
        uint64_t sx = served(k->in, x->tenant), sy = served(k->in, y->tenant);
        if (sx != sy) return sx < sy;
    }
    if (x->arrival_ns != y->arrival_ns) return x->arrival_ns < y->arrival_ns;
    return a < b;
}

bool sched_before(const struct sched_in *in, int a, int b)
{
    struct rank k = rank_of(in);
    return ranks_before(&k, a, b, true);
}

/* A heap with the first in rank on top. */
static void sift(const struct rank *k, int *h, int n, int i, bool fair)
{
    for (int kid; (kid = 2 * i + 1) < n; i = kid) {
        int x = h[i];
        if (kid + 1 < n && ranks_before(k, h[kid + 1], h[kid], fair)) kid++;
        if (!ranks_before(k, h[kid], x, fair)) return;
        h[i] = h[kid];
        h[kid] = x;
    }
}

static void heap_make(const struct rank *k, int *h, int n, bool fair)
{
    for (int i = n / 2 - 1; i >= 0; i--) sift(k, h, n, i, fair);
}

static void heap_pop(const struct rank *k, int *h, int *n, bool fair)
{
    int top = h[0];
    h[0] = h[--*n];
    h[*n] = top;
    sift(k, h, *n, 0, fair);
}

static void sort(const struct rank *k, int *h, int n)
{
    heap_make(k, h, n, false);
    for (int left = n; left > 1;) heap_pop(k, h, &left, false);
    for (int i = 0, j = n - 1; i < j; i++, j--) {
        int x = h[i];
        h[i] = h[j];
        h[j] = x;
    }
}

/* ---- one plan ---- */

struct plan {
    const struct sched_in *in;
    struct sched_plan *out;
    struct rank rank;
    int *running, n_running; /* first in rank first; one that takes part stands as ~index */
    int *waiting, n_waiting; /* a heap */
    int min_chunk;
    double stretch;
    int free; /* blocks nobody was given in this plan */
    int owed; /* blocks running ones are still to get for what they know;
                 not kept up once one was preempted: then nobody begins */
    int n_chunks;
};

static int blocks_for(const struct plan *p, int n_tokens)
{
    return (n_tokens + p->in->opt.block - 1) / p->in->opt.block;
}

/* Blocks that s lacks to hold n_tokens. */
static int lacks(const struct plan *p, const struct sched_seq *s, int n_tokens)
{
    int n = blocks_for(p, n_tokens) - s->n_blocks;
    return n > 0 ? n : 0;
}

static int rest(const struct sched_seq *s) { return s->n_tokens - s->n_kv; }

/* The last in rank behind running[i] that does not take part in this step and whose blocks help. */
static bool preempt_behind(struct plan *p, int i)
{
    const struct sched_seq *s;
    int j = p->n_running - 1;
    while (j > i && (p->running[j] < 0 ||
                     p->in->seqs[p->running[j]].n_blocks <= p->in->seqs[p->running[j]].n_shared))
        j--;
    if (j <= i) return false;
    s = &p->in->seqs[p->running[j]];
    p->free += s->n_blocks - s->n_shared;
    p->out->preempt[p->out->n_preempt++] = p->running[j];
    p->n_running--;
    for (; j < p->n_running; j++) p->running[j] = p->running[j + 1];
    return true;
}

static void run(struct plan *p, int seq, int n, int n_blocks)
{
    p->out->run[p->out->n_run++] = (struct sched_item){ seq, n };
    p->out->n_tokens += n;
    p->free -= n_blocks;
    p->owed -= n_blocks;
}

static void run_at(struct plan *p, int i, int n)
{
    const struct sched_seq *s = &p->in->seqs[p->running[i]];
    run(p, p->running[i], n, lacks(p, s, s->n_kv + n));
    p->running[i] = ~p->running[i];
}

static void plan_decodes(struct plan *p)
{
    const struct sched_opt *o = &p->in->opt;
    for (int i = 0; i < p->n_running; i++) {
        const struct sched_seq *s = &p->in->seqs[p->running[i]];
        int need = lacks(p, s, s->n_tokens);
        if (s->held || rest(s) != 1) continue;
        if (p->out->n_run == o->max_seqs || p->out->n_tokens == o->max_tokens) return;
        while (p->free < need && preempt_behind(p, i)) continue;
        if (p->free >= need) run_at(p, i, 1);
    }
}

/* Prefill tokens of a step that has these decodes. */
static int prefill_budget(const struct plan *p)
{
    const struct sched_cost *c = &p->in->cost;
    int n_decodes = p->out->n_run, most = p->in->opt.max_tokens - p->out->n_tokens;
    double decodes = c->step_ns + n_decodes * c->decode_ns;
    double ns = p->in->opt.max_step_ns ? (double)p->in->opt.max_step_ns : INFINITY, n;
    if (n_decodes && p->stretch * decodes < ns) ns = p->stretch * decodes;
    if (n_decodes && ns < fmin(p->stretch, LEAST_STRETCH) * decodes)
        ns = fmin(p->stretch, LEAST_STRETCH) * decodes;
    if (c->prefill_ns <= 0 || (n_decodes && decodes <= 0)) n = n_decodes ? BLIND_CHUNK : most;
    else n = (ns - decodes) / c->prefill_ns;
    if (n < p->min_chunk) n = p->min_chunk;
    return n < most ? (int)n : most;
}

/* Tokens of a chunk that has its step for itself. Large ones cost less a token. */
static int solo_budget(const struct plan *p)
{
    const struct sched_cost *c = &p->in->cost;
    int most = p->in->opt.max_tokens;
    double n;
    if (p->out->n_run > 0 || p->in->opt.solo_step_ns <= p->in->opt.max_step_ns ||
        c->prefill_ns <= 0)
        return 0;
    n = ((double)p->in->opt.solo_step_ns - c->step_ns) / c->prefill_ns;
    return n < 0 ? 0 : n < most ? (int)n : most;
}

/* How much of `rest` tokens from `start` on, when there is room and budget for n: up to the end of
 * a block where that is possible. Crumbs of budget behind another's chunk are left. */
static int chunk(const struct plan *p, int start, int rest, int n)
{
    int end;
    if (n >= rest) return rest;
    end = (start + n) / p->in->opt.block * p->in->opt.block;
    if (end > start) return end - start;
    return p->n_chunks == 0 && n > 0 ? n : 0;
}

static int least(int a, int b) { return a < b ? a : b; }

/* The next chunk of running[i], from a budget of left; returns its tokens. */
static int go_on(struct plan *p, int i, int left)
{
    const struct sched_seq *s = &p->in->seqs[p->running[i]];
    int n, block = p->in->opt.block;
    while ((s->n_blocks + p->free) * block <= s->n_kv && preempt_behind(p, i)) continue;
    n = chunk(p, s->n_kv, rest(s), least(left, (s->n_blocks + p->free) * block - s->n_kv));
    if (n <= 0) return 0;
    run_at(p, i, n);
    p->n_chunks++;
    return n;
}

/* The first chunk of a waiting one; 0: it does not fit. Blocks of its prefix that are idle come out
 * of what is free, as those that it fills. With nobody else there it begins in any case: more room
 * there will never be. */
static int begin(struct plan *p, int w, int left)
{
    const struct sched_seq *s = &p->in->seqs[w];
    int block = p->in->opt.block, start = least(s->n_hit, s->n_tokens - 1) / block * block;
    int used = least(s->n_hit_used, start) / block, whole = blocks_for(p, s->n_tokens) - used, n;
    if (p->n_running + p->out->n_begin >= p->in->opt.max_seqs) return 0;
    if (p->n_running + p->out->n_begin > 0 && whole + 1 > p->free - p->owed) return 0;
    n = chunk(p, start, s->n_tokens - start, least(left, (p->free + used) * block - start));
    if (n <= 0) return 0;
    p->owed += whole;
    run(p, w, n, blocks_for(p, start + n) - used);
    p->out->begin[p->out->n_begin++] = w;
    p->n_chunks++;
    return n;
}

static int next_prefill(const struct plan *p, int i)
{
    for (; i < p->n_running; i++)
        if (p->running[i] >= 0 && !p->in->seqs[p->running[i]].held &&
            rest(&p->in->seqs[p->running[i]]) > 1)
            break;
    return i;
}

/* Chunks of running ones, and of waiting ones when those are through, or sooner when they are of a
 * higher priority. Nobody begins in a step that preempts: blocks are short, and those of a prefix
 * that counted as used may be the ones that were just given up. */
static void plan_chunks(struct plan *p)
{
    int left = prefill_budget(p), solo = solo_budget(p), i = 0;
    while (left > 0 && p->out->n_run < p->in->opt.max_seqs) {
        const struct sched_seq *seqs = p->in->seqs;
        int w = p->n_waiting && p->out->n_preempt == 0 ? p->waiting[0] : -1;
        i = next_prefill(p, i);
        if (p->n_chunks > 0) solo = 0;
        if (i < p->n_running &&
            (w < 0 || effective(&p->rank, &seqs[w]) <= effective(&p->rank, &seqs[p->running[i]]))) {
            left -= go_on(p, i, solo > left ? solo : left);
            i++;
        } else if (w >= 0) {
            int n = begin(p, w, solo > left ? solo : left);
            left -= n;
            if (n) heap_pop(&p->rank, p->waiting, &p->n_waiting, true);
            else p->n_waiting = 0;
        } else {
            return;
        }
    }
}

/* Running ones to the front of order, those waiting that may begin behind them. */
static void divide(struct plan *p, int *order)
{
    const struct sched_in *in = p->in;
    p->running = order;
    for (int i = 0; i < in->n_seqs; i++)
        if (!in->seqs[i].waiting) {
            order[p->n_running++] = i;
            p->owed += lacks(p, &in->seqs[i], in->seqs[i].n_tokens);
        }
    p->waiting = order + p->n_running;
    for (int i = 0; i < in->n_seqs; i++)
        if (in->seqs[i].waiting && !in->seqs[i].held && in->seqs[i].n_tokens > 0)
            p->waiting[p->n_waiting++] = i;
}

void sched_plan(const struct sched_in *in, struct sched_plan *out, int *order)
{
    struct plan p = { .in = in, .out = out, .rank = rank_of(in), .free = in->n_free };
    p.min_chunk = in->opt.min_chunk > 0 ? in->opt.min_chunk : in->opt.block;
    p.stretch = in->opt.stretch > 0 ? in->opt.stretch : 2.5;
    out->n_run = out->n_begin = out->n_preempt = out->n_tokens = 0;
    out->stuck = -1;

    divide(&p, order);
    sort(&p.rank, p.running, p.n_running);
    heap_make(&p.rank, p.waiting, p.n_waiting, true);
    plan_decodes(&p);
    plan_chunks(&p);

    if (out->n_run == 0 && out->n_preempt == 0 && p.n_running > 0) {
        const struct sched_seq *first = &in->seqs[p.running[0]];
        if (!first->held && rest(first) > 0) out->stuck = p.running[0];
    }
}
