/* moe.c - mixture of experts: the router, and the feed-forward blocks of the selected experts.
 *
 * Pairs of (token, selected expert) are called choices; there are n_tokens * n_used of them. They
 * are sorted by expert, so that the weights of an expert are read once per step, and those of an
 * expert that no token selected are not read at all.
 *
 * Example: tokens 0 and 1 select experts (2, 0) and (2, 1) of four. Choices in order are 2, 0,
 * 2, 1. Sorted: expert 0 has row 0, expert 1 row 1, expert 2 rows 2 and 3, expert 3 none; first =
 * 0, 1, 2, 4, 4; positions of the choices = 2, 0, 3, 1; choices at the positions = 1, 3, 0, 2. */
#include "kernel/cpu/cpu.h"
#include "kernel/cpu/matmul.h"

#include <math.h>
#include <string.h>

/* ---- routing ---- */

struct choice { /* arguments of route_rows */
    const struct tensor *logits;
    const struct route_opt *opt;
    int32_t *ids;
    float *weights;
};

/* Index of the largest score that is not taken yet; the first one if several are equal. */
static int find_best(const float *score, const bool *taken, int n)
{
    int b = -1;

    for (int i = 0; i < n; i++)
        if (!taken[i] && (b < 0 || score[i] > score[b])) b = i;
    return b;
}

/* Computed in double and rounded once. p may be x. */
static void softmax(float *p, const float *x, int n)
{
    double sum = 0, max = -INFINITY;

    for (int i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    for (int i = 0; i < n; i++) sum += exp((double)x[i] - max);
    for (int i = 0; i < n; i++) p[i] = (float)(exp((double)x[i] - max) / sum);
}

/* Group-limited routing: marks the experts outside the best groups as taken. */
static void exclude_groups(const struct route_opt *o, const float *score, bool *taken, int n)
{
    int size = n / o->n_groups;
    float sum[MOE_MAX_GROUPS];
    bool open[MOE_MAX_GROUPS] = { false };

    for (int g = 0; g < o->n_groups; g++) {
        bool seen[MOE_MAX_EXPERTS] = { false };
        sum[g] = 0;
        for (int k = 0; k < o->group_top; k++) {
            int b = find_best(score + g * size, seen, size);
            seen[b] = true;
            sum[g] += score[g * size + b];
        }
    }
    for (int k = 0; k < o->n_groups_used; k++) open[find_best(sum, open, o->n_groups)] = true;
    for (int i = 0; i < n; i++) taken[i] = !open[i / size];
}

/* SparseMixer of phimoe: the two best experts, each weighted by its softmax over the experts whose
 * relative distance to it is at most 2 * jitter. For the second, the first is left out. */
static void route_sparsemixer(const struct route_opt *o, const float *score, int n, int32_t *ids,
                              float *weights)
{
    bool taken[MOE_MAX_EXPERTS] = { false };

    for (int k = 0; k < 2; k++) {
        int b = find_best(score, taken, n);
        float max = score[b];
        double sum = 0;
        for (int i = 0; i < n; i++) {
            float size = fabsf(score[i]) > max ? fabsf(score[i]) : max;
            if (taken[i] || (max - score[i]) / size > 2 * o->jitter) continue;
            sum += exp((double)score[i] - (double)max);
        }
        ids[k] = b;
        weights[k] = (float)(1 / sum) * o->scale;
        taken[b] = true;
    }
}

/* The router of one token: scores by kind, selection by score + bias, then the weights. */
static void route_row(const struct route_opt *o, const float *logits, int n, const int32_t *fixed,
                      int32_t *ids, float *weights)
{
    bool taken[MOE_MAX_EXPERTS] = { false };
    float score[MOE_MAX_EXPERTS], rank[MOE_MAX_EXPERTS], sum = 0;

    switch (o->route) {
    case ROUTE_SPARSEMIXER: route_sparsemixer(o, logits, n, ids, weights); return;
    case ROUTE_SOFTMAX: softmax(score, logits, n); break;
    case ROUTE_SIGMOID:
        for (int i = 0; i < n; i++) score[i] = (float)(1 / (1 + exp(-(double)logits[i])));
        break;
    case ROUTE_SQRT_SOFTPLUS:
        for (int i = 0; i < n; i++) {
            double x = (double)logits[i];
            score[i] = (float)sqrt(x > 20 ? x : log1p(exp(x)));
        }
        break;
    case ROUTE_TOP_SOFTMAX: memcpy(score, logits, (size_t)n * sizeof *score); break;
    }
    for (int i = 0; i < n; i++) rank[i] = score[i] + (o->bias ? o->bias[i] : 0);
    if (o->n_groups) exclude_groups(o, rank, taken, n);
    for (int k = 0; k < o->n_used; k++) {
        ids[k] = fixed ? fixed[k] : find_best(rank, taken, n);
        taken[ids[k]] = true;
        weights[k] = score[ids[k]];
    }
    if (o->route == ROUTE_TOP_SOFTMAX) softmax(weights, weights, o->n_used);
    for (int k = 0; k < o->n_used; k++) sum += weights[k];
    for (int k = 0; k < o->n_used; k++) {
        weights[k] *= (o->norm && sum > 0 ? 1 / sum : 1) * o->scale;
        if (o->expert_scale) weights[k] *= o->expert_scale[ids[k]];
    }
}

static void route_rows(const void *arg, int begin, int end)
{
    const struct choice *a = arg;
    size_t n = (size_t)a->opt->n_used;

    for (int r = begin; r < end; r++) {
        const struct route_opt *o = a->opt;
        const int32_t *fixed = o->by_token ? o->by_token + (size_t)o->ids[r] * n : NULL;
        route_row(o, tensor_row(a->logits, r), a->logits->cols, fixed, a->ids + (size_t)r * n,
                  a->weights + (size_t)r * n);
    }
}

void cpu_route(struct backend *be, int32_t *ids, float *weights, const struct tensor *logits,
               const struct route_opt *opt)
{
    struct choice a = { logits, opt, ids, weights };

    if (logits->cols > MOE_MAX_EXPERTS || opt->n_groups > MOE_MAX_GROUPS) {
        cpu_fail(cpu_of(be), E_UNSUPPORTED,
                 "route: %d experts in %d groups: at most %d in %d are supported", logits->cols,
                 opt->n_groups, MOE_MAX_EXPERTS, MOE_MAX_GROUPS);
        return;
    }
    cpu_rows(cpu_of(be), logits->rows, (long long)logits->rows * logits->cols * 32, route_rows, &a);
}

/* ---- the blocks ---- */

/* Counting sort of the n choices by expert. Fills o->order: [n experts + 1] first sorted position
 * of each expert, [n] sorted position of each choice, [n] choice at each sorted position. Returns
 * the last part. */
static int32_t *sort_choices(const struct experts_opt *o, const int32_t *ids, int n)
{
    int all = o->n + o->n_zero, at = 0;
    int32_t *first = o->order, *position = first + all + 1, *choice_at = position + n;

    memset(first, 0, (size_t)(all + 1) * sizeof *first);
    for (int i = 0; i < n; i++) first[ids[i]]++;
    for (int e = 0; e <= all; e++) {
        int count = e < all ? first[e] : 0;
        first[e] = at;
        at += count;
    }
    for (int i = 0; i < n; i++) {
        position[i] = first[ids[i]]++;
        choice_at[position[i]] = i;
    }
    for (int e = all; e > 0; e--) first[e] = first[e - 1];
    first[0] = 0;
    return choice_at;
}

static bool is_here(const struct experts_opt *o, int e) { return o->up[e].rows > 0; }

struct spread { /* arguments of gather_sorted_rows and sum_expert_rows */
    const struct experts_opt *o;
    const struct tensor *out, *x;
    const int32_t *position, *choice_at;
    const float *weights;
    const struct vec *vec;
    const int32_t *ids;
};

/* Copies token rows into the sorted order, weighted if the weights belong to the inputs. */
static void gather_sorted_rows(const void *arg, int begin, int end)
{
    const struct spread *a = arg;

    for (int r = begin; r < end; r++) {
        const float *x = tensor_row(a->x, a->choice_at[r] / a->o->n_used);
        if (a->o->weigh_inputs)
            a->vec->scale(tensor_row(&a->o->xs, r), x, a->weights[a->choice_at[r]], a->x->cols);
        else memcpy(tensor_row(&a->o->xs, r), x, (size_t)a->x->cols * sizeof(float));
    }
}

/* Weighted sum of the outputs of a token's experts. */
static void sum_expert_rows(const void *arg, int begin, int end)
{
    const struct spread *a = arg;

    for (int r = begin; r < end; r++) {
        float *out = tensor_row(a->out, r);
        if (!a->o->add) memset(out, 0, (size_t)a->out->cols * sizeof *out);
        for (int k = 0; k < a->o->n_used; k++) {
            size_t i = (size_t)r * (size_t)a->o->n_used + (size_t)k;
            int at = a->position[i];
            bool zero = a->o->n_zero && a->ids[i] >= a->o->n;
            if (!zero && !is_here(a->o, a->ids[i])) continue;
            a->vec->add(out, zero ? tensor_row(a->x, r) : tensor_row(&a->o->ys, at),
                        (a->o->weigh_inputs ? 1 : a->weights[i]) * a->o->scale, a->out->cols);
        }
    }
}

static struct tensor row_range(const struct tensor *t, int first, int n)
{
    struct tensor s = *t;

    s.data = tensor_row(t, first);
    s.rows = n;
    return s;
}

/* Row e of a [n][rows] bias, or NULL. */
static const float *bias_of(const float *b, int e, int rows)
{
    return b ? b + (size_t)e * (size_t)rows : NULL;
}

/* The gate and up products of expert e for sorted choices [a, b). Returns their number. */
static int fill_up_jobs(const struct experts_opt *o, int e, int a, int b, struct linear *jobs)
{
    int n = 0;

    if (o->gate)
        jobs[n++] = (struct linear){ .out = row_range(&o->hs, a, b - a),
                                     .w = &o->gate[e],
                                     .bias = bias_of(o->b_gate, e, o->gate[e].rows) };
    jobs[n++] = (struct linear){ .out = row_range(o->gate ? &o->us : &o->hs, a, b - a),
                                 .w = &o->up[e],
                                 .bias = bias_of(o->b_up, e, o->up[e].rows) };
    return n;
}

/* One token (decode): all its experts multiply the same row, in one call. */
static int run_up_single(struct cpu *c, const struct experts_opt *o, const struct tensor *x,
                         const int32_t *ids, const int32_t *choice_at)
{
    struct linear jobs[2 * MOE_MAX_USED];
    int n = 0;

    for (int i = 0; i < o->n_used; i++)
        if (is_here(o, ids[choice_at[i]]))
            n += fill_up_jobs(o, ids[choice_at[i]], i, i + 1, jobs + n);
    return n ? cpu_linear(c->matmul, c->par, x, jobs, n) : OK;
}

/* Gate and up products, expert after expert; each is divided among all threads. */
static int run_up(struct cpu *c, const struct experts_opt *o)
{
    int rc = OK;

    for (int e = 0; e < o->n && rc == OK; e++) {
        int a = o->order[e], b = o->order[e + 1];
        struct tensor x = row_range(&o->xs, a, b - a);
        struct linear jobs[2];
        if (a < b && is_here(o, e))
            rc = cpu_linear(c->matmul, c->par, &x, jobs, fill_up_jobs(o, e, a, b, jobs));
    }
    return rc;
}

/* The down products, in the sorted order. */
static int run_down(struct cpu *c, const struct experts_opt *o)
{
    int rc = OK;

    for (int e = 0; e < o->n && rc == OK; e++) {
        int a = o->order[e], b = o->order[e + 1];
        struct tensor h = row_range(&o->hs, a, b - a);
        struct linear job = { .out = row_range(&o->ys, a, b - a),
                              .w = &o->down[e],
                              .bias = bias_of(o->b_down, e, o->down[e].rows) };
        if (a < b && is_here(o, e)) rc = cpu_linear(c->matmul, c->par, &h, &job, 1);
    }
    return rc;
}

void cpu_experts(struct backend *be, const struct tensor *out, const struct tensor *x,
                 const int32_t *ids, const float *weights, const struct experts_opt *o)
{
    struct cpu *c = cpu_of(be);
    int n = x->rows * o->n_used, rc;
    const int32_t *choice_at = sort_choices(o, ids, n);
    struct spread a = {
        o, out, x, o->order + o->n + o->n_zero + 1, choice_at, weights, c->vec, ids
    };
    bool apart = x->rows > 1 || o->weigh_inputs || o->n_zero; /* rows are copied and sorted */
    int n_run = o->order[o->n]; /* choices of experts that compute something */
    struct tensor hs = tensor_rows(o->hs, n_run), us = tensor_rows(o->us, n_run);

    if (apart) cpu_rows(c, n_run, (long long)n_run * x->cols, gather_sorted_rows, &a);
    rc = apart ? run_up(c, o) : x->rows ? run_up_single(c, o, x, ids, choice_at) : OK;
    if (rc == OK) {
        if (o->clip.limit != 0) cpu_clipped_glu(be, &hs, &hs, &us, &o->clip);
        else cpu_act(be, &hs, &hs, o->gate ? &us : NULL, o->act);
        rc = run_down(c, o);
    }
    if (rc != OK) {
        cpu_fail(c, rc, "experts: out of memory for %d tokens", x->rows);
        return;
    }
    cpu_rows(c, x->rows, (long long)n * out->cols, sum_expert_rows, &a);
}
