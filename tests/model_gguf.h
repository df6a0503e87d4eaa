/* model_gguf.h - for tests: writes the model of a Hugging Face folder as a GGUF file. */
#ifndef TERN_TESTS_MODEL_GGUF_H
#define TERN_TESTS_MODEL_GGUF_H

#include "support.h"

#include "base/mem.h"
#include "kernel/quant.h"
#include "model/naming.h"

#include <stdio.h>
#include <string.h>

static inline enum dtype type_of(const struct gguf_item *it)
{
    return it->keep_f32 || it->from[0]->quant ? DT_F32 : it->from[0]->type;
}

/* Writes all rows of an item, multiplied by scale. */
static inline void write_rows(struct ggufw *w, const struct gguf_item *it, float scale)
{
    uint64_t bytes;
    float *f = mem_array((size_t)it->cols, sizeof *f), *tmp = mem_array(naming_room(it), sizeof *f);
    void *out;
    dtype_row_bytes(type_of(it), (uint64_t)it->cols, &bytes);
    out = mem_alloc(bytes);
    for (int64_t r = 0; r < it->rows; r++) {
        naming_row(it, r, DT_F32, f, tmp);
        for (int64_t i = 0; i < it->cols; i++) f[i] *= scale;
        quant_encode(type_of(it), f, out, it->cols);
        ggufw_data(w, out, bytes);
    }
    mem_free(out);
    mem_free(tmp);
    mem_free(f);
}

/* The name of the scale that belongs to a matrix: "blk.1.attn_q.scale" for
 * "blk.1.attn_q.weight". false: the item is no matrix of a layer. */
static inline bool scale_name(const struct gguf_item *it, char *out, size_t cap)
{
    size_t n = strlen(it->name);
    if (strncmp(it->name, "blk.", 4) != 0 || it->keep_f32 || n < 7) return false;
    snprintf(out, cap, "%.*s.scale", (int)(n - 7), it->name);
    return true;
}

/* Writes the folder as a GGUF file; matrices keep their type, quantized layers become F32.
 * scaled: each matrix is halved and gets a scale tensor of 2. grouped: the value heads of Qwen 3.5
 * keep the folder's order, and a key says so. */
static inline void write_gguf_form(const char *folder, const char *path, bool scaled, bool grouped)
{
    struct source *src = NULL;
    struct arena a = { 0 };
    struct hparams hp;
    struct gguf_extra extra[GGUF_EXTRAS];
    struct gguf_item *items;
    struct ggufw *w = NULL;
    struct err e = { 0 };
    char name[160];
    const int64_t one = 1;
    const float two = 2;
    int n;

    if (source_open(&src, folder, &e) != OK || hparams_read(&hp, &a, src, &e) != OK ||
        naming_plan(&hp, src, &a, &items, &n, &e) != OK || ggufw_open(&w, path, &e) != OK)
        fail_msg("%s", e.msg);
    if (naming_keys(&hp, w, &e) != OK) fail_msg("%s", e.msg);
    snprintf(name, sizeof name, "%s.ssm.heads_grouped", hp.arch);
    if (grouped) ggufw_bool(w, name, true);
    for (int i = 0; grouped && i < n; i++)
        items[i].tile_rows = items[i].tile_cols = (struct tiling){ 0 };
    int n_extra = naming_extras(&hp, &a, extra);
    for (int i = 0; i < n_extra; i++)
        ggufw_tensor(w, extra[i].name, DT_F32, extra[i].dims, extra[i].n_dims);
    for (int i = 0; i < n; i++) {
        ggufw_tensor(w, items[i].name, type_of(&items[i]), items[i].dims, items[i].n_dims);
        if (scaled && scale_name(&items[i], name, sizeof name))
            ggufw_tensor(w, name, DT_F32, &one, 1);
    }
    for (int i = 0; i < n_extra; i++)
        ggufw_data(w, extra[i].data, (size_t)extra[i].n * sizeof(float));
    for (int i = 0; i < n; i++) {
        bool halve = scaled && scale_name(&items[i], name, sizeof name);
        write_rows(w, &items[i], halve ? 0.5f : 1);
        if (halve) ggufw_data(w, &two, sizeof two);
    }
    if (ggufw_close(w, &e) != OK) fail_msg("%s", e.msg);
    arena_release(&a);
    source_close(src);
}

static inline void write_gguf_of(const char *folder, const char *path, bool scaled)
{
    write_gguf_form(folder, path, scaled, false);
}
#endif
