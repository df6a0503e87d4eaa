/* hparams_encoder.c - hyper-parameters of encoders, and the pooling of hidden states (any model). */
#include "model/config.h"
#include "model/vechead.h"

#include <math.h>
#include <stdio.h>

static bool is_arch(const struct hparams *hp, const char *gguf)
{
    return str_is(str_c(hp->arch), gguf);
}

/* ---- config.json ---- */

int hparams_encoder_shapes(const struct config *c, struct hparams *hp, struct err *e)
{
    int pad = 1;

    hp->encoder = true;
    hp->n_types = 1;
    config_int(c, "type_vocab_size", &hp->n_types);
    if (config_bool(c, "is_decoder", false))
        return config_refuse(c, "is_decoder", "is not supported", e);
    /* Roberta counts positions from pad_token_id + 1. */
    if (is_arch(hp, "bert") && !str_is(str_c(c->arch->hf[0]), "bert")) {
        config_int(c, "pad_token_id", &pad);
        if (pad + 1 >= hp->n_ctx) return config_refuse(c, "pad_token_id", "leaves no positions", e);
        hp->pos_skip = pad + 1;
        hp->n_ctx -= hp->pos_skip;
    }
    return OK;
}

/* BERT normalizes after each block and has no final norm. */
static int read_bert(const struct config *c, struct hparams *hp, struct err *e)
{
    struct str kind;

    if (config_str(c, "", "position_embedding_type", &kind) && !str_is(kind, "absolute"))
        return config_refuse(c, "position_embedding_type", "must be \"absolute\"", e);
    hp->norm_after = true;
    hp->last_norm = false;
    return OK;
}

/* Keys of the nomic_bert code; variants that it never released are refused. */
static int read_nomic(const struct config *c, struct hparams *hp, struct err *e)
{
    double v;
    struct str act;

    if (config_f64(c, "", "rotary_emb_fraction", &v) && v != 1)
        return config_refuse(c, "rotary_emb_fraction", "must be 1", e);
    if (config_bool(c, "rotary_emb_interleaved", false) || config_bool(c, "prenorm", false) ||
        config_bool(c, "use_rms_norm", false) || config_bool(c, "causal", false))
        return config_refuse(c, "rotary_emb_interleaved, prenorm, use_rms_norm and causal",
                             "must be false", e);
    if (config_str(c, "", "activation_function", &act) && !str_is(act, "swiglu"))
        return config_refuse(c, "activation_function", "must be \"swiglu\"", e);
    if (config_f64(c, "", "rotary_emb_base", &v)) hp->rope[0].theta = v;
    if (config_f64(c, "", "layer_norm_epsilon", &v)) hp->norm_eps = (float)v;
    if (config_bool(c, "mlp_fc1_bias", false)) hp->bias |= BIAS_MLP;
    if (config_bool(c, "mlp_fc2_bias", false)) hp->bias |= BIAS_O;
    hp->norm_after = true;
    hp->last_norm = false;
    return OK;
}

/* Every n-th layer, from the first on, has full attention; the others have a window. */
static int read_modern(const struct config *c, struct hparams *hp, struct err *e)
{
    int every = 3, window = 128;
    double v;

    config_int(c, "global_attn_every_n_layers", &every);
    config_int(c, "local_attention", &window);
    for (int l = 0; l < hp->n_layers; l++) {
        char key[64];
        struct str type;
        bool local = every > 0 && l % every != 0;
        snprintf(key, sizeof key, "layer_types.%d", l);
        if (config_str(c, "", key, &type)) {
            local = str_is(type, "sliding_attention");
            if (!local && !str_is(type, "full_attention"))
                return config_refuse(c, "layer_types",
                                     "must be sliding_attention or full_attention", e);
        }
        hp->layers[l].window = local ? window : 0;
        hp->layers[l].rope = local;
    }
    if (config_f64(c, "", "global_rope_theta", &v)) hp->rope[0].theta = v;
    if (config_f64(c, "", "local_rope_theta", &v)) hp->rope[1].theta = v;
    return OK;
}

int hparams_encoder(const struct config *c, struct hparams *hp, struct err *e)
{
    if (is_arch(hp, "bert")) return read_bert(c, hp, e);
    if (is_arch(hp, "jina-bert-v3")) return hp->norm_after = true, hp->last_norm = false, OK;
    return is_arch(hp, "nomic-bert") ? read_nomic(c, hp, e) : read_modern(c, hp, e);
}

/* ---- GGUF ---- */

/* Shapes and block order, before inference. */
void hparams_encoder_gguf(struct hparams *hp, const struct source *src)
{
    const struct source_tensor *types = source_find(src, "token_types.weight");

    hp->encoder = true;
    hp->tied = true;
    hp->bare_norm = false;
    hp->n_types =
        types && types->n_dims == 2 && types->dims[0] < INT32_MAX ? (int)types->dims[0] : 1;
    if (is_arch(hp, "modern-bert")) return;
    hp->norm_after = true;
    hp->last_norm = false;
}

/* sliding_window_pattern is a number n in other programs' files (every n-th layer, from the first
 * on, has full attention) and a list in tern's, which is read like that of decoders. */
void hparams_encoder_gguf_rest(struct hparams *hp, const struct source *src)
{
    int64_t every;
    int window = 0;

    hp->tied = true;
    if (!is_arch(hp, "modern-bert") ||
        !source_i64(src, "modern-bert.attention.sliding_window_pattern", &every))
        return;
    for (int l = 0; l < hp->n_layers; l++)
        if (hp->layers[l].window) window = hp->layers[l].window;
    for (int l = 0; l < hp->n_layers; l++) {
        bool local = every > 0 && l % every != 0;
        hp->layers[l].window = local ? window : 0;
        hp->layers[l].rope = local;
    }
}

/* ---- pooling ---- */

/* GGUF has a number (1 mean, 2 cls, 3 last, 4 rank: as its head says, vechead.h); folders have the
 * file 1_Pooling/config.json of sentence-transformers, in an old and a new form. */
int hparams_pooling(struct hparams *hp, const struct source *src, struct err *e)
{
    static const struct {
        const char *key, *mode;
        enum pooling pooling;
    } modes[] = { { "pooling:pooling_mode_mean_tokens", "mean", POOL_MEAN },
                  { "pooling:pooling_mode_cls_token", "cls", POOL_CLS },
                  { "pooling:pooling_mode_lasttoken", "lasttoken", POOL_LAST } };
    char key[96];
    struct str mode;
    int64_t type;
    bool on;

    hp->pooling = hp->encoder ? POOL_MEAN : POOL_LAST;
    hp->ranks = vechead_is_classifier(src);
    snprintf(key, sizeof key, "%s.pooling_type", hp->arch);
    if (source_i64(src, key, &type)) {
        if (type > 4)
            return err_set(e, E_UNSUPPORTED, "%s: the key %s is %lld: must be between 0 and 4",
                           source_path(src), key, (long long)type);
        if (type > 0 && type < 4)
            hp->pooling = type == 1 ? POOL_MEAN : type == 2 ? POOL_CLS : POOL_LAST;
        return OK;
    }
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (source_bool(src, modes[i].key, &on) && on) return hp->pooling = modes[i].pooling, OK;
        if (source_str(src, "pooling:pooling_mode", &mode) && str_is(mode, modes[i].mode))
            return hp->pooling = modes[i].pooling, OK;
    }
    if (source_bool(src, modes[0].key, &on) || source_bool(src, modes[1].key, &on))
        return err_set(e, E_UNSUPPORTED,
                       "%s: 1_Pooling/config.json: the pooling mode must be mean, cls or lasttoken",
                       source_path(src));
    return OK;
}
