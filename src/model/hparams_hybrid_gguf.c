/* hparams_hybrid_gguf.c - hybrids (ARCH_HYBRID) in GGUF files: granite hybrid, falcon-h1, jamba,
 * nemotron-h. The counterpart of hparams_hybrid.c, which reads config.json; naming_hybrid.c writes
 * the keys. Names are those of llama.cpp. */
#include "model/hparams.h"
#include "model/metakeys.h"

static bool is_arch(const struct hparams *hp, const char *name)
{
    return str_is(str_c(hp->info->gguf), name);
}

/* The parts of a layer are seen from its tensors: llama.cpp's lists of KV heads and feed-forward
 * widths have a 0 where there is none. */
static void set_block(const struct metakeys *k, const struct mix_hp *h, struct hparams *hp, int l)
{
    struct layer_hp *w = &hp->layers[l];
    bool recurrent = metakeys_tensor(k, l, "ssm_in.weight");

    if (recurrent) {
        w->mix = *h;
        w->mix.normed = metakeys_tensor(k, l, "ssm_norm.weight");
    }
    if (!is_arch(hp, "nemotron_h")) return;
    w->no_ffn = recurrent || metakeys_tensor(k, l, "attn_output.weight");
    if (!w->no_ffn) w->mix.kind = MIX_NONE;
    else w->n_ff = 0;
}

int hparams_hybrid_gguf(struct hparams *hp, const struct source *src, struct err *e)
{
    struct metakeys k = { src, hp->arch };
    struct mix_hp h;
    double eps = 1e-6;
    int rc = hparams_ssm_gguf(&h, hp, &k, e);

    if (rc != OK) return rc;
    if (is_arch(hp, "jamba")) {
        metakeys_f64(&k, "attention.layer_norm_rms_epsilon", &eps);
        h.bc_norm = true;
        h.bc_eps = (float)eps;
    }
    h.with_attn = is_arch(hp, "falcon-h1");
    source_bool(src, metakeys_name(&k, "ssm.norm_before_gate").s, &h.norm_first);
    metakeys_int(&k, "moe_latent_size", 0, &hp->moe.n_in);
    for (int l = 0; l < hp->n_layers; l++) set_block(&k, &h, hp, l);
    return OK;
}

/* falcon-h1 with a tied head has
 * the factor of its embeddings in both: logit_scale, a key of tern's own, is what differs. */
void hparams_hybrid_gguf_rest(struct hparams *hp, const struct source *src)
{
    struct metakeys k = { src, hp->arch };

    if (is_arch(hp, "falcon-h1")) hp->logit_scale = (float)metakeys_f64_or(&k, "logit_scale", 1);
}
