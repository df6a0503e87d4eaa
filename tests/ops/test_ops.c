/* Row operations of every instruction set against vec_ref, and the CPU backend's table against
 * the reference backend over odd shapes.
 *
 * Inputs are random. Reads no files. */
#include "support.h"

#include "base/mem.h"
#include "base/rng.h"
#include "kernel/backend.h"
#include "kernel/cpu/vec.h"
#include "kernel/quant.h"

#include <math.h>

#define N 300          /* longest row */
#define GUARD 12345.0f /* the value after the end of every row, which must not change */

static const char *const sets[] = { "reference", "avx2", "avx512", "neon" };
static const int lengths[] = { 1,  2,  3,  5,  7,  8,  15, 16,  17,  24,  31,
                               32, 33, 48, 63, 64, 80, 96, 100, 127, 256, 299 };

#define EACH_SET(v)                                                  \
    for (size_t set_ = 0; set_ < sizeof sets / sizeof *sets; set_++) \
        for (const struct vec *v = vec_by_name(sets[set_]); v; v = NULL)
#define EACH_LENGTH(n)                                                     \
    for (size_t len_ = 0; len_ < sizeof lengths / sizeof *lengths; len_++) \
        for (int n = lengths[len_], once_ = 1; once_; once_ = 0)

static struct rng rng;

static void fill_random(float *x, int n, float scale)
{
    for (int i = 0; i < n; i++) x[i] = rng_normal(&rng) * scale;
}

static void make_row(float x[N + 1], int n, float scale)
{
    fill_random(x, n, scale);
    for (int i = n; i <= N; i++) x[i] = GUARD;
}

/* Each value may differ by tol times its magnitude, or times floor if its magnitude is smaller. */
static void assert_near(const char *what, const float *got, const float *want, int n, double tol,
                        double floor)
{
    for (int i = 0; i < n; i++) {
        double diff = fabs((double)got[i] - want[i]), size = fmax(fabs((double)want[i]), floor);
        if (diff <= tol * size) continue;
        fail_msg("%s: value %d of %d is %.9g, expected %.9g", what, i, n, (double)got[i],
                 (double)want[i]);
    }
}

static void norms_agree_on_all_lengths(void **state)
{
    float x[N + 1], w[N + 1], b[N + 1], want[N + 1], got[N + 1];
    (void)state;

    EACH_SET(v) EACH_LENGTH(n) for (int kind = 0; kind < 3; kind++)
    {
        make_row(x, n, 3), make_row(w, n, 1), make_row(b, n, 1), make_row(got, n, 0);
        const float *ww = kind ? w : NULL, *bb = kind > 1 ? b : NULL;
        vec_ref.rmsnorm(want, x, ww, n, 1e-5f);
        v->rmsnorm(got, x, ww, n, 1e-5f);
        assert_near("rmsnorm", got, want, n, 1e-6, 0);
        assert_true(got[n] == GUARD);
        for (int i = 0; i < n; i++) x[i] += 5;
        vec_ref.layernorm(want, x, ww, bb, n, 1e-5f);
        v->layernorm(got, x, ww, bb, n, 1e-5f);
        assert_near("layernorm", got, want, n, 1e-5, 0.1);
        v->layernorm(x, x, ww, bb, n, 1e-5f); /* in place */
        assert_memory_equal(x, got, (size_t)n * sizeof *x);
        assert_true(got[n] == GUARD && x[n] == GUARD);
    }
}

static void activations_are_exact_to_a_few_ulp(void **state)
{
    static const char *const names[N_ACTS] = { "silu",    "gelu",        "gelu_tanh",
                                               "relu",    "relu2",       "gelu_quick",
                                               "sigmoid", "swiglu_clip", "none" };
    float x[N + 1], up[N + 1], want[N + 1], got[N + 1];
    (void)state;

    EACH_SET(v)
    EACH_LENGTH(n) for (int act = 0; act < N_ACTS; act++) for (int kind = 0; kind < 4; kind++)
    {
        make_row(x, n, kind == 1 ? 20 : kind == 2 ? 1e-3f : 2), make_row(up, n, 1);
        vec_ref.act[act](want, x, kind == 3 ? NULL : up, n);
        v->act[act](x, x, kind == 3 ? NULL : up, n);
        /* Far on the negative side the value is close to 0 and its relative error does not
         * matter. */
        assert_near(names[act], x, want, n, 2e-6, 1e-3);
        assert_true(x[n] == GUARD);
    }
    EACH_SET(v) for (int act = 0; act < N_ACTS; act++)
    {
        const float far[4] = { -1e4f, 1e4f, 0, -200 };
        vec_ref.act[act](want, far, NULL, 4);
        v->act[act](got, far, NULL, 4);
        assert_near(names[act], got, want, 4, 1e-6, 1e-9);
    }
}

static void add_scale_softcap_agree(void **state)
{
    float x[N + 1], y[N + 1], want[N + 1];
    (void)state;

    EACH_SET(v) EACH_LENGTH(n) for (int kind = 0; kind < 3; kind++)
    {
        make_row(x, n, 1), make_row(y, n, 1);
        memcpy(want, x, sizeof x);
        vec_ref.add(want, y, 0.7f, n), v->add(x, y, 0.7f, n);
        assert_near("add", x, want, n, 1e-6, 0.1);
        vec_ref.scale(want, x, 0.3f, n), v->scale(x, x, 0.3f, n);
        assert_near("scale", x, want, n, 1e-7, 0);
        make_row(x, n, kind == 0 ? 100 : kind == 1 ? 10 : 1e-2f);
        memcpy(want, x, sizeof x);
        vec_ref.softcap(want, 30, n), v->softcap(x, 30, n);
        assert_near("softcap", x, want, n, 5e-7, 0);
        assert_true(x[n] == GUARD);
    }
}

static void both_rotary_styles_rotate_only_the_first_n_rot_values(void **state)
{
    float x[N + 1], t[N + 1], want[N + 1];
    (void)state;

    EACH_SET(v)
    for (int style = 0; style < 2; style++)
        for (int n = 2; n <= 256; n += n < 40 ? 2 : 18) {
            make_row(x, n, 1), make_row(t, n, 1);
            memcpy(want, x, sizeof x);
            vec_ref.rope[style](want, t, n), v->rope[style](x, t, n);
            assert_near("rope", x, want, n, 1e-6, 0.5);
            assert_true(x[n] == GUARD);
        }
}

static void values_are_rounded_to_kv_types_as_quant_encode_rounds(void **state)
{
    static const enum dtype types[] = { DT_F32, DT_F16, DT_BF16, DT_Q8_0, DT_F8_E4M3 };
    float x[N + 1], want[N + 1], got[N + 1];
    unsigned char a[4 * N + 8], b[4 * N + 8];
    (void)state;

    EACH_SET(v) EACH_LENGTH(n) for (int i = 0; i < 5; i++)
    {
        uint64_t bytes;
        if (!dtype_row_bytes(types[i], (uint64_t)n, &bytes)) continue;
        make_row(x, n, 2);
        memset(a, 7, sizeof a), memset(b, 7, sizeof b);
        vec_ref.store(types[i], a, x, n), v->store(types[i], b, x, n);
        assert_true(b[bytes] == 7);
        if (types[i] != DT_Q8_0) assert_memory_equal(a, b, bytes);
        make_row(got, n, 0);
        vec_ref.load(types[i], want, b, n), v->load(types[i], got, b, n);
        assert_memory_equal(got, want, (size_t)n * sizeof *got);
        assert_true(got[n] == GUARD);
        assert_near(dtype_name(types[i]), got, x, n,
                    types[i] == DT_Q8_0      ? 6e-3
                    : types[i] == DT_F8_E4M3 ? 0.0625
                                             : 4e-3,
                    8);
    }
}

static void every_f8_byte_is_decoded_as_quant_decode_does(void **state)
{
    uint8_t all[256];
    float want[256], got[256];
    (void)state;

    for (int i = 0; i < 256; i++) all[i] = (uint8_t)i;
    EACH_SET(v)
    {
        vec_ref.load(DT_F8_E4M3, want, all, 256), v->load(DT_F8_E4M3, got, all, 256);
        for (int i = 0; i < 256; i++)
            if (isnan(want[i]) ? !isnan(got[i]) : memcmp(&want[i], &got[i], 4) != 0)
                fail_msg("%s: byte %d is %g, expected %g", v->name, i, (double)got[i],
                         (double)want[i]);
    }
}

static struct backend *open_backend(bool reference, int threads)
{
    struct backend *be = NULL;
    struct err e = { 0 };

    if (backend_open(&be, &(struct backend_opt){ .n_threads = threads, .reference = reference },
                     &e) != OK)
        fail_msg("%s", e.msg);
    return be;
}

/* A random tensor with a gap of 5 values after each row. */
static struct tensor make_strided(int rows, int cols, float scale)
{
    struct tensor t = { DT_F32, rows, cols, (size_t)cols + 5, NULL };

    t.data = mem_array((size_t)rows * t.stride, sizeof(float));
    fill_random(t.data, (int)((size_t)rows * t.stride), scale);
    return t;
}

static struct tensor copy_tensor(const struct tensor *t)
{
    struct tensor c = *t;

    c.data = mem_dup(t->data, (size_t)t->rows * t->stride * sizeof(float));
    return c;
}

/* Compares all values including the gaps after rows: this catches operations that write there. */
static void assert_same(const char *what, const struct tensor *got, const struct tensor *want,
                        double tol)
{
    assert_near(what, got->data, want->data, (int)((size_t)got->rows * got->stride), tol, 0.1);
}

struct world {
    struct backend *be;
    struct tensor x, y, table;
    float *w, *freq;
    int32_t pos[64];
};

static void run_ops(struct world *s, int heads, int dim, int n_rot)
{
    struct backend *be = s->be;
    struct err e = { 0 };

    be->rope_table(be, &s->table, s->pos, s->freq, n_rot, 1.1f);
    be->rope(be, &s->x, heads, dim, n_rot, &s->table, ROPE_HALF);
    be->rope(be, &s->x, heads, dim, n_rot, &s->table, ROPE_PAIR);
    be->headnorm(be, &s->x, heads, dim, s->w, 0, 1e-6f);
    be->headnorm(be, &s->x, heads, dim, s->w, dim, 1e-6f);
    be->headnorm(be, &s->x, heads, dim, NULL, 0, 1e-6f);
    be->rmsnorm(be, &s->x, &s->x, s->w, 1e-6f);
    be->add(be, &s->x, &s->y, 0.5f);
    be->act(be, &s->x, &s->x, &s->y, ACT_SILU);
    be->act(be, &s->x, &s->x, NULL, ACT_GELU);
    be->layernorm(be, &s->x, &s->x, s->w, s->w, 1e-6f);
    be->scale(be, &s->x, 3);
    be->softcap(be, &s->x, 5);
    assert_int_equal(be->sync(be, &e), OK);
}

static void a_sequence_of_operations_agrees_for_all_shapes_and_thread_counts(void **state)
{
    static const int rows[] = { 1, 2, 3, 17, 64 }, dims[] = { 6, 16, 24, 64, 80, 128 };
    (void)state;

    for (int threads = 1; threads <= 3; threads++) {
        struct world a = { .be = open_backend(true, 1) },
                     b = { .be = open_backend(false, threads) };
        for (int i = 0; i < 5; i++)
            for (int j = 0; j < 6; j++) {
                int heads = j % 3 + 1, dim = dims[j], n_rot = j % 2 ? dim : dim / 2 & ~1;
                a.x = make_strided(rows[i], heads * dim, 1),
                a.y = make_strided(rows[i], heads * dim, 1);
                a.table = make_strided(rows[i], n_rot, 0);
                a.w = mem_array((size_t)(heads * dim), sizeof(float));
                a.freq = mem_array((size_t)n_rot / 2, sizeof(float));
                fill_random(a.w, heads * dim, 1);
                for (int k = 0; k < n_rot / 2; k++) a.freq[k] = (float)pow(10000, -2.0 * k / n_rot);
                for (int k = 0; k < rows[i]; k++) a.pos[k] = k * 37;
                struct backend *keep = b.be;
                b = a, b.be = keep, b.x = copy_tensor(&a.x), b.table = copy_tensor(&a.table);
                run_ops(&a, heads, dim, n_rot), run_ops(&b, heads, dim, n_rot);
                assert_same("table", &b.table, &a.table, 1e-6);
                assert_same("chain", &b.x, &a.x, 2e-4);
                mem_free(a.x.data), mem_free(b.x.data), mem_free(a.y.data), mem_free(a.table.data);
                mem_free(b.table.data), mem_free(a.w), mem_free(a.freq);
            }
        backend_close(a.be), backend_close(b.be);
    }
}

static void embed_decodes_rows_of_every_weight_type(void **state)
{
    enum { ROWS = 9, COLS = 256 };
    float x[ROWS * COLS], want[ROWS * COLS];
    unsigned char bytes[ROWS * COLS * 8];
    const int32_t ids[] = { 8, 0, 3, 3, 7 };
    struct backend *be = open_backend(false, 2);
    struct err e = { 0 };
    (void)state;

    fill_random(x, ROWS * COLS, 1);
    for (int t = 0; t < DT_COUNT; t++) {
        if (!dtype_info(t) || !quant_can_encode(t) || !quant_can_decode(t)) continue;
        struct weight w = { .type = t, .rows = ROWS, .cols = COLS, .n = 1, .data = bytes };
        struct tensor out = make_strided(5, COLS, 0);
        quant_encode(t, x, bytes, ROWS * COLS);
        quant_decode(t, bytes, want, ROWS * COLS);
        be->embed(be, &out, &w, ids, 2);
        assert_int_equal(be->sync(be, &e), OK);
        for (int r = 0; r < 5; r++)
            for (int k = 0; k < COLS; k++)
                assert_true(tensor_row(&out, r)[k] == 2 * want[ids[r] * COLS + k]);
        mem_free(out.data);
    }
    backend_close(be);
}

static void errors_of_operations_are_reported_by_sync(void **state)
{
    struct backend *be = open_backend(false, 2);
    float row0[32] = { 0 }, out[64];
    struct weight w = { .type = DT_F32, .rows = 1, .cols = 32, .n = 1, .data = row0 };
    struct tensor t = tensor_f32(out, 2, 32);
    struct err e = { 0 };
    (void)state;

    be->embed(be, &t, &w, (const int32_t[]){ 0, 1 }, 1);
    be->embed(be, &t, &w, (const int32_t[]){ 0, 77 }, 1);
    assert_int_equal(be->sync(be, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "token id 1:"));
    assert_int_equal(be->sync(be, &e), OK);
    be->gather(be, &(struct tensor){ DT_F32, 2, 16, 16, out }, &t, (const int32_t[]){ 1, 0 });
    assert_int_equal(be->sync(be, &e), OK);
    backend_close(be);
}

static void memory_use_is_counted_by_kind(void **state)
{
    struct backend *be = open_backend(false, 1);
    struct err e = { 0 };
    void *p = NULL, *q = NULL;
    (void)state;

    assert_int_equal(be->alloc(be, &p, 1000, MEM_KV, &e), OK);
    assert_int_equal((uintptr_t)p % 64, 0);
    assert_int_equal(be->used_bytes[MEM_KV], 1000);
    assert_int_equal(be->alloc(be, &q, SIZE_MAX / 2, MEM_KV, &e), E_NOMEM);
    assert_int_equal(be->used_bytes[MEM_KV], 1000);
    be->free(be, p, 1000, MEM_KV);
    be->free(be, NULL, 1000, MEM_KV);
    assert_int_equal(be->used_bytes[MEM_KV], 0);
    backend_close(be);
    backend_close(NULL);
}

static void the_error_for_an_unknown_device_names_it(void **state)
{
    struct backend *be = NULL;
    struct err e = { 0 };
    (void)state;

    assert_int_equal(backend_open(&be, &(struct backend_opt){ .device = "tpu:3" }, &e),
                     E_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "tpu:3"));
    assert_null(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_agree_on_all_lengths),
        cmocka_unit_test(activations_are_exact_to_a_few_ulp),
        cmocka_unit_test(add_scale_softcap_agree),
        cmocka_unit_test(both_rotary_styles_rotate_only_the_first_n_rot_values),
        cmocka_unit_test(values_are_rounded_to_kv_types_as_quant_encode_rounds),
        cmocka_unit_test(every_f8_byte_is_decoded_as_quant_decode_does),
        cmocka_unit_test(a_sequence_of_operations_agrees_for_all_shapes_and_thread_counts),
        cmocka_unit_test(embed_decodes_rows_of_every_weight_type),
        cmocka_unit_test(errors_of_operations_are_reported_by_sync),
        cmocka_unit_test(memory_use_is_counted_by_kind),
        cmocka_unit_test(the_error_for_an_unknown_device_names_it),
    };
    rng_seed(&rng, 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
