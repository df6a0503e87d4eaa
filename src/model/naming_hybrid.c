/* naming_hybrid.c - hybrids (ARCH_HYBRID) as GGUF: keys, and factors of falcon-h1 that llama.cpp has
 * no keys for. The inverse of hparams_hybrid_gguf.c. */
#include "model/naming_impl.h"

#include "base/mem.h"
#include "model/model.h"

static bool is_arch(const struct hparams *hp, const char *name)
{
    return str_is(str_c(hp->info->gguf), name);
}

static const struct layer_hp *find_attention(const struct hparams *hp)
{
    for (int l = 0; l < hp->n_layers; l++)
        if (layer_attends(&hp->layers[l])) return &hp->layers[l];
    return &hp->layers[0];
}

/* KV heads by layer; 0: the layer has no attention. */
static void put_kv_heads(struct key_writer *k, int32_t *list)
{
    const struct hparams *hp = k->hp;

    for (int l = 0; l < hp->n_layers; l++)
        list[l] = layer_attends(&hp->layers[l]) ? hp->layers[l].n_kv_heads : 0;
    ggufw_i32s(k->w, full_name(k, "attention.head_count_kv"), list, (size_t)hp->n_layers);
}

/* Every layer is one block: the feed-forward width is 0 where it is another. llama.cpp wants both
 * spellings of the epsilon. */
static void put_nemotron(struct key_writer *k, int32_t *list)
{
    const struct hparams *hp = k->hp;

    for (int l = 0; l < hp->n_layers; l++) {
        const struct layer_hp *w = &hp->layers[l];
        list[l] = w->no_ffn ? 0 : w->moe ? hp->moe.n_ff : w->n_ff;
    }
    ggufw_i32s(k->w, full_name(k, "feed_forward_length"), list, (size_t)hp->n_layers);
    put_f32(k, "attention.layer_norm_epsilon", (double)hp->norm_eps);
    if (hp->moe.n_in) put_int(k, "moe_latent_size", hp->moe.n_in);
}

int naming_hybrid_keys(struct key_writer *k, struct err *e)
{
    const struct hparams *hp = k->hp;
    const struct layer_hp *attn = find_attention(hp);
    int32_t *list = mem_array((size_t)hp->n_layers, sizeof *list);
    bool rotates = false;

    if (!list) return err_nomem(e, "the keys of a model");
    for (int l = 0; l < hp->n_layers; l++) rotates = rotates || hp->layers[l].rope >= 0;
    put_int(k, "attention.head_count", attn->n_heads);
    if (is_arch(hp, "falcon-h1")) put_int(k, "attention.head_count_kv", attn->n_kv_heads);
    else put_kv_heads(k, list); /* a list: llama.cpp finds mixers by it */
    put_int(k, "attention.key_length", attn->head_dim);
    put_int(k, "attention.value_length", attn->head_dim_v);
    if (is_arch(hp, "nemotron_h")) put_nemotron(k, list);
    if (is_arch(hp, "granitehybrid")) put_bool(k, "rope.scaling.finetuned", rotates);
    if (is_arch(hp, "falcon-h1") && hp->tied && hp->logit_scale != hp->embd_scale)
        put_f32(k, "logit_scale", (double)(hp->logit_scale / hp->embd_scale));
    mem_free(list);
    return OK;
}

/* ---- factors in the weights ---- */

/* All rows of a tensor; 0 means 1. */
static void set_scale(struct row_scale *out, float f)
{
    if (f == 0 || f == 1) return;
    *out = (struct row_scale){ .n = 1, .f = { f }, .end = { INT64_MAX } };
}

/* z, x, b, c and dt of the input projection; its bias has no part in in_scale. */
static void set_input_scales(struct row_scale *out, const struct mix_hp *h, float all)
{
    int bc = h->n_groups * h->n_state;
    int wide[5] = { h->inner, h->inner, bc, bc, h->n_heads };
    int64_t end = 0;

    for (int i = 0; i < 5; i++) {
        end += wide[i];
        out->f[i] = (h->scales[i] != 0 ? h->scales[i] : 1) * (all != 0 ? all : 1);
        out->end[i] = end;
    }
    out->n = 5;
}

static float product(float a, float b) { return (a != 0 ? a : 1) * (b != 0 ? b : 1); }

void naming_scales(struct row_scale *out, const struct hparams *hp, const struct tensor_row *r,
                   int l)
{
    const struct mix_hp *h = &hp->layers[l].mix;

    if (!is_arch(hp, "falcon-h1")) return;
    if (!row_in_layer(r)) {
        if (r->at == offsetof(struct model, embd)) set_scale(out, hp->embd_scale);
        if (r->at == offsetof(struct model, head)) set_scale(out, hp->logit_scale);
        return;
    }
    if (r->at == offsetof(struct layer, wq) || r->at == offsetof(struct layer, wv))
        set_scale(out, hp->s_attn_in);
    if (r->at == offsetof(struct layer, wk)) set_scale(out, product(hp->s_attn_in, hp->k_scale));
    if (r->at == offsetof(struct layer, bk)) set_scale(out, hp->k_scale);
    if (r->at == offsetof(struct layer, wo)) set_scale(out, hp->s_attn_out);
    if (r->at == offsetof(struct layer, gate)) set_scale(out, hp->s_gate);
    if (r->at == offsetof(struct layer, down)) set_scale(out, hp->s_down);
    if (r->at == offsetof(struct layer, mix.out)) set_scale(out, h->out_scale);
    if (r->at == offsetof(struct layer, mix.in)) set_input_scales(out, h, h->in_scale);
    if (r->at == offsetof(struct layer, mix.in_b)) set_input_scales(out, h, 1);
}
