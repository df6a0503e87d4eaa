/* hparams_hf_moe.c - mixture of experts from config.json: number, width, layers, routing. */
#include "model/config.h"

#include <stdio.h>

/* Names of the same quantity in different families. Some have a list with a number for each layer,
 * of which tern takes the first. */
static const char *const k_n[] = { "num_local_experts", "num_experts",   "n_routed_experts",
                                   "moe_num_experts",   "num_experts.0", NULL };
static const char *const k_used[] = { "num_experts_per_tok",
                                      "num_experts_per_token",
                                      "moe_k",
                                      "moe_topk",
                                      "top_k_experts",
                                      "moe_topk.0",
                                      NULL };
static const char *const k_ff[] = { "moe_intermediate_size", "moe_intermediate_size.0",
                                    "expert_ffn_hidden_size", NULL };
static const char *const k_dense[] = { "intermediate_size_mlp", "prefix_dense_intermediate_size",
                                       "dense_intermediate_size", NULL };
static const char *const k_shared[] = { "shared_expert_intermediate_size",
                                        "shared_intermediate_size",
                                        "moe_shared_expert_intermediate_size", NULL };
static const char *const k_n_shared[] = { "n_shared_experts",       "num_shared_experts",
                                          "moe_num_shared_experts", "num_shared_expert",
                                          "num_shared_expert.0",    NULL };
static const char *const k_first[] = { "first_k_dense_replace", "num_dense_layers", NULL };

/* The list `name` contains l. */
static bool list_contains(const struct config *c, const char *name, int l)
{
    struct value list, v;
    int64_t i;

    if (!config_value(c, "", name, &list)) return false;
    for (size_t k = 0; value_at(&list, k, &v); k++)
        if (value_i64(&v, &i) && i == l) return true;
    return false;
}

/* By a list of kinds if there is one, else by the rules of the families. */
static bool layer_has_experts(const struct config *c, int l)
{
    int first = c->arch->moe.first, step = 1, start = 0, end = INT32_MAX, has;

    if (config_has(c, "", "mlp_layer_types.0"))
        return !config_list_is(c, "mlp_layer_types", l, "dense");
    if (config_list_int(c, "moe_layer_freq", l, &has)) return has;
    if (config_has(c, "", "moe_layers.0")) return list_contains(c, "moe_layers", l);
    config_any(c, k_first, &first);
    if (!config_int(c, "decoder_sparse_step", &step) &&
        !config_int(c, "interleave_moe_layer_step", &step))
        config_int(c, "moe_layer_interval", &step);
    config_int(c, "moe_layer_start_index", &start);
    config_int(c, "moe_layer_end_index", &end);
    if (config_int(c, "expert_layer_period", &step) && step > 0) {
        config_int(c, "expert_layer_offset", &start);
        return l % step == start;
    }
    return l >= first && l >= start && l <= end && (step < 2 || (l + 1) % step == 0) &&
           !list_contains(c, "mlp_only_layers", l);
}

/* The architecture has rows with this flag. */
static bool arch_has_rows(const struct arch *a, uint64_t flag)
{
    int it = 0;

    for (const struct tensor_row *r = arch_row(a, &it); r; r = arch_row(a, &it))
        if (r->flags & flag) return true;
    return false;
}

/* DeepSeek: a group's score is its best expert, or the two best with sigmoid routing. */
static void read_groups(const struct config *c, struct moe_hp *m, bool two)
{
    if (!config_int(c, "n_group", &m->n_groups) || m->n_groups < 2) {
        m->n_groups = 0;
        return;
    }
    m->n_groups_used = m->n_groups;
    config_int(c, "topk_group", &m->n_groups_used);
    m->group_top = m->route == ROUTE_SIGMOID || two ? 2 : 1;
}

/* The factor of the experts' weights, under several names; null means 1. */
static float read_scale(const struct config *c)
{
    double scale = c->arch->moe.scale != 0 ? (double)c->arch->moe.scale : 1;

    if (!config_f64(c, "", "routed_scaling_factor", &scale) &&
        !config_f64(c, "", "router_scaling_factor", &scale) &&
        !config_f64(c, "", "route_scale", &scale) && config_null(c, "routed_scaling_factor"))
        scale = 1;
    return (float)scale;
}

/* n_ff of a layer with experts is the width of its shared expert, 0 if there is none. */
int hparams_hf_moe(const struct config *c, struct hparams *hp, struct err *e)
{
    const struct arch_moe *a = &c->arch->moe;
    struct moe_hp *m = &hp->moe;
    int shared = 0, n_shared = !a->no_shared, dense = 0, rc;

    if (!arch_has_rows(c->arch, ROW_MOE) || !config_any(c, k_n, &m->n) || m->n == 0) return OK;
    if ((rc = config_need(c, k_used, &m->n_used, e)) != OK) return rc;
    m->route = a->route;
    m->norm = a->norm_fixed ? a->norm : config_bool(c, "norm_topk_prob", a->norm);
    if (!config_any(c, k_ff, &m->n_ff) && !a->dense_ff) m->n_ff = hp->layers[0].n_ff;
    m->scale = read_scale(c);
    read_groups(c, m, a->group_two);
    if (arch_has_rows(c->arch, ROW_SHARED) && !config_any(c, k_shared, &shared)) {
        config_any(c, k_n_shared, &n_shared);
        shared = n_shared * m->n_ff;
    }
    config_any(c, k_dense, &dense);
    for (int l = 0; l < hp->n_layers; l++)
        if (layer_has_experts(c, l)) {
            hp->layers[l].moe = true;
            hp->layers[l].n_ff = shared;
        } else if (dense) {
            hp->layers[l].n_ff = dense;
        }
    return OK;
}
