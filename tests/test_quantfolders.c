/* Quantized Hugging Face folders as they are: logits against golden logits with the reference
 * and the fastest kernels, memory against the files, and unknown quantizations.
 *
 * Reads tests/golden/quant and, for all schemes, ../shared/fixtures/quant (skipped without it). */
#include "model_gguf.h"
#include "model_world.h"
#include "safetens.h"

#include "convert/togguf.h"
#include "convert/tohf.h"
#include "format/hfquant.h"
#include "model/loadplan.h"

#include <dirent.h>

static const char *const some[] = { "llama.gptq4-g32-actorder", "llama-ragged.fp8-block128",
                                    "bitnet.autobitlinear" };

static const char *path_of(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "tests/golden/quant/%s", name);
    return path;
}

/* Packed weights take little more than the file: nothing is widened. */
static void check_memory(const char *folder)
{
    struct loadplan *p = NULL;
    struct load_opt opt = { .backend = { .n_threads = 1 }, .kv_type = DT_NONE };
    struct err e;

    if (loadplan_read(&p, folder, &e) != OK || loadplan_make(p, &opt, &e) != OK)
        fail_msg("%s", e.msg);
    double ratio = (double)loadplan_bytes(p).weights / (double)source_bytes(p->source);
    if (!(ratio <= 1.1)) print_message("%s: %.3f of the file\n", folder, ratio);
    assert_true(ratio <= 1.1);
    loadplan_close(p);
}

/* Weights of the members of tp 2 take little more than those of one process: the embedding and the norms
 * are on both, and columns are cut between groups. */
static void check_members(const char *folder)
{
    uint64_t bytes[3] = { 0 }, shared = 0;
    struct err e;

    for (int rank = -1; rank < 2; rank++) {
        struct load_opt opt = { .backend = { .n_threads = 1 }, .kv_type = DT_NONE };
        struct loadplan *p = NULL;
        if (rank >= 0) opt.shard = (struct shard_opt){ .tp = 2, .pp = 1, .tp_rank = rank };
        if (loadplan_read(&p, folder, &e) != OK || loadplan_make(p, &opt, &e) != OK)
            fail_msg("%s: %s", folder, e.msg);
        bytes[rank + 1] = loadplan_bytes(p).weights;
        shared = (uint64_t)p->facts.n_vocab * (uint64_t)p->facts.n_vec * 2;
        loadplan_close(p);
    }
    if (bytes[1] + bytes[2] > (bytes[0] + shared) * 1.1)
        fail_msg("%s: %llu bytes, the members %llu and %llu, of which %llu are the embedding",
                 folder, (unsigned long long)bytes[0], (unsigned long long)bytes[1],
                 (unsigned long long)bytes[2], (unsigned long long)shared);
}

static void members_keep_the_groups_of_quantized_layers(void **state)
{
    static const char *const names[] = {
        "llama.gptq4-g128",   "llama.gptq4-g128-asym",  "llama.awq4-g128",
        "llama.ct-w4a16-g32", "llama.ct-w8a16-channel", "llama.ct-nvfp4",
        "llama.fp8-block128", "llama.ct-int8-channel",  "qwen3_moe.gptq4-g128",
        "llama.ct-mxfp4",     "llama.modelopt-fp8",     "llama.bitlinear",
    };

    (void)state;
    need_shared("fixtures/quant");
    for (size_t i = 0; i < N(names); i++) {
        char folder[512];
        snprintf(folder, sizeof folder, "%s/%s", shared("fixtures/quant"), names[i]);
        check_members(folder);
    }
}

static void check_folder(const char *folder)
{
    check_golden(folder, folder, true, 1e-5);
    check_golden(folder, folder, false, 2e-3); /* the KV cache is F16 */
    check_memory(folder);
}

static void logits_of_quantized_folders_agree(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(some); i++) check_folder(path_of(some[i]));
}

static void logits_of_all_schemes_agree(void **state)
{
    char top[512];
    struct dirent *x;
    DIR *d;
    int n = 0;

    (void)state;
    need_shared("fixtures/quant");
    snprintf(top, sizeof top, "%s", shared("fixtures/quant"));
    d = opendir(top);
    assert_non_null(d);
    while ((x = readdir(d))) {
        char folder[800];
        if (x->d_name[0] == '.' || !strchr(x->d_name, '.') || strcmp(x->d_name, "README.md") == 0)
            continue;
        snprintf(folder, sizeof folder, "%s/%s", top, x->d_name);
        check_folder(folder);
        n++;
    }
    closedir(d);
    assert_true(n > 0);
}

/* Rows are decoded and written as F32. */
static void quantized_folders_become_gguf(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(some); i++) {
        char path[300];
        snprintf(path, sizeof path, "%s/%s.gguf", temp_dir(), some[i]);
        write_gguf_of(path_of(some[i]), path, false);
        check_golden(path, path_of(some[i]), true, 1e-4);
    }
}

/* tern convert keeps the numbers of a layer where a GGUF type has them. */
static void convert_keeps_what_gguf_can_hold(void **state)
{
    static const struct {
        const char *name;
        enum dtype type; /* of the layers */
    } all[] = {
        { "llama.gptq4-g128", DT_Q4_0 },      { "llama.gptq4-g128-asym", DT_Q5_0 },
        { "llama.gptq8-g128", DT_Q8_0 },      { "llama.ct-w4a16-g32", DT_Q4_0 },
        { "llama.ct-mxfp4", DT_MXFP4 },       { "llama.awq4-g128", DT_Q5_0 },
        { "llama.ct-fp8-channel", DT_F32 },   { "llama.ct-nvfp4", DT_NVFP4 },
        { "llama.modelopt-nvfp4", DT_NVFP4 }, { "qwen3_moe.ct-nvfp4", DT_NVFP4 },
    };

    (void)state;
    need_shared("fixtures/quant");
    for (size_t i = 0; i < N(all); i++) {
        char path[300], folder[512];
        snprintf(folder, sizeof folder, "%s/%s", shared("fixtures/quant"), all[i].name);
        snprintf(path, sizeof path, "%s/kept.gguf", temp_dir());
        struct togguf_opt opt = { .src = folder, .dst = path, .type = DT_F32, .keep = true };
        struct togguf_result r;
        struct source *s = NULL;
        struct err e;
        if (togguf_run(&opt, &r, &e) != OK) fail_msg("%s", e.msg);
        assert_int_equal(source_open(&s, path, &e), OK);
        const struct source_tensor *t = source_find(s, "blk.0.attn_q.weight");
        if (t->quant) t = hfquant_part(t->quant, 0);
        assert_int_equal(t->type, all[i].type);
        source_close(s);
        check_golden(path, folder, true, 1e-5);
    }
}

/* The folder has plain weights, and no quantization_config. */
static void check_way_back(const char *folder)
{
    char path[300], back[300];
    snprintf(path, sizeof path, "%s/packed.gguf", temp_dir());
    snprintf(back, sizeof back, "%s/plain-%s", temp_dir(), strrchr(folder, '/') + 1);
    struct togguf_opt to = { .src = folder, .dst = path, .type = DT_F32, .keep = true };
    struct tohf_opt from = { .src = path, .dst = back, .type = DT_F32 };
    struct togguf_result r;
    struct tohf_result h;
    struct source *s = NULL;
    struct err e = { 0 };
    if (togguf_run(&to, &r, &e) != OK || tohf_run(&from, &h, &e) != OK) fail_msg("%s", e.msg);
    if (source_open(&s, back, &e) != OK) fail_msg("%s", e.msg);
    assert_null(source_quant(s));
    source_close(s);
    check_golden(back, folder, true, 1e-4);
}

static void quantized_folders_come_back_as_plain_ones(void **state)
{
    static const char *const all[] = { "llama.gptq4-g128",   "llama.awq4-g128",
                                       "llama.ct-w4a16-g32", "llama.ct-nvfp4",
                                       "llama.ct-mxfp4",     "qwen3_moe.ct-nvfp4",
                                       "qwen3_moe.awq4-g128" };
    char folder[512];
    (void)state;
    for (size_t i = 0; i < N(some); i++) check_way_back(path_of(some[i]));
    need_shared("fixtures/quant");
    for (size_t i = 0; i < N(all); i++) {
        snprintf(folder, sizeof folder, "%s/%s", shared("fixtures/quant"), all[i]);
        check_way_back(folder);
    }
}

static void unknown_quantizations_are_named(void **state)
{
    struct folder f;
    struct loadplan *p = NULL;
    struct err e = { 0 };

    (void)state;
    folder_begin(&f, "unknown");
    folder_zeros(&f, "model.embed_tokens.weight", 8, 8);
    const char *dir = folder_end(
        &f, STR("{\"model_type\":\"llama\",\"quantization_config\":{\"quant_method\":\"quip\"}}"));
    assert_int_equal(loadplan_read(&p, dir, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.msg,
                           "weights quantized by \"quip\" are not supported; supported are awq, "
                           "bitnet, compressed-tensors"));
}

/* A layer that is needed and cannot be read ends the load, with its name. */
static void broken_layers_end_the_load(void **state)
{
    struct folder f;
    struct source *s = NULL;
    struct err e = { 0 };
    int64_t dims[2] = { 8, 8 };

    (void)state;
    folder_begin(&f, "broken");
    folder_add(&f, "model.layers.0.self_attn.q_proj.weight", "F8_E4M3", dims, 2, NULL, 64);
    const char *dir = folder_end(
        &f, STR("{\"model_type\":\"llama\",\"quantization_config\":{\"quant_method\":\"fp8\"}}"));
    assert_int_equal(source_open(&s, dir, &e), OK);
    const struct source_tensor *t = source_find(s, "model.layers.0.self_attn.q_proj.weight");
    struct layout y = { .n_dims = 2,
                        .dims = { 8, 8 },
                        .count = 1,
                        .tensors = 1,
                        .rows = 8,
                        .cols = 8,
                        .n_parts = 1,
                        .part = { 8 } };
    assert_true(t && t->quant);
    assert_int_equal(layout_check(&y, s, t, false, &e), E_FORMAT);
    assert_non_null(strstr(e.msg, "q_proj.weight (fp8): its tensor of scales is missing"));
    source_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_of_quantized_folders_agree),
        cmocka_unit_test(logits_of_all_schemes_agree),
        cmocka_unit_test(members_keep_the_groups_of_quantized_layers),
        cmocka_unit_test(quantized_folders_become_gguf),
        cmocka_unit_test(convert_keeps_what_gguf_can_hold),
        cmocka_unit_test(quantized_folders_come_back_as_plain_ones),
        cmocka_unit_test(unknown_quantizations_are_named),
        cmocka_unit_test(broken_layers_end_the_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
