/* scratch.c - sizes, memory and per-batch arguments of a step.
 *
 * Sizes are computed by the same code that divides the memory (carve), once without memory to count
 * and once with it: the load plan and the allocation cannot differ. */
#include "base/minmax.h"
#include "model/scratch.h"

#include "base/mem.h"
#include "model/altup.h"
#include "model/hyper.h"
#include "model/indexer.h"
#include "model/pass.h"
#include "model/rotary.h"
#include "model/shard.h"
#include "model/weightlist.h"

#include <math.h>

/* Logit adjustments (bias, penalties, bans) that a batch can carry: per output, and in all. */
enum { ADJUST_EACH = 2048, ADJUST_MAX = 1 << 18 };

/* The largest width of each array over all layers, in floats per token. */
struct widths {
    int embd, word, q, k, v, o, ff, rot;
    struct mix_width mix;
    int index_q, index_k, index_heads,
        choices; /* of indexers: widths, and rows of bits per token */
    bool varies, moe;
};

/* One pass over the layers. */
static struct widths measure_widths(const struct hparams *hp)
{
    struct widths w = { .embd = hp->n_embd, .word = hp->n_word };
    for (int l = 0; l < hp->n_layers; l++) {
        w.q = max_int(w.q, hparams_dim(hp, DIM_Q, l));
        w.k = max_int(w.k, hparams_dim(hp, DIM_K, l));
        w.v = max_int(w.v, hparams_dim(hp, DIM_V, l));
        w.o = max_int(w.o, hparams_dim(hp, DIM_O, l));
        w.ff = max_int(w.ff, hparams_dim(hp, DIM_FF, l));
        struct mix_width x = mix_width(hp, l);
        w.mix = (struct mix_width){ max_int(w.mix.in, x.in), max_int(w.mix.mid, x.mid),
                                    max_int(w.mix.low, x.low) };
        w.moe |= hp->layers[l].moe;
        const struct index_hp *i = &hp->layers[l].index;
        w.index_q = max_int(w.index_q, i->n_heads * i->head_dim);
        w.index_k = max_int(w.index_k, i->head_dim);
        w.index_heads = max_int(w.index_heads, i->n_heads);
        if (i->n_heads) w.choices = max_int(w.choices, i->weighed ? 1 : i->n_heads);
    }
    for (int i = 0; i < hp->n_rope; i++) {
        w.rot = max_int(w.rot, hp->rope[i].n_rot);
        w.varies |= rotary_varies(&hp->rope[i]);
    }
    return w;
}

/* Hands out the next part of the block, aligned to 64 bytes. base NULL: only counts. */
static float *take_part(float *base, size_t *used, int rows, int cols)
{
    float *p = base ? base + *used : NULL;
    *used += ((size_t)rows * (size_t)cols + 15) / 16 * 16;
    return p;
}

/* Experts work on a row for every choice: max_tokens times n_used. */
static void carve_moe(struct scratch *s, const struct hparams *hp, size_t *used)
{
    const struct moe_hp *m = &hp->moe;
    int n = s->opt.max_tokens, k = m->n_used, in = hparams_dim(hp, DIM_EXP_IN, 0);

    s->scores = take_part(s->floats, used, n, m->n + m->n_zero);
    s->shares = take_part(s->floats, used, n, k);
    s->weigh = take_part(s->floats, used, n, 1);
    if (s->experts & EXPERTS_HERE) {
        s->xs = take_part(s->floats, used, n * k, in);
        s->hs = take_part(s->floats, used, n * k, m->n_ff);
        s->us = take_part(s->floats, used, n * k, m->n_ff);
        s->ys = take_part(s->floats, used, n * k, in);
    }
    if (s->experts & EXPERTS_APART) s->back = take_part(s->floats, used, n, in);
    if (m->late || m->beside) s->late = take_part(s->floats, used, n, hp->n_embd);
    if (!m->n_in) return;
    s->latent = take_part(s->floats, used, n, in);
    s->latent_y = take_part(s->floats, used, n, in);
}

/* Divides s->floats among the step's arrays; returns the number of floats they take. With floats
 * NULL it only counts: what is planned and what is used come from the same lines. */
static size_t carve(struct scratch *s, const struct hparams *hp, const struct widths *w)
{
    int n = s->opt.max_tokens, n_out = s->opt.max_out, wide = max_int(w->embd, w->o);
    size_t used = 0;
    float *b = s->floats;
    s->x = take_part(b, &used, n, w->embd);
    s->h = take_part(b, &used, n, wide);
    s->t = take_part(b, &used, n, max_int(w->embd, w->word));
    s->q = take_part(b, &used, n, w->q);
    s->k = take_part(b, &used, n, w->k);
    s->v = take_part(b, &used, n, w->v);
    s->a = take_part(b, &used, n, w->o);
    s->gate = take_part(b, &used, n, w->ff);
    s->up = take_part(b, &used, n, w->ff);
    s->mix.in = take_part(b, &used, n, w->mix.in);
    s->mix.mid = take_part(b, &used, n, w->mix.mid);
    s->mix.low = take_part(b, &used, n, w->mix.low);
    if (s->last) {
        s->out_x = take_part(b, &used, n_out, w->embd);
        s->out_a = take_part(b, &used, n_out, w->o);
        s->logits = take_part(b, &used, n_out, shard_logits(hp));
    }
    if (w->moe) carve_moe(s, hp, &used);
    if (w->choices) {
        /* A bit for every position, rounded up to whole blocks of the indexer. */
        s->choice_stride = ((size_t)s->opt.max_table * KV_BLOCK + 4096 + 31) / 32;
        s->index_q = take_part(b, &used, n, w->index_q);
        s->index_k = take_part(b, &used, n, w->index_k);
        s->index_w = take_part(b, &used, n, w->index_heads);
        s->choice_bits =
            (uint32_t *)(void *)take_part(b, &used, n * w->choices, (int)s->choice_stride);
    }
    if (hp->altup.n) {
        s->altup_s = take_part(b, &used, n, hp->altup.n * hp->n_embd);
        s->altup_p = take_part(b, &used, n, hp->altup.n * hp->n_embd);
        s->altup_modal = take_part(b, &used, n, hp->altup.n);
        s->altup_coefs = take_part(b, &used, n, hp->altup.n * hp->altup.n);
        s->altup_low = take_part(b, &used, n, hp->altup.rank);
        s->altup_laurel = take_part(b, &used, n, hp->n_embd);
    }
    if (hp->hyper.n) {
        s->hyper_s = take_part(b, &used, n, hp->hyper.n * hp->n_embd);
        s->hyper_flat = take_part(b, &used, n, hp->hyper.n * hp->n_embd);
        s->hyper_w = take_part(b, &used, n, (2 + hp->hyper.n) * hp->hyper.n);
    }
    if (hp->n_ple) {
        s->ples = take_part(b, &used, n, hp->n_ple * hp->n_layers);
        s->ple = take_part(b, &used, n, hp->n_ple * hp->n_layers);
        s->ple_g = take_part(b, &used, n, hp->n_ple);
    }
    for (int i = 0; i < hp->n_rope; i++) s->table[i] = take_part(b, &used, n, w->rot);
    if (w->varies) s->freq = take_part(b, &used, hp->n_rope * s->opt.max_seqs, w->rot / 2);
    return used;
}

/* Host memory of a step: call arguments, staging copies, and logits if they are on a device. */
static int alloc_host(struct scratch *s, const struct hparams *hp, const struct widths *w,
                      struct err *e)
{
    size_t n = (size_t)s->opt.max_tokens, n_seqs = (size_t)s->opt.max_seqs;
    s->steps = mem_array((size_t)hp->n_layers, sizeof *s->steps);
    s->ints_host = mem_alloc(s->size.int_bytes);
    if (w->varies) {
        s->freq_host = mem_array((size_t)hp->n_rope * n_seqs, (size_t)w->rot / 2 * sizeof(float));
        s->runs = mem_array(ROPES * n, sizeof *s->runs);
    }
    if (!s->steps || !s->ints_host || (w->varies && (!s->freq_host || !s->runs)))
        return err_set(e, E_NOMEM, "no memory for a step of %zu tokens", n);
    if (!s->last || backend_is_host(s->be)) return OK; /* the host reads logits in place */
    s->logits_bytes = (size_t)s->opt.max_out * (size_t)shard_logits(hp) * sizeof(float);
    if (s->be->host_alloc)
        return s->be->host_alloc(s->be, (void **)&s->logits_host, s->logits_bytes, e);
    s->logits_host = mem_aligned(s->logits_bytes);
    return s->logits_host
               ? OK
               : err_set(e, E_NOMEM, "no memory for %zu bytes of logits", s->logits_bytes);
}

/* Tells the backend the largest step before the first one. */
static int reserve_step(const struct scratch *s, const struct hparams *hp, const struct widths *w,
                        struct err *e)
{
    struct backend_limits lim = {
        .max_tokens = s->opt.max_tokens,
        .max_seqs = s->opt.max_seqs,
        .max_out = s->opt.max_out,
        .max_cols = max_int(max_int(max_int(max_int(w->embd, w->word), w->o), w->ff),
                            max_int(w->mix.mid, w->mix.low)),
        .max_rows = max_int(
            max_int(max_int(max_int(w->embd, w->word), w->ff), max_int(w->q, max_int(w->k, w->v))),
            w->mix.in),
        .n_vocab = shard_logits(hp),
        .max_adjust = s->max_adjust,
    };

    if (hp->hyper.n) /* all streams of a token are one input */
        lim.max_cols = max_int(lim.max_cols, hp->hyper.n * hp->n_embd);
    if (w->choices) {
        lim.index_rows = w->choices;
        lim.index_keys = s->opt.max_table * KV_BLOCK;
    }
    if (!s->be->reserve) return OK;
    for (int l = 0; l < hp->n_layers; l++) {
        const struct layer_hp *lh = &hp->layers[l];
        lim.n_heads = max_int(lim.n_heads, lh->n_heads);
        lim.head_dim = max_int(lim.head_dim, max_int(lh->head_dim, lh->head_dim_v));
    }
    return s->be->reserve(s->be, &lim, e);
}

/* Ints that the sampling arguments of the largest batch take, each part aligned to STAGE_ALIGN. */
static uint64_t sample_ints(const struct decoder_opt *opt, int max_adjust)
{
    uint64_t bytes = (uint64_t)opt->max_out * sizeof(struct sample_row) +
                     (uint64_t)max_adjust * sizeof(struct logit_adjust);
    return bytes / sizeof(int32_t) + 2 * STAGE_ALIGN;
}

int scratch_measure(struct scratch_size *out, const struct hparams *hp, struct scratch_use use,
                    const struct decoder_opt *opt, struct err *e)
{
    /* no memory: carve only counts */
    struct scratch count = { .opt = *opt, .last = use.last, .experts = use.experts };
    struct widths w = measure_widths(hp);
    uint64_t n = 4 * (uint64_t)opt->max_tokens + (uint64_t)opt->max_out +
                 5 * (uint64_t)opt->max_seqs + STAGE_ALIGN +
                 (uint64_t)opt->max_seqs * (uint64_t)opt->max_table;

    *out = (struct scratch_size){ 0 };
    if (use.last && use.samples) {
        out->max_adjust =
            opt->max_out < ADJUST_MAX / ADJUST_EACH ? opt->max_out * ADJUST_EACH : ADJUST_MAX;
        out->sampled_at = n += sample_ints(opt, out->max_adjust);
        n += (uint64_t)opt->max_out;
    }
    if (opt->max_tokens < 1 || opt->max_seqs < 1 || opt->max_table < 1 || opt->max_out < 1 ||
        n > 1u << 30)
        return err_set(e, E_INVALID,
                       "a step of %d tokens of %d sequences with %d blocks each is out of range",
                       opt->max_tokens, opt->max_seqs, opt->max_table);
    out->int_bytes = (size_t)n * sizeof(int32_t);
    out->float_bytes = carve(&count, hp, &w) * sizeof(float);
    if (w.moe)
        out->chosen_bytes = (3 * (size_t)opt->max_tokens * (size_t)hp->moe.n_used +
                             (size_t)(hp->moe.n + hp->moe.n_zero) + 1) *
                            sizeof(int32_t);
    return OK;
}

/* Device memory, counted as MEM_SCRATCH. */
static int alloc_device(struct scratch *s, struct err *e)
{
    struct backend *be = s->be;
    int rc;

    if ((rc = be->alloc(be, (void **)&s->floats, s->size.float_bytes, MEM_SCRATCH, e)) != OK ||
        (rc = be->alloc(be, (void **)&s->ints, s->size.int_bytes, MEM_SCRATCH, e)) != OK)
        return rc;
    if (s->size.chosen_bytes == 0) return OK;
    return be->alloc(be, (void **)&s->chosen, s->size.chosen_bytes, MEM_SCRATCH, e);
}

int scratch_init(struct scratch *s, const struct model *m, const struct part *part,
                 struct decoder_opt opt, struct err *e)
{
    const struct hparams *hp = &m->hp;
    struct expert_place experts = { m->experts.be, m->apart };
    struct widths w = measure_widths(hp);
    struct scratch_use use;
    int rc;

    *s = (struct scratch){ .opt = opt,
                           .part = part,
                           .be = part->be,
                           .last = part->end == hp->n_layers && shard_has_head(hp),
                           .experts =
                               expert_place_kinds(&experts, hp, part->be, part->first, part->end) };
    use = (struct scratch_use){ s->last, s->be->sample != NULL, s->experts };
    if ((rc = scratch_measure(&s->size, hp, use, &opt, e)) != OK) return rc;
    if ((rc = alloc_device(s, e)) != OK) return rc;
    carve(s, hp, &w);
    s->max_adjust = s->size.max_adjust;
    if (s->chosen) s->order = s->chosen + (size_t)opt.max_tokens * (size_t)hp->moe.n_used;
    if (s->size.sampled_at) s->sampled = s->ints + s->size.sampled_at;
    if ((rc = alloc_host(s, hp, &w, e)) != OK) return rc;
    return reserve_step(s, hp, &w, e);
}

void scratch_release(struct scratch *s)
{
    if (s->floats) s->be->free(s->be, s->floats, s->size.float_bytes, MEM_SCRATCH);
    if (s->chosen) s->be->free(s->be, s->chosen, s->size.chosen_bytes, MEM_SCRATCH);
    if (s->ints) s->be->free(s->be, s->ints, s->size.int_bytes, MEM_SCRATCH);
    if (s->logits_host && s->be->host_free)
        s->be->host_free(s->be, s->logits_host, s->logits_bytes);
    else if (s->logits_host) mem_free_aligned(s->logits_host, s->logits_bytes);
    mem_free(s->ints_host);
    mem_free(s->freq_host);
    mem_free(s->runs);
    mem_free(s->steps);
    *s = (struct scratch){ 0 };
}

/* A mixer beside attention has the columns after those of attention. */
static void split_output(const struct tensor *a, const struct layer_hp *lh, struct tensor *attn,
                         struct tensor *mixer)
{
    int n = lh->n_heads * lh->head_dim_v;

    *attn = *mixer = *a;
    if (!lh->mix.with_attn) return;
    *attn = tensor_cols(*a, 0, n);
    *mixer = tensor_cols(*a, n, a->cols - n);
}

/* Tensors and options of the layer's attention for n tokens. */
static void plan_attention(struct layer_step *p, const struct scratch *s, const struct model *m,
                           int l, int n)
{
    const struct hparams *hp = &m->hp;
    const struct layer_hp *lh = &hp->layers[l];
    const struct layer *w = &m->layers[l];

    p->x = tensor_f32(s->x, n, hp->n_embd);
    p->h = tensor_f32(s->h, n, hp->n_embd);
    p->q = tensor_f32(s->q, n, hparams_dim(hp, DIM_Q, l));
    p->k = tensor_f32(s->k, n, hparams_dim(hp, DIM_K, l));
    p->v = tensor_f32(s->v, n, hparams_dim(hp, DIM_V, l));
    p->a = tensor_f32(s->a, n, hparams_dim(hp, DIM_O, l));
    split_output(&p->a, lh, &p->a_attn, &p->a_mix);
    p->qkv[0] = (struct linear){ .out = p->q, .w = &w->wq, .bias = w->bq, .scale = w->s_q };
    p->qkv[1] = (struct linear){ .out = p->k, .w = &w->wk, .bias = w->bk, .scale = w->s_k };
    p->qkv[2] = (struct linear){ .out = p->v, .w = &w->wv, .bias = w->bv, .scale = w->s_v };
    p->attend = (struct attend_opt){
        .n_heads = lh->n_heads,
        .n_kv_heads = lh->n_kv_heads,
        .head_dim = lh->head_dim,
        .head_dim_v = lh->head_dim_v,
        .scale = lh->attn_scale != 0   ? lh->attn_scale
                 : hp->attn_scale != 0 ? hp->attn_scale
                                       : 1 / sqrtf((float)lh->head_dim),
        .softcap = hp->attn_softcap,
        .window = lh->window,
        .chunk = lh->chunk,
        .bidirectional = hp->encoder,
        .sinks = w->sinks,
        .slopes = s->part->slopes,
    };
}

/* The matrix product at the end of a block: added to the residual at once, or written to tt if a
 * post-norm comes between. */
static struct linear residual_linear(const struct layer_step *p, const struct model *m,
                                     const struct weight *w, const float *bias, float scale,
                                     bool normed)
{
    struct linear j = {
        .out = normed ? p->tt : p->tx, .w = w, .bias = bias, .add = !normed, .scale = scale
    };
    if (shard_divides(&m->hp)) { /* a part of the sum, which tt takes first */
        j.out = p->tt;
        j.add = false;
    }
    if (!normed && m->hp.residual_scale != 1)
        j.scale = (scale != 0 ? scale : 1) * m->hp.residual_scale;
    return j;
}

static float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

/* The layer's own inputs, and the block that adds them. */
static void plan_ple(struct layer_step *p, const struct scratch *s, const struct model *m, int l,
                     int n, bool gathered)
{
    int wide = m->hp.n_ple;

    if (!wide) return;
    p->ples = tensor_cols(tensor_f32(s->ples, n, wide * m->hp.n_layers), l * wide, wide);
    p->ple = gathered ? tensor_f32(s->ple, n, wide) : p->ples;
    p->ple_g = tensor_f32(s->ple_g, n, wide);
    p->ple_gate = (struct linear){ .out = p->ple_g, .w = &m->layers[l].ple_gate };
    p->ple_proj = (struct linear){ .out = p->tt, .w = &m->layers[l].ple_proj };
}

/* Tensors and matrix products after attention, for the n rows that go on. */
static void plan_tail(struct layer_step *p, const struct scratch *s, const struct model *m, int l,
                      int n, bool gathered)
{
    const struct hparams *hp = &m->hp;
    const struct layer *w = &m->layers[l];
    int n_ff = hparams_dim(hp, DIM_FF, l), n_o = hparams_dim(hp, DIM_O, l);

    p->tx = tensor_f32(gathered ? s->out_x : s->x, n, hp->n_embd);
    p->ta = tensor_f32(gathered ? s->out_a : s->a, n, n_o);
    split_output(&p->ta, &hp->layers[l], &p->ta_attn, &p->ta_mix);
    p->th = tensor_f32(s->h, n, hp->n_embd);
    p->tsub = tensor_f32(s->h, n, n_o);
    p->tt = tensor_f32(s->t, n, hp->n_embd);
    p->gate = tensor_f32(s->gate, n, n_ff);
    p->up = tensor_f32(s->up, n, n_ff);
    p->o = residual_linear(p, m, &w->wo, w->bo, w->s_o, w->attn_post_norm || hp->hyper.n);
    p->gate_up[0] =
        (struct linear){ .out = p->gate, .w = &w->gate, .bias = w->b_gate, .scale = w->s_gate };
    if (!w->gate.rows)
        p->gate_up[0] =
            (struct linear){ .out = p->gate, .w = &w->up, .bias = w->b_up, .scale = w->s_up };
    p->gate_up[1] = (struct linear){ .out = p->up, .w = &w->up, .bias = w->b_up, .scale = w->s_up };
    p->down =
        residual_linear(p, m, &w->down, w->b_down, w->s_down, w->ffn_post_norm || hp->hyper.n);
    if (pass_sums_once(m, w)) p->o.add = true; /* behind the feed-forward block */
    if (hp->layers[l].moe && hp->moe.mean != 0)
        p->down.scale = (p->down.scale != 0 ? p->down.scale : 1) * hp->moe.mean;
    if (hp->layers[l].mix.with_attn)
        p->mix.out = residual_linear(p, m, &w->mix.out, w->mix.out_b, w->mix.s_out, false);
    p->xielu = (struct xielu_opt){ softplus(w->xielu.a_p), w->xielu.b + softplus(w->xielu.a_n),
                                   w->xielu.b, w->xielu.eps };
    if (s->late) p->late = tensor_f32(gathered && hp->moe.late ? s->t : s->late, n, hp->n_embd);
    plan_ple(p, s, m, l, n, gathered);
}

/* After plan_tail: the experts add to the output of the dense block, if there is one. */
static void plan_experts(struct layer_step *p, const struct scratch *s, const struct model *m,
                         int l, int n)
{
    const struct hparams *hp = &m->hp;
    const struct moe_hp *x = &hp->moe;
    const struct layer *w = &m->layers[l];
    int n_all = n * x->n_used, in = hparams_dim(hp, DIM_EXP_IN, l);
    bool post = w->ffn_post_norm || hp->hyper.n, apart = w->x_post_norm || x->n_in || x->late;

    p->weigh = (struct linear){ .out = tensor_f32(s->weigh, n, 1), .w = &w->shared_gate };
    p->back = tensor_f32(s->back, n, in);
    p->latent = tensor_f32(s->latent, n, in);
    p->latent_y = tensor_f32(s->latent_y, n, in);
    p->latent_in = (struct linear){ .out = p->latent, .w = &w->latent_in, .bias = w->latent_in_b };
    p->latent_out =
        residual_linear(p, m, &w->latent_out, w->latent_out_b, 0, w->ffn_post_norm != NULL);
    p->router = (struct linear){ .out = tensor_f32(s->scores, n, x->n + x->n_zero),
                                 .w = &w->router,
                                 .bias = w->b_router,
                                 .scale = x->beside ? 1 / sqrtf((float)hp->n_embd) : 0 };
    p->route = (struct route_opt){ .route = x->route,
                                   .n_used = x->n_used,
                                   .norm = x->norm,
                                   .scale = x->scale,
                                   .bias = w->choice_bias,
                                   .n_groups = x->n_groups,
                                   .n_groups_used = x->n_groups_used,
                                   .group_top = x->group_top,
                                   .jitter = x->jitter,
                                   .by_token = w->by_token,
                                   .expert_scale = w->expert_scale };
    p->experts = (struct experts_opt){
        .n = x->n,
        .n_used = x->n_used,
        .gate = w->x_gate,
        .up = w->x_up,
        .down = w->x_down,
        .b_gate = w->xb_gate,
        .b_up = w->xb_up,
        .b_down = w->xb_down,
        .act = hp->act,
        .clip = x->clip,
        .scale = (post || apart ? 1 : hp->residual_scale) * (x->mean != 0 ? x->mean : 1),
        .add = !apart && (shard_divides(hp) ? w->up.rows : !post || w->up.rows),
        .weigh_inputs = x->weigh_inputs,
        .n_zero = x->n_zero,
        .xs = tensor_f32(s->xs, n_all, in),
        .hs = tensor_f32(s->hs, n_all, x->n_ff),
        .us = tensor_f32(s->us, n_all, x->n_ff),
        .ys = tensor_f32(s->ys, n_all, in),
        .order = s->order,
    };
}

void scratch_plan(struct scratch *s, const struct model *m, int n, int n_tail, int n_out,
                  bool gathered)
{
    const struct hparams *hp = &m->hp;
    for (int l = s->part->first; l < s->part->end; l++) {
        bool last = l == hp->n_layers - 1 && s->last;
        plan_attention(&s->steps[l], s, m, l, n);
        mix_plan(&s->steps[l], &s->mix, m, l, n);
        indexer_plan(&s->steps[l], s, m, l, n);
        plan_tail(&s->steps[l], s, m, l, last ? n_tail : n, last && gathered);
        if (hp->layers[l].moe) plan_experts(&s->steps[l], s, m, l, last ? n_tail : n);
    }
    s->words = tensor_f32(s->t, n, hp->n_word);
    s->proj_in = (struct linear){ .out = tensor_f32(s->x, n, hp->n_embd), .w = &m->proj_in };
    altup_plan(s, m, n);
    hyper_plan(s, m, n);
    if (hp->n_ple) {
        s->ple_t = tensor_f32(s->ples, n, hp->n_ple * hp->n_layers);
        s->ple_add = tensor_f32(s->ple, n, hp->n_ple * hp->n_layers);
        s->ple_in = (struct linear){ .out = s->ple_t,
                                     .w = &m->ple_in,
                                     .scale = 1 / sqrtf((float)hp->n_embd) };
    }
    for (int i = 0; i < hp->n_rope; i++)
        s->table_t[i] = tensor_f32(s->table[i], n, hp->rope[i].n_rot);
    if (!s->last) return;
    s->out_norm = tensor_f32(s->h, n_tail, hp->n_embd);
    s->chosen_t = tensor_f32(s->out_x, n_out, hp->n_embd);
    s->logits_t = tensor_f32(s->logits, n_out, shard_logits(hp));
    s->proj_out = (struct linear){ .out = tensor_f32(s->t, n_out, hp->n_word), .w = &m->proj_out };
    s->head = (struct linear){ .out = s->logits_t,
                               .w = m->head.rows ? &m->head : &m->embd,
                               .bias = m->head_b,
                               .scale = hp->logit_scale };
}
