/* Model sources (format/source): GGUF files, Hugging Face folders and lone safetensors files
 * behind one interface; what each refuses.
 *
 * Files and folders are temporary. Models of ../shared are read too; those tests are skipped
 * without them. */
#include "support.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "format/hfconfig.h"
#include "format/source.h"
#include "gguf_bytes.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static struct source *open_source(const char *path)
{
    struct source *s = NULL;
    struct err e = { 0 };

    if (source_open(&s, path, &e) != OK) print_message("result: %s\n", e.msg);
    assert_non_null(s);
    return s;
}

static void assert_refused(const char *path, int code, const char *saying)
{
    struct source *s = NULL;
    struct err e = { 0 };
    int rc = source_open(&s, path, &e);

    if (rc != code || !strstr(e.msg, saying)) print_message("result: %d %s\n", rc, e.msg);
    assert_int_equal(rc, code);
    assert_non_null(strstr(e.msg, saying));
    assert_int_equal(strncmp(e.msg, path, strlen(path)), 0);
}

/* Makes an empty folder; write_file writes a file into it. */
static const char *make_folder(const char *name)
{
    static char path[512];

    snprintf(path, sizeof path, "%s/%s", temp_dir(), name);
    assert_int_equal(mkdir(path, 0700), 0);
    return path;
}

static void write_file(const char *dir, const char *name, const void *p, size_t n)
{
    char path[600];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    fclose(f);
}

static void write_text(const char *dir, const char *name, const char *text)
{
    write_file(dir, name, text, strlen(text));
}

static void write_weights(const char *dir, const char *name)
{
    static const char header[] =
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}      ";
    struct buf b = { 0 };

    put_u64(&b, sizeof header - 1);
    buf_puts(&b, header);
    put_zeros(&b, 8);
    write_file(dir, name, b.p, b.n);
    buf_release(&b);
}

static void a_gguf_file_is_recognized_by_its_content(void **state)
{
    struct buf b = { 0 };
    struct source *s;
    struct str v;
    uint64_t u;
    int64_t i;
    double f;
    bool flag;

    (void)state;
    put_sample(&b);
    s = open_source(temp_file("model.bin", b.p, b.n));
    assert_int_equal(source_kind(s), SOURCE_GGUF);
    assert_int_equal(source_n_keys(s), 16);
    assert_string_equal(source_key_name(s, 0), "general.architecture");
    assert_true(source_str(s, "general.architecture", &v) && str_is(v, "llama"));
    assert_true(source_u64(s, "t.u8", &u) && u == 200);
    assert_true(source_i64(s, "t.i8", &i) && i == -2);
    assert_false(source_u64(s, "t.i8", &u));
    assert_true(source_f64(s, "t.f32", &f) && f == 1.5);
    assert_true(source_bool(s, "t.bool", &flag) && flag);
    assert_false(source_bool(s, "t.u8", &flag));
    assert_false(source_str(s, "t.u8", &v));
    assert_int_equal(source_bytes(s), 24 + 68 + 8);
    assert_non_null(source_find(s, "q"));
    assert_null(source_find(s, "none"));
    assert_null(source_file(s, "tokenizer.json"));
    assert_non_null(source_gguf(s));
    source_close(s);
    buf_release(&b);
}

static void a_folder_gives_the_keys_of_its_three_config_files(void **state)
{
    const char *dir = make_folder("three");
    struct source *s;
    struct value v, x;
    struct str t;
    uint64_t u;
    double f;
    char *file;

    (void)state;
    write_weights(dir, "model.safetensors");
    write_text(
        dir, "config.json",
        "{\"n\": 7, \"eps\": 1e-5, \"half\": 0.5, \"off\": null, \"ids\": [2, 6], \"a.b\": 3,"
        "\"rope\": {\"factor\": 8.0, \"type\": \"yarn\", \"list\": [{\"k\": 9}]}}");
    write_text(dir, "generation_config.json", "{\"top_p\": 0.95}");
    write_text(dir, "tokenizer_config.json", "{\"bos_token\": {\"content\": \"<s>\"}}");
    s = open_source(dir);
    assert_int_equal(source_kind(s), SOURCE_HF);
    assert_true(source_u64(s, "n", &u) && u == 7);
    assert_true(source_f64(s, "n", &f) && f == 7);
    assert_true(source_u64(s, "rope.factor", &u) && u == 8); /* 8.0 is an exact integer */
    assert_false(source_u64(s, "half", &u));
    assert_true(source_str(s, "rope.type", &t) && str_is(t, "yarn"));
    assert_true(source_u64(s, "rope.list.0.k", &u) && u == 9);
    assert_true(source_u64(s, "a.b", &u) && u == 3);
    assert_true(source_u64(s, "ids.1", &u) && u == 6);
    assert_false(source_u64(s, "ids.2", &u));
    assert_false(source_key(s, "off", &v));
    assert_false(source_key(s, "rope.none", &v));
    assert_true(source_key(s, "rope", &v) && v.kind == VALUE_NONE);
    assert_true(source_key(s, "ids", &v) && v.kind == VALUE_LIST && v.n == 2 &&
                value_at(&v, 0, &x) && x.i == 2);
    assert_true(source_f64(s, "generation_config:top_p", &f) && f == 0.95);
    assert_true(source_str(s, "tokenizer_config:bos_token.content", &t) && str_is(t, "<s>"));
    assert_int_equal(source_n_keys(s), 7);
    assert_string_equal(source_key_name(s, 0), "n");
    assert_int_equal(source_find(s, "w")->bytes, 8);
    file = source_file(s, "tokenizer_config.json");
    assert_non_null(file);
    mem_free(file);
    assert_null(source_file(s, "tokenizer.json"));
    source_close(s);
}

static void optional_files_may_be_missing(void **state)
{
    const char *dir = make_folder("bare");
    struct source *s;
    struct value v;

    (void)state;
    write_weights(dir, "model.safetensors");
    write_text(dir, "config.json", "{}");
    s = open_source(dir);
    assert_false(source_key(s, "generation_config:top_p", &v));
    assert_false(source_key(s, "tokenizer_config:bos_token", &v));
    assert_int_equal(source_n_keys(s), 0);
    source_close(s);
}

static void keys_are_searched_in_text_config_second(void **state)
{
    const char *dir = make_folder("vision");
    struct source *s;
    uint64_t u;

    (void)state;
    write_weights(dir, "model.safetensors");
    write_text(dir, "config.json",
               "{\"a\": 1, \"c\": null, \"text_config\": {\"a\": 2, \"b\": 3, \"c\": 4}}");
    s = open_source(dir);
    assert_true(source_u64(s, "a", &u) && u == 1);
    assert_true(source_u64(s, "b", &u) && u == 3);
    assert_true(source_u64(s, "c", &u) && u == 4);
    source_close(s);
}

static void nan_and_infinity_as_python_writes_them_are_read(void **state)
{
    struct str text[HFCONFIG_N_FILES] = {
        STR("{\"limit\": [0.0, Infinity], \"low\": -Infinity, \"nan\": NaN, \"twice\": 1, "
            "\"twice\": 2,"
            "\"text\": \"NaN, Infinity and 12345678901234567890 \\\" stay\"}"),
        STR(""),
        STR("{\"model_max_length\": 1000000000000000019884624838656, \"id\": 123456789012345678}"),
    };
    struct hfconfig *c;
    struct value v;
    struct err e;

    (void)state;
    assert_int_equal(hfconfig_parse(&c, text, &e), OK);
    assert_true(hfconfig_key(c, "limit.1", &v) && isinf(v.f) && v.f > 0);
    assert_true(hfconfig_key(c, "low", &v) && isinf(v.f) && v.f < 0);
    assert_false(hfconfig_key(c, "nan", &v));
    assert_true(hfconfig_key(c, "twice", &v) && v.i == 2);
    assert_true(hfconfig_key(c, "text", &v) &&
                str_is(v.s, "NaN, Infinity and 12345678901234567890 \" stay"));
    assert_true(hfconfig_key(c, "tokenizer_config:model_max_length", &v) && v.kind == VALUE_FLOAT &&
                v.f > 9e29);
    assert_true(hfconfig_key(c, "tokenizer_config:id", &v) && v.kind == VALUE_INT &&
                v.i == 123456789012345678);
    hfconfig_close(c);
}

static void the_error_for_a_folder_without_a_model_names_what_is_missing(void **state)
{
    const char *dir = make_folder("none");

    (void)state;
    assert_refused(
        dir, E_NOTFOUND,
        "a folder without config.json, expected a Hugging Face model folder or a GGUF file");
    write_text(dir, "config.json", "{}");
    assert_refused(dir, E_NOTFOUND, "without model.safetensors or model.safetensors.index.json");
    write_text(dir, "config.json", "{\"a\": ");
    assert_refused(dir, E_FORMAT, "config.json: line 1");
    write_text(dir, "config.json", "[1]");
    assert_refused(dir, E_FORMAT, "config.json: expected an object");
    write_text(dir, "config.json", "");
    assert_refused(dir, E_FORMAT, "config.json: line 1");
    write_text(dir, "config.json", "{}");
    write_text(dir, "tokenizer_config.json", "{");
    assert_refused(dir, E_FORMAT, "tokenizer_config.json: line 1");
}

static void a_sharded_folder_is_read_through_its_index(void **state)
{
    const char *dir = make_folder("shards");
    struct source *s;

    (void)state;
    write_text(dir, "config.json", "{}");
    write_weights(dir, "part.safetensors");
    write_text(dir, "model.safetensors.index.json",
               "{\"weight_map\": {\"w\": \"part.safetensors\"}}");
    s = open_source(dir);
    assert_int_equal(source_n_tensors(s), 1);
    source_close(s);
    write_text(dir, "model.safetensors.index.json",
               "{\"weight_map\": {\"w\": \"../three/model.safetensors\"}}");
    assert_refused(dir, E_FORMAT, "must stay inside the folder");
}

static void a_lone_safetensors_file_has_no_config(void **state)
{
    const char *dir = make_folder("lone");
    char path[600];
    struct source *s;
    struct value v;
    uint64_t u;

    (void)state;
    write_weights(dir, "weights"); /* recognized by its content */
    snprintf(path, sizeof path, "%s/weights", dir);
    s = open_source(path);
    assert_int_equal(source_n_tensors(s), 1);
    assert_int_equal(source_n_keys(s), 0);
    assert_false(source_key(s, "n", &v));
    assert_null(source_file(s, "weights"));
    source_close(s);
    write_text(dir, "config.json", "{\"n\": 1}"); /* unless a config.json lies in the same folder */
    s = open_source(path);
    assert_true(source_u64(s, "n", &u) && u == 1);
    source_close(s);
}

static void other_files_are_named_by_their_first_bytes(void **state)
{
    (void)state;
    assert_refused(
        temp_file("a.zip", "PK\3\4\0\0\0\0\0\0", 10), E_FORMAT,
        "begins with the bytes 50 4b 03 04 00 00 00 00 'PK......', expected a GGUF file");
    assert_refused(temp_file("a.txt", "hi", 2), E_FORMAT, "begins with the bytes 68 69 'hi'");
    assert_refused(temp_file("a.empty", "", 0), E_FORMAT, "empty file");
    assert_refused(temp_file("a.safetensors", "\377\377\377\377\377\377\377\377{}", 10), E_FORMAT,
                   "says its header has");
    assert_refused(temp_file("a.gguf", "GGUF\3\0", 6), E_FORMAT, "truncated");
    assert_refused("/nonexistent/model", E_NOTFOUND, "No such file");
    assert_refused("/dev/null", E_IO, "is a character device");
}

static void numbers_convert_only_when_exact(void **state)
{
    struct value big = { .kind = VALUE_UINT, .u = UINT64_MAX },
                 low = { .kind = VALUE_INT, .i = INT64_MIN };
    struct value odd = { .kind = VALUE_INT, .i = (1ll << 53) + 1 },
                 top = { .kind = VALUE_INT, .i = INT64_MAX };
    struct value reals[] = { { .kind = VALUE_FLOAT, .f = 0x1p63 },
                             { .kind = VALUE_FLOAT, .f = 1.5 },
                             { .kind = VALUE_FLOAT, .f = NAN },
                             { .kind = VALUE_FLOAT, .f = INFINITY } };
    struct value text = { .kind = VALUE_STR, .s = STR("1") },
                 minus = { .kind = VALUE_FLOAT, .f = -3 };
    uint64_t u;
    int64_t i;
    double f;

    (void)state;
    assert_true(value_u64(&big, &u) && u == UINT64_MAX);
    assert_false(value_i64(&big, &i));
    assert_false(value_f64(&big, &f));
    assert_true(value_i64(&low, &i) && i == INT64_MIN);
    assert_true(value_f64(&low, &f) && f == -0x1p63);
    assert_false(value_u64(&low, &u));
    assert_false(value_f64(&odd, &f));
    assert_false(value_f64(&top, &f));
    for (int k = 0; k < 4; k++) assert_false(value_i64(&reals[k], &i));
    assert_true(value_i64(&minus, &i) && i == -3);
    assert_false(value_u64(&minus, &u));
    assert_false(value_i64(&text, &i) || value_u64(&text, &u) || value_f64(&text, &f));
}

static void every_shared_model_opens_and_can_be_read_whole(void **state)
{
    DIR *d;
    struct dirent *entry;
    int n = 0;

    (void)state;
    need_shared("fixtures/hf");
    d = opendir(shared("fixtures/hf"));
    while ((entry = readdir(d))) {
        char path[600];
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "fixtures/hf/%s", entry->d_name);
        struct source *s = open_source(shared(path));
        unsigned sum = 0;
        struct str type;
        assert_true(source_str(s, "model_type", &type));
        for (size_t i = 0; i < source_n_tensors(s); i++) {
            const struct source_tensor *t = source_tensor(s, i);
            const uint8_t *p = t->data;
            if (t->bytes) sum += p[0] + p[t->bytes - 1];
            assert_ptr_equal(source_find(s, t->name.p), t);
        }
        assert_true(source_n_tensors(s) > 0 && sum > 0);
        source_close(s);
        n++;
    }
    closedir(d);
    assert_true(n >= 50);
}

static void the_shared_folder_model_gives_its_keys(void **state)
{
    struct source *s;
    struct str t;
    uint64_t u;
    char *file;

    (void)state;
    need_shared("models/tern-tales-main");
    s = open_source(shared("models/tern-tales-main"));
    assert_true(source_u64(s, "hidden_size", &u) && u == 256);
    assert_true(source_str(s, "architectures.0", &t) && str_is(t, "LlamaForCausalLM"));
    assert_true(source_u64(s, "generation_config:eos_token_id.1", &u) && u == 6);
    assert_true(source_str(s, "metadata:format", &t) && str_is(t, "pt"));
    file = source_file(s, "tokenizer.json");
    assert_non_null(file);
    mem_free(file);
    source_close(s);
}

static void real_tokenizer_configs_are_read(void **state)
{
    static const char *const names[] = { "llama3.1", "gemma2", "gpt-oss", "deepseek-v3", "phi-3" };

    (void)state;
    need_shared("fixtures/tokenizers");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[128];
        struct str text[HFCONFIG_N_FILES] = { STR("{}") };
        struct buf b = { 0 };
        struct hfconfig *c;
        struct value v;
        struct err e;
        double f;
        snprintf(path, sizeof path, "fixtures/tokenizers/%s/tokenizer_config.json", names[i]);
        need_shared(path);
        assert_int_equal(file_read(&b, shared(path), 1 << 24, &e), OK);
        text[HFCONFIG_TOKENIZER] = buf_str(&b);
        assert_int_equal(hfconfig_parse(&c, text, &e), OK);
        assert_true(hfconfig_key(c, "tokenizer_config:model_max_length", &v));
        assert_true(value_f64(&v, &f) && f > 1000);
        hfconfig_close(c);
        buf_release(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gguf_file_is_recognized_by_its_content),
        cmocka_unit_test(a_folder_gives_the_keys_of_its_three_config_files),
        cmocka_unit_test(optional_files_may_be_missing),
        cmocka_unit_test(keys_are_searched_in_text_config_second),
        cmocka_unit_test(nan_and_infinity_as_python_writes_them_are_read),
        cmocka_unit_test(the_error_for_a_folder_without_a_model_names_what_is_missing),
        cmocka_unit_test(a_sharded_folder_is_read_through_its_index),
        cmocka_unit_test(a_lone_safetensors_file_has_no_config),
        cmocka_unit_test(other_files_are_named_by_their_first_bytes),
        cmocka_unit_test(numbers_convert_only_when_exact),
        cmocka_unit_test(every_shared_model_opens_and_can_be_read_whole),
        cmocka_unit_test(the_shared_folder_model_gives_its_keys),
        cmocka_unit_test(real_tokenizer_configs_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
