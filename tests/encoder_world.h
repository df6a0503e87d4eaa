/* encoder_world.h - small encoders (BERT, RoBERTa, Nomic, ModernBERT) with random weights, written
 * as Hugging Face folders. */
#ifndef TERN_TESTS_ENCODER_WORLD_H
#define TERN_TESTS_ENCODER_WORLD_H

#include "safetens.h"

#include "base/rng.h"

#include <string.h>

enum { /* the shape of all encoders */
       E = 24,
       HEADS = 3,
       FF = 40,
       LAYERS = 4,
       VOCAB = 50,
       POSITIONS = 80,
       DIM = E / HEADS,
       WINDOW = 6,
       MAX_T = 40
};
enum kind { BERT, ROBERTA, NOMIC, MODERN, KINDS };

static const char *const types[KINDS] = { "bert", "roberta", "nomic_bert", "modernbert" };

struct layer_w {
    float qkv[3 * E * E], qkv_b[3 * E], o[E * E], o_b[E];
    float up[FF * E], up_b[FF], gate[FF * E], down[E * FF], down_b[E];
    float n1[E], n1_b[E], n2[E], n2_b[E];
};

struct weights {
    float embd[VOCAB * E], pos[POSITIONS * E], type[2 * E], en[E], en_b[E], on[E];
    struct layer_w l[LAYERS];
};

static inline void fill_random(struct rng *rng, float *x, size_t n, float mean, float scale)
{
    for (size_t i = 0; i < n; i++) x[i] = mean + rng_normal(rng) * scale;
}

static inline struct weights *random_weights(struct rng *rng)
{
    struct weights *w = mem_new(struct weights);

    fill_random(rng, (float *)w, sizeof *w / sizeof(float), 0, 0.3f);
    fill_random(rng, w->en, E, 1, 0.3f);
    fill_random(rng, w->on, E, 1, 0.3f);
    for (int l = 0; l < LAYERS; l++)
        fill_random(rng, w->l[l].n1, E, 1, 0.3f), fill_random(rng, w->l[l].n2, E, 1, 0.3f);
    return w;
}

/* ---- folders ---- */

/* Adds a tensor; cols 0: a vector. fmt is the tensor's name, with a %d for the layer. */
static inline void add_weight(struct folder *f, const float *x, int rows, int cols, const char *fmt,
                              int l)
{
    int64_t dims[2] = { rows, cols };
    char name[128];

    snprintf(name, sizeof name, fmt, l);
    folder_add(f, name, "F32", dims, cols ? 2 : 1, x,
               (size_t)rows * (size_t)(cols ? cols : 1) * sizeof *x);
}

static inline void add_bert(struct folder *f, const struct weights *w)
{
    static const char *const part[] = { "query", "key", "value" };
    char name[128];

    add_weight(f, w->embd, VOCAB, E, "bert.embeddings.word_embeddings.weight", 0);
    add_weight(f, w->pos, POSITIONS, E, "bert.embeddings.position_embeddings.weight", 0);
    add_weight(f, w->type, 2, E, "bert.embeddings.token_type_embeddings.weight", 0);
    add_weight(f, w->en, E, 0, "bert.embeddings.LayerNorm.weight", 0);
    add_weight(f, w->en_b, E, 0, "bert.embeddings.LayerNorm.bias", 0);
    for (int l = 0; l < LAYERS; l++) {
        const struct layer_w *y = &w->l[l];
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "bert.encoder.layer.%%d.attention.self.%s.weight", part[i]);
            add_weight(f, y->qkv + i * E * E, E, E, name, l);
            snprintf(name, sizeof name, "bert.encoder.layer.%%d.attention.self.%s.bias", part[i]);
            add_weight(f, y->qkv_b + i * E, E, 0, name, l);
        }
        add_weight(f, y->o, E, E, "bert.encoder.layer.%d.attention.output.dense.weight", l);
        add_weight(f, y->o_b, E, 0, "bert.encoder.layer.%d.attention.output.dense.bias", l);
        add_weight(f, y->n1, E, 0, "bert.encoder.layer.%d.attention.output.LayerNorm.weight", l);
        add_weight(f, y->n1_b, E, 0, "bert.encoder.layer.%d.attention.output.LayerNorm.bias", l);
        add_weight(f, y->up, FF, E, "bert.encoder.layer.%d.intermediate.dense.weight", l);
        add_weight(f, y->up_b, FF, 0, "bert.encoder.layer.%d.intermediate.dense.bias", l);
        add_weight(f, y->down, E, FF, "bert.encoder.layer.%d.output.dense.weight", l);
        add_weight(f, y->down_b, E, 0, "bert.encoder.layer.%d.output.dense.bias", l);
        add_weight(f, y->n2, E, 0, "bert.encoder.layer.%d.output.LayerNorm.weight", l);
        add_weight(f, y->n2_b, E, 0, "bert.encoder.layer.%d.output.LayerNorm.bias", l);
    }
    add_weight(f, w->l[0].o, E, E, "bert.pooler.dense.weight", 0); /* used by classifiers only */
    add_weight(f, w->l[0].o_b, E, 0, "bert.pooler.dense.bias", 0);
}

static inline void add_nomic(struct folder *f, const struct weights *w)
{
    add_weight(f, w->embd, VOCAB, E, "embeddings.word_embeddings.weight", 0);
    add_weight(f, w->type, 2, E, "embeddings.token_type_embeddings.weight", 0);
    add_weight(f, w->en, E, 0, "emb_ln.weight", 0);
    add_weight(f, w->en_b, E, 0, "emb_ln.bias", 0);
    for (int l = 0; l < LAYERS; l++) {
        const struct layer_w *y = &w->l[l];
        add_weight(f, y->qkv, 3 * E, E, "encoder.layers.%d.attn.Wqkv.weight", l);
        add_weight(f, y->o, E, E, "encoder.layers.%d.attn.out_proj.weight", l);
        add_weight(f, y->n1, E, 0, "encoder.layers.%d.norm1.weight", l);
        add_weight(f, y->n1_b, E, 0, "encoder.layers.%d.norm1.bias", l);
        add_weight(f, y->up, FF, E, "encoder.layers.%d.mlp.fc11.weight", l);
        add_weight(f, y->gate, FF, E, "encoder.layers.%d.mlp.fc12.weight", l);
        add_weight(f, y->down, E, FF, "encoder.layers.%d.mlp.fc2.weight", l);
        add_weight(f, y->n2, E, 0, "encoder.layers.%d.norm2.weight", l);
        add_weight(f, y->n2_b, E, 0, "encoder.layers.%d.norm2.bias", l);
    }
}

static inline void add_modern(struct folder *f, const struct weights *w)
{
    float both[2 * FF * E];

    add_weight(f, w->embd, VOCAB, E, "model.embeddings.tok_embeddings.weight", 0);
    add_weight(f, w->en, E, 0, "model.embeddings.norm.weight", 0);
    add_weight(f, w->on, E, 0, "model.final_norm.weight", 0);
    for (int l = 0; l < LAYERS; l++) {
        const struct layer_w *y = &w->l[l];
        if (l > 0) add_weight(f, y->n1, E, 0, "model.layers.%d.attn_norm.weight", l);
        add_weight(f, y->qkv, 3 * E, E, "model.layers.%d.attn.Wqkv.weight", l);
        add_weight(f, y->o, E, E, "model.layers.%d.attn.Wo.weight", l);
        add_weight(f, y->n2, E, 0, "model.layers.%d.mlp_norm.weight", l);
        memcpy(both, y->gate, sizeof y->gate);
        memcpy(both + FF * E, y->up, sizeof y->up);
        add_weight(f, both, 2 * FF, E, "model.layers.%d.mlp.Wi.weight", l);
        add_weight(f, y->down, E, FF, "model.layers.%d.mlp.Wo.weight", l);
    }
}

/* Writes the folder and returns its path. pooling is a mode of 1_Pooling/config.json. */
static inline const char *write_encoder(struct folder *f, const struct weights *w, enum kind kind,
                                        const char *pooling)
{
    struct buf config = { 0 };
    char pool[300];

    folder_begin(f, types[kind]);
    if (kind <= ROBERTA) add_bert(f, w);
    else if (kind == NOMIC) add_nomic(f, w);
    else add_modern(f, w);
    buf_printf(
        &config,
        "{\"model_type\":\"%s\",\"vocab_size\":%d,\"type_vocab_size\":2,\"layer_norm_eps\":1e-5,"
        "\"norm_eps\":1e-5,\"pad_token_id\":1,",
        types[kind], VOCAB);
    if (kind == NOMIC)
        buf_printf(&config,
                   "\"n_embd\":%d,\"n_layer\":%d,\"n_head\":%d,\"n_inner\":%d,\"n_positions\":64,"
                   "\"rotary_emb_base\":500,\"layer_norm_epsilon\":1e-5,\"activation_function\":"
                   "\"swiglu\"}",
                   E, LAYERS, HEADS, FF);
    else
        buf_printf(
            &config,
            "\"hidden_size\":%d,\"num_hidden_layers\":%d,\"num_attention_heads\":%d,"
            "\"intermediate_size\":%d,\"max_position_embeddings\":%d,\"local_attention\":%d,"
            "\"global_rope_theta\":900,\"local_rope_theta\":300,\"global_attn_every_n_layers\":3}",
            E, LAYERS, HEADS, FF, POSITIONS, WINDOW);
    folder_end(f, buf_str(&config));
    snprintf(pool, sizeof pool, "%s/1_Pooling", f->dir);
    mkdir(pool, 0755);
    snprintf(pool, sizeof pool, "{\"pooling_mode_%s\":true}", pooling);
    folder_write(f, "1_Pooling/config.json", str_c(pool));
    buf_release(&config);
    return f->dir;
}
#endif
