/* sched.c - a plan in five passes: rank, decodes, short prompts, chunks, and what is stuck.
 *
 * Running sequences are sorted by rank once; waiting ones are a heap, because only the first few
 * are looked at. A step takes O(n log n) for n sequences and allocates nothing. */
#include "base/minmax.h"
#include "engine/sched.h"

#include <math.h>
#include <stddef.h>

#define BLIND_CHUNK 64    /* prefill tokens beside decodes while costs are not known */
#define LEAST_STRETCH 1.8 /* if decodes alone fill max_step_ns, prompts still advance */
#define SHORTER 4         /* a prompt is short beside one with so many times as many tokens to go */
#define SHORTS_MOST 8     /* short prompts that advance in a step before the one they overtake */

/* ---- rank ---- */

struct rank {
    const struct sched_in *in;
    uint64_t age_ns, tick; /* periods of age_ns since the clock began */
    int top;               /* highest priority present */
    bool deadlines;        /* some sequence has one */
};

/* The inputs of ranking that depend on all sequences: the highest priority, whether any deadline is
 * set, the current age step. */
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

/* Priority raised by age, up to the highest that is present. */
static int64_t effective_priority(const struct rank *k, const struct sched_seq *s)
{
    uint64_t born = s->arrival_ns / k->age_ns, age = k->tick > born ? k->tick - born : 0;
    int64_t room = (int64_t)k->top - s->priority;
    int64_t lift = age < (uint64_t)room ? (int64_t)age : room;
    return s->priority + lift + (k->deadlines && age >= SCHED_OVERDUE);
}

static uint64_t served_of(const struct sched_in *in, uint32_t tenant)
{
    return in->served && tenant < (uint32_t)in->n_tenants ? in->served[tenant] : 0;
}

/* The total order. fair: tenants count, which they do for waiting sequences only. Index decides
 * last, so that equal sequences keep their order. */
static bool ranks_before(const struct rank *k, int a, int b, bool fair)
{
    const struct sched_seq *x = &k->in->seqs[a], *y = &k->in->seqs[b];
    int64_t px = effective_priority(k, x), py = effective_priority(k, y);
    if (px != py) return px > py;
    if (x->deadline_ns != y->deadline_ns)
        return x->deadline_ns - 1 < y->deadline_ns - 1; /* 0, no deadline, wraps to the last */
    if (fair && x->tenant != y->tenant) {
        uint64_t sx = served_of(k->in, x->tenant), sy = served_of(k->in, y->tenant);
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

/* Restores the heap, first in rank on top, below index i. */
static void sift_down(const struct rank *k, int *h, int n, int i, bool fair)
{
    for (int kid; (kid = 2 * i + 1) < n; i = kid) {
        int x = h[i];
        if (kid + 1 < n && ranks_before(k, h[kid + 1], h[kid], fair)) kid++;
        if (!ranks_before(k, h[kid], x, fair)) return;
        h[i] = h[kid];
        h[kid] = x;
    }
}

static void make_heap(const struct rank *k, int *h, int n, bool fair)
{
    for (int i = n / 2 - 1; i >= 0; i--) sift_down(k, h, n, i, fair);
}

static void pop_heap(const struct rank *k, int *h, int *n, bool fair)
{
    int top = h[0];
    h[0] = h[--*n];
    h[*n] = top;
    sift_down(k, h, *n, 0, fair);
}

static void sort_by_rank(const struct rank *k, int *h, int n)
{
    make_heap(k, h, n, false);
    for (int left = n; left > 1;) pop_heap(k, h, &left, false);
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
    int *running, n_running; /* in order of rank; one that takes part is stored as ~index */
    int *waiting, n_waiting; /* a heap by rank */
    int min_chunk;
    double stretch;
    int free;     /* blocks that this plan has not given to anyone */
    int owed;     /* blocks that running sequences still need for the tokens they have; not updated
                   * after a preemption: then no sequence begins */
    int n_chunks; /* prefill chunks planned */
    int n_shorts; /* of those, of short prompts that were put before a longer one */
};

static int blocks_for(const struct plan *p, int n_tokens)
{
    return (n_tokens + p->in->opt.block - 1) / p->in->opt.block;
}

/* Blocks that s needs beside its own to hold n_tokens. */
static int blocks_lacking(const struct plan *p, const struct sched_seq *s, int n_tokens)
{
    int n = blocks_for(p, n_tokens) - s->n_blocks;
    return n > 0 ? n : 0;
}

static int tokens_left(const struct sched_seq *s) { return s->n_tokens - s->n_kv; }

/* Preempts the sequence that ranks last, behind running[i], does not take part in this step, and
 * has blocks of its own. false: there is none. */
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

/* Puts n tokens of a sequence into the plan, with the blocks they need. */
static void add_item(struct plan *p, int seq, int n, int n_blocks)
{
    p->out->run[p->out->n_run++] = (struct sched_item){ seq, n };
    p->out->n_tokens += n;
    p->free -= n_blocks;
    p->owed -= n_blocks;
}

static void add_running(struct plan *p, int i, int n)
{
    const struct sched_seq *s = &p->in->seqs[p->running[i]];
    add_item(p, p->running[i], n, blocks_lacking(p, s, s->n_kv + n));
    p->running[i] = ~p->running[i];
}

/* Every running sequence with one token to compute, in order of rank. One that finds no block
 * preempts from the end of the ranking. */
static void plan_decodes(struct plan *p)
{
    const struct sched_opt *o = &p->in->opt;
    for (int i = 0; i < p->n_running; i++) {
        const struct sched_seq *s = &p->in->seqs[p->running[i]];
        int need = blocks_lacking(p, s, s->n_tokens);
        if (s->held || tokens_left(s) != 1) continue;
        if (p->out->n_run == o->max_seqs || p->out->n_tokens == o->max_tokens) return;
        while (p->free < need && preempt_behind(p, i)) continue;
        if (p->free >= need) add_running(p, i, 1);
    }
}

/* Prefill tokens beside the decodes that are planned. */
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

/* Tokens of a chunk that is alone in its step: large chunks take less time per token. */
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

/* Tokens of a chunk that starts at `start` with `rest` tokens to go and room and budget for n: up
 * to the end of a block where possible. What is left of the budget behind another chunk is not
 * spent on less than a block, except on the chunk that others were put before. */
static int chunk_size(const struct plan *p, int start, int rest, int n)
{
    int end;
    if (n >= rest) return rest;
    end = (start + n) / p->in->opt.block * p->in->opt.block;
    if (end > start) return end - start;
    return p->n_chunks == p->n_shorts && n > 0 ? n : 0;
}

/* Plans the next chunk of running[i] from a budget of `left` tokens; returns its tokens. */
static int continue_prefill(struct plan *p, int i, int left)
{
    const struct sched_seq *s = &p->in->seqs[p->running[i]];
    int n, block = p->in->opt.block;
    while ((s->n_blocks + p->free) * block <= s->n_kv && preempt_behind(p, i)) continue;
    n = chunk_size(p, s->n_kv, tokens_left(s),
                   min_int(left, (s->n_blocks + p->free) * block - s->n_kv));
    if (n <= 0) return 0;
    add_running(p, i, n);
    p->n_chunks++;
    return n;
}

/* Plans the first chunk of waiting sequence w; 0: it does not fit. Idle blocks of its prefix are
 * part of p->free, like the blocks that it fills. If no other sequence runs it begins in any case:
 * there will never be more room. */
static int begin_waiting(struct plan *p, int w, int left)
{
    const struct sched_seq *s = &p->in->seqs[w];
    int block = p->in->opt.block, start = min_int(s->n_hit, s->n_tokens - 1) / block * block;
    int used = min_int(s->n_hit_used, start) / block, whole = blocks_for(p, s->n_tokens) - used, n;
    if (p->n_running + p->out->n_begin >= p->in->opt.max_seqs) return 0;
    if (p->n_running + p->out->n_begin > 0 && whole + 1 > p->free - p->owed) return 0;
    n = chunk_size(p, start, s->n_tokens - start, min_int(left, (p->free + used) * block - start));
    if (n <= 0) return 0;
    p->owed += whole;
    add_item(p, w, n, blocks_for(p, start + n) - used);
    p->out->begin[p->out->n_begin++] = w;
    p->n_chunks++;
    return n;
}

/* The next running sequence with a prompt to compute, from index i on. */
static int next_prefill(const struct plan *p, int i)
{
    for (; i < p->n_running; i++)
        if (p->running[i] >= 0 && !p->in->seqs[p->running[i]].held &&
            tokens_left(&p->in->seqs[p->running[i]]) > 1)
            break;
    return i;
}

/* ---- short prompts beside a long one ---- */

/* The prompt whose turn it is: of the running sequences, or the first that waits if its priority is
 * higher. -1: none. */
static int find_turn(const struct plan *p)
{
    const struct sched_seq *seqs = p->in->seqs;
    int i = next_prefill(p, 0), w = p->n_waiting ? p->waiting[0] : -1;
    if (i == p->n_running) return w;
    if (w >= 0 &&
        effective_priority(&p->rank, &seqs[w]) > effective_priority(&p->rank, &seqs[p->running[i]]))
        return w;
    return p->running[i];
}

/* Prompt tokens that must still be computed. */
static int prompt_left(const struct sched_seq *s)
{
    return s->waiting ? s->n_tokens - min_int(s->n_hit, s->n_tokens - 1) : tokens_left(s);
}

/* Lengths within a factor of SHORTER are equally short. */
static int length_class(int n)
{
    int class = 0;
    while ((n /= SHORTER) > 0) class ++;
    return class;
}

/* true: short prompt a is prefilled before short prompt b. Order: priority, length class, rank. */
static bool is_shorter(const struct plan *p, int a, int b)
{
    const struct sched_seq *x = &p->in->seqs[a], *y = &p->in->seqs[b];
    int64_t px = effective_priority(&p->rank, x), py = effective_priority(&p->rank, y);
    int cx = length_class(prompt_left(x)), cy = length_class(prompt_left(y));
    if (px != py) return px > py;
    return cx != cy ? cx < cy : ranks_before(&p->rank, a, b, true);
}

/* The first of the prompts in list that are short beside `turn`, or best. */
static int find_short(const struct plan *p, const int *list, int n, int turn, int best)
{
    const struct sched_seq *seqs = p->in->seqs;
    int64_t least = effective_priority(&p->rank, &seqs[turn]);
    int most = prompt_left(&seqs[turn]) / SHORTER;
    for (int i = 0; i < n; i++) {
        const struct sched_seq *s = list[i] < 0 ? NULL : &seqs[list[i]];
        if (!s || s->held || list[i] == turn || (!s->waiting && tokens_left(s) <= 1)) continue;
        if (prompt_left(s) > most || effective_priority(&p->rank, s) < least) continue;
        if (best < 0 || is_shorter(p, list[i], best)) best = list[i];
    }
    return best;
}

static int index_of(const int *list, int n, int seq)
{
    int i = 0;
    while (i < n && list[i] != seq) i++;
    return i;
}

/* Blocks of a waiting sequence that are not shared with running ones, and one to go on. */
static int blocks_to_begin(const struct plan *p, const struct sched_seq *s)
{
    int block = p->in->opt.block, start = min_int(s->n_hit, s->n_tokens - 1) / block * block;
    return blocks_for(p, s->n_tokens) - min_int(s->n_hit_used, start) / block + 1;
}

/* Begins a short prompt that waits, if the first in rank could still begin beside it. */
static int begin_short(struct plan *p, int seq, int left)
{
    int first = p->waiting[0], places = 1, blocks = blocks_to_begin(p, &p->in->seqs[seq]), n, at;
    if (first != seq) {
        places++;
        blocks += blocks_to_begin(p, &p->in->seqs[first]);
    }
    if (p->n_running + p->out->n_begin + places > p->in->opt.max_seqs) return 0;
    if (blocks > p->free - p->owed || !(n = begin_waiting(p, seq, left))) return 0;
    at = index_of(p->waiting, p->n_waiting, seq);
    p->waiting[at] = p->waiting[--p->n_waiting];
    make_heap(&p->rank, p->waiting, p->n_waiting, true);
    return n;
}

/* Plans chunks of prompts that are short beside the one whose turn it is, from up to half of the
 * budget of `left` tokens; returns their tokens. The long prompt keeps the other half, so that it
 * is never slower than half as fast, and it keeps its rank: each prompt's turn comes. Where memory
 * is short there is no overtaking. */
static int plan_shorts(struct plan *p, int left)
{
    int room = p->in->opt.max_tokens - p->out->n_tokens, turn = find_turn(p), used = 0;
    int n_shorts = 0;
    int share = max_int(left / 2, min_int(p->in->opt.block, room / 2));
    if (turn < 0 || p->out->n_preempt > 0 || p->free < p->owed) return 0;
    while (used < share && n_shorts < SHORTS_MOST && p->out->n_run + 1 < p->in->opt.max_seqs) {
        int seq = find_short(p, p->running, p->n_running, turn, -1), n;
        seq = find_short(p, p->waiting, p->n_waiting, turn, seq);
        if (seq < 0) break;
        if (p->in->seqs[seq].waiting) n = begin_short(p, seq, share - used);
        else n = continue_prefill(p, index_of(p->running, p->n_running, seq), share - used);
        if (n == 0) break;
        used += n;
        n_shorts++;
    }
    p->n_shorts = n_shorts;
    return used;
}

/* ---- chunks ---- */

/* Plans chunks of running sequences, then of waiting ones, or of these first if their priority is
 * higher. No sequence begins in a step that preempts: blocks are short, and cached blocks that
 * counted as used may be those that were just given up. */
static void plan_chunks(struct plan *p)
{
    int left = prefill_budget(p), solo = solo_budget(p), i = 0, shorts = plan_shorts(p, left);
    if (shorts > 0)
        left = max_int(left - shorts,
                       min_int(p->in->opt.block, p->in->opt.max_tokens - p->out->n_tokens));
    while (left > 0 && p->out->n_run < p->in->opt.max_seqs) {
        const struct sched_seq *seqs = p->in->seqs;
        int w = p->n_waiting && p->out->n_preempt == 0 ? p->waiting[0] : -1;
        i = next_prefill(p, i);
        if (p->n_chunks > 0) solo = 0;
        if (i < p->n_running && (w < 0 || effective_priority(&p->rank, &seqs[w]) <=
                                              effective_priority(&p->rank, &seqs[p->running[i]]))) {
            left -= continue_prefill(p, i, solo > left ? solo : left);
            i++;
        } else if (w >= 0) {
            int n = begin_waiting(p, w, solo > left ? solo : left);
            left -= n;
            if (n) pop_heap(&p->rank, p->waiting, &p->n_waiting, true);
            else p->n_waiting = 0;
        } else {
            return;
        }
    }
}

/* Running sequences go to the front of order, waiting ones that may begin behind them. */
static void split_seqs(struct plan *p, int *order)
{
    const struct sched_in *in = p->in;
    p->running = order;
    for (int i = 0; i < in->n_seqs; i++)
        if (!in->seqs[i].waiting) {
            order[p->n_running++] = i;
            p->owed += blocks_lacking(p, &in->seqs[i], in->seqs[i].n_tokens);
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

    split_seqs(&p, order);
    sort_by_rank(&p.rank, p.running, p.n_running);
    make_heap(&p.rank, p.waiting, p.n_waiting, true);
    plan_decodes(&p);
    plan_chunks(&p);

    if (out->n_run == 0 && out->n_preempt == 0 && p.n_running > 0) {
        const struct sched_seq *first = &in->seqs[p.running[0]];
        if (!first->held && tokens_left(first) > 0) out->stuck = p.running[0];
    }
}

/* ---- invariants ---- */

static bool is_listed(const int *list, int n, int seq)
{
    for (int i = 0; i < n; i++)
        if (list[i] == seq) return true;
    return false;
}

static int check_item(const struct sched_in *in, const struct sched_plan *p, int i, struct err *e)
{
    const struct sched_item *x = &p->run[i];
    const struct sched_seq *s;

    if (x->seq < 0 || x->seq >= in->n_seqs)
        return err_set(e, E_INTERNAL, "sequence %d of %d is planned", x->seq, in->n_seqs);
    s = &in->seqs[x->seq];
    for (int k = 0; k < i; k++)
        if (p->run[k].seq == x->seq)
            return err_set(e, E_INTERNAL, "sequence %d is planned twice", x->seq);
    if (s->held || is_listed(p->preempt, p->n_preempt, x->seq))
        return err_set(e, E_INTERNAL, "sequence %d is planned, but held or preempted", x->seq);
    if (x->n < 1 || x->n > tokens_left(s))
        return err_set(e, E_INTERNAL, "%d of %d tokens of sequence %d are planned", x->n,
                       tokens_left(s), x->seq);
    if (is_listed(p->begin, p->n_begin, x->seq) != s->waiting)
        return err_set(e, E_INTERNAL, "sequence %d runs without beginning, or begins twice",
                       x->seq);
    return OK;
}

/* Blocks that the plan takes, against those that are free after its preemptions. Cached blocks that
 * a beginning sequence takes are in use by others or part of n_free. */
static int check_plan_blocks(const struct sched_in *in, const struct sched_plan *p, struct err *e)
{
    int free = in->n_free, need = 0, block = in->opt.block;

    for (int i = 0; i < p->n_preempt; i++)
        free += in->seqs[p->preempt[i]].n_blocks - in->seqs[p->preempt[i]].n_shared;
    for (int i = 0; i < p->n_run; i++) {
        const struct sched_seq *s = &in->seqs[p->run[i].seq];
        int start = s->waiting ? min_int(s->n_hit, s->n_tokens - 1) / block * block : s->n_kv;
        int own = s->waiting ? min_int(s->n_hit_used, start) / block : s->n_blocks;
        int n = (start + p->run[i].n + block - 1) / block - own;
        need += n > 0 ? n : 0;
    }
    if (need <= free) return OK;
    return err_set(e, E_INTERNAL, "the plan needs %d blocks and %d are free", need, free);
}

int sched_check(const struct sched_in *in, const struct sched_plan *p, struct err *e)
{
    int n_tokens = 0, n_running = p->n_begin - p->n_preempt, rc;
    bool chunk = false;

    for (int i = 0; i < in->n_seqs; i++) n_running += !in->seqs[i].waiting;
    for (int i = 0; i < p->n_run; i++) {
        const struct sched_seq *s = &in->seqs[p->run[i].seq];
        bool decode = !s->waiting && tokens_left(s) == 1;
        if ((rc = check_item(in, p, i, e)) != OK) return rc;
        if (decode && chunk) return err_set(e, E_INTERNAL, "a decode is planned behind a chunk");
        chunk |= !decode;
        n_tokens += p->run[i].n;
    }
    for (int i = 0; i < p->n_preempt; i++)
        if (in->seqs[p->preempt[i]].waiting || is_listed(p->preempt, i, p->preempt[i]))
            return err_set(e, E_INTERNAL, "sequence %d is preempted, but does not run",
                           p->preempt[i]);
    if (n_tokens != p->n_tokens || n_tokens > in->opt.max_tokens || p->n_run > in->opt.max_seqs ||
        n_running > in->opt.max_seqs)
        return err_set(e, E_INTERNAL, "%d tokens of %d sequences are planned, %d would run",
                       n_tokens, p->n_run, n_running);
    return check_plan_blocks(in, p, e);
}
