/* card.c - reading the card of a model: inputs, vocabulary, task, output, then what the task needs.
 *
 * Keys of the source are config.json's; a prefix names another file: "tern:" tern.json, "modules:"
 * modules.json, "pooling:" 1_Pooling/config.json, "tokenizer_config:" that file.
 *
 *     question      tern.json     else
 *     task          task          architectures.0 (classify), sentence-transformers files (embed)
 *     output        output        the only one, or by name: logits, sentence_embedding,
 *                                 last_hidden_state, token_embeddings
 *     pooling       pooling       none for an output [text][width], else 1_Pooling/config.json
 *     labels        labels        id2label, num_labels
 *     activation    activation    problem_type, the activation of a cross-encoder, number of labels
 *     longest text  max_tokens    max_position_embeddings, model_max_length, 512
 *     vocabulary    -             rows of the embedding table, vocab_size */
#include "onnx/card.h"

#include "base/buf.h"

#include <stdio.h>

enum { DEFAULT_CTX = 512, MAX_CTX = 1 << 20, MAX_LABELS = 1 << 16, MAX_WIDTH = 1 << 20 };

static const char example[] =
    "describe the model in a file tern.json beside it, like {\"task\": \"embed\", \"output\": "
    "\"last_hidden_state\", \"pooling\": \"mean\"} or {\"task\": \"classify\", \"output\": "
    "\"logits\"}";

static const char *const tasks[] = { "embed", "classify" };
static const char *const pools[] = { "none", "mean", "cls", "last" };
static const char *const scores[] = { "softmax", "sigmoid", "none" };

const char *card_task_name(enum card_task t) { return tasks[t]; }
const char *card_pool_name(enum card_pool p) { return pools[p]; }
const char *card_score_name(enum card_score s) { return scores[s]; }

/* What the functions below read from and fill. */
struct reader {
    const struct source *src;
    const struct onnx *m;
    struct card *c;
    struct arena *a;
    struct err *e;
};

/* The model cannot be used as it is: says why and how to describe it. */
static int fail_unclear(const struct reader *r, const char *why)
{
    return err_set(r->e, E_INVALID, "%s: %s: %s", r->m->path, why, example);
}

/* A key of tern.json whose value is one of n names: *out is its index, -1: the key is absent. */
static int read_choice(const struct reader *r, const char *key, const char *const *names, int n,
                       int *out)
{
    struct value v;
    char full[64];

    *out = -1;
    snprintf(full, sizeof full, "tern:%s", key);
    if (!source_key(r->src, full, &v)) return OK;
    for (int i = 0; i < n && v.kind == VALUE_STR; i++)
        if (str_is(v.s, names[i])) *out = i;
    if (*out >= 0) return OK;
    return err_set(r->e, E_INVALID, "%s: tern.json: %s must be one of %s, %s%s%s%s%s",
                   source_path(r->src), key, names[0], names[1], n > 2 ? ", " : "",
                   n > 2 ? names[2] : "", n > 3 ? ", " : "", n > 3 ? names[3] : "");
}

/* ---- inputs ---- */

/* Ids, types and positions are integers; a mask may also be float or bool. */
static bool is_input_type(enum card_input k, enum onnx_type t)
{
    return t == ONNX_I64 || (k == CARD_MASK && (t == ONNX_F32 || t == ONNX_BOOL));
}

/* Maps the inputs of the graph to those that tern can fill. An input of another name cannot be
 * filled, so the model is refused. */
static int read_inputs(const struct reader *r)
{
    static const char *const names[CARD_INPUTS] = { "input_ids", "attention_mask", "token_type_ids",
                                                    "position_ids" };
    const struct onnx_graph *g = &r->m->graph;

    for (int k = 0; k < CARD_INPUTS; k++) r->c->inputs[k] = -1;
    r->c->fixed_batch = r->c->fixed_len = -1;
    for (int i = 0; i < g->n_inputs; i++) {
        const struct onnx_io *io = &g->inputs[i];
        struct str name = r->m->values[io->value].name;
        int k = 0;
        while (k < CARD_INPUTS && !str_is(name, names[k])) k++;
        if (k == CARD_INPUTS)
            return err_set(r->e, E_UNSUPPORTED,
                           "%s: the graph needs an input '%.*s'; supported are input_ids, "
                           "attention_mask, token_type_ids and position_ids",
                           r->m->path, STR_ARG(str_take(name, 80)));
        if (!is_input_type((enum card_input)k, io->type) || io->n_dims != 2)
            return err_set(r->e, E_UNSUPPORTED,
                           "%s: the input %s must be a two-dimensional tensor of integers",
                           r->m->path, names[k]);
        r->c->inputs[k] = i;
        /* Dimensions with a number are fixed; names mean any size. */
        if (io->dims[0] > 0) r->c->fixed_batch = io->dims[0];
        if (io->dims[1] > 0) r->c->fixed_len = io->dims[1];
    }
    if (r->c->inputs[CARD_IDS] < 0)
        return err_set(r->e, E_UNSUPPORTED, "%s: the graph has no input 'input_ids'", r->m->path);
    if (r->c->fixed_len > 0 && r->c->inputs[CARD_MASK] < 0)
        return err_set(
            r->e, E_UNSUPPORTED,
            "%s: the graph is for texts of exactly %lld tokens and has no attention_mask, so "
            "shorter texts cannot be padded",
            r->m->path, (long long)r->c->fixed_len);
    return OK;
}

/* The size of the vocabulary: the rows of the embedding table that input_ids index. Only where the
 * graph does not show it, config.json counts: it may be larger or smaller than the table. */
static int find_vocab(const struct reader *r)
{
    int ids = r->m->graph.inputs[r->c->inputs[CARD_IDS]].value;
    int64_t n = 0;

    for (int i = 0; i < r->m->graph.n_nodes; i++) {
        const struct onnx_node *x = &r->m->graph.nodes[i];
        const struct onnx_value *t = x->n_in > 0 && x->in[0] >= 0 ? &r->m->values[x->in[0]] : NULL;
        if (!str_is(x->op, "Gather") || x->n_in != 2 || x->in[1] != ids || !t || !t->is_const ||
            t->t.n_dims != 2)
            continue;
        /* Of several tables the smallest: ids must be valid for all. */
        if (n == 0 || t->t.dims[0] < n) n = t->t.dims[0];
    }
    if (n == 0) source_i64(r->src, "vocab_size", &n);
    if (n < 1 || n > 1 << 24)
        return err_set(r->e, E_FORMAT,
                       "%s: neither the graph nor config.json states the size of the vocabulary",
                       r->m->path);
    r->c->n_vocab = (int)n;
    return OK;
}

/* ---- the task ---- */

/* The index of the output of that name; false: there is none. */
static bool find_output(const struct reader *r, const char *name, int *out)
{
    const struct onnx_graph *g = &r->m->graph;

    for (int i = 0; i < g->n_outputs; i++)
        if (str_is(r->m->values[g->outputs[i].value].name, name)) return *out = i, true;
    return false;
}

/* transformers names its classifiers *ForSequenceClassification. */
static bool is_classifier(const struct reader *r)
{
    struct str arch;
    return source_str(r->src, "architectures.0", &arch) &&
           str_ends(arch, STR("ForSequenceClassification"));
}

/* sentence-transformers leaves modules.json and a pooling config; its exports have an output
 * sentence_embedding. */
static bool is_sentence_encoder(const struct reader *r)
{
    struct value v;
    int at;

    return source_key(r->src, "modules:0.type", &v) ||
           source_key(r->src, "pooling:word_embedding_dimension", &v) ||
           source_key(r->src, "pooling:pooling_mode_mean_tokens", &v) ||
           find_output(r, "sentence_embedding", &at);
}

/* The architecture of config.json says that a model classifies, files and outputs of
 * sentence-transformers that it embeds. Exactly one of them must be the case. */
static int read_task(const struct reader *r)
{
    struct str arch = STR("no architecture");
    char why[300];
    int task, at, rc = read_choice(r, "task", tasks, 2, &task);
    bool classifies, embeds;

    if (rc != OK) return rc;
    if (task >= 0) {
        r->c->task = (enum card_task)task;
        return OK;
    }
    classifies = is_classifier(r);
    embeds = is_sentence_encoder(r);
    source_str(r->src, "architectures.0", &arch);
    if (classifies == embeds) {
        snprintf(why, sizeof why,
                 classifies ? "config.json (%.*s) says that the model classifies, but files or "
                              "outputs of sentence-transformers say that it embeds"
                            : "neither config.json (%.*s) nor modules.json says whether the model "
                              "embeds or classifies",
                 STR_ARG(str_take(arch, 80)));
        return fail_unclear(r, why);
    }
    r->c->task = classifies ? CARD_CLASSIFY : CARD_EMBED;
    if (classifies && !find_output(r, "logits", &at) && r->m->graph.n_outputs > 1)
        return fail_unclear(r, "the model classifies, but no output is named logits");
    return OK;
}

/* ---- the output ---- */

/* The wanted output is missing: the message lists those of the graph. */
static int fail_output(const struct reader *r, const char *what, struct str name)
{
    struct buf names = { 0 };
    const struct onnx_graph *g = &r->m->graph;
    int rc;

    for (int i = 0; i < g->n_outputs && i < 16; i++)
        buf_printf(&names, "%s%.*s", i ? ", " : "",
                   STR_ARG(str_take(r->m->values[g->outputs[i].value].name, 60)));
    rc =
        err_set(r->e, E_INVALID,
                "%s: %s%.*s; the graph's outputs are %.150s: name one in tern.json, like "
                "{\"task\": \"%s\", \"output\": \"NAME\"}",
                r->m->path, what, STR_ARG(str_take(name, 60)), buf_cstr(&names), tasks[r->c->task]);
    buf_release(&names);
    return rc;
}

/* tern.json names the output, or there is only one, or the names that exporters use decide. */
static int read_output(const struct reader *r, int pool)
{
    static const char *const per_token[] = { "last_hidden_state", "token_embeddings", NULL };
    struct str name;
    int *out = &r->c->output;

    if (source_str(r->src, "tern:output", &name)) {
        for (int i = 0; i < r->m->graph.n_outputs; i++)
            if (str_eq(r->m->values[r->m->graph.outputs[i].value].name, name)) return *out = i, OK;
        return fail_output(r, "tern.json names an output that the graph does not have: ", name);
    }
    if (r->m->graph.n_outputs == 1) return *out = 0, OK;
    if (r->c->task == CARD_CLASSIFY)
        return find_output(r, "logits", out) ? OK
                                             : fail_output(r, "no output is named logits", STR(""));
    if (pool <= CARD_NONE && find_output(r, "sentence_embedding", out)) return OK;
    for (int i = 0; per_token[i]; i++)
        if (pool != CARD_NONE && find_output(r, per_token[i], out)) return OK;
    return fail_output(r, "no output has a known name", STR(""));
}

/* ---- embeddings ---- */

/* The pooling of 1_Pooling/config.json; -1: none, -2: several. Old files have a flag for each mode,
 * new ones a name. */
static int read_pooling_file(const struct reader *r)
{
    static const struct {
        const char *key, *mode;
        enum card_pool pool;
    } modes[] = { { "pooling:pooling_mode_mean_tokens", "mean", CARD_MEAN },
                  { "pooling:pooling_mode_cls_token", "cls", CARD_CLS },
                  { "pooling:pooling_mode_lasttoken", "lasttoken", CARD_LAST } };
    struct str mode = { 0 };
    bool on;
    int found = -1;

    source_str(r->src, "pooling:pooling_mode", &mode);
    for (int i = 0; i < 3; i++)
        if ((source_bool(r->src, modes[i].key, &on) && on) ||
            (mode.p && str_is(mode, modes[i].mode)))
            found = found < 0 ? (int)modes[i].pool : -2;
    return found;
}

/* Layers of sentence-transformers behind the graph, such as Dense, are not part of an export of
 * token embeddings. Running without them would give wrong vectors. */
static int check_modules(const struct reader *r)
{
    char key[64];
    struct str type;

    for (int i = 0; i < 16; i++) {
        snprintf(key, sizeof key, "modules:%d.type", i);
        if (!source_str(r->src, key, &type)) break;
        if (str_ends(type, STR(".Transformer")) || str_ends(type, STR(".Pooling")) ||
            str_ends(type, STR(".Normalize")))
            continue;
        return err_set(
            r->e, E_UNSUPPORTED,
            "%s: modules.json has a layer %.*s behind the graph, which tern does not run: "
            "export the whole model with an output sentence_embedding, or write "
            "{\"task\": \"embed\", ...} into tern.json to leave the layer out",
            r->m->path, STR_ARG(str_take(type, 80)));
    }
    return OK;
}

static int read_normalize(const struct reader *r)
{
    struct value v;

    r->c->normalize = true;
    if (!source_key(r->src, "tern:normalize", &v)) return OK;
    if (v.kind != VALUE_BOOL)
        return err_set(r->e, E_INVALID, "%s: tern.json: normalize must be true or false",
                       source_path(r->src));
    r->c->normalize = v.b;
    return OK;
}

/* The pooling: of tern.json (pool), none for an output with a row per text, else of the files. */
static int read_pooling(const struct reader *r, int pool)
{
    const struct onnx_io *io = &r->m->graph.outputs[r->c->output];
    bool by_name = str_is(r->m->values[io->value].name, "sentence_embedding");
    struct value v;
    int rc;

    if (pool < 0 && (io->n_dims == 2 || (io->n_dims < 0 && by_name))) pool = CARD_NONE;
    if (pool < 0) {
        if ((rc = source_key(r->src, "tern:task", &v) ? OK : check_modules(r)) != OK) return rc;
        pool = read_pooling_file(r);
    }
    if (pool < 0)
        return fail_unclear(
            r, pool == -2 ? "1_Pooling/config.json asks for several poolings"
                          : "no file says how token embeddings become one vector (pooling)");
    if (io->n_dims >= 0 && io->n_dims != (pool == CARD_NONE ? 2 : 3))
        return err_set(r->e, E_INVALID,
                       "%s: the output has %d dimensions, but pooling '%s' needs %d", r->m->path,
                       io->n_dims, pools[pool], pool == CARD_NONE ? 2 : 3);
    r->c->pool = (enum card_pool)pool;
    return OK;
}

/* The width is that of the output; graphs with dynamic shapes leave it to config.json. */
static int read_embed(const struct reader *r, int pool)
{
    const struct onnx_io *io = &r->m->graph.outputs[r->c->output];
    int64_t width = io->n_dims > 0 ? io->dims[io->n_dims - 1] : -1;
    int rc;

    if ((rc = read_normalize(r)) != OK || (rc = read_pooling(r, pool)) != OK) return rc;
    if (width <= 0 && !source_i64(r->src, "hidden_size", &width) &&
        !source_i64(r->src, "d_model", &width))
        source_i64(r->src, "dim", &width);
    if (width < 1 || width > MAX_WIDTH)
        return err_set(r->e, E_FORMAT,
                       "%s: neither the graph nor config.json states the size of an embedding",
                       r->m->path);
    r->c->width = (int)width;
    return OK;
}

/* ---- labels ---- */

/* Labels are numbered from 0; the first missing number ends them. */
static int64_t count_labels(const struct reader *r, const char *fmt)
{
    char key[64];
    struct value v;
    int64_t n = 0;

    for (; n < MAX_LABELS; n++) {
        snprintf(key, sizeof key, fmt, (int)n);
        if (!source_key(r->src, key, &v)) break;
    }
    return n;
}

/* Labels without a name are LABEL_0, LABEL_1, ..., as in transformers. */
static int read_labels(const struct reader *r, const char *fmt)
{
    char key[64];

    if (!(r->c->labels = arena_array(r->a, (size_t)r->c->width, sizeof *r->c->labels)))
        return err_nomem(r->e, "the labels of a model");
    for (int i = 0; i < r->c->width; i++) {
        snprintf(key, sizeof key, fmt, i);
        if (source_str(r->src, key, &r->c->labels[i]))
            r->c->labels[i] = arena_str(r->a, r->c->labels[i]);
        else r->c->labels[i] = str_c(arena_printf(r->a, "LABEL_%d", i));
    }
    return arena_check(r->a, r->e);
}

/* How logits become scores: tern.json, the problem_type of transformers, the activation of
 * cross-encoders, else a sigmoid for one label and a softmax for several. */
static int read_score(const struct reader *r)
{
    static const char *const kinds[] = { "single_label_classification",
                                         "multi_label_classification", "regression" };
    static const char *const keys[] = { "sentence_transformers.activation_fn",
                                        "sbert_ce_default_activation_function" };
    struct str s;
    int score, rc = read_choice(r, "activation", scores, 3, &score);

    if (rc != OK) return rc;
    if (score < 0 && source_str(r->src, "problem_type", &s))
        for (int i = 0; i < 3; i++)
            if (str_is(s, kinds[i])) score = i;
    for (int i = 0; i < 2 && score < 0; i++)
        if (source_str(r->src, keys[i], &s))
            score = str_ends(s, STR("Identity"))  ? CARD_RAW
                    : str_ends(s, STR("Sigmoid")) ? CARD_SIGMOID
                                                  : -1;
    if (score < 0) score = r->c->width == 1 ? CARD_SIGMOID : CARD_SOFTMAX;
    r->c->score = (enum card_score)score;
    return OK;
}

/* Labels of tern.json, else id2label, else num_labels without names. Their number must match the
 * output. */
static int read_classify(const struct reader *r, int pool)
{
    const struct onnx_io *io = &r->m->graph.outputs[r->c->output];
    int64_t width = io->n_dims == 2 ? io->dims[1] : -1, n = count_labels(r, "tern:labels.%d");
    const char *from = n ? "tern:labels.%d" : "id2label.%d";
    int rc;

    if (pool > CARD_NONE)
        return err_set(r->e, E_INVALID, "%s: tern.json: pooling is only for the task embed",
                       source_path(r->src));
    if (io->n_dims >= 0 && io->n_dims != 2)
        return err_set(r->e, E_INVALID,
                       "%s: the output has %d dimensions, but a classifier of texts has 2; "
                       "classifiers of tokens are not supported",
                       r->m->path, io->n_dims);
    if (!n && !(n = count_labels(r, from))) source_i64(r->src, "num_labels", &n);
    if (width <= 0) width = n;
    if (width < 1 || width > MAX_LABELS || (n > 0 && n != width)) {
        char why[160];
        snprintf(why, sizeof why, "there are %lld labels for %lld outputs", (long long)n,
                 (long long)width);
        return fail_unclear(r, why);
    }
    r->c->width = (int)width;
    if ((rc = read_labels(r, from)) != OK) return rc;
    return read_score(r);
}

/* ---- lengths ---- */

/* The longest text: tern.json, else the smaller of the model's positions and the tokenizer's
 * limit; never more than the graph was exported for. */
static int read_lengths(const struct reader *r)
{
    int64_t n = 0, given, pad = 0;
    struct str type;
    struct value v;

    if (!source_i64(r->src, "pad_token_id", &pad)) pad = 0;
    r->c->pad = pad >= 0 && pad < r->c->n_vocab ? (int)pad : 0;
    /* Architectures whose position ids begin behind the padding id. */
    if (source_str(r->src, "model_type", &type) &&
        (str_ends(type, STR("roberta")) || str_is(type, "camembert") || str_is(type, "mpnet")))
        r->c->first_pos = r->c->pad + 1;
    if (source_key(r->src, "tern:max_tokens", &v)) {
        if (!value_i64(&v, &n) || n < 1 || n > MAX_CTX)
            return err_set(r->e, E_INVALID, "%s: tern.json: max_tokens must be between 1 and %d",
                           source_path(r->src), MAX_CTX);
    } else {
        if (!source_i64(r->src, "max_position_embeddings", &n))
            source_i64(r->src, "n_positions", &n);
        /* Positions before the first one are never used. */
        if (n > r->c->first_pos + 1) n -= r->c->first_pos;
        if (source_i64(r->src, "tokenizer_config:model_max_length", &given) && given > 0 &&
            (n <= 0 || given < n))
            n = given;
        if (n <= 0 || n > MAX_CTX) n = DEFAULT_CTX;
    }
    if (r->c->fixed_len > 0 && r->c->fixed_len < n) n = r->c->fixed_len;
    r->c->n_ctx = (int)n;
    return OK;
}

/* Inputs first: the vocabulary is found through them. The output depends on task and pooling. */
int card_read(struct card *c, struct arena *a, const struct source *src, const struct onnx *m,
              struct err *e)
{
    struct reader r = { src, m, c, a, e };
    int pool, rc;

    *c = (struct card){ 0 };
    if ((rc = read_inputs(&r)) != OK || (rc = find_vocab(&r)) != OK) return rc;
    if ((rc = read_task(&r)) != OK || (rc = read_choice(&r, "pooling", pools, 4, &pool)) != OK)
        return rc;
    if ((rc = read_output(&r, pool)) != OK) return rc;
    rc = c->task == CARD_EMBED ? read_embed(&r, pool) : read_classify(&r, pool);
    return rc == OK ? read_lengths(&r) : rc;
}
