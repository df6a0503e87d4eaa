/* Fuzz target: an arbitrary config.json in a folder with tensors of several families, or an
 * arbitrary GGUF file.
 *
 * Hyper-parameters are read. If they are valid, every tensor of the naming table is looked up, and
 * its first and last row are read. Then the model is loaded and runs a step of two tokens. */
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "model/naming.h"
#include "fuzz/step.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const struct {
    const char *name;
    int rows, cols;
} tensors[] = {
    { "model.embed_tokens.weight", 16, 8 },
    { "model.norm.weight", 8, 0 },
    { "lm_head.weight", 16, 8 },
    { "model.layers.0.self_attn.q_proj.weight", 8, 8 },
    { "model.layers.0.self_attn.k_proj.weight", 4, 8 },
    { "model.layers.0.self_attn.v_proj.weight", 4, 8 },
    { "model.layers.0.self_attn.o_proj.weight", 8, 8 },
    { "model.layers.0.mlp.gate_proj.weight", 12, 8 },
    { "model.layers.0.mlp.up_proj.weight", 12, 8 },
    { "model.layers.0.mlp.down_proj.weight", 8, 12 },
    { "model.layers.0.mlp.gate.weight", 2, 8 },
    { "model.layers.0.mlp.experts.0.down_proj.weight", 8, 12 },
    { "model.layers.0.mlp.experts.1.down_proj.weight", 8, 12 },
    { "model.layers.0.input_layernorm.weight", 8, 0 },
    { "model.layers.0.post_attention_layernorm.weight", 8, 0 },
    { "transformer.wte.weight", 16, 8 },
    { "transformer.h.0.attn.c_attn.weight", 8, 24 },
    { "transformer.h.0.attn.c_proj.weight", 8, 8 },
    { "transformer.h.0.mlp.c_proj.weight", 12, 8 },
    { "transformer.word_embeddings.weight", 16, 8 },
    { "transformer.h.0.self_attention.query_key_value.weight", 16, 8 },
    { "transformer.h.0.self_attention.dense.weight", 8, 8 },
    { "transformer.h.0.mlp.dense_4h_to_h.weight", 8, 32 },
};

static char dir[64], config[96], gguf[96];

static void remove_files(void)
{
    char path[96];

    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    unlink(path), unlink(config), unlink(gguf), rmdir(dir);
}

static void make_folder(void)
{
    struct buf head = { 0 }, all = { 0 };
    size_t at = 0;
    uint64_t n;
    char path[96];

    strcpy(dir, "/tmp/fuzz_hparams.XXXXXX");
    if (!mkdtemp(dir)) abort();
    atexit(remove_files);
    snprintf(config, sizeof config, "%s/config.json", dir);
    snprintf(gguf, sizeof gguf, "%s/x.gguf", dir);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        int cols = tensors[i].cols, count = tensors[i].rows * (cols ? cols : 1);
        char shape[32] = "";
        if (cols) snprintf(shape, sizeof shape, ",%d", cols);
        buf_printf(
            &head, "%c\"%s\":{\"dtype\":\"BF16\",\"shape\":[%d%s],\"data_offsets\":[%zu,%zu]}",
            i ? ',' : '{', tensors[i].name, tensors[i].rows, shape, at, at + (size_t)count * 2);
        at += (size_t)count * 2;
    }
    buf_putc(&head, '}');
    n = head.n;
    buf_add(&all, &n, 8);
    buf_put_str(&all, buf_str(&head));
    for (size_t i = 0; i < at; i++) buf_putc(&all, 0);
    if (file_replace(path, buf_str(&all), NULL) != OK) abort();
    buf_release(&all);
    buf_release(&head);
}

static void read_ends(const struct gguf_item *it)
{
    float *row = mem_array((size_t)it->cols, sizeof *row),
          *tmp = mem_array((size_t)it->cols, sizeof *tmp);

    if (row && tmp && it->rows > 0) {
        naming_row(it, 0, DT_F32, row, tmp);
        naming_row(it, it->rows - 1, DT_F32, row, tmp);
    }
    mem_free(tmp);
    mem_free(row);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    bool is_gguf = n >= 4 && memcmp(data, "GGUF", 4) == 0;
    struct source *src = NULL;
    struct arena a = { 0 };
    struct hparams hp = { 0 };
    struct gguf_item *items;
    struct err e;
    int n_items;

    if (!dir[0]) make_folder();
    if (file_replace(is_gguf ? gguf : config, str_of((const char *)data, n), NULL) != OK) return 0;
    if (source_open(&src, is_gguf ? gguf : dir, &e) == OK && hparams_read(&hp, &a, src, &e) == OK &&
        !is_gguf && hp.n_layers <= 64 && naming_plan(&hp, src, &a, &items, &n_items, &e) == OK)
        for (int i = 0; i < n_items; i++) read_ends(&items[i]);
    if (hp.n_layers && hp.n_layers <= 64) load_and_step(is_gguf ? gguf : dir);
    arena_release(&a);
    source_close(src);
    return 0;
}
