/* Loading weights: missing, misshapen, transposed and NaN tensors, types without kernels.
 *
 * Inputs are copies of models of tests/golden/hf with one tensor changed. */
#include "model_world.h"

#include "base/log.h"
#include "kernel/quant.h"
#include "model/scan.h"

#include <unistd.h>

struct edit {
    const char *drop;    /* tensor to leave out */
    const char *reshape; /* tensor to store with half the rows of twice the length */
    const char *poison;  /* tensor whose last value becomes NaN */
    const char *transpose;
    const char *widen; /* tensor to store as F64 */
    bool allow_nan;
};

static void add_widened(struct folder *f, const char *name, const struct source_tensor *t)
{
    size_t n = t->bytes / 2;
    double *d = mem_array(n, sizeof *d);
    for (size_t i = 0; i < n; i++) d[i] = bf16_to_f32(((const uint16_t *)t->data)[i]);
    folder_add(f, name, "F64", t->dims, t->n_dims, d, n * sizeof *d);
    mem_free(d);
}

static void add_transposed(struct folder *f, const char *name, const struct source_tensor *t)
{
    int64_t dims[2] = { t->dims[1], t->dims[0] };
    uint16_t *d = mem_array(t->bytes / 2, 2);
    for (int64_t r = 0; r < t->dims[0]; r++)
        for (int64_t c = 0; c < t->dims[1]; c++)
            d[c * t->dims[0] + r] = ((const uint16_t *)t->data)[r * t->dims[1] + c];
    folder_add(f, name, "BF16", dims, 2, d, t->bytes);
    mem_free(d);
}

/* Writes a copy of a bf16 model with one tensor changed. */
static const char *write_edited(struct folder *f, const char *dir, const char *name,
                                struct edit how)
{
    struct source *src = NULL;
    struct buf config = { 0 };
    char *path = path_join(dir, "config.json");
    assert_int_equal(source_open(&src, dir, NULL), OK);
    assert_int_equal(file_read(&config, path, 1 << 20, NULL), OK);
    mem_free(path);
    folder_begin(f, name);
    for (size_t i = 0; i < source_n_tensors(src); i++) {
        const struct source_tensor *t = source_tensor(src, i);
        char tensor[256];
        int64_t dims[2] = { t->dims[0], t->dims[1] };
        uint16_t *data = mem_dup(t->data, t->bytes);
        snprintf(tensor, sizeof tensor, "%.*s", STR_ARG(t->name));
        if (how.reshape && strcmp(tensor, how.reshape) == 0) dims[0] /= 2, dims[1] *= 2;
        if (how.poison && strcmp(tensor, how.poison) == 0) data[t->bytes / 2 - 1] = 0x7fc0;
        if (how.transpose && strcmp(tensor, how.transpose) == 0) add_transposed(f, tensor, t);
        else if (how.widen && strcmp(tensor, how.widen) == 0) add_widened(f, tensor, t);
        else if (!how.drop || strcmp(tensor, how.drop) != 0)
            folder_add(f, tensor, "BF16", dims, t->n_dims, data, t->bytes);
        mem_free(data);
    }
    folder_end(f, buf_str(&config));
    buf_release(&config);
    source_close(src);
    return f->dir;
}

static int open_edited(const char *name, struct edit how, struct err *e)
{
    struct folder f;
    struct source *src = NULL;
    struct backend *be = NULL;
    struct model *m = NULL;
    struct arena a = { 0 };
    int rc;
    write_edited(&f, golden("bitnet"), name, how);
    assert_int_equal(source_open(&src, f.dir, e), OK);
    assert_int_equal(
        backend_open(&be, &(struct backend_opt){ .n_threads = 1, .reference = true }, e), OK);
    rc = open_model_allowing(&m, &a, src, be, how.allow_nan, e);
    model_close(m);
    arena_release(&a);
    for (int i = 0; i < MEM_KINDS; i++)
        assert_int_equal(be->used_bytes[i], 0); /* a failed load leaves no memory in use */
    backend_close(be);
    source_close(src);
    return rc;
}

static void a_position_beyond_the_learned_positions_is_refused(void **state)
{
    struct world w = open_world(golden("gpt2"), true);
    int32_t id = 1, pos = 100, seq = 0, row = 0, table[8] = { 0 };
    struct batch b = { .n_tokens = 1,
                       .ids = &id,
                       .pos = &pos,
                       .seq = &seq,
                       .n_seqs = 1,
                       .table = table,
                       .table_stride = 8,
                       .n_out = 1,
                       .out_rows = &row };
    const float *logits;
    struct err e = { 0 };
    (void)state;
    assert_int_equal(hparams_max_ctx(&w.m->hp), 512);
    w.m->positions.rows = 100; /* the table has space for position 100, but no learned row */
    assert_int_equal(runner_run(w.dec, &b, &logits, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "position 100"));
    close_world(&w);
}

static void the_error_for_a_missing_tensor_names_it_and_its_shape(void **state)
{
    struct err e = { 0 };
    (void)state;
    assert_int_equal(
        open_edited("missing", (struct edit){ .drop = "model.layers.1.mlp.up_proj.weight" }, &e),
        E_NOTFOUND);
    assert_non_null(
        strstr(e.msg, "model.layers.1.mlp.up_proj.weight is missing, expected [160, 64]"));
    assert_int_equal(open_edited("missing2", (struct edit){ .drop = "model.norm.weight" }, &e),
                     E_NOTFOUND);
    assert_non_null(strstr(e.msg, "model.norm.weight is missing, expected [64]"));
    assert_int_equal(open_edited("missing3", (struct edit){ .drop = "lm_head.weight" }, &e),
                     E_NOTFOUND);
}

static void the_error_for_a_wrong_shape_names_both_shapes(void **state)
{
    struct err e = { 0 };
    (void)state;
    assert_int_equal(
        open_edited("shape", (struct edit){ .reshape = "model.layers.2.mlp.gate_proj.weight" }, &e),
        E_FORMAT);
    assert_non_null(
        strstr(e.msg, "model.layers.2.mlp.gate_proj.weight is [80, 128], expected [160, 64]"));
}

/* The log lines that were written to stderr while a model with this tensor poisoned was opened. */
static char *capture_warnings(const char *poison)
{
    char path[256], *text = mem_alloc(4096);
    struct err e = { 0 };
    FILE *f;
    int saved = dup(2);
    snprintf(path, sizeof path, "%s/stderr", temp_dir());
    f = fopen(path, "w+");
    assert_non_null(f);
    fflush(stderr);
    dup2(fileno(f), 2);
    int rc = open_edited("poisoned", (struct edit){ .poison = poison, .allow_nan = true }, &e);
    fflush(stderr);
    dup2(saved, 2);
    close(saved);
    rewind(f);
    if (fread(text, 1, 4095, f) == 0) text[0] = 0;
    fclose(f);
    assert_int_equal(rc, OK);
    return text;
}

static const char *const poisoned[] = { "model.layers.1.input_layernorm.weight",
                                        "model.layers.2.mlp.down_proj.weight",
                                        "model.embed_tokens.weight" };

static void nan_weights_are_refused_by_tensor_and_row(void **state)
{
    static const char *const where[] = { "in element 63;", "in row 63;", "in row 319;" };
    struct err e = { 0 };
    (void)state;
    for (size_t i = 0; i < N(poisoned); i++) {
        assert_int_equal(open_edited("nan", (struct edit){ .poison = poisoned[i] }, &e), E_DAMAGED);
        if (!strstr(e.msg, where[i])) print_message("result: %s\n", e.msg);
        assert_non_null(strstr(e.msg, poisoned[i]));
        assert_non_null(strstr(e.msg, where[i]));
    }
}

static void nan_weights_are_loaded_with_a_warning_where_they_are_allowed(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(poisoned); i++) {
        char *text = capture_warnings(poisoned[i]);
        assert_non_null(strstr(text, poisoned[i]));
        assert_non_null(strstr(text, "NaN"));
        mem_free(text);
    }
    char *text = capture_warnings("nothing");
    assert_string_equal(text, "");
    mem_free(text);
}

/* As for a model that is too large to be scanned while it loads. */
static void a_scan_in_the_background_damages_the_source(void **state)
{
    struct folder f;
    struct source *src = NULL;
    struct hparams hp;
    struct weight_list list;
    struct arena a = { 0 };
    struct scan *c;
    struct err e = { 0 };
    (void)state;
    write_edited(&f, golden("bitnet"), "later", (struct edit){ .poison = poisoned[1] });
    assert_int_equal(source_open(&src, f.dir, &e), OK);
    assert_int_equal(hparams_read(&hp, &a, src, &e), OK);
    assert_int_equal(weights_find(&list, &a, &hp, src, &e), OK);
    assert_non_null(c = scan_start(src, &list));
    for (int i = 0; i < 60000 && !source_is_damaged(src, &e); i++) usleep(1000);
    assert_true(source_is_damaged(src, &e));
    assert_non_null(strstr(e.msg, poisoned[1]));
    scan_stop(c);
    /* stopped before its end */
    assert_non_null(c = scan_start(src, &list));
    scan_stop(c);
    arena_release(&a);
    source_close(src);
}

static void a_transposed_embedding_is_transposed_back(void **state)
{
    struct folder f;
    (void)state;
    write_edited(&f, golden("bitnet"), "turned",
                 (struct edit){ .transpose = "model.embed_tokens.weight" });
    check_golden(f.dir, golden("bitnet"), true, 1e-4);
    write_edited(&f, golden("bitnet"), "turned2", (struct edit){ .transpose = "lm_head.weight" });
    check_golden(f.dir, golden("bitnet"), false, 2e-3);
}

static void a_type_without_kernels_is_converted(void **state)
{
    struct folder f;
    (void)state;
    write_edited(&f, golden("bitnet"), "wide",
                 (struct edit){ .widen = "model.layers.0.self_attn.q_proj.weight" });
    check_golden(f.dir, golden("bitnet"), true, 1e-4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_position_beyond_the_learned_positions_is_refused),
        cmocka_unit_test(the_error_for_a_missing_tensor_names_it_and_its_shape),
        cmocka_unit_test(the_error_for_a_wrong_shape_names_both_shapes),
        cmocka_unit_test(nan_weights_are_refused_by_tensor_and_row),
        cmocka_unit_test(nan_weights_are_loaded_with_a_warning_where_they_are_allowed),
        cmocka_unit_test(a_scan_in_the_background_damages_the_source),
        cmocka_unit_test(a_transposed_embedding_is_transposed_back),
        cmocka_unit_test(a_type_without_kernels_is_converted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
