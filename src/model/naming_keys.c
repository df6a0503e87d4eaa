/* naming_keys.c - hyper-parameters as metadata keys of a GGUF file: the inverse of hparams_gguf.c.
 * Keys that llama.cpp does not know have no effect there. */
#include "model/naming_impl.h"

#include "base/mem.h"
#include "model/rotary.h"
#include "model/vechead.h"

#include <math.h>

/* list: scratch, [n_layers]. */
static void put_windows(struct key_writer *k, bool *list)
{
    const struct hparams *hp = k->hp;
    int window = 0, n = 0;

    for (int l = 0; l < hp->n_layers; l++) {
        list[l] = hp->layers[l].window > 0 || hp->layers[l].rope == 1;
        n += list[l];
        if (hp->layers[l].window) window = hp->layers[l].window;
    }
    if (n || (hp->info->window_every && !(hp->info->flags & ARCH_WINDOW_KEYED))) {
        put_int(k, "attention.sliding_window", window);
        ggufw_bools(k->w, full_name(k, "attention.sliding_window_pattern"), list,
                    (size_t)hp->n_layers);
    }
    if (hp->info->flags & (ARCH_NO_ROPE | ARCH_ROPE_SLIDING | ARCH_LAYER_ROPE)) {
        bool granite = hp->info->flags & ARCH_LAYER_ROPE;
        for (int l = 0; l < hp->n_layers; l++) list[l] = hp->layers[l].rope >= 0;
        ggufw_bools(k->w, full_name(k, granite ? "attention.rope_pattern" : "rope.layers"), list,
                    (size_t)hp->n_layers);
    }
}

/* The keys of llama.cpp; factors that it has no key for are tern's own. */
static void put_rope(struct key_writer *k)
{
    const struct rope_hp *r = &k->hp->rope[0];
    if (k->hp->n_rope == 0) return;
    put_int(k, "rope.dimension_count", r->n_rot);
    put_f32(k, "rope.freq_base", r->theta);
    if (k->hp->info->flags & ARCH_SECTIONS)
        ggufw_i32s(k->w, full_name(k, "rope.dimension_sections"), k->hp->sections, 4);
    if (k->hp->n_rope > 1) put_f32(k, "rope.freq_base_swa", k->hp->rope[1].theta);
    if (r->scaling == ROPE_NONE || r->scaling == ROPE_LLAMA3)
        return; /* llama3 is stored as a tensor of divisors */
    ggufw_str(k->w, full_name(k, "rope.scaling.type"), str_c(rope_scaling_name(r->scaling)));
    put_f32(k, "rope.scaling.factor", r->factor);
    if (r->scaling == ROPE_LINEAR || r->scaling == ROPE_DYNAMIC) return;
    put_int(k, "rope.scaling.original_context_length", (int)r->orig_ctx);
    if (r->scaling == ROPE_LONGROPE) {
        put_f32(k, "rope.scaling.attn_factor", r->attn_factor);
        if (r->attn_factor_long != 0)
            put_f32(k, "rope.scaling.attn_factor_long", r->attn_factor_long);
        if (r->always_short) put_bool(k, "rope.scaling.always_short", true);
        return;
    }
    if (str_is(str_c(k->hp->arch), "mistral3"))
        put_f32(k, "rope.scaling.attn_factor", r->attn_factor); /* with yarn_log_multiplier 1 */
    else if (k->hp->info->mix != MIX_MLA)
        put_f32(k, "rope.scaling.attn_factor",
                r->attn_factor / rotary_yarn_factor(r->factor, 0, 0));
    put_f32(k, "rope.scaling.yarn_beta_fast", r->beta_fast);
    put_f32(k, "rope.scaling.yarn_beta_slow", r->beta_slow);
    put_bool(k, "rope.scaling.yarn_truncate", r->truncate);
}

/* The scale of attention scores: one value, or one per layer if they differ. list: scratch. */
static void put_attn_scale(struct key_writer *k, float *list)
{
    const struct hparams *hp = k->hp;
    bool own = false, same = true;

    for (int l = 0; l < hp->n_layers; l++) {
        const struct layer_hp *w = &hp->layers[l];
        own |= w->attn_scale != 0 && w->attn_scale != 1 / sqrtf((float)w->head_dim);
        list[l] = w->attn_scale != 0 ? w->attn_scale : hp->attn_scale;
        same &= list[l] == list[0];
    }
    if (own && !same) ggufw_f32s(k->w, full_name(k, "attention.scale"), list, (size_t)hp->n_layers);
    else if (own || hp->attn_scale != 0) put_f32(k, "attention.scale", list[0]);
}

/* The shared expert is described by one layer: all layers with experts are alike. */
static void put_moe(struct key_writer *k)
{
    static const int func[] = {
        [ROUTE_SOFTMAX] = 1, [ROUTE_SIGMOID] = 2, [ROUTE_TOP_SOFTMAX] = 3, [ROUTE_SPARSEMIXER] = 1
    };
    const struct moe_hp *m = &k->hp->moe;
    const struct layer_hp *last = &k->hp->layers[k->hp->n_layers - 1];
    int dense = 0;

    if (!m->n) return;
    while (last > k->hp->layers && !last->moe) last--;
    while (dense < k->hp->n_layers && !k->hp->layers[dense].moe) dense++;
    put_int(k, "expert_count", m->n);
    put_int(k, "expert_used_count", m->n_used);
    put_int(k, "expert_feed_forward_length", m->n_ff);
    if (last->n_ff && last->moe && !m->beside) {
        put_int(k, "expert_shared_feed_forward_length", last->n_ff);
        put_int(k, "expert_shared_count", last->n_ff / m->n_ff > 0 ? last->n_ff / m->n_ff : 1);
    }
    if (k->hp->info->moe.dense_ff || dense) put_int(k, "leading_dense_block_count", dense);
    put_int(k, "expert_gating_func", func[m->route]);
    put_bool(k, "expert_weights_norm", m->norm);
    put_f32(k, "expert_weights_scale", m->scale);
    if (m->n_groups) {
        put_int(k, "expert_group_count", m->n_groups);
        put_int(k, "expert_group_used_count", m->n_groups_used);
    }
    if (m->route == ROUTE_SPARSEMIXER) put_f32(k, "expert_jitter", m->jitter);
}

/* Properties in which a model differs from the usual decoder. */
static void put_properties(struct key_writer *k)
{
    const struct hparams *hp = k->hp;

    if (hp->info->flags & ARCH_PARALLEL_KEY) put_bool(k, "use_parallel_residual", hp->parallel);
    if (hp->alibi != 0) put_f32(k, "attention.max_alibi_bias", hp->alibi);
    if (hp->clip_qkv != 0) put_f32(k, "attention.clamp_kqv", hp->clip_qkv);
    if (hp->norm_after) put_bool(k, "norm_after", true);
    if (hp->norm_residual) put_bool(k, "norm_residual", true);
    if (!hp->last_norm) put_bool(k, "last_norm", false);
    if (hp->ranks) put_int(k, "pooling_type", 4);
    if (!hp->encoder) return;
    put_bool(k, "attention.causal", false);
    for (int i = 0; hp->dense && i < hp->dense->n && i < 2; i++) {
        put_int(k, i ? "dense_3_feat_in" : "dense_2_feat_in", hp->dense->layers[i].in);
        put_int(k, i ? "dense_3_feat_out" : "dense_2_feat_out", hp->dense->layers[i].out);
    }
    if (!hp->ranks)
        put_int(k, "pooling_type", hp->pooling == POOL_MEAN ? 1 : hp->pooling == POOL_CLS ? 2 : 3);
    if (hp->info->encoder)
        ggufw_u32(k->w, "tokenizer.ggml.token_type_count", (uint32_t)hp->n_types);
}

static void put_multipliers(struct key_writer *k)
{
    const struct hparams *hp = k->hp;

    if (hp->info->flags & ARCH_LOGIT_SCALE) put_f32(k, "logit_scale", hp->logit_scale);
    if (hp->info->flags & ARCH_MULTIPLIERS) {
        put_f32(k, "embedding_scale", hp->embd_scale);
        put_f32(k, "residual_scale", hp->residual_scale);
        put_f32(k, "logit_scale", 1 / hp->logit_scale);
    }
    if (hp->info->flags & ARCH_ATTN_CAP) put_f32(k, "attn_logit_softcapping", hp->attn_softcap);
    if (hp->info->flags & ARCH_LOGIT_CAP) put_f32(k, "final_logit_softcapping", hp->logit_softcap);
    if (hp->act != hp->info->act || hp->info->gguf_silu)
        ggufw_str(k->w, full_name(k, "hidden_activation"), str_c(act_name(hp->act)));
}

/* The feed-forward width of the dense layers, or of the experts if all layers have them. */
static void put_ff_length(struct key_writer *k)
{
    int n = k->hp->moe.n_ff;

    for (int l = 0; l < k->hp->n_layers; l++)
        if (!k->hp->layers[l].moe) n = k->hp->layers[l].n_ff;
    put_int(k, "feed_forward_length", n);
}

static void put_heads(struct key_writer *k, const struct layer_hp *w)
{
    put_int(k, "attention.head_count", w->n_heads);
    put_int(k, "attention.head_count_kv", w->n_kv_heads);
    put_int(k, "attention.key_length", w->head_dim);
    put_int(k, "attention.value_length", w->head_dim_v);
}

static void put_shapes(struct key_writer *k)
{
    const struct hparams *hp = k->hp;

    put_int(k, "block_count", hp->n_layers);
    put_int(k, "context_length", hp->n_ctx);
    put_int(k, "embedding_length", hp->n_embd);
    if (!naming_own_widths(hp)) put_ff_length(k);
    if (!naming_own_heads(hp) && !hp->info->mix) put_heads(k, &hp->layers[0]);
    if (hp->norm == NORM_LAYER) put_f32(k, "attention.layer_norm_epsilon", hp->norm_eps);
    if (hp->norm == NORM_RMS || (hp->moe.n && !str_is(str_c(hp->arch), "cohere2moe")))
        put_f32(k, "attention.layer_norm_rms_epsilon", hp->norm_eps);
    put_int(k, "vocab_size", hp->n_vocab);
}

int naming_keys(const struct hparams *hp, struct ggufw *w, struct err *e)
{
    struct key_writer k = { .hp = hp, .w = w };
    float *scales = mem_array((size_t)hp->n_layers, sizeof *scales);
    bool *flags = mem_array((size_t)hp->n_layers, sizeof *flags);
    int rc = scales && flags ? OK : err_nomem(e, "the keys of a model");

    if (rc == OK) {
        ggufw_str(w, "general.architecture", str_c(hp->arch));
        put_shapes(&k);
        if (hp->info->mix) rc = naming_mix_keys(&k, e);
        if (rc == OK && hparams_own_gguf_known(hp->info)) rc = naming_own_keys(&k, e);
    }
    if (rc == OK) {
        put_rope(&k);
        put_windows(&k, flags);
        put_attn_scale(&k, scales);
        put_multipliers(&k);
        put_properties(&k);
        put_moe(&k);
    }
    mem_free(scales);
    mem_free(flags);
    return rc;
}

static struct gguf_extra make_list(const char *name, const float *data, int n)
{
    return (struct gguf_extra){ name, data, n, 1, { n, 1 } };
}

/* Longrope has two lists; llama3 is written as divisors of the unscaled frequencies. */
static int make_factors(const struct hparams *hp, struct arena *a, struct gguf_extra *out)
{
    const struct rope_hp *r = &hp->rope[0];
    int n = r->n_rot / 2;
    if (hp->n_rope == 0) return 0;
    if (r->scaling == ROPE_LONGROPE) {
        out[0] = make_list("rope_factors_long.weight", r->long_factor, n);
        out[1] = make_list("rope_factors_short.weight", r->short_factor, n);
        return 2;
    }
    if (r->n_turn) { /* divisors that make the frequencies behind them 0 */
        float *f = arena_array(a, (size_t)n, sizeof *f);
        for (int i = 0; f && i < n; i++) f[i] = 2 * i < r->n_turn ? 1 : 1e30f;
        out[0] = make_list("rope_freqs.weight", f, n);
        return f != NULL;
    }
    if (r->scaling == ROPE_LLAMA3) {
        struct rope_hp plain = *r;
        float *f = arena_array(a, (size_t)n, sizeof *f),
              *scaled = arena_array(a, (size_t)n, sizeof *f);
        if (!f || !scaled) return 0;
        plain.scaling = ROPE_NONE;
        rotary_freq(&plain, 0, f);
        rotary_freq(r, 0, scaled);
        for (int i = 0; i < n; i++) f[i] /= scaled[i];
        out[0] = make_list("rope_freqs.weight", f, n);
        return 1;
    }
    return 0;
}

int naming_extras(const struct hparams *hp, struct arena *a, struct gguf_extra out[GGUF_EXTRAS])
{
    static const char *const names[] = { "dense_2.weight", "dense_3.weight" };
    int n = make_factors(hp, a, out);

    for (int i = 0; hp->dense && i < hp->dense->n && i < 2; i++) {
        const struct vec_layer *y = &hp->dense->layers[i];
        out[n++] =
            (struct gguf_extra){ names[i], y->w, (int64_t)y->out * y->in, 2, { y->out, y->in } };
    }
    return n;
}
