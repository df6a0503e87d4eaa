/* ONNX models as files and folders: invalid files, model cards (task, output, pooling), and
 * texts through an engine.
 *
 * Graphs are written by the test (onnx_world.h). tests/golden/onnx has golden models with
 * embeddings and logits computed with numpy in double. */
#include "support.h"

#include "base/file.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "engine/info.h"
#include "engine/request.h"
#include "engine/stats.h"
#include "token/tokenizer.h"
#include "onnx/card.h"
#include "onnx_world.h"

#include <jansson.h>
#include <stdio.h>
#include <sys/stat.h>

#define GOLDEN "tests/golden/onnx"

/* ---- invalid files ---- */

static int parse_graph(struct buf *graph, int opset, struct err *e)
{
    struct buf bytes = { 0 };
    struct onnx *m = NULL;
    int rc;

    model_bytes(&bytes, graph, opset);
    rc = onnx_parse(&m, buf_str(&bytes), "test.onnx", e);
    onnx_close(m);
    buf_release(&bytes);
    return rc;
}

static void assert_error_contains(const struct err *e, const char *what)
{
    if (!strstr(e->msg, what)) fail_msg("the error '%s' does not contain '%s'", e->msg, what);
}

static void a_truncated_file_is_refused(void **state)
{
    struct filemap f = { 0 };
    struct err e = { 0 };

    (void)state;
    assert_int_equal(filemap_open(&f, repo(GOLDEN "/embed/onnx/model.onnx"), &e), OK);
    for (size_t n = 0; n < f.n; n += n < 2000 ? 1 : 211) {
        char *copy = mem_dup(f.p, n);
        struct onnx *m = NULL;
        assert_int_not_equal(onnx_parse(&m, str_of(copy, n), "cut", &e), OK);
        mem_free(copy);
    }
    filemap_release(&f);
}

static void a_graph_out_of_order_is_refused(void **state)
{
    struct buf g = { 0 };
    struct err e = { 0 };

    (void)state;
    add_io(&g, 11, "a", 1, NULL);
    add_node(&g, "Add", "a z", "y", "");
    add_node(&g, "Neg", "y", "z", "");
    add_io(&g, 12, "z", 1, NULL);
    assert_int_equal(parse_graph(&g, 13, &e), E_FORMAT);
    assert_error_contains(&e, "'z' of node 'the_node' (Add) is not produced by an earlier node");
}

static void duplicate_values_missing_outputs_and_a_missing_opset_are_refused(void **state)
{
    struct buf g = { 0 };
    struct err e = { 0 };

    (void)state;
    add_io(&g, 11, "a", 1, NULL);
    add_node(&g, "Neg", "a", "x", "");
    add_node(&g, "Neg", "a", "x", "");
    assert_int_equal(parse_graph(&g, 13, &e), E_FORMAT);
    assert_error_contains(&e, "'x' is defined twice");
    add_io(&g, 11, "a", 1, NULL);
    add_io(&g, 12, "x", 1, NULL);
    assert_int_equal(parse_graph(&g, 13, &e), E_FORMAT);
    assert_error_contains(&e, "output 'x' is not produced by any node");
    add_io(&g, 11, "a", 1, NULL);
    assert_int_equal(parse_graph(&g, 0, &e), E_FORMAT);
    assert_error_contains(&e, "opset");
}

static void a_tensor_whose_bytes_do_not_match_its_dimensions_is_refused(void **state)
{
    static const struct {
        int64_t dims[2];
        int type;
        const char *raw, *says;
        int rc;
    } bad[] = {
        { { 2, 2 }, 1, "123", "the number of its bytes does not match its dimensions", E_FORMAT },
        { { 1 << 30, 1 << 30 }, 1, "", "2^40", E_FORMAT },
        { { -1, 2 }, 1, "", "negative", E_FORMAT },
        { { 1, 2 }, 8, "", "data type 8", E_UNSUPPORTED },
        { { 1000, 1000 }, 7, NULL, "fewer elements", E_FORMAT },
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct buf g = { 0 }, t = { 0 };
        struct err e = { 0 };
        pbw_int(&t, 1, bad[i].dims[0]);
        pbw_int(&t, 1, bad[i].dims[1]);
        pbw_int(&t, 2, bad[i].type);
        pbw_bytes(&t, 8, STR("w"));
        if (bad[i].raw) pbw_bytes(&t, 9, str_c(bad[i].raw));
        pbw_buf(&g, 5, &t);
        assert_int_equal(parse_graph(&g, 13, &e), bad[i].rc);
        assert_error_contains(&e, bad[i].says);
        assert_error_contains(&e, "'w'");
    }
}

/* float_data, int32_data (also for bytes and halves) and int64_data, in protobuf encoding. */
static void elements_in_typed_lists_are_read(void **state)
{
    static const struct {
        int type, field;
        struct str bytes;
        double want[2];
    } lists[] = {
        { 1, 4, STR("\0\0\x80\x3f\0\0\0\xc0"), { 1, -2 } },
        { 7, 7, STR("\x05\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), { 5, -1 } },
        { 6, 5, STR("\x05\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), { 5, -1 } },
        { 2, 5, STR("\xff\x01\x07"), { 255, 7 } },
        { 9, 5, STR("\x00\x01"), { 0, 1 } },
        { 10, 5, STR("\x80\x78\x80\x80\x03"), { 1, -2 } },
        { 11, 10, STR("\0\0\0\0\0\0\xf0\x3f\0\0\0\0\0\0\0\xc0"), { 1, -2 } },
    };

    (void)state;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        for (int cut = 0; cut < 2; cut++) {
            struct buf g = { 0 }, t = { 0 }, bytes = { 0 };
            struct onnx *m = NULL;
            struct err e = { 0 };
            pbw_int(&t, 1, 2 + cut);
            pbw_int(&t, 2, lists[i].type);
            pbw_bytes(&t, 8, STR("w"));
            pbw_bytes(&t, lists[i].field, lists[i].bytes);
            pbw_buf(&g, 5, &t);
            model_bytes(&bytes, &g, 13);
            assert_int_equal(onnx_parse(&m, buf_str(&bytes), "test", &e), cut ? E_FORMAT : OK);
            for (size_t k = 0; k < 2 && !cut; k++)
                assert_true(element_at(&m->values[0].t, k) == lists[i].want[k]);
            onnx_close(m);
            buf_release(&bytes);
        }
}

/* Writes a model whose only tensor is external data. */
static const char *write_external_model(const char *location, int64_t offset, int64_t length)
{
    struct buf g = { 0 }, t = { 0 }, bytes = { 0 };
    char number[32];
    const char *path;

    pbw_int(&t, 1, 2);
    pbw_int(&t, 2, 1);
    pbw_bytes(&t, 8, STR("w"));
    for (int i = 0; i < 3; i++) {
        struct buf entry = { 0 };
        snprintf(number, sizeof number, "%lld", (long long)(i == 1 ? offset : length));
        pbw_bytes(&entry, 1, i == 0 ? STR("location") : i == 1 ? STR("offset") : STR("length"));
        pbw_bytes(&entry, 2, str_c(i == 0 ? location : number));
        pbw_buf(&t, 13, &entry);
    }
    pbw_int(&t, 14, 1);
    pbw_buf(&g, 5, &t);
    add_node(&g, "Neg", "w", "x", "");
    add_io(&g, 12, "x", 1, NULL);
    model_bytes(&bytes, &g, 13);
    path = temp_file("external.onnx", bytes.p, bytes.n);
    buf_release(&bytes);
    return path;
}

static void external_data_stays_in_the_models_folder_and_in_its_file(void **state)
{
    static const struct {
        const char *where;
        int64_t at, n;
        const char *says;
    } bad[] = {
        { "../../../../etc/passwd", 0, 8, "external data" },
        { "/etc/passwd", 0, 8, "external data" },
        { "external.data", 1, 8, "8 bytes from offset 1 on" },
        { "external.data", -1, 8, "8 bytes" },
        { "external.data", 0, 4, "8 bytes" },
        { "nothing.data", 0, 8, "nothing.data" },
    };
    float two[2] = { 1, -2 };
    struct onnx *m = NULL;
    struct err e = { 0 };

    (void)state;
    temp_file("external.data", two, sizeof two);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_not_equal(
            onnx_open(&m, write_external_model(bad[i].where, bad[i].at, bad[i].n), &e), OK);
        assert_error_contains(&e, bad[i].says);
    }
    assert_int_equal(onnx_open(&m, write_external_model("external.data", 0, 8), &e), OK);
    assert_true(((const float *)m->values[0].t.data)[1] == -2);
    onnx_close(m);
}

/* ---- cards ---- */

/* Reads the card of a folder with these files and a graph of these outputs ("logits:2 ...": name
 * and number of dimensions). */
static int read_card(struct card *c, struct arena *a, const char *outputs, const char *config,
                     const char *tern, const char *pooling, struct err *e)
{
    char dir[64], path[128];
    static int n;
    struct buf g = { 0 }, bytes = { 0 };
    struct source *src = NULL;
    struct onnx *m = NULL;
    int rc;

    snprintf(dir, sizeof dir, "card%d", n++);
    snprintf(path, sizeof path, "%s/%s", temp_dir(), dir);
    mkdir(path, 0700);
    add_io(&g, 11, "input_ids", 7, "-1x-1");
    add_io(&g, 11, "attention_mask", 7, "-1x-1");
    add_const(&g, "table", "f 10x4:");
    add_node(&g, "Gather", "table input_ids", "rows", "");
    for (const char *p = outputs; *p;) {
        char name[64];
        int dims = 0, used = 0;
        sscanf(p, "%63[^:]:%d%n", name, &dims, &used);
        add_node(&g, "Identity", "rows", name, "");
        add_io(&g, 12, name, 1, dims == 2 ? "-1x4" : "-1x-1x4");
        p += used + (p[used] == ' ');
    }
    model_bytes(&bytes, &g, 14);
    const struct {
        const char *name;
        struct str text;
    } files[] = { { "model.onnx", buf_str(&bytes) },
                  { "config.json", str_c(config) },
                  { "tern.json", str_c(tern) },
                  { "modules.json",
                    str_c(pooling ? "[{\"type\":\"sentence_transformers.models.Transformer\"}]"
                                  : NULL) },
                  { "1_Pooling/config.json", str_c(pooling) } };
    for (int i = 0; i < 5; i++) {
        char *to = path_join(path, files[i].name);
        if (i == 4) {
            char *sub = path_join(path, "1_Pooling");
            mkdir(sub, 0700);
            mem_free(sub);
        }
        if (files[i].text.p) assert_int_equal(file_replace(to, files[i].text, e), OK);
        mem_free(to);
    }
    buf_release(&bytes);
    rc = source_open(&src, path, e);
    if (rc == OK) rc = onnx_open(&m, source_onnx(src), e);
    if (rc == OK) rc = card_read(c, a, src, m, e);
    onnx_close(m);
    source_close(src);
    return rc;
}

#define CLASSIFIER                                                                            \
    "{\"architectures\":[\"BertForSequenceClassification\"],\"id2label\":{\"0\":\"a\",\"1\":" \
    "\"b\",\"2\":\"c\",\"3\":\"d\"}"
#define ENCODER "{\"architectures\":[\"BertModel\"]}"
#define MEAN "{\"pooling_mode_mean_tokens\":true,\"pooling_mode_cls_token\":false}"
#define CLS "{\"pooling_mode_mean_tokens\":false,\"pooling_mode_cls_token\":true}"

static void the_card_is_derived_from_the_files(void **state)
{
    struct arena a = { 0 };
    struct err e = { 0 };
    struct card c;

    (void)state;
    assert_int_equal(read_card(&c, &a, "last_hidden_state:3", ENCODER, NULL, MEAN, &e), OK);
    assert_true(c.task == CARD_EMBED && c.pool == CARD_MEAN && c.width == 4 && c.n_vocab == 10 &&
                c.normalize);
    assert_int_equal(
        read_card(&c, &a, "last_hidden_state:3 pooler_output:2", ENCODER, NULL, CLS, &e), OK);
    assert_true(c.pool == CARD_CLS && c.output == 0);
    assert_int_equal(
        read_card(&c, &a, "token_embeddings:3 sentence_embedding:2", ENCODER, NULL, NULL, &e), OK);
    assert_true(c.pool == CARD_NONE && c.output == 1);
    assert_int_equal(read_card(&c, &a, "logits:2", CLASSIFIER "}", NULL, NULL, &e), OK);
    assert_true(c.task == CARD_CLASSIFY && c.score == CARD_SOFTMAX && str_is(c.labels[3], "d"));
    assert_int_equal(read_card(&c, &a, "logits:2",
                               CLASSIFIER ",\"problem_type\":\"multi_label_classification\"}", NULL,
                               NULL, &e),
                     OK);
    assert_int_equal(c.score, CARD_SIGMOID);
    assert_int_equal(read_card(&c, &a, "logits:2", CLASSIFIER ",\"problem_type\":\"regression\"}",
                               NULL, NULL, &e),
                     OK);
    assert_int_equal(c.score, CARD_RAW);
    arena_release(&a);
}

static void tern_json_overrides_the_files(void **state)
{
    struct arena a = { 0 };
    struct err e = { 0 };
    struct card c;

    (void)state;
    assert_int_equal(read_card(&c, &a, "x:3 y:2", ENCODER,
                               "{\"task\":\"embed\",\"output\":\"x\",\"pooling\":\"last\","
                               "\"normalize\":false,\"max_tokens\":7}",
                               MEAN, &e),
                     OK);
    assert_true(c.pool == CARD_LAST && !c.normalize && c.n_ctx == 7 && c.output == 0);
    assert_int_equal(
        read_card(
            &c, &a, "y:2", NULL,
            "{\"task\":\"classify\",\"labels\":[\"p\",\"q\",\"r\",\"s\"],\"activation\":\"none\"}",
            NULL, &e),
        OK);
    assert_true(c.task == CARD_CLASSIFY && c.score == CARD_RAW && str_is(c.labels[2], "r"));
    arena_release(&a);
}

static void an_unclear_task_or_output_fails_with_an_example(void **state)
{
    static const struct {
        const char *outputs, *config, *tern, *pooling, *says;
    } bad[] = {
        { "last_hidden_state:3", ENCODER, NULL, NULL,
          "nor modules.json says whether the model embeds or classifies" },
        { "logits:2", CLASSIFIER "}", NULL, MEAN,
          "says that the model classifies, but files or outputs of sentence-transformers" },
        { "last_hidden_state:3", ENCODER, "{\"task\":\"embed\"}", NULL, "(pooling)" },
        { "last_hidden_state:3", ENCODER, "{\"task\":\"embody\"}", NULL,
          "must be one of embed, classify" },
        { "one:3 two:3", ENCODER, NULL, MEAN, "the graph's outputs are one, two" },
        { "one:2 two:2", CLASSIFIER "}", NULL, NULL, "no output is named logits" },
        { "logits:2", CLASSIFIER "}", "{\"output\":\"scores\"}", NULL, "does not have: scores" },
        { "logits:2", CLASSIFIER "}", "{\"labels\":[\"a\"]}", NULL,
          "there are 1 labels for 4 outputs" },
        { "logits:3", CLASSIFIER "}", NULL, NULL, "classifiers of tokens are not supported" },
        { "last_hidden_state:3", ENCODER, NULL,
          "{\"pooling_mode_mean_tokens\":true,\"pooling_mode_cls_token\":true}",
          "several poolings" },
        { "last_hidden_state:3", ENCODER, "{\"task\":\"embed\",\"pooling\":\"none\"}", NULL,
          "but pooling 'none' needs 2" },
    };
    struct arena a = { 0 };
    struct err e;
    struct card c;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        e = (struct err){ 0 };
        assert_int_not_equal(
            read_card(&c, &a, bad[i].outputs, bad[i].config, bad[i].tern, bad[i].pooling, &e), OK);
        assert_error_contains(&e, bad[i].says);
        if (i < 3) assert_error_contains(&e, "tern.json");
    }
    arena_release(&a);
}

/* ---- through an engine ---- */

static json_t *load_expected(void)
{
    json_error_t why;
    json_t *j = json_load_file(repo(GOLDEN "/expected.json"), 0, &why);

    if (!j) fail_msg("%s", why.text);
    return j;
}

static struct engine *open_golden(const char *name)
{
    struct engine_opt o = { .n_threads = 1, .kv_type = DT_NONE, .manual = true };
    struct engine *g = NULL;
    struct err e = { 0 };
    char path[128];

    snprintf(path, sizeof path, GOLDEN "/%s", name);
    if (engine_open(&g, repo(path), &o, &e) != OK) fail_msg("%s", e.msg);
    return g;
}

static struct request *submit_ids(struct engine *g, json_t *ids, bool classify, int second)
{
    struct request *r = request_open();
    struct err e = { 0 };

    for (size_t i = 0; i < json_array_size(ids); i++)
        ids_push(&r->prompt, (int32_t)json_integer_value(json_array_get(ids, i)));
    r->embed = true;
    r->classify = classify;
    r->second = second;
    if (engine_submit(g, r, &e) != OK) fail_msg("%s", e.msg);
    return r;
}

static void assert_finish(struct request *r, enum finish want)
{
    struct event ev = { 0 };

    assert_true(request_next(r, &ev));
    if (ev.finish != (int)want) fail_msg("%s: %s", finish_name((enum finish)ev.finish), r->err.msg);
}

static void assert_near(const float *got, json_t *want, double eps)
{
    for (size_t i = 0; i < json_array_size(want); i++)
        if (fabs((double)got[i] - json_number_value(json_array_get(want, i))) > eps)
            fail_msg("number %zu is %.8g, expected %.8g", i, (double)got[i],
                     json_number_value(json_array_get(want, i)));
}

/* The texts have different lengths and run in one batch. */
static void embeddings_match_the_golden_ones(void **state)
{
    static const struct {
        const char *name;
        double eps;
    } models[] = { { "embed", 2e-6 }, { "quant", 0.02 } };
    json_t *want = load_expected(), *texts = json_object_get(want, "texts"),
           *vecs = json_object_get(want, "embeddings");

    (void)state;
    for (int m = 0; m < 2; m++) {
        struct engine *g = open_golden(models[m].name);
        struct request *r[6];
        for (size_t i = 0; i < 6; i++) r[i] = submit_ids(g, json_array_get(texts, i % 3), false, 0);
        while (engine_step(g)) {}
        for (size_t i = 0; i < 6; i++) {
            assert_finish(r[i], FINISH_STOP);
            assert_near(r[i]->vec, json_array_get(vecs, i % 3), models[m].eps);
            request_unref(r[i]);
        }
        engine_close(g);
    }
    json_decref(want);
}

/* Scores must be the softmax of the golden logits. */
static void assert_scores(const float *got, json_t *logits)
{
    double sum = 0;

    for (size_t i = 0; i < 3; i++) sum += exp(json_number_value(json_array_get(logits, i)));
    for (size_t i = 0; i < 3; i++)
        assert_true(fabs((double)got[i] - exp(json_number_value(json_array_get(logits, i))) / sum) <
                    2e-6);
}

static void classifications_match_the_golden_ones(void **state)
{
    json_t *want = load_expected(), *texts = json_object_get(want, "texts"),
           *pair = json_object_get(want, "pair");
    struct engine *g = open_golden("classify");
    struct engine_info info;
    struct request *r[4];

    (void)state;
    engine_info(g, &info);
    assert_string_equal(info.task, "classify");
    assert_true(info.n_labels == 3 && str_is(info.labels[2], "good"));
    assert_true(info.kv_bytes < 4096 && info.weight_bytes > 20000);
    for (size_t i = 0; i < 3; i++) r[i] = submit_ids(g, json_array_get(texts, i), true, 0);
    r[3] = submit_ids(g, json_object_get(pair, "ids"), true,
                      (int)json_integer_value(json_object_get(pair, "second")));
    while (engine_step(g)) {}
    for (size_t i = 0; i < 4; i++) {
        assert_finish(r[i], FINISH_STOP);
        assert_scores(r[i]->vec, i < 3 ? json_array_get(json_object_get(want, "logits"), i)
                                       : json_object_get(pair, "logits"));
        request_unref(r[i]);
    }
    engine_close(g);
    json_decref(want);
}

static void pairs_are_encoded_by_the_post_processor(void **state)
{
    struct engine *g = open_golden("classify");
    struct ids ids = { 0 };
    struct err e = { 0 };
    int second = -1;

    (void)state;
    assert_int_equal(
        tokenizer_encode_pair(engine_tokenizer(g), STR("a cat"), STR("the dog"), &ids, &second, &e),
        OK);
    static const int32_t want[] = { 2, 5, 7, 3, 6, 8, 3 };
    assert_int_equal(ids.n, 7);
    assert_memory_equal(ids.p, want, sizeof want);
    assert_int_equal(second, 4);
    ids_release(&ids);
    engine_close(g);
}

/* RoBERTa separates two texts with </s></s> and has one token type for both. */
static void roberta_pairs_have_one_token_type(void **state)
{
    static const char json[] =
        "{\"added_tokens\":[],\"pre_tokenizer\":{\"type\":\"Whitespace\"},\"model\":{\"type\":"
        "\"WordLevel\","
        "\"unk_token\":\"u\",\"vocab\":{\"<s>\":0,\"</s>\":1,\"u\":2,\"a\":3,\"b\":4}},"
        "\"post_processor\":{\"type\":\"RobertaProcessing\",\"sep\":[\"</"
        "s>\",1],\"cls\":[\"<s>\",0],"
        "\"trim_offsets\":true,\"add_prefix_space\":false}}";
    static const int32_t want[] = { 0, 3, 1, 1, 4, 4, 1 };
    struct tokenizer *t = NULL;
    struct ids ids = { 0 };
    struct err e = { 0 };
    int second = -1;

    (void)state;
    if (tokenizer_from_json(&t, str_c(json), STR(""), "test", &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(tokenizer_encode_pair(t, STR("a"), STR("b b"), &ids, &second, &e), OK);
    assert_int_equal(ids.n, 7);
    assert_memory_equal(ids.p, want, sizeof want);
    assert_int_equal(second, 0);
    ids_release(&ids);
    tokenizer_close(t);
}

static void requests_of_another_task_are_refused(void **state)
{
    struct engine *g = open_golden("classify");
    struct request *r = request_open();
    struct err e = { 0 };

    (void)state;
    ids_push(&r->prompt, 2);
    assert_int_equal(engine_submit(g, r, &e), E_INVALID);
    assert_error_contains(&e, "classifies and generates no text");
    r->embed = true;
    assert_int_equal(engine_submit(g, r, &e), E_INVALID);
    assert_error_contains(&e, "/v1/classify");
    engine_close(g);
    g = open_golden("embed");
    r->classify = true;
    assert_int_equal(engine_submit(g, r, &e), E_INVALID);
    assert_error_contains(&e, "does not classify");
    for (int i = 0; i < 60; i++) ids_push(&r->prompt, 2);
    r->classify = false;
    assert_int_equal(engine_submit(g, r, &e), E_CONTEXT);
    request_unref(r);
    engine_close(g);
}

static bool stop_at(void *arg)
{
    int *left = arg;
    return (*left)-- == 0;
}

static void an_execution_can_be_cancelled_between_nodes(void **state)
{
    struct onnx_run_opt opt = { .host = { .vec = vec_best() } };
    int64_t dims[2] = { 1, 4 }, ids[4] = { 2, 6, 8, 3 }, ones[4] = { 1, 1, 1, 1 }, zeros[4] = { 0 };
    const struct onnx_tensor *out;
    struct onnx_tensor shape;
    struct onnx *m = NULL;
    struct onnx_run *r = NULL;
    struct err e = { 0 };
    int n;

    (void)state;
    assert_int_equal(onnx_open(&m, repo(GOLDEN "/embed/onnx/model.onnx"), &e), OK);
    assert_int_equal(onnx_run_open(&r, m, &opt, &e), OK);
    n = onnx_run_n_nodes(r);
    for (int at = -1; at <= n; at++) {
        int left = at;
        const int64_t *data[3] = { ids, ones, zeros };
        for (int i = 0; i < 3; i++) onnx_run_set(r, i, 2, dims, data[i]);
        if (at < 0) {
            assert_int_equal(onnx_run_plan(r, &shape, &e), OK);
            assert_true(shape.n_dims == 3 && shape.dims[1] == 4 && shape.dims[2] == 16);
        } else {
            assert_int_equal(onnx_run_execute(r, stop_at, &left, &out, &e),
                             at < n ? E_CANCELLED : OK);
        }
    }
    assert_true(onnx_run_bytes(r) < 64 << 10);
    onnx_run_close(r);
    onnx_close(m);
}

static void an_unclear_choice_of_files_is_refused(void **state)
{
    char dir[128];
    struct source *s = NULL;
    struct err e = { 0 };

    (void)state;
    snprintf(dir, sizeof dir, "%s/several", temp_dir());
    mkdir(dir, 0700);
    static const char *const files[] = { "config.json", "model.onnx", "model_quantized.onnx",
                                         "other.onnx", "tern.json" };
    static const char *const texts[] = { "{}", "x", "y", "z", "{\"file\":\"other.onnx\"}" };
    for (int i = 0; i < 5; i++) {
        char *to = path_join(dir, files[i]);
        assert_int_equal(file_replace(to, str_c(texts[i]), &e), OK);
        mem_free(to);
        if (i == 0) continue;
        int rc = source_open(&s, dir, &e);
        assert_int_equal(rc, i == 3 ? E_INVALID : OK);
        if (rc == OK)
            assert_string_equal(path_base(source_onnx(s)), i == 4 ? "other.onnx" : "model.onnx");
        else assert_error_contains(&e, "other.onnx");
        if (rc == OK) source_close(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_truncated_file_is_refused),
        cmocka_unit_test(a_graph_out_of_order_is_refused),
        cmocka_unit_test(duplicate_values_missing_outputs_and_a_missing_opset_are_refused),
        cmocka_unit_test(a_tensor_whose_bytes_do_not_match_its_dimensions_is_refused),
        cmocka_unit_test(elements_in_typed_lists_are_read),
        cmocka_unit_test(external_data_stays_in_the_models_folder_and_in_its_file),
        cmocka_unit_test(the_card_is_derived_from_the_files),
        cmocka_unit_test(tern_json_overrides_the_files),
        cmocka_unit_test(an_unclear_task_or_output_fails_with_an_example),
        cmocka_unit_test(embeddings_match_the_golden_ones),
        cmocka_unit_test(classifications_match_the_golden_ones),
        cmocka_unit_test(pairs_are_encoded_by_the_post_processor),
        cmocka_unit_test(roberta_pairs_have_one_token_type),
        cmocka_unit_test(requests_of_another_task_are_refused),
        cmocka_unit_test(an_execution_can_be_cancelled_between_nodes),
        cmocka_unit_test(an_unclear_choice_of_files_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
