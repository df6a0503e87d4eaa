/* hparams_hf_moe.c - mixture of experts from config.json: number, width, layers, routing. */
#include "model/config.h"

#include <stdio.h>

static const char *const k_n[] = { "num_local_experts", "num_experts", "n_routed_experts", NULL };
static const char *const k_used[] = { "num_experts_per_tok", "num_experts_per_token", NULL };

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

static bool layer_has_experts(const struct config *c, int l)
{
    int first = 0, step = 1;

    config_int(c, "first_k_dense_replace", &first);
    config_int(c, "decoder_sparse_step", &step);
    return l >= first && (step < 2 || (l + 1) % step == 0) &&
           !list_contains(c, "mlp_only_layers", l);
}

/* The architecture has rows with this flag. */
static bool arch_has_rows(const struct arch *a, unsigned flag)
{
    int it = 0;

    for (const struct tensor_row *r = arch_row(a, &it); r; r = arch_row(a, &it))
        if (r->flags & flag) return true;
    return false;
}

/* DeepSeek: a group's score is its best expert, or the two best with sigmoid routing. */
static void read_groups(const struct config *c, struct moe_hp *m)
{
    if (!config_int(c, "n_group", &m->n_groups) || m->n_groups < 2) {
        m->n_groups = 0;
        return;
    }
    m->n_groups_used = m->n_groups;
    config_int(c, "topk_group", &m->n_groups_used);
    m->group_top = m->route == ROUTE_SIGMOID ? 2 : 1;
}

/* n_ff of a layer with experts is the width of its shared expert, 0 if there is none. */
int hparams_hf_moe(const struct config *c, struct hparams *hp, struct err *e)
{
    const struct arch_moe *a = &c->arch->moe;
    struct moe_hp *m = &hp->moe;
    int shared = 0, n_shared = 1, rc;

    if (!arch_has_rows(c->arch, ROW_MOE) || !config_any(c, k_n, &m->n) || m->n == 0) return OK;
    if ((rc = config_need(c, k_used, &m->n_used, e)) != OK) return rc;
    m->route = a->route;
    m->norm = a->norm_fixed ? a->norm : config_bool(c, "norm_topk_prob", a->norm);
    if (a->dense_ff) config_int(c, "moe_intermediate_size", &m->n_ff);
    else m->n_ff = hp->layers[0].n_ff;
    m->scale = (float)config_or(c, "routed_scaling_factor", a->scale != 0 ? (double)a->scale : 1);
    read_groups(c, m);
    if (arch_has_rows(c->arch, ROW_SHARED) &&
        !config_int(c, "shared_expert_intermediate_size", &shared)) {
        config_int(c, "n_shared_experts", &n_shared);
        shared = n_shared * m->n_ff;
    }
    for (int l = 0; l < hp->n_layers; l++)
        if (layer_has_experts(c, l)) {
            hp->layers[l].moe = true;
            hp->layers[l].n_ff = shared;
        }
    return OK;
}
