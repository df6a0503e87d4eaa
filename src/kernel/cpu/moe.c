/* Mixtures of experts: who answers a token, and the answers. Tokens are sorted by expert, so that
 * each expert's weights are read once a step, and those nobody chose not at all. */
#include "kernel/cpu/cpu.h"
#include "kernel/cpu/matmul.h"

#include <math.h>
#include <string.h>

/* ---- routing ---- */

struct choice {
    const struct tensor *logits;
    const struct route_opt *opt;
    int32_t *ids;
    float *weights;
};

/* The largest of score[n] that is not taken yet; of equals the first. */
static int best(const float *score, const bool *taken, int n)
{
    int b = -1;

    for (int i = 0; i < n; i++)
        if (!taken[i] && (b < 0 || score[i] > score[b])) b = i;
    return b;
}

static void softmax(float *p, const float *x, int n)
{
    double sum = 0, max = -INFINITY;

    for (int i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    for (int i = 0; i < n; i++) sum += exp((double)x[i] - max);
    for (int i = 0; i < n; i++) p[i] = (float)(exp((double)x[i] - max) / sum);
}

/* Experts outside the best groups cannot be chosen. */
static void close_groups(const struct route_opt *o, const float *score, bool *taken, int n)
{
    int size = n / o->n_groups;
    float sum[MOE_MAX_GROUPS];
    bool open[MOE_MAX_GROUPS] = { false };

    for (int g = 0; g < o->n_groups; g++) {
        bool seen[MOE_MAX_EXPERTS] = { false };
        sum[g] = 0;
        for (int k = 0; k < o->group_top; k++) {
            int b = best(score + g * size, seen, size);
            seen[b] = true;
            sum[g] += score[g * size + b];
        }
    }
    for (int k = 0; k < o->n_groups_used; k++) open[best(sum, open, o->n_groups)] = true;
    for (int i = 0; i < n; i++) taken[i] = !open[i / size];
}

/* Each of two is weighed against those whose score is not far behind its own: closer than 2 jitter,
 * relative to the larger of the two sizes. The second does not see the first. */
static void sparsemixer(const struct route_opt *o, const float *score, int n, int32_t *ids,
                        float *weights)
{
    bool taken[MOE_MAX_EXPERTS] = { false };

    for (int k = 0; k < 2; k++) {
        int b = best(score, taken, n);
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

static void route_row(const struct route_opt *o, const float *logits, int n, int32_t *ids,
                      float *weights)
{
    bool taken[MOE_MAX_EXPERTS] = { false };
    float score[MOE_MAX_EXPERTS], rank[MOE_MAX_EXPERTS], sum = 0;

    switch (o->route) {
    case ROUTE_SPARSEMIXER: sparsemixer(o, logits, n, ids, weights); return;
    case ROUTE_SOFTMAX: softmax(score, logits, n); break;
    case ROUTE_SIGMOID:
        for (int i = 0; i < n; i++) score[i] = (float)(1 / (1 + exp(-(double)logits[i])));
        break;
    case ROUTE_TOP_SOFTMAX: memcpy(score, logits, (size_t)n * sizeof *score); break;
    }
    for (int i = 0; i < n; i++) rank[i] = score[i] + (o->bias ? o->bias[i] : 0);
    if (o->n_groups) close_groups(o, rank, taken, n);
    for (int k = 0; k < o->n_used; k++) {
        ids[k] = best(rank, taken, n);
        taken[ids[k]] = true;
        weights[k] = score[ids[k]];
    }
    if (o->route == ROUTE_TOP_SOFTMAX) softmax(weights, weights, o->n_used);
    for (int k = 0; k < o->n_used; k++) sum += weights[k];
    for (int k = 0; k < o->n_used; k++) weights[k] *= (o->norm && sum > 0 ? 1 / sum : 1) * o->scale;
}

static void route_rows(const void *arg, int begin, int end)
{
    const struct choice *a = arg;
    size_t n = (size_t)a->opt->n_used;

    for (int r = begin; r < end; r++)
        route_row(a->opt, tensor_row(a->logits, r), a->logits->cols, a->ids + (size_t)r * n,
                  a->weights + (size_t)r * n);
}

void cpu_route(struct backend *be, int32_t *ids, float *weights, const struct tensor *logits,
               const struct route_opt *opt)
{
    struct choice a = { logits, opt, ids, weights };

    if (logits->cols > MOE_MAX_EXPERTS || opt->n_groups > MOE_MAX_GROUPS) {
        cpu_fail(cpu_of(be), E_UNSUPPORTED, "route: %d experts in %d groups, at most %d in %d",
                 logits->cols, opt->n_groups, MOE_MAX_EXPERTS, MOE_MAX_GROUPS);
        return;
    }
    cpu_rows(cpu_of(be), logits->rows, (long long)logits->rows * logits->cols * 32, route_rows, &a);
}

/* ---- the blocks ---- */

/* order: [first of expert 0 … first of expert n], then where each choice went, then who stands
 * where. */
static int32_t *sort_choices(const struct experts_opt *o, const int32_t *ids, int n)
{
    int32_t *first = o->order, *place = first + o->n + 1, *who = place + n;
    int at = 0;

    memset(first, 0, (size_t)(o->n + 1) * sizeof *first);
    for (int i = 0; i < n; i++) first[ids[i]]++;
    for (int e = 0; e <= o->n; e++) {
        int count = e < o->n ? first[e] : 0;
        first[e] = at;
        at += count;
    }
    for (int i = 0; i < n; i++) {
        place[i] = first[ids[i]]++;
        who[place[i]] = i;
    }
    for (int e = o->n; e > 0; e--) first[e] = first[e - 1];
    first[0] = 0;
    return who;
}

struct spread {
    const struct experts_opt *o;
    const struct tensor *out, *x;
    const int32_t *place, *who;
    const float *weights;
    const struct vec *vec;
};

static void gather_rows(const void *arg, int begin, int end)
{
    const struct spread *a = arg;

    for (int r = begin; r < end; r++)
        memcpy(tensor_row(&a->o->xs, r), tensor_row(a->x, a->who[r] / a->o->n_used),
               (size_t)a->x->cols * sizeof(float));
}

static void sum_rows(const void *arg, int begin, int end)
{
    const struct spread *a = arg;

    for (int r = begin; r < end; r++) {
        float *out = tensor_row(a->out, r);
        if (!a->o->add) memset(out, 0, (size_t)a->out->cols * sizeof *out);
        for (int k = 0; k < a->o->n_used; k++) {
            size_t i = (size_t)r * (size_t)a->o->n_used + (size_t)k;
            a->vec->add(out, tensor_row(&a->o->ys, a->place[i]), a->weights[i] * a->o->scale,
                        a->out->cols);
        }
    }
}

static struct tensor rows_of(const struct tensor *t, int first, int n)
{
    struct tensor s = *t;

    s.data = tensor_row(t, first);
    s.rows = n;
    return s;
}

static const float *bias_of(const float *b, int e, int rows)
{
    return b ? b + (size_t)e * (size_t)rows : NULL;
}

/* Gate and up of rows [a, b) of the sorted choices, all of expert e. */
static int widen(const struct experts_opt *o, int e, int a, int b, struct linear *jobs)
{
    int n = 0;

    if (o->gate)
        jobs[n++] = (struct linear){ .out = rows_of(&o->hs, a, b - a),
                                     .w = &o->gate[e],
                                     .bias = bias_of(o->b_gate, e, o->gate[e].rows) };
    jobs[n++] = (struct linear){ .out = rows_of(o->gate ? &o->us : &o->hs, a, b - a),
                                 .w = &o->up[e],
                                 .bias = bias_of(o->b_up, e, o->up[e].rows) };
    return n;
}

/* One token: all its experts read the same row, in one go. */
static int widen_one(struct cpu *c, const struct experts_opt *o, const struct tensor *x,
                     const int32_t *ids, const int32_t *who)
{
    struct linear jobs[2 * MOE_MAX_USED];
    int n = 0;

    for (int i = 0; i < o->n_used; i++) n += widen(o, ids[who[i]], i, i + 1, jobs + n);
    return cpu_linear(c->matmul, c->par, x, jobs, n);
}

static int widen_all(struct cpu *c, const struct experts_opt *o)
{
    int rc = OK;

    for (int e = 0; e < o->n && rc == OK; e++) {
        int a = o->order[e], b = o->order[e + 1];
        struct tensor x = rows_of(&o->xs, a, b - a);
        struct linear jobs[2];
        if (a < b) rc = cpu_linear(c->matmul, c->par, &x, jobs, widen(o, e, a, b, jobs));
    }
    return rc;
}

static int narrow_all(struct cpu *c, const struct experts_opt *o)
{
    int rc = OK;

    for (int e = 0; e < o->n && rc == OK; e++) {
        int a = o->order[e], b = o->order[e + 1];
        struct tensor h = rows_of(&o->hs, a, b - a);
        struct linear job = { .out = rows_of(&o->ys, a, b - a),
                              .w = &o->down[e],
                              .bias = bias_of(o->b_down, e, o->down[e].rows) };
        if (a < b) rc = cpu_linear(c->matmul, c->par, &h, &job, 1);
    }
    return rc;
}

void cpu_experts(struct backend *be, const struct tensor *out, const struct tensor *x,
                 const int32_t *ids, const float *weights, const struct experts_opt *o)
{
    struct cpu *c = cpu_of(be);
    int n = x->rows * o->n_used, rc;
    const int32_t *who = sort_choices(o, ids, n);
    struct spread a = { o, out, x, o->order + o->n + 1, who, weights, c->vec };
    struct tensor hs = tensor_rows(o->hs, n), us = tensor_rows(o->us, n);

    if (x->rows > 1) cpu_rows(c, n, (long long)n * x->cols, gather_rows, &a);
    rc = x->rows > 1 ? widen_all(c, o) : x->rows ? widen_one(c, o, x, ids, who) : OK;
    if (rc == OK) {
        cpu_act(be, &hs, &hs, o->gate ? &us : NULL, o->act);
        rc = narrow_all(c, o);
    }
    if (rc != OK) {
        cpu_fail(c, rc, "experts: a product of %d tokens failed", x->rows);
        return;
    }
    cpu_rows(c, x->rows, (long long)n * out->cols, sum_rows, &a);
}
