/* hparams_own_gguf.c - keys of GGUF files that single families have: gemma 3n and 4, llama 4,
 * ministral 3, mistral 4, afmoe, apertus, minicpm3, nanochat; hparams_own_gguf_moe.c has more. The
 * counterpart of hparams_own.c, which reads config.json; naming_own.c writes them.
 *
 * Names are those of llama.cpp. Where it has a fixed value instead of a key, a key of tern's own may
 * say otherwise. */
#include "model/hparams.h"
#include "model/metakeys.h"

#include <math.h>

static bool is_arch(const struct hparams *hp, const char *name)
{
    return str_is(str_c(hp->arch), name);
}

bool hparams_own_gguf_known(const struct arch *a)
{
    static const char *const names[] = { "afmoe",         "apertus",  "cohere2moe", "deepseek32",
                                         "gemma3n",       "gemma4",   "glm-dsa",    "llama4",
                                         "longcat_flash", "mimo2",    "minicpm3",   "minimax-m3",
                                         "mistral3",      "mistral4", "nanochat",   "olmo_hybrid" };

    if (a->flags & ARCH_HYBRID) return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (str_is(str_c(a->gguf), names[i])) return true;
    return false;
}

static bool read_bool(const struct metakeys *k, const char *name, bool otherwise)
{
    source_bool(k->src, metakeys_name(k, name).s, &otherwise);
    return otherwise;
}

/* ---- gemma ---- */

/* The last attention.shared_kv_layers layers read the keys and values of the last layer of their
 * kind that has its own. Files of gemma 3n without the key: all but the first 20. */
static void share_kv(const struct metakeys *k, struct hparams *hp)
{
    int n_shared = is_arch(hp, "gemma3n") && hp->n_layers > 20 ? hp->n_layers - 20 : 0;
    int first, last[2] = { -1, -1 };

    metakeys_int(k, "attention.shared_kv_layers", 0, &n_shared);
    first = hp->n_layers - n_shared;
    for (int l = 0; l < hp->n_layers && first > 0; l++) {
        bool local = hparams_gguf_window(k, hp->info, l);
        if (l < first) last[local] = l;
        else hp->layers[l].kv_of = last[local] + 1;
    }
}

/* The width of per-layer inputs; their table may have fewer rows than the vocabulary. */
static void read_layer_inputs(const struct metakeys *k, struct hparams *hp)
{
    const struct source_tensor *t = source_find(k->src, "per_layer_token_embd.weight");

    metakeys_int(k, "embedding_length_per_layer_input", 0, &hp->n_ple);
    if (t && t->n_dims == 2 && t->dims[0] < INT32_MAX) hp->n_ple_vocab = (int)t->dims[0];
}

/* key_length is that of layers without a window. A layer without attn_v has its keys as values. */
static void read_gemma4_shapes(const struct metakeys *k, struct hparams *hp)
{
    hp->moe.beside = hp->expert_scales = hp->moe.n > 0;
    read_layer_inputs(k, hp);
    share_kv(k, hp);
    for (int l = 0; l < hp->n_layers; l++) {
        struct layer_hp *w = &hp->layers[l];
        metakeys_int(k, "feed_forward_length", l, &w->n_ff);
        if (hparams_gguf_window(k, hp->info, l)) {
            metakeys_int(k, "attention.key_length_swa", l, &w->head_dim);
            metakeys_int(k, "attention.value_length_swa", l, &w->head_dim_v);
        }
        w->k_is_v = !w->kv_of && metakeys_tensor(k, l, "attn_k.weight") &&
                    !metakeys_tensor(k, l, "attn_v.weight");
    }
}

/* activation_sparsity_scale is minus infinity in layers whose gates are not sparse. */
static void read_gemma3n_shapes(const struct metakeys *k, struct hparams *hp)
{
    const struct source_tensor *left = metakeys_tensor(k, 0, "laurel_l.weight");
    struct value list, v;
    double f;

    hp->altup.n = 4;
    metakeys_int(k, "altup.num_inputs", 0, &hp->altup.n);
    metakeys_int(k, "altup.active_idx", 0, &hp->altup.active);
    if (left && left->n_dims == 2 && left->dims[0] < INT32_MAX) hp->altup.rank = (int)left->dims[0];
    hp->altup.scaled = read_bool(k, "altup.correct_scale", true);
    read_layer_inputs(k, hp);
    share_kv(k, hp);
    if (!source_key(k->src, metakeys_name(k, "activation_sparsity_scale").s, &list)) return;
    for (int l = 0; l < hp->n_layers; l++)
        if (value_at(&list, (size_t)l, &v) && value_f64(&v, &f) && isfinite(f))
            hp->layers[l].sparsity = (float)f;
}

/* ---- llama 4 ---- */

/* sliding_window is the size of the chunks; 0: no chunks, and rotary embedding in every layer. */
static void read_llama4(const struct metakeys *k, struct hparams *hp)
{
    int chunk = 8192, yes;

    metakeys_int(k, "attention.sliding_window", 0, &chunk);
    hp->qk_bare = read_bool(k, "attention.qk_norm", hp->moe.n != 128);
    hp->moe.weigh_inputs = true;
    hp->pos_scale_nope = true;
    hp->pos_scale =
        (struct pos_scale_opt){ (float)metakeys_f64_or(k, "attention.temperature_scale", 0.1), 1,
                                (float)metakeys_f64_or(k, "attention.temperature_length", 8192) };
    for (int l = 0; l < hp->n_layers; l++) {
        struct layer_hp *w = &hp->layers[l];
        if (chunk == 0 && !metakeys_int(k, "rope.layers", l, &yes)) w->rope = 0;
        yes = w->rope >= 0;
        metakeys_int(k, "attention.chunked_layers", l, &yes);
        w->window = 0;
        w->chunk = yes ? chunk : 0;
    }
}

/* ---- ministral 3 ---- */

/* Queries grow beyond the original context. yarn_log_multiplier is mscale_all_dim here, by whose
 * factor that of cos and sin is divided. */
static void read_mistral3(const struct metakeys *k, struct hparams *hp)
{
    struct rope_hp *r = &hp->rope[0];
    double all = metakeys_f64_or(k, "rope.scaling.yarn_log_multiplier", 0);

    hp->pos_scale =
        (struct pos_scale_opt){ (float)metakeys_f64_or(k, "attention.temperature_scale", 0), 0,
                                (float)r->orig_ctx };
    if (r->scaling == ROPE_YARN && all != 0 && r->factor > 1)
        r->attn_factor /= 0.1 * all * log(r->factor) + 1;
}

/* Mistral 4: as ministral 3, with a key for the step. A group of experts is scored by two. */
static void read_mistral4(const struct metakeys *k, struct hparams *hp)
{
    hp->pos_scale =
        (struct pos_scale_opt){ (float)metakeys_f64_or(k, "attention.temperature_scale", 0), 0,
                                (float)metakeys_f64_or(k, "attention.temperature_length",
                                                       hp->rope[0].orig_ctx) };
    if (hp->info->moe.group_two) hp->moe.group_top = 2;
}

/* ---- apertus ---- */

/* xIELU: one number, or one for each layer. These keys have no architecture in front. */
static int read_apertus(const struct metakeys *k, struct hparams *hp, struct err *e)
{
    static const struct {
        const char *key;
        size_t at;
    } keys[] = { { "xielu.alpha_p", offsetof(struct xielu_opt, a_p) },
                 { "xielu.alpha_n", offsetof(struct xielu_opt, a_n) },
                 { "xielu.beta", offsetof(struct xielu_opt, b) },
                 { "xielu.eps", offsetof(struct xielu_opt, eps) } };
    struct value v, one;
    double f;

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        for (int l = 0; l < hp->n_layers; l++) {
            bool there = source_key(k->src, keys[i].key, &v);
            if (there && v.kind == VALUE_LIST) there = value_at(&v, (size_t)l, &one);
            else one = v;
            if (!there || !value_f64(&one, &f))
                return err_set(e, E_FORMAT, "%s: the key %s has no number for layer %d",
                               source_path(k->src), keys[i].key, l);
            *(float *)((char *)&hp->layers[l].xielu + keys[i].at) = (float)f;
        }
    return OK;
}

/* ---- minicpm3 ---- */

/* llama.cpp has the factors of the released model; keys of tern's own may say otherwise. */
static void read_minicpm3(const struct metakeys *k, struct hparams *hp)
{
    hp->embd_scale = (float)metakeys_f64_or(k, "embedding_scale", 12);
    hp->residual_scale = (float)metakeys_f64_or(k, "residual_scale", 1.4 / sqrt(hp->n_layers));
    hp->logit_scale = (float)metakeys_f64_or(k, "logit_scale", 256.0 / hp->n_embd);
}

/* ---- nanochat ---- */

/* llama.cpp has no nanochat: all of it follows from the architecture. */
static void read_nanochat(struct hparams *hp)
{
    hp->qk_bare = hp->info->flags & ARCH_QK_BARE;
    hp->embd_norm = hp->info->flags & ARCH_EMBD_NORM;
    for (int i = 0; i < hp->n_rope; i++) hp->rope[i].reverse = hp->info->flags & ARCH_ROPE_BACK;
}

/* ---- the functions by architecture ---- */

int hparams_own_gguf_shapes(struct hparams *hp, const struct source *src, struct err *e)
{
    struct metakeys k = { src, hp->arch };

    hp->v_norm = hp->info->flags & ARCH_VALUE_NORM;
    if (is_arch(hp, "gemma4")) read_gemma4_shapes(&k, hp);
    if (is_arch(hp, "gemma3n")) read_gemma3n_shapes(&k, hp);
    if (is_arch(hp, "apertus")) return read_apertus(&k, hp, e);
    return hparams_own_moe_gguf_shapes(hp, src, e);
}

void hparams_own_gguf(struct hparams *hp, const struct source *src)
{
    struct metakeys k = { src, hp->arch };

    if (is_arch(hp, "gemma4") || is_arch(hp, "gemma3n")) {
        hp->attn_scale = 1; /* queries and keys are normalized */
        metakeys_int(&k, "rope.dimension_count_swa", 0, &hp->rope[1].n_rot);
    }
    if (is_arch(hp, "llama4")) read_llama4(&k, hp);
    if (is_arch(hp, "mistral3")) read_mistral3(&k, hp);
    if (is_arch(hp, "mistral4")) read_mistral4(&k, hp);
    if (is_arch(hp, "nanochat")) read_nanochat(hp);
    if (is_arch(hp, "minicpm3")) read_minicpm3(&k, hp);
    hparams_own_moe_gguf(hp, src);
    if (is_arch(hp, "afmoe"))
        hp->embd_scale = (float)metakeys_f64_or(&k, "embedding_scale", sqrt((double)hp->n_embd));
}
