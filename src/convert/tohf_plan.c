#include "convert/tohf_plan.h"

#include "base/mem.h"
#include "kernel/quantblocks.h"
#include "kernel/quant.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct planner {
    struct tohf_plan *out;
    struct hparams *hp;
    struct arena *arena;
    const struct source *src;
    enum dtype want;
    struct map kept; /* the folder's names → where in the lists */
    struct value types;
    struct map used;  /* of the GGUF file */
    struct map taken; /* parts of its tensors */
    int cap;
};

/* ---- what the file kept of its folder ---- */

static void read_kept(struct planner *p)
{
    struct value names, name;

    if (!source_key(p->src, TOHF_NAMES, &names) || !source_key(p->src, TOHF_TYPES, &p->types))
        return;
    for (size_t i = 0; value_at(&names, i, &name); i++)
        if (name.kind == VALUE_STR) map_put(&p->kept, name.s, i);
}

/* "BF16 64,128": the type, DT_NONE if nothing was kept of it; and the shape. */
static enum dtype kept_type(const struct planner *p, const char *name, int64_t *dims, int *n_dims)
{
    uint64_t i;
    struct value v;
    char text[128], *at;

    *n_dims = 0;
    if (!map_get(&p->kept, str_c(name), &i) || !value_at(&p->types, i, &v) || v.kind != VALUE_STR)
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

/* ---- which kind of folder, and how its names begin ---- */

static const struct arch *kept_arch(const struct planner *p)
{
    struct str text;
    const struct arch *a = NULL;

    if (!source_str(p->src, TOHF_CONFIG, &text)) return NULL;
    json_t *root = json_loadb(text.p, text.n, 0, NULL);
    const char *type = json_string_value(json_object_get(root, "model_type"));
    const char *inner =
        json_string_value(json_object_get(json_object_get(root, "text_config"), "model_type"));
    if (inner) a = arch_by_hf(str_c(inner));
    if (!a && type) a = arch_by_hf(str_c(type));
    json_decref(root);
    return a && strcmp(a->gguf, p->hp->info->gguf) == 0 ? a : NULL;
}

static const struct arch *find_arch(const struct planner *p)
{
    const struct hparams *hp = p->hp;
    const struct arch *kept = kept_arch(p);
    struct str name = str_c(hp->info->gguf);
    const char *type = hp->info->hf[0];
    int n = 0;

    if (kept) return kept;
    for (int l = 0; l < hp->n_layers; l++) n += hp->layers[l].window > 0;
    if (str_is(name, "llama"))
        type = hp->moe.n ? "mixtral" : n == hp->n_layers ? "mistral" : n ? "ministral" : "llama";
    else if (str_is(name, "olmo2")) type = n ? "olmo3" : "olmo2";
    else if (str_is(name, "deepseek2"))
        type = hp->moe.route == ROUTE_SIGMOID ? "deepseek_v3" : "deepseek_v2";
    else if (str_is(name, "bert")) type = hp->pos_skip ? "xlm-roberta" : "bert";
    return arch_by_hf(str_c(type));
}

static const char *usual_prefix(const char *type)
{
    static const char *const other[][2] = {
        { "gpt2", "transformer." },  { "gpt_bigcode", "transformer." },
        { "gptj", "transformer." },  { "gpt_neo", "transformer." },
        { "bloom", "transformer." }, { "falcon", "transformer." },
        { "mpt", "transformer." },   { "gpt_neox", "gpt_neox." },
        { "opt", "model.decoder." }, { "mamba", "backbone." },
        { "mamba2", "backbone." },   { "bert", "" },
        { "xlm-roberta", "" },       { "nomic_bert", "" },
        { "modernbert", "" },
    };

    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (strcmp(other[i][0], type) == 0) return other[i][1];
    return "model.";
}

static void find_prefix(struct planner *p)
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
            map_get(&p->kept, str_c(name), &i))
            return;
    }
    hp->prefix = usual_prefix(p->out->arch->hf[0]);
    hp->head_prefix = "";
}

/* ---- parts ---- */

static size_t member_size(const struct tensor_row *r)
{
    return r->cols == DIM_NONE || r->count ? sizeof(void *) : sizeof(struct weight);
}

static const struct source_tensor *find_gguf(const struct planner *p, const struct tensor_row *r,
                                             int l)
{
    char name[256];
    return hparams_name(p->hp, r, l, 0, SOURCE_GGUF, name, sizeof name) ? source_find(p->src, name)
                                                                        : NULL;
}

/* Who holds the member `at` of the layer in the GGUF file: a tensor of its own, or a part of a
 * packed one. */
static bool find_member(const struct planner *p, const struct tensor_row *like, size_t at, int l,
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
            const struct source_tensor *t = find_gguf(p, g, l);
            if (!t) break;
            *out = (struct tohf_part){ .t = t, .first = first, .each = y.rows };
            return true;
        }
    }
    return false;
}

static bool find_parts(const struct planner *p, const struct tensor_row *r, int l,
                       const struct layout *y, struct tohf_part *part)
{
    const struct source_tensor *t = r->gguf ? find_gguf(p, r, l) : NULL;
    int64_t first = 0;

    for (int k = 0; k < y->n_parts; first += y->part[k++]) {
        if (t) part[k] = (struct tohf_part){ .t = t, .first = first, .each = y->rows };
        else if (!find_member(p, r, r->at + (size_t)k * member_size(r), l, &part[k])) return false;
        if (p->hp->info->gguf_rope == ROPE_PAIR && !(p->hp->info->flags & ARCH_ROPE_PAIRS)) {
            if (r->flags & ROW_PERM_Q) part[k].permute = p->hp->layers[l].n_heads;
            if (r->flags & ROW_PERM_K) part[k].permute = p->hp->layers[l].n_kv_heads;
        }
    }
    return true;
}

static int32_t *rows_of(struct arena *a, const struct layout *y)
{
    if (y->order == ORDER_KV_B) return NULL; /* has a way of its own */
    int32_t *out = arena_array(a, (size_t)y->rows, sizeof *out);

    for (int k = 0; k < y->n_parts; k++)
        for (int64_t r = 0; r < y->part[k]; r++) out[layout_row(y, k, r)] = (int32_t)(r * 4 + k);
    return out;
}

/* ---- items ---- */

static float scale_of(const struct planner *p, struct str gguf_name)
{
    char name[256];
    const struct source_tensor *t;
    float scale = 1;

    if (!str_ends(gguf_name, STR(".weight"))) return 1;
    snprintf(name, sizeof name, "%.*s.scale", (int)(gguf_name.n - 7), gguf_name.p);
    t = source_find(p->src, name);
    if (t && t->type == DT_F32 && t->bytes == 4) memcpy(&scale, t->data, 4);
    return scale;
}

/* Numbers that adding did not leave as they were. */
static const float *read_exact(const struct planner *p, const struct tohf_item *it)
{
    char key[300];
    struct value list, v;
    float *x;

    snprintf(key, sizeof key, TOHF_EXACT "%.200s", it->name);
    if ((it->add == 0 && !it->log) || !source_key(p->src, key, &list) || list.kind != VALUE_LIST ||
        list.n != (size_t)(it->y.rows * it->y.cols))
        return NULL;
    x = arena_array(p->arena, list.n, sizeof *x);
    for (size_t i = 0; i < list.n; i++) {
        double f = 0;
        if (value_at(&list, i, &v)) value_f64(&v, &f);
        x[i] = (float)f;
    }
    return x;
}

static struct tohf_item *new_item(struct planner *p, const struct tohf_item *like)
{
    if (p->out->n == p->cap) {
        int cap = p->cap ? 2 * p->cap : 256;
        struct tohf_item *more = arena_array(p->arena, (size_t)cap, sizeof *more);
        if (p->out->n) memcpy(more, p->out->items, (size_t)p->out->n * sizeof *more);
        p->out->items = more;
        p->cap = cap;
    }
    p->out->items[p->out->n] = *like;
    return &p->out->items[p->out->n++];
}

/* The scales of MXFP4 numbers are a tensor beside them. */
static void add_mx_scales(struct planner *p, const struct tohf_item *blocks)
{
    struct tohf_item *it = new_item(p, blocks);
    size_t n = strlen(blocks->name);

    it->name = arena_printf(p->arena, "%.*s_scales", (int)(n > 7 ? n - 7 : n), blocks->name);
    it->mx_scales = true;
    it->n_dims = it->y.n_dims - 1;
}

/* Libraries changed how they write some tensors: a folder has one form, the one that was kept, or
 * the first. */
static bool is_wanted(const struct planner *p, const struct tensor_row *r, int l)
{
    char name[256];
    uint64_t i;

    hparams_name(p->hp, r, l, 0, SOURCE_HF, name, sizeof name);
    return p->kept.n == 0 || map_get(&p->kept, str_c(name), &i);
}

static bool take_parts(struct planner *p, const struct tohf_item *it)
{
    bool fresh = false;

    for (int k = 0; k < it->y.n_parts; k++) {
        const struct tohf_part *t = &it->part[k];
        char *key = arena_printf(p->arena, "%.*s:%lld", STR_ARG(t->t->name), (long long)t->first);
        fresh |= map_put(&p->taken, str_c(key), 1);
    }
    return fresh;
}

/* Libraries keep a convolution as [channels, 1, taps], and one number a head as a vector. */
static void plane_dims(struct tohf_item *it, const struct tensor_row *r)
{
    if (r->cols == DIM_ONE) it->n_dims = 1;
    if (r->cols != DIM_MIX_TAPS) return;
    it->n_dims = 3;
    it->dims[2] = it->dims[1];
    it->dims[1] = 1;
}

static void add_row(struct planner *p, const struct tensor_row *r, int l)
{
    struct tohf_item like = { .scale = 1 };
    char name[256];

    if (!r->hf || !hparams_has(p->hp, r, l)) return;
    layout_of(&like.y, p->hp, r, l, SOURCE_HF);
    layout_plain(&like.y, p->hp, r, l);
    if (!find_parts(p, r, l, &like.y, like.part)) return;
    bool mx = like.part[0].t->type == DT_MXFP4 && p->want == DT_NONE;
    if ((r->flags & ROW_MX && !mx) || (r->flags & ROW_NO_MX && mx)) return;
    if (!is_wanted(p, r, l) || !take_parts(p, &like)) return;
    for (int k = 0; k < like.y.n_parts; k++) map_put(&p->used, like.part[k].t->name, 1);
    like.row_of = rows_of(p->arena, &like.y);
    like.scale = scale_of(p, like.part[0].t->name);
    if (r->flags & ROW_NORM && p->hp->info->flags & ARCH_NORM1) like.add = -1;
    like.log = r->flags & ROW_LOG;
    like.n_dims = like.y.n_dims;
    memcpy(like.dims, like.y.dims, sizeof like.dims);
    if (r->kind == ROW_PLANE) plane_dims(&like, r);
    for (int i = 0; i < like.y.tensors; i++) {
        hparams_name(p->hp, r, l, i, SOURCE_HF, name, sizeof name);
        struct tohf_item *it = new_item(p, &like);
        it->name = arena_cstr(p->arena, str_c(name));
        it->first_mat = i * like.y.count;
        it->exact = read_exact(p, it);
        if (like.y.mx) add_mx_scales(p, it);
    }
}

/* ---- types ---- */

static enum dtype find_main(const struct tohf_plan *p)
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

static int64_t n_mats(const struct tohf_item *it) { return it->y.count; }

/* Can all numbers of a small tensor be said in t? */
static bool survives(const struct tohf_item *it, enum dtype t)
{
    int64_t n = n_mats(it) * it->y.rows;
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

static enum dtype type_of(const struct planner *p, struct tohf_item *it)
{
    enum dtype now = it->part[0].t->type;
    bool quantized = dtype_info((int)now)->quantized;
    int64_t dims[4], n = 1, m = 1;
    int n_dims;
    enum dtype kept = kept_type(p, it->name, dims, &n_dims);

    if (it->y.mx) return DT_U8;
    for (int i = 0; i < n_dims; i++) n *= dims[i];
    for (int i = 0; i < it->n_dims; i++) m *= it->dims[i];
    if (n_dims && n == m) { /* the folder wrote its dimensions of 1 so */
        it->n_dims = n_dims;
        memcpy(it->dims, dims, (size_t)n_dims * sizeof *dims);
    }
    if (kept != DT_NONE && p->want == DT_NONE && !quantized &&
        (kept == DT_F32 || kept == DT_F16 || kept == DT_BF16))
        return kept;
    if (!it->y.vector || quantized)
        return p->want != DT_NONE ? p->want : quantized ? p->out->main_type : now;
    enum dtype want = p->want != DT_NONE ? p->want : p->out->main_type;
    return now == DT_F32 && want != DT_F32 && survives(it, want) ? want : now;
}

static uint64_t bytes_of(const struct tohf_item *it)
{
    uint64_t n = (uint64_t)dtype_info((int)it->type)->bytes;

    for (int i = 0; i < it->n_dims; i++) n *= (uint64_t)it->dims[i];
    return n;
}

/* Every tensor of the file must have found its place, but for those that config.json tells. */
static int check_all(const struct planner *p, struct err *e)
{
    uint64_t v;

    for (size_t i = 0; i < source_n_tensors(p->src); i++) {
        struct str name = source_tensor(p->src, i)->name;
        if (map_get(&p->used, name, &v) || str_starts(name, STR("rope_")) ||
            str_ends(name, STR(".scale")))
            continue;
        return err_set(e, E_UNSUPPORTED,
                       "%s: no Hugging Face name is known for the tensor '%.*s' of %s",
                       source_path(p->src), STR_ARG(name), p->hp->arch);
    }
    return OK;
}

int tohf_plan(struct tohf_plan *out, struct hparams *hp, struct arena *a, const struct source *src,
              enum dtype want, struct err *e)
{
    struct planner p = { .out = out, .hp = hp, .arena = a, .src = src, .want = want };
    const struct tensor_row *r;
    int it, rc;

    *out = (struct tohf_plan){ 0 };
    read_kept(&p);
    out->arch = hp->info = find_arch(&p);
    find_prefix(&p);
    for (int l = -1; l < hp->n_layers; l++)
        for (it = 0, r = arch_row(hp->info, &it); r; r = arch_row(hp->info, &it))
            if (row_in_layer(r) == (l >= 0)) add_row(&p, r, l < 0 ? 0 : l);
    out->main_type = want != DT_NONE ? want : find_main(out);
    for (int i = 0; i < out->n; i++) {
        out->items[i].type = type_of(&p, &out->items[i]);
        out->items[i].bytes = bytes_of(&out->items[i]);
        out->bytes += out->items[i].bytes;
    }
    rc = check_all(&p, e);
    map_release(&p.kept);
    map_release(&p.used);
    map_release(&p.taken);
    return rc;
}

/* ---- rows ---- */

/* Row w of matrix m as the folder stores them: where it is in the GGUF tensor. */
static const char *find_row(const struct tohf_item *it, int64_t m, int64_t w,
                            const struct source_tensor **t)
{
    const struct tohf_part *p = &it->part[it->row_of[w] % 4];
    int64_t r = it->row_of[w] / 4;
    uint64_t bytes = 0;

    if (p->permute) {
        int64_t dim = it->y.part[it->row_of[w] % 4] / p->permute, half = dim / 2, in = r % dim;
        r += (in < half ? 2 * in : 2 * (in - half) + 1) - in;
    }
    dtype_row_bytes(p->t->type, (uint64_t)it->y.cols, &bytes);
    *t = p->t;
    return (const char *)p->t->data +
           (uint64_t)((it->first_mat + m) * p->each + p->first + r) * bytes;
}

/* Folders put number 2j and 2j + 1 into a byte, GGUF's blocks j and j + 16. */
static void put_mx(const struct tohf_item *it, const struct block_mxfp4 *from, uint8_t *to)
{
    for (int64_t b = 0; b < it->y.cols / QK; b++) {
        uint8_t q[QK];
        if (it->mx_scales) {
            to[b] = from[b].e;
            continue;
        }
        for (int j = 0; j < QK / 2; j++)
            q[j] = from[b].qs[j] & 15, q[j + QK / 2] = from[b].qs[j] >> 4;
        for (int j = 0; j < QK / 2; j++)
            to[b * (QK / 2) + j] = (uint8_t)(q[2 * j] | q[2 * j + 1] << 4);
    }
}

static float number(const struct tohf_item *it, float x)
{
    return it->log ? logf(-x) : x * it->scale + it->add;
}

/* Rows of keys lie across those of the GGUF tensor, which has a matrix [latent, row] a head. */
static void read_key_row(const struct tohf_item *it, int64_t w, float *x)
{
    int64_t head = w / (it->y.each + it->y.values), in = w % (it->y.each + it->y.values);
    const struct source_tensor *t = it->part[0].t;
    float *row = mem_array((size_t)it->y.each, sizeof *row);
    uint64_t bytes = 0;

    dtype_row_bytes(t->type, (uint64_t)it->y.each, &bytes);
    for (int64_t c = 0; c < it->y.cols; c++) {
        quant_decode(t->type, (const char *)t->data + (uint64_t)(head * it->y.cols + c) * bytes,
                     row, it->y.each);
        x[c] = row[in];
    }
    mem_free(row);
}

static void read_value_row(const struct tohf_item *it, int64_t w, float *x)
{
    int64_t head = w / (it->y.each + it->y.values),
            in = w % (it->y.each + it->y.values) - it->y.each;
    const struct source_tensor *t = it->part[1].t;
    uint64_t bytes = 0;

    dtype_row_bytes(t->type, (uint64_t)it->y.cols, &bytes);
    quant_decode(t->type, (const char *)t->data + (uint64_t)(head * it->y.values + in) * bytes, x,
                 it->y.cols);
}

static void kv_b_row(const struct tohf_item *it, int64_t w, void *dst, float *x)
{
    if (w % (it->y.each + it->y.values) < it->y.each) read_key_row(it, w, x);
    else read_value_row(it, w, x);
    quant_encode(it->type, x, dst, it->y.cols);
}

void tohf_row(const struct tohf_item *it, int64_t at, void *dst, float *x)
{
    const struct source_tensor *t;
    const char *from;
    uint64_t bytes = 0;

    if (it->y.order == ORDER_KV_B) {
        kv_b_row(it, at, dst, x);
        return;
    }
    from = find_row(it, at / it->y.rows, at % it->y.rows, &t);

    if (it->y.mx) {
        put_mx(it, (const void *)from, dst);
        return;
    }
    dtype_row_bytes(it->type, (uint64_t)it->y.cols, &bytes);
    if (t->type == it->type && it->add == 0 && it->scale == 1 && !it->log) {
        memcpy(dst, from, bytes);
        return;
    }
    quant_decode(t->type, from, x, it->y.cols);
    for (int64_t i = 0; i < it->y.cols; i++)
        x[i] = it->exact ? it->exact[at * it->y.cols + i] : number(it, x[i]);
    quant_encode(it->type, x, dst, it->y.cols);
}

int tohf_turned(const struct tohf_item *it, void *dst, struct err *e)
{
    size_t rows = (size_t)it->y.rows, cols = (size_t)it->y.cols,
           size = (size_t)dtype_info((int)it->type)->bytes;
    float *x = mem_array(cols, sizeof *x), *all = mem_array(rows * cols, sizeof *all);

    for (int64_t m = 0; x && all && m < it->y.count; m++) {
        for (size_t w = 0; w < rows; w++) {
            const struct source_tensor *t;
            const char *from = find_row(it, m, (int64_t)w, &t);
            quant_decode(t->type, from, x, (int64_t)cols);
            for (size_t c = 0; c < cols; c++) all[c * rows + w] = number(it, x[c]);
        }
        quant_encode(it->type, all, (char *)dst + (size_t)m * rows * cols * size,
                     (int64_t)(rows * cols));
    }
    int rc = x && all ? OK : err_set(e, E_NOMEM, "%s: no memory to turn it", it->name);
    mem_free(x);
    mem_free(all);
    return rc;
}
