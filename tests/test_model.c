/* Logits of whole models against golden logits of transformers: from Hugging Face folders,
 * through GGUF files, and through GGUF files with packed tensors.
 *
 * Reads tests/golden/hf, tests/golden/hf-2026 and, for all architectures, ../shared/fixtures/hf
 * (skipped without it). A folder holds the weights and the golden logits. */
#include "model_gguf.h"
#include "model_world.h"

static const char *const all[] = {
    "deepseek_v2",
    "deepseek_v3",
    "lfm2",
    "mamba",
    "mamba2",
    "qwen3_next",
    "arcee",
    "bitnet",
    "bloom",
    "cohere",
    "cohere2",
    "ernie4_5",
    "exaone4",
    "falcon-mq",
    "falcon-new",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm",
    "glm4",
    "glm4_moe",
    "gpt2",
    "gpt_bigcode",
    "gpt_neo",
    "gpt_neox",
    "gpt_oss",
    "gptj",
    "granite",
    "granitemoe",
    "helium",
    "hunyuan_v1_dense",
    "llama",
    "llama-tied-l3rope",
    "llama-yarn-bias",
    "ministral",
    "mistral",
    "mixtral",
    "mpt",
    "nemotron",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "opt",
    "phi",
    "phi3",
    "phimoe",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "seed_oss",
    "smollm3",
    "stablelm",
    "stablelm2",
    "starcoder2",
};

static const char *fixture(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "fixtures/hf/%s", name);
    return shared(path);
}

static void logits_agree_with_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(committed); i++) {
        check_golden(golden(committed[i]), golden(committed[i]), true, 1e-4);
        check_golden(golden(committed[i]), golden(committed[i]), false, 2e-3);
    }
}

static void logits_of_all_architectures_agree_with_transformers(void **state)
{
    (void)state;
    need_shared("fixtures/hf");
    for (size_t i = 0; i < N(all); i++) {
        check_golden(fixture(all[i]), fixture(all[i]), true, 1e-4);
        check_golden(fixture(all[i]), fixture(all[i]), false, 2e-3);
    }
}

static void logits_of_newer_architectures_agree_with_transformers(void **state)
{
    (void)state;
    const char *hybrid = repo("tests/golden/hf-2026/nemotron_h-latent");
    check_golden(hybrid, hybrid, true, 1e-4);
    need_shared("fixtures/hf-2026");
    for (size_t i = 0; i < N(newer); i++) {
        check_golden(newer_folder(i), newer_folder(i), true, 1e-4);
        /* Gemma 4 does not scale its scores: rounding the keys to F16 moves them more. */
        check_golden(newer_folder(i), newer_folder(i), false,
                     strncmp(newer[i], "gemma4", 6) == 0 ? 1e-2 : 3e-3);
    }
}

/* ---- through GGUF files ---- */

static void check_gguf(const char *folder, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s.gguf", temp_dir(), name);
    write_gguf_of(folder, path, false);
    check_golden(path, folder, true, 1e-4);
}

/* ---- packed tensors, as some GGUF files have them ---- */

/* How many tensors, beginning with this item, are packed into one, and its name; 1: the item
 * stays alone. */
static int find_pack(const struct gguf_item *it, char *name, size_t cap)
{
    static const struct {
        const char *first, *one;
        int n;
    } packs[] = {
        { "attn_q.weight", "attn_qkv.weight", 3 },
        { "attn_q.bias", "attn_qkv.bias", 3 },
        { "ffn_gate_exps.weight", "ffn_gate_up_exps.weight", 2 },
    };
    for (size_t i = 0; i < N(packs); i++) {
        const char *at = strstr(it->name, packs[i].first);
        if (!at) continue;
        snprintf(name, cap, "%.*s%s", (int)(at - it->name), it->name, packs[i].one);
        return packs[i].n;
    }
    snprintf(name, cap, "%s", it->name);
    return 1;
}

/* Writes rows [a, b) of an item. */
static void write_row_range(struct ggufw *w, struct gguf_item it, int64_t a, int64_t b)
{
    uint64_t bytes;
    float *tmp = mem_array((size_t)it.cols, sizeof *tmp);
    void *out;
    dtype_row_bytes(type_of(&it), (uint64_t)it.cols, &bytes);
    out = mem_alloc(bytes);
    for (int64_t r = a; r < b; r++) {
        naming_row(&it, r, type_of(&it), out, tmp);
        ggufw_data(w, out, bytes);
    }
    mem_free(out);
    mem_free(tmp);
}

static void write_packed_gguf(const char *folder, const char *path)
{
    struct source *src = NULL;
    struct arena a = { 0 };
    struct hparams hp;
    struct gguf_item *items;
    struct ggufw *w = NULL;
    struct err e = { 0 };
    char name[160];
    int n = 0, k;

    if (source_open(&src, folder, &e) != OK || hparams_read(&hp, &a, src, &e) != OK ||
        naming_plan(&hp, src, &a, &items, &n, &e) != OK || ggufw_open(&w, path, &e) != OK)
        fail_msg("%s", e.msg);
    if (naming_keys(&hp, w, &e) != OK) fail_msg("%s", e.msg);
    for (int i = 0; i < n; i += k) {
        int64_t dims[3];
        int at = items[i].n_dims - 2 > 0 ? items[i].n_dims - 2 : 0;
        k = find_pack(&items[i], name, sizeof name);
        memcpy(dims, items[i].dims, sizeof dims);
        for (int j = 1; j < k; j++) dims[at] += items[i + j].dims[at];
        ggufw_tensor(w, name, type_of(&items[i]), dims, items[i].n_dims);
    }
    for (int i = 0; i < n; i += k) {
        int64_t count = items[i].n_dims == 3 ? items[i].dims[0] : 1;
        k = find_pack(&items[i], name, sizeof name);
        for (int64_t c = 0; c < count; c++)
            for (int j = 0; j < k; j++) {
                int64_t each = items[i + j].rows / count;
                write_row_range(w, items[i + j], c * each, (c + 1) * each);
            }
    }
    if (ggufw_close(w, &e) != OK) fail_msg("%s", e.msg);
    arena_release(&a);
    source_close(src);
}

static void packed_tensors_of_gguf_files_are_read(void **state)
{
    static const char *const names[] = { "qwen2", "glm4_moe" };
    char path[256];
    (void)state;
    for (size_t i = 0; i < N(names); i++) {
        snprintf(path, sizeof path, "%s/%s-packed.gguf", temp_dir(), names[i]);
        write_packed_gguf(golden(names[i]), path);
        check_golden(path, golden(names[i]), true, 1e-4);
    }
}

static void a_gguf_file_gives_the_logits_of_its_folder(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(committed); i++) check_gguf(golden(committed[i]), committed[i]);
}

static void gguf_files_of_all_architectures_give_the_logits_of_their_folders(void **state)
{
    (void)state;
    need_shared("fixtures/hf");
    for (size_t i = 0; i < N(all); i++) check_gguf(fixture(all[i]), all[i]);
}

/* Newer architectures that GGUF files do not have yet. */
static bool is_folder_only(const char *name)
{
    static const char *const names[] = { "deepseek_v4" };
    for (size_t i = 0; i < N(names); i++)
        if (strncmp(name, names[i], strlen(names[i])) == 0) return true;
    return false;
}

static void gguf_files_of_newer_architectures_give_the_logits_of_their_folders(void **state)
{
    (void)state;
    need_shared("fixtures/hf-2026");
    for (size_t i = 0; i < N(newer); i++)
        if (!is_folder_only(newer[i])) check_gguf(newer_folder(i), newer[i]);
}

/* The first n values of a tensor. */
static void read_floats(const struct source *src, const char *name, float *out, int n)
{
    const struct source_tensor *t = source_find(src, name);
    assert_non_null(t);
    quant_decode(t->type, t->data, out, n);
}

/* Two key heads with two value heads each: 0, 1 and 2, 3 in the folder. */
static void qwen3_5_files_have_the_order_and_the_keys_of_llama_cpp(void **state)
{
    static const int folder_head[] = { 0, 2, 1, 3 };
    const int head_dim = 16, first_v = 2 * 2 * 16, n_embd = 64;
    char path[256];
    float dt[4], tiled[4];
    struct source *folder = NULL, *file = NULL;
    struct err e = { 0 };
    struct value list, v;
    (void)state;
    need_shared("fixtures/hf-2026");
    const char *from = shared("fixtures/hf-2026/qwen3_5_text");
    snprintf(path, sizeof path, "%s/tiled.gguf", temp_dir());
    write_gguf_of(from, path, false);
    if (source_open(&folder, from, &e) != OK || source_open(&file, path, &e) != OK)
        fail_msg("%s", e.msg);
    read_floats(folder, "model.layers.0.linear_attn.dt_bias", dt, 4);
    read_floats(file, "blk.0.ssm_dt.bias", tiled, 4);
    const struct source_tensor *in = source_find(folder,
                                                 "model.layers.0.linear_attn.in_proj_qkv.weight"),
                               *tiled_in = source_find(file, "blk.0.attn_qkv.weight"),
                               *out = source_find(folder,
                                                  "model.layers.0.linear_attn.out_proj.weight"),
                               *tiled_out = source_find(file, "blk.0.ssm_out.weight");
    size_t size = (size_t)dtype_info((int)in->type)->bytes, row = (size_t)n_embd * size,
           head = (size_t)head_dim * size;
    assert_int_equal(in->dims[1], n_embd);
    assert_memory_equal(in->data, tiled_in->data, (size_t)first_v * row);
    for (int i = 0; i < 4; i++) {
        size_t a = (size_t)(first_v + i * head_dim) * row,
               b = (size_t)(first_v + folder_head[i] * head_dim) * row;
        assert_true(tiled[i] == dt[folder_head[i]]);
        assert_memory_equal((const char *)tiled_in->data + a, (const char *)in->data + b,
                            (size_t)head_dim * row);
        assert_memory_equal((const char *)tiled_out->data + (size_t)i * head,
                            (const char *)out->data + (size_t)folder_head[i] * head, head);
    }
    assert_true(source_key(file, "qwen35.rope.dimension_sections", &list));
    for (size_t i = 0; i < 4; i++) assert_true(value_at(&list, i, &v));
    assert_false(source_key(file, "qwen35.ssm.heads_grouped", &v));
    source_close(file);
    source_close(folder);
}

static void qwen3_5_files_with_heads_in_the_order_of_the_folder_are_read(void **state)
{
    char path[256];
    (void)state;
    need_shared("fixtures/hf-2026");
    const char *from = shared("fixtures/hf-2026/qwen3_5_text");
    snprintf(path, sizeof path, "%s/grouped.gguf", temp_dir());
    write_gguf_form(from, path, false, true);
    check_golden(path, from, true, 1e-4);
}

static void scale_tensors_of_matrices_are_applied(void **state)
{
    char path[256];
    (void)state;
    snprintf(path, sizeof path, "%s/scaled.gguf", temp_dir());
    write_gguf_of(golden("bitnet"), path, true);
    check_golden(path, golden("bitnet"), true, 1e-4);
    check_golden(path, golden("bitnet"), false, 2e-3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_agree_with_transformers),
        cmocka_unit_test(logits_of_all_architectures_agree_with_transformers),
        cmocka_unit_test(logits_of_newer_architectures_agree_with_transformers),
        cmocka_unit_test(packed_tensors_of_gguf_files_are_read),
        cmocka_unit_test(a_gguf_file_gives_the_logits_of_its_folder),
        cmocka_unit_test(gguf_files_of_all_architectures_give_the_logits_of_their_folders),
        cmocka_unit_test(gguf_files_of_newer_architectures_give_the_logits_of_their_folders),
        cmocka_unit_test(qwen3_5_files_have_the_order_and_the_keys_of_llama_cpp),
        cmocka_unit_test(qwen3_5_files_with_heads_in_the_order_of_the_folder_are_read),
        cmocka_unit_test(scale_tensors_of_matrices_are_applied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
