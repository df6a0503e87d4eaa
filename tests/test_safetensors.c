/* The safetensors reader: headers, tensors, shards and their index, and every kind of invalid
 * file.
 *
 * Files are made in memory or temporary. One golden file of ../shared/fixtures/hf is read
 * (skipped without it). */
#include "support.h"

#include "base/buf.h"
#include "base/mem.h"
#include "format/safetensors.h"

#include <stdio.h>
#include <string.h>

static struct buf make_file(const char *header, size_t n_data)
{
    struct buf b = { 0 };
    uint64_t n = strlen(header);

    buf_add(&b, &n, 8);
    buf_puts(&b, header);
    for (size_t i = 0; i < n_data; i++) buf_putc(&b, (char)i);
    return b;
}

/* Parses a copy of exactly n bytes, so that a sanitizer finds reads past them. */
static int parse_copy(const struct buf *b, size_t n, struct safetensors **out, void **copy,
                      struct err *e)
{
    *copy = mem_dup(b->p, n);
    *out = NULL;
    return safetensors_parse(out, *copy, n, "sample.safetensors", e);
}

static void assert_bytes_refused(struct buf b, int code, const char *saying)
{
    struct safetensors *s;
    struct err e = { 0 };
    void *copy;
    int rc = parse_copy(&b, b.n, &s, &copy, &e);

    if (rc != code || !strstr(e.msg, saying)) print_message("result: %d %s\n", rc, e.msg);
    assert_int_equal(rc, code);
    assert_non_null(strstr(e.msg, saying));
    assert_int_equal(strncmp(e.msg, "sample.safetensors: ", 20), 0);
    mem_free(copy);
    buf_release(&b);
}

static void assert_refused(const char *header, size_t n_data, int code, const char *saying)
{
    assert_bytes_refused(make_file(header, n_data), code, saying);
}

#define ENTRY(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define SAMPLE                                                                            \
    "{\"__metadata__\":{\"format\":\"pt\",\"greedy_margin\":\"0.25\"}," ENTRY(            \
        "a", "F32", "[2,3]",                                                              \
        "[0,24]") "," ENTRY("b", "BF16", "[4]",                                           \
                            "[24,32]") "," ENTRY("c", "I64", "[]",                        \
                                                 "[32,40]") "," ENTRY("d", "U8", "[0,7]", \
                                                                      "[40,40]") "}"

static void tensors_and_metadata_are_read(void **state)
{
    struct buf b = make_file(SAMPLE, 40);
    const struct source_tensor *t;
    struct safetensors *s;
    struct str v;
    struct err e;

    (void)state;
    assert_int_equal(safetensors_parse(&s, b.p, b.n, "x", &e), OK);
    assert_int_equal(safetensors_n_tensors(s), 4);
    t = safetensors_find(s, STR("a"));
    assert_true(t->type == DT_F32 && t->n_dims == 2 && t->dims[0] == 2 && t->dims[1] == 3 &&
                t->bytes == 24);
    t = safetensors_find(s, STR("b"));
    assert_true(t->type == DT_BF16 && t->n_dims == 1 && t->dims[0] == 4 &&
                ((const uint8_t *)t->data)[0] == 24);
    t = safetensors_find(s, STR("c"));
    assert_true(t->type == DT_I64 && t->n_dims == 0 && t->dims[0] == 1 && t->bytes == 8);
    t = safetensors_find(s, STR("d"));
    assert_true(t->n_dims == 2 && t->dims[0] == 0 && t->bytes == 0);
    assert_null(safetensors_find(s, STR("__metadata__")));
    assert_true(safetensors_meta(s, "greedy_margin", &v) && str_is(v, "0.25"));
    assert_false(safetensors_meta(s, "none", &v));
    safetensors_close(s);
    buf_release(&b);
}

static void every_dtype_is_known(void **state)
{
    static const struct {
        const char *name;
        enum dtype type;
        int bytes;
    } types[] = {
        { "F64", DT_F64, 8 },   { "F32", DT_F32, 4 },         { "F16", DT_F16, 2 },
        { "BF16", DT_BF16, 2 }, { "F8_E4M3", DT_F8_E4M3, 1 }, { "F8_E5M2", DT_F8_E5M2, 1 },
        { "I64", DT_I64, 8 },   { "I32", DT_I32, 4 },         { "I16", DT_I16, 2 },
        { "I8", DT_I8, 1 },     { "U64", DT_U64, 8 },         { "U32", DT_U32, 4 },
        { "U16", DT_U16, 2 },   { "U8", DT_U8, 1 },           { "BOOL", DT_BOOL, 1 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char header[128];
        struct safetensors *s;
        struct err e;
        snprintf(header, sizeof header,
                 "{\"t\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[0,%d]}}", types[i].name,
                 3 * types[i].bytes);
        struct buf b = make_file(header, 3 * (size_t)types[i].bytes);
        assert_int_equal(safetensors_parse(&s, b.p, b.n, "x", &e), OK);
        assert_int_equal(safetensors_tensor(s, 0)->type, types[i].type);
        safetensors_close(s);
        buf_release(&b);
    }
    assert_refused("{" ENTRY("t", "F4", "[2]", "[0,1]") "}", 1, E_UNSUPPORTED,
                   "tensor 't': dtype 'F4'");
    assert_refused("{" ENTRY("t", "Q8_0", "[32]", "[0,34]") "}", 34, E_UNSUPPORTED, "dtype 'Q8_0'");
    assert_refused("{" ENTRY("t", "f32", "[1]", "[0,4]") "}", 4, E_UNSUPPORTED, "dtype 'f32'");
}

static void every_shorter_file_is_refused(void **state)
{
    struct buf b = make_file(SAMPLE, 40);

    (void)state;
    for (size_t n = 0; n < b.n; n++) {
        struct safetensors *s;
        struct err e = { 0 };
        void *copy;
        assert_int_equal(parse_copy(&b, n, &s, &copy, &e), E_FORMAT);
        mem_free(copy);
    }
    buf_release(&b);
}

static void files_with_a_changed_byte_do_not_crash(void **state)
{
    static const char changes[] = { 0, 1, 0x7f, (char)0x80, (char)0xff, '9', '"', '{', '-' };
    struct buf b = make_file(SAMPLE, 40);

    (void)state;
    for (size_t i = 0; i < b.n - 40; i++)
        for (size_t k = 0; k < sizeof changes; k++) {
            char old = b.p[i];
            struct safetensors *s;
            struct err e;
            void *copy;
            b.p[i] = changes[k];
            if (parse_copy(&b, b.n, &s, &copy, &e) == OK) safetensors_close(s);
            mem_free(copy);
            b.p[i] = old;
        }
    buf_release(&b);
}

static void header_lengths_are_bounded(void **state)
{
    static const uint64_t lengths[] = { 100, 100000001, (uint64_t)1 << 63, UINT64_MAX,
                                        UINT64_MAX - 7 };

    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct buf b = make_file("{}", 0);
        memcpy(b.p, &lengths[i], 8);
        assert_bytes_refused(b, E_FORMAT, "says its header has");
    }
    assert_refused("", 0, E_FORMAT, "begins with '{'");
    assert_refused(" {}", 0, E_FORMAT, "begins with '{'");
}

static void headers_that_are_not_json_are_refused(void **state)
{
    (void)state;
    assert_refused("{\"a\":", 0, E_FORMAT, "not JSON");
    assert_refused("{} {}", 0, E_FORMAT, "not JSON");
    assert_refused("{\"\xff\":1}", 0, E_FORMAT, "not JSON");
    assert_refused("{\"t\":1}", 0, E_FORMAT, "tensor 't': expected an object");
    assert_refused("{\"__metadata__\":[]}", 0, E_FORMAT, "__metadata__");
    assert_refused("{\"t\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, E_FORMAT,
                   "tensor 't': expected \"data_offsets\"");
    assert_refused("{\"t\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, E_FORMAT,
                   "tensor 't': expected \"shape\"");
    assert_refused("{\"t\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, E_FORMAT,
                   "tensor 't': expected \"dtype\"");
}

static void names_with_control_characters_are_refused(void **state)
{
    (void)state;
    assert_refused("{" ENTRY("a\\u001b[2J", "U8", "[1]", "[0,1]") "}", 1, E_FORMAT,
                   "control characters");
    assert_refused("{" ENTRY("a\\u0000b", "U8", "[1]", "[0,1]") "}", 1, E_FORMAT, "not JSON");
    assert_refused("{" ENTRY("", "U8", "[1]", "[0,1]") "}", 1, E_FORMAT, "name is empty");
}

static void a_header_with_too_many_json_values_is_refused(void **state)
{
    struct buf b = { 0 };

    (void)state;
    buf_puts(&b, "{\"t\":[");
    for (int i = 0; i < 5000000; i++) buf_puts(&b, "[],");
    buf_puts(&b, "[]]}");
    assert_refused(buf_cstr(&b), 0, E_UNSUPPORTED, "parts of JSON");
    buf_release(&b);
}

static void duplicate_names_are_refused(void **state)
{
    (void)state;
    assert_refused("{" ENTRY("t", "U8", "[1]", "[0,1]") "," ENTRY("t", "U8", "[1]", "[1,2]") "}", 2,
                   E_FORMAT, "duplicate object key");
}

static void deep_json_is_refused(void **state)
{
    struct buf b = { 0 };

    (void)state;
    buf_puts(&b, "{\"t\":");
    for (int i = 0; i < 100000; i++) buf_putc(&b, '[');
    assert_refused(buf_cstr(&b), 0, E_FORMAT, "not JSON");
    buf_release(&b);
}

static void shape_and_span_must_agree(void **state)
{
    (void)state;
    assert_refused("{" ENTRY("t", "F32", "[2]", "[0,4]") "}", 4, E_FORMAT,
                   "span 4 bytes, expected 8");
    assert_refused("{" ENTRY("t", "F32", "[]", "[0,8]") "}", 8, E_FORMAT,
                   "span 8 bytes, expected 4");
    assert_refused("{" ENTRY("t", "F32", "[-1]", "[0,4]") "}", 4, E_FORMAT,
                   "expected integers >= 0");
    assert_refused("{" ENTRY("t", "F32", "[1.0]", "[0,4]") "}", 4, E_FORMAT,
                   "expected integers >= 0");
    assert_refused("{" ENTRY("t", "U8", "[9223372036854775807,3]", "[0,4]") "}", 4, E_FORMAT,
                   "overflows");
    assert_refused("{" ENTRY("t", "U8", "[4294967296,4294967296]", "[0,0]") "}", 0, E_FORMAT,
                   "overflows");
    assert_refused("{" ENTRY("t", "F64", "[4611686018427387904]", "[0,0]") "}", 0, E_FORMAT,
                   "overflows");
    assert_refused("{" ENTRY("t", "U8", "[9223372036854775808]", "[0,4]") "}", 4, E_FORMAT,
                   "expected integers >= 0");
}

static void spans_must_lie_inside_the_data(void **state)
{
    (void)state;
    assert_refused("{" ENTRY("t", "U8", "[4]", "[0,4]") "}", 3, E_FORMAT, "inside the 3 bytes");
    assert_refused("{" ENTRY("t", "U8", "[0]", "[9,9]") "}", 3, E_FORMAT, "inside the 3 bytes");
    assert_refused("{" ENTRY("t", "U8", "[4]", "[4,0]") "}", 4, E_FORMAT, "in order");
    assert_refused("{" ENTRY("t", "U8", "[4]", "[-4,0]") "}", 4, E_FORMAT, "two integers");
    assert_refused("{" ENTRY("t", "U8", "[4]", "[0,4,8]") "}", 4, E_FORMAT, "two integers");
    assert_refused("{" ENTRY("t", "U8", "[9223372036854775807]", "[0,9223372036854775807]") "}", 4,
                   E_FORMAT, "inside");
}

static void overlaps_gaps_and_unused_data_are_refused(void **state)
{
    (void)state;
    assert_refused(
        "{" ENTRY("a", "U8", "[4]", "[0,4]") "," ENTRY("b", "U8", "[4]", "[2,6]") "}", 6, E_FORMAT,
        "tensor 'b': begins at offset 2 of the data, overlapping the one that ends at 4");
    assert_refused("{" ENTRY("a", "U8", "[4]", "[0,4]") "," ENTRY("b", "U8", "[4]", "[0,4]") "}", 4,
                   E_FORMAT, "overlapping");
    assert_refused("{" ENTRY("a", "U8", "[2]", "[0,2]") "," ENTRY("b", "U8", "[2]", "[4,6]") "}", 6,
                   E_FORMAT, "after a gap from 2");
    assert_refused("{" ENTRY("a", "U8", "[2]", "[0,2]") "}", 6, E_FORMAT,
                   "the tensors end at offset 2 of 6");
}

static void unaligned_tensors_are_copied_to_aligned_memory(void **state)
{
    struct buf b = make_file(
        "{" ENTRY("a", "U8", "[3]", "[0,3]") "," ENTRY("f", "F32", "[2]", "[3,11]") "}", 11);
    const struct source_tensor *t;
    struct safetensors *s;
    struct err e;

    (void)state;
    assert_int_equal(safetensors_parse(&s, b.p, b.n, "x", &e), OK);
    t = safetensors_find(s, STR("f"));
    assert_int_equal((uintptr_t)t->data % 4, 0);
    assert_memory_equal(t->data, "\3\4\5\6\7\10\11\12", 8);
    safetensors_close(s);
    buf_release(&b);
}

static void more_than_four_dimensions_fold_into_the_first(void **state)
{
    struct buf b = make_file("{" ENTRY("t", "U8", "[2,1,3,1,2,1]", "[0,12]") "}", 12);
    const struct source_tensor *t;
    struct safetensors *s;
    struct err e;

    (void)state;
    assert_int_equal(safetensors_parse(&s, b.p, b.n, "x", &e), OK);
    t = safetensors_tensor(s, 0);
    assert_int_equal(t->n_dims, 4);
    assert_true(t->dims[0] == 6 && t->dims[1] == 1 && t->dims[2] == 2 && t->dims[3] == 1);
    safetensors_close(s);
    buf_release(&b);
}

static void assert_index_refused(const char *json, int code, const char *saying)
{
    struct safetensors *s = NULL;
    struct err e = { 0 };
    int rc = safetensors_open_index(&s, temp_dir(), str_c(json), "index.json", &e);

    if (rc != code || !strstr(e.msg, saying)) print_message("result: %d %s\n", rc, e.msg);
    assert_int_equal(rc, code);
    assert_non_null(strstr(e.msg, saying));
}

static void write_shard(const char *name, const char *header, size_t n_data)
{
    struct buf b = make_file(header, n_data);
    temp_file(name, b.p, b.n);
    buf_release(&b);
}

static void shards_are_read_through_the_index(void **state)
{
    struct safetensors *s;
    struct str v;
    struct err e;

    (void)state;
    write_shard("m-1.safetensors",
                "{" ENTRY("a", "U8", "[1]", "[0,1]") "," ENTRY("x", "U8", "[1]", "[1,2]") "}", 2);
    write_shard("m-2.safetensors",
                "{" ENTRY("b", "U8", "[3]", "[0,3]") "," ENTRY("a", "U8", "[2]", "[3,5]") "}", 5);
    assert_int_equal(
        safetensors_open_index(&s, temp_dir(),
                               STR("{\"metadata\":{\"total\":\"4\"},\"weight_map\":{\"a\":"
                                   "\"m-1.safetensors\",\"b\":\"m-2.safetensors\"}}"),
                               "index.json", &e),
        OK);
    assert_int_equal(safetensors_n_tensors(s), 2);
    assert_int_equal(safetensors_find(s, STR("a"))->bytes, 1); /* the tensor of the first shard */
    assert_int_equal(safetensors_find(s, STR("b"))->bytes, 3);
    assert_null(safetensors_find(s, STR("x")));
    assert_true(safetensors_meta(s, "total", &v) && str_is(v, "4"));
    safetensors_close(s);
}

static void an_index_stays_inside_its_folder(void **state)
{
    (void)state;
    assert_index_refused("{\"weight_map\":{\"a\":\"../m.safetensors\"}}", E_FORMAT,
                         "must stay inside the folder");
    assert_index_refused("{\"weight_map\":{\"a\":\"/etc/passwd\"}}", E_FORMAT,
                         "must stay inside the folder");
    assert_index_refused("{\"weight_map\":{\"a\":\"x/../../y\"}}", E_FORMAT,
                         "must stay inside the folder");
    assert_index_refused("{\"weight_map\":{\"a\":\"\"}}", E_FORMAT, "must stay inside the folder");
}

static void an_inconsistent_index_is_refused(void **state)
{
    (void)state;
    write_shard("one.safetensors", "{" ENTRY("a", "U8", "[1]", "[0,1]") "}", 1);
    write_shard("bad.safetensors", "{" ENTRY("a", "U8", "[1]", "[0,1]") "}", 0);
    assert_index_refused("", E_FORMAT, "index.json: line 1");
    assert_index_refused("[]", E_FORMAT, "expected \"weight_map\"");
    assert_index_refused("{\"weight_map\":{\"a\":1}}", E_FORMAT,
                         "tensor 'a': expected the name of a tensor and that of a file");
    assert_index_refused("{\"weight_map\":{\"b\":\"one.safetensors\"}}", E_FORMAT,
                         "tensor 'b' is not in one.safetensors");
    assert_index_refused("{\"weight_map\":{\"a\":\"none.safetensors\"}}", E_NOTFOUND,
                         "none.safetensors: the shard is missing, which index.json names");
    assert_index_refused("{\"weight_map\":{\"a\":\"bad.safetensors\"}}", E_FORMAT,
                         "bad.safetensors: tensor 'a'");
    assert_index_refused("{\"weight_map\":{\"a\":\"one.safetensors\",\"a\":\"one.safetensors\"}}",
                         E_FORMAT, "duplicate");
}

static void golden_files_give_their_margin(void **state)
{
    struct safetensors *s;
    struct str v;
    double margin;
    struct err e;

    (void)state;
    need_shared("fixtures/hf/llama/golden.safetensors");
    assert_int_equal(safetensors_open(&s, shared("fixtures/hf/llama/golden.safetensors"), &e), OK);
    assert_true(safetensors_meta(s, "greedy_margin", &v) && str_to_f64(v, &margin) && margin > 0);
    assert_int_equal(safetensors_find(s, STR("input_ids"))->type, DT_I64);
    assert_int_equal(safetensors_find(s, STR("logits"))->n_dims, 2);
    safetensors_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_and_metadata_are_read),
        cmocka_unit_test(every_dtype_is_known),
        cmocka_unit_test(every_shorter_file_is_refused),
        cmocka_unit_test(files_with_a_changed_byte_do_not_crash),
        cmocka_unit_test(header_lengths_are_bounded),
        cmocka_unit_test(headers_that_are_not_json_are_refused),
        cmocka_unit_test(names_with_control_characters_are_refused),
        cmocka_unit_test(a_header_with_too_many_json_values_is_refused),
        cmocka_unit_test(duplicate_names_are_refused),
        cmocka_unit_test(deep_json_is_refused),
        cmocka_unit_test(shape_and_span_must_agree),
        cmocka_unit_test(spans_must_lie_inside_the_data),
        cmocka_unit_test(overlaps_gaps_and_unused_data_are_refused),
        cmocka_unit_test(unaligned_tensors_are_copied_to_aligned_memory),
        cmocka_unit_test(more_than_four_dimensions_fold_into_the_first),
        cmocka_unit_test(shards_are_read_through_the_index),
        cmocka_unit_test(an_index_stays_inside_its_folder),
        cmocka_unit_test(an_inconsistent_index_is_refused),
        cmocka_unit_test(golden_files_give_their_margin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
