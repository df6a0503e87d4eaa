/* naming_own.c - keys of GGUF files that single families have: the inverse of hparams_own_gguf.c. */
#include "model/naming_impl.h"

#include "base/mem.h"

#include <math.h>

static bool is_arch(const struct hparams *hp, const char *name)
{
    return str_is(str_c(hp->arch), name);
}

/* The first layer with a window, or without one. */
static const struct layer_hp *find_layer(const struct hparams *hp, bool local)
{
    for (int l = 0; l < hp->n_layers; l++)
        if ((hp->layers[l].rope == 1) == local) return &hp->layers[l];
    return NULL;
}

/* Heads by layer; those of layers with a window have keys of their own. list: scratch. */
static void put_gemma_heads(struct key_writer *k, int32_t *list)
{
    const struct hparams *hp = k->hp;
    const struct layer_hp *local = find_layer(hp, true), *full = find_layer(hp, false);

    if (!full) full = local;
    put_int(k, "attention.head_count", full->n_heads);
    for (int l = 0; l < hp->n_layers; l++) list[l] = hp->layers[l].n_kv_heads;
    ggufw_i32s(k->w, full_name(k, "attention.head_count_kv"), list, (size_t)hp->n_layers);
    put_int(k, "attention.key_length", full->head_dim);
    put_int(k, "attention.value_length", full->head_dim_v);
    if (!is_arch(hp, "gemma4")) return;
    if (!local) local = full;
    put_int(k, "attention.key_length_swa", local->head_dim);
    put_int(k, "attention.value_length_swa", local->head_dim_v);
    put_int(k, "rope.dimension_count_swa", hp->rope[1].n_rot);
}

static void put_gemma(struct key_writer *k, int32_t *list, float *scales)
{
    const struct hparams *hp = k->hp;
    int shared = 0;

    put_gemma_heads(k, list);
    for (int l = 0; l < hp->n_layers; l++) {
        list[l] = hp->layers[l].n_ff;
        scales[l] = hp->layers[l].sparsity != 0 ? hp->layers[l].sparsity : -INFINITY;
        shared += hp->layers[l].kv_of != 0;
    }
    ggufw_i32s(k->w, full_name(k, "feed_forward_length"), list, (size_t)hp->n_layers);
    put_int(k, "attention.shared_kv_layers", shared);
    put_int(k, "embedding_length_per_layer_input", hp->n_ple);
    if (!is_arch(hp, "gemma3n")) return;
    put_int(k, "altup.num_inputs", hp->altup.n);
    put_int(k, "altup.active_idx", hp->altup.active);
    if (!hp->altup.scaled) put_bool(k, "altup.correct_scale", false);
    ggufw_f32s(k->w, full_name(k, "activation_sparsity_scale"), scales, (size_t)hp->n_layers);
}

/* The step between layers with experts; which ones have them is seen from the tensors. */
static void put_llama4(struct key_writer *k, bool *list)
{
    const struct hparams *hp = k->hp;
    int chunk = 0, first = 0;

    while (first < hp->n_layers - 1 && !hp->layers[first].moe) first++;
    put_int(k, "interleave_moe_layer_step", first + 1);
    for (int l = 0; l < hp->n_layers; l++) {
        list[l] = hp->layers[l].chunk > 0;
        if (list[l]) chunk = hp->layers[l].chunk;
    }
    put_int(k, "attention.sliding_window", chunk);
    ggufw_bools(k->w, full_name(k, "attention.chunked_layers"), list, (size_t)hp->n_layers);
    put_bool(k, "attention.qk_norm", hp->qk_bare);
    put_f32(k, "attention.temperature_scale", (double)hp->pos_scale.beta);
    put_int(k, "attention.temperature_length",
            hp->pos_scale.step > 0 ? (int)hp->pos_scale.step : 8192);
}

/* list: scratch. */
static void put_xielu(struct key_writer *k, float *list)
{
    static const struct {
        const char *key;
        size_t at;
    } keys[] = { { "xielu.alpha_p", offsetof(struct xielu_opt, a_p) },
                 { "xielu.alpha_n", offsetof(struct xielu_opt, a_n) },
                 { "xielu.beta", offsetof(struct xielu_opt, b) },
                 { "xielu.eps", offsetof(struct xielu_opt, eps) } };

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        for (int l = 0; l < k->hp->n_layers; l++)
            list[l] = *(const float *)((const char *)&k->hp->layers[l].xielu + keys[i].at);
        ggufw_f32s(k->w, keys[i].key, list, (size_t)k->hp->n_layers);
    }
}

/* llama.cpp ignores these keys: it has the numbers of the released model. */
static void put_minicpm3(struct key_writer *k)
{
    put_f32(k, "embedding_scale", (double)k->hp->embd_scale);
    put_f32(k, "residual_scale", (double)k->hp->residual_scale);
    put_f32(k, "logit_scale", (double)k->hp->logit_scale);
}

int naming_own_keys(struct key_writer *k, struct err *e)
{
    size_t n = (size_t)k->hp->n_layers;
    int32_t *list = mem_array(n, sizeof *list);
    float *scales = mem_array(n, sizeof *scales);
    bool *flags = mem_array(n, sizeof *flags);
    int rc = list && scales && flags ? OK : err_nomem(e, "the keys of a model");

    if (rc == OK && (is_arch(k->hp, "gemma4") || is_arch(k->hp, "gemma3n")))
        put_gemma(k, list, scales);
    if (rc == OK && is_arch(k->hp, "llama4")) put_llama4(k, flags);
    if (rc == OK && is_arch(k->hp, "afmoe"))
        put_f32(k, "embedding_scale", (double)k->hp->embd_scale);
    if (rc == OK && is_arch(k->hp, "mistral4") && k->hp->pos_scale.beta != 0) {
        put_f32(k, "attention.temperature_scale", (double)k->hp->pos_scale.beta);
        put_int(k, "attention.temperature_length", (int)k->hp->pos_scale.step);
    }
    if (rc == OK && is_arch(k->hp, "mistral3") && k->hp->pos_scale.beta != 0)
        put_f32(k, "attention.temperature_scale", (double)k->hp->pos_scale.beta);
    if (rc == OK && is_arch(k->hp, "mistral3") && k->hp->rope[0].scaling == ROPE_YARN)
        put_f32(k, "rope.scaling.yarn_log_multiplier", 1);
    if (rc == OK && is_arch(k->hp, "apertus")) put_xielu(k, scales);
    if (rc == OK && is_arch(k->hp, "minicpm3")) put_minicpm3(k);
    if (rc == OK) naming_own_moe_keys(k, list, flags);
    mem_free(list);
    mem_free(scales);
    mem_free(flags);
    return rc;
}

bool naming_own_heads(const struct hparams *hp)
{
    return is_arch(hp, "gemma4") || is_arch(hp, "gemma3n") || is_arch(hp, "mimo2");
}

bool naming_own_widths(const struct hparams *hp)
{
    return is_arch(hp, "gemma4") || is_arch(hp, "gemma3n") ||
           str_is(str_c(hp->info->gguf), "nemotron_h");
}
