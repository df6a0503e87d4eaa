/* vechead.c - finds the tensors of a head by their names, and applies them. */
#include "model/vechead.h"

#include "base/file.h"
#include "base/mem.h"
#include "kernel/quant.h"

#include <math.h>
#include <stdio.h>

/* ---- reading ---- */

/* A tensor as F32 numbers in the arena; *out stays NULL if it is missing. */
static int read_floats(const float **out, struct arena *a, const struct source *src,
                       const char *name, int64_t rows, int64_t cols, struct err *e)
{
    const struct source_tensor *t = source_find(src, name);
    uint64_t row_bytes;
    int64_t n = 1;
    float *f;

    if (!t) return OK;
    for (int i = 0; i < t->n_dims; i++) n *= t->dims[i];
    if (n != rows * cols || (cols > 1 && (t->n_dims != 2 || t->dims[1] != cols)))
        return err_set(e, E_FORMAT, "%s: tensor %s has %lld numbers, expected [%lld, %lld]",
                       source_path(src), name, (long long)n, (long long)rows, (long long)cols);
    if (t->quant || !quant_can_decode(t->type) ||
        !dtype_row_bytes(t->type, (uint64_t)cols, &row_bytes))
        return err_set(e, E_UNSUPPORTED, "%s: tensor %s is %s, expected F32, F16 or BF16",
                       source_path(src), name, dtype_name((int)t->type));
    if (!(f = arena_array(a, (size_t)n, sizeof *f))) return err_nomem(e, "the head of a model");
    for (int64_t r = 0; r < rows; r++)
        quant_decode(t->type, (const char *)t->data + (uint64_t)r * row_bytes, f + r * cols, cols);
    *out = f;
    return OK;
}

/* The layer whose matrix is NAME.weight; its bias is optional. */
static int read_layer(struct vec_head *h, struct arena *a, const struct source *src,
                      const char *name, int in, enum vec_act act, struct err *e)
{
    char full[128];
    struct vec_layer *y = &h->layers[h->n];
    const struct source_tensor *t;
    int rc;

    snprintf(full, sizeof full, "%s.weight", name);
    t = source_find(src, full);
    if (!t) return err_set(e, E_NOTFOUND, "%s: tensor %s is missing", source_path(src), full);
    if (t->n_dims != 2 || t->dims[0] < 1 || t->dims[0] > 1 << 20 || h->n == VEC_LAYERS)
        return err_set(e, E_FORMAT, "%s: tensor %s is no matrix of a head", source_path(src), full);
    *y = (struct vec_layer){ .in = in, .out = (int)t->dims[0], .act = act, .eps = 1e-5 };
    if ((rc = read_floats(&y->w, a, src, full, y->out, in, e)) != OK) return rc;
    snprintf(full, sizeof full, "%s.bias", name);
    if ((rc = read_floats(&y->b, a, src, full, y->out, 1, e)) != OK) return rc;
    h->n++;
    return OK;
}

/* "bert.NAME": a key of a GGUF file, with its architecture in front. */
struct arch_key {
    char text[160];
};

static struct arch_key arch_key(const struct source *src, const char *name)
{
    struct str arch = STR("");
    struct arch_key k;

    source_str(src, "general.architecture", &arch);
    snprintf(k.text, sizeof k.text, "%.*s.%s", STR_ARG(str_take(arch, 64)), name);
    return k;
}

/* Names of transformers and of torch. */
static bool act_of(struct str name, enum vec_act *out)
{
    static const struct {
        const char *name;
        enum vec_act act;
    } all[] = { { "Identity", VEC_ACT_NONE }, { "Tanh", VEC_ACT_TANH }, { "tanh", VEC_ACT_TANH },
                { "GELU", VEC_ACT_GELU },     { "gelu", VEC_ACT_GELU }, { "SiLU", VEC_ACT_SILU },
                { "silu", VEC_ACT_SILU },     { "ReLU", VEC_ACT_RELU }, { "relu", VEC_ACT_RELU } };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (str_is(name, all[i].name)) return *out = all[i].act, true;
    return false;
}

const char *vec_act_name(enum vec_act act)
{
    static const char *const names[] = { "Identity", "tanh", "gelu", "silu", "relu" };

    return names[act];
}

/* The label of class i, of a folder or of a GGUF file. */
static bool find_label(const struct source *src, int i, struct str *out)
{
    struct value list, item;
    char key[64];

    if (source_kind(src) == SOURCE_HF) {
        snprintf(key, sizeof key, "id2label.%d", i);
        return source_str(src, key, out);
    }
    if (!source_key(src, arch_key(src, "classifier.output_labels").text, &list) ||
        !value_at(&list, (size_t)i, &item) || item.kind != VALUE_STR)
        return false;
    *out = item.s;
    return true;
}

/* As the model names its classes, else "LABEL_0", ... */
static int read_labels(struct vec_head *h, struct arena *a, const struct source *src, struct err *e)
{
    struct str *labels = arena_array(a, (size_t)vechead_out(h), sizeof *labels);

    if (!labels) return err_nomem(e, "the labels of a classifier");
    for (int i = 0; i < vechead_out(h); i++) {
        char key[64], *text;
        if (find_label(src, i, &labels[i])) continue;
        snprintf(key, sizeof key, "LABEL_%d", i);
        if (!(text = arena_alloc(a, strlen(key) + 1))) return err_nomem(e, "a label");
        memcpy(text, key, strlen(key) + 1);
        labels[i] = str_c(text);
    }
    h->labels = labels;
    h->n_labels = vechead_out(h);
    return OK;
}

/* The first name of a list whose matrix the folder has; NULL: none of them. */
static const char *first_of(const struct source *src, const char *const *names)
{
    char full[128];

    for (; *names; names++) {
        snprintf(full, sizeof full, "%s.weight", *names);
        if (source_find(src, full)) return *names;
    }
    return NULL;
}

/* ModernBERT: dense, activation, norm, classifier; pooled as a key says. */
static int read_modern_head(struct vec_head *h, struct arena *a, const struct source *src,
                            int width, struct err *e)
{
    enum vec_act act = VEC_ACT_GELU;
    struct str s;
    int rc;

    if (source_str(src, "classifier_activation", &s) && !act_of(s, &act))
        return err_set(e, E_UNSUPPORTED, "%s: config.json: classifier_activation \"%.*s\"",
                       source_path(src), STR_ARG(str_take(s, 32)));
    h->mean = source_str(src, "classifier_pooling", &s) && str_is(s, "mean");
    h->cls = !h->mean;
    if ((rc = read_layer(h, a, src, "head.dense", width, act, e)) != OK) return rc;
    source_f64(src, "norm_eps", &h->layers[0].eps);
    if ((rc = read_floats(&h->layers[0].norm, a, src, "head.norm.weight", h->layers[0].out, 1,
                          e)) != OK)
        return rc;
    return read_floats(&h->layers[0].norm_b, a, src, "head.norm.bias", h->layers[0].out, 1, e);
}

/* A classifier, by its tensors: RoBERTa's head of two layers, BERT's pooler, ModernBERT's head, or
 * a matrix alone on the last token (decoders). */
static int read_classifier(struct vec_head *h, struct arena *a, const struct source *src, int width,
                           struct err *e)
{
    static const char *const poolers[] = { "bert.pooler.dense", "pooler.dense", NULL },
                             *const last[] = { "classifier.out_proj", "classifier", "score", NULL };
    const char *name = first_of(src, last), *pool = first_of(src, poolers);
    int rc = OK;

    if (!name)
        return err_set(e, E_NOTFOUND,
                       "%s: a classifier without the tensor classifier.weight or score.weight",
                       source_path(src));
    if (source_find(src, "head.dense.weight")) rc = read_modern_head(h, a, src, width, e);
    else if (source_find(src, "classifier.dense.weight"))
        rc = read_layer(h, a, src, "classifier.dense", width, VEC_ACT_TANH, e), h->cls = true;
    else if (pool) rc = read_layer(h, a, src, pool, width, VEC_ACT_TANH, e), h->cls = true;
    if (rc == OK) rc = read_layer(h, a, src, name, h->n ? vechead_out(h) : width, VEC_ACT_NONE, e);
    h->classifies = true;
    return rc == OK ? read_labels(h, a, src, e) : rc;
}

/* ---- GGUF ---- */

/* The rule of llama.cpp, or tern's own keys: the pooling and the activation of the layer
 * "cls". */
static int read_gguf_rule(struct vec_head *h, const struct source *src, enum vec_act *act,
                          struct err *e)
{
    struct arch_key key = arch_key(src, "classifier.activation");
    bool modern = str_starts(str_c(key.text), STR("modern-bert."));
    struct str s;

    *act = modern ? VEC_ACT_GELU : VEC_ACT_TANH;
    h->mean = modern;
    if (source_str(src, arch_key(src, "classifier.pooling").text, &s)) h->mean = str_is(s, "mean");
    if (source_str(src, key.text, &s) && !act_of(s, act))
        return err_set(e, E_UNSUPPORTED, "%s: the key %s is \"%.*s\"", source_path(src), key.text,
                       STR_ARG(str_take(s, 32)));
    return OK;
}

/* The dense layer in front of the last one; a norm may follow it. */
static int read_gguf_dense(struct vec_head *h, struct arena *a, const struct source *src, int width,
                           enum vec_act act, struct err *e)
{
    struct vec_layer *y = &h->layers[0];
    int rc = read_layer(h, a, src, "cls", width, act, e);

    if (rc != OK) return rc;
    source_f64(src, arch_key(src, "attention.layer_norm_epsilon").text, &y->eps);
    if ((rc = read_floats(&y->norm, a, src, "cls.norm.weight", y->out, 1, e)) != OK) return rc;
    return read_floats(&y->norm_b, a, src, "cls.norm.bias", y->out, 1, e);
}

/* pooling_type 4: cls.weight and cls.output.weight, or one of them. The pooling of a causal model
 * stays its own: the last token. */
static int read_gguf_head(struct vec_head *h, struct arena *a, const struct source *src, int width,
                          struct err *e)
{
    bool causal = true, dense = source_find(src, "cls.weight"),
         last = source_find(src, "cls.output.weight");
    enum vec_act act;
    int rc;

    if (!dense && !last)
        return err_set(e, E_NOTFOUND,
                       "%s: the key %s is 4 (rank), but the tensors cls.output.weight and "
                       "cls.weight are missing",
                       source_path(src), arch_key(src, "pooling_type").text);
    source_bool(src, arch_key(src, "attention.causal").text, &causal);
    if ((rc = read_gguf_rule(h, src, &act, e)) != OK) return rc;
    h->mean = h->mean && !causal;
    h->cls = !h->mean && !causal;
    if (dense) rc = read_gguf_dense(h, a, src, width, last ? act : VEC_ACT_NONE, e);
    if (rc == OK && last)
        rc = read_layer(h, a, src, "cls.output", dense ? vechead_out(h) : width, VEC_ACT_NONE, e);
    h->classifies = true;
    return rc == OK ? read_labels(h, a, src, e) : rc;
}

static bool is_gguf_ranker(const struct source *src)
{
    int64_t type;

    return source_i64(src, arch_key(src, "pooling_type").text, &type) && type == 4;
}

/* ---- sentence-transformers ---- */

/* One Dense module of sentence-transformers: a folder with config.json and a matrix. */
static int read_dense(struct vec_head *h, struct arena *a, const struct source *src,
                      struct str path, int width, struct err *e)
{
    char sub[128], *full;
    struct source *dense = NULL;
    enum vec_act act = VEC_ACT_TANH;
    struct str name;
    int rc;

    snprintf(sub, sizeof sub, "%.*s", STR_ARG(str_take(path, 100)));
    if (strchr(sub, '/') || strstr(sub, ".."))
        return err_set(e, E_FORMAT, "%s: modules.json: the path \"%s\" is not a name",
                       source_path(src), sub);
    full = path_join(source_path(src), sub);
    rc = full ? source_open(&dense, full, e) : err_nomem(e, "the path of a dense layer");
    mem_free(full);
    if (rc != OK) return rc;
    if (source_str(dense, "activation_function", &name)) {
        size_t dot = name.n;
        while (dot > 0 && name.p[dot - 1] != '.') dot--;
        if (!act_of(str_skip(name, dot), &act))
            rc = err_set(e, E_UNSUPPORTED, "%s: config.json: activation_function \"%.*s\"",
                         source_path(dense), STR_ARG(str_take(name, 64)));
    }
    if (rc == OK) rc = read_layer(h, a, dense, "linear", width, act, e);
    source_close(dense);
    return rc;
}

bool vechead_is_classifier(const struct source *src)
{
    struct str s;

    if (source_kind(src) == SOURCE_GGUF) return is_gguf_ranker(src);
    return source_str(src, "architectures.0", &s) && str_ends(s, STR("ForSequenceClassification"));
}

bool vechead_has(const struct source *src, struct str tensor)
{
    static const char *const parts[] = { "classifier.",        "score.",
                                         "head.dense.",        "head.norm.",
                                         "bert.pooler.dense.", "pooler.dense." };

    for (size_t i = 0; i < sizeof parts / sizeof *parts && vechead_is_classifier(src); i++)
        if (str_starts(tensor, str_c(parts[i]))) return true;
    return false;
}

/* EmbeddingGemma in GGUF files: matrices without an activation. */
static int read_sentence_dense(struct vec_head *h, struct arena *a, const struct source *src,
                               int width, struct err *e)
{
    static const char *const names[] = { "dense_2", "dense_3" };
    char full[64];
    int rc = OK;

    for (size_t i = 0; i < sizeof names / sizeof *names && rc == OK; i++) {
        snprintf(full, sizeof full, "%s.weight", names[i]);
        if (source_find(src, full))
            rc = read_layer(h, a, src, names[i], h->n ? vechead_out(h) : width, VEC_ACT_NONE, e);
    }
    return rc;
}

int vechead_read(const struct vec_head **out, struct arena *a, const struct source *src, int width,
                 struct err *e)
{
    struct vec_head *h;
    struct str s;
    char key[64];
    int rc = OK;

    *out = NULL;
    if (!(h = arena_new(a, struct vec_head))) return err_nomem(e, "the head of a model");
    if (source_kind(src) == SOURCE_GGUF && !is_gguf_ranker(src)) {
        if ((rc = read_sentence_dense(h, a, src, width, e)) == OK && h->n) *out = h;
        return rc;
    }
    if (source_kind(src) == SOURCE_GGUF || vechead_is_classifier(src)) {
        rc = source_kind(src) == SOURCE_GGUF ? read_gguf_head(h, a, src, width, e)
                                             : read_classifier(h, a, src, width, e);
        if (rc == OK) *out = h;
        return rc;
    }
    for (int i = 0; i < 16 && rc == OK; i++) {
        struct str path;
        snprintf(key, sizeof key, "modules:%d.type", i);
        if (!source_str(src, key, &s)) break;
        if (!str_ends(s, STR(".Dense"))) continue;
        snprintf(key, sizeof key, "modules:%d.path", i);
        if (source_str(src, key, &path))
            rc = read_dense(h, a, src, path, h->n ? vechead_out(h) : width, e);
    }
    if (rc == OK && h->n) *out = h;
    return rc;
}

/* ---- running ---- */

int vechead_out(const struct vec_head *h) { return h->layers[h->n - 1].out; }

int vechead_wide(const struct vec_head *h)
{
    int n = h->layers[0].in;

    for (int i = 0; i < h->n; i++) n = h->layers[i].out > n ? h->layers[i].out : n;
    return n;
}

static double apply_act(enum vec_act act, double x)
{
    switch (act) {
    case VEC_ACT_TANH: return tanh(x);
    case VEC_ACT_GELU: return 0.5 * x * erfc(-x * sqrt(0.5));
    case VEC_ACT_SILU: return x / (1 + exp(-x));
    case VEC_ACT_RELU: return x > 0 ? x : 0;
    case VEC_ACT_NONE: break;
    }
    return x;
}

static void apply_norm(const struct vec_layer *y, double *x)
{
    double mean = 0, var = 0;

    for (int i = 0; i < y->out; i++) mean += x[i] / y->out;
    for (int i = 0; i < y->out; i++) var += (x[i] - mean) * (x[i] - mean) / y->out;
    for (int i = 0; i < y->out; i++)
        x[i] = (x[i] - mean) / sqrt(var + y->eps) * (double)y->norm[i] +
               (y->norm_b ? (double)y->norm_b[i] : 0);
}

void vechead_run(const struct vec_head *h, double *x, double *tmp)
{
    for (int k = 0; k < h->n; k++) {
        const struct vec_layer *y = &h->layers[k];
        for (int o = 0; o < y->out; o++) {
            const float *w = y->w + (size_t)o * (size_t)y->in;
            double sum = y->b ? (double)y->b[o] : 0;
            for (int i = 0; i < y->in; i++) sum += (double)w[i] * x[i];
            tmp[o] = apply_act(y->act, sum);
        }
        if (y->norm) apply_norm(y, tmp);
        memcpy(x, tmp, (size_t)y->out * sizeof *x);
    }
}
