/* naming.c - the tensors of a folder as tensors of a GGUF file.
 *
 * Works from the rows of the table: each row that has a name in folders is looked up there, and
 * becomes the tensor of the same row in GGUF, or of the rows that have the same members. Tensors of
 * the folder that no row claims are an error, so that nothing is lost silently.
 *
 * Example: a folder's "model.layers.3.mlp.experts.#.gate_proj.weight" (64 tensors) becomes
 * "blk.3.ffn_gate_exps.weight" [64, n_ff, n_embd], because the row names both. */
#include "model/naming.h"

#include "base/map.h"
#include "kernel/quant.h"
#include "model/model.h"
#include "model/rotary.h"
#include "model/vechead.h"

#include <math.h>
#include <stdio.h>

struct plan {
    const struct hparams *hp;
    const struct source *src;
    struct arena *arena;
    struct gguf_item *items;
    int n;
    struct map used; /* names of tensors that were claimed by a row */
};

static int fail_missing(const struct plan *p, const char *name, const struct layout *y,
                        struct err *e)
{
    char want[64];
    layout_text(y, want, sizeof want);
    return err_set(e, E_NOTFOUND, "%s: tensor %s is missing, expected %s", source_path(p->src),
                   name, want);
}

/* Marks a tensor of the folder as claimed, and those that a quantized layer is made of. */
static int claim_tensor(struct plan *p, const struct source_tensor *t, struct err *e)
{
    bool ok = map_put(&p->used, t->name, 1) != E_NOMEM;

    for (int i = 0; t->quant && i < HFQUANT_PARTS; i++)
        if (hfquant_part(t->quant, i))
            ok = ok && map_put(&p->used, hfquant_part(t->quant, i)->name, 1) != E_NOMEM;
    return ok ? OK : err_nomem(e, "a plan of tensors");
}

/* Finds the tensors of a row. *from NULL: they do not exist and are not required. */
static int find_row_tensors(struct plan *p, const struct tensor_row *r, int l, struct layout *y,
                            const struct source_tensor ***from, struct err *e)
{
    const struct source_tensor **list = arena_array(p->arena, (size_t)y->tensors, sizeof *list);
    char name[256];
    int rc;

    *from = NULL;
    if (!list) return err_nomem(e, "a plan of tensors");
    for (int i = 0; i < y->tensors; i++) {
        hparams_name(p->hp, r, l, i, SOURCE_HF, name, sizeof name);
        list[i] = source_find(p->src, name);
        if (!list[i] && i == 0 &&
            (!hparams_needs(p->hp, r, l) || hparams_covered(p->hp, p->src, r, l)))
            return OK;
        if (!list[i]) return fail_missing(p, name, y, e);
        if ((rc = layout_check(y, p->src, list[i], false, e)) != OK) return rc;
        if (y->scales && (rc = claim_tensor(p, y->scales, e)) != OK) return rc;
        if ((rc = claim_tensor(p, list[i], e)) != OK) return rc;
    }
    *from = list;
    return OK;
}

/* The GGUF row of a part that a folder has packed with others: the one with the same member. */
static const struct tensor_row *find_part_row(const struct plan *p, const struct tensor_row *r,
                                              int l, int part)
{
    size_t size = r->cols == DIM_NONE || r->count ? sizeof(void *) : sizeof(struct weight);
    int it = 0;

    for (const struct tensor_row *g = arch_row(p->hp->info, &it); g; g = arch_row(p->hp->info, &it))
        if (g->gguf && (g->kind == ROW_WHOLE || g->kind == ROW_EACH_HEAD) &&
            g->at == r->at + (size_t)part * size && row_in_layer(g) == row_in_layer(r) &&
            hparams_has(p->hp, g, l))
            return g;
    return NULL;
}

/* One GGUF tensor from part `part` of row r; g: its row in GGUF. */
static void add_item(struct plan *p, const struct tensor_row *r, const struct tensor_row *g, int l,
                     int part, const struct layout *y, const struct source_tensor **from)
{
    struct gguf_item *it = &p->items[p->n++];
    int count = y->count * y->tensors;
    int64_t rows = part < 0 ? y->rows : y->part[part];

    *it = (struct gguf_item){
        .row = r, .lay = *y, .part = part, .from = from, .rows = count * rows, .cols = y->cols
    };
    hparams_name(p->hp, g, l, 0, SOURCE_GGUF, it->name, sizeof it->name);
    it->cols = layout_cols(y, part < 0 ? 0 : part);
    if (r->count) it->dims[it->n_dims++] = count;
    if (y->per_weight) it->dims[it->n_dims++] = y->per_weight, rows /= y->per_weight;
    if (r->kind == ROW_FLAT && p->hp->layers[l].mix.n_groups > 1)
        it->dims[it->n_dims++] = p->hp->layers[l].mix.n_groups,
        rows /= p->hp->layers[l].mix.n_groups;
    it->dims[it->n_dims++] = rows;
    if (!y->vector) it->dims[it->n_dims++] = it->cols;
    it->keep_f32 = y->vector || r->kind == ROW_PLANE || g->flags & ROW_F32;
    it->neg_exp = r->flags & ROW_LOG;
    if (r->flags & ROW_NORM) it->add = p->hp->norm_bias1;
    if (tiling_written(p->hp, l)) tiling_of(&it->tile_rows, &it->tile_cols, p->hp, r, l);
    if (p->hp->info->gguf_rope == ROPE_PAIR && p->hp->rope_style == ROPE_HALF) {
        if (r->flags & ROW_PERM_Q) it->permute = p->hp->layers[l].n_heads;
        if (r->flags & ROW_PERM_K) it->permute = p->hp->layers[l].n_kv_heads;
        it->n_rot = p->hp->n_rope ? p->hp->rope[0].n_rot : p->hp->layers[l].head_dim;
    }
    naming_scales(&it->scale, p->hp, r, l);
}

/* A packed tensor stays packed if its row has a GGUF name, else it becomes a tensor per part. */
static int plan_row(struct plan *p, const struct tensor_row *r, int l, struct err *e)
{
    const struct source_tensor **from;
    struct layout y;
    int rc;

    if (!r->hf || !hparams_has(p->hp, r, l)) return OK;
    layout_of(&y, p->hp, r, l, SOURCE_HF);
    if ((rc = find_row_tensors(p, r, l, &y, &from, e)) != OK || !from) return rc;
    layout_plain(&y, p->hp, r, l);
    if (!r->gguf && r->kind == ROW_SCALE) return OK; /* a key: naming_own.c */
    if (r->gguf) {
        add_item(p, r, r, l, y.n_parts > 1 ? -1 : 0, &y, from);
        return OK;
    }
    for (int i = 0; i < y.n_parts; i++) {
        const struct tensor_row *g = find_part_row(p, r, l, i);
        if (!g)
            return err_set(e, E_UNSUPPORTED, "%s: GGUF has no name for '%s'", source_path(p->src),
                           r->hf);
        add_item(p, r, g, l, i, &y, from);
    }
    return OK;
}

/* A matrix of an expert that returns its input: longcat's folders have some that nothing reads. */
static bool is_idle_expert(const struct hparams *hp, struct str name)
{
    const struct str before = STR(".mlp.experts.");
    int at = (int)str_find(name, before);
    size_t digits = 0;
    struct str rest;
    int64_t i;

    if (!hp->moe.n_zero || at < 0) return false;
    rest = str_skip(name, (size_t)at + before.n);
    while (digits < rest.n && rest.p[digits] >= '0' && rest.p[digits] <= '9') digits++;
    return str_to_i64(str_take(rest, digits), &i) && i >= hp->moe.n;
}

/* Tensors that may be left out: buffers, tied heads, layers for multi-token prediction, the vision
 * part of multimodal models, experts without a function, and the pooler of encoders: only classifiers
 * use it, whose head is written by naming_head.c. */
static bool may_be_dropped(const struct hparams *hp, struct str name)
{
    char prefix[128];
    struct str rest = name;
    int64_t l;
    size_t digits = 0;

    if (str_ends(name, STR("rotary_emb.inv_freq")) || str_ends(name, STR(".masked_bias")) ||
        str_ends(name, STR(".attn.bias")) || str_ends(name, STR(".attention.bias")) ||
        (hp->tied && (str_is(name, "lm_head.weight") || str_is(name, "embed_out.weight"))))
        return true;
    if (hp->encoder &&
        (str_starts(name, STR("pooler.dense.")) || str_find(name, STR(".pooler.dense.")) >= 0))
        return true;
    if (hp->prefix && strstr(hp->prefix, "language_model.") &&
        str_find(name, STR("language_model.")) < 0 && !str_starts(name, STR("lm_head.")))
        return true;
    if (is_idle_expert(hp, name)) return true;
    snprintf(prefix, sizeof prefix, "%slayers.", hp->prefix ? hp->prefix : "");
    if (!str_starts(name, str_c(prefix))) return false;
    rest = str_skip(name, strlen(prefix));
    while (digits < rest.n && rest.p[digits] >= '0' && rest.p[digits] <= '9') digits++;
    return str_to_i64(str_take(rest, digits), &l) && l >= hp->n_layers && hp->moe.n > 0;
}

/* Properties that naming_keys.c has no key for: without one the file would compute something else. */
static const char *find_unwritten(const struct hparams *hp)
{
    const struct moe_hp *m = &hp->moe;
    bool multiplied = hp->info->flags & ARCH_MULTIPLIERS;

    if (hp->encoder && !hp->info->encoder && !str_is(str_c(hp->arch), "gemma-embedding"))
        return "bidirectional attention yet: use the folder";
    if (hparams_own_gguf_known(hp->info)) return NULL;
    if (hp->info->flags & ARCH_FOLDER) return "all of its properties yet: use the folder";
    if (hp->info->flags & ARCH_LAYER_ROPE && hp->n_rope > 1) return "a rotary base for each layer";
    if (hp->qk_bare || hp->v_norm || hp->embd_norm) return "norms without weights";
    if (hp->k_scale != 0 || hp->v_scale != 0) return "scaled keys or values";
    if (hp->pos_scale.beta != 0) return "queries that grow with the position";
    if (hp->n_ple || hp->altup.n) return "per-layer inputs";
    if (m->n_in || m->n_zero || m->weigh_inputs || m->mean != 0 || m->late || m->beside ||
        m->clip.limit != 0)
        return "its kind of experts";
    if (!multiplied && (hp->residual_scale != 1 ||
                        (hp->logit_scale != 1 && !(hp->info->flags & ARCH_LOGIT_SCALE))))
        return "scaled residuals or logits";
    for (int l = 0; l < hp->n_layers; l++) {
        const struct layer_hp *w = &hp->layers[l], *first = &hp->layers[0];
        if (w->chunk) return "chunked attention";
        if (w->index.n_heads) return "the indexer of sparse attention";
        if (w->kv_of || w->k_is_v) return "shared keys and values";
        if (!hp->info->mix && (w->n_heads != first->n_heads || w->n_kv_heads != first->n_kv_heads ||
                               w->head_dim != first->head_dim))
            return "layers with other heads";
    }
    for (int i = 0; i < hp->n_rope; i++)
        if (hp->rope[i].n_turn || hp->rope[i].reverse || i > 1) return "its rotary embedding";
    return NULL;
}

/* sentence-transformers folders have dense layers in folders of their own: 2_Dense. GGUF files of
 * EmbeddingGemma have two of them, which are matrices and nothing else. */
static bool has_dense(const struct hparams *hp, const struct source *src)
{
    char key[64];
    struct str type;
    bool plain = hp->dense && hp->dense->n <= 2;

    for (int i = 0; plain && i < hp->dense->n; i++)
        plain = !hp->dense->layers[i].b && hp->dense->layers[i].act == VEC_ACT_NONE;
    if (plain) return false;
    for (int i = 0;; i++) {
        snprintf(key, sizeof key, "modules:%d.type", i);
        if (!source_str(src, key, &type)) return false;
        if (str_ends(type, STR(".Dense"))) return true;
    }
}

/* Quantized layers have tensors that weights need not: scales of activations and of the KV cache,
 * and shapes. */
static bool is_beside_weights(const struct source *src, struct str name)
{
    static const char *const ends[] = { ".input_scale",        ".activation_scale", ".k_scale",
                                        ".input_global_scale", ".weight_shape",     ".v_scale",
                                        ".qscale_act",         ".input_zero_point", ".q_scale",
                                        ".output_scale",       ".bias_scale",       ".g_idx" };

    for (size_t i = 0; source_quant(src) && i < sizeof ends / sizeof *ends; i++)
        if (str_ends(name, str_c(ends[i]))) return true;
    return false;
}

/* Scratch memory for rows of quantized layers. */
static int prepare_items(struct plan *p, struct err *e)
{
    int rc = OK;

    for (int i = 0; i < p->n && rc == OK; i++) {
        struct gguf_item *it = &p->items[i];
        bool any = false;
        for (int k = 0; k < it->lay.tensors; k++) any = any || it->from[k]->quant;
        if (!any) continue;
        it->groups = arena_array(p->arena, (size_t)it->lay.tensors, sizeof *it->groups);
        if (!it->groups) return err_nomem(e, "a plan of tensors");
        for (int k = 0; k < it->lay.tensors && rc == OK; k++) {
            it->lay.quant = it->from[k]->quant;
            if (it->lay.quant) rc = layout_prepare(&it->lay, 0, p->src, p->arena, NULL, e);
            it->groups[k] = it->lay.group;
        }
        for (int k = 0; k < it->lay.tensors; k++) /* for layout_room */
            if (it->from[k]->quant) it->lay.quant = it->from[k]->quant;
    }
    return rc;
}

int naming_plan(const struct hparams *hp, const struct source *src, struct arena *a,
                struct gguf_item **items, int *n, struct err *e)
{
    struct plan p = { .hp = hp, .src = src, .arena = a };
    size_t n_tensors = source_n_tensors(src), n_rows = 0;
    const struct tensor_row *r;
    int it = 0, rc = OK;
    const char *lost = find_unwritten(hp);

    if (!lost && has_dense(hp, src)) lost = "dense layers after the pooling yet: use the folder";
    if (lost)
        return err_set(e, E_UNSUPPORTED, "%s: %s: GGUF has no key for %s", source_path(src),
                       hp->info->hf[0], lost);
    if (hp->n_rope > 1 && hp->rope[1].scaling != ROPE_NONE)
        return err_set(e, E_UNSUPPORTED,
                       "%s: GGUF has no key for %s scaling in layers with a window",
                       source_path(src), rope_scaling_name(hp->rope[1].scaling));
    while (arch_row(hp->info, &it)) n_rows++;
    /* A row becomes at most three tensors per layer. */
    p.items = arena_array(a, 3 * n_rows * (size_t)(hp->n_layers + 1), sizeof *p.items);
    if (!p.items) return err_nomem(e, "a plan of tensors");
    for (int l = -1; l < hp->n_layers; l++)
        for (it = 0, r = arch_row(hp->info, &it); r; r = arch_row(hp->info, &it))
            if (row_in_layer(r) == (l >= 0) && (rc = plan_row(&p, r, l < 0 ? 0 : l, e)) != OK)
                goto out;
    for (size_t i = 0; i < n_tensors && rc == OK; i++) {
        struct str name = source_tensor(src, i)->name;
        uint64_t one;
        if (!map_get(&p.used, name, &one) && !may_be_dropped(hp, name) &&
            !is_beside_weights(src, name) && !vechead_has(src, name))
            rc = err_set(e, E_UNSUPPORTED, "%s: GGUF has no name for the tensor '%.*s' of %s",
                         source_path(src), STR_ARG(name), hp->arch);
    }
    if (rc == OK) rc = prepare_items(&p, e);
    *items = p.items;
    *n = p.n;
out:
    map_release(&p.used);
    return rc;
}

/* Finds matrix, part and stored row of GGUF row r, undoing the permutation for ROPE_PAIR. */
void naming_row(const struct gguf_item *it, int64_t r, enum dtype to, void *dst, float *tmp)
{
    int64_t each = it->rows / (it->lay.count * it->lay.tensors), i = r / each, in = r % each;
    int part = it->part < 0 ? 0 : it->part, at_tensor = (int)(i / it->lay.count);
    const struct source_tensor *from = it->from[at_tensor];
    struct layout y = it->lay;

    y.quant = from->quant;
    if (y.quant) y.group = it->groups[at_tensor];
    if (it->permute) {
        int64_t at = in % (each / it->permute);
        if (at < it->n_rot) in = in - at + at % 2 * (it->n_rot / 2) + at / 2;
    }
    in = tiling_to_folder(&it->tile_rows, in);
    if (it->part < 0)
        for (; in >= it->lay.part[part]; part++) in -= it->lay.part[part];
    if ((it->add == 0 && !it->neg_exp && !it->tile_cols.keys && !it->scale.n) || to == DT_GROUPED) {
        layout_read(&y, from, (int)(i % it->lay.count), part, in, to, dst, tmp);
        return;
    }
    layout_read(&y, from, (int)(i % it->lay.count), part, in, DT_F32, tmp, tmp);
    for (int64_t k = 0; k < it->cols; k++) tmp[k] = it->neg_exp ? -expf(tmp[k]) : tmp[k] + it->add;
    for (int k = 0; k < it->scale.n; k++)
        if (r < it->scale.end[k]) {
            for (int64_t c = 0; c < it->cols; c++) tmp[c] *= it->scale.f[k];
            break;
        }
    if (it->tile_cols.keys) {
        float *x = tmp + layout_room(&it->lay);
        for (int64_t k = 0; k < it->cols; k++) x[k] = tmp[tiling_to_folder(&it->tile_cols, k)];
        tmp = x;
    }
    quant_encode(to, tmp, dst, it->cols);
}
