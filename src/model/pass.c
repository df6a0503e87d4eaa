/* pass.c - the forward pass, block by block, one backend call per line as in the papers. */
#include "model/pass.h"

/* RMSNorm or LayerNorm, as the model has it. */
static void queue_norm(struct pass *d, const struct tensor *out, const struct tensor *x,
                       const float *w, const float *bias)
{
    const struct hparams *hp = &d->m->hp;
    if (hp->norm == NORM_LAYER) d->be->layernorm(d->be, out, x, w, bias, hp->norm_eps);
    else d->be->rmsnorm(d->be, out, x, w, hp->norm_eps);
}

/* The input of a block: x itself (no norm, or a post-norm model), its norm in h, or its norm in
 * place where the residual continues from the norm. */
static const struct tensor *norm_input(struct pass *d, const struct tensor *h,
                                       const struct tensor *x, const float *w, const float *bias)
{
    const struct hparams *hp = &d->m->hp;

    if ((!w && !hp->bare_norm) || hp->norm_after) return x;
    if (hp->norm_residual) h = x;
    queue_norm(d, h, x, w, bias);
    return h;
}

/* ---- embedding and head ---- */

/* x = embedding (+ learned position + token type), normed where the model does that. */
void pass_embed(struct pass *d)
{
    struct backend *be = d->be;
    struct model *m = d->m;
    struct scratch *s = &d->s;
    const struct tensor *x = &s->steps[0].x;

    be->embed(be, m->proj_in.rows ? &s->words : x, &m->embd, d->ids, m->hp.embd_scale);
    if (m->proj_in.rows) be->linear(be, &s->words, &s->proj_in, 1);
    if (m->positions.rows) {
        be->embed(be, &s->steps[0].h, &m->positions, d->kv.pos, 1);
        be->add(be, x, &s->steps[0].h, 1);
    }
    if (m->token_types.rows) {
        be->embed(be, &s->steps[0].h, &m->token_types, d->types, 1);
        be->add(be, x, &s->steps[0].h, 1);
    }
    if (m->embd_norm) queue_norm(d, x, x, m->embd_norm, m->embd_norm_b);
}

/* Some encoders norm after each block and have no final norm. */
const struct tensor *pass_last(struct pass *d)
{
    const struct tensor *x = &d->s.steps[d->m->hp.n_layers - 1].tx;

    if (!d->m->hp.last_norm) return x;
    queue_norm(d, &d->s.out_norm, x, d->m->out_norm, d->m->out_norm_b);
    return &d->s.out_norm;
}

/* logits = W x, soft-capped (gemma 2). */
void pass_head(struct pass *d, const struct tensor *x)
{
    struct backend *be = d->be;
    struct model *m = d->m;
    struct scratch *s = &d->s;

    if (m->proj_out.rows) {
        be->linear(be, x, &s->proj_out, 1);
        x = &s->proj_out.out;
    }
    be->linear(be, x, &s->head, 1);
    if (m->hp.logit_softcap != 0) be->softcap(be, &s->logits_t, m->hp.logit_softcap);
}

/* ---- attention ---- */

/* Norm of each query or key head, with a weight for all heads, for each, or over all of them. */
static void norm_heads(struct pass *d, const struct tensor *x, int n_heads, int head_dim,
                       const float *w, const float *b)
{
    const struct hparams *hp = &d->m->hp;
    unsigned f = hp->info->flags;
    int stride = f & ARCH_QK_EACH ? head_dim : 0;

    if (!w) return;
    if (hp->qk_norm_whole) head_dim *= n_heads, n_heads = 1;
    if (f & ARCH_QK_LAYER)
        d->be->headnorm_layer(d->be, x, n_heads, head_dim, w, b, stride, hp->norm_eps);
    else d->be->headnorm(d->be, x, n_heads, head_dim, w, stride, hp->norm_eps);
}

static void norm_queries_and_keys(struct pass *d, int l)
{
    const struct layer_hp *lh = &d->m->hp.layers[l];
    const struct layer *w = &d->m->layers[l];
    struct layer_step *p = &d->s.steps[l];

    norm_heads(d, &p->q, lh->n_heads, lh->head_dim, w->q_norm, w->q_norm_b);
    norm_heads(d, &p->k, lh->n_kv_heads, lh->head_dim, w->k_norm, w->k_norm_b);
}

/* Rotary position embedding (RoPE) with this step's table of the layer's kind. */
static void rotate_queries_and_keys(struct pass *d, int l)
{
    struct backend *be = d->be;
    const struct hparams *hp = &d->m->hp;
    const struct layer_hp *lh = &hp->layers[l];
    struct layer_step *p = &d->s.steps[l];
    const struct tensor *table = &d->s.table_t[lh->rope];

    be->rope(be, &p->q, lh->n_heads, lh->head_dim, hp->rope[lh->rope].n_rot, table, hp->rope_style);
    be->rope(be, &p->k, lh->n_kv_heads, lh->head_dim, hp->rope[lh->rope].n_rot, table,
             hp->rope_style);
}

/* A layer whose tokens are mixed by something else than softmax attention (mix.h). */
static void queue_mixer(struct pass *d, int l, bool wanted)
{
    const struct hparams *hp = &d->m->hp;
    int rope = hp->layers[l].rope;

    mix_run(&(struct mix){ .be = d->be,
                           .hp = hp,
                           .lh = &hp->layers[l],
                           .w = &d->m->layers[l],
                           .p = &d->s.steps[l],
                           .kv = &d->kv,
                           .st = &d->st,
                           .table = rope >= 0 ? &d->s.table_t[rope] : NULL,
                           .l = l },
            wanted);
}

/* Query/key norms come before or after the rotation, by architecture. */
void pass_attention(struct pass *d, int l, bool wanted)
{
    struct backend *be = d->be;
    const struct hparams *hp = &d->m->hp;
    const struct layer *w = &d->m->layers[l];
    struct layer_step *p = &d->s.steps[l];
    bool late = hp->info->flags & ARCH_QK_LATE;
    const struct tensor *x = norm_input(d, &p->h, &p->x, w->attn_norm, w->attn_norm_b);

    if (hp->layers[l].mix.kind != MIX_ATTN) {
        queue_mixer(d, l, wanted);
        return;
    }
    be->linear(be, x, p->qkv, w->wg.rows ? 4 : 3);
    if (!late) norm_queries_and_keys(d, l);
    if (hp->clip_qkv != 0)
        for (int i = 0; i < 3; i++) be->clamp(be, &p->qkv[i].out, hp->clip_qkv);
    if (hp->layers[l].rope >= 0) rotate_queries_and_keys(d, l);
    if (late) norm_queries_and_keys(d, l);
    be->kv_put(be, &d->kv, l, &p->k, &p->v);
}

/* A gated model multiplies the output by sigmoid(g). */
void pass_attend(struct pass *d, int l)
{
    struct layer_step *p = &d->s.steps[l];

    if (d->m->hp.layers[l].mix.kind != MIX_ATTN) return;
    d->be->attend(d->be, &p->a, &p->q, &d->kv, l, &p->attend);
    if (d->m->layers[l].wg.rows) d->be->act(d->be, &p->a, &p->g, &p->a, ACT_SIGMOID);
}

/* tx += Wo a, with the norms that some models have before or after. */
static void queue_attention_output(struct pass *d, int l)
{
    struct backend *be = d->be;
    const struct layer *w = &d->m->layers[l];
    struct layer_step *p = &d->s.steps[l];

    if (w->attn_sub_norm) queue_norm(d, &p->tsub, &p->ta, w->attn_sub_norm, NULL);
    be->linear(be, w->attn_sub_norm ? &p->tsub : &p->ta, &p->o, 1);
    if (w->attn_post_norm) {
        queue_norm(d, &p->th, &p->tt, w->attn_post_norm, NULL);
        be->add(be, &p->tx, &p->th, d->m->hp.residual_scale);
    }
    if (d->m->hp.norm_after) queue_norm(d, &p->tx, &p->tx, w->attn_norm, w->attn_norm_b);
}

/* ---- feed-forward ---- */

/* The feed-forward block that every token goes through; beside experts, the shared expert. */
static void queue_dense(struct pass *d, int l, const struct tensor *x)
{
    struct backend *be = d->be;
    const struct layer *w = &d->m->layers[l];
    struct layer_step *p = &d->s.steps[l];
    bool gated = w->gate.rows;

    be->linear(be, x, p->gate_up, gated ? 2 : 1);
    be->act(be, &p->gate, &p->gate, gated ? &p->up : NULL, d->m->hp.act);
    if (w->ffn_sub_norm) queue_norm(d, &p->up, &p->gate, w->ffn_sub_norm, NULL);
    if (w->shared_gate.rows) {
        be->linear(be, x, &p->weigh, 1);
        be->gate_rows(be, &p->gate, &p->weigh.out);
    }
    be->linear(be, w->ffn_sub_norm ? &p->up : &p->gate, &p->down, 1);
}

/* The experts that the router chooses for each token. */
static void queue_experts(struct pass *d, int l, const struct tensor *x)
{
    struct backend *be = d->be;
    struct scratch *s = &d->s;
    struct layer_step *p = &s->steps[l];
    const struct tensor *out = d->m->layers[l].ffn_post_norm ? &p->tt : &p->tx;

    be->linear(be, x, &p->router, 1);
    be->route(be, s->chosen, s->shares, &p->router.out, &p->route);
    be->experts(be, out, x, s->chosen, s->shares, &p->experts);
}

/* tx += FFN(norm(tx)): dense, experts, or both. */
static void queue_feed_forward(struct pass *d, int l)
{
    const struct layer *w = &d->m->layers[l];
    struct layer_step *p = &d->s.steps[l];
    const float *weight = w->ffn_norm, *bias = w->ffn_norm_b;
    const struct tensor *x;

    if (!w->up.rows && !w->router.rows) return; /* mamba layers have none */
    if (!weight && d->m->hp.parallel) weight = w->attn_norm, bias = w->attn_norm_b;
    x = norm_input(d, &p->th, &p->tx, weight, bias);
    if (w->up.rows) queue_dense(d, l, x);
    if (w->router.rows) queue_experts(d, l, x);
    if (w->ffn_post_norm) {
        queue_norm(d, &p->th, &p->tt, w->ffn_post_norm, NULL);
        d->be->add(d->be, &p->tx, &p->th, d->m->hp.residual_scale);
    }
    if (d->m->hp.norm_after) queue_norm(d, &p->tx, &p->tx, weight, bias);
}

/* In parallel models both blocks read the layer's input and add to it: the feed-forward block,
 * which reads tx, goes first. */
void pass_rest(struct pass *d, int l)
{
    if (d->m->hp.parallel) queue_feed_forward(d, l);
    queue_attention_output(d, l);
    if (!d->m->hp.parallel) queue_feed_forward(d, l);
}

/* ---- operations that a device must have ---- */

static int lacks_operation(const struct backend *be, const char *what, struct err *e)
{
    return err_set(e, E_UNSUPPORTED, "%s has no operation for %s: run this model on the CPU",
                   be->name, what);
}

int pass_check(const struct hparams *hp, const struct backend *be, struct err *e)
{
    int it = 0;

    if (hp->moe.n && (!be->route || !be->experts))
        return lacks_operation(be, "mixtures of experts", e);
    if (hp->clip_qkv != 0 && !be->clamp)
        return lacks_operation(be, "clipped queries, keys and values", e);
    if (hp->qk_norm && hp->info->flags & ARCH_QK_LAYER && !be->headnorm_layer)
        return lacks_operation(be, "layer norms of heads", e);
    if (hp->act == ACT_SWIGLU_CLIP && !be->experts) return lacks_operation(be, "its activation", e);
    for (const struct tensor_row *r = arch_row(hp->info, &it); r; r = arch_row(hp->info, &it))
        if (r->at == offsetof(struct layer, shared_gate) && row_in_layer(r) && hp->moe.n &&
            !be->gate_rows)
            return lacks_operation(be, "gated shared experts", e);
    return OK;
}
