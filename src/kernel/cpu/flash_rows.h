/* flash_rows.h - what all pieces of attention share: their query rows, running maxima and sums.
 * Included by flash_impl.h and flash_amx.c; the vectors are simd.h's. */
#ifndef TERN_KERNEL_CPU_FLASH_ROWS_H
#define TERN_KERNEL_CPU_FLASH_ROWS_H

#include "kernel/cpu/flash.h"
#include "kernel/cpu/kvload.h"
#include "kernel/cpu/simd.h"

#include <math.h>

#define KEYS FLASH_KEYS
#define LOG2E 1.44269504f /* scores are kept in powers of two: exp2 is cheaper */

struct work {
    const struct attend_job *j;
    const struct flash_piece *p;
    const int32_t *blocks;
    int rows, ldq, ldo;
    float *q, *o;     /* [rows][ldq] scaled, [rows][ldo] */
    float *max, *sum; /* [rows], [rows][W]: a sum for every lane */
    int *pos, *end;   /* [rows] */
    float *kt, *v;    /* a tile of keys and values, as the products want them */
    float *s;         /* [16][KEYS] scores, then weights */
    float *extra;     /* flash_extra_floats, for products that need more */
};

static void work_init(struct work *w, float *scratch)
{
    const struct attend_job *j = w->j;
    size_t r;

    w->blocks = attend_blocks(j, j->kv->seq[w->p->token]);
    w->rows = w->p->n_tokens * j->group;
    w->ldq = (int)flash_pad(j->opt->head_dim);
    w->ldo = (int)flash_pad(j->opt->head_dim_v);
    r = flash_pad(w->rows);
    w->q = scratch, scratch += r * (size_t)w->ldq;
    w->o = scratch, scratch += r * (size_t)w->ldo;
    w->sum = scratch, scratch += r * 16;
    w->max = scratch, scratch += r;
    w->pos = (int *)scratch, scratch += r;
    w->end = (int *)scratch, scratch += r;
    w->kt = scratch, scratch += KEYS * (size_t)w->ldq;
    w->v = scratch, scratch += KEYS * (size_t)w->ldo;
    w->s = scratch, scratch += 16 * KEYS;
    w->extra = scratch;
}

/* Query rows side by side, scaled, with zeros up to whole vectors; sums empty, or with the sinks.
 */
static void load_queries(struct work *w)
{
    const struct attend_opt *o = w->j->opt;
    vf scale = v_set(o->softcap > 0 ? o->scale : o->scale * LOG2E);

    memset(w->o, 0, (size_t)w->rows * (size_t)w->ldo * sizeof *w->o);
    memset(w->sum, 0, (size_t)w->rows * W * sizeof *w->sum);
    for (int r = 0; r < w->rows; r++) {
        int token = w->p->token + r / w->j->group,
            head = w->p->head * w->j->group + r % w->j->group;
        const float *from = tensor_row(w->j->q, token) + (size_t)head * o->head_dim;
        float *to = w->q + (size_t)r * w->ldq;
        for (int i = 0; i < w->ldq; i += W) {
            int n = o->head_dim - i;
            v_store(to + i, v_load_n(from + i, n >= W ? W : n > 0 ? n : 0) * scale);
        }
        bool sink = o->sinks && w->p->first;
        w->max[r] = sink ? o->sinks[head] * LOG2E : -INFINITY;
        w->sum[(size_t)r * W] = sink ? 1 : 0;
        w->pos[r] = w->j->kv->pos[token];
        w->end[r] = attend_end(w->j, token);
    }
}

/* What the rows of a panel see of the n keys from `key` on: [lo, hi) of each, empty when lo >= hi.
 */
struct sight {
    int lo[16], hi[16];
    int first, end; /* of all of them */
};

static void look(const struct work *w, struct sight *see, int r0, int mr, int key, int n)
{
    see->first = KEYS, see->end = 0;
    for (int i = 0; i < mr; i++) {
        int pos = w->pos[r0 + i], lo = attend_first(w->j, pos) - key, hi = w->end[r0 + i] - key;
        see->lo[i] = lo = lo > 0 ? lo : 0;
        see->hi[i] = hi = hi < n ? hi : n;
        if (lo >= hi) continue;
        see->first = lo < see->first ? lo : see->first;
        see->end = hi > see->end ? hi : see->end;
    }
}

/* Soft cap and slopes on scores [c0, c1) of a row, multiples of W. */
static void bend_row(const struct work *w, int r, int key, float *s, int c0, int c1)
{
    const struct attend_opt *o = w->j->opt;

    if (o->softcap > 0) {
        vf cap = v_set(o->softcap * LOG2E), inv = v_set(1 / o->softcap);
        for (int c = c0; c < c1; c += W) v_store(s + c, cap * v_tanh(v_load(s + c) * inv));
    }
    if (o->slopes) {
        vf slope = v_set(o->slopes[w->p->head * w->j->group + r % w->j->group] * LOG2E);
        for (int c = c0; c < c1; c += W) {
            vf away = v_iota() + v_set((float)(key + c - w->pos[r]));
            v_store(s + c, v_fma(slope, away, v_load(s + c)));
        }
    }
}

/* The running maximum of up to 16 rows with scores [c0, c1), what a row does not see set to -inf.
 * top: what to subtract from the scores; alpha: what earlier sums shrink by. */
static void raise_tops(const struct work *w, const struct sight *see, int r0, int mr, int key,
                       int c0, int c1, float top[16], float alpha[16])
{
    const struct attend_opt *o = w->j->opt;
    float shrink[16] = { 0 };

    for (int i = 0; i < mr; i++) {
        float *s = w->s + i * KEYS, old = w->max[r0 + i];
        if (o->softcap > 0 || o->slopes) bend_row(w, r0 + i, key, s, c0, c1);
        for (int c = c0; c < see->lo[i] && c < c1; c++) s[c] = -INFINITY;
        for (int c = see->hi[i] > c0 ? see->hi[i] : c0; c < c1; c++) s[c] = -INFINITY;
        vf m = v_load(s + c0);
        for (int c = c0 + W; c < c1; c += W) m = v_max(m, v_load(s + c));
        float now = v_hmax(m);
        w->max[r0 + i] = now = now > old ? now : old;
        top[i] = now > -INFINITY ? now : 0; /* nothing seen yet: all weights are to be 0 */
        shrink[i] = old - top[i];
    }
    for (int i = 0; i < 16; i += W) v_store(alpha + i, v_exp2(v_load(shrink + i)));
}
static void store_rows(const struct work *w)
{
    int dim = w->j->opt->head_dim_v;

    for (int r = 0; r < w->rows; r++) {
        int token = w->p->token + r / w->j->group,
            head = w->p->head * w->j->group + r % w->j->group;
        float sum = v_sum(v_load(w->sum + (size_t)r * W));
        const float *o = w->o + (size_t)r * w->ldo;
        float *to = w->p->part ? w->p->part + 2 * w->rows + (size_t)r * dim
                               : tensor_row(w->j->out, token) + (size_t)head * dim;
        vf scale = v_set(w->p->part ? 1 : 1 / sum);
        int d = 0;
        for (; d + W <= dim; d += W) v_store(to + d, v_load(o + d) * scale);
        if (d < dim) v_store_n(to + d, v_load(o + d) * scale, dim - d);
        if (!w->p->part) continue;
        w->p->part[r] = w->max[r];
        w->p->part[w->rows + r] = sum;
    }
}
#endif
