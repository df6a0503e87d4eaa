/* hparams_gemma.c - keys of config.json of gemma 3n and 4: per-layer inputs, layers that share keys and
 * values, heads of another size in layers without a window, experts beside the dense block. */
#include "model/config.h"

#include <math.h>

/* Layers without "layer_types": all but every sixth (gemma 3n: fifth) have a window; the last one of
 * gemma 4 never has. */
static bool has_window(const struct config *c, const struct hparams *hp, int l)
{
    int every = c->arch->window_every;

    if (every == 6 && l == hp->n_layers - 1) return false;
    if (config_has(c, "", "layer_types.0"))
        return config_list_is(c, "layer_types", l, "sliding_attention");
    return (l + 1) % every != 0;
}

/* The last num_kv_shared_layers layers read the keys and values of the last layer of their kind
 * that has its own. */
static void share_kv(const struct config *c, struct hparams *hp)
{
    int n_shared = 0, first, last[2] = { -1, -1 };

    config_int(c, "num_kv_shared_layers", &n_shared);
    first = hp->n_layers - n_shared;
    for (int l = 0; l < hp->n_layers && first > 0; l++) {
        bool local = has_window(c, hp, l);
        if (l < first) last[local] = l;
        else hp->layers[l].kv_of = last[local] + 1;
    }
}

static void read_layer_inputs(const struct config *c, struct hparams *hp)
{
    hp->n_ple = 256;
    hp->n_ple_vocab = 262144;
    config_int(c, "hidden_size_per_layer_input", &hp->n_ple);
    config_int(c, "vocab_size_per_layer_input", &hp->n_ple_vocab);
    if (config_null(c, "hidden_size_per_layer_input")) hp->n_ple = 0;
}

static int read_gemma4_shapes(const struct config *c, struct hparams *hp, struct err *e)
{
    bool same = config_bool(c, "attention_k_eq_v", false),
         wide = config_bool(c, "use_double_wide_mlp", false);
    int wide_head = 512;

    config_int(c, "global_head_dim", &wide_head);
    if (!config_bool(c, "enable_moe_block", false)) hp->moe.n = 0;
    hp->moe.beside = hp->expert_scales = hp->moe.n > 0;
    read_layer_inputs(c, hp);
    share_kv(c, hp);
    for (int l = 0; l < hp->n_layers; l++) {
        struct layer_hp *w = &hp->layers[l];
        int n_ff = 0;
        if (config_int(c, "intermediate_size", &n_ff)) w->n_ff = n_ff;
        w->moe = hp->moe.n > 0;
        if (wide && w->kv_of) w->n_ff *= 2;
        if (has_window(c, hp, l)) continue;
        w->head_dim = wide_head;
        w->k_is_v = same && !w->kv_of;
        if (same) config_int(c, "num_global_key_value_heads", &w->n_kv_heads);
    }
    for (int l = 0; l < hp->n_layers; l++)
        if (hp->layers[l].kv_of) {
            struct layer_hp *w = &hp->layers[l], *from = &hp->layers[w->kv_of - 1];
            if (w->head_dim != from->head_dim || w->n_kv_heads != from->n_kv_heads)
                return config_refuse(c, "num_kv_shared_layers", "joins layers of other shapes", e);
        }
    return OK;
}

/* The number that a standard normal variable is below with probability p: Newton's method on the
 * distribution function, from its centre. */
static double normal_quantile(double p)
{
    double x = 0;

    for (int i = 0; i < 64 && p > 0 && p < 1; i++) {
        double step =
            (0.5 * erfc(-x * sqrt(0.5)) - p) * sqrt(2 * 3.14159265358979323846) * exp(0.5 * x * x);
        x -= step > 1 ? 1 : step < -1 ? -1 : step;
    }
    return x;
}

/* Streams, low-rank residuals, and gates of which only the largest part is not 0. */
static int read_gemma3n_shapes(const struct config *c, struct hparams *hp)
{
    double part;

    hp->altup = (struct altup_hp){ .n = 4, .rank = 64 };
    config_int(c, "altup_num_inputs", &hp->altup.n);
    config_int(c, "altup_active_idx", &hp->altup.active);
    config_int(c, "laurel_rank", &hp->altup.rank);
    hp->altup.scaled = config_bool(c, "altup_correct_scale", true);
    read_layer_inputs(c, hp);
    share_kv(c, hp);
    for (int l = 0; l < hp->n_layers; l++)
        if (config_list_f64(c, "activation_sparsity_pattern", l, &part) && part > 0 && part < 1)
            hp->layers[l].sparsity = (float)normal_quantile(part);
    return OK;
}

int hparams_gemma_shapes(const struct config *c, struct hparams *hp, struct err *e)
{
    if (str_is(str_c(c->arch->hf[0]), "gemma3n_text")) return read_gemma3n_shapes(c, hp);
    return read_gemma4_shapes(c, hp, e);
}

/* Scores are not scaled: queries and keys are normalized. */
int hparams_gemma(const struct config *c, struct hparams *hp, struct err *e)
{
    (void)c, (void)e;
    hp->attn_scale = 1;
    return OK;
}
