/* tohf_plan.c - from GGUF tensors to a folder's tensors.
 *
 * model/arch has one table of tensors per architecture; a row names the struct member that it
 * fills, the GGUF name and the Hugging Face name. Both formats fill the same members, so the way
 * back is: for each row with a Hugging Face name, look up the GGUF tensor (or the part of a packed
 * one) that fills the same member.
 *
 * One architecture may have several rows for the same member, since libraries changed how they
 * pack tensors. The folder's original names, if the GGUF file holds them, decide; otherwise the
 * first row whose parts are all there wins. Every GGUF tensor must be used by some row. */
#include "convert/tohf_plan.h"

#include "base/jsonr.h"
#include "convert/hfkeys.h"
#include "kernel/quant.h"
#include "model/model.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

/* The planner goes through the architecture's table of tensors (model/arch) and keeps its first
 * failed allocation: nomem, or the arena's own flag. tohf_plan asks once at the end. */
struct planner {
    struct tohf_plan *out;
    int cap; /* of out->items */
    struct hparams *hp;
    struct arena *arena;
    const struct source *src;
    enum dtype want;
    struct map folder_names;   /* HFKEY_NAMES: name → index into folder_types; empty: unknown */
    struct value folder_types; /* HFKEY_TYPES: "BF16 64,128" each */
    struct map used_tensors;   /* names of GGUF tensors that have a place in the folder */
    struct map used_parts;     /* "name:first row" of parts that have one */
    bool nomem;
    struct err
        wrong; /* the first tensor with another shape or type than its row has; code OK: none */
};

/* Sets the sticky flag in place of returning an error from every step of the plan. */
static void add_key(struct planner *p, struct map *m, struct str key, uint64_t value)
{
    if (map_put(m, key, value) < 0) p->nomem = true;
}

/* ---- what the GGUF file says of the folder it was made from ---- */

/* Without both lists the folder's names are unknown and the architecture's defaults are used. */
static void read_folder_names(struct planner *p)
{
    struct value names, name;

    if (!source_key(p->src, HFKEY_NAMES, &names) ||
        !source_key(p->src, HFKEY_TYPES, &p->folder_types))
        return;
    for (size_t i = 0; value_at(&names, i, &name); i++)
        if (name.kind == VALUE_STR) add_key(p, &p->folder_names, name.s, i);
}

/* The type and shape that the tensor had in the folder; DT_NONE and no dims where unknown. */
static enum dtype read_folder_type(const struct planner *p, const char *name, int64_t *dims,
                                   int *n_dims)
{
    uint64_t i;
    struct value v;
    char text[128], *at;

    *n_dims = 0;
    if (!map_get(&p->folder_names, str_c(name), &i) || !value_at(&p->folder_types, i, &v) ||
        v.kind != VALUE_STR)
        return DT_NONE;
    snprintf(text, sizeof text, "%.*s", STR_ARG(str_take(v.s, sizeof text - 1)));
    at = strchr(text, ' ');
    if (at) *at++ = 0;
    while (at && *at && *n_dims < SOURCE_MAX_DIMS) {
        dims[(*n_dims)++] = strtoll(at, &at, 10);
        if (*at == ',') at++;
    }
    return dtype_by_name(str_c(text));
}

/* ---- the folder's architecture, and the prefix of its tensor names ---- */

/* By the model_type of the config.json that the GGUF file holds; NULL: it holds none, or one of
 * another GGUF architecture. */
static const struct arch *read_folder_arch(struct planner *p)
{
    struct str text;
    const struct arch *a = NULL;
    json_error_t why;

    if (!source_str(p->src, HFKEY_CONFIG, &text)) return NULL;
    json_t *root = jsonr_load(text, 0, &why);
    if (!root && json_error_code(&why) == json_error_out_of_memory) p->nomem = true;
    const char *type = json_string_value(json_object_get(root, "model_type"));
    const char *inner =
        json_string_value(json_object_get(json_object_get(root, "text_config"), "model_type"));
    if (inner) a = arch_by_hf(str_c(inner));
    if (!a && type) a = arch_by_hf(str_c(type));
    json_decref(root);
    return a && arch_named(a, str_c(p->hp->arch)) ? a : NULL;
}

/* Several Hugging Face architectures share one GGUF name; windows, experts and routing tell them
 * apart. */
static const struct arch *find_folder_arch(struct planner *p)
{
    const struct hparams *hp = p->hp;
    const struct arch *known = read_folder_arch(p);
    struct str name = str_c(hp->info->gguf);
    const char *type = hp->info->hf[0];
    int n = 0;

    if (known) return known;
    for (int l = 0; l < hp->n_layers; l++) n += hp->layers[l].window > 0;
    if (str_is(name, "llama"))
        type = hp->moe.n ? "mixtral" : n == hp->n_layers ? "mistral" : n ? "ministral" : "llama";
    else if (str_is(name, "olmo2")) type = n ? "olmo3" : "olmo2";
    else if (str_is(name, "deepseek2"))
        type = hp->moe.route == ROUTE_SIGMOID ? "deepseek_v3" : "deepseek_v2";
    else if (str_is(name, "mamba")) type = hp->layers[0].mix.bc_norm ? "falcon_mamba" : "mamba";
    else if (str_is(name, "granitemoe") && hp->layers[hp->n_layers - 1].n_ff)
        type = "granitemoeshared";
    else if (str_is(name, "bert")) type = hp->pos_skip ? "xlm-roberta" : "bert";
    return arch_by_hf(str_c(type));
}

/* The prefix that transformers writes for the architecture. */
static const char *default_prefix(const char *type)
{
    static const char *const other[][2] = {
        { "gpt2", "transformer." },
        { "gpt_bigcode", "transformer." },
        { "gptj", "transformer." },
        { "gpt_neo", "transformer." },
        { "bloom", "transformer." },
        { "falcon", "transformer." },
        { "mpt", "transformer." },
        { "gpt_neox", "gpt_neox." },
        { "opt", "model.decoder." },
        { "mamba", "backbone." },
        { "mamba2", "backbone." },
        { "falcon_mamba", "backbone." },
        { "bert", "" },
        { "xlm-roberta", "" },
        { "nomic_bert", "" },
        { "modernbert", "" },
    };

    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (strcmp(other[i][0], type) == 0) return other[i][1];
    return "model.";
}

/* Sets hp->prefix and hp->head_prefix: those with which the first tensor's name is one of the
 * folder's, else the default. */
static void set_prefix(struct planner *p)
{
    static const char *const prefixes[][2] = {
        { "model.", "" },
        { "", "" },
        { "transformer.", "" },
        { "gpt_neox.", "" },
        { "model.decoder.", "" },
        { "decoder.", "" },
        { "backbone.", "" },
        { "model.language_model.", "" },
        { "language_model.model.", "language_model." },
    };
    struct hparams *hp = p->hp;
    char name[256];
    uint64_t i;

    for (size_t k = 0; k < sizeof prefixes / sizeof *prefixes; k++) {
        int it = 0;
        hp->prefix = prefixes[k][0];
        hp->head_prefix = prefixes[k][1];
        if (hparams_name(hp, arch_row(hp->info, &it), 0, 0, SOURCE_HF, name, sizeof name) &&
            map_get(&p->folder_names, str_c(name), &i))
            return;
    }
    hp->prefix = default_prefix(p->out->arch->hf[0]);
    hp->head_prefix = "";
}

/* ---- the parts that a folder's tensor is made of ---- */

/* Bytes of the struct member that a table row fills: a pointer, or a struct weight in place. */
static size_t member_size(const struct tensor_row *r)
{
    return r->cols == DIM_NONE || r->count ? sizeof(void *) : sizeof(struct weight);
}

/* The GGUF tensor of a table row in layer l, or NULL. */
static const struct source_tensor *find_gguf_tensor(const struct planner *p,
                                                    const struct tensor_row *r, int l)
{
    char name[256];

    return hparams_name(p->hp, r, l, 0, SOURCE_GGUF, name, sizeof name) ? source_find(p->src, name)
                                                                        : NULL;
}

/* The first tensor that is not as its row says ends the plan; it is read nowhere. Returns the tensor
 * whose blocks are read: NVFP4 and Q2_0 are presented as layers of quantized folders are. */
static const struct source_tensor *note_check(struct planner *p, struct layout *y,
                                              const struct source_tensor *t)
{
    if (t->quant && quant_can_decode(hfquant_part(t->quant, 0)->type)) {
        if (p->wrong.code == OK) hfquant_check(t->quant, source_path(p->src), &p->wrong);
        t = hfquant_part(t->quant, 0);
    }
    if (p->wrong.code == OK && t->quant)
        err_set(&p->wrong, E_UNSUPPORTED, "%s: tensor %.*s: its type cannot be written to a folder",
                source_path(p->src), STR_ARG(str_take(t->name, 100)));
    if (p->wrong.code == OK) layout_check(y, p->src, t, false, &p->wrong);
    return t;
}

/* Finds the GGUF tensor that fills the struct member at offset `at`: one with a name of its own, or
 * a part of a packed one. `like` is the folder's table row. */
static bool find_member(struct planner *p, const struct tensor_row *like, size_t at, int l,
                        struct tohf_part *out)
{
    int it = 0;

    for (const struct tensor_row *g = arch_row(p->hp->info, &it); g;
         g = arch_row(p->hp->info, &it)) {
        if (!g->gguf || row_in_layer(g) != row_in_layer(like) ||
            (g->cols == DIM_NONE) != (like->cols == DIM_NONE) || !hparams_has(p->hp, g, l))
            continue;
        struct layout y;
        layout_of(&y, p->hp, g, l, SOURCE_GGUF);
        int64_t first = 0;
        for (int k = 0; k < y.n_parts; first += y.part[k++]) {
            if (g->at + (size_t)k * member_size(g) != at) continue;
            const struct source_tensor *t = find_gguf_tensor(p, g, l);
            if (!t) break;
            t = note_check(p, &y, t);
            *out = (struct tohf_part){ .t = t, .first = first, .each = y.rows };
            return true;
        }
    }
    return false;
}

/* A number that GGUF files have as a key, and folders as a tensor of one element: a parameter of
 * xIELU. */
static bool make_number(struct planner *p, const struct tensor_row *r, int l, struct tohf_part *out)
{
    const size_t at = offsetof(struct layer, xielu);
    struct source_tensor *t = arena_array(p->arena, 1, sizeof *t);
    float *f = arena_array(p->arena, 1, sizeof *f);
    char name[256], *copy;

    if (!t || !f || r->at < at || r->at >= at + sizeof(struct xielu_opt)) return false;
    hparams_name(p->hp, r, l, 0, SOURCE_HF, name, sizeof name);
    if (!(copy = arena_cstr(p->arena, str_c(name)))) return false;
    *f = *(const float *)((const char *)&p->hp->layers[l].xielu + (r->at - at));
    *t = (struct source_tensor){ .name = str_c(copy),
                                 .type = DT_F32,
                                 .n_dims = 1,
                                 .dims = { 1, 1, 1, 1 },
                                 .data = f,
                                 .bytes = sizeof *f };
    *out = (struct tohf_part){ .t = t, .each = 1 };
    return true;
}

/* Fills part[0..y->n_parts); false: the GGUF file lacks one of them. */
static bool find_parts(struct planner *p, const struct tensor_row *r, int l, const struct layout *y,
                       struct tohf_part *part)
{
    const struct source_tensor *t = r->gguf ? find_gguf_tensor(p, r, l) : NULL;
    struct layout stored;
    int64_t first = 0;

    if (!r->gguf && r->kind == ROW_SCALE) return make_number(p, r, l, part);
    if (t) {
        layout_of(&stored, p->hp, r, l, SOURCE_GGUF);
        t = note_check(p, &stored, t);
    }
    for (int k = 0; k < y->n_parts; first += y->part[k++]) {
        if (t) part[k] = (struct tohf_part){ .t = t, .first = first, .each = y->rows };
        else if (!find_member(p, r, r->at + (size_t)k * member_size(r), l, &part[k])) return false;
        if (p->hp->info->gguf_rope == ROPE_PAIR && !(p->hp->info->flags & ARCH_ROPE_PAIRS)) {
            if (r->flags & ROW_PERM_Q) part[k].permute = p->hp->layers[l].n_heads;
            if (r->flags & ROW_PERM_K) part[k].permute = p->hp->layers[l].n_kv_heads;
            part[k].n_rot = p->hp->n_rope ? p->hp->rope[0].n_rot : p->hp->layers[l].head_dim;
        }
    }
    return true;
}

/* The inverse of layout_row, see row_of in struct tohf_item. NULL: ORDER_KV_B, or no memory. */
static int32_t *make_row_table(struct arena *a, const struct layout *y)
{
    if (y->order == ORDER_KV_B) return NULL;
    int32_t *out = arena_array(a, (size_t)y->rows, sizeof *out);

    for (int k = 0; out && k < y->n_parts; k++)
        for (int64_t r = 0; r < y->part[k]; r++) out[layout_row(y, k, r)] = (int32_t)(r * 4 + k);
    return out;
}

/* ---- items ---- */

/* The factor in NAME.scale beside NAME.weight (BitNet), or the factors of NVFP4. Other lists, as
 * Gemma 4 has them for experts, are tensors of the folder, too. */
static void find_scales(const struct planner *p, struct tohf_part *part)
{
    struct str of = part->t->name;
    char name[256];
    const struct source_tensor *t;

    if (!str_ends(of, STR(".weight"))) return;
    snprintf(name, sizeof name, "%.*s.scale", (int)(of.n - 7), of.p);
    t = source_find(p->src, name);
    if (!t || t->type != DT_F32 || t->n_dims > 1 || t->bytes < sizeof(float)) return;
    if (t->bytes != sizeof(float) &&
        (part->t->type != DT_NVFP4 || part->t->n_dims != 3 || t->dims[0] != part->t->dims[0]))
        return;
    part->scales = (const float *)t->data;
    part->n_scales = (int)(t->bytes / sizeof(float));
}

/* The values of HFKEY_EXACT; NULL: there are none, or no memory. */
static const float *read_exact(const struct planner *p, const struct tohf_item *it)
{
    char key[300];
    struct value list, v;
    float *x;

    snprintf(key, sizeof key, HFKEY_EXACT "%.200s", it->name);
    if ((it->add == 0 && !it->log) || !source_key(p->src, key, &list) || list.kind != VALUE_LIST ||
        list.n != (size_t)(it->y.rows * it->y.cols))
        return NULL;
    x = arena_array(p->arena, list.n, sizeof *x);
    for (size_t i = 0; x && i < list.n; i++) {
        double f = 0;
        if (value_at(&list, i, &v)) value_f64(&v, &f);
        x[i] = (float)f;
    }
    return x;
}

/* Appends a copy of `like`; NULL: no memory. Items move as the list grows. */
static struct tohf_item *add_item(struct planner *p, const struct tohf_item *like)
{
    if (p->out->n == p->cap) {
        int cap = p->cap ? 2 * p->cap : 256;
        struct tohf_item *more = arena_array(p->arena, (size_t)cap, sizeof *more);
        if (!more) return NULL;
        if (p->out->n) memcpy(more, p->out->items, (size_t)p->out->n * sizeof *more);
        p->out->items = more;
        p->cap = cap;
    }
    p->out->items[p->out->n] = *like;
    return &p->out->items[p->out->n++];
}

/* MXFP4: "X_blocks" holds the values, "X_scales" beside it the scales. */
static void add_mx_scales(struct planner *p, struct tohf_item blocks)
{
    struct tohf_item *it = add_item(p, &blocks);
    size_t n = strlen(blocks.name);

    if (!it) return;
    it->name = arena_printf(p->arena, "%.*s_scales", (int)(n > 7 ? n - 7 : n), blocks.name);
    it->mx_scales = true;
    it->n_dims = it->y.n_dims - 1;
}

/* Some tensors have several Hugging Face forms (packed or split, by version of the library). The
 * folder gets the form it had, or, where that is unknown, the first of the table. A folder that was
 * quantized had "X.qweight" or "X.weight_packed" for "X.weight". */
static bool is_folder_form(const struct planner *p, const struct tensor_row *r, int l)
{
    static const char *const packed[] = { ".qweight", ".weight_packed" };
    char name[256], other[300];
    uint64_t i;

    hparams_name(p->hp, r, l, 0, SOURCE_HF, name, sizeof name);
    if (p->folder_names.n == 0 || map_get(&p->folder_names, str_c(name), &i)) return true;
    for (size_t k = 0; k < sizeof packed / sizeof *packed && str_ends(str_c(name), STR(".weight"));
         k++) {
        snprintf(other, sizeof other, "%.*s%s", (int)(strlen(name) - 7), name, packed[k]);
        if (map_get(&p->folder_names, str_c(other), &i)) return true;
    }
    return false;
}

/* Marks the item's parts as used; false: all of them were used already. */
static bool claim_parts(struct planner *p, const struct tohf_item *it)
{
    bool any_new = false;

    for (int k = 0; k < it->y.n_parts; k++) {
        const struct tohf_part *t = &it->part[k];
        char *key = arena_printf(p->arena, "%.*s:%lld", STR_ARG(t->t->name), (long long)t->first);
        int rc = key ? map_put(&p->used_parts, str_c(key), 1) : E_NOMEM;
        p->nomem = p->nomem || rc < 0;
        any_new = any_new || rc == MAP_ADDED;
    }
    return any_new;
}

/* Folders have a convolution as [channels, 1, taps] and one value per head as a vector. */
static void set_plane_dims(struct tohf_item *it, const struct tensor_row *r)
{
    if (r->cols == DIM_ONE) it->n_dims = 1;
    if (r->cols != DIM_MIX_TAPS) return;
    it->n_dims = 3;
    it->dims[2] = it->dims[1];
    it->dims[1] = 1;
}

/* Adds the tensors of one table row in layer l, if the folder has them and the GGUF file holds
 * their parts. */
static void add_table_row(struct planner *p, const struct tensor_row *r, int l)
{
    struct tohf_item like = { 0 };
    char name[256];

    if (!r->hf || !hparams_has(p->hp, r, l)) return;
    layout_of(&like.y, p->hp, r, l, SOURCE_HF);
    layout_plain(&like.y, p->hp, r, l);
    if (!find_parts(p, r, l, &like.y, like.part)) return;
    bool mx = like.part[0].t->type == DT_MXFP4 && p->want == DT_NONE;
    if ((r->flags & ROW_MX && !mx) || (r->flags & ROW_NO_MX && mx)) return;
    if (!is_folder_form(p, r, l) || !claim_parts(p, &like)) return;
    for (int k = 0; k < like.y.n_parts; k++) add_key(p, &p->used_tensors, like.part[k].t->name, 1);
    if (!layout_rows_fit(&like.y)) {
        if (p->wrong.code == OK)
            err_set(&p->wrong, E_FORMAT, "%s: tensor %.*s: its heads are not of one size",
                    source_path(p->src), STR_ARG(like.part[0].t->name));
        return;
    }
    like.row_of = make_row_table(p->arena, &like.y);
    for (int k = 0; k < like.y.n_parts; k++) find_scales(p, &like.part[k]);
    if (r->flags & ROW_NORM && p->hp->info->flags & ARCH_NORM1) like.add = -1;
    like.log = r->flags & ROW_LOG;
    if (p->hp->layers[l].mix.tiled) tiling_of(&like.tile_rows, &like.tile_cols, p->hp, r, l);
    like.n_dims = like.y.n_dims;
    memcpy(like.dims, like.y.dims, sizeof like.dims);
    if (r->kind == ROW_PLANE) set_plane_dims(&like, r);
    for (int i = 0; i < like.y.tensors; i++) {
        hparams_name(p->hp, r, l, i, SOURCE_HF, name, sizeof name);
        struct tohf_item *it = add_item(p, &like);
        if (!it || !(it->name = arena_cstr(p->arena, str_c(name)))) return;
        it->first_mat = i * like.y.count;
        it->exact = read_exact(p, it);
        if (like.y.mx) add_mx_scales(p, *it);
    }
}

/* ---- types ---- */

/* The unquantized type with the most bytes of matrices; F16 where all are quantized. */
static enum dtype find_main_type(const struct tohf_plan *p)
{
    static const enum dtype plain[] = { DT_F16, DT_BF16, DT_F32 };
    uint64_t n[3] = { 0 }, most = 0;
    enum dtype best = DT_F16;

    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < 3; k++)
            if (p->items[i].part[0].t->type == plain[k] && !p->items[i].y.vector)
                n[k] += p->items[i].part[0].t->bytes;
    for (int k = 0; k < 3; k++)
        if (n[k] > most) most = n[k], best = plain[k];
    return best;
}

/* Can every value of a vector be stored as t without a change? false for matrices. */
static bool fits_type(const struct tohf_item *it, enum dtype t)
{
    int64_t n = it->y.count * it->y.rows;
    bool same = it->y.vector;

    for (int64_t i = 0; i < n && same; i++) {
        float x, back;
        uint16_t h;
        struct tohf_item f = *it;
        f.type = DT_F32;
        tohf_row(&f, i, &x, &back);
        quant_encode(t, &x, &h, 1);
        quant_decode(t, &h, &back, 1);
        same = x == back;
    }
    return same;
}

/* The type in the folder: what the caller wants, else what the folder had, else the file's. GGUF
 * stores vectors as F32; they become the main type again where that loses nothing. Also restores
 * the folder's shape where it differs by dimensions of 1. */
static enum dtype choose_type(const struct planner *p, struct tohf_item *it)
{
    enum dtype now = it->part[0].t->type;
    bool quantized = dtype_info((int)now)->quantized;
    int64_t dims[4], n = 1, m = 1;
    int n_dims;
    enum dtype was = read_folder_type(p, it->name, dims, &n_dims);

    if (it->y.mx) return DT_U8;
    for (int i = 0; i < n_dims; i++) n *= dims[i];
    for (int i = 0; i < it->n_dims; i++) m *= it->dims[i];
    if ((n_dims || was != DT_NONE) && n == m) {
        it->n_dims = n_dims;
        memcpy(it->dims, dims, (size_t)n_dims * sizeof *dims);
    }
    if (was != DT_NONE && p->want == DT_NONE && !quantized &&
        (was == DT_F32 || was == DT_F16 || was == DT_BF16))
        return was;
    if (!it->y.vector || quantized)
        return p->want != DT_NONE ? p->want : quantized ? p->out->main_type : now;
    enum dtype want = p->want != DT_NONE ? p->want : p->out->main_type;
    return now == DT_F32 && want != DT_F32 && fits_type(it, want) ? want : now;
}

/* Types of folders are not block formats: bytes per value times values. */
static uint64_t count_bytes(const struct tohf_item *it)
{
    uint64_t n = (uint64_t)dtype_info((int)it->type)->bytes;

    for (int i = 0; i < it->n_dims; i++) n *= (uint64_t)it->dims[i];
    return n;
}

/* Every GGUF tensor must have a place in the folder. Exceptions: rotary factors, which config.json
 * expresses, and scales, which are multiplied in. */
static int check_all_used(const struct planner *p, struct err *e)
{
    uint64_t v;

    for (size_t i = 0; i < source_n_tensors(p->src); i++) {
        struct str name = source_tensor(p->src, i)->name;
        if (map_get(&p->used_tensors, name, &v) || str_starts(name, STR("rope_")) ||
            str_ends(name, STR(".scale")))
            continue;
        return err_set(e, E_UNSUPPORTED,
                       "%s: no Hugging Face name is known for the tensor '%.*s' of %s",
                       source_path(p->src), STR_ARG(name), p->hp->arch);
    }
    return OK;
}

/* Second pass: the main type depends on all items, the type of a vector on the main type. */
static int plan_types(struct planner *p, struct err *e)
{
    struct tohf_plan *out = p->out;

    if (p->wrong.code != OK) return err_set(e, p->wrong.code, "%s", p->wrong.msg);
    if (p->nomem || p->arena->failed) return err_nomem(e, "the plan of the folder's tensors");
    out->main_type = p->want != DT_NONE ? p->want : find_main_type(out);
    for (int i = 0; i < out->n; i++) {
        out->items[i].type = choose_type(p, &out->items[i]);
        out->items[i].bytes = count_bytes(&out->items[i]);
        out->bytes += out->items[i].bytes;
    }
    return check_all_used(p, e);
}

int tohf_plan(struct tohf_plan *out, struct hparams *hp, struct arena *a, const struct source *src,
              enum dtype want, struct err *e)
{
    struct planner p = { .out = out, .hp = hp, .arena = a, .src = src, .want = want };
    const struct tensor_row *r;
    int it, rc;

    *out = (struct tohf_plan){ 0 };
    read_folder_names(&p);
    out->arch = hp->info = find_folder_arch(&p);
    set_prefix(&p);
    for (int l = -1; l < hp->n_layers; l++)
        for (it = 0, r = arch_row(hp->info, &it); r; r = arch_row(hp->info, &it))
            if (row_in_layer(r) == (l >= 0)) add_table_row(&p, r, l < 0 ? 0 : l);
    rc = plan_types(&p, e);
    map_release(&p.folder_names);
    map_release(&p.used_tensors);
    map_release(&p.used_parts);
    return rc;
}
