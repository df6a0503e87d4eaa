/* Fault injection over quantization and what it stands on: importance matrices, plans, rewritten
 * files, hyper-parameters, and the names of tensors in GGUF. */
#include "fault.h"

#include "base/file.h"
#include "base/mem.h"
#include "format/ggufw.h"
#include "format/source.h"
#include "model/hparams.h"
#include "model/naming.h"
#include "quant/imatrix.h"
#include "quant/plan.h"
#include "quant/rewrite.h"

#include <stdio.h>

static char *model_path, *imatrix_path, *old_path;

/* A GGUF file with an embedding, two layers and a head. */
static void write_model(const char *path)
{
    static const char *const names[] = { "token_embd.weight",        "blk.0.attn_v.weight",
                                         "blk.0.ffn_down.weight",    "blk.0.attn_norm.weight",
                                         "blk.1.attn_output.weight", "output.weight" };
    static float rows[8 * 256];
    struct ggufw *w = NULL;
    struct err e = { 0 };

    for (int i = 0; i < 8 * 256; i++) rows[i] = (float)(i % 37 - 18) / 20;
    if (ggufw_open(&w, path, &e) != OK) fail_msg("%s", e.msg);
    ggufw_str(w, "general.architecture", STR("llama"));
    ggufw_u32(w, "llama.attention.head_count", 4);
    for (int i = 0; i < 6; i++)
        ggufw_tensor(w, names[i], DT_F32, i == 3 ? (int64_t[]){ 256 } : (int64_t[]){ 8, 256 },
                     i == 3 ? 1 : 2);
    for (int i = 0; i < 6; i++) ggufw_data(w, rows, (i == 3 ? 1 : 8) * 256 * sizeof *rows);
    if (ggufw_close(w, &e) != OK) fail_msg("%s", e.msg);
}

static void write_imatrix(const char *path)
{
    struct imatrix m = { .dataset = "text", .n_chunks = 3, .chunk_tokens = 64 };
    struct err e = { 0 };

    for (int i = 0; i < 3; i++) {
        struct imatrix_entry *en;
        char name[64];
        snprintf(name, sizeof name, "blk.%d.ffn_down.weight", i);
        assert_non_null(en = imatrix_add(&m, str_c(name), 256, 1));
        for (int k = 0; k < 256; k++) en->sums[k] = (float)k;
        en->counts[0] = 5;
    }
    if (imatrix_write(&m, path, &e) != OK) fail_msg("%s", e.msg);
    imatrix_release(&m);
}

static int read_imatrix(void *arg, struct err *e)
{
    struct imatrix m = { 0 };
    struct arena a = { 0 };
    const float *w = NULL;
    int rc = imatrix_read(&m, arg, e);

    if (rc == OK) rc = imatrix_weights(&m, &a, STR("blk.1.ffn_down.weight"), 256, 1, &w, e);
    if (rc == OK) assert_non_null(w);
    arena_release(&a);
    imatrix_release(&m);
    return rc;
}

static int write_both(void *arg, struct err *e)
{
    struct imatrix m = { .dataset = "", .n_chunks = 1, .chunk_tokens = 8 };
    struct imatrix_entry *en = imatrix_add(&m, STR("blk.0.attn_q.weight"), 8, 2);
    int rc = en ? imatrix_write(&m, arg, e) : err_nomem(e, "an entry");

    imatrix_release(&m);
    return rc;
}

/* Plans with rules, and writes the file in two parts with an importance matrix. */
static int quantize(void *arg, struct err *e)
{
    struct plan_opt opt = { .mix = plan_mix_by_name(STR("Q4_K_M")),
                            .output = DT_NONE,
                            .embd = DT_NONE,
                            .has_imatrix = true };
    struct imatrix im = { 0 };
    struct arena a = { 0 };
    struct plan plan;
    struct source *src = NULL;
    struct rewrite_result res = { 0 };
    int rc = source_open(&src, model_path, e);

    if (rc == OK) rc = imatrix_read(&im, imatrix_path, e);
    if (rc == OK) rc = plan_rule_add(&opt.rules, "attn_(v|q)=q8_0", e);
    if (rc == OK) rc = plan_rule_add(&opt.rules, "nothing=q4_0", e);
    if (rc == OK) rc = plan_gguf(&plan, &a, src, &opt, e);
    if (rc == OK) {
        struct rewrite_opt r = { .src = src,
                                 .dst = arg,
                                 .plan = &plan,
                                 .mix = opt.mix,
                                 .imatrix = &im,
                                 .n_threads = 2,
                                 .split_bytes = 4000,
                                 .measure = true };
        rc = rewrite_run(&r, &res, e);
    }
    if (rc == OK) assert_true(res.loss && res.n_files > 1 && res.n_weighted > 0);
    mem_free(res.loss);
    plan_rules_free(opt.rules);
    imatrix_release(&im);
    arena_release(&a);
    source_close(src);
    return rc;
}

static void importance_matrices_are_read_and_written_or_refused(void **state)
{
    char *dat = path_join(temp_dir(), "new.dat"), *gguf = path_join(temp_dir(), "new.imatrix");

    (void)state;
    fault_run("imatrix in GGUF", read_imatrix, imatrix_path);
    fault_run("imatrix in the older form", read_imatrix, old_path);
    fault_run("imatrix written as GGUF", write_both, gguf);
    fault_run("imatrix written in the older form", write_both, dat);
    mem_free(dat);
    mem_free(gguf);
}

static void a_model_is_quantized_or_nothing_is_left(void **state)
{
    char *dst = path_join(temp_dir(), "small.gguf");

    (void)state;
    fault_run("quantize", quantize, dst);
    mem_free(dst);
}

static int read_hparams(void *arg, struct err *e)
{
    struct arena a = { 0 };
    struct hparams hp;
    int rc = hparams_read(&hp, &a, arg, e);

    arena_release(&a);
    return rc;
}

/* Hyper-parameters, the list of GGUF tensors, and the file's metadata. */
static int name_tensors(void *arg, struct err *e)
{
    char *path = path_join(temp_dir(), "names.gguf");
    struct gguf_extra extra[GGUF_EXTRAS];
    struct gguf_item *items;
    struct ggufw *w = NULL;
    struct arena a = { 0 };
    struct hparams hp;
    int n, rc = path ? hparams_read(&hp, &a, arg, e) : err_nomem(e, "a path");

    if (rc == OK) rc = naming_plan(&hp, arg, &a, &items, &n, e);
    if (rc == OK) {
        naming_extras(&hp, &a, extra);
        rc = arena_check(&a, e);
    }
    if (rc == OK) rc = ggufw_open(&w, path, e);
    if (rc == OK) rc = naming_keys(&hp, w, e);
    if (w && rc == OK) rc = ggufw_close(w, e);
    else ggufw_abort(w);
    arena_release(&a);
    mem_free(path);
    return rc;
}

/* A folder for each way to read a configuration: biases and yarn, partial and long rotary scaling,
 * windows, experts, recurrent layers, latent attention, packed tensors. */
static void hyper_parameters_are_read_or_refused(void **state)
{
    static const char *const names[] = { "bitnet",    "bloom",           "deepseek_v3",
                                         "falcon-mq", "gemma3_text",     "glm4_moe",
                                         "gpt2",      "llama-yarn-bias", "mamba2",
                                         "phi3",      "qwen2",           "qwen3_next" };

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct source *src = NULL;
        struct err e = { 0 };
        char dir[64], what[96];

        snprintf(dir, sizeof dir, "tests/golden/hf/%s", names[i]);
        if (source_open(&src, repo(dir), &e) != OK) fail_msg("%s", e.msg);
        snprintf(what, sizeof what, "hyper-parameters of %s", names[i]);
        fault_run(what, read_hparams, src);
        snprintf(what, sizeof what, "GGUF names of %s", names[i]);
        fault_run(what, name_tensors, src);
        source_close(src);
    }
}

static int open_files(void **state)
{
    (void)state;
    model_path = path_join(temp_dir(), "model.gguf");
    imatrix_path = path_join(temp_dir(), "some.imatrix");
    old_path = path_join(temp_dir(), "some.dat");
    write_model(model_path);
    write_imatrix(imatrix_path);
    write_imatrix(old_path);
    return 0;
}

static int free_names(void **state)
{
    (void)state;
    mem_free(model_path);
    mem_free(imatrix_path);
    mem_free(old_path);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(importance_matrices_are_read_and_written_or_refused),
        cmocka_unit_test(a_model_is_quantized_or_nothing_is_left),
        cmocka_unit_test(hyper_parameters_are_read_or_refused),
    };
    fault_init();
    return cmocka_run_group_tests(tests, open_files, free_names);
}
