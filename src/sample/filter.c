/* filter.c - vectorized scans over logits, and quickselect over candidates. */
#include "sample/filter.h"

#include <float.h>
#include <math.h>
#include <string.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF /* with gcc, -std=c11 implies it */
#endif

enum {
    LANES = 4,     /* floats of a vector */
    SMALL = 24,    /* candidates that insertion sort handles */
    BIG = 2048,    /* candidates from which bucketing pays */
    BUCKETS = 1024 /* of a histogram of logits or keys */
};

/* GCC vector extensions (clang has them too): vectorized at -O2, and lanes round like scalars. */
typedef float vfloat __attribute__((vector_size(16)));
typedef int32_t vint __attribute__((vector_size(16)));

static inline vfloat load_lanes(const float *p)
{
    vfloat v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline vfloat broadcast(float x) { return (vfloat){ x, x, x, x }; }

/* mask ? a : b */
static inline vfloat select_lanes(vint mask, vfloat a, vfloat b)
{
    return (vfloat)((mask & (vint)a) | (~mask & (vint)b));
}

/* Elementwise maximum; b where a is NaN. */
static inline vfloat max_lanes(vfloat a, vfloat b) { return select_lanes(a > b, a, b); }

/* Four independent maxima hide the latency of the comparison. */
static float find_block_max(const float *x)
{
    vfloat m[4];
    for (int j = 0; j < 4; j++) m[j] = max_lanes(load_lanes(x + j * LANES), broadcast(-INFINITY));
    for (int i = 4 * LANES; i < FILTER_BLOCK; i += 4 * LANES)
        for (int j = 0; j < 4; j++) m[j] = max_lanes(load_lanes(x + i + j * LANES), m[j]);
    m[0] = max_lanes(max_lanes(m[0], m[1]), max_lanes(m[2], m[3]));
    for (int j = 1; j < LANES; j++)
        if (m[0][j] > m[0][0]) m[0][0] = m[0][j];
    return m[0][0];
}

/* The last block may be shorter. */
float filter_max(const float *x, int n, float *block_max)
{
    int whole = n / FILTER_BLOCK;
    float max = -INFINITY;

    for (int b = 0; b < whole; b++) {
        block_max[b] = find_block_max(x + (size_t)b * FILTER_BLOCK);
        if (block_max[b] > max) max = block_max[b];
    }
    if (whole * FILTER_BLOCK < n) {
        float m = -INFINITY;
        for (int i = whole * FILTER_BLOCK; i < n; i++)
            if (x[i] > m) m = x[i];
        block_max[whole] = m;
        if (m > max) max = m;
    }
    return max;
}

/* exp(x) = 2^k exp(r) with |r| <= ln2/2, where a polynomial (Cephes expf) gives exp(r). Adding the
 * magic number rounds to an integer: k is in its low bits. */
static inline vfloat exp_core(vfloat x)
{
    const vfloat magic = broadcast(12582912.0f); /* 1.5 * 2^23 */
    vfloat t = x * 1.44269504f + magic, k = t - magic;
    vfloat r = (x - k * 0.693145752f) - k * 1.42860677e-6f;
    vfloat p = r * 1.98756915e-4f + 1.39819995e-3f;

    p = p * r + 8.33345148e-3f;
    p = p * r + 4.16657962e-2f;
    p = p * r + 1.66666657e-1f;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    return p * (vfloat)(((vint)t << 23) + 0x3f800000); /* 2^k; the shift drops the magic number */
}

/* 0 below -87, where a float would be denormal, and for NaN. */
static inline vfloat exp_clamped(vfloat x)
{
    vint inside = x > broadcast(-87.0f); /* false for NaN */
    return select_lanes(inside, exp_core(select_lanes(inside, x, broadcast(0))), broadcast(0));
}

float filter_exp(float x) { return exp_clamped(broadcast(x))[0]; }

/* exp_block on AVX-512 registers. Each lane does the same operations and the sum is formed in the
 * same order, so the result is bit for bit the same. */
#if defined(__x86_64__)
#define WIDE 16
#define WIDE_CODE __attribute__((target("avx512f,avx512dq")))
typedef float wfloat __attribute__((vector_size(4 * WIDE)));
typedef int32_t wint __attribute__((vector_size(4 * WIDE)));

WIDE_CODE static double exp_block_wide(const float *x, float max, float scale, float *w)
{
    vfloat sum = broadcast(0);

    for (int i = 0; i < FILTER_BLOCK; i += WIDE) {
        wfloat v, t, k, r, p;
        memcpy(&v, x + i, sizeof v);
        v = (v - max) * scale;
        wint inside = v > -87.0f;
        v = (wfloat)((wint)v & inside);
        t = v * 1.44269504f + 12582912.0f;
        k = t - 12582912.0f;
        r = (v - k * 0.693145752f) - k * 1.42860677e-6f;
        p = r * 1.98756915e-4f + 1.39819995e-3f;
        p = p * r + 8.33345148e-3f;
        p = p * r + 4.16657962e-2f;
        p = p * r + 1.66666657e-1f;
        p = p * r + 0.5f;
        p = p * r * r + r + 1.0f;
        p = p * (wfloat)(((wint)t << 23) + 0x3f800000);
        p = (wfloat)((wint)p & inside);
        if (w) memcpy(w + i, &p, sizeof p);
        for (int j = 0; j < WIDE; j += LANES) sum += (vfloat){ p[j], p[j + 1], p[j + 2], p[j + 3] };
    }
    return (double)((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

static bool has_wide(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
}
#else
static bool has_wide(void) { return false; }
#define exp_block_wide exp_block
#endif

/* w[i] = exp((x[i] - max) * scale) for one block (w NULL: not stored); returns the sum. */
static double exp_block(const float *x, float max, float scale, float *w)
{
    vfloat sum = broadcast(0);
    for (int i = 0; i < FILTER_BLOCK; i += LANES) {
        vfloat v = exp_clamped((load_lanes(x + i) - max) * scale);
        if (w) memcpy(w + i, &v, sizeof v);
        sum += v;
    }
    return (double)((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* Blocks are summed in float, their sums in double: the order is fixed, so the result is too. */
double filter_exp_all(const float *x, int n, float max, float scale, float *w)
{
    double (*block)(const float *, float, float, float *) = has_wide() ? exp_block_wide : exp_block;
    double sum = 0;
    int i = 0;

    for (; i + FILTER_BLOCK <= n; i += FILTER_BLOCK)
        sum += block(x + i, max, scale, w ? w + i : NULL);
    for (; i < n; i++) {
        float v = filter_exp((x[i] - max) * scale);
        if (w) w[i] = v;
        sum += (double)v;
    }
    return sum;
}

/* The same exponential as filter_exp, four at a time. */
void filter_weigh(struct cand *c, int n, float top, float temp)
{
    int i = 0;

    for (; i + LANES <= n; i += LANES) {
        vfloat d = { c[i].d, c[i + 1].d, c[i + 2].d, c[i + 3].d };
        vfloat p = exp_clamped((d - top) / temp);
        for (int j = 0; j < LANES; j++) c[i + j].p = p[j];
    }
    for (; i < n; i++) c[i].p = filter_exp((c[i].d - top) / temp);
}

/* The k-th largest of v (Hoare's quickselect); reorders v. */
static float find_kth_largest(float *v, int n, int k)
{
    int lo = 0, hi = n - 1, at = k - 1;

    while (lo < hi) {
        float pivot = v[lo + (hi - lo) / 2];
        int i = lo, j = hi;
        while (i <= j) {
            while (v[i] > pivot) i++;
            while (v[j] < pivot) j--;
            if (i <= j) {
                float t = v[i];
                v[i++] = v[j];
                v[j--] = t;
            }
        }
        if (at <= j) hi = j;
        else if (at >= i) lo = i;
        else break;
    }
    return v[at];
}

/* A histogram of the distances to the maximum: each logit counts with the mass of the far end of
 * its bucket, so the mass is never overestimated. The margins cover rounding. */
float filter_bound(const float *x, int n, float max, double want)
{
    enum { PER_UNIT = 64 }; /* buckets per unit of the logit */
    uint32_t count[BUCKETS] = { 0 };
    double mass = 0;

    for (int i = 0; i < n; i++) {
        float at = (max - x[i]) * PER_UNIT;
        count[at < BUCKETS - 1 ? (int)at : BUCKETS - 1]++;
    }
    for (int b = 0; b < BUCKETS - 1; b++) {
        float down = (float)(b + 1) / PER_UNIT; /* the far end of the bucket */
        mass += (double)count[b] * (double)filter_exp(-down);
        if (mass > want * 1.0001) return max - down - 0.001f;
    }
    return -FLT_MAX;
}

/* Blocks whose maximum is below the bound are not read. Keys are negated logits. */
int filter_above(const float *x, int n, const float *block_max, float least, float max,
                 struct cand *c)
{
    int n_c = 0, n_blocks = filter_n_blocks(n);

    if (!(least >= -FLT_MAX)) least = -FLT_MAX;
    for (int b = 0; b < n_blocks; b++) {
        int begin = b * FILTER_BLOCK, end = begin + FILTER_BLOCK < n ? begin + FILTER_BLOCK : n;
        if (!(block_max[b] >= least)) continue;
        for (int i = begin; i < end; i++) {
            if (!(x[i] >= least)) continue;
            c[n_c].d = x[i] - max;
            c[n_c].key = -x[i];
            c[n_c++].id = i;
        }
    }
    filter_weigh(c, n_c, 0, 1);
    return n_c;
}

int filter_gather(const float *x, int n, const float *block_max, float *tmp, int k, float max,
                  struct cand *c)
{
    int n_blocks = filter_n_blocks(n);
    float least = -FLT_MAX;

    /* The k-th largest block maximum is a bound that at least k logits reach. */
    if (k < n_blocks) {
        memcpy(tmp, block_max, (size_t)n_blocks * sizeof *tmp);
        least = find_kth_largest(tmp, n_blocks, k);
    }
    return filter_above(x, n, block_max, least, max, c);
}

/* A total order: ids differ. */
static inline bool is_better(const struct cand *a, const struct cand *b)
{
    return a->key < b->key || (a->key == b->key && a->id < b->id);
}

static inline void swap_cands(struct cand *a, struct cand *b)
{
    struct cand t = *a;
    *a = *b;
    *b = t;
}

/* Partitions [lo, hi) around the median of three; returns the index of the pivot. */
static int partition_cands(struct cand *c, int lo, int hi)
{
    int mid = lo + (hi - lo) / 2, at = lo;

    if (is_better(&c[mid], &c[lo])) swap_cands(&c[mid], &c[lo]);
    if (is_better(&c[hi - 1], &c[lo])) swap_cands(&c[hi - 1], &c[lo]);
    if (is_better(&c[mid], &c[hi - 1]))
        swap_cands(&c[mid], &c[hi - 1]); /* the median is last now */
    for (int i = lo; i < hi - 1; i++)
        if (is_better(&c[i], &c[hi - 1])) swap_cands(&c[i], &c[at++]);
    swap_cands(&c[at], &c[hi - 1]);
    return at;
}

/* Insertion sort. */
static void sort_small(struct cand *c, int n)
{
    for (int i = 1; i < n; i++) {
        struct cand t = c[i];
        int j = i;
        for (; j > 0 && is_better(&t, &c[j - 1]); j--) c[j] = c[j - 1];
        c[j] = t;
    }
}

/* Quickselect by accumulated weight: each candidate weighs its p (by_mass) or 1. Returns the
 * smallest number of best candidates whose weight reaches `want`. */
static int select_best(struct cand *c, int n, double want, bool by_mass)
{
    int lo = 0, hi = n;
    double acc = 0;

    while (hi - lo > SMALL) {
        int at = partition_cands(c, lo, hi);
        double left = by_mass ? filter_sum(c + lo, at - lo) : at - lo;
        double pivot = by_mass ? (double)c[at].p : 1;
        if (acc + left >= want) {
            hi = at;
        } else if (acc + left + pivot >= want) {
            return at + 1;
        } else {
            acc += left + pivot;
            lo = at + 1;
        }
    }
    sort_small(c + lo, hi - lo);
    for (; lo < hi; lo++) {
        acc += by_mass ? (double)c[lo].p : 1;
        if (acc >= want) return lo + 1;
    }
    return hi;
}

int filter_top_k(struct cand *c, int n, int k) { return k >= n ? n : select_best(c, n, k, false); }

/* Maps keys linearly to buckets, from the smallest to the largest key. */
struct scale {
    float least, per_unit;
};

static struct scale find_scale(const struct cand *c, int n)
{
    float lo = c[0].key, hi = c[0].key;

    for (int i = 1; i < n; i++) {
        lo = c[i].key < lo ? c[i].key : lo;
        hi = c[i].key > hi ? c[i].key : hi;
    }
    return (struct scale){ lo, hi > lo ? BUCKETS / (hi - lo) : 0 };
}

/* Monotonic in the key, so buckets are in the order of keys. */
static inline int bucket_of(struct scale s, float key)
{
    float at = (key - s.least) * s.per_unit;
    return at < BUCKETS - 1 ? (int)at : BUCKETS - 1; /* NaN goes into the last one */
}

/* Moves the candidates of bucket b (below: of all buckets before it) to the front; returns
 * how many. */
static int move_to_front(struct cand *c, int n, struct scale s, int b, bool below)
{
    int at = 0;

    for (int i = 0; i < n; i++) {
        int k = bucket_of(s, c[i].key);
        if (below ? k < b : k == b) swap_cands(&c[i], &c[at++]);
    }
    return at;
}

int filter_top_mass(struct cand *c, int n, double want)
{
    double mass[BUCKETS] = { 0 }, acc = 0;
    int b = 0, whole, in;

    if (n <= BIG) return n <= 1 ? n : select_best(c, n, want, true);
    /* Buckets are in or out as a whole, except the one where the mass is reached: only that needs
     * an order. */
    struct scale s = find_scale(c, n);
    for (int i = 0; i < n; i++) mass[bucket_of(s, c[i].key)] += (double)c[i].p;
    while (b + 1 < BUCKETS && acc + mass[b] < want) acc += mass[b++];
    whole = move_to_front(c, n, s, b, true);
    in = move_to_front(c + whole, n - whole, s, b, false);
    if (in == 0) return whole > 0 ? whole : 1;
    return whole + select_best(c + whole, in, want - acc, true);
}

double filter_sum(const struct cand *c, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)c[i].p;
    return sum;
}
