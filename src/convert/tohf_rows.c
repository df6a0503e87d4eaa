/* tohf_rows.c - the values of a folder's tensors, read from the GGUF tensors that hold them. */
#include "convert/tohf_plan.h"

#include "base/mem.h"
#include "kernel/quant.h"
#include "kernel/quantblocks.h"

#include <math.h>

/* The factor of the values of matrix m of a part. */
static float scale_of(const struct tohf_part *p, int64_t m)
{
    return p->scales ? p->scales[p->n_scales > 1 ? m : 0] : 1;
}

/* Where the GGUF file holds row w (in the folder's order) of matrix m; *t is its tensor. Undoes
 * GGUF's interleaving of the two halves of a rotary head. */
static const char *find_row(const struct tohf_item *it, int64_t m, int64_t w,
                            const struct source_tensor **t)
{
    const struct tohf_part *p = &it->part[it->row_of[w] % 4];
    int64_t r = it->row_of[w] / 4;
    uint64_t bytes = 0;

    if (p->permute) {
        int64_t dim = it->y.part[it->row_of[w] % 4] / p->permute, half = p->n_rot / 2, in = r % dim;
        if (in < p->n_rot) r += (in < half ? 2 * in : 2 * (in - half) + 1) - in;
    }
    r = tiling_from_folder(&it->tile_rows, r);
    dtype_row_bytes(p->t->type, (uint64_t)it->y.cols, &bytes);
    *t = p->t;
    return (const char *)p->t->data +
           (uint64_t)((it->first_mat + m) * p->each + p->first + r) * bytes;
}

/* One row of MXFP4. A byte holds values 2j and 2j + 1 in a folder, and values j and j + 16 of a
 * block of 32 in GGUF. A folder has the scales in a separate tensor. */
static void copy_mxfp4(const struct tohf_item *it, const struct block_mxfp4 *from, uint8_t *to)
{
    for (int64_t b = 0; b < it->y.cols / QK; b++) {
        uint8_t q[QK];
        if (it->mx_scales) {
            to[b] = from[b].e;
            continue;
        }
        for (int j = 0; j < QK / 2; j++)
            q[j] = from[b].qs[j] & 15, q[j + QK / 2] = from[b].qs[j] >> 4;
        for (int j = 0; j < QK / 2; j++)
            to[b * (QK / 2) + j] = (uint8_t)(q[2 * j] | q[2 * j + 1] << 4);
    }
}

/* The folder's value for the file's x. */
static float restore_value(const struct tohf_item *it, float scale, float x)
{
    return it->log ? logf(-x) : x * scale + it->add;
}

/* ---- ORDER_KV_B: kv_b_proj of multi-head latent attention ----
 *
 * The folder has rows by head, first `each` rows of the key projection, then `values` rows of the
 * value projection. GGUF has the key projection transposed, one matrix [latent][each] per head, so
 * a key row is a column there. */

/* tmp: [each] */
static void read_key_row(const struct tohf_item *it, int64_t w, float *x, float *tmp)
{
    int64_t head = w / (it->y.each + it->y.values), in = w % (it->y.each + it->y.values);
    const struct source_tensor *t = it->part[0].t;
    uint64_t bytes = 0;

    dtype_row_bytes(t->type, (uint64_t)it->y.each, &bytes);
    for (int64_t c = 0; c < it->y.cols; c++) {
        quant_decode(t->type, (const char *)t->data + (uint64_t)(head * it->y.cols + c) * bytes,
                     tmp, it->y.each);
        x[c] = tmp[in] * scale_of(&it->part[0], head);
    }
}

/* Rows of values are stored as in the folder. */
static void read_value_row(const struct tohf_item *it, int64_t w, float *x)
{
    int64_t head = w / (it->y.each + it->y.values),
            in = w % (it->y.each + it->y.values) - it->y.each;
    const struct source_tensor *t = it->part[1].t;
    uint64_t bytes = 0;

    dtype_row_bytes(t->type, (uint64_t)it->y.cols, &bytes);
    quant_decode(t->type, (const char *)t->data + (uint64_t)(head * it->y.values + in) * bytes, x,
                 it->y.cols);
    for (int64_t c = 0; c < it->y.cols; c++) x[c] *= scale_of(&it->part[1], head);
}

/* tmp holds the row itself [cols] and behind it the scratch of read_key_row [each]. */
static void read_kv_b_row(const struct tohf_item *it, int64_t w, void *dst, float *tmp)
{
    if (w % (it->y.each + it->y.values) < it->y.each) read_key_row(it, w, tmp, tmp + it->y.cols);
    else read_value_row(it, w, tmp);
    quant_encode(it->type, tmp, dst, it->y.cols);
}

/* ---- all others ---- */

void tohf_row(const struct tohf_item *it, int64_t at, void *dst, float *tmp)
{
    const struct source_tensor *t;
    const char *from;
    uint64_t bytes = 0;
    float scale;

    if (it->y.order == ORDER_KV_B) {
        read_kv_b_row(it, at, dst, tmp);
        return;
    }
    from = find_row(it, at / it->y.rows, at % it->y.rows, &t);
    scale = scale_of(&it->part[it->row_of[at % it->y.rows] % 4], it->first_mat + at / it->y.rows);
    if (it->y.mx) {
        copy_mxfp4(it, (const void *)from, dst);
        return;
    }
    dtype_row_bytes(it->type, (uint64_t)it->y.cols, &bytes);
    if (t->type == it->type && it->add == 0 && scale == 1 && !it->log && !it->tile_cols.keys) {
        memcpy(dst, from, bytes);
        return;
    }
    quant_decode(t->type, from, tmp, it->y.cols);
    if (it->tile_cols.keys) {
        float *x = tmp + layout_room(&it->y);
        for (int64_t i = 0; i < it->y.cols; i++) x[i] = tmp[tiling_from_folder(&it->tile_cols, i)];
        tmp = x;
    }
    for (int64_t i = 0; i < it->y.cols; i++)
        tmp[i] = it->exact ? it->exact[at * it->y.cols + i] : restore_value(it, scale, tmp[i]);
    quant_encode(it->type, tmp, dst, it->y.cols);
}

int tohf_transposed(const struct tohf_item *it, void *dst, struct err *e)
{
    size_t rows = (size_t)it->y.rows, cols = (size_t)it->y.cols,
           size = (size_t)dtype_info((int)it->type)->bytes;
    float *x = mem_array(cols, sizeof *x), *all = mem_array(rows * cols, sizeof *all);

    for (int64_t m = 0; x && all && m < it->y.count; m++) {
        for (size_t w = 0; w < rows; w++) {
            const struct source_tensor *t;
            const char *from = find_row(it, m, (int64_t)w, &t);
            float scale = scale_of(&it->part[it->row_of[w] % 4], it->first_mat + m);
            quant_decode(t->type, from, x, (int64_t)cols);
            for (size_t c = 0; c < cols; c++) all[c * rows + w] = restore_value(it, scale, x[c]);
        }
        quant_encode(it->type, all, (char *)dst + (size_t)m * rows * cols * size,
                     (int64_t)(rows * cols));
    }
    int rc =
        x && all ? OK : err_set(e, E_NOMEM, "%s: out of memory: no room to transpose it", it->name);
    mem_free(x);
    mem_free(all);
    return rc;
}
