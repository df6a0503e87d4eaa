/* Importance matrices: the GGUF format and the older binary format of llama.cpp are written and
 * read back, weights are derived from them, invalid files are refused.
 *
 * Files are temporary or made in memory. */
#include "quant/imatrix.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "support.h"

#include <math.h>
#include <stdio.h>

static void put_u32(struct buf *b, uint32_t v) { buf_add(b, &v, 4); }

static void fill_imatrix(struct imatrix *m)
{
    struct imatrix_entry *a = imatrix_add(m, STR("blk.0.attn_q.weight"), 8, 1);
    for (int i = 0; i < 8; i++) a->sums[i] = (float)(i * i);
    a->counts[0] = 4;
    struct imatrix_entry *b = imatrix_add(m, STR("blk.0.ffn_up_exps.weight"), 4, 3);
    for (int i = 0; i < 12; i++) b->sums[i] = (float)(i + 1);
    b->counts[0] = 1, b->counts[1] = 2, b->counts[2] = 0;
    m->dataset = "tales.txt";
    m->n_chunks = 7;
    m->chunk_tokens = 512;
}

static void an_importance_matrix_reads_back_as_written(void **state)
{
    (void)state;
    struct imatrix m = { 0 }, back = { 0 };
    struct err e = { 0 };
    char *path = path_join(temp_dir(), "x.imatrix");

    fill_imatrix(&m);
    assert_int_equal(imatrix_write(&m, path, &e), OK);
    if (imatrix_read(&back, path, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(back.n, 2);
    assert_string_equal(back.dataset, "tales.txt");
    assert_int_equal(back.n_chunks, 7);
    struct imatrix_entry *b = imatrix_find(&back, STR("blk.0.ffn_up_exps.weight"));
    assert_non_null(b);
    assert_int_equal(b->n_mats, 3);
    assert_int_equal(b->cols, 4);
    assert_memory_equal(b->sums, m.entries[1].sums, 12 * sizeof(float));
    assert_memory_equal(b->counts, m.entries[1].counts, 3 * sizeof(float));
    imatrix_release(&m);
    imatrix_release(&back);
    mem_free(path);
}

static void the_older_format_keeps_the_mean_values(void **state)
{
    (void)state;
    struct imatrix m = { 0 }, back = { 0 };
    struct err e = { 0 };
    struct arena a = { 0 };
    const float *x, *y;
    char *path = path_join(temp_dir(), "x.dat");

    fill_imatrix(&m);
    assert_int_equal(imatrix_write(&m, path, &e), OK);
    if (imatrix_read(&back, path, &e) != OK) fail_msg("%s", e.msg);
    assert_string_equal(back.dataset, "tales.txt");
    assert_int_equal(imatrix_weights(&m, &a, STR("blk.0.ffn_up_exps.weight"), 4, 3, &x, &e), OK);
    assert_int_equal(imatrix_weights(&back, &a, STR("blk.0.ffn_up_exps.weight"), 4, 3, &y, &e), OK);
    for (int i = 0; i < 12; i++) assert_true(fabsf(x[i] - y[i]) < 1e-3f);
    imatrix_release(&m);
    imatrix_release(&back);
    arena_release(&a);
    mem_free(path);
}

static void weights_have_a_mean_of_one_and_are_never_zero(void **state)
{
    (void)state;
    struct imatrix m = { 0 };
    struct arena a = { 0 };
    struct err e = { 0 };
    const float *w;
    double sum = 0;

    fill_imatrix(&m);
    assert_int_equal(imatrix_weights(&m, &a, STR("blk.0.attn_q.weight"), 8, 1, &w, &e), OK);
    for (int i = 0; i < 8; i++) {
        assert_true(w[i] > 0);
        sum += (double)w[i];
    }
    assert_true(fabs(sum / 8 - 1) < 1e-3 && w[7] > 40 * w[1]);
    assert_int_equal(imatrix_weights(&m, &a, STR("blk.0.ffn_up_exps.weight"), 4, 3, &w, &e), OK);
    for (int i = 8; i < 12; i++)
        assert_true(fabsf(w[i] - 1) < 1e-3f); /* no token chose this expert */
    assert_int_equal(imatrix_weights(&m, &a, STR("other"), 8, 1, &w, &e), OK);
    assert_null(w);
    assert_int_equal(imatrix_weights(&m, &a, STR("blk.0.attn_q.weight"), 16, 1, &w, &e), E_FORMAT);
    assert_non_null(strstr(e.msg, "attn_q"));
    imatrix_release(&m);
    arena_release(&a);
}

/* A file in the older format, as llama.cpp writes it. */
static void make_old_file(struct buf *b, float value)
{
    put_u32(b, 1);
    put_u32(b, 4);
    buf_puts(b, "w.we");
    put_u32(b, 10);
    put_u32(b, 2);
    buf_add(b, &value, 4);
    buf_add(b, &value, 4);
    put_u32(b, 10);
    put_u32(b, 3);
    buf_puts(b, "a.t");
}

static int parse_bytes(struct str bytes, char *msg)
{
    struct imatrix m = { 0 };
    struct err e = { 0 };
    int rc = imatrix_parse(&m, bytes, "it", &e);
    memcpy(msg, e.msg, sizeof e.msg);
    imatrix_release(&m);
    return rc;
}

static void bad_files_are_refused(void **state)
{
    (void)state;
    struct buf b = { 0 };
    char msg[512];

    make_old_file(&b, 20);
    assert_int_equal(parse_bytes(buf_str(&b), msg), OK);
    for (size_t n = 0; n < 28; n++)
        assert_int_equal(parse_bytes(str_take(buf_str(&b), n), msg), E_FORMAT);
    assert_int_equal(parse_bytes(str_take(buf_str(&b), 28), msg),
                     OK); /* the oldest files end here */
    buf_clear(&b);
    make_old_file(&b, NAN);
    assert_int_equal(parse_bytes(buf_str(&b), msg), E_FORMAT);
    assert_non_null(strstr(msg, "w.we"));
    buf_clear(&b);
    make_old_file(&b, -1);
    assert_int_equal(parse_bytes(buf_str(&b), msg), E_FORMAT);
    memcpy(b.p, "\xff\xff\xff\x7f", 4);
    assert_int_equal(parse_bytes(buf_str(&b), msg), E_FORMAT);
    assert_int_equal(parse_bytes(STR("GGUF"), msg), E_FORMAT);
    buf_release(&b);
    assert_int_equal(file_read(&b, repo("models/tern-tales.gguf"), 1u << 30, NULL), OK);
    assert_int_equal(parse_bytes(buf_str(&b), msg), E_FORMAT);
    assert_non_null(strstr(msg, "in_sum2"));
    buf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_importance_matrix_reads_back_as_written),
        cmocka_unit_test(the_older_format_keeps_the_mean_values),
        cmocka_unit_test(weights_have_a_mean_of_one_and_are_never_zero),
        cmocka_unit_test(bad_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
