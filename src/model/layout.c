/* layout.c - computes layouts and reads rows through them.
 *
 * Row orders by example (stored rows from the top; numbers are heads):
 *
 *     ORDER_PLAIN       q0 q1 k0 v0             parts one after the other
 *     ORDER_GROUPS      q0 q1 k0 v0 q2 q3 k1 v1 two query heads per KV head
 *     ORDER_ALTERNATE   gate0 up0 gate1 up1     rows, not heads
 *     ORDER_HEADS       q0 g0 q1 g1             head_dim rows of queries, then of gates
 *     ORDER_QKVZ        q0 k0 v0 v1 z0 z1 q1 k1 v2 v3 z2 z3
 *     ORDER_KV_B        k0 v0 k1 v1             nope rows of keys, head_dim_v rows of values
 *
 * layout_row answers, for example, where row r of k is stored. */
#include "model/layout.h"

#include "kernel/quantblocks.h"
#include "kernel/quant.h"

#include <stdio.h>

enum { MX_BLOCK = 32 }; /* elements of an MXFP4 block */

/* Parts of packed tensors; others have one. */
static void set_parts(struct layout *y, const struct hparams *hp, const struct tensor_row *r, int l)
{
    static const enum dim qkv[] = { DIM_Q, DIM_K, DIM_V };

    y->n_parts = 1;
    y->part[0] = y->rows;
    if (r->kind == ROW_QKV) {
        y->n_parts = 3;
        for (int i = 0; i < 3; i++) y->part[i] = hparams_dim(hp, qkv[i], l);
    } else if (r->kind == ROW_GATE_UP) {
        y->n_parts = 2;
        y->part[0] = y->part[1] = y->rows / 2;
    }
}

/* Row orders of mixers, the same in both file formats. */
static void set_order(struct layout *y, const struct hparams *hp, const struct tensor_row *r, int l)
{
    const struct layer_hp *w = &hp->layers[l < hp->n_layers ? l : 0];
    const struct mix_hp *h = &w->mix;
    int64_t per = h->n_k_heads ? h->n_heads / h->n_k_heads : 1;

    switch (r->kind) {
    case ROW_PLANE:
        y->order = ORDER_PLANE, y->each = y->rows;
        y->part[0] = y->rows *= y->cols, y->cols = 1;
        y->vector = true;
        break;
    case ROW_Q_GATE:
        y->order = ORDER_HEADS, y->each = w->head_dim;
        y->n_parts = 2, y->part[0] = y->part[1] = y->rows / 2;
        break;
    case ROW_BETA_ALPHA: y->order = ORDER_HEADS, y->each = per; break;
    case ROW_QKVZ:
        y->order = ORDER_QKVZ, y->each = h->k_dim, y->values = per * h->head_dim;
        y->n_parts = 2, y->part[1] = (int64_t)h->n_heads * h->head_dim,
        y->part[0] = y->rows - y->part[1];
        break;
    case ROW_KV_B:
        y->order = ORDER_KV_B, y->each = h->nope, y->values = w->head_dim_v,
        y->per_weight = w->n_heads;
        y->n_parts = 2, y->part[0] = (int64_t)w->n_heads * h->kv_rank,
        y->part[1] = w->n_heads * y->values;
        break;
    case ROW_EACH_HEAD:
        y->per_weight = y->count, y->part[0] = y->rows *= y->count, y->count = 1;
        break;
    default: break;
    }
}

/* Flags about storage apply to folders only. */
void layout_of(struct layout *y, const struct hparams *hp, const struct tensor_row *r, int l,
               enum source_kind world)
{
    const struct layer_hp *w = &hp->layers[l < hp->n_layers ? l : 0];
    const char *name = world == SOURCE_GGUF ? r->gguf : r->hf;
    int n = r->count ? hparams_dim(hp, r->count, l) : 1;
    bool many = name && strchr(name, '#');
    uint64_t f = world == SOURCE_HF ? r->flags : 0;

    *y = (struct layout){ .count = many ? 1 : n,
                          .tensors = many ? n : 1,
                          .rows = hparams_dim(hp, r->rows, l),
                          .vector = r->cols == DIM_NONE,
                          .heads = w->n_heads,
                          .kv_heads = w->n_kv_heads };
    y->cols = y->vector ? 1 : hparams_dim(hp, r->cols, l);
    y->transposed = f & ROW_TRANSPOSED && !y->vector;
    y->mx = f & ROW_MX;
    if (f & ROW_GROUPS && w->n_kv_heads > 1) y->order = ORDER_GROUPS;
    if (f & ROW_ALTERNATE) y->order = ORDER_ALTERNATE;
    set_parts(y, hp, r, l);
    if (r->count && !many) y->dims[y->n_dims++] = n;
    y->dims[y->n_dims++] = y->transposed ? y->cols : y->rows;
    if (!y->vector) y->dims[y->n_dims++] = y->transposed ? y->rows : y->cols;
    y->ids = r->kind == ROW_IDS;
    y->loose = r->kind == ROW_FLAT || r->kind == ROW_PLANE;
    set_order(y, hp, r, l);
    if (!y->mx) return;
    y->dims[y->n_dims - 1] = y->cols / MX_BLOCK;
    y->dims[y->n_dims++] = MX_BLOCK / 2;
}

enum dtype layout_type(const struct layout *y, const struct source_tensor *t)
{
    return y->mx ? DT_MXFP4 : t->type;
}

/* "X_blocks" has its scales in "X_scales", one byte per block of 32. */
static bool find_scales(struct layout *y, const struct source *src, const struct source_tensor *t)
{
    char name[256];
    bool fits;

    if (!y->mx) return true;
    if (y->cols % MX_BLOCK || !str_ends(t->name, STR("_blocks"))) return false;
    snprintf(name, sizeof name, "%.*s_scales", (int)t->name.n - 7, t->name.p);
    y->scales = source_find(src, name);
    fits = y->scales && y->scales->type == DT_U8 && y->scales->n_dims == y->n_dims - 1;
    for (int i = 0; fits && i < y->n_dims - 1; i++) fits = y->scales->dims[i] == y->dims[i];
    return fits;
}

/* Only orders that GGUF stores as the folder does; the others are resolved by layout_row. */
void layout_plain(struct layout *y, const struct hparams *hp, const struct tensor_row *r, int l)
{
    if (y->order < ORDER_PLANE || y->order == ORDER_QKVZ ||
        (y->order == ORDER_KV_B && !(r->gguf && r->hf)))
        return;
    if (y->order == ORDER_KV_B) y->per_weight = 0, y->each = y->values = 0;
    y->order = ORDER_PLAIN;
    y->vector = r->cols == DIM_NONE;
    y->rows = hparams_dim(hp, r->rows, l);
    y->cols = y->vector ? 1 : hparams_dim(hp, r->cols, l);
    y->n_parts = 1;
    y->part[0] = y->rows;
}

/* Exact shape first, then the tolerated variants with the same number of elements. */
bool layout_fits(const struct layout *y, const struct source_tensor *t, bool *flipped)
{
    int64_t n = 1, want = 1;
    bool same = t->n_dims == y->n_dims;

    *flipped = false;
    for (int i = 0; i < t->n_dims; i++) n *= t->dims[i]; /* its bytes are in the file */
    for (int i = 0; i < y->n_dims; i++)
        if (__builtin_mul_overflow(want, y->dims[i], &want)) return false;
    for (int i = 0; same && i < y->n_dims; i++) same = t->dims[i] == y->dims[i];
    if (same) return true;
    if (n != want) return false;
    if (y->loose) return t->n_dims < 2 || t->dims[0] == y->dims[0] || y->n_dims == 1;
    /* Vectors, and matrices with one row, may have more or fewer dimensions of 1. */
    if (y->vector && (t->n_dims < 2 || n == 1)) return true;
    if (y->rows == 1 && y->count == 1 && t->n_dims == 1) return true;
    *flipped = t->n_dims == 2 && y->n_dims == 2 && t->dims[0] == y->dims[1] &&
               t->dims[1] == y->dims[0] && !dtype_info((int)t->type)->quantized;
    return *flipped;
}

/* For messages. */
void layout_text(const struct layout *y, char *out, size_t cap)
{
    size_t n = (size_t)snprintf(out, cap, "[");

    for (int i = 0; i < y->n_dims && n < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, "%s%lld", i ? ", " : "", (long long)y->dims[i]);
    if (n < cap) snprintf(out + n, cap - n, "]");
}

/* The types that a tensor of this layout may have, as text for messages; NULL: t's type is one.
 * Vectors and transposed matrices are read element by element, which blocks do not allow. */
static const char *expected_type(const struct layout *y, const struct source_tensor *t)
{
    const struct dtype_info *d = dtype_info((int)t->type);
    bool is_float = t->type == DT_F32 || t->type == DT_F16 || t->type == DT_BF16 ||
                    t->type == DT_F64 || t->type == DT_F8_E4M3 || t->type == DT_F8_E5M2;

    if (y->ids) return t->type == DT_I64 || t->type == DT_I32 ? NULL : "I64 or I32";
    if (y->mx) return t->type == DT_U8 ? NULL : "U8, which holds MXFP4 numbers";
    if (is_float || (t->quant && !y->vector && !y->transposed)) return NULL;
    if (y->vector) return "F32, F16, BF16 or another floating-point type: it is a vector";
    if (y->transposed) return "F32, F16, BF16 or another floating-point type: it is transposed";
    if (d && d->quantized && quant_can_decode(t->type) && y->cols % d->block == 0) return NULL;
    return "a floating-point or quantized type";
}

static int fail_shape(const struct layout *y, const struct source *src,
                      const struct source_tensor *t, struct err *e)
{
    char want[64], have[128] = "[";

    for (int i = 0; i < t->n_dims; i++) {
        size_t n = strlen(have);
        snprintf(have + n, sizeof have - n, "%s%lld", i ? ", " : "", (long long)t->dims[i]);
    }
    layout_text(y, want, sizeof want);
    return err_set(e, E_FORMAT, "%s: tensor %.*s is %s], expected %s", source_path(src),
                   STR_ARG(str_take(t->name, 100)), have, want);
}

bool layout_rows_fit(const struct layout *y)
{
    int64_t sum = 0;

    for (int p = 0; p < y->n_parts; p++) sum += y->part[p];
    if (y->order == ORDER_KV_B) return y->rows == y->part[1] + y->per_weight * y->each;
    if (sum != y->rows) return false;
    if (y->order == ORDER_PLAIN) return true;
    for (int p = 0; p < y->n_parts; p++)
        for (int64_t r = 0; r < y->part[p]; r++) {
            int64_t at = layout_row(y, p, r);
            if (at < 0 || at >= y->rows) return false;
        }
    return true;
}

int layout_check(struct layout *y, const struct source *src, const struct source_tensor *t,
                 bool may_flip, struct err *e)
{
    struct str name = str_take(t->name, 100);
    const char *expected;
    bool flipped;
    int rc;

    if (t->quant && (rc = hfquant_check(t->quant, source_path(src), e)) != OK) return rc;
    if (!layout_fits(y, t, &flipped) || (flipped && !may_flip)) return fail_shape(y, src, t, e);
    if (!layout_rows_fit(y))
        return err_set(e, E_FORMAT, "%s: tensor %.*s: its heads are not of one size",
                       source_path(src), STR_ARG(name));
    if (flipped) y->transposed = !y->transposed;
    y->quant = t->quant;
    if ((expected = expected_type(y, t)))
        return err_set(e, E_UNSUPPORTED, "%s: tensor %.*s is %s, expected %s", source_path(src),
                       STR_ARG(name), dtype_name((int)t->type), expected);
    if (!find_scales(y, src, t))
        return err_set(e, E_FORMAT, "%s: tensor %.*s has no tensor of scales of its shape",
                       source_path(src), STR_ARG(name));
    return OK;
}

/* ORDER_GROUPS: the stored row of row r of q, k, v one after the other. */
static int64_t find_grouped_row(const struct layout *y, int64_t r)
{
    int64_t per = y->heads / y->kv_heads, dim = y->part[1] / y->kv_heads, head = r / dim, at;

    if (head < y->heads) at = head / per * (per + 2) + head % per;
    else if (head < y->heads + y->kv_heads) at = (head - y->heads) * (per + 2) + per;
    else at = (head - y->heads - y->kv_heads) * (per + 2) + per + 1;
    return at * dim + r % dim;
}

/* ORDER_QKVZ: the stored row of row r of q, k, v one after the other (part 0), or of the gates. */
static int64_t find_key_head_row(const struct layout *y, int part, int64_t r)
{
    int64_t group = 2 * y->each + 2 * y->values, heads = y->part[1] / y->values,
            keys = heads * y->each;

    if (part == 1) return r / y->values * group + 2 * y->each + y->values + r % y->values;
    if (r < 2 * keys) return r % keys / y->each * group + r / keys * y->each + r % y->each;
    r -= 2 * keys;
    return r / y->values * group + 2 * y->each + r % y->values;
}

int64_t layout_cols(const struct layout *y, int part)
{
    return y->order == ORDER_KV_B && part == 0 ? y->each : y->cols;
}

/* Parts are counted from their own start. */
int64_t layout_row(const struct layout *y, int part, int64_t r)
{
    switch (y->order) {
    case ORDER_PLANE: return r % y->each * (y->rows / y->each) + r / y->each;
    case ORDER_QKVZ: return find_key_head_row(y, part, r);
    case ORDER_KV_B:
        return r / y->values * (y->each + y->values) + y->each +
               r % y->values; /* part 1; part 0 is read by read_keys */
    case ORDER_HEADS:
        if (y->n_parts == 1) part = (int)(r / (y->rows / 2)), r %= y->rows / 2;
        return r / y->each * 2 * y->each + part * y->each + r % y->each;
    default: break;
    }
    if (y->order == ORDER_ALTERNATE) return r * y->n_parts + part;
    for (int i = 0; i < part; i++) r += y->part[i];
    return y->order == ORDER_GROUPS ? find_grouped_row(y, r) : r;
}

bool layout_in_place(const struct layout *y)
{
    return y->order == ORDER_PLAIN && !y->transposed && !y->mx && !y->quant;
}

/* A byte holds elements 2j and 2j + 1 in folders, j and j + 16 in GGUF. */
static void make_mx_block(struct block_mxfp4 *out, uint8_t scale, const uint8_t *in)
{
    uint8_t q[MX_BLOCK];

    for (int j = 0; j < MX_BLOCK / 2; j++) q[2 * j] = in[j] & 15, q[2 * j + 1] = in[j] >> 4;
    out->e = scale;
    for (int j = 0; j < MX_BLOCK / 2; j++) out->qs[j] = (uint8_t)(q[j] | q[j + MX_BLOCK / 2] << 4);
}

/* Repacks the blocks of a row, or decodes and encodes them. */
static void read_mx_row(const struct layout *y, const struct source_tensor *t, size_t row,
                        enum dtype to, void *dst, float *tmp)
{
    size_t n = (size_t)y->cols / MX_BLOCK;
    const uint8_t *q = (const uint8_t *)t->data + row * n * (MX_BLOCK / 2);
    const uint8_t *e = (const uint8_t *)y->scales->data + row * n;

    for (size_t b = 0; b < n; b++) {
        struct block_mxfp4 block;
        make_mx_block(&block, e[b], q + b * (MX_BLOCK / 2));
        if (to == DT_MXFP4) memcpy((char *)dst + b * sizeof block, &block, sizeof block);
        else quant_decode(DT_MXFP4, &block, tmp + b * MX_BLOCK, MX_BLOCK);
    }
    if (to != DT_MXFP4) quant_encode(to, tmp, dst, y->cols);
}

int layout_prepare(struct layout *y, int i, const struct source *src, struct arena *a,
                   int32_t *order, struct err *e)
{
    size_t n = y->quant ? hfquant_order_len(y->quant) : 0;
    struct grouped *g;

    if (!y->quant) return OK;
    g = arena_new(a, struct grouped);
    if (!order && n) order = arena_array(a, n, sizeof *order);
    if (!g || (n && !order)) return err_nomem(e, "the layout of a quantized layer");
    y->group = g;
    return hfquant_prepare(y->quant, i, g, order, source_path(src), e);
}

/* A row of a quantized layer as floats, its columns as the model has them. tmp: layout_room floats
 * behind out. */
static void decode_quant_row(const struct layout *y, int64_t row, float *out, float *tmp)
{
    const struct grouped *g = y->group;
    uint8_t *packed = (uint8_t *)tmp, *codes = packed + (g->row_bytes + 15) / 16 * 16;

    hfquant_pack(y->quant, g, row, 1, packed, g->row_bytes, codes);
    if (!g->order) {
        grouped_decode(g, packed, 0, g->cols, out);
        return;
    }
    for (int c = 0; c < g->cols; c++) grouped_decode(g, packed, c, 1, &out[g->order[c]]);
}

/* Packs a row, or decodes and encodes it. */
static void read_quant_row(const struct layout *y, int64_t row, enum dtype to, void *dst,
                           float *tmp)
{
    if (to == DT_GROUPED) {
        hfquant_pack(y->quant, y->group, row, 1, dst, y->group->row_bytes, (uint8_t *)tmp);
        return;
    }
    decode_quant_row(y, row, tmp, tmp + y->cols + y->each);
    quant_encode(to, tmp, dst, y->cols);
}

/* A row of a transposed tensor: a column of the stored one. */
static void read_transposed(const struct layout *y, const struct source_tensor *t, const char *data,
                            int64_t row, float *out)
{
    size_t size = (size_t)dtype_info((int)t->type)->bytes;

    for (int64_t c = 0; c < y->cols; c++)
        quant_decode(t->type, data + ((size_t)c * (size_t)y->rows + (size_t)row) * size, &out[c],
                     1);
}

/* ORDER_KV_B, part 0: row r of the transposed keys, a head's elements at one index of the latent. */
static void read_keys(const struct layout *y, const struct source_tensor *t, int64_t r,
                      enum dtype to, void *dst, float *tmp)
{
    int64_t head = r / y->cols, at = r % y->cols;
    uint64_t bytes = 0, size = 0;

    dtype_row_bytes(t->type, (uint64_t)y->cols, &bytes);
    for (int64_t c = 0; y->quant && c < y->each; c++) {
        float *out = tmp + y->each;
        decode_quant_row(y, head * (y->each + y->values) + c, out, out + y->cols);
        tmp[c] = out[at];
    }
    for (int64_t c = 0; !y->quant && c < y->each; c++) {
        const char *row =
            (const char *)t->data + (size_t)(head * (y->each + y->values) + c) * bytes;
        if (dtype_row_bytes(t->type, 1, &size)) {
            quant_decode(t->type, row + (size_t)at * size, &tmp[c], 1);
        } else {
            quant_decode(t->type, row, tmp + y->each, y->cols);
            tmp[c] = tmp[y->each + at];
        }
    }
    quant_encode(to, tmp, dst, y->each);
}

/* Rows of the same type are copied; others are decoded to F32 and encoded. */
void layout_read(const struct layout *y, const struct source_tensor *t, int i, int part, int64_t r,
                 enum dtype to, void *dst, float *tmp)
{
    int64_t row = layout_row(y, part, r);
    uint64_t bytes = 0;
    const char *data = t->data;

    if (y->order == ORDER_KV_B && part == 0) {
        read_keys(y, t, r, to, dst, tmp);
        return;
    }
    if (y->transposed) {
        data +=
            (size_t)i * (size_t)y->rows * (size_t)y->cols * (size_t)dtype_info((int)t->type)->bytes;
        read_transposed(y, t, data, row, tmp);
        quant_encode(to, tmp, dst, y->cols);
        return;
    }
    if (y->quant) {
        read_quant_row(y, (int64_t)i * y->rows + row, to, dst, tmp);
        return;
    }
    if (y->mx) {
        read_mx_row(y, t, (size_t)i * (size_t)y->rows + (size_t)row, to, dst, tmp);
        return;
    }
    dtype_row_bytes(t->type, (uint64_t)y->cols, &bytes);
    data += ((size_t)i * (size_t)y->rows + (size_t)row) * bytes;
    if (t->type == to) {
        memcpy(dst, data, bytes);
        return;
    }
    quant_decode(t->type, data, tmp, y->cols);
    quant_encode(to, tmp, dst, y->cols);
}

/* Room for LAYOUT_ROWS rows and one run of stored elements. */
size_t layout_tmp(const struct layout *y)
{
    size_t n = (size_t)y->cols * LAYOUT_ROWS + LAYOUT_ROWS * (size_t)y->n_parts;
    return n > layout_room(y) ? n : layout_room(y);
}

/* Reads the stored rows (columns of the result) one after the other: sequential access. */
static void read_transposed_rows(const struct layout *y, const struct source_tensor *t, int i,
                                 int part, int64_t r, int n, float *tile)
{
    float *run = tile + (size_t)y->cols * LAYOUT_ROWS;
    int64_t first = layout_row(y, part, r), span = layout_row(y, part, r + n - 1) - first + 1;
    size_t size = (size_t)dtype_info((int)t->type)->bytes;
    const char *data = (const char *)t->data + (size_t)i * (size_t)(y->rows * y->cols) * size;

    for (int64_t c = 0; c < y->cols; c++) {
        quant_decode(t->type, data + (size_t)(c * y->rows + first) * size, run, span);
        for (int k = 0; k < n; k++) tile[k * y->cols + c] = run[layout_row(y, part, r + k) - first];
    }
}

void layout_read_rows(const struct layout *y, const struct source_tensor *t, int i, int part,
                      int64_t r, int n, enum dtype to, void *dst, size_t row_bytes, float *tmp)
{
    if (y->transposed && y->order != ORDER_GROUPS) {
        read_transposed_rows(y, t, i, part, r, n, tmp);
        for (int k = 0; k < n; k++)
            quant_encode(to, tmp + k * y->cols, (char *)dst + (size_t)k * row_bytes, y->cols);
        return;
    }
    if (y->quant && to == DT_GROUPED && y->order == ORDER_PLAIN) {
        hfquant_pack(y->quant, y->group, (int64_t)i * y->rows + layout_row(y, part, r), n, dst,
                     row_bytes, (uint8_t *)tmp);
        return;
    }
    for (int k = 0; k < n; k++)
        layout_read(y, t, i, part, r + k, to, (char *)dst + (size_t)k * row_bytes, tmp);
}
