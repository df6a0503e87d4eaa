/* flash_rows.h - query rows of a piece of attention and their online softmax: scratch layout,
 * running maxima and sums. Shared by flash_impl.h and flash_amx.c; in the vectors of simd.h.
 *
 * Query row r of a piece is token r / group, query head r % group of its KV head. */
#ifndef TERN_KERNEL_CPU_FLASH_ROWS_H
#define TERN_KERNEL_CPU_FLASH_ROWS_H

#include "kernel/cpu/flash.h"
#include "kernel/cpu/kvload.h"
#include "kernel/cpu/simd.h"

#include <math.h>

#define KEYS FLASH_KEYS
#define LOG2E 1.44269504f /* scores are multiplied by it: 2^(x log2 e) = e^x */

/* One piece in progress: its arguments and the parts of its scratch memory. */
struct work {
    const struct attend_job *j;
    const struct flash_piece *p;
    const int32_t *blocks; /* the sequence's block table */
    int rows, ldq, ldo;    /* query rows; padded head_dim and head_dim_v */
    float *q, *o;          /* [rows][ldq] scaled queries, [rows][ldo] unnormalized outputs */
    float *max, *sum;      /* [rows] running maximum, [rows][W] running sum per vector lane */
    int *pos, *end;        /* [rows] position of the row's token, and its attend_end */
    float *kt, *v;         /* a tile of keys and values in the layout of the matrix products */
    float *s;              /* [16][KEYS] scores, then attention weights */
    float *extra;          /* flash_extra_floats, for flash_amx */
};

/* Divides the scratch memory; sizes as in flash_scratch_floats. */
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

/* Copies the query rows, scaled and padded with zeros. Starts maxima and sums, with the attention
 * sinks in the first split. */
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

/* The keys, relative to a tile, that each row of a panel attends to: [lo, hi), empty if lo >= hi. */
struct visible {
    int lo[16], hi[16];
    int first, end; /* smallest lo and largest hi of all rows */
};

/* For rows [r0, r0 + mr) and the n keys from `key` on. */
static void find_visible(const struct work *w, struct visible *see, int r0, int mr, int key, int n)
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

/* Applies soft cap and ALiBi slopes to scores [c0, c1) of a row; c0 and c1 are multiples of W. */
static void adjust_scores(const struct work *w, int r, int key, float *s, int c0, int c1)
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

/* Updates the running maxima of up to 16 rows with scores [c0, c1); masked scores become -inf.
 * top: what to subtract from the scores. alpha: the factor 2^(old - new maximum) by which earlier
 * sums and outputs must be multiplied. */
static void update_maxima(const struct work *w, const struct visible *see, int r0, int mr, int key,
                          int c0, int c1, float top[16], float alpha[16])
{
    const struct attend_opt *o = w->j->opt;
    float shrink[16] = { 0 };

    for (int i = 0; i < mr; i++) {
        float *s = w->s + i * KEYS, old = w->max[r0 + i];
        if (o->softcap > 0 || o->slopes) adjust_scores(w, r0 + i, key, s, c0, c1);
        for (int c = c0; c < see->lo[i] && c < c1; c++) s[c] = -INFINITY;
        for (int c = see->hi[i] > c0 ? see->hi[i] : c0; c < c1; c++) s[c] = -INFINITY;
        vf m = v_load(s + c0);
        for (int c = c0 + W; c < c1; c += W) m = v_max(m, v_load(s + c));
        float now = v_hmax(m);
        w->max[r0 + i] = now = now > old ? now : old;
        top[i] = now > -INFINITY ? now : 0; /* no visible key yet: all weights become 0 */
        shrink[i] = old - top[i];
    }
    for (int i = 0; i < 16; i += W) v_store(alpha + i, v_exp2(v_load(shrink + i)));
}

/* Writes normalized outputs, or the partial result of a split. */
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
