/* hparams_csa.c - keys of config.json of compressed attention and hyper-connections (DeepSeek V4). */
#include "model/config.h"

/* Positions of an entry: by the layer's type, in older folders by compress_ratios, where 4 means
 * entries that overlap. */
static int read_rate(const struct config *c, int l, struct mix_hp *h, struct err *e)
{
    bool typed = config_has(c, "", "layer_types.0"),
         sparse = config_list_is(c, "layer_types", l, "compressed_sparse_attention"),
         heavy = config_list_is(c, "layer_types", l, "heavily_compressed_attention");

    h->rate = 0;
    config_list_int(c, "compress_ratios", l, &h->rate);
    if (!typed) {
        h->overlap = h->rate == 4;
        return OK;
    }
    if (!sparse && !heavy && !config_list_is(c, "layer_types", l, "sliding_attention"))
        return config_refuse(c, "layer_types", "has a type that is not supported", e);
    h->overlap = sparse;
    if (!sparse && !heavy) {
        h->rate = 0;
        return OK;
    }
    if (!h->rate) h->rate = sparse ? 4 : 128;
    config_int(c,
               sparse ? "compress_rates.compressed_sparse_attention"
                      : "compress_rates.heavily_compressed_attention",
               &h->rate);
    return h->rate > 0 ? OK : config_refuse(c, "compress_rates", "must be positive", e);
}

static int read_routing(const struct config *c, struct hparams *hp, struct err *e)
{
    struct str s;
    int n_hash = 0;

    config_int(c, "num_hash_layers", &n_hash);
    for (int l = 0; l < hp->n_layers; l++)
        hp->layers[l].hash = config_has(c, "", "mlp_layer_types.0")
                                 ? config_list_is(c, "mlp_layer_types", l, "hash_moe")
                                 : l < n_hash;
    hp->moe.clip = (struct glu_clip){ 1, (float)config_or(c, "swiglu_limit", 10), 0 };
    if (!config_str(c, "", "scoring_func", &s) || str_is(s, "sqrtsoftplus")) return OK;
    if (str_is(s, "sigmoid")) hp->moe.route = ROUTE_SIGMOID;
    else if (str_is(s, "softmax")) hp->moe.route = ROUTE_SOFTMAX;
    else return config_refuse(c, "scoring_func", "must be sqrtsoftplus, sigmoid or softmax", e);
    return OK;
}

int hparams_csa_shapes(const struct config *c, struct hparams *hp, struct err *e)
{
    struct mix_hp h = { .kind = MIX_CSA };
    struct index_hp x = {
        .n_heads = 64, .head_dim = 128, .top = 512, .weighed = true, .rope_style = ROPE_PAIR
    };
    int rc;

    if ((rc = config_need(c, (const char *const[]){ "q_lora_rank", NULL }, &h.q_rank, e)) != OK ||
        (rc = config_need(c, (const char *const[]){ "o_groups", NULL }, &h.o_groups, e)) != OK ||
        (rc = config_need(c, (const char *const[]){ "o_lora_rank", NULL }, &h.o_rank, e)) != OK)
        return rc;
    config_int(c, "index_n_heads", &x.n_heads);
    config_int(c, "index_head_dim", &x.head_dim);
    config_int(c, "index_topk", &x.top);
    for (int l = 0; l < hp->n_layers; l++) {
        struct layer_hp *w = &hp->layers[l];
        if ((rc = read_rate(c, l, &h, e)) != OK) return rc;
        w->mix = h;
        w->n_kv_heads = 1;
        w->head_dim_v = w->head_dim;
        if (h.overlap) w->index = x, w->index.rate = h.rate;
    }
    hp->hyper =
        (struct hyper_hp){ .n = 4, .iters = 20, .eps = (float)config_or(c, "hc_eps", 1e-6) };
    config_int(c, "hc_mult", &hp->hyper.n);
    config_int(c, "hc_sinkhorn_iters", &hp->hyper.iters);
    return read_routing(c, hp, e);
}
