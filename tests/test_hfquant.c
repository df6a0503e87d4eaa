/* Layers of quantized folders (format/hfquant.h): every layout, in odd shapes, against values
 * computed from the numbers before they were packed; and layers whose tensors are missing or do
 * not fit.
 *
 * The files are made in memory. The folders of ../shared/fixtures/quant are read by
 * test_quantfolders. */
#include "gguf_bytes.h"
#include "support.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/rng.h"
#include "format/hfquant.h"
#include "kernel/quant.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define N(a) (sizeof(a) / sizeof(a)[0])

/* A layer before packing: value[n][k] = (q - z) * s, by group[k]. */
struct layer {
    int rows, cols, group, n_groups, bits;
    uint8_t *q, *z; /* [rows][cols], [rows][n_groups] */
    float *s;       /* [rows][n_groups]; a number that all types of scales have exactly */
    int32_t *of;    /* [cols]: the group of a column */
};

static void layer_init(struct layer *l, int rows, int cols, int group, int bits, bool shuffle)
{
    struct rng r;

    *l = (struct layer){ rows, cols, group, (cols + group - 1) / group, bits, 0, 0, 0, 0 };
    rng_seed(&r, (uint64_t)(rows * 31 + cols * 7 + group + bits));
    l->q = mem_alloc((size_t)rows * (size_t)cols);
    l->z = mem_alloc((size_t)(rows * l->n_groups));
    l->s = mem_array((size_t)(rows * l->n_groups), sizeof *l->s);
    l->of = mem_array((size_t)cols, sizeof *l->of);
    for (int i = 0; i < rows * cols; i++) l->q[i] = (uint8_t)(rng_u64(&r) & ((1u << bits) - 1));
    for (int i = 0; i < rows * l->n_groups; i++) {
        l->z[i] = (uint8_t)(rng_u64(&r) & ((1u << bits) - 1));
        l->s[i] = (float)(8 + (rng_u64(&r) & 7)) * 0x1p-9f;
    }
    for (int k = 0; k < cols; k++) l->of[k] = k / group;
    for (int k = cols - 1; shuffle && k > 0; k--) {
        int j = (int)(rng_u64(&r) % (uint64_t)(k + 1));
        int32_t v = l->of[k];
        l->of[k] = l->of[j], l->of[j] = v;
    }
}

static void layer_release(struct layer *l)
{
    mem_free(l->q);
    mem_free(l->z);
    mem_free(l->s);
    mem_free(l->of);
}

/* ---- a file in memory ---- */

struct file {
    struct buf head, data, all;
    struct safetensors *tensors;
    struct hfconfig *config;
    struct hfquant *quant;
};

static void add_tensor(struct file *f, const char *name, const char *type, int a, int b,
                       const void *p, size_t bytes)
{
    buf_printf(&f->head, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", f->head.n ? "," : "{", name,
               type);
    if (a >= 0) buf_printf(&f->head, "%d", a);
    if (b >= 0) buf_printf(&f->head, ",%d", b);
    buf_printf(&f->head, "],\"data_offsets\":[%zu,%zu]}", f->data.n, f->data.n + bytes);
    buf_add(&f->data, p, bytes);
}

static int file_open(struct file *f, const char *quantization, struct err *e)
{
    struct str text[HFCONFIG_N_FILES] = { 0 };
    struct buf config = { 0 };
    uint64_t n;
    int rc;

    buf_puts(&f->head, "}");
    while (f->head.n % 8) buf_putc(&f->head, ' ');
    n = f->head.n;
    buf_add(&f->all, &n, 8);
    buf_add(&f->all, f->head.p, f->head.n);
    buf_add(&f->all, f->data.p, f->data.n);
    assert_int_equal(safetensors_parse(&f->tensors, f->all.p, f->all.n, "sample", e), OK);
    buf_printf(&config, "{\"model_type\":\"llama\",\"quantization_config\":{%s}}", quantization);
    text[HFCONFIG_MODEL] = buf_str(&config);
    assert_int_equal(hfconfig_parse(&f->config, text, e), OK);
    buf_release(&config);
    rc = hfquant_open(&f->quant, f->config, f->tensors, e);
    return rc;
}

static void file_close(struct file *f)
{
    hfquant_close(f->quant);
    hfconfig_close(f->config);
    safetensors_close(f->tensors);
    buf_release(&f->head);
    buf_release(&f->data);
    buf_release(&f->all);
    *f = (struct file){ 0 };
}

/* Sets `bits` bits at bit position `at` of a row of words. */
static void put_bits(uint32_t *words, int64_t at, int bits, uint32_t v)
{
    for (int i = 0; i < bits; i++)
        if (v >> i & 1) words[(at + i) / 32] |= 1u << (at + i) % 32;
}

static uint32_t *new_words(size_t n)
{
    uint32_t *w = mem_array(n, sizeof *w);
    assert_non_null(w);
    return w;
}

/* Scales as a type, [row][group] or [group][row]. */
static void add_scales(struct file *f, const struct layer *l, const char *name, const char *type,
                       bool by_group)
{
    struct buf b = { 0 };

    for (int i = 0; i < l->rows * l->n_groups; i++) {
        int n = by_group ? i % l->rows : i / l->n_groups,
            g = by_group ? i / l->rows : i % l->n_groups;
        float v = l->s[n * l->n_groups + g];
        uint16_t h = strcmp(type, "F16") == 0 ? f32_to_f16(v) : f32_to_bf16(v);
        if (strcmp(type, "F32") == 0) buf_add(&b, &v, 4);
        else buf_add(&b, &h, 2);
    }
    add_tensor(f, name, type, by_group ? l->n_groups : l->rows, by_group ? l->rows : l->n_groups,
               b.p, b.n);
    buf_release(&b);
}

/* Rows of the layer as hfquant reads them, against value(l, n, k). */
typedef float value_fn(const struct layer *l, int n, int k);

static void check_layer(struct file *f, const struct layer *l, value_fn *value, const char *scheme)
{
    const struct source_tensor *t = hfquant_find(f->quant, STR("X.weight"));
    struct grouped g;
    struct err e;
    char text[96];

    assert_non_null(t);
    hfquant_describe(t->quant, text, sizeof text);
    if (!strstr(text, scheme)) print_message("%s, expected %s\n", text, scheme);
    assert_non_null(strstr(text, scheme));
    if (hfquant_check(t->quant, "sample", &e) != OK) print_message("%s\n", e.msg);
    assert_int_equal(hfquant_check(t->quant, "sample", &e), OK);
    assert_true(t->type == DT_GROUPED && t->dims[0] == l->rows && t->dims[1] == l->cols);
    size_t n_order = hfquant_order_len(t->quant);
    int32_t *order = mem_array(n_order + 1, sizeof *order);
    if (hfquant_prepare(t->quant, 0, &g, order, "sample", &e) != OK) print_message("%s\n", e.msg);
    assert_int_equal(hfquant_prepare(t->quant, 0, &g, order, "sample", &e), OK);
    enum { AT_ONCE = 5 };
    char *rows = mem_alloc(g.row_bytes * AT_ONCE);
    uint8_t *tmp = mem_alloc((size_t)(AT_ONCE + 1) * (size_t)l->cols);
    float *out = mem_array((size_t)l->cols, sizeof *out);
    for (int n = 0; n < l->rows; n += AT_ONCE) {
        int m = l->rows - n < AT_ONCE ? l->rows - n : AT_ONCE;
        hfquant_pack(t->quant, &g, n, m, rows, g.row_bytes, tmp);
        for (int j = 0; j < m; j++) {
            grouped_decode(&g, rows + (size_t)j * g.row_bytes, 0, l->cols, out);
            for (int k = 0; k < l->cols; k++) {
                int at = g.order ? g.order[k] : k;
                if (out[k] != value(l, n + j, at))
                    print_message("%s: [%d][%d]: %g, expected %g\n", text, n + j, at,
                                  (double)out[k], (double)value(l, n + j, at));
                assert_true(out[k] == value(l, n + j, at));
            }
        }
    }
    mem_free(rows);
    mem_free(tmp);
    mem_free(out);
    mem_free(order);
}

static float affine(const struct layer *l, int n, int k)
{
    int g = n * l->n_groups + l->of[k];
    return (float)((int)l->q[n * l->cols + k] - (int)l->z[g]) * l->s[g];
}

static float affine_plus_one(const struct layer *l, int n, int k)
{
    int g = n * l->n_groups + l->of[k];
    return (float)((int)l->q[n * l->cols + k] - (int)l->z[g] - 1) * l->s[g];
}

static float centred(const struct layer *l, int n, int k)
{
    int g = n * l->n_groups + l->of[k];
    return (float)((int)l->q[n * l->cols + k] - (1 << (l->bits - 1))) * l->s[g];
}

/* ---- GPTQ and AWQ ---- */

static void add_gptq(struct file *f, const struct layer *l, bool g_idx)
{
    int words = (l->cols * l->bits + 31) / 32, zwords = (l->rows * l->bits + 31) / 32;
    uint32_t *w = new_words((size_t)(words * l->rows)),
             *z = new_words((size_t)(zwords * l->n_groups));
    uint32_t *one = new_words((size_t)words);

    for (int n = 0; n < l->rows; n++) {
        memset(one, 0, (size_t)words * 4);
        for (int k = 0; k < l->cols; k++)
            put_bits(one, (int64_t)k * l->bits, l->bits, l->q[n * l->cols + k]);
        for (int i = 0; i < words; i++) w[i * l->rows + n] = one[i];
        for (int g = 0; g < l->n_groups; g++)
            put_bits(z + g * zwords, (int64_t)n * l->bits, l->bits, l->z[n * l->n_groups + g]);
    }
    add_tensor(f, "X.qweight", "I32", words, l->rows, w, (size_t)(words * l->rows) * 4);
    add_tensor(f, "X.qzeros", "I32", l->n_groups, zwords, z, (size_t)(zwords * l->n_groups) * 4);
    add_scales(f, l, "X.scales", "F16", true);
    if (g_idx) add_tensor(f, "X.g_idx", "I32", l->cols, -1, l->of, (size_t)l->cols * 4);
    mem_free(one);
    mem_free(w);
    mem_free(z);
}

static void check_gptq(int rows, int cols, int group, int bits, bool shuffle, bool g_idx, bool v2)
{
    struct file f = { 0 };
    struct layer l;
    char config[200];
    struct err e;

    layer_init(&l, rows, cols, group, bits, shuffle);
    add_gptq(&f, &l, g_idx);
    snprintf(config, sizeof config,
             "\"quant_method\":\"gptq\",\"bits\":%d,\"group_size\":%d,\"checkpoint_format\":\"%s\"",
             bits, group == cols ? -1 : group, v2 ? "gptq_v2" : "gptq");
    assert_int_equal(file_open(&f, config, &e), OK);
    check_layer(&f, &l, v2 ? affine : affine_plus_one, "gptq: int");
    file_close(&f);
    layer_release(&l);
}

static void gptq_layers_are_read(void **state)
{
    (void)state;
    check_gptq(24, 96, 32, 4, false, true, false);
    check_gptq(40, 128, 64, 4, false, false, true);
    check_gptq(16, 64, 16, 2, true, true, false);
    check_gptq(20, 80, 80, 8, false, true, true);
    check_gptq(12, 96, 24, 8, true, true, false);
    check_gptq(32, 96, 32, 3, false, true, false);
    check_gptq(64, 128, 128, 2, false, true, false);
    check_gptq(8, 104, 32, 4, true, true, true); /* the last group is shorter */
}

static void awq_layers_are_read(void **state)
{
    static const int column[8] = { 0, 2, 4, 6, 1, 3, 5, 7 }; /* of nibble i */
    static const int shapes[][3] = {
        { 16, 96, 32 }, { 40, 128, 64 }, { 8, 72, 72 }, { 24, 48, 16 }
    };

    (void)state;
    for (size_t i = 0; i < N(shapes); i++) {
        struct file f = { 0 };
        struct layer l;
        struct err e;
        char config[160];
        layer_init(&l, shapes[i][0], shapes[i][1], shapes[i][2], 4, false);
        int words = l.rows / 8;
        uint32_t *w = new_words((size_t)(l.cols * words)),
                 *z = new_words((size_t)(l.n_groups * words));
        for (int b = 0; b < words; b++)
            for (int k = 0; k < 8; k++) {
                int n = 8 * b + column[k];
                for (int c = 0; c < l.cols; c++)
                    w[c * words + b] |= (uint32_t)l.q[n * l.cols + c] << 4 * k;
                for (int g = 0; g < l.n_groups; g++)
                    z[g * words + b] |= (uint32_t)l.z[n * l.n_groups + g] << 4 * k;
            }
        add_tensor(&f, "X.qweight", "I32", l.cols, words, w, (size_t)(l.cols * words) * 4);
        add_tensor(&f, "X.qzeros", "I32", l.n_groups, words, z, (size_t)(l.n_groups * words) * 4);
        add_scales(&f, &l, "X.scales", "F16", true);
        snprintf(config, sizeof config,
                 "\"quant_method\":\"awq\",\"bits\":4,\"group_size\":%d,\"version\":\"gemm\"",
                 l.group);
        assert_int_equal(file_open(&f, config, &e), OK);
        check_layer(&f, &l, affine, "awq: int4");
        file_close(&f);
        mem_free(w);
        mem_free(z);
        layer_release(&l);
    }
}

/* ---- compressed-tensors ---- */

static void add_words(struct file *f, const struct layer *l, const char *scale, bool zeros,
                      bool g_idx)
{
    int words = (l->cols * l->bits + 31) / 32, zwords = (l->rows * l->bits + 31) / 32;
    uint32_t *w = new_words((size_t)(words * l->rows)),
             *z = new_words((size_t)(zwords * l->n_groups));
    uint32_t *one = new_words((size_t)zwords);
    int64_t shape[2] = { l->rows, l->cols };

    for (int n = 0; n < l->rows; n++)
        for (int k = 0; k < l->cols; k++)
            put_bits(w + n * words, (int64_t)k * l->bits, l->bits, l->q[n * l->cols + k]);
    for (int g = 0; g < l->n_groups; g++) {
        memset(one, 0, (size_t)zwords * 4);
        for (int n = 0; n < l->rows; n++)
            put_bits(one, (int64_t)n * l->bits, l->bits, l->z[n * l->n_groups + g]);
        for (int i = 0; i < zwords; i++) z[i * l->n_groups + g] = one[i];
    }
    add_tensor(f, "X.weight_packed", "I32", l->rows, words, w, (size_t)(words * l->rows) * 4);
    add_tensor(f, "X.weight_shape", "I64", 2, -1, shape, sizeof shape);
    add_scales(f, l, "X.weight_scale", scale, false);
    if (zeros)
        add_tensor(f, "X.weight_zero_point", "I32", zwords, l->n_groups, z,
                   (size_t)(zwords * l->n_groups) * 4);
    if (g_idx) add_tensor(f, "X.weight_g_idx", "I32", l->cols, -1, l->of, (size_t)l->cols * 4);
    mem_free(one);
    mem_free(w);
    mem_free(z);
}

#define CT(weights)                                                                        \
    "\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"group_0\":{\"weights\":" \
    "{" weights "}}}"

static void packed_layers_are_read(void **state)
{
    static const struct {
        int rows, cols, group, bits;
        const char *scale;
        bool zeros, shuffle;
    } all[] = {
        { 9, 96, 32, 4, "BF16", false, false }, { 13, 128, 128, 4, "F16", true, false },
        { 21, 80, 16, 4, "BF16", true, true },  { 7, 40, 40, 8, "BF16", false, false },
        { 10, 72, 24, 8, "F32", true, false },  { 6, 100, 50, 4, "BF16", false, false },
        { 17, 64, 32, 2, "F16", true, false },
    };

    (void)state;
    for (size_t i = 0; i < N(all); i++) {
        struct file f = { 0 };
        struct layer l;
        struct err e;
        char config[240];
        layer_init(&l, all[i].rows, all[i].cols, all[i].group, all[i].bits, all[i].shuffle);
        add_words(&f, &l, all[i].scale, all[i].zeros, all[i].shuffle);
        snprintf(config, sizeof config, CT("\"num_bits\":%d,\"group_size\":%d,\"type\":\"int\""),
                 l.bits, l.group);
        assert_int_equal(file_open(&f, config, &e), OK);
        check_layer(&f, &l, all[i].zeros ? affine : centred, "compressed-tensors: int");
        file_close(&f);
        layer_release(&l);
    }
}

/* Two config_groups: the layer says by its shape which one it is of. */
static void groups_of_different_bits_are_told_apart(void **state)
{
    (void)state;
    for (int bits = 4; bits <= 8; bits += 4) {
        struct file f = { 0 };
        struct layer l;
        struct err e;
        layer_init(&l, 8, 96, bits == 4 ? 32 : 48, bits, false);
        add_words(&f, &l, "BF16", false, false);
        assert_int_equal(
            file_open(&f,
                      "\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"group_0\":{"
                      "\"weights\":{\"num_bits\":4,\"group_size\":32}},\"group_1\":{\"weights\":{"
                      "\"num_bits\":8,\"group_size\":48}}}",
                      &e),
            OK);
        check_layer(&f, &l, centred, bits == 4 ? "int4" : "int8");
        file_close(&f);
        layer_release(&l);
    }
}

static float signed_bytes(const struct layer *l, int n, int k)
{
    int g = n * l->n_groups + l->of[k];
    return (float)(int8_t)l->q[n * l->cols + k] * l->s[g];
}

static float e4m3_value(const struct layer *l, int n, int k)
{
    float v;
    quant_decode(DT_F8_E4M3, &l->q[n * l->cols + k], &v, 1);
    return v * l->s[n * l->n_groups + l->of[k]];
}

/* Codes without the NaN. */
static void layer_bytes(struct layer *l, int rows, int cols, int group)
{
    layer_init(l, rows, cols, group, 8, false);
    for (int i = 0; i < rows * cols; i++)
        if ((l->q[i] & 0x7f) == 0x7f) l->q[i] = 1;
}

static void byte_layers_are_read(void **state)
{
    static const struct {
        const char *type, *name, *scale, *config;
        int group; /* of 56 columns */
    } all[] = {
        { "I8", "X.weight_scale", "BF16", CT("\"num_bits\":8"), 56 },
        { "I8", "X.weight_scale", "F32", CT("\"num_bits\":8,\"group_size\":8"), 8 },
        { "F8_E4M3", "X.weight_scale", "BF16", CT("\"num_bits\":8"), 56 },
        { "F8_E4M3", "X.weight_scale", "F32", "\"quant_method\":\"fbgemm_fp8\"", 56 },
    };

    (void)state;
    for (size_t i = 0; i < N(all); i++) {
        struct file f = { 0 };
        struct layer l;
        struct err e;
        layer_bytes(&l, 11, 56, all[i].group);
        add_tensor(&f, "X.weight", all[i].type, l.rows, l.cols, l.q, (size_t)(l.rows * l.cols));
        add_scales(&f, &l, all[i].name, all[i].scale, false);
        assert_int_equal(file_open(&f, all[i].config, &e), OK);
        check_layer(&f, &l, all[i].type[0] == 'I' ? signed_bytes : e4m3_value,
                    all[i].group == 56 ? "scales of rows" : "groups of 8");
        file_close(&f);
        layer_release(&l);
    }
}

/* Blocks whose last rows and columns are cut off, in three types of scales. */
static void blocks_of_scales_are_read(void **state)
{
    static const char *const types[] = { "F32", "BF16", "F8_E8M0" };
    enum { ROWS = 37, COLS = 70, BLOCK = 16, A = 3, B = 5 };

    (void)state;
    for (size_t i = 0; i < N(types); i++) {
        struct file f = { 0 };
        struct layer l;
        struct err e;
        struct buf b = { 0 };
        layer_bytes(&l, ROWS, COLS, BLOCK);
        float s[A][B];
        for (int a = 0; a < A; a++)
            for (int k = 0; k < B; k++) s[a][k] = ldexpf(1, a + k - 6);
        for (int a = 0; a < A * B; a++) {
            float v = s[a / B][a % B];
            uint16_t h = f32_to_bf16(v);
            uint8_t x = (uint8_t)(a / B + a % B - 6 + 127);
            if (i == 0) buf_add(&b, &v, 4);
            else if (i == 1) buf_add(&b, &h, 2);
            else buf_add(&b, &x, 1);
        }
        for (int n = 0; n < ROWS; n++)
            for (int g = 0; g < l.n_groups; g++) l.s[n * l.n_groups + g] = s[n / BLOCK][g];
        add_tensor(&f, "X.weight", "F8_E4M3", ROWS, COLS, l.q, ROWS * COLS);
        add_tensor(&f, i == 2 ? "X.scale" : "X.weight_scale_inv", types[i], A, B, b.p, b.n);
        assert_int_equal(
            file_open(&f, "\"quant_method\":\"fp8\",\"weight_block_size\":[16,16]", &e), OK);
        check_layer(&f, &l, e4m3_value, "blocks of 16 x 16");
        file_close(&f);
        buf_release(&b);
        layer_release(&l);
    }
}

static void one_scale_for_all_is_read(void **state)
{
    static const char *const names[] = { "X.weight_scale_inv", "X.weight_scale",
                                         "X.qscale_weight" };

    (void)state;
    for (size_t i = 0; i < N(names); i++) {
        struct file f = { 0 };
        struct layer l;
        struct err e;
        uint16_t h = f32_to_bf16(0.375f);
        layer_bytes(&l, 5, 33, 33);
        for (int n = 0; n < l.rows; n++) l.s[n] = 0.375f;
        add_tensor(&f, "X.weight", "F8_E4M3", l.rows, l.cols, l.q, (size_t)(l.rows * l.cols));
        add_tensor(&f, names[i], "BF16", i ? 1 : -1, -1, &h, 2);
        add_tensor(&f, "X.activation_scale", "BF16", -1, -1, &h, 2);
        assert_int_equal(file_open(&f, "\"quant_method\":\"fp8\",\"weight_block_size\":null", &e),
                         OK);
        check_layer(&f, &l, e4m3_value, "one scale");
        file_close(&f);
        layer_release(&l);
    }
}

/* ---- four-bit floats ---- */

static float e2m1_value(const struct layer *l, int n, int k)
{
    static const float levels[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
    uint8_t q = l->q[n * l->cols + k];
    return (q & 8 ? -levels[q & 7] : levels[q & 7]) * l->s[n * l->n_groups + l->of[k]];
}

static void four_bit_floats_are_read(void **state)
{
    static const struct {
        const char *codes, *type, *global, *config;
        int group;
        float factor;
    } all[] = {
        { "X.weight_packed", "F8_E4M3", "X.weight_global_scale",
          CT("\"num_bits\":4,\"group_size\":16"), 16, 0.25f },
        { "X.weight", "F8_E4M3", "X.weight_scale_2", "\"quant_method\":\"modelopt\"", 16, 4 },
        { "X.weight_packed", "U8", NULL, CT("\"num_bits\":4,\"group_size\":32"), 32, 1 },
    };

    (void)state;
    for (size_t i = 0; i < N(all); i++) {
        struct file f = { 0 };
        struct layer l;
        struct err e;
        float four = 4;
        layer_init(&l, 9, 96, all[i].group, 4, false);
        uint8_t *codes = mem_alloc((size_t)(l.rows * l.cols / 2)),
                *scales = mem_alloc((size_t)(l.rows * l.n_groups));
        for (int k = 0; k < l.rows * l.cols / 2; k++)
            codes[k] = (uint8_t)(l.q[2 * k] | l.q[2 * k + 1] << 4);
        for (int k = 0; k < l.rows * l.n_groups; k++) {
            scales[k] = (uint8_t)(all[i].group == 32 ? 120 + k % 9 : 1 + k % 0x7d);
            if (all[i].group == 32) l.s[k] = ldexpf(1, scales[k] - 127);
            else quant_decode(DT_F8_E4M3, &scales[k], &l.s[k], 1);
            l.s[k] *= all[i].factor;
        }
        add_tensor(&f, all[i].codes, "U8", l.rows, l.cols / 2, codes,
                   (size_t)(l.rows * l.cols / 2));
        add_tensor(&f, "X.weight_scale", all[i].type, l.rows, l.n_groups, scales,
                   (size_t)(l.rows * l.n_groups));
        if (all[i].global) add_tensor(&f, all[i].global, "F32", 1, -1, &four, 4);
        assert_int_equal(file_open(&f, all[i].config, &e), OK);
        check_layer(&f, &l, e2m1_value, "E2M1");
        file_close(&f);
        mem_free(codes);
        mem_free(scales);
        layer_release(&l);
    }
}

static float ternary(const struct layer *l, int n, int k)
{
    return (float)((int)l->q[n * l->cols + k] - 1) * l->s[0];
}

static void bitnet_layers_are_read(void **state)
{
    (void)state;
    for (int divides = 0; divides < 2; divides++) {
        struct file f = { 0 };
        struct layer l;
        struct err e;
        uint16_t h = f32_to_bf16(8);
        layer_init(&l, 20, 72, 72, 2, false);
        for (int i = 0; i < l.rows * l.cols; i++) l.q[i] %= 3;
        l.s[0] = divides ? 0.125f : 8;
        uint8_t *codes = mem_alloc((size_t)(l.rows * l.cols / 4));
        memset(codes, 0, (size_t)(l.rows * l.cols / 4));
        for (int n = 0; n < l.rows; n++)
            for (int k = 0; k < l.cols; k++)
                codes[n % (l.rows / 4) * l.cols + k] |=
                    (uint8_t)(l.q[n * l.cols + k] << 2 * (n / (l.rows / 4)));
        add_tensor(&f, "X.weight", "U8", l.rows / 4, l.cols, codes, (size_t)(l.rows * l.cols / 4));
        add_tensor(&f, "X.weight_scale", "BF16", 1, -1, &h, 2);
        assert_int_equal(file_open(&f,
                                   divides ? "\"quant_method\":\"bitnet\""
                                           : "\"quant_method\":\"bitnet\",\"linear_class\":"
                                             "\"autobitlinear\"",
                                   &e),
                         OK);
        check_layer(&f, &l, ternary, "bitnet: int2, one scale");
        file_close(&f);
        mem_free(codes);
        layer_release(&l);
    }
}

/* ---- GGUF ---- */

/* Types whose rows are packed anew: values as quant_decode has them, times the scale beside
 * them. */
static void gguf_tensors_are_read(void **state)
{
    enum { ROWS = 3, COLS = 256 };
    static const struct {
        enum dtype type;
        float scale;
    } all[] = { { DT_NVFP4, 0.375f }, { DT_NVFP4, 1 }, { DT_Q2_0, 1 }, { DT_I2_S, 0.625f } };
    struct rng r;

    (void)state;
    rng_seed(&r, 5);
    for (size_t i = 0; i < N(all); i++) {
        struct buf b = { 0 };
        struct gguf *g = NULL;
        struct hfquant *q = NULL;
        struct grouped f;
        struct err e;
        uint64_t row_bytes;
        bool beside = all[i].type == DT_NVFP4 && all[i].scale != 1;
        assert_true(dtype_row_bytes(all[i].type, COLS, &row_bytes));
        size_t bytes = ROWS * row_bytes + (all[i].type == DT_I2_S ? I2_S_TAIL : 0);
        uint8_t *data = mem_alloc(bytes);
        for (size_t k = 0; k < bytes; k++) data[k] = (uint8_t)(rng_u64(&r) & 0x3b);
        for (size_t k = 0; all[i].type == DT_I2_S && k < bytes; k++)
            data[k] &= 0xaa; /* codes 0 and 2 */
        if (all[i].type == DT_I2_S) memcpy(data + ROWS * row_bytes, &all[i].scale, 4);
        put_head(&b, 3, beside ? 2 : 1, 0);
        put_tensor(&b, "X.weight", ROWS, COLS, (uint32_t)all[i].type, 0);
        if (beside) put_tensor(&b, "X.scale", 1, 1, DT_F32, (bytes + 31) / 32 * 32);
        put_zeros(&b, (32 - b.n % 32) % 32);
        buf_add(&b, data, bytes);
        put_zeros(&b, (32 - b.n % 32) % 32);
        if (beside) buf_add(&b, &all[i].scale, 4);
        if (gguf_parse(&g, b.p, b.n, "sample", &e) != OK) fail_msg("%s", e.msg);
        assert_int_equal(hfquant_open_gguf(&q, g, &e), OK);
        const struct source_tensor *t = hfquant_find(q, STR("X.weight"));
        assert_true(t && t->type == DT_GROUPED && t->dims[0] == ROWS && t->dims[1] == COLS);
        assert_int_equal(hfquant_prepare(t->quant, 0, &f, NULL, "sample", &e), OK);
        for (int n = 0; n < ROWS; n++) {
            uint8_t row[512], tmp[2 * COLS];
            float got[COLS], want[COLS];
            hfquant_pack(t->quant, &f, n, 1, row, f.row_bytes, tmp);
            grouped_decode(&f, row, 0, COLS, got);
            const uint8_t *at = data + (size_t)n * row_bytes;
            if (all[i].type != DT_I2_S) quant_decode(all[i].type, at, want, COLS);
            else
                for (int k = 0; k < COLS; k++)
                    want[k] =
                        (float)((at[k / 128 * 32 + k % 32] >> (6 - 2 * (k % 128 / 32)) & 3) - 1);
            for (int k = 0; k < COLS; k++)
                if (got[k] != want[k] * all[i].scale)
                    fail_msg("%s [%d][%d]: %g, expected %g", dtype_name((int)all[i].type), n, k,
                             (double)got[k], (double)(want[k] * all[i].scale));
        }
        hfquant_close(q);
        gguf_close(g);
        mem_free(data);
        buf_release(&b);
    }
}

/* Types of ik_llama.cpp have numbers of their own, and rows with a head. */
static void types_of_ik_are_read_from_gguf(void **state)
{
    static const struct {
        uint32_t number;
        enum dtype type;
    } all[] = { { 139, DT_IQ4_K },
                { 144, DT_IQ4_KS },
                { 152, DT_IQ5_KS },
                { 156, DT_IQ3_KS },
                { 157, DT_IQ2_KL } };

    (void)state;
    for (size_t i = 0; i < N(all); i++) {
        struct buf b = { 0 };
        struct gguf *g = NULL;
        struct err e;
        uint64_t row_bytes;
        float y[512];
        assert_true(dtype_row_bytes(all[i].type, 512, &row_bytes));
        put_head(&b, 3, 1, 0);
        put_tensor(&b, "X.weight", 2, 512, all[i].number, 0);
        put_zeros(&b, (32 - b.n % 32) % 32);
        put_zeros(&b, 2 * row_bytes);
        if (gguf_parse(&g, b.p, b.n, "sample", &e) != OK) fail_msg("%s", e.msg);
        const struct source_tensor *t = gguf_find(g, STR("X.weight"));
        assert_true(t && t->type == all[i].type && t->bytes == 2 * row_bytes);
        quant_decode(t->type, (const char *)t->data + row_bytes, y, 512);
        for (int k = 0; k < 512; k++) assert_true(y[k] == 0);
        gguf_close(g);
        buf_release(&b);
    }
    assert_int_equal(dtype_by_ggml(137), DT_NONE);
    assert_int_equal(dtype_by_ggml(DT_GROUPED), DT_NONE);
    assert_int_equal(dtype_by_ggml(DT_IQ4_K), DT_NONE);
}

/* ---- what cannot be read ---- */

#define GPTQ "\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":32"

/* Opens f; the layer is listed, and refused with these words when it is needed. */
static void assert_refused(struct file *f, const char *config, const char *saying)
{
    const struct source_tensor *t;
    struct grouped g;
    int32_t order[256];
    struct err e = { 0 };
    int rc;

    assert_int_equal(file_open(f, config, &e), OK);
    t = hfquant_find(f->quant, STR("X.weight"));
    assert_non_null(t);
    rc = hfquant_check(t->quant, "sample", &e);
    if (rc == OK) rc = hfquant_prepare(t->quant, 0, &g, order, "sample", &e);
    if (rc == OK || !strstr(e.msg, saying)) print_message("result: %d %s\n", rc, e.msg);
    assert_true(rc == E_FORMAT || rc == E_UNSUPPORTED);
    assert_non_null(strstr(e.msg, saying));
    assert_non_null(strstr(e.msg, "X."));
    file_close(f);
}

static void layers_that_do_not_fit_are_refused(void **state)
{
    struct layer l;
    struct file f = { 0 };
    uint8_t bytes[64 * 64] = { 0 };

    (void)state;
    layer_init(&l, 16, 64, 32, 4, false);
    add_tensor(&f, "X.qweight", "I32", 8, 16, bytes, 8 * 16 * 4);
    assert_refused(&f, GPTQ, "scales is missing");
    add_tensor(&f, "X.qweight", "I32", 8, 16, bytes, 8 * 16 * 4);
    add_scales(&f, &l, "X.scales", "F16", true);
    assert_refused(&f, GPTQ, "qzeros is missing");
    add_gptq(&f, &l, true);
    assert_refused(&f, "\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":64",
                   "the group size of config.json does not fit its scales");
    l.of[5] = 2;
    add_gptq(&f, &l, true);
    assert_refused(&f, GPTQ, "X.g_idx: group 2 at column 5; there are 2 groups of 32 columns");
    l.of[5] = -1;
    add_gptq(&f, &l, true);
    assert_refused(&f, GPTQ, "X.g_idx: group -1 at column 5");
    l.of[5] = 1;
    add_gptq(&f, &l, true);
    assert_refused(&f, GPTQ, "one column too many of group 1");
    l.of[5] = 0;
    add_gptq(&f, &l, false);
    assert_refused(&f, "\"quant_method\":\"gptq\",\"bits\":5,\"group_size\":32",
                   "codes of 2, 3, 4 or 8 bits are expected");
    add_words(&f, &l, "BF16", false, false);
    assert_refused(&f, CT("\"num_bits\":4,\"group_size\":16"),
                   "the group size of config.json does not fit its scales");
    add_words(&f, &l, "BF16", false, false);
    assert_refused(&f, CT("\"num_bits\":8,\"group_size\":32"), "its packed codes do not fit");
    add_tensor(&f, "X.weight_packed", "I32", 16, 8, bytes, 512);
    assert_refused(&f, CT("\"num_bits\":4,\"group_size\":32"), "weight_scale is missing");
    add_tensor(&f, "X.weight", "F8_E4M3", 32, 64, bytes, 2048);
    assert_refused(&f, "\"quant_method\":\"fp8\"", "its tensor of scales is missing");
    add_tensor(&f, "X.weight", "F8_E4M3", 32, 64, bytes, 2048);
    add_tensor(&f, "X.weight_scale_inv", "F32", 3, 2, bytes, 24);
    assert_refused(&f, "\"quant_method\":\"fp8\",\"weight_block_size\":[16,16]",
                   "its scales do not fit its rows and columns: X.weight_scale_inv is F32 [3, 2]");
    add_tensor(&f, "X.weight_packed", "U8", 16, 32, bytes, 512);
    add_tensor(&f, "X.weight_scale", "F8_E4M3", 16, 4, bytes, 64);
    assert_refused(&f, CT("\"num_bits\":4,\"group_size\":16"),
                   "neither weight_global_scale nor weight_scale_2 exists");
    add_tensor(&f, "X.weight_packed", "U8", 16, 32, bytes, 512);
    add_tensor(&f, "X.weight_scale", "F8_E4M3", 16, 4, bytes, 64);
    add_tensor(&f, "X.weight_global_scale", "F32", 1, -1, bytes, 4);
    assert_refused(&f, CT("\"num_bits\":4,\"group_size\":16"),
                   "X.weight_global_scale is 0 and divides");
    add_tensor(&f, "X.weight", "U8", 4, 64, bytes, 256);
    assert_refused(&f, "\"quant_method\":\"bitnet\"", "weight_scale is missing");
    layer_release(&l);
}

static void other_versions_of_awq_are_refused(void **state)
{
    struct file f = { 0 };
    struct err e = { 0 };
    uint8_t byte = 0;

    (void)state;
    add_tensor(&f, "norm", "U8", 1, -1, &byte, 1);
    assert_int_equal(file_open(&f, "\"quant_method\":\"awq\",\"version\":\"gemv\"", &e),
                     E_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "AWQ version \"gemv\" is not supported"));
    file_close(&f);
}

static void plain_and_unknown_folders_have_no_layers(void **state)
{
    struct file f = { 0 };
    struct err e = { 0 };
    uint8_t byte = 0;

    (void)state;
    add_tensor(&f, "norm", "U8", 1, -1, &byte, 1);
    assert_int_equal(file_open(&f, "\"quant_method\":\"quip\"", &e), OK);
    assert_null(f.quant);
    assert_null(hfquant_find(f.quant, STR("X.weight")));
    assert_int_equal(hfquant_n_tensors(f.quant), 0);
    assert_true(hfquant_knows(STR("gptq")) && !hfquant_knows(STR("quip")));
    file_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gptq_layers_are_read),
        cmocka_unit_test(awq_layers_are_read),
        cmocka_unit_test(packed_layers_are_read),
        cmocka_unit_test(groups_of_different_bits_are_told_apart),
        cmocka_unit_test(byte_layers_are_read),
        cmocka_unit_test(blocks_of_scales_are_read),
        cmocka_unit_test(one_scale_for_all_is_read),
        cmocka_unit_test(four_bit_floats_are_read),
        cmocka_unit_test(bitnet_layers_are_read),
        cmocka_unit_test(gguf_tensors_are_read),
        cmocka_unit_test(types_of_ik_are_read_from_gguf),
        cmocka_unit_test(layers_that_do_not_fit_are_refused),
        cmocka_unit_test(other_versions_of_awq_are_refused),
        cmocka_unit_test(plain_and_unknown_folders_have_no_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
