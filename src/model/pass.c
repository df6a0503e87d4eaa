/* pass.c - the forward pass, block by block, one backend call per line as in the papers. */
#include "model/pass.h"

#include "model/altup.h"
#include "model/hyper.h"
#include "model/indexer.h"
#include "model/shard.h"

#include <math.h>
#include <string.h>

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

/* Per-layer inputs: a projection of the embedding, normed layer by layer, and an embedding of their
 * own; their sum has the variance of one of them. */
static void queue_layer_inputs(struct pass *d, const struct tensor *x)
{
    struct backend *be = d->be;
    struct model *m = d->m;
    struct scratch *s = &d->s;

    be->linear(be, x, &s->ple_in, 1);
    be->headnorm(be, &s->ple_t, m->hp.n_layers, m->hp.n_ple, m->ple_in_norm, 0, m->hp.norm_eps);
    be->embed(be, &s->ple_add, &m->ple_embd, d->ple_ids, sqrtf((float)m->hp.n_ple));
    be->add(be, &s->ple_t, &s->ple_add, 1);
    be->scale(be, &s->ple_t, sqrtf(0.5f));
}

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
    if (m->embd_norm || m->hp.embd_norm) queue_norm(d, x, x, m->embd_norm, m->embd_norm_b);
    if (m->hp.n_ple) queue_layer_inputs(d, x);
    if (m->hp.altup.n) altup_begin(d);
    if (m->hp.hyper.n) hyper_begin(d);
}

/* Some encoders norm after each block and have no final norm. */
const struct tensor *pass_last(struct pass *d)
{
    const struct tensor *x = d->m->hp.altup.n   ? altup_end(d)
                             : d->m->hp.hyper.n ? hyper_end(d)
                                                : &d->s.steps[d->m->hp.n_layers - 1].tx;

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
    uint64_t f = hp->info->flags;
    int stride = f & ARCH_QK_EACH ? head_dim : 0;

    if (!w) return;
    if (hp->qk_norm_whole) head_dim *= n_heads, n_heads = 1;
    if (f & ARCH_QK_LAYER)
        d->be->headnorm_layer(d->be, x, n_heads, head_dim, w, b, stride, hp->norm_eps);
    else d->be->headnorm(d->be, x, n_heads, head_dim, w, stride, hp->norm_eps);
}

/* In place; queries of all heads, and keys unless the layer reads those of another one. */
static void norm_queries_and_keys(struct pass *d, int l)
{
    const struct hparams *hp = &d->m->hp;
    const struct layer_hp *lh = &hp->layers[l];
    const struct layer *w = &d->m->layers[l];
    struct layer_step *p = &d->s.steps[l];

    if (d->m->hp.qk_norm_whole && w->q_norm && w->k_norm && shard_divides(&d->m->hp)) {
        const struct shard *s = d->m->hp.shard;
        const struct layer_hp *all = &s->whole->layers[s->first + l];
        struct shard_norm norms[] = {
            { &p->q, &p->q, w->q_norm, all->n_heads * all->head_dim, true },
            { &p->k, &p->k, w->k_norm, all->n_kv_heads * all->head_dim, s->layers[l].first_of_kv },
        };
        shard_norms(d->be, &d->m->hp, norms, 2, d->m->hp.norm_eps);
        return;
    }
    norm_heads(d, &p->q, lh->n_heads, lh->head_dim, w->q_norm, w->q_norm_b);
    if (!lh->kv_of) norm_heads(d, &p->k, lh->n_kv_heads, lh->head_dim, w->k_norm, w->k_norm_b);
    if (!hp->qk_bare || lh->rope < 0) return;
    d->be->headnorm(d->be, &p->q, lh->n_heads, lh->head_dim, NULL, 0, hp->norm_eps);
    d->be->headnorm(d->be, &p->k, lh->n_kv_heads, lh->head_dim, NULL, 0, hp->norm_eps);
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
    if (lh->kv_of) return;
    be->rope(be, &p->k, lh->n_kv_heads, lh->head_dim, hp->rope[lh->rope].n_rot, table,
             hp->rope_style);
}

/* Arguments of a mixer or an indexer. */
static struct mix mix_of(struct pass *d, int l)
{
    const struct hparams *hp = &d->m->hp;
    int rope = hp->layers[l].rope;

    return (struct mix){ .be = d->be,
                         .hp = hp,
                         .lh = &hp->layers[l],
                         .w = &d->m->layers[l],
                         .p = &d->s.steps[l],
                         .kv = &d->kv,
                         .st = &d->st,
                         .table = rope >= 0 ? &d->s.table_t[rope] : NULL,
                         .back = rope >= 0 && rope + 2 < ROPES ? &d->s.table_t[rope + 2] : NULL,
                         .l = l };
}

/* The projections of a layer: q, k, v and the gate. A layer that reads the keys and values of
 * another one has queries only; values may be a copy of the keys. */
static void queue_projections(struct pass *d, int l, const struct tensor *x)
{
    struct backend *be = d->be;
    const struct layer_hp *lh = &d->m->hp.layers[l];
    struct layer_step *p = &d->s.steps[l];

    if (lh->kv_of) be->linear(be, x, p->qkv, 1);
    else if (lh->k_is_v) be->linear(be, x, p->qkv, 2);
    else be->linear(be, x, p->qkv, d->m->layers[l].wg.rows ? 4 : 3);
    if (lh->k_is_v) be->act(be, &p->v, &p->k, NULL, ACT_NONE);
}

/* Changes of keys and values by family, apart from norms and rotation. */
static void scale_keys_and_values(struct pass *d, int l)
{
    struct backend *be = d->be;
    const struct hparams *hp = &d->m->hp;
    const struct layer_hp *lh = &hp->layers[l];
    struct layer_step *p = &d->s.steps[l];

    if (lh->kv_of) return;
    if (hp->k_scale != 0) be->scale(be, &p->k, hp->k_scale);
    if (hp->v_scale != 0) be->scale(be, &p->v, hp->v_scale);
    if (hp->v_norm) be->headnorm(be, &p->v, lh->n_kv_heads, lh->head_dim_v, NULL, 0, hp->norm_eps);
}

/* Query/key norms come before or after the rotation, by architecture. */
void pass_attention(struct pass *d, int l, bool wanted)
{
    struct backend *be = d->be;
    const struct hparams *hp = &d->m->hp;
    const struct layer_hp *lh = &hp->layers[l];
    const struct layer *w = &d->m->layers[l];
    struct layer_step *p = &d->s.steps[l];
    bool late = hp->info->flags & (ARCH_QK_LATE | ARCH_QK_BARE);
    const struct tensor *x;

    if (lh->mix.kind == MIX_NONE) return;
    if (hp->altup.n) altup_predict(d, l);
    if (hp->hyper.n) hyper_attn(d, l);
    x = norm_input(d, &p->h, &p->x, w->attn_norm, w->attn_norm_b);
    if (hp->altup.n) altup_laurel(d, l, x);
    if (lh->mix.kind != MIX_ATTN) { /* something else than softmax attention (mix.h) */
        struct mix y = mix_of(d, l);
        mix_run(&y, wanted);
    }
    if (!layer_attends(lh)) return;
    queue_projections(d, l, x);
    if (!late) norm_queries_and_keys(d, l);
    if (hp->clip_qkv != 0)
        for (int i = 0; i < 3; i++) be->clamp(be, &p->qkv[i].out, hp->clip_qkv);
    scale_keys_and_values(d, l);
    if (lh->rope >= 0) rotate_queries_and_keys(d, l);
    if (late) norm_queries_and_keys(d, l);
    if (hp->pos_scale.beta != 0 && (!hp->pos_scale_nope || lh->rope < 0))
        be->scale_by_pos(be, &p->q, d->kv.pos, &hp->pos_scale);
    if (!lh->kv_of) be->kv_put(be, &d->kv, l, &p->k, &p->v);
    if (lh->index.n_heads) {
        struct mix y = mix_of(d, l);
        indexer_run(&y, x, x, wanted);
    }
}

/* A gated model multiplies the output by sigmoid(g). */
void pass_attend(struct pass *d, int l)
{
    const struct layer_hp *lh = &d->m->hp.layers[l];
    struct layer_step *p = &d->s.steps[l];

    if (!layer_attends(lh)) return;
    d->be->attend(d->be, &p->a_attn, &p->q, &d->kv, lh->kv_of ? lh->kv_of - 1 : l, &p->attend);
    if (d->m->layers[l].wg.rows) d->be->act(d->be, &p->a_attn, &p->g, &p->a_attn, ACT_SIGMOID);
}

bool pass_sums_once(const struct model *m, const struct layer *w)
{
    return shard_divides(&m->hp) && m->hp.parallel && !w->attn_post_norm && !w->ffn_post_norm &&
           (w->up.rows || w->router.rows);
}

/* The width of the whole model's layer. */
static int whole_width(const struct pass *d, enum dim dim, int l)
{
    const struct shard *s = d->m->hp.shard;

    return s ? hparams_dim(s->whole, dim, s->first + l) : hparams_dim(&d->m->hp, dim, l);
}

/* A norm of a block's inside, whose columns the members of a stage may have divided. */
static void queue_sub_norm(struct pass *d, const struct tensor *out, const struct tensor *x,
                           const float *weight, int n_whole)
{
    struct shard_norm one = { out, x, weight, n_whole, true };

    if (!shard_divides(&d->m->hp)) {
        queue_norm(d, out, x, weight, NULL);
        return;
    }
    shard_norms(d->be, &d->m->hp, &one, 1, d->m->hp.norm_eps);
}

/* The output of a block, which is in tt if it is a part of a sum or if a norm follows, to the residual
 * stream. */
static void queue_residual(struct pass *d, int l, const float *post_norm)
{
    struct backend *be = d->be;
    struct layer_step *p = &d->s.steps[l];

    shard_sum(be, &d->m->hp, &p->tt);
    if (post_norm) {
        queue_norm(d, &p->th, &p->tt, post_norm, NULL);
        be->add(be, &p->tx, &p->th, d->m->hp.residual_scale);
    } else if (shard_divides(&d->m->hp)) {
        be->add(be, &p->tx, &p->tt, 1);
    }
}

/* tx += Wo a, with the norms that some models have before or after. */
static void queue_attention_output(struct pass *d, int l)
{
    struct backend *be = d->be;
    const struct layer *w = &d->m->layers[l];
    struct layer_step *p = &d->s.steps[l];

    if (d->m->hp.layers[l].mix.kind == MIX_NONE) return;
    if (w->attn_sub_norm)
        queue_sub_norm(d, &p->tsub, &p->ta, w->attn_sub_norm, whole_width(d, DIM_O, l));
    be->linear(be, w->attn_sub_norm ? &p->tsub : &p->ta_attn, &p->o, 1);
    if (d->m->hp.layers[l].mix.with_attn) be->linear(be, &p->ta_mix, &p->mix.out, 1);
    queue_residual(d, l, w->attn_post_norm);
    if (d->m->hp.norm_after) queue_norm(d, &p->tx, &p->tx, w->attn_norm, w->attn_norm_b);
}

/* ---- feed-forward ---- */

/* The activation of the dense block, in place of its gate. */
static void queue_act(struct pass *d, int l, bool gated)
{
    struct backend *be = d->be;
    const struct hparams *hp = &d->m->hp;
    struct layer_step *p = &d->s.steps[l];

    if (hp->layers[l].sparsity != 0) be->sparsify(be, &p->gate, hp->layers[l].sparsity);
    if (hp->act == ACT_XIELU) be->xielu(be, &p->gate, &p->xielu);
    else if (hp->moe.clip.limit != 0)
        be->clipped_glu(be, &p->gate, &p->gate, &p->up, &hp->moe.clip);
    else be->act(be, &p->gate, &p->gate, gated ? &p->up : NULL, hp->act);
}

/* The feed-forward block that every token goes through; beside experts, the shared expert. */
static void queue_dense(struct pass *d, int l, const struct tensor *x)
{
    struct backend *be = d->be;
    const struct layer *w = &d->m->layers[l];
    struct layer_step *p = &d->s.steps[l];
    bool gated = w->gate.rows;

    be->linear(be, x, p->gate_up, gated ? 2 : 1);
    queue_act(d, l, gated);
    if (w->ffn_sub_norm)
        queue_sub_norm(d, &p->up, &p->gate, w->ffn_sub_norm, whole_width(d, DIM_FF, l));
    if (w->shared_gate.rows) {
        be->linear(be, x, &p->weigh, 1);
        be->gate_rows(be, &p->gate, &p->weigh.out);
    }
    be->linear(be, w->ffn_sub_norm ? &p->up : &p->gate, &p->down, 1);
}

/* The router's choice for each token, and with a latent the input of the experts. */
static void queue_router(struct pass *d, int l, const struct tensor *x)
{
    struct backend *be = d->be;
    struct scratch *s = &d->s;
    struct layer_step *p = &s->steps[l];

    be->linear(be, x, &p->router, 1);
    p->route.ids = d->ids; /* all rows: models with hash routing gather none */
    be->route(be, s->chosen, s->shares, &p->router.out, &p->route);
    if (d->m->hp.moe.n_in) be->linear(be, x, &p->latent_in, 1);
}

/* The sum of the chosen experts of x to out, or added to it. sent: they lie apart and have x already. */
static void run_experts(struct pass *d, int l, const struct tensor *out, const struct tensor *x,
                        bool sent)
{
    struct backend *be = d->be;
    struct scratch *s = &d->s;
    struct layer_step *p = &s->steps[l];

    if (!d->m->apart[l]) {
        be->experts(be, out, x, s->chosen, s->shares, &p->experts);
        return;
    }
    if (!sent) apart_send(&d->apart, x, s->chosen, s->shares, p->experts.n_used);
    apart_run(&d->apart, &p->experts);
    apart_return(&d->apart, p->experts.add ? &p->back : out);
    if (p->experts.add) be->add(be, out, &p->back, 1);
}

/* The experts, after queue_router. */
static void queue_chosen(struct pass *d, int l, const struct tensor *x, bool sent)
{
    struct backend *be = d->be;
    struct layer_step *p = &d->s.steps[l];
    bool apart = d->m->layers[l].ffn_post_norm || shard_divides(&d->m->hp) || d->m->hp.hyper.n;
    const struct tensor *out = apart ? &p->tt : &p->tx;

    if (d->m->hp.moe.late) out = &p->late;
    if (!d->m->hp.moe.n_in) {
        run_experts(d, l, out, x, sent);
        return;
    }
    run_experts(d, l, &p->latent_y, &p->latent, sent);
    be->linear(be, &p->latent_y, &p->latent_out, 1);
}

static void queue_experts(struct pass *d, int l, const struct tensor *x)
{
    queue_router(d, l, x);
    queue_chosen(d, l, x, false);
}

/* Experts beside a dense block, each with norms of its own around it (gemma 4). The router and the
 * experts read the residual stream; the sum of both is in tt afterwards. */
static void queue_experts_beside(struct pass *d, int l)
{
    struct backend *be = d->be;
    const struct layer *w = &d->m->layers[l];
    struct layer_step *p = &d->s.steps[l];

    queue_norm(d, &p->tt, &p->tt, w->dense_post_norm, NULL);
    queue_norm(d, &p->th, &p->tx, w->router_norm, NULL);
    queue_router(d, l, &p->th);
    queue_norm(d, &p->th, &p->tx, w->x_norm, NULL);
    run_experts(d, l, &p->late, &p->th, false);
    queue_norm(d, &p->th, &p->late, w->x_post_norm, NULL);
    be->add(be, &p->tt, &p->th, 1);
}

/* Experts that lie apart run beside the dense block of their layer: they get their inputs before it is
 * queued. x is what they read: not the residual stream, which the block changes, and not behind
 * a latent, of which the device keeps no input (see backend.sync). */
static void queue_experts_and_dense(struct pass *d, int l, const struct tensor *x)
{
    struct scratch *s = &d->s;

    queue_router(d, l, x);
    apart_send(&d->apart, x, s->chosen, s->shares, s->steps[l].experts.n_used);
    queue_dense(d, l, x);
    apart_start_more(&d->apart);
    queue_chosen(d, l, x, true);
}

/* tx += norm(W (act(G tx) * the layer's own input)); then the scale of the layer. */
static void queue_layer_input(struct pass *d, int l)
{
    struct backend *be = d->be;
    const struct layer *w = &d->m->layers[l];
    struct layer_step *p = &d->s.steps[l];

    be->linear(be, &p->tx, &p->ple_gate, 1);
    be->act(be, &p->ple_g, &p->ple_g, &p->ple, d->m->hp.act);
    be->linear(be, &p->ple_g, &p->ple_proj, 1);
    queue_norm(d, &p->th, &p->tt, w->ple_norm, NULL);
    if (d->m->hp.altup.n) altup_add(d, &p->th);
    else be->add(be, &p->tx, &p->th, 1);
}

/* The dense block and the experts, one after the other. */
static void queue_blocks(struct pass *d, int l, const struct tensor *x)
{
    const struct layer *w = &d->m->layers[l];
    bool late = d->m->hp.moe.late;

    if (w->router.rows && late) queue_experts(d, l, x);
    if (w->up.rows) queue_dense(d, l, x);
    if (w->x_post_norm) queue_experts_beside(d, l);
    else if (w->router.rows && !late) queue_experts(d, l, x);
}

/* tx += FFN(norm(tx)): dense, experts, or both. */
static void queue_feed_forward(struct pass *d, int l)
{
    const struct hparams *hp = &d->m->hp;
    const struct layer *w = &d->m->layers[l];
    struct layer_step *p = &d->s.steps[l];
    const float *weight = w->ffn_norm, *bias = w->ffn_norm_b;
    const struct tensor *x;

    if (!w->up.rows && !w->router.rows) return; /* mamba layers have none */
    if (!weight && hp->parallel) weight = w->attn_norm, bias = w->attn_norm_b;
    x = norm_input(d, &p->th, &p->tx, weight, bias);
    if (w->router.rows && w->up.rows && d->m->apart[l] && x != &p->tx && !w->x_post_norm &&
        !hp->moe.n_in)
        queue_experts_and_dense(d, l, x);
    else queue_blocks(d, l, x);
    if (hp->moe.late && l % 2) d->be->add(d->be, &p->tx, &p->late, hp->residual_scale);
    if (!pass_sums_once(d->m, w)) queue_residual(d, l, w->ffn_post_norm);
    if (hp->norm_after) queue_norm(d, &p->tx, &p->tx, weight, bias);
}

/* In parallel models both blocks read the layer's input and add to it: the feed-forward block,
 * which reads tx, goes first. */
void pass_rest(struct pass *d, int l)
{
    if (d->m->hp.parallel) queue_feed_forward(d, l);
    queue_attention_output(d, l);
    if (d->m->hp.altup.n) altup_join(d);
    if (d->m->hp.hyper.n) hyper_ffn(d, l);
    if (!d->m->hp.parallel) queue_feed_forward(d, l);
    if (d->m->hp.hyper.n) hyper_write(d, l);
    if (d->m->hp.altup.n) altup_correct(d, l);
    if (d->m->hp.n_ple) queue_layer_input(d, l);
    if (d->m->layers[l].out_scale != 0)
        d->be->scale(d->be, &d->s.steps[l].tx, d->m->layers[l].out_scale);
}

void pass_gather(struct pass *d, int l)
{
    struct backend *be = d->be;
    struct layer_step *p = &d->s.steps[l];

    be->gather(be, &p->tx, &p->x, d->out_rows);
    if (d->m->hp.layers[l].mix.kind != MIX_NONE) be->gather(be, &p->ta, &p->a, d->out_rows);
    if (d->m->hp.n_ple) be->gather(be, &p->ple, &p->ples, d->out_rows);
    if (d->m->hp.moe.late) be->gather(be, &p->late, &d->s.steps[l - 1].late, d->out_rows);
}

/* ---- operations that a device must have ---- */

static int lacks_operation(const struct backend *be, const char *what, struct err *e)
{
    return err_set(e, E_UNSUPPORTED, "%s has no operation for %s: run this model on the CPU",
                   be->name, what);
}

/* Options that not every backend knows. */
static int check_options(const struct hparams *hp, const struct backend *be, struct err *e)
{
    const struct moe_hp *m = &hp->moe;
    const struct {
        bool needed;
        unsigned feature;
        const char *what;
    } all[] = {
        { m->weigh_inputs, BACKEND_INPUT_WEIGHTS, "weighted inputs of experts" },
        { m->n_zero, BACKEND_ZERO_EXPERTS, "experts that return their input" },
        { m->clip.limit != 0, BACKEND_CLIPPED_GLU, "clipped gated activations" },
        { m->route == ROUTE_SQRT_SOFTPLUS, BACKEND_SQRT_SOFTPLUS, "its kind of routing" },
        { hp->expert_scales, BACKEND_EXPERT_SCALES, "scales of experts" },
    };

    if (hp->altup.n && (!be->mix_streams || !be->sparsify))
        return lacks_operation(be, "several residual streams", e);
    if (hp->hyper.n && (!be->hyper_weights || !be->hyper_in || !be->hyper_out))
        return lacks_operation(be, "hyper-connections", e);
    if (hp->act == ACT_XIELU && !be->xielu) return lacks_operation(be, "xIELU", e);
    if (m->clip.limit != 0 && !be->clipped_glu)
        return lacks_operation(be, "clipped gated activations", e);
    if (hp->pos_scale.beta != 0 && !be->scale_by_pos)
        return lacks_operation(be, "queries that grow with the position", e);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].needed && !(be->features & all[i].feature))
            return lacks_operation(be, all[i].what, e);
    for (int l = 0; l < hp->n_layers; l++) {
        if (hp->layers[l].chunk && !(be->features & BACKEND_CHUNKS))
            return lacks_operation(be, "chunked attention", e);
        if (hp->layers[l].hash && !(be->features & BACKEND_HASH_ROUTES))
            return lacks_operation(be, "experts by the ids of tokens", e);
    }
    return OK;
}

int pass_check(const struct hparams *hp, const struct backend *be, struct err *e)
{
    int it = 0, rc;

    if (hp->moe.n && (!be->route || !be->experts))
        return lacks_operation(be, "mixtures of experts", e);
    if (hp->clip_qkv != 0 && !be->clamp)
        return lacks_operation(be, "clipped queries, keys and values", e);
    if (hp->qk_norm && hp->info->flags & ARCH_QK_LAYER && !be->headnorm_layer)
        return lacks_operation(be, "layer norms of heads", e);
    if (hp->act == ACT_SWIGLU_CLIP && !be->experts) return lacks_operation(be, "its activation", e);
    if ((rc = check_options(hp, be, e)) != OK) return rc;
    for (const struct tensor_row *r = arch_row(hp->info, &it); r; r = arch_row(hp->info, &it))
        if (r->at == offsetof(struct layer, shared_gate) && row_in_layer(r) && hp->moe.n &&
            !be->gate_rows)
            return lacks_operation(be, "gated shared experts", e);
    return OK;
}
