/* sample.cu - samples tokens from logits, one block for each row, so that only ids leave the
 * device.
 *
 * The result is the same for the same row every time, and the same as the host's sampler
 * (sample/sampler.c): weights use the host's own exponential with its roundings, sums are in double
 * precision and in a fixed order, and atomics count integers only.
 *
 * Candidates for top-k and top-p come from a histogram of how far each logit is below the largest.
 * If the candidates are few they are sorted (filter_listed). Otherwise only those near the cutoff
 * are sorted (find_cutoff_listed), or the cutoff is found by bisection (find_cutoff). Logit
 * adjustments are applied in place and undone at the end; nobody else reads the row meanwhile. */
#include "kernel/cuda/cu.cuh"

#include <float.h>

#define THREADS 1024
#define WARPS (THREADS / 32)
#define LIST (2 * THREADS) /* candidates that can be sorted: two for each thread */
/* 128 buckets for each doubling of (distance + 1): distances of up to 255 below the largest. */
#define BUCKETS THREADS
#define ALL 0x7fffffff
#define NO_LIST (-2)

typedef unsigned long long u64;

struct smem { /* a block's shared memory */
    uint32_t count[BUCKETS];
    u64 list[LIST];
    double part[WARPS];
    u64 best[WARPS];
    int counts[WARPS];
    int n, at, id;
};

struct row {
    const float *x;
    int n;
    float max, temp, min_p, scale; /* scale: 1 / temp if nothing is filtered, otherwise 0 */
};

/* Keeps logits above t, and of those equal to t the ids up to id. */
struct cutoff {
    float t;
    int id;
};

/* ---- numbers ---- */

/* Orders as the floats do. */
__device__ static uint32_t rank_of(float x)
{
    uint32_t u = __float_as_uint(x);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The inverse of rank_of. */
__device__ static float of_rank(uint32_t r)
{
    return __uint_as_float(r & 0x80000000u ? r & 0x7fffffffu : ~r);
}

/* Infinities count as the largest finite number; -0 as 0. */
__device__ static float canonical(float x) { return x > FLT_MAX ? FLT_MAX : __fadd_rn(x, 0.f); }

/* The exponential of sample/filter.c with its roundings: 0 below -87 and for NaN. */
__device__ static float exp_weight(float x)
{
    const float magic = 12582912.f;
    bool inside = x > -87.f;
    float v = inside ? x : 0.f, t = __fadd_rn(__fmul_rn(v, 1.44269504f), magic),
          k = __fsub_rn(t, magic);
    float r = __fsub_rn(__fsub_rn(v, __fmul_rn(k, 0.693145752f)), __fmul_rn(k, 1.42860677e-6f));
    float p = __fadd_rn(__fmul_rn(r, 1.98756915e-4f), 1.39819995e-3f);

    p = __fadd_rn(__fmul_rn(p, r), 8.33345148e-3f);
    p = __fadd_rn(__fmul_rn(p, r), 4.16657962e-2f);
    p = __fadd_rn(__fmul_rn(p, r), 1.66666657e-1f);
    p = __fadd_rn(__fmul_rn(p, r), 0.5f);
    p = __fadd_rn(__fadd_rn(__fmul_rn(__fmul_rn(p, r), r), r), 1.f);
    return inside ? __fmul_rn(p, __uint_as_float((__float_as_uint(t) << 23) + 0x3f800000u)) : 0.f;
}

/* The sampling weight of a logit d (<= 0) below the largest. */
__device__ static float sample_weight(const struct row *w, float d)
{
    if (w->min_p > 0.f && !(exp_weight(d) >= w->min_p)) return 0.f;
    return exp_weight(w->scale != 0.f ? __fmul_rn(d, w->scale) : __fdiv_rn(d, w->temp));
}

/* Does the cutoff keep logit i? */
__device__ static bool is_before(struct cutoff b, int i, float x)
{
    return x > b.t || (x == b.t && i <= b.id);
}

/* The histogram bucket of a logit. BUCKETS or more: so far below that its weight is 0. */
__device__ static int bucket_of(float max, float x)
{
    float d = __fsub_rn(max, x);
    return d < 1e6f ? (int)(__float_as_uint(__fadd_rn(1.f, d)) >> 16) - 0x3f80 : BUCKETS;
}

/* The smallest distance of bucket b. */
__device__ static float bucket_begin(int b)
{
    return __uint_as_float(0x3f800000u + ((uint32_t)b << 16)) - 1.f;
}

/* ---- cooperation of a block ---- */

/* Calls f(i, x[i]) for all logits, for each thread in rising order. */
template <class F> __device__ static void for_each_logit(const float *x, int n, F f)
{
    int t = threadIdx.x, head = (int)((16 - ((size_t)x & 15)) & 15) / 4, i;
    head = head < n ? head : n;
    int quads = (n - head) / 4;
    const float4 *v = (const float4 *)(x + head);

    if (t < head) f(t, x[t]);
#pragma unroll 4
    for (int q = t; q < quads; q += THREADS) {
        float4 a = v[q];
        i = head + 4 * q;
        f(i, a.x), f(i + 1, a.y), f(i + 2, a.z), f(i + 3, a.w);
    }
    i = head + 4 * quads + t;
    if (i < n) f(i, x[i]);
}

/* The sum over the block for all threads, in a fixed order. */
__device__ static double block_sum(struct smem *r, double v)
{
    for (int m = 16; m; m >>= 1) v += __shfl_xor_sync(~0u, v, m);
    __syncthreads();
    if (threadIdx.x % 32 == 0) r->part[threadIdx.x / 32] = v;
    __syncthreads();
    v = r->part[threadIdx.x % 32];
    for (int m = 16; m; m >>= 1) v += __shfl_xor_sync(~0u, v, m);
    return v;
}

/* The sum over the threads before this one (exclusive prefix sum); *all: the sum over all. */
template <class T> __device__ static T block_before(T *part, T own, T *all)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    T in = own, w, before;

    for (int d = 1; d < 32; d <<= 1) {
        T o = __shfl_up_sync(~0u, in, d);
        if (lane >= d) in += o;
    }
    __syncthreads();
    if (lane == 31) part[warp] = in;
    __syncthreads();
    w = part[lane];
    for (int d = 1; d < 32; d <<= 1) {
        T o = __shfl_up_sync(~0u, w, d);
        if (lane >= d) w += o;
    }
    *all = __shfl_sync(~0u, w, 31);
    before = __shfl_sync(~0u, w, warp ? warp - 1 : 0);
    in = __shfl_up_sync(~0u, in, 1);
    return (warp ? before : T(0)) + (lane ? in : T(0));
}

/* The largest logit and its first index: rank in the high half, ~id in the low. 0: all are NaN or
 * -Inf. */
__device__ static u64 block_best(struct smem *r, const float *x, int n)
{
    float best = -INFINITY;
    int id = -1;
    u64 k;

    for_each_logit(x, n, [&](int i, float v) {
        if (v > best) best = v, id = i;
    });
    k = id < 0 ? 0 : (u64)rank_of(__fadd_rn(best, 0.f)) << 32 | (uint32_t)~id;
    for (int m = 16; m; m >>= 1) {
        u64 o = __shfl_xor_sync(~0u, k, m);
        k = o > k ? o : k;
    }
    if (threadIdx.x % 32 == 0) r->best[threadIdx.x / 32] = k;
    __syncthreads();
    k = r->best[threadIdx.x % 32];
    for (int m = 16; m; m >>= 1) {
        u64 o = __shfl_xor_sync(~0u, k, m);
        k = o > k ? o : k;
    }
    return k;
}

/* Bitonic sort of n numbers, ascending; pads up to a power of two. */
__device__ static void block_sort(u64 *v, int n)
{
    int p = 64, t = threadIdx.x;

    while (p < n) p *= 2;
    __syncthreads();
    for (int i = n + t; i < p; i += THREADS) v[i] = ~0ull;
    __syncthreads();
    for (int k = 2; k <= p; k *= 2)
        for (int j = k / 2, next; j > 0; j /= 2) {
            if (t < p / 2) {
                int a = (t & ~(j - 1)) << 1 | (t & (j - 1));
                u64 lo = v[a], hi = v[a + j];
                if ((lo > hi) == ((a & k) == 0)) v[a] = hi, v[a + j] = lo;
            }
            next = j > 1 ? j / 2 : k; /* a warp has 64 of them to itself */
            if (j > 32 || next > 32) __syncthreads();
            else __syncwarp();
        }
    __syncthreads();
}

/* ---- few candidates: sorted ---- */

/* Lists the n logits of buckets up to `last`, the best first. */
__device__ static void list_best(struct smem *r, const struct row *w, int last, int n)
{
    if (threadIdx.x == 0) r->n = 0;
    __syncthreads();
    for_each_logit(w->x, w->n, [&](int i, float x) {
        x = canonical(x);
        if (x >= -FLT_MAX && bucket_of(w->max, x) <= last) {
            int at = atomicAdd(&r->n, 1);
            if (at < LIST) r->list[at] = (u64)~rank_of(x) << 32 | (uint32_t)i;
        }
    });
    block_sort(r->list, n);
}

/* The first index of the list at which the mass `want` is reached; ALL: never. */
__device__ static int find_mass(struct smem *r, double before, const float p[2], double want)
{
    int i = 2 * threadIdx.x;

    if (threadIdx.x == 0) r->at = ALL;
    __syncthreads();
    if (before + (double)p[0] >= want) atomicMin(&r->at, i);
    else if (before + (double)p[0] + (double)p[1] >= want) atomicMin(&r->at, i + 1);
    __syncthreads();
    i = r->at;
    __syncthreads();
    return i;
}

/* Samples among the first n of the list, in the order of ids. */
__device__ static int sample_listed(struct smem *r, const struct row *w, int n, double u)
{
    int i = 2 * threadIdx.x;
    double before, sum;
    float p[2];

    for (int k = 0; k < 2; k++)
        if (i + k < n) {
            u64 key = r->list[i + k];
            float v = sample_weight(w, __fsub_rn(of_rank(~(uint32_t)(key >> 32)), w->max));
            r->list[i + k] = v > 0.f ? key << 32 | __float_as_uint(v) : ~0ull;
        }
    if (threadIdx.x == 0) r->at = 0;
    block_sort(r->list, n);
    for (int k = 0; k < 2; k++)
        p[k] =
            i + k < n && r->list[i + k] != ~0ull ? __uint_as_float((uint32_t)r->list[i + k]) : 0.f;
    before = block_before(r->part, (double)p[0] + (double)p[1], &sum);
    u *= sum;
    if (p[1] > 0.f && before + (double)p[0] <= u) atomicMax(&r->at, i + 1);
    else if (p[0] > 0.f && before <= u) atomicMax(&r->at, i);
    __syncthreads();
    return (int)(r->list[r->at] >> 32);
}

/* The n candidates in buckets up to `last` contain all logits that are kept. total: the mass of the
 * whole row, which top-p is relative to without top-k. NO_LIST: they do not reach it. */
__device__ static int filter_listed(struct smem *r, const struct row *w, const struct sample_row *p,
                                    int last, int n, int top_k, double total)
{
    int i = 2 * threadIdx.x, kept = top_k && top_k < n ? top_k : n;
    double before, sum;
    float v[2];

    list_best(r, w, last, n);
    if (p->top_p < 1.f) {
        for (int k = 0; k < 2; k++)
            v[k] = i + k < kept
                       ? exp_weight(__fsub_rn(of_rank(~(uint32_t)(r->list[i + k] >> 32)), w->max))
                       : 0.f;
        before = block_before(r->part, (double)v[0] + (double)v[1], &sum);
        int at = find_mass(r, before, v, (double)p->top_p * (top_k ? sum : total));
        if (at == ALL && !top_k) return NO_LIST;
        if (at < kept) kept = at + 1;
    }
    return sample_listed(r, w, kept, p->u);
}

/* ---- many candidates: only the cutoff ---- */

/* The number or the mass of the logits that both cutoffs keep. */
__device__ static double measure_kept(struct smem *r, const struct row *w, struct cutoff a,
                                      struct cutoff b, bool by_mass)
{
    double sum = 0;

    for_each_logit(w->x, w->n, [&](int i, float x) {
        x = canonical(x);
        if (is_before(a, i, x) && is_before(b, i, x))
            sum += by_mass ? (double)exp_weight(__fsub_rn(x, w->max)) : 1.;
    });
    return block_sum(r, sum);
}

/* The ids of the logits equal to t: one before the first, and the last. */
__device__ static void find_equals(struct smem *r, const struct row *w, float t, int *first,
                                   int *last)
{
    if (threadIdx.x == 0) r->at = ALL, r->n = -1;
    __syncthreads();
    for_each_logit(w->x, w->n, [&](int i, float x) {
        if (canonical(x) == t) atomicMin(&r->at, i), atomicMax(&r->n, i);
    });
    __syncthreads();
    *first = r->at - 1;
    *last = r->n;
    __syncthreads();
}

/* The cutoff that keeps as few logits as have the count or mass `want`, among those that `in`
 * keeps. */
__device__ static struct cutoff find_cutoff(struct smem *r, const struct row *w, struct cutoff in,
                                            bool by_mass, double want)
{
    uint32_t lo = rank_of(-FLT_MAX), hi = rank_of(w->max) + 1;
    struct cutoff b = { 0, ALL };
    int first, last;

    if (!(measure_kept(r, w, in, in, by_mass) >= want)) return in;
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        b.t = of_rank(mid);
        if (measure_kept(r, w, in, b, by_mass) >= want) lo = mid;
        else hi = mid;
    }
    b.t = of_rank(lo);
    find_equals(r, w, b.t, &first, &last);
    while (last - first > 1) { /* the smaller ids */
        b.id = first + (last - first) / 2;
        if (measure_kept(r, w, in, b, by_mass) >= want) last = b.id;
        else first = b.id;
    }
    b.id = last;
    return b;
}

/* The same for the whole row, if the cutoff is in bucket `near` or close to it: the logits there
 * are sorted. */
__device__ static bool find_cutoff_listed(struct smem *r, const struct row *w, int near,
                                          bool by_mass, double want, struct cutoff *b)
{
    int from = near, to = near, n = (int)r->count[near], i = 2 * threadIdx.x;
    double own = 0, less, sum;
    float v[2];

    for (int k = 0; k < 3; k++) {
        if (from > 0 && n + (int)r->count[from - 1] <= LIST) n += (int)r->count[--from];
        if (to < BUCKETS - 1 && n + (int)r->count[to + 1] <= LIST) n += (int)r->count[++to];
    }
    if (n > LIST) return false;
    if (threadIdx.x == 0) r->n = 0;
    __syncthreads();
    auto weight = [&](float x) { return by_mass ? exp_weight(__fsub_rn(x, w->max)) : 1.f; };
    for_each_logit(w->x, w->n, [&](int id, float x) {
        x = canonical(x);
        int k = x >= -FLT_MAX ? bucket_of(w->max, x) : BUCKETS;
        if (k < from) own += (double)weight(x);
        else if (k <= to) r->list[atomicAdd(&r->n, 1)] = (u64)~rank_of(x) << 32 | (uint32_t)id;
    });
    less = block_sum(r, own);
    if (!(less < want)) return false;
    block_sort(r->list, n);
    for (int k = 0; k < 2; k++)
        v[k] = i + k < n ? weight(of_rank(~(uint32_t)(r->list[i + k] >> 32))) : 0.f;
    own = block_before(r->part, (double)v[0] + (double)v[1], &sum);
    i = find_mass(r, less + own, v, want);
    if (i >= n) return false;
    b->t = of_rank(~(uint32_t)(r->list[i] >> 32));
    b->id = (int)(uint32_t)r->list[i];
    return true;
}

/* Samples among all logits that the cutoff keeps, in the order of ids: first a warp's piece, then
 * the position in it. */
__device__ static int sample_kept(struct smem *r, const struct row *w, struct cutoff b, double u)
{
    int piece = (w->n + WARPS - 1) / WARPS, lane = threadIdx.x % 32, warp = threadIdx.x / 32, begin,
        end;
    double own = 0, before, all;

    auto weight = [&](int i) {
        float x = canonical(w->x[i]);
        return x >= -FLT_MAX && is_before(b, i, x) ? sample_weight(w, __fsub_rn(x, w->max)) : 0.f;
    };
    begin = warp * piece;
    end = begin + piece < w->n ? begin + piece : w->n;
    for (int i = begin + lane; i < end; i += 32) own += (double)weight(i);
    for (int m = 16; m; m >>= 1) own += __shfl_xor_sync(~0u, own, m);
    before = block_before(r->part, lane == 0 ? own : 0., &all);
    if (threadIdx.x == 0) r->at = 0, r->n = 0;
    __syncthreads();
    u *= all;
    if (lane == 0 && own > 0 && before <= u) atomicMax(&r->at, warp);
    __syncthreads();
    if (lane == 0 && warp == r->at) r->part[0] = before; /* block_before no longer needs it */
    __syncthreads();
    u -= r->part[0];

    /* The second level: the piece of the chosen warp, divided among all threads. */
    begin = r->at * piece;
    end = begin + piece < w->n ? begin + piece : w->n;
    int run = (end - begin + THREADS - 1) / THREADS, from = begin + (int)threadIdx.x * run;
    int to = from + run < end ? from + run : end;
    own = 0;
    for (int i = from; i < to; i++) own += (double)weight(i);
    before = block_before(r->part, own, &all);
    if (own > 0 && before <= u) atomicMax(&r->n, (int)threadIdx.x);
    __syncthreads();
    if ((int)threadIdx.x == r->n) {
        int last = from;
        u -= before;
        for (int i = from; i < to; i++) {
            float v = weight(i);
            if (!(v > 0.f)) continue;
            last = i;
            u -= (double)v;
            if (u < 0) break;
        }
        r->id = last;
    }
    __syncthreads();
    return r->id;
}

/* ---- one row ---- */

/* Fills the histogram; returns the mass of all logits if it is wanted. */
__device__ static double count_buckets(struct smem *r, const struct row *w, bool mass)
{
    double sum = 0;

    r->count[threadIdx.x] = 0;
    __syncthreads();
    for_each_logit(w->x, w->n, [&](int i, float x) {
        (void)i;
        x = canonical(x);
        if (!(x >= -FLT_MAX)) return;
        int b = bucket_of(w->max, x);
        if (b < BUCKETS) atomicAdd(&r->count[b], 1u);
        if (mass) sum += (double)exp_weight(__fsub_rn(x, w->max));
    });
    if (mass) return block_sum(r, sum);
    __syncthreads();
    return 0;
}

/* The first bucket at which `want` logits are reached. *n: logits in it and before; *less: only
 * before. Fewer if there are no more. */
__device__ static int last_bucket(struct smem *r, int want, int *n, int *less)
{
    int t = threadIdx.x, own = (int)r->count[t], all, before = block_before(r->counts, own, &all);

    if (t == 0) r->at = BUCKETS - 1, r->n = r->id = all;
    __syncthreads();
    if (before < want && before + own >= want) r->at = t, r->n = before + own, r->id = before;
    __syncthreads();
    *n = r->n;
    *less = r->id;
    t = r->at;
    __syncthreads();
    return t;
}

/* How many logits it takes to reach the mass and a little more, estimated by the middles of the
 * buckets, at most LIST. *near: the bucket where the mass is reached. */
__device__ static int estimate_count(struct smem *r, double want, double total, int *near)
{
    int t = threadIdx.x, own = (int)r->count[t], all, before = block_before(r->counts, own, &all);
    double sum, v = own * (double)exp_weight(-0.5f * (bucket_begin(t) + bucket_begin(t + 1)));
    double mass = block_before(r->part, v, &sum), more = 0.5 * (total - want);

    if (t == 0) r->at = ALL, r->id = BUCKETS - 1;
    __syncthreads();
    if (own > 0 && mass + v >= want) atomicMin(&r->id, t);
    want += more < 0.002 * total ? more : 0.002 * total;
    if (own > 0 && mass + v >= want) atomicMin(&r->at, before + own);
    __syncthreads();
    t = r->at;
    *near = r->id;
    __syncthreads();
    return t < LIST ? t : LIST;
}

/* With top-k or top-p. Cheapest first: sort the candidates; sort those near the cutoff; bisect. */
__device__ static int sample_filtered(struct smem *r, const struct row *w,
                                      const struct sample_row *p, int top_k)
{
    struct cutoff b = { -FLT_MAX, ALL };
    double total = count_buckets(r, w, !top_k);
    int near, want = top_k ? top_k : estimate_count(r, (double)p->top_p * total, total, &near);
    int n, less, last = last_bucket(r, want, &n, &less);

    if (top_k) near = last;
    else if (n > LIST) n = less, last--;
    if (n > 0 && n <= LIST) {
        int id = filter_listed(r, w, p, last, n, top_k, total);
        if (id != NO_LIST) return id;
    }
    if (top_k && !find_cutoff_listed(r, w, near, false, top_k, &b))
        b = find_cutoff(r, w, b, false, top_k);
    if (p->top_p < 1.f) {
        if (top_k) total = measure_kept(r, w, b, b, true);
        double mass = (double)p->top_p * total;
        if (top_k || !find_cutoff_listed(r, w, near, true, mass, &b))
            b = find_cutoff(r, w, b, true, mass);
    }
    return sample_kept(r, w, b, p->u);
}

/* The sampled token of one row, or -1: no logit is a number. Temperature 0 is the first maximum. */
__device__ static int sample_one(struct smem *r, const float *x, int n, const struct sample_row *p)
{
    u64 best = block_best(r, x, n);
    int top_k = p->top_k < n ? p->top_k : 0;
    float inv_temp = __fdiv_rn(1.f, p->temp);
    struct row w = { x, n, 0.f, p->temp, p->min_p, 0.f };

    if (best == 0) return -1;
    if (p->temp == 0.f) return ~(int)(uint32_t)best;
    w.max = canonical(of_rank((uint32_t)(best >> 32)));
    if (top_k || p->top_p < 1.f) return sample_filtered(r, &w, p, top_k);
    if (p->min_p == 0.f && inv_temp <= FLT_MAX) w.scale = inv_temp;
    return sample_kept(r, &w, { -FLT_MAX, ALL }, p->u);
}

/* Grid: rows. was: the logits before their adjustment. */
__global__ static void __launch_bounds__(THREADS, 1)
    sample_rows(int32_t *ids, float *logits, size_t stride, int n, const struct sample_row *rows,
                const struct logit_adjust *adjust, float *was)
{
    __shared__ struct smem smem;

    cu_release_next();
    cu_wait_previous();
    struct sample_row p = rows[blockIdx.x];
    float *x = logits + (size_t)p.row * stride;

    adjust += p.adjust;
    was += p.adjust;
    for (int i = threadIdx.x; i < p.n_adjust; i += THREADS) {
        struct logit_adjust a = adjust[i];
        float v = x[a.id];
        was[i] = v;
        v = __fadd_rn(v, a.add);
        v = v > 0.f ? __fdiv_rn(v, a.repeat) : __fmul_rn(v, a.repeat);
        x[a.id] = __fsub_rn(v, a.sub);
    }
    __syncthreads();
    int id = sample_one(&smem, x, n, &p);
    if (threadIdx.x == 0) ids[blockIdx.x] = id;
    if (p.n_adjust == 0) return;
    __syncthreads();
    for (int i = threadIdx.x; i < p.n_adjust; i += THREADS) x[adjust[i].id] = was[i];
}

/* The logits that adjustments replace. */
size_t cu_sample_bytes(const struct cuda *c, const struct backend_limits *lim)
{
    (void)c;
    return (size_t)lim->max_adjust * sizeof(float);
}

void cu_sample(struct cuda *c, int32_t *ids, const struct tensor *logits,
               const struct sample_row *rows, int n_rows, const struct logit_adjust *adjust)
{
    cu_launch(c, "sample", sample_rows, dim3((unsigned)n_rows), dim3(THREADS), 0, ids,
              (float *)logits->data, logits->stride, logits->cols, rows, adjust,
              (float *)c->scratch[CU_SAMPLE]);
}
