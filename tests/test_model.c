/* Logits of whole models against golden logits of transformers: from Hugging Face folders,
 * through GGUF files, and through GGUF files with packed tensors.
 *
 * Reads tests/golden/hf and, for all architectures, ../shared/fixtures/hf (skipped without it).
 * A folder holds the weights and the golden logits. */
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
        cmocka_unit_test(packed_tensors_of_gguf_files_are_read),
        cmocka_unit_test(a_gguf_file_gives_the_logits_of_its_folder),
        cmocka_unit_test(gguf_files_of_all_architectures_give_the_logits_of_their_folders),
        cmocka_unit_test(scale_tensors_of_matrices_are_applied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
