/* hfquant.c - finds the tensors of quantized layers, by name, type and shape.
 *
 * Shapes tell nearly everything: bits, group sizes, whether there are zero points. config.json
 * decides where they do not (GPTQ's two conventions for zero points, the size of blocks), and is
 * compared with them otherwise. Which modules are quantized is seen from the tensors, so lists of
 * modules and patterns in config.json need no reading. */
#include "format/hfquant_impl.h"

#include "base/arena.h"
#include "base/map.h"
#include "base/mem.h"

#include <stdio.h>

/* Methods by name. "mxfp4" is read by model/layout.c. */
static const char *const methods[] = { "awq", "bitnet", "compressed-tensors", "fbgemm_fp8",
                                       "fp8", "gptq",   "modelopt",           "mxfp4" };

enum { GROUPS = 16 }; /* config_groups that are looked at */

/* The settings of weights in config.json. */
struct scheme {
    struct str method;
    char name[32];
    int bits, group;      /* gptq, awq: of all layers; 0: not said, group -1: a row */
    bool v2;              /* gptq: zero points are stored as they are */
    bool dynamic;         /* gptq: some modules have other bits and groups */
    bool divides;         /* bitnet: the scale divides */
    int block[2];         /* rows, columns; 0: not said */
    int n_sizes;          /* compressed-tensors: config_groups that were found */
    int size[GROUPS];     /* their group sizes; 0: none */
    int num_bits[GROUPS]; /* of these */
};

struct hfquant {
    struct arena arena;
    struct scheme scheme;
    const struct safetensors *src;
    struct hfquant_tensor *list;
    size_t n;
    struct map by_name;
};

/* ---- config.json ---- */

static bool key_str(const struct hfconfig *c, const char *key, struct str *out)
{
    struct value v;

    if (!hfconfig_key(c, key, &v) || v.kind != VALUE_STR) return false;
    *out = v.s;
    return true;
}

static int key_int(const struct hfconfig *c, const char *key, int otherwise)
{
    struct value v;
    int64_t i;

    if (!hfconfig_key(c, key, &v) || !value_i64(&v, &i) || i < -1 || i > 1 << 24) return otherwise;
    return (int)i;
}

const char *hfquant_methods(void)
{
    return "awq, bitnet, compressed-tensors, fbgemm_fp8, fp8, gptq, modelopt, mxfp4";
}

bool hfquant_knows(struct str method)
{
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (str_is(method, methods[i])) return true;
    return false;
}

/* Older folders have no quantization_config, but a file of the tool that made them. */
bool hfquant_method(const struct hfconfig *c, struct str *out)
{
    struct value v;

    if (key_str(c, "quantization_config.quant_method", out)) return true;
    if (hfconfig_key(c, "quantization_config", &v)) {
        *out = STR("?");
        return true;
    }
    if (hfconfig_key(c, "hf_quant_config:quantization.quant_algo", &v)) *out = STR("modelopt");
    else if (hfconfig_key(c, "quantize_config:bits", &v)) *out = STR("gptq");
    else return false;
    return true;
}

/* A number of quantization_config, or of quantize_config.json. */
static int scheme_int(const struct hfconfig *c, const char *name, int otherwise)
{
    char key[96];

    snprintf(key, sizeof key, "quantize_config:%s", name);
    otherwise = key_int(c, key, otherwise);
    snprintf(key, sizeof key, "quantization_config.%s", name);
    return key_int(c, key, otherwise);
}

static void read_groups(struct scheme *s, const struct hfconfig *c)
{
    char key[128];

    for (int i = 0; i < GROUPS; i++) {
        struct value v;
        int bits;
        snprintf(key, sizeof key, "quantization_config.config_groups.group_%d.weights.num_bits", i);
        if ((bits = key_int(c, key, 0)) <= 0) continue;
        snprintf(key, sizeof key, "quantization_config.config_groups.group_%d.weights.group_size",
                 i);
        s->num_bits[s->n_sizes] = bits;
        s->size[s->n_sizes++] = key_int(c, key, 0);
        for (int k = 0; k < 2; k++) {
            snprintf(key, sizeof key,
                     "quantization_config.config_groups.group_%d.weights.block_structure.%d", i, k);
            if (hfconfig_key(c, key, &v)) s->block[k] = key_int(c, key, 0);
        }
    }
}

static int read_scheme(struct scheme *s, const struct hfconfig *c, struct err *e)
{
    struct str version, format;

    snprintf(s->name, sizeof s->name, "%.*s", STR_ARG(str_take(s->method, 30)));
    s->bits = scheme_int(c, "bits", 0);
    s->group = scheme_int(c, "group_size", 0);
    s->block[0] = key_int(c, "quantization_config.weight_block_size.0", 0);
    s->block[1] = key_int(c, "quantization_config.weight_block_size.1", 0);
    read_groups(s, c);
    if (key_str(c, "quantization_config.checkpoint_format", &format) ||
        key_str(c, "quantize_config:checkpoint_format", &format))
        s->v2 = str_is(format, "gptq_v2");
    struct value v;
    s->dynamic = hfconfig_key(c, "quantization_config.dynamic", &v) ||
                 hfconfig_key(c, "quantize_config:dynamic", &v);
    s->divides = !key_str(c, "quantization_config.linear_class", &format) ||
                 !str_is(format, "autobitlinear");
    if (str_is(s->method, "awq") && key_str(c, "quantization_config.version", &version) &&
        !str_is(version, "gemm") && !str_is(version, "GEMM"))
        return err_set(e, E_UNSUPPORTED,
                       "config.json: AWQ version \"%.*s\" is not supported, only \"gemm\" is",
                       STR_ARG(str_take(version, 32)));
    return OK;
}

/* ---- tensors of a layer ---- */

static const struct source_tensor *find_beside(const struct hfquant *q, struct str base,
                                               const char *suffix)
{
    char name[512];
    int n = snprintf(name, sizeof name, "%.*s%s", STR_ARG(base), suffix);

    return n > 0 && n < (int)sizeof name ? safetensors_find(q->src, str_of(name, (size_t)n)) : NULL;
}

static int64_t elements(const struct source_tensor *t)
{
    int64_t n = 1;

    for (int i = 0; i < t->n_dims; i++) n *= t->dims[i];
    return n;
}

static bool has_shape(const struct source_tensor *t, int64_t a, int64_t b)
{
    return t->n_dims == 2 && t->dims[0] == a && t->dims[1] == b;
}

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static bool scale_type(enum dtype t, enum group_scale *out)
{
    switch (t) {
    case DT_F32: *out = SCALE_F32; return true;
    case DT_F16: *out = SCALE_F16; return true;
    case DT_BF16: *out = SCALE_BF16; return true;
    case DT_F8_E8M0:
    case DT_U8: *out = SCALE_E8M0; return true;
    case DT_F8_E4M3: *out = SCALE_E4M3; return true;
    default: return false;
    }
}

/* The layer cannot be read: text with the shape of a tensor. */
static void refuse(struct hfquant *q, struct hfquant_tensor *t, const char *what,
                   const struct source_tensor *has)
{
    char shape[96] = "";

    for (int i = 0; has && i < has->n_dims; i++) {
        size_t n = strlen(shape);
        snprintf(shape + n, sizeof shape - n, "%s%lld", i ? ", " : "", (long long)has->dims[i]);
    }
    t->why =
        has ? arena_printf(&q->arena, "%s: %.*s is %s [%s]", what,
                           STR_ARG(str_take(has->name, 160)), dtype_name((int)has->type), shape)
            : arena_printf(&q->arena, "%s", what);
    if (!t->why) t->why = "out of memory";
}

/* Scales [out, groups] of WORDS, NIBBLES and rows of BYTES: the group size from shape, checked
 * against config_groups. */
static void size_groups(struct hfquant *q, struct hfquant_tensor *t, int64_t n_groups)
{
    const struct scheme *s = &q->scheme;
    int64_t group = t->cols;
    bool said = false, fits = false;

    if (n_groups < 1 || n_groups > t->cols) {
        refuse(q, t, "its scales do not fit its columns", t->scales);
        return;
    }
    if (n_groups > 1) group = divide_up(t->cols, n_groups);
    for (int i = 0; i < s->n_sizes && n_groups > 1; i++) {
        if (s->size[i] <= 0) continue;
        said = true;
        if (divide_up(t->cols, s->size[i]) == n_groups) group = s->size[i], fits = true;
    }
    if ((said && !fits) || divide_up(t->cols, group) != n_groups) {
        refuse(q, t, "the group size of config.json does not fit its scales", t->scales);
        return;
    }
    t->form.group = (int)group;
}

/* One scale for all, one per row, or blocks: scales of BYTES. */
static void size_blocks(struct hfquant *q, struct hfquant_tensor *t)
{
    static const int common[] = { 128, 64, 32, 256, 16, 512 };
    const struct source_tensor *s = t->scales;
    bool many = t->codes->n_dims == 3 && s->n_dims == 3 && s->dims[0] == t->count;
    int64_t a = s->n_dims > 0 ? s->dims[many] : 1, b = s->n_dims > 1 + many ? s->dims[1 + many] : 1;
    int bn = q->scheme.block[0], bk = q->scheme.block[1];

    t->form.group = (int)t->cols;
    t->block_rows = 1;
    if (elements(s) == 1) {
        t->global = s;
        t->form.scale = SCALE_NONE;
        return;
    }
    if (s->n_dims > 2 + many || (t->count > 1 && !many)) {
        refuse(q, t, "its scales have an unknown shape", s);
        return;
    }
    if (bn > 0 && bk > 0 && divide_up(t->rows, bn) == a && divide_up(t->cols, bk) == b) {
        t->block_rows = bn, t->form.group = bk < t->cols ? bk : (int)t->cols;
        return;
    }
    if (a == t->rows && b == 1) return;
    if (a == t->rows) {
        size_groups(q, t, b);
        return;
    }
    for (size_t i = 0; !(bn > 0 && bk > 0) && i < sizeof common / sizeof *common; i++)
        if (divide_up(t->rows, common[i]) == a && divide_up(t->cols, common[i]) == b) {
            t->block_rows = common[i];
            t->form.group = common[i] < t->cols ? common[i] : (int)t->cols;
            return;
        }
    refuse(q, t, "its scales do not fit its rows and columns", s);
}

/* ---- the schemes ---- */

/* F8_E4M3 (or E5M2), or I8, with scales. */
static void make_bytes(struct hfquant *q, struct hfquant_tensor *t, struct str base)
{
    const struct source_tensor *c = t->codes;

    t->store = HFQ_BYTES;
    t->bits = 8;
    t->count = c->n_dims == 3 ? c->dims[0] : 1;
    t->rows = c->dims[c->n_dims - 2];
    t->cols = c->dims[c->n_dims - 1];
    t->form.code = c->type == DT_F8_E4M3 ? CODE_E4M3 : c->type == DT_F8_E5M2 ? CODE_E5M2 : CODE_U8;
    if (!t->scales) {
        refuse(q, t, "its tensor of scales is missing", c);
        return;
    }
    if (!scale_type(t->scales->type, &t->form.scale)) {
        refuse(q, t, "its scales have a type that is not supported", t->scales);
        return;
    }
    size_blocks(q, t);
    if (c->type != DT_I8) return;
    t->form.zero = 128;
    t->zeros = find_beside(q, base, ".weight_zero_point");
    if (!t->zeros) return;
    /* Codes and zero points both get 128 added: these become bytes of 0 to 255. */
    t->form.zero = 0;
    t->form.zeros = true;
    t->zero = HFQ_ZERO_BYTES;
    int64_t groups = divide_up(t->cols, t->form.group ? t->form.group : 1);
    if (t->zeros->type != DT_I8 || t->count != 1 || t->block_rows != 1 ||
        elements(t->zeros) != t->rows * groups)
        refuse(q, t, "its zero points do not fit its scales", t->zeros);
}

/* The columns of packed words: weight_shape says them where it can be read, else the bits of
 * config.json do. */
static bool size_words(const struct hfquant *q, struct hfquant_tensor *t, struct str base)
{
    const struct source_tensor *shape = find_beside(q, base, ".weight_shape");
    int64_t said[2] = { 0 };
    int bits = 0;

    if (shape && shape->type == DT_I64 && elements(shape) == 2)
        memcpy(said, shape->data, sizeof said); /* zeros where the file is still encrypted */
    for (int i = 0; i < q->scheme.n_sizes; i++) {
        int b = q->scheme.num_bits[i];
        if (b != 2 && b != 4 && b != 8) continue;
        if (!bits) bits = b;
        if (said[1] > 0 && said[1] <= INT32_MAX && divide_up(said[1] * b, 32) == t->codes->dims[1])
            bits = b;
    }
    if (!bits) return false;
    t->bits = bits;
    t->cols = said[1] ? said[1] : t->codes->dims[1] * (32 / bits);
    return (said[0] == 0 || said[0] == t->rows) && t->cols > 0 && t->cols <= INT32_MAX &&
           divide_up(t->cols * bits, 32) == t->codes->dims[1];
}

/* compressed-tensors, pack-quantized. */
static void make_words(struct hfquant *q, struct hfquant_tensor *t, struct str base)
{
    const struct source_tensor *c = t->codes;

    t->store = HFQ_WORDS;
    t->count = 1;
    t->rows = c->dims[0];
    t->cols = c->dims[1];
    t->scales = find_beside(q, base, ".weight_scale");
    t->g_idx = find_beside(q, base, ".weight_g_idx");
    t->zeros = find_beside(q, base, ".weight_zero_point");
    t->block_rows = 1;
    if (c->n_dims != 2 || !size_words(q, t, base)) {
        refuse(q, t, "its packed codes do not fit weight_shape and the bits of config.json", c);
        return;
    }
    t->form.code = t->bits == 2 ? CODE_U2 : t->bits == 4 ? CODE_U4 : CODE_U8;
    if (!t->scales || !scale_type(t->scales->type, &t->form.scale) || t->scales->n_dims > 2 ||
        t->scales->n_dims < 1 || t->scales->dims[0] != t->rows) {
        refuse(q, t, t->scales ? "its scales do not fit its rows" : "weight_scale is missing",
               t->scales);
        return;
    }
    size_groups(q, t, elements(t->scales) / t->rows);
    if (t->why) return;
    int64_t n = divide_up(t->cols, t->form.group);
    t->form.zeros = t->zeros != NULL;
    t->form.zero = t->zeros ? 0 : 1 << (t->bits - 1);
    if (!t->zeros) return;
    t->zero = t->zeros->type == DT_I8 ? HFQ_ZERO_BYTES : HFQ_ZERO_WORDS;
    if (t->zero == HFQ_ZERO_BYTES
            ? !has_shape(t->zeros, t->rows, n)
            : t->zeros->type != DT_I32 || !has_shape(t->zeros, divide_up(t->rows * t->bits, 32), n))
        refuse(q, t, "its zero points do not fit its scales", t->zeros);
}

/* E2M1 in pairs: NVFP4 with scales in E4M3 and one for all, MXFP4 with powers of two. */
static void make_nibbles(struct hfquant *q, struct hfquant_tensor *t, struct str base)
{
    const struct source_tensor *c = t->codes, *mul = find_beside(q, base, ".weight_scale_2");
    const struct source_tensor *div = find_beside(q, base, ".weight_global_scale");

    t->store = HFQ_NIBBLES;
    t->bits = 4;
    t->count = c->n_dims == 3 ? c->dims[0] : 1;
    t->rows = c->dims[c->n_dims - 2];
    t->cols = c->dims[c->n_dims - 1];
    t->block_rows = 1;
    t->form.code = CODE_E2M1;
    t->scales = find_beside(q, base, ".weight_scale");
    if (t->cols > INT32_MAX / 2 || !t->scales || t->scales->n_dims != c->n_dims ||
        (t->scales->type != DT_F8_E4M3 && t->scales->type != DT_U8 &&
         t->scales->type != DT_F8_E8M0) ||
        t->scales->dims[c->n_dims - 2] != t->rows ||
        elements(t->scales) != t->count * t->rows * t->scales->dims[c->n_dims - 1]) {
        refuse(q, t, t->scales ? "its scales do not fit its codes" : "weight_scale is missing",
               t->scales);
        return;
    }
    t->cols *= 2;
    scale_type(t->scales->type, &t->form.scale);
    size_groups(q, t, t->scales->dims[c->n_dims - 1]);
    t->global = div ? div : mul;
    t->invert = div != NULL;
    if (t->form.scale == SCALE_E4M3 && !t->global)
        refuse(q, t, "neither weight_global_scale nor weight_scale_2 exists", t->scales);
    else if (t->global && elements(t->global) != 1)
        refuse(q, t, "one scale for all is expected", t->global);
}

static void make_bitnet(struct hfquant *q, struct hfquant_tensor *t, struct str base)
{
    t->store = HFQ_BITNET;
    t->bits = 2;
    t->count = 1;
    t->rows = t->codes->dims[0] * 4;
    t->cols = t->codes->dims[1];
    t->block_rows = 1;
    t->form = (struct grouped){ .code = CODE_U2, .zero = 1, .group = (int)t->cols };
    t->global = find_beside(q, base, ".weight_scale");
    t->invert = q->scheme.divides;
    if (!t->global || elements(t->global) != 1)
        refuse(q, t, t->global ? "one scale for all is expected" : "weight_scale is missing",
               t->global);
}

/* Group size of GPTQ and AWQ layers. */
static void size_rows(struct hfquant *q, struct hfquant_tensor *t, int64_t n_groups)
{
    int64_t group = q->scheme.group > 0 ? q->scheme.group : t->cols;

    if (q->scheme.group == 0 || q->scheme.dynamic) group = divide_up(t->cols, n_groups);
    if (group > t->cols) group = t->cols;
    if (divide_up(t->cols, group) != n_groups)
        refuse(q, t, "the group size of config.json does not fit its scales", t->scales);
    t->form.group = (int)group;
}

static void make_gptq(struct hfquant *q, struct hfquant_tensor *t, struct str base)
{
    const struct source_tensor *c = t->codes;
    bool awq = str_is(q->scheme.method, "awq");
    int64_t n;

    t->store = awq ? HFQ_AWQ : HFQ_GPTQ;
    t->zero = awq ? HFQ_ZERO_AWQ : HFQ_ZERO_GPTQ;
    t->count = 1;
    t->block_rows = 1;
    t->by_group = true;
    t->scales = find_beside(q, base, ".scales");
    t->zeros = find_beside(q, base, ".qzeros");
    t->g_idx = awq ? NULL : find_beside(q, base, ".g_idx");
    t->bits = awq ? 4 : q->scheme.bits;
    t->rows = awq ? c->dims[1] * 8 : c->dims[1];
    if (!t->scales || !t->zeros) {
        t->rows = t->cols = 1;
        refuse(q, t, t->scales ? "qzeros is missing" : "scales is missing", c);
        return;
    }
    if (t->g_idx && t->g_idx->n_dims == 1 && t->g_idx->dims[0] > 0 &&
        c->dims[0] * 32 % t->g_idx->dims[0] == 0)
        t->bits = (int)(c->dims[0] * 32 / t->g_idx->dims[0] & 63);
    if (t->bits != 2 && t->bits != 3 && t->bits != 4 && t->bits != 8) {
        t->cols = 1;
        t->refused = true;
        refuse(q, t, "codes of 2, 3, 4 or 8 bits are expected", c);
        return;
    }
    t->cols = awq ? c->dims[0] : c->dims[0] * 32 / t->bits;
    t->form.code = t->bits == 2 ? CODE_U2 : t->bits == 8 ? CODE_U8 : CODE_U4;
    n = t->scales->n_dims == 2 ? t->scales->dims[0] : 0;
    if (n < 1 || t->scales->dims[1] != t->rows || !scale_type(t->scales->type, &t->form.scale) ||
        t->cols > INT32_MAX || t->cols < 1) {
        refuse(q, t, "its scales do not fit its codes", t->scales);
        return;
    }
    size_rows(q, t, n);
    t->form.zeros = true;
    t->form.zero = awq || q->scheme.v2 ? 0 : 1;
    if (t->why) return;
    if (t->zeros->type != DT_I32 || !has_shape(t->zeros, n, divide_up(t->rows * t->bits, 32)))
        refuse(q, t, "its zero points do not fit its scales", t->zeros);
}

/* ---- the list ---- */

/* The scales of a tensor of bytes. */
static const struct source_tensor *find_scales(const struct hfquant *q, struct str base,
                                               const struct source_tensor *t)
{
    static const char *const beside[] = { "_scale_inv", "_scale" };
    static const char *const instead[] = { ".scale", ".qscale_weight" };
    const struct source_tensor *s = NULL;

    for (int i = 0; i < 2 && !s; i++) s = find_beside(q, t->name, beside[i]);
    for (int i = 0; i < 2 && !s && base.n; i++) s = find_beside(q, base, instead[i]);
    return s;
}

/* The layer's name; empty: the tensor's name does not end so. */
static struct str strip(struct str name, struct str suffix)
{
    return str_ends(name, suffix) ? str_take(name, name.n - suffix.n) : str_of(NULL, 0);
}

typedef void make_fn(struct hfquant *q, struct hfquant_tensor *t, struct str base);

/* The scheme whose codes t is; NULL: it is something else. *base: the layer. */
static make_fn *find_make(const struct hfquant *q, struct hfquant_tensor *out, struct str *base)
{
    const struct source_tensor *t = out->codes, *s;

    if ((*base = strip(t->name, STR(".qweight"))).n)
        return t->type == DT_I32 && t->n_dims == 2 ? make_gptq : NULL;
    if ((*base = strip(t->name, STR(".weight_packed"))).n) {
        if (t->type == DT_I32 && t->n_dims == 2) return make_words;
        return t->type == DT_U8 && t->n_dims >= 2 && t->n_dims <= 3 ? make_nibbles : NULL;
    }
    *base = strip(t->name, STR(".weight"));
    if (t->n_dims < 2 || t->n_dims > 3) return NULL;
    if (t->type == DT_F8_E4M3 || t->type == DT_F8_E5M2 || t->type == DT_I8) {
        out->scales = find_scales(q, *base, t);
        return out->scales || base->n ? make_bytes : NULL;
    }
    if (t->type != DT_U8 || !base->n) return NULL;
    if (str_is(q->scheme.method, "bitnet") && t->n_dims == 2) return make_bitnet;
    s = find_beside(q, *base, ".weight_scale");
    return s && s->type == DT_F8_E4M3 ? make_nibbles : NULL;
}

/* The presented tensor: name, shape, bytes of all parts. */
static bool present(struct hfquant *q, struct hfquant_tensor *t, struct str base)
{
    const char *name = base.n ? arena_printf(&q->arena, "%.*s.weight", STR_ARG(base))
                              : arena_cstr(&q->arena, t->codes->name);

    if (!name) return false;
    if (!t->why && (t->cols < 1 || t->cols > INT32_MAX || t->rows < 1 || t->rows > INT32_MAX))
        refuse(q, t, "it is too large", t->codes);
    if (t->form.group < 1) t->form.group = 1;
    if (t->form.factor == 0) t->form.factor = 1;
    t->form.cols = t->cols > 0 && t->cols <= INT32_MAX ? (int)t->cols : 1;
    grouped_measure(&t->form);
    t->method = q->scheme.name;
    t->t = (struct source_tensor){ .name = str_c(name),
                                   .type = DT_GROUPED,
                                   .n_dims = t->codes->n_dims == 3 ? 3 : 2,
                                   .dims = { t->rows, t->cols, 1, 1 },
                                   .data = t->codes->data,
                                   .quant = t };
    if (t->t.n_dims == 3) t->t.dims[0] = t->count, t->t.dims[1] = t->rows, t->t.dims[2] = t->cols;
    for (int i = 0; i < HFQUANT_PARTS; i++)
        if (hfquant_part(t, i)) t->t.bytes += hfquant_part(t, i)->bytes;
    return map_put(&q->by_name, t->t.name, q->n) >= 0;
}

static int list_layers(struct hfquant *q, struct err *e)
{
    size_t n = safetensors_n_tensors(q->src);

    q->list = arena_array(&q->arena, n ? n : 1, sizeof *q->list);
    if (!q->list) return err_nomem(e, "the list of quantized layers");
    for (size_t i = 0; i < n; i++) {
        struct hfquant_tensor *t = &q->list[q->n];
        struct str base;
        make_fn *make;
        *t = (struct hfquant_tensor){ .codes = safetensors_tensor(q->src, i) };
        if (elements(t->codes) < 1 || !(make = find_make(q, t, &base))) continue;
        make(q, t, base);
        if (!present(q, t, base)) return err_nomem(e, "the list of quantized layers");
        q->n++;
    }
    return OK;
}

int hfquant_open(struct hfquant **out, const struct hfconfig *config, const struct safetensors *t,
                 struct err *e)
{
    struct str method;
    struct hfquant *q;
    int rc;

    if (!config || !hfquant_method(config, &method) || !hfquant_knows(method) ||
        str_is(method, "mxfp4"))
        return OK;
    if (!(q = mem_new(struct hfquant))) return err_nomem(e, "the list of quantized layers");
    q->src = t;
    q->scheme.method = method;
    rc = read_scheme(&q->scheme, config, e);
    if (rc == OK) rc = list_layers(q, e);
    if (rc == OK) *out = q;
    else hfquant_close(q);
    return rc;
}

/* ---- GGUF ---- */

/* The scale beside NVFP4 codes: one number, or one for each matrix. */
static void make_nvfp4(struct hfquant *q, struct hfquant_tensor *t, const struct gguf *g)
{
    struct str base = strip(t->codes->name, STR(".weight"));
    char name[256];
    int n = snprintf(name, sizeof name, "%.*s.scale", STR_ARG(base));

    t->store = HFQ_NVFP4;
    t->bits = 4;
    t->form = (struct grouped){ .code = CODE_E2M1, .scale = SCALE_E4M3, .group = 16, .factor = 1 };
    if (base.n && n < (int)sizeof name) t->global = gguf_find(g, str_of(name, (size_t)n));
    if (t->global && (t->global->type != DT_F32 ||
                      (elements(t->global) != 1 && elements(t->global) != t->count)))
        refuse(q, t, "one scale, or one for each matrix, is expected", t->global);
}

static void make_gguf(struct hfquant *q, struct hfquant_tensor *t, const struct gguf *g)
{
    const struct source_tensor *c = t->codes;

    t->rows = c->dims[c->n_dims - 2];
    t->cols = c->dims[c->n_dims - 1];
    t->count = elements(c) / (t->rows * t->cols);
    t->block_rows = 1;
    if (c->type == DT_NVFP4) {
        make_nvfp4(q, t, g);
        return;
    }
    t->store = c->type == DT_Q2_0 ? HFQ_Q2_0 : HFQ_I2_S;
    t->bits = 2;
    t->form = (struct grouped){ .code = CODE_U2,
                                .zero = 1,
                                .scale = c->type == DT_Q2_0 ? SCALE_F16 : SCALE_NONE,
                                .group = c->type == DT_Q2_0 ? 64 : (int)t->cols,
                                .factor = 1 };
}

int hfquant_open_gguf(struct hfquant **out, const struct gguf *g, struct err *e)
{
    struct hfquant *q = NULL;
    size_t n = gguf_n_tensors(g);

    for (size_t i = 0; i < n; i++) {
        const struct source_tensor *c = gguf_tensor(g, i);
        if ((c->type != DT_NVFP4 && c->type != DT_Q2_0 && c->type != DT_I2_S) || c->n_dims < 2)
            continue;
        if (!q && !(q = mem_new(struct hfquant))) goto fail;
        if (!q->list && !(q->list = arena_array(&q->arena, n, sizeof *q->list))) goto fail;
        snprintf(q->scheme.name, sizeof q->scheme.name, "gguf");
        struct hfquant_tensor *t = &q->list[q->n];
        t->codes = c;
        make_gguf(q, t, g);
        if (!present(q, t, str_of(NULL, 0))) goto fail;
        memcpy(t->t.dims, c->dims, sizeof t->t.dims);
        t->t.n_dims = c->n_dims;
        q->n++;
    }
    *out = q;
    return OK;
fail:
    hfquant_close(q);
    return err_nomem(e, "the list of quantized layers");
}

void hfquant_close(struct hfquant *q)
{
    if (!q) return;
    map_release(&q->by_name);
    arena_release(&q->arena);
    mem_free(q);
}

/* ---- using ---- */

const struct source_tensor *hfquant_find(const struct hfquant *q, struct str name)
{
    uint64_t i;

    return q && map_get(&q->by_name, name, &i) ? &q->list[i].t : NULL;
}

size_t hfquant_n_tensors(const struct hfquant *q) { return q ? q->n : 0; }

const struct source_tensor *hfquant_tensor(const struct hfquant *q, size_t i)
{
    return &q->list[i].t;
}

const struct source_tensor *hfquant_part(const struct hfquant_tensor *t, int i)
{
    const struct source_tensor *parts[HFQUANT_PARTS] = { t->codes, t->scales, t->zeros, t->g_idx,
                                                         t->global == t->scales ? NULL
                                                                                : t->global };

    return parts[i];
}

const struct grouped *hfquant_layout(const struct hfquant_tensor *t) { return &t->form; }

int hfquant_check(const struct hfquant_tensor *t, const char *path, struct err *e)
{
    if (!t->why) return OK;
    return err_set(e, t->refused ? E_UNSUPPORTED : E_FORMAT,
                   "%s: the quantized layer %.*s (%s): %s", path, STR_ARG(str_take(t->t.name, 160)),
                   t->method, t->why);
}

void hfquant_describe(const struct hfquant_tensor *t, char *out, size_t cap)
{
    static const char *const scales[] = { "one scale", "F32", "F16", "BF16", "E8M0", "E4M3" };
    const struct grouped *g = &t->form;
    const char *kind = g->code == CODE_E4M3   ? "E4M3"
                       : g->code == CODE_E5M2 ? "E5M2"
                       : g->code == CODE_E2M1 ? "E2M1"
                                              : "int";
    int n = snprintf(out, cap, "%s: %s", t->method, kind);

    if (n < (int)cap && g->code <= CODE_U8) n += snprintf(out + n, cap - (size_t)n, "%d", t->bits);
    if (n < (int)cap && g->scale == SCALE_NONE)
        n += snprintf(out + n, cap - (size_t)n, ", one scale");
    else if (n < (int)cap && t->block_rows > 1)
        n += snprintf(out + n, cap - (size_t)n, ", %s scales of blocks of %lld x %d",
                      scales[g->scale], (long long)t->block_rows, g->group);
    else if (n < (int)cap && g->n_groups == 1)
        n += snprintf(out + n, cap - (size_t)n, ", %s scales of rows", scales[g->scale]);
    else if (n < (int)cap)
        n += snprintf(out + n, cap - (size_t)n, ", %s scales of groups of %d", scales[g->scale],
                      g->group);
    if (n < (int)cap && t->zeros) n += snprintf(out + n, cap - (size_t)n, ", zero points");
    if (n < (int)cap && t->g_idx) snprintf(out + n, cap - (size_t)n, ", g_idx");
}
