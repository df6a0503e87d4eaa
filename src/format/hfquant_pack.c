/* hfquant_pack.c - rows of quantized layers in the layout of base/grouped.h. Codes first become one
 * byte per column, whatever their layout in the file; then they are ordered and packed. */
#include "format/hfquant_impl.h"

#include <math.h>

/* ---- the one scale of all, and the order of columns ---- */

/* Format readers have no codecs, and this is one number. */
static float half_value(uint16_t h)
{
    int e = h >> 10 & 31, m = h & 1023;
    float v = e == 31 ? NAN : e ? ldexpf((float)(1024 + m), e - 25) : ldexpf((float)m, -24);

    return h & 0x8000 ? -v : v;
}

/* Number i, of F32; else the only one. */
static float read_scalar(const struct source_tensor *t, int64_t i)
{
    const uint8_t *p = t->data;
    uint32_t u = 0;
    uint16_t h = 0;
    float f;

    if (t->type == DT_F32) memcpy(&u, p + i * 4, 4);
    else if (t->type == DT_BF16) memcpy(&h, p, 2), u = (uint32_t)h << 16;
    else if (t->type == DT_F16) {
        memcpy(&h, p, 2);
        return half_value(h);
    } else return p[0] == 255 ? NAN : ldexpf(1, p[0] - 127); /* E8M0 */
    memcpy(&f, &u, 4);
    return f;
}

size_t hfquant_order_len(const struct hfquant_tensor *t) { return t->g_idx ? (size_t)t->cols : 0; }

static int32_t read_group(const struct source_tensor *g_idx, int64_t k)
{
    int32_t v;

    memcpy(&v, (const char *)g_idx->data + (size_t)k * 4, 4);
    return v;
}

bool hfquant_is_ordered(const struct hfquant_tensor *t)
{
    const struct source_tensor *x = t->g_idx;

    if (!x) return true;
    if (x->type != DT_I32 || x->n_dims != 1 || x->dims[0] != t->cols) return false;
    for (int64_t k = 0; k < t->cols; k++)
        if (read_group(x, k) != k / t->form.group) return false;
    return true;
}

static int fail_order(const struct hfquant_tensor *t, const char *path, const char *what, int64_t k,
                      long long v, struct err *e)
{
    return err_set(e, E_FORMAT,
                   "%s: %.*s: %s %lld at column %lld; there are %d groups of %d columns", path,
                   STR_ARG(str_take(t->g_idx->name, 160)), what, v, (long long)k, t->form.n_groups,
                   t->form.group);
}

/* Columns sorted by their group, in each group as they come. NULL in g->order where that changes
 * nothing. The next free place of each group is kept in the group's own first place. */
static int read_order(const struct hfquant_tensor *t, struct grouped *g, int32_t *order,
                      const char *path, struct err *e)
{
    bool same = true;

    for (int64_t k = 0; k < t->cols; k++) {
        int32_t v = read_group(t->g_idx, k);
        if (v < 0 || v >= g->n_groups) return fail_order(t, path, "group", k, v, e);
        same = same && v == k / g->group;
        order[k] = -1;
    }
    if (same) return OK;
    for (int64_t k = 0; k < t->cols; k++) {
        int32_t v = read_group(t->g_idx, k);
        int64_t first = (int64_t)v * g->group, at = first, end = first + g->group;
        if (end > t->cols) end = t->cols;
        /* order[end - 1] counts the group's columns as -2 - n until it gets its own. */
        int32_t *count = &order[end - 1];
        int64_t n = *count >= 0 ? end - first : *count == -1 ? 0 : -2 - *count;
        if (n >= end - first) return fail_order(t, path, "one column too many of group", k, v, e);
        at = first + n;
        if (at < end - 1) *count = (int32_t)(-2 - (n + 1));
        order[at] = (int32_t)k;
    }
    for (int64_t k = 0; k < t->cols; k++)
        if (order[k] < 0)
            return fail_order(t, path, "too few columns of group", k, k / g->group, e);
    g->order = order;
    return OK;
}

int hfquant_prepare(const struct hfquant_tensor *t, int64_t i, struct grouped *out, int32_t *order,
                    const char *path, struct err *e)
{
    *out = t->form;
    if (t->global) {
        float v = read_scalar(t->global, t->global->type == DT_F32 && t->global->bytes > 4 ? i : 0);
        if (t->invert && v == 0)
            return err_set(e, E_FORMAT, "%s: %.*s is 0 and divides", path,
                           STR_ARG(str_take(t->global->name, 160)));
        out->factor = t->invert ? 1 / v : v;
    }
    if (t->store == HFQ_I2_S) /* behind the rows of all matrices */
        memcpy(&out->factor,
               (const char *)t->codes->data + (size_t)(t->count * t->rows) * (size_t)t->cols / 4,
               4);
    if (!t->g_idx) return OK;
    if (t->g_idx->type != DT_I32 || t->g_idx->n_dims != 1 || t->g_idx->dims[0] != t->cols)
        return err_set(e, E_FORMAT, "%s: %.*s is not I32 [%lld]", path,
                       STR_ARG(str_take(t->g_idx->name, 160)), (long long)t->cols);
    return read_order(t, out, order, path, e);
}

/* ---- codes ---- */

static uint32_t word_at(const struct source_tensor *t, size_t i)
{
    uint32_t w;

    memcpy(&w, (const char *)t->data + i * 4, 4);
    return w;
}

/* The nibble of a word that holds column n % 8 (AWQ). */
static int awq_shift(int64_t n)
{
    static const uint8_t nibble[8] = { 0, 4, 1, 5, 2, 6, 3, 7 };
    return nibble[n % 8] * 4;
}

/* Codes of `bits` bits that lie one behind the other in words `step` apart. */
static void read_stream(const struct source_tensor *t, size_t at, size_t step, int bits, int64_t n,
                        uint8_t *q)
{
    uint32_t mask = (1u << bits) - 1;

    if (32 % bits == 0) {
        int per = 32 / bits;
        for (int64_t k = 0; k < n; k += per, at += step) {
            uint32_t w = word_at(t, at);
            int64_t m = n - k < per ? n - k : per;
            for (int64_t i = 0; i < m; i++, w >>= bits) q[k + i] = (uint8_t)(w & mask);
        }
        return;
    }
    for (int64_t k = 0; k < n; k++) {
        int64_t bit = k * bits;
        size_t i = at + (size_t)(bit / 32) * step;
        int low = (int)(bit % 32);
        uint64_t w = word_at(t, i);
        if (low + bits > 32) w |= (uint64_t)word_at(t, i + step) << 32;
        q[k] = (uint8_t)(w >> low & mask);
    }
}

/* n rows of GPTQ's transposed words: a stored row of words at a time. */
static void read_gptq(const struct hfquant_tensor *t, int64_t row, int n, uint8_t *q)
{
    int per = 32 / t->bits;
    uint32_t mask = (1u << t->bits) - 1;

    if (32 % t->bits) {
        for (int j = 0; j < n; j++)
            read_stream(t->codes, (size_t)(row + j), (size_t)t->rows, t->bits, t->cols,
                        q + (size_t)j * (size_t)t->cols);
        return;
    }
    for (int64_t k = 0; k < t->cols; k += per)
        for (int j = 0; j < n; j++) {
            uint32_t w = word_at(t->codes, (size_t)(k / per * t->rows + row + j));
            uint8_t *to = q + (size_t)j * (size_t)t->cols + k;
            for (int i = 0; i < per; i++, w >>= t->bits) to[i] = (uint8_t)(w & mask);
        }
}

static void read_awq(const struct hfquant_tensor *t, int64_t row, int n, uint8_t *q)
{
    size_t words = (size_t)t->rows / 8;

    for (int64_t k = 0; k < t->cols; k++)
        for (int j = 0; j < n; j++) {
            int64_t r = row + j;
            uint32_t w = word_at(t->codes, (size_t)k * words + (size_t)(r / 8));
            q[(size_t)j * (size_t)t->cols + (size_t)k] = w >> awq_shift(r) & 15;
        }
}

static void read_nibbles(const uint8_t *p, int64_t cols, uint8_t *q)
{
    for (int64_t k = 0; k < cols; k += 2) q[k] = p[k / 2] & 15, q[k + 1] = p[k / 2] >> 4;
}

static void read_bytes(const uint8_t *p, int64_t cols, uint8_t flip, uint8_t *q)
{
    for (int64_t k = 0; k < cols; k++) q[k] = p[k] ^ flip;
}

/* A row of NVFP4, Q2_0 or I2_S blocks. The code 3 of I2_S stands for 0, as 1 does. */
static void read_blocks(const struct hfquant_tensor *t, size_t row, uint8_t *q)
{
    int block = t->store == HFQ_I2_S ? 128 : 64, bytes = t->store == HFQ_I2_S    ? 32
                                                         : t->store == HFQ_NVFP4 ? 36
                                                                                 : 18;
    const uint8_t *p = (const uint8_t *)t->codes->data + row * (size_t)(t->cols / block * bytes);

    for (int64_t k = 0; k < t->cols; k += block, p += bytes)
        for (int j = 0; j < block; j++) {
            uint8_t v;
            if (t->store == HFQ_NVFP4) v = p[4 + j / 16 * 8 + j % 8] >> (j % 16 < 8 ? 0 : 4) & 15;
            else if (t->store == HFQ_Q2_0) v = p[2 + j / 4] >> 2 * (j % 4) & 3;
            else v = p[j % 32] >> (6 - 2 * (j / 32)) & 3;
            q[k + j] = t->store == HFQ_I2_S && v == 3 ? 1 : v;
        }
}

/* One byte per column of n rows, in the order of the file. */
static void read_codes(const struct hfquant_tensor *t, int64_t row, int n, uint8_t *q)
{
    const uint8_t *p = t->codes->data;
    size_t cols = (size_t)t->cols;

    if (t->store == HFQ_GPTQ) {
        read_gptq(t, row, n, q);
        return;
    }
    if (t->store == HFQ_AWQ) {
        read_awq(t, row, n, q);
        return;
    }
    for (int j = 0; j < n; j++, q += cols) {
        size_t r = (size_t)(row + j), quarter = (size_t)t->rows / 4;
        switch (t->store) {
        case HFQ_WORDS:
            read_stream(t->codes, r * (size_t)t->codes->dims[1], 1, t->bits, t->cols, q);
            break;
        case HFQ_NVFP4:
        case HFQ_Q2_0:
        case HFQ_I2_S: read_blocks(t, r, q); break;
        case HFQ_NIBBLES: read_nibbles(p + r * cols / 2, t->cols, q); break;
        case HFQ_BITNET:
            for (size_t k = 0; k < cols; k++)
                q[k] = p[r % quarter * cols + k] >> 2 * (r / quarter) & 3;
            break;
        default: read_bytes(p + r * cols, t->cols, t->codes->type == DT_I8 ? 0x80 : 0, q);
        }
    }
}

/* ---- scales and zero points ---- */

static uint8_t read_zero(const struct hfquant_tensor *t, int64_t row, int64_t group)
{
    int64_t n = t->form.n_groups, bit = row * t->bits, words = (t->rows * t->bits + 31) / 32;
    uint32_t mask = (1u << t->bits) - 1;
    size_t at;
    uint64_t w;

    switch (t->zero) {
    case HFQ_ZERO_AWQ:
        return word_at(t->zeros, (size_t)(group * (t->rows / 8) + row / 8)) >> awq_shift(row) & 15;
    case HFQ_ZERO_WORDS:
        return word_at(t->zeros, (size_t)(bit / 32 * n + group)) >> bit % 32 & mask;
    case HFQ_ZERO_GPTQ:
        at = (size_t)(group * words + bit / 32);
        w = word_at(t->zeros, at);
        if (bit % 32 + t->bits > 32) w |= (uint64_t)word_at(t->zeros, at + 1) << 32;
        return (uint8_t)(w >> bit % 32 & mask);
    default:
        return (uint8_t)(((const uint8_t *)t->zeros->data)[row * n + group] +
                         (1u << (t->bits - 1)));
    }
}

static void put_scales(const struct hfquant_tensor *t, const struct grouped *g, int64_t row,
                       uint8_t *dst)
{
    size_t size = (size_t)group_scale_bytes(g->scale), n = (size_t)g->n_groups;
    const uint8_t *p = t->scales && size ? t->scales->data : NULL;
    int64_t per = (t->rows + t->block_rows - 1) / t->block_rows; /* rows of scales of a matrix */
    size_t r = (size_t)(row / t->rows * per + row % t->rows / t->block_rows);

    if (t->store == HFQ_NVFP4) { /* E4M3 without a sign, whose NaN counts as 0 */
        const uint8_t *b = (const uint8_t *)t->codes->data + (size_t)row * (n / 4) * 36;
        for (size_t i = 0; i < n; i++) {
            uint8_t e = b[i / 4 * 36 + i % 4] & 0x7f;
            dst[g->scales_at + i] = e == 0x7f ? 0 : e;
        }
    } else if (t->store == HFQ_Q2_0) {
        const uint8_t *b = (const uint8_t *)t->codes->data + (size_t)row * n * 18;
        for (size_t i = 0; i < n; i++) memcpy(dst + g->scales_at + i * 2, b + i * 18, 2);
    }
    if (p && !t->by_group) memcpy(dst + g->scales_at, p + r * n * size, n * size);
    for (size_t i = 0; p && t->by_group && i < n; i++)
        memcpy(dst + g->scales_at + i * size, p + (i * (size_t)t->rows + (size_t)row) * size, size);
    for (size_t i = 0; g->zeros && i < n; i++) dst[g->zeros_at + i] = read_zero(t, row, (int64_t)i);
}

/* ---- packing ---- */

/* 16 bytes of codes hold `chunk` columns, 16 apart; the last chunk is padded with zeros. */
static void pack_codes(const uint8_t *q, int cols, int chunk, uint8_t *dst)
{
    int bits = chunk == 64 ? 2 : 4, c = 0;

    for (; c + chunk <= cols; c += chunk, dst += 16, q += chunk)
        for (int j = 0; j < 16; j++)
            dst[j] = chunk == 32
                         ? (uint8_t)(q[j] | q[j + 16] << 4)
                         : (uint8_t)(q[j] | q[j + 16] << 2 | q[j + 32] << 4 | q[j + 48] << 6);
    if (c == cols) return;
    memset(dst, 0, 16);
    for (int i = 0; i < cols - c; i++) dst[i % 16] |= (uint8_t)(q[i] << i / 16 * bits);
}

void hfquant_pack(const struct hfquant_tensor *t, const struct grouped *g, int64_t row, int n,
                  void *dst, size_t stride, uint8_t *tmp)
{
    uint8_t *sorted = tmp + (size_t)n * (size_t)t->cols, *out = dst;
    int chunk = group_chunk(g->code);

    read_codes(t, row, n, tmp);
    for (int j = 0; j < n; j++, out += stride) {
        const uint8_t *q = tmp + (size_t)j * (size_t)t->cols;
        if (g->order) {
            for (int64_t k = 0; k < t->cols; k++) sorted[k] = q[g->order[k]];
            q = sorted;
        }
        if (chunk) pack_codes(q, g->cols, chunk, out);
        else memcpy(out, q, (size_t)t->cols);
        put_scales(t, g, row + j, out);
    }
}
