/* The GGUF reader: values, lists, tensors, split files, and every kind of invalid file.
 *
 * Files are written byte by byte (gguf_bytes.h). Real vocabularies are read from ../shared and
 * skipped without them. */
#include "support.h"

#include "base/file.h"
#include "base/mem.h"
#include "format/gguf.h"
#include "gguf_bytes.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* Parses a copy of exactly these bytes, so that a sanitizer finds reads past them. */
static int parse_copy(struct buf *b, size_t n, struct gguf **out, void **copy, struct err *e)
{
    *copy = mem_dup(b->p, n);
    *out = NULL;
    return gguf_parse(out, *copy, n, "sample.gguf", e);
}

static void assert_refused(struct buf *b, int code, const char *saying)
{
    struct gguf *g;
    struct err e = { 0 };
    void *copy;
    int rc = parse_copy(b, b->n, &g, &copy, &e);

    if (rc != code || !strstr(e.msg, saying)) print_message("result: %d %s\n", rc, e.msg);
    assert_int_equal(rc, code);
    assert_non_null(strstr(e.msg, saying));
    assert_int_equal(strncmp(e.msg, "sample.gguf: ", 13), 0);
    assert_null(g);
    mem_free(copy);
    buf_release(b);
}

static void assert_accepted(struct buf *b)
{
    struct gguf *g;
    struct err e = { 0 };
    void *copy;
    int rc = parse_copy(b, b->n, &g, &copy, &e);

    if (rc != OK) print_message("result: %d %s\n", rc, e.msg);
    assert_int_equal(rc, OK);
    gguf_close(g);
    mem_free(copy);
    buf_release(b);
}

static struct value get_key(const struct gguf *g, const char *name)
{
    struct value v;
    assert_true(gguf_key(g, str_c(name), &v));
    return v;
}

static void scalars_of_every_type_are_read(void **state)
{
    struct buf b = { 0 };
    struct gguf *g;
    struct value v;
    struct err e;

    (void)state;
    put_sample(&b);
    assert_int_equal(gguf_parse(&g, b.p, b.n, "sample.gguf", &e), OK);
    assert_int_equal(gguf_n_keys(g), 16);
    assert_string_equal(gguf_key_name(g, 2), "t.u8");
    assert_int_equal(gguf_key_type(g, 3), GGUF_I8);
    assert_true(str_is(get_key(g, "general.architecture").s, "llama"));
    v = get_key(g, "t.u8"), assert_true(v.kind == VALUE_UINT && v.u == 200);
    v = get_key(g, "t.i8"), assert_true(v.kind == VALUE_INT && v.i == -2);
    v = get_key(g, "t.u16"), assert_true(v.kind == VALUE_UINT && v.u == 0xf234);
    v = get_key(g, "t.i16"), assert_true(v.kind == VALUE_INT && v.i == INT16_MIN);
    v = get_key(g, "t.i32"), assert_true(v.kind == VALUE_INT && v.i == -7);
    v = get_key(g, "t.f32"), assert_true(v.kind == VALUE_FLOAT && v.f == 1.5);
    v = get_key(g, "t.bool"), assert_true(v.kind == VALUE_BOOL && v.b);
    v = get_key(g, "t.u64"), assert_true(v.kind == VALUE_UINT && v.u == UINT64_MAX);
    v = get_key(g, "t.i64"), assert_true(v.kind == VALUE_INT && v.i == INT64_MIN);
    v = get_key(g, "t.f64"), assert_true(v.kind == VALUE_FLOAT && v.f == -2.25);
    assert_false(gguf_key(g, STR("t.none"), &v));
    gguf_close(g);
    buf_release(&b);
}

static void lists_are_reached_by_index(void **state)
{
    struct buf b = { 0 };
    struct gguf *g;
    struct value v, x, y;
    struct err e;

    (void)state;
    put_sample(&b);
    assert_int_equal(gguf_parse(&g, b.p, b.n, "sample.gguf", &e), OK);
    v = get_key(g, "t.strs");
    assert_true(v.kind == VALUE_LIST && v.n == 3 && v.elem == GGUF_STR);
    assert_true(value_at(&v, 2, &x) && str_is(x.s, "ccc"));
    assert_true(value_at(&v, 0, &x) && str_is(x.s, "a"));
    assert_true(value_at(&v, 1, &x) && x.s.n == 0);
    assert_false(value_at(&v, 3, &x));
    v = get_key(g, "t.i16s");
    assert_true(value_at(&v, 0, &x) && x.kind == VALUE_INT && x.i == 5);
    assert_true(value_at(&v, 1, &x) && x.i == -1);
    v = get_key(g, "t.bools");
    assert_true(value_at(&v, 1, &x) && x.kind == VALUE_BOOL && !x.b);
    v = get_key(g, "t.nested");
    assert_true(value_at(&v, 0, &x) && x.n == 2 && value_at(&x, 1, &y) && y.u == 9);
    assert_true(value_at(&v, 1, &x) && x.n == 1 && value_at(&x, 0, &y) && str_is(y.s, "deep"));
    gguf_close(g);
    buf_release(&b);
}

static void tensors_are_found_with_their_shape_and_bytes(void **state)
{
    struct buf b = { 0 };
    struct gguf *g;
    const struct source_tensor *t;
    struct err e;

    (void)state;
    put_sample(&b);
    assert_int_equal(gguf_parse(&g, b.p, b.n, "sample.gguf", &e), OK);
    assert_int_equal(gguf_n_tensors(g), 3);
    t = gguf_find(g, STR("q"));
    assert_ptr_equal(t, gguf_tensor(g, 1));
    assert_true(t->type == DT_Q8_0 && t->n_dims == 2 && t->dims[0] == 2 && t->dims[1] == 32 &&
                t->dims[2] == 1);
    assert_int_equal(t->bytes, 2 * 34);
    assert_int_equal(((const uint8_t *)t->data)[0], 32);
    t = gguf_find(g, STR("y"));
    assert_int_equal(((const uint8_t *)t->data)[7], 135);
    assert_null(gguf_find(g, STR("z")));
    gguf_close(g);
    buf_release(&b);
}

static void every_shorter_file_is_refused(void **state)
{
    struct buf b = { 0 };

    (void)state;
    put_sample(&b);
    for (size_t n = 0; n < b.n; n++) {
        struct gguf *g;
        struct err e = { 0 };
        void *copy;
        assert_int_equal(parse_copy(&b, n, &g, &copy, &e), E_FORMAT);
        assert_non_null(strstr(e.msg, "sample.gguf: "));
        mem_free(copy);
    }
    buf_release(&b);
}

static void files_with_a_changed_byte_do_not_crash(void **state)
{
    static const uint8_t changes[] = { 0x00, 0x01, 0x7f, 0x80, 0xff };
    struct buf b = { 0 };

    (void)state;
    put_sample(&b);
    for (size_t i = 0; i < b.n; i++)
        for (size_t k = 0; k < sizeof changes; k++) {
            char old = b.p[i];
            struct gguf *g;
            struct err e;
            void *copy;
            b.p[i] = (char)changes[k];
            if (parse_copy(&b, b.n, &g, &copy, &e) == OK) gguf_close(g);
            mem_free(copy);
            b.p[i] = old;
        }
    buf_release(&b);
}

static void other_files_are_named_by_their_first_bytes(void **state)
{
    struct buf b = { 0 };

    (void)state;
    buf_puts(&b, "PK\3\4 and the rest of an archive");
    assert_refused(&b, E_FORMAT, "begins with the bytes 50 4b 03 04");
}

static void versions_2_and_3_are_read_and_no_others(void **state)
{
    struct buf b = { 0 };

    (void)state;
    put_head(&b, 2, 0, 0), assert_accepted(&b);
    put_head(&b, 3, 0, 0), assert_accepted(&b);
    put_head(&b, 1, 0, 0), assert_refused(&b, E_UNSUPPORTED, "is GGUF version 1, expected 2 or 3");
    put_head(&b, 4, 0, 0), assert_refused(&b, E_UNSUPPORTED, "is GGUF version 4");
    put_head(&b, 0, 0, 0), assert_refused(&b, E_UNSUPPORTED, "is GGUF version 0");
    put_head(&b, 0x03000000, 0, 0), assert_refused(&b, E_UNSUPPORTED, "big-endian");
}

static void hostile_counts_are_refused_before_memory_is_allocated(void **state)
{
    struct buf b = { 0 };
    const uint64_t huge = (uint64_t)1 << 63;

    (void)state;
    put_head(&b, 3, huge, 0), assert_refused(&b, E_FORMAT, "9223372036854775808 tensors");
    put_head(&b, 3, 0, huge), assert_refused(&b, E_FORMAT, "9223372036854775808 keys");
    put_head(&b, 3, UINT64_MAX, UINT64_MAX), assert_refused(&b, E_FORMAT, "tensors");
    put_head(&b, 3, 1, 0), assert_refused(&b, E_FORMAT, "1 tensors");
    for (uint32_t elem = 0; elem < GGUF_N_TYPES; elem++) {
        put_head(&b, 3, 0, 1), put_key(&b, "list", GGUF_LIST), put_list(&b, elem, huge),
            put_zeros(&b, 64);
        assert_refused(&b, E_FORMAT, "'list'");
        put_head(&b, 3, 0, 1), put_key(&b, "list", GGUF_LIST), put_list(&b, elem, UINT64_MAX),
            put_zeros(&b, 64);
        assert_refused(&b, E_FORMAT, "'list'");
    }
}

static void hostile_string_lengths_are_refused(void **state)
{
    struct buf b = { 0 };

    (void)state;
    put_head(&b, 3, 0, 1), put_u64(&b, UINT64_MAX), put_zeros(&b, 32);
    assert_refused(&b, E_FORMAT, "byte 24: the name of a key of 18446744073709551615 bytes");
    put_head(&b, 3, 0, 1), put_u64(&b, 0), put_zeros(&b, 32);
    assert_refused(&b, E_FORMAT, "of 0 bytes");
    put_head(&b, 3, 0, 1), put_key(&b, "k", GGUF_STR), put_u64(&b, (uint64_t)1 << 63),
        put_zeros(&b, 32);
    assert_refused(&b, E_FORMAT, "the value of key 'k'");
    put_head(&b, 3, 0, 1), put_key(&b, "k", GGUF_LIST), put_list(&b, GGUF_STR, 2),
        put_u64(&b, UINT64_MAX - 7);
    put_zeros(&b, 32), assert_refused(&b, E_FORMAT, "a string of key 'k'");
}

static void names_that_are_not_utf8_are_refused(void **state)
{
    struct buf b = { 0 };

    (void)state;
    put_head(&b, 3, 0, 1), put_key_u32(&b, "general.\xff\xfe", 1);
    assert_refused(&b, E_FORMAT, "byte 40: the name of a key is not UTF-8");
    put_head(&b, 3, 0, 1), put_key_u32(&b, "a\x1b[2J", 1);
    assert_refused(&b, E_FORMAT, "control character 0x1b");
    put_head(&b, 3, 1, 0), put_tensor(&b, "bad\xc0\x80", 1, 1, DT_F32, 0), put_padding(&b, 32),
        put_zeros(&b, 32);
    assert_refused(&b, E_FORMAT, "the name of a tensor is not UTF-8");
}

static void duplicate_keys_and_tensors_are_refused(void **state)
{
    struct buf b = { 0 };

    (void)state;
    put_head(&b, 3, 0, 2), put_key_u32(&b, "k", 1), put_key_u32(&b, "k", 2);
    assert_refused(&b, E_FORMAT, "key 'k' appears twice");
    put_head(&b, 3, 2, 0), put_tensor(&b, "t", 1, 8, DT_F32, 0),
        put_tensor(&b, "t", 1, 8, DT_F32, 32);
    put_padding(&b, 32), put_zeros(&b, 64);
    assert_refused(&b, E_FORMAT, "tensor 't' appears twice");
}

static void unknown_types_are_refused(void **state)
{
    struct buf b = { 0 };

    (void)state;
    put_head(&b, 3, 0, 1), put_key(&b, "k", 13), put_zeros(&b, 8);
    assert_refused(&b, E_FORMAT, "key 'k' has value type 13");
    put_head(&b, 3, 0, 1), put_key(&b, "k", GGUF_LIST), put_list(&b, 99, 1), put_zeros(&b, 8);
    assert_refused(&b, E_FORMAT, "key 'k' has value type 99");
    put_head(&b, 3, 0, 1), put_key(&b, "k", GGUF_BOOL), put_u8(&b, 2);
    assert_refused(&b, E_FORMAT, "key 'k' has the truth value 2");
    put_head(&b, 3, 1, 0), put_tensor(&b, "t", 1, 8, 4, 0), put_zeros(&b, 96);
    assert_refused(&b, E_UNSUPPORTED, "tensor 't' has type 4");
    put_head(&b, 3, 1, 0), put_tensor(&b, "t", 1, 8, DT_U8, 0), put_zeros(&b, 96);
    assert_refused(&b, E_UNSUPPORTED, "tensor 't' has type 50");
    put_head(&b, 3, 1, 0), put_tensor(&b, "t", 1, 8, UINT32_MAX, 0), put_zeros(&b, 96);
    assert_refused(&b, E_UNSUPPORTED, "tensor 't' has type 4294967295");
}

static void deeply_nested_lists_are_refused(void **state)
{
    struct buf b = { 0 };

    (void)state;
    for (int depth = 4; depth <= 200; depth += 196) {
        put_head(&b, 3, 0, 1), put_key(&b, "k", GGUF_LIST);
        for (int i = 1; i < depth; i++) put_list(&b, GGUF_LIST, 1);
        put_list(&b, GGUF_U8, 0);
        if (depth == 4) assert_accepted(&b);
        else assert_refused(&b, E_UNSUPPORTED, "key 'k' nests lists more than");
    }
}

static void bad_shapes_are_refused(void **state)
{
    struct buf b = { 0 };

    (void)state;
    put_head(&b, 3, 1, 0), put_tensor(&b, "t", 0, 8, DT_F32, 0), put_zeros(&b, 96);
    assert_refused(&b, E_FORMAT, "tensor 't' has the dimension 0");
    put_head(&b, 3, 1, 0), put_tensor(&b, "t", (uint64_t)1 << 63, 8, DT_F32, 0), put_zeros(&b, 96);
    assert_refused(&b, E_FORMAT, "tensor 't' has the dimension 9223372036854775808");
    put_head(&b, 3, 1, 0), put_tensor(&b, "t", (uint64_t)1 << 62, 4, DT_F32, 0), put_zeros(&b, 96);
    assert_refused(&b, E_FORMAT, "its dimensions overflow");
    put_head(&b, 3, 1, 0), put_tensor(&b, "t", 1, (uint64_t)1 << 62, DT_F32, 0), put_zeros(&b, 96);
    assert_refused(&b, E_FORMAT, "its dimensions overflow");
    put_head(&b, 3, 1, 0), put_tensor(&b, "t", 1, 33, DT_Q4_0, 0), put_zeros(&b, 96);
    assert_refused(&b, E_FORMAT, "rows of 33 elements, expected a multiple of Q4_0's 32");
    for (uint32_t n_dims = 0; n_dims <= 5; n_dims += 5) {
        put_head(&b, 3, 1, 0), put_str(&b, "t"), put_u32(&b, n_dims), put_zeros(&b, 96);
        assert_refused(&b, E_FORMAT,
                       n_dims ? "tensor 't' has 5 dimensions" : "tensor 't' has 0 dimensions");
    }
}

static void a_tensor_past_the_end_is_refused(void **state)
{
    struct buf b = { 0 };
    static const uint64_t offsets[] = { 32, 1 << 20, (uint64_t)1 << 63, UINT64_MAX - 31 };

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        put_head(&b, 3, 1, 0), put_tensor(&b, "t", 1, 8, DT_F32, offsets[i]), put_padding(&b, 32),
            put_zeros(&b, 32);
        assert_refused(&b, E_FORMAT, "tensor 't' ends past the end of the file");
    }
    put_head(&b, 3, 1, 0), put_tensor(&b, "t", 1, 8, DT_F32, 0); /* no data and no padding */
    assert_refused(&b, E_FORMAT, "tensor 't' ends past the end of the file");
}

static void overlapping_tensors_are_refused(void **state)
{
    struct buf b = { 0 };

    (void)state;
    put_head(&b, 3, 2, 0), put_tensor(&b, "a", 2, 8, DT_F32, 0),
        put_tensor(&b, "b", 1, 8, DT_F32, 32);
    put_padding(&b, 32), put_zeros(&b, 64);
    assert_refused(&b, E_FORMAT, "tensors 'a' and 'b' overlap");
    put_head(&b, 3, 2, 0), put_tensor(&b, "a", 1, 8, DT_F32, 32),
        put_tensor(&b, "b", 1, 8, DT_F32, 32);
    put_padding(&b, 32), put_zeros(&b, 64);
    assert_refused(&b, E_FORMAT, "overlap");
    put_head(&b, 3, 2, 0), put_tensor(&b, "a", 1, 8, DT_F32, 32),
        put_tensor(&b, "b", 1, 8, DT_F32, 0);
    put_padding(&b, 32), put_zeros(&b, 64);
    assert_accepted(&b); /* any order is fine */
}

static void alignment_is_checked_and_applied(void **state)
{
    static const uint32_t bad[] = { 0, 1, 4, 24, 33, 1u << 21, UINT32_MAX };
    struct buf b = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put_head(&b, 3, 0, 1), put_key_u32(&b, "general.alignment", bad[i]);
        assert_refused(&b, E_FORMAT, "general.alignment is");
    }
    put_head(&b, 3, 0, 1), put_key(&b, "general.alignment", GGUF_STR), put_str(&b, "32");
    assert_refused(&b, E_FORMAT, "general.alignment is 0");
    put_head(&b, 3, 1, 0), put_tensor(&b, "t", 1, 8, DT_F32, 8), put_padding(&b, 32),
        put_zeros(&b, 64);
    assert_refused(&b, E_FORMAT, "tensor 't' is at offset 8, expected a multiple of 32");
    put_head(&b, 3, 1, 1), put_key_u32(&b, "general.alignment", 256),
        put_tensor(&b, "t", 1, 8, DT_F32, 256);
    put_padding(&b, 256), put_zeros(&b, 256 + 32);
    assert_accepted(&b);
}

static void overlaps_of_many_tensors_are_checked_quickly(void **state)
{
    struct buf b = { 0 };
    const unsigned n = 50000;

    (void)state;
    put_head(&b, 3, n, 0);
    for (unsigned i = 0; i < n; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%u", i);
        put_tensor(&b, name, 1, 8, DT_F32, (uint64_t)((n - 1 - i) ^ 1) * 32);
    }
    put_padding(&b, 32);
    put_zeros(&b, n * 32);
    assert_accepted(&b);
}

/* Writes part `no` of `count` with one tensor; no_says: the number that the part itself claims
 * to have. */
static const char *write_part(const char *stem, unsigned no, unsigned count, unsigned no_says,
                              const char *tensor)
{
    struct buf b = { 0 };
    char name[64];
    const char *path;

    snprintf(name, sizeof name, "%s-%05u-of-%05u.gguf", stem, no + 1, count);
    put_head(&b, 3, 1, 4);
    put_key(&b, "split.no", GGUF_U16), put_u8(&b, (uint8_t)no_says), put_u8(&b, 0);
    put_key(&b, "split.count", GGUF_U16), put_u8(&b, (uint8_t)count), put_u8(&b, 0);
    put_key(&b, "split.tensors.count", GGUF_I32), put_u32(&b, 3);
    put_key_u32(&b, "which", no);
    put_tensor(&b, tensor, 1, 8, DT_F32, 0), put_padding(&b, 32), put_zeros(&b, 31),
        put_u8(&b, (uint8_t)no);
    path = temp_file(name, b.p, b.n);
    buf_release(&b);
    return path;
}

static void assert_path_refused(const char *path, int code, const char *saying)
{
    struct gguf *g = NULL;
    struct err e = { 0 };
    int rc = gguf_open(&g, path, &e);

    if (rc != code || !strstr(e.msg, saying)) print_message("result: %d %s\n", rc, e.msg);
    assert_int_equal(rc, code);
    assert_non_null(strstr(e.msg, saying));
}

static void any_part_of_a_split_model_opens_all_parts(void **state)
{
    const char *paths[3];

    (void)state;
    paths[0] = write_part("set", 0, 3, 0, "a");
    paths[1] = write_part("set", 1, 3, 1, "b");
    paths[2] = write_part("set", 2, 3, 2, "c");
    for (int i = 0; i < 3; i++) {
        struct gguf *g;
        struct err e;
        assert_int_equal(gguf_open(&g, paths[i], &e), OK);
        assert_int_equal(gguf_n_tensors(g), 3);
        assert_int_equal(((const uint8_t *)gguf_find(g, STR("c"))->data)[31], 2);
        assert_int_equal(get_key(g, "which").u, 0);
        gguf_close(g);
    }
}

static void damaged_split_models_are_refused(void **state)
{
    const char *first = write_part("gone", 0, 3, 0, "a");

    (void)state;
    write_part("gone", 1, 3, 1, "b");
    assert_path_refused(first, E_NOTFOUND, "gone-00003-of-00003.gguf: part 3 of 3 is missing");
    assert_path_refused(write_part("head", 1, 3, 1, "b"), E_NOTFOUND,
                        "head-00001-of-00003.gguf: part 1 of 3 is missing");
    first = write_part("order", 0, 3, 0, "a");
    write_part("order", 1, 3, 2, "b");
    assert_path_refused(first, E_FORMAT, "order-00002-of-00003.gguf: expected split.no 1");
    first = write_part("twice", 0, 2, 0, "a");
    write_part("twice", 1, 2, 1, "a");
    assert_path_refused(first, E_FORMAT, "tensor 'a' is in an earlier part too");
    first = write_part("few", 0, 2, 0, "a");
    write_part("few", 1, 2, 1, "b");
    assert_path_refused(first, E_FORMAT, "hold 2 tensors, expected split.tensors.count = 3");
    first = write_part("name", 0, 3, 0, "a");
    char *other = path_join(temp_dir(), "renamed.gguf");
    assert_int_equal(rename(first, other), 0);
    assert_path_refused(other, E_FORMAT, "a name like NAME-00001-of-0000N.gguf");
    mem_free(other);
}

static void the_error_for_an_unreadable_file_has_the_reason(void **state)
{
    (void)state;
    assert_path_refused("/nonexistent/x.gguf", E_NOTFOUND, "/nonexistent/x.gguf: ");
    assert_path_refused(temp_dir(), E_IO, "is a directory");
    assert_path_refused(temp_file("empty.gguf", "", 0), E_FORMAT, "truncated");
}

static void a_file_without_permission_is_refused(void **state)
{
    const char *path = temp_file("locked.gguf", "GGUF", 4);

    (void)state;
    if (geteuid() == 0) {
        print_message("skipped: root may read everything\n");
        skip();
    }
    assert_int_equal(chmod(path, 0), 0);
    assert_path_refused(path, E_IO, "Permission denied");
}

static void real_vocabularies_open(void **state)
{
    static const struct {
        const char *path;
        size_t n_tokens;
    } files[] = {
        { "fixtures/vocab/ggml-vocab-llama-spm.gguf", 32000 },
        { "fixtures/vocab/ggml-vocab-gpt-2.gguf", 50257 },
        { "fixtures/vocab/ggml-vocab-deepseek-llm.gguf", 102400 },
        { "models/third-party/stories260K-f32.gguf", 512 },
    };

    (void)state;
    need_shared("fixtures/vocab");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct gguf *g;
        struct err e;
        struct value v, x;
        size_t bytes = 0;
        need_shared(files[i].path);
        assert_int_equal(gguf_open(&g, shared(files[i].path), &e), OK);
        v = get_key(g, "tokenizer.ggml.tokens");
        assert_int_equal(v.n, files[i].n_tokens);
        for (size_t k = 0; k < v.n; k++) {
            assert_true(value_at(&v, k, &x) && x.kind == VALUE_STR);
            bytes += x.s.n;
        }
        assert_true(bytes > v.n);
        gguf_close(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalars_of_every_type_are_read),
        cmocka_unit_test(lists_are_reached_by_index),
        cmocka_unit_test(tensors_are_found_with_their_shape_and_bytes),
        cmocka_unit_test(every_shorter_file_is_refused),
        cmocka_unit_test(files_with_a_changed_byte_do_not_crash),
        cmocka_unit_test(other_files_are_named_by_their_first_bytes),
        cmocka_unit_test(versions_2_and_3_are_read_and_no_others),
        cmocka_unit_test(hostile_counts_are_refused_before_memory_is_allocated),
        cmocka_unit_test(hostile_string_lengths_are_refused),
        cmocka_unit_test(names_that_are_not_utf8_are_refused),
        cmocka_unit_test(duplicate_keys_and_tensors_are_refused),
        cmocka_unit_test(unknown_types_are_refused),
        cmocka_unit_test(deeply_nested_lists_are_refused),
        cmocka_unit_test(bad_shapes_are_refused),
        cmocka_unit_test(a_tensor_past_the_end_is_refused),
        cmocka_unit_test(overlapping_tensors_are_refused),
        cmocka_unit_test(alignment_is_checked_and_applied),
        cmocka_unit_test(overlaps_of_many_tensors_are_checked_quickly),
        cmocka_unit_test(any_part_of_a_split_model_opens_all_parts),
        cmocka_unit_test(damaged_split_models_are_refused),
        cmocka_unit_test(the_error_for_an_unreadable_file_has_the_reason),
        cmocka_unit_test(a_file_without_permission_is_refused),
        cmocka_unit_test(real_vocabularies_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
