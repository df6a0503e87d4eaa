/* Model files and tokenizers under faults: opening every format, encoding, decoding and streaming,
 * and writing GGUF and safetensors. A run that tolerates a fault must give the same ids and texts
 * as a run without one. */
#include "fault.h"

#include "base/file.h"
#include "base/mem.h"
#include "format/ggufw.h"
#include "format/modelref.h"
#include "format/safetensorsw.h"
#include "format/source.h"
#include "token/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char text[] = "Once upon a time, there was a tern.<|end|>\n\tIt's 1234 caf\xc3\xa9s — "
                           "don't panic: \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x90\xa6! \xff";

/* ---- opening ---- */

/* Opens the model, visits every tensor and every key. */
static int visit_source(void *arg, struct err *e)
{
    struct source *s = NULL;
    struct value v, item;
    int rc = source_open(&s, arg, e);

    if (rc != OK) return rc;
    for (size_t i = 0; i < source_n_tensors(s); i++) {
        const struct source_tensor *t = source_tensor(s, i);
        char name[256];
        snprintf(name, sizeof name, "%.*s", STR_ARG(t->name));
        assert_ptr_equal(source_find(s, name), t);
        if (t->bytes) assert_true(((const volatile char *)t->data)[t->bytes - 1] || true);
    }
    for (size_t i = 0; i < source_n_keys(s); i++)
        if (source_key(s, source_key_name(s, i), &v) && v.kind == VALUE_LIST && v.n)
            assert_true(value_at(&v, v.n - 1, &item));
    mem_free(source_file(s, "config.json"));
    source_close(s);
    return OK;
}

/* ---- tokenizers ---- */

struct tok_case {
    const char *path; /* a file or folder, or NULL: json */
    const char *json;
    struct ids ids; /* of text, from the first run */
    struct buf decoded, streamed;
};

/* Keeps what the first run gave; later runs must give the same. */
static void expect_ids(struct ids *expected, const struct ids *got)
{
    if (!expected->p) {
        fault_pause();
        ids_add(expected, got->p, got->n);
        fault_resume();
    }
    assert_int_equal(got->n, expected->n);
    assert_memory_equal(got->p, expected->p, got->n * sizeof *got->p);
}

static void expect_text(struct buf *expected, const struct buf *got)
{
    if (!expected->p) {
        fault_pause();
        buf_put_str(expected, buf_str(got));
        buf_cstr(expected);
        fault_resume();
    }
    assert_int_equal(got->n, expected->n);
    assert_memory_equal(got->p, expected->p, got->n);
}

static int stream_ids(const struct tokenizer *t, const struct ids *ids, struct buf *out,
                      struct err *e)
{
    struct detok d;

    detok_init(&d, t, true);
    detok_prime(&d, ids->p, ids->n / 4);
    for (size_t i = ids->n / 4; i < ids->n; i++) detok_push(&d, ids->p[i], out);
    detok_flush(&d, out);
    detok_release(&d);
    return buf_check(out, e);
}

static int use_tokenizer(struct tok_case *c, const struct tokenizer *t, struct err *e)
{
    struct ids ids = { 0 };
    struct buf decoded = { 0 }, streamed = { 0 };
    int rc, second;

    rc = tokenizer_encode(t, str_of(text, sizeof text - 1), ENCODE_SPECIAL, &ids, e);
    if (rc != OK) assert_int_equal(ids.n, 0); /* out is as it was before the call */
    if (rc == OK) {
        expect_ids(&c->ids, &ids);
        tokenizer_decode(t, ids.p, ids.n, true, &decoded);
        rc = buf_check(&decoded, e);
    }
    if (rc == OK) expect_text(&c->decoded, &decoded);
    if (rc == OK) rc = stream_ids(t, &ids, &streamed, e);
    if (rc == OK) expect_text(&c->streamed, &streamed);
    if (rc == OK) rc = tokenizer_encode_pair(t, STR("a"), STR("b c"), &ids, &second, e);
    buf_release(&decoded);
    buf_release(&streamed);
    ids_release(&ids);
    return rc;
}

static int list_pieces(const struct tokenizer *t, struct err *e)
{
    struct pieces p;
    size_t n = 0;
    int rc;

    pieces_init(&p, t);
    for (int32_t id = 0; id < 12; id++) n += pieces_of(&p, id).n;
    rc = p.failed ? err_nomem(e, "a piece") : OK;
    if (rc == OK) assert_true(n > 0);
    pieces_release(&p);
    return rc;
}

static int run_tokenizer(void *arg, struct err *e)
{
    struct tok_case *c = arg;
    struct tokenizer *t = NULL;
    int rc = c->path ? tokenizer_open(&t, c->path, e)
                     : tokenizer_from_json(&t, str_c(c->json), STR(""), "test.json", e);

    if (rc == OK) rc = use_tokenizer(c, t, e);
    if (rc == OK) rc = list_pieces(t, e);
    tokenizer_close(t);
    return rc;
}

static int run_from_source(void *arg, struct err *e)
{
    struct tok_case *c = arg;
    struct source *s = NULL;
    struct tokenizer *t = NULL;
    int rc = source_open(&s, c->path, e);

    if (rc == OK) rc = tokenizer_from_source(&t, s, e);
    if (rc == OK) rc = use_tokenizer(c, t, e);
    tokenizer_close(t);
    source_close(s);
    return rc;
}

/* Exports twice: a failed export must leave a tokenizer that can export. */
static int run_export(void *arg, struct err *e)
{
    struct tok_case *c = arg;
    struct tokenizer *t = NULL;
    struct token_export x;
    struct buf json = { 0 };
    int rc = c->path ? tokenizer_open(&t, c->path, e)
                     : tokenizer_from_json(&t, str_c(c->json), STR(""), "test.json", e);

    if (rc == OK && (rc = tokenizer_export(t, &x, e)) != OK)
        assert_int_equal(tokenizer_export(t, &x, NULL), OK);
    if (rc == OK) rc = tokenizer_to_json(t, &json, e);
    if (rc == OK) expect_text(&c->decoded, &json);
    buf_release(&json);
    tokenizer_close(t);
    return rc;
}

/* ---- writing ---- */

static int write_gguf(const char *path, int part, int n_parts, struct err *e)
{
    static const float zeros[64];
    struct ggufw *w = NULL;
    int rc = ggufw_open(&w, path, e);

    if (rc != OK) return rc;
    ggufw_str(w, "general.architecture", STR("llama"));
    ggufw_strs(w, "some.strings", (struct str[]){ STR("a"), STR("b") }, 2);
    ggufw_f32s(w, "some.numbers", zeros, 64);
    if (n_parts > 1) {
        ggufw_u16(w, "split.no", (uint16_t)part);
        ggufw_u16(w, "split.count", (uint16_t)n_parts);
    }
    for (int i = 0; i < 20; i++) {
        char name[32];
        snprintf(name, sizeof name, "blk.%d.%d.weight", part, i);
        ggufw_tensor(w, name, DT_F32, (int64_t[]){ 2, 8 }, 2);
    }
    for (int i = 0; i < 20; i++) ggufw_data(w, zeros, 64);
    return ggufw_close(w, e);
}

static int run_write_gguf(void *arg, struct err *e)
{
    const char *path = arg;
    int rc = write_gguf(path, 0, 1, e);

    assert_int_equal(access(path, F_OK) == 0, rc == OK); /* complete, or not there at all */
    if (rc == OK) rc = visit_source(arg, e);
    unlink(path);
    return rc;
}

static int write_safetensors(const char *dir, bool resume, struct err *e)
{
    static const float zeros[16];
    struct safetensorsw *w = NULL;
    int rc = safetensorsw_open(&w, dir, 200, e);

    if (rc != OK) return rc;
    if (resume) safetensorsw_resume(w);
    for (int i = 0; i < 12; i++) {
        char name[32];
        snprintf(name, sizeof name, "layers.%d.weight", i);
        safetensorsw_tensor(w, name, DT_F32, (int64_t[]){ 4, 4 }, 2);
    }
    for (size_t i = 0; i < 12; i++)
        if (safetensorsw_wants(w, i)) safetensorsw_data(w, zeros, sizeof zeros);
    return safetensorsw_close(w, e);
}

static int run_write_safetensors(void *arg, struct err *e)
{
    int rc = write_safetensors(arg, false, e);

    if (rc == OK) rc = write_safetensors(arg, true, e);
    return rc == OK ? visit_source(arg, e) : rc;
}

/* ---- names ---- */

static int resolve_name(void *arg, struct err *e)
{
    char *path = NULL;
    int rc = modelref_resolve(&path, str_c(arg), e);

    if (rc == OK) assert_true(file_exists(path));
    mem_free(path);
    return rc;
}

/* ---- files of the tests ---- */

static char *make_path(const char *name)
{
    char *path = path_join(temp_dir(), name);
    assert_non_null(path);
    return path;
}

static void write_text(const char *dir, const char *name, const char *contents)
{
    char *path = path_join(dir, name);
    assert_int_equal(file_replace(path, str_c(contents), NULL), OK);
    mem_free(path);
}

static char *make_dir(const char *name)
{
    char *path = make_path(name);
    mkdir(path, 0755);
    return path;
}

/* A Hugging Face folder in shards. */
static char *make_sharded(void)
{
    char *dir = make_dir("sharded");

    write_text(dir, "config.json", "{\"model_type\":\"llama\",\"x\":NaN,\"l\":[1,2]}");
    assert_int_equal(write_safetensors(dir, false, NULL), OK);
    return dir;
}

/* A split GGUF file, named by its second part. */
static char *make_split(void)
{
    char *first = make_path("s-00001-of-00002.gguf"), *second = make_path("s-00002-of-00002.gguf");

    assert_int_equal(write_gguf(first, 0, 2, NULL), OK);
    assert_int_equal(write_gguf(second, 1, 2, NULL), OK);
    mem_free(first);
    return second;
}

static void make_cache(void)
{
    char *hub = make_dir("hub"), *repo_dir = make_dir("hub/models--org--name");
    char *refs = make_dir("hub/models--org--name/refs"),
         *snap = make_dir("hub/models--org--name/snapshots"),
         *commit = make_dir("hub/models--org--name/snapshots/0123456789abcdef");

    write_text(refs, "main", "0123456789abcdef\n");
    write_text(commit, "model.gguf", "");
    setenv("HF_HUB_CACHE", hub, 1);
    mem_free(hub), mem_free(repo_dir), mem_free(refs), mem_free(snap), mem_free(commit);
}

/* ---- tests ---- */

#define BPE_STEPS                                                                                  \
    "{\"added_tokens\":[{\"id\":90,\"content\":\"<|end|>\",\"special\":true},"                     \
    "{\"id\":91,\"content\":\" Tern\",\"normalized\":true}],"                                      \
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},"                   \
    "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"[\\\\p{P}&&[^.,]]+\"},\"content\":\"-\"},"     \
    "{\"type\":\"Lowercase\"},{\"type\":\"Strip\"},{\"type\":\"Prepend\",\"prepend\":\"> \"}]},"   \
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["                                 \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{Nd}{1,3}|\\\\p{Han}+\"},"                  \
    "\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"Digits\",\"individual_digits\":true}" \
    ","                                                                                            \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":true},"                                          \
    "{\"type\":\"UnicodeScripts\"},{\"type\":\"FixedLength\",\"length\":9}]},"                     \
    "\"decoder\":{\"type\":\"ByteLevel\"},"                                                        \
    "\"post_processor\":{\"type\":\"RobertaProcessing\",\"sep\":[\"b\",1],\"cls\":[\"a\",0]},"     \
    "\"model\":{\"type\":\"BPE\",\"continuing_subword_prefix\":\"#\",\"unk_token\":\"a\","         \
    "\"vocab\":{\"a\":0,\"b\":1,\"#e\":2,\"t\":3,\"#n\":4,\"te\":5,\"#r\":6,\"ter\":7,\"x\":1},"   \
    "\"merges\":[\"t #e\",\"te #r\"]}}"
#define UNIGRAM                                                                                    \
    "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":["                                     \
    "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAAAA==\"},{\"type\":\"NFKC\"},"        \
    "{\"type\":\"Nmt\"}]},\"pre_tokenizer\":{\"type\":\"Metaspace\"},"                             \
    "\"decoder\":{\"type\":\"Metaspace\"},\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":" \
    "[[\"<unk>\",0],[\"\\u2581\",-2],[\"on\",-3],[\"e\",-4],[\"\\u2581a\",-2.5],[\"n\",-5]]}}"
#define WORDPIECE                                                                                  \
    "{\"normalizer\":{\"type\":\"BertNormalizer\"},\"pre_tokenizer\":{\"type\":"                   \
    "\"BertPreTokenizer\"},\"decoder\":{\"type\":\"Sequence\",\"decoders\":["                      \
    "{\"type\":\"WordPiece\",\"cleanup\":true},{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a+"  \
    "\"},"                                                                                         \
    "\"content\":\"b\"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\","      \
    "\"content\":\" "                                                                              \
    "\",\"start\":1,\"stop\":1}]},\"post_processor\":{\"type\":\"TemplateProcessing\","            \
    "\"single\":[{\"SpecialToken\":{\"id\":\"[CLS]\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\"," \
    "\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"[CLS]\":{\"ids\":[1]}}},"                  \
    "\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"[UNK]\":0,\"[CLS]\":1,\"time\":2,\"on\":3,"    \
    "\"##ce\":4,\"a\":5,\",\":6,\".\":7,\"<0xF0>\":8}}}"

static void every_format_opens(void **state)
{
    char *split = make_split(), *sharded = make_sharded();
    (void)state;
    fault_run("open GGUF", visit_source, (void *)repo("models/tern-tales.gguf"));
    fault_run("open a split GGUF file", visit_source, split);
    fault_run("open a safetensors file", visit_source,
              (void *)repo("tests/golden/hf/qwen2/model.safetensors"));
    fault_run("open a folder", visit_source, (void *)repo("tests/golden/hf/qwen2"));
    fault_run("open a folder of shards", visit_source, sharded);
    fault_run("open an ONNX file", visit_source,
              (void *)repo("tests/golden/onnx/classify/model.onnx"));
    fault_run("open an ONNX folder", visit_source, (void *)repo("tests/golden/onnx/classify"));
    mem_free(split);
    mem_free(sharded);
}

static void run_case(const char *name, fault_scenario *run, const char *path, const char *json)
{
    struct tok_case c = { .path = path, .json = json };

    fault_run(name, run, &c);
    ids_release(&c.ids);
    buf_release(&c.decoded);
    buf_release(&c.streamed);
}

static void every_tokenizer_encodes_and_decodes(void **state)
{
    (void)state;
    run_case("tokenizer of a GGUF source", run_from_source, repo("models/tern-tales.gguf"), NULL);
    run_case("tokenizer of a GGUF file", run_tokenizer, repo("models/tern-tales.gguf"), NULL);
    run_case("tokenizer.json.gz", run_tokenizer, repo("tests/golden/tokenizers/tern-tales.json.gz"),
             NULL);
    run_case("tokenizer of a folder", run_tokenizer, repo("tests/golden/onnx/classify"), NULL);
    run_case("BPE with many steps", run_tokenizer, NULL, BPE_STEPS);
    run_case("unigram", run_tokenizer, NULL, UNIGRAM);
    run_case("WordPiece", run_tokenizer, NULL, WORDPIECE);
}

static void tokenizers_are_exported(void **state)
{
    (void)state;
    run_case("export of BPE", run_export, repo("models/tern-tales.gguf"), NULL);
    run_case("export of unigram", run_export, NULL, UNIGRAM);
    run_case("export of WordPiece", run_export, NULL, WORDPIECE);
}

static void files_are_written(void **state)
{
    char *gguf = make_path("out.gguf"), *dir = make_dir("out");
    (void)state;
    write_text(dir, "config.json", "{}");
    fault_run("write GGUF", run_write_gguf, gguf);
    fault_run("write safetensors", run_write_safetensors, dir);
    mem_free(gguf);
    mem_free(dir);
}

static void names_are_resolved(void **state)
{
    (void)state;
    make_cache();
    fault_run("a branch in the cache", resolve_name, "hf:org/name");
    fault_run("a commit in the cache", resolve_name, "hf:org/name@0123456");
    fault_run("a file in the cache", resolve_name, "hf:org/name:model.gguf");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_opens),
        cmocka_unit_test(every_tokenizer_encodes_and_decodes),
        cmocka_unit_test(tokenizers_are_exported),
        cmocka_unit_test(files_are_written),
        cmocka_unit_test(names_are_resolved),
    };
    fault_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
