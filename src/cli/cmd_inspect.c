/* cmd_inspect.c - tern inspect: show the contents of a model file: architecture, shapes, types,
 * sizes, metadata, tensors. */
#include "base/jsonw.h"
#include "cli/args.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/guard.h"
#include "format/hfquant.h"
#include "format/source.h"
#include "model/loadplan.h"
#include "model/onnxrunner.h"
#include "model/hparams.h"
#include "kernel/stateview.h"
#include "base/memavail.h"
#include "pool/membudget.h"

#include <stdio.h>
#include <string.h>

static const struct verb verb = {
    "inspect",
    "tern inspect MODEL [--json] [--tensors] [--keys]",
    "Shows architecture, shapes, types and sizes of a GGUF file, a .safetensors file, an ONNX "
    "file\n"
    "or a Hugging Face folder. The header is read and checked; the weights are not loaded.\n\n"
    "examples:\n"
    "  tern inspect models/tern-tales.gguf --tensors",
};

struct type_sum {
    int n; /* tensors */
    uint64_t bytes, elements;
};

static uint64_t count_elements(const struct source_tensor *t)
{
    uint64_t n = 1;
    for (int d = 0; d < t->n_dims; d++) n *= (uint64_t)t->dims[d];
    return n;
}

/* Sums by type, and over all types. */
static void sum_types(const struct source *s, struct type_sum sums[DT_COUNT], struct type_sum *all)
{
    for (size_t i = 0; i < source_n_tensors(s); i++) {
        const struct source_tensor *t = source_tensor(s, i);
        struct type_sum *into[2] = { &sums[t->type], all };
        for (int k = 0; k < 2; k++) {
            into[k]->n++;
            into[k]->bytes += t->bytes;
            into[k]->elements += count_elements(t);
        }
    }
}

/* ---- quantized folders ---- */

enum { SCHEMES = 16, SCHEME_CHARS = 96 };

/* The ways in which layers are stored, and how many of each. */
struct schemes {
    int n;
    char text[SCHEMES][SCHEME_CHARS];
    int layers[SCHEMES];
};

static void list_schemes(const struct source *s, struct schemes *out)
{
    const struct hfquant *q = source_quant(s);

    out->n = 0;
    for (size_t i = 0; i < hfquant_n_tensors(q); i++) {
        char text[SCHEME_CHARS];
        int k = 0;
        hfquant_describe(hfquant_tensor(q, i)->quant, text, sizeof text);
        while (k < out->n && strcmp(out->text[k], text) != 0) k++;
        if (k == SCHEMES) k--; /* the rest counts as the last */
        if (k == out->n) {
            memcpy(out->text[k], text, sizeof text);
            out->layers[out->n++] = 0;
        }
        out->layers[k]++;
    }
}

static void put_schemes(struct jsonw *w, const struct source *s)
{
    struct schemes list;

    list_schemes(s, &list);
    if (list.n == 0) return;
    jsonw_key(w, "quantization"), jsonw_arr(w);
    for (int i = 0; i < list.n; i++) {
        jsonw_obj(w);
        jsonw_key(w, "scheme"), jsonw_str(w, str_c(list.text[i]));
        jsonw_key(w, "layers"), jsonw_int(w, list.layers[i]);
        jsonw_end(w);
    }
    jsonw_end(w);
}

static void add_schemes_text(const struct source *s, struct buf *out)
{
    struct schemes list;

    list_schemes(s, &list);
    for (int i = 0; i < list.n; i++)
        buf_printf(out, "  %-13s %s (%d layers)\n", i ? "" : "quantized", list.text[i],
                   list.layers[i]);
}

/* Lists longer than max_list, such as a vocabulary, are written as {"length": n}. */
static void put_value(struct jsonw *w, const struct value *v, size_t max_list)
{
    struct value item;

    switch (v->kind) {
    case VALUE_BOOL: jsonw_bool(w, v->b); break;
    case VALUE_INT: jsonw_int(w, v->i); break;
    case VALUE_UINT:
        if (v->u <= INT64_MAX) jsonw_int(w, (int64_t)v->u);
        else jsonw_num(w, (double)v->u);
        break;
    case VALUE_FLOAT: jsonw_num(w, v->f); break;
    case VALUE_STR: jsonw_str(w, v->s); break;
    case VALUE_LIST:
        if (v->n > max_list) {
            jsonw_obj(w);
            jsonw_key(w, "length"), jsonw_int(w, (int64_t)v->n);
            jsonw_end(w);
            break;
        }
        jsonw_arr(w);
        for (size_t i = 0; i < v->n && value_at(v, i, &item); i++) put_value(w, &item, max_list);
        jsonw_end(w);
        break;
    default: jsonw_null(w);
    }
}

/* Head counts and widths of the first layer; models whose layers differ have a list under keys. */
static void put_hparams(struct jsonw *w, const struct hparams *hp)
{
    const struct layer_hp *l = &hp->layers[0];

    jsonw_key(w, "architecture"), jsonw_str(w, str_c(hp->arch));
    jsonw_key(w, "layers"), jsonw_int(w, hp->n_layers);
    jsonw_key(w, "embedding"), jsonw_int(w, hp->n_embd);
    jsonw_key(w, "feed_forward"), jsonw_int(w, l->n_ff);
    if (hp->moe.n) {
        jsonw_key(w, "experts"), jsonw_int(w, hp->moe.n);
        jsonw_key(w, "experts_used"), jsonw_int(w, hp->moe.n_used);
        jsonw_key(w, "expert_feed_forward"), jsonw_int(w, hp->moe.n_ff);
    }
    jsonw_key(w, "heads"), jsonw_int(w, l->n_heads);
    jsonw_key(w, "kv_heads"), jsonw_int(w, l->n_kv_heads);
    jsonw_key(w, "head_dim"), jsonw_int(w, l->head_dim);
    jsonw_key(w, "vocabulary"), jsonw_int(w, hp->n_vocab);
    jsonw_key(w, "context"), jsonw_int(w, hp->n_ctx);
}

/* Memory of the model on this machine, served with default options: the plan that a load follows. */
static void put_memory(struct jsonw *w, const struct loadplan *p)
{
    struct load_bytes b = loadplan_bytes(p);

    jsonw_key(w, "memory"), jsonw_obj(w);
    jsonw_key(w, "weights"), jsonw_int(w, (int64_t)b.weights);
    jsonw_key(w, "kv"), jsonw_int(w, (int64_t)b.kv);
    jsonw_key(w, "scratch"), jsonw_int(w, (int64_t)b.scratch);
    jsonw_key(w, "context"), jsonw_int(w, p->opt.n_ctx);
    jsonw_key(w, "sequences"), jsonw_int(w, p->opt.max_seqs);
    jsonw_key(w, "kv_tokens"), jsonw_int(w, p->opt.kv_tokens);
    jsonw_key(w, "sizes"), jsonw_str(w, str_c(p->sizes_text));
    jsonw_end(w);
}

static void add_memory_text(const struct loadplan *p, struct buf *out)
{
    const double mib = 1048576;
    struct load_bytes b = loadplan_bytes(p);

    buf_printf(out,
               "  memory        weights %.1f MiB, KV cache %.1f MiB, scratch %.1f MiB (served on "
               "this machine's CPU: context %d, %d sequences, %d KV tokens)\n"
               "  sizes         %s\n",
               (double)b.weights / mib, (double)b.kv / mib, (double)b.scratch / mib, p->opt.n_ctx,
               p->opt.max_seqs, p->opt.kv_tokens, p->sizes_text);
}

/* A model, with its load plan as far as it could be made. */
struct inspected {
    struct loadplan *plan; /* NULL: the hyper-parameters could not be read */
    struct source *own;    /* without a plan */
    const struct source *s;
    bool planned;   /* the plan is complete: the model can run */
    struct err why; /* it cannot */
};

static int open_inspected(struct inspected *x, const char *path, struct err *e)
{
    struct load_opt opt = { .backend = { .n_threads = 1 }, .kv_type = DT_NONE };
    struct memavail free;
    int rc = OK;

    memavail_read(&free, "");
    opt.room = membudget_room(&free, &(struct membudget){ 0 }, 0);
    if (loadplan_read(&x->plan, path, &x->why) == OK) {
        x->s = x->plan->source;
        x->planned = loadplan_make(x->plan, &opt, &x->why) == OK;
    } else if ((rc = source_open_head(&x->own, path, e)) == OK) {
        x->s = x->own;
    }
    return rc;
}

static void close_inspected(struct inspected *x)
{
    loadplan_close(x->plan);
    source_close(x->own);
}

/* ---- ONNX ---- */

static struct str io_name(const struct onnx *m, const struct onnx_io *io)
{
    return m->values[io->value].name;
}

/* Task, output, pooling or labels of an ONNX model. */
static void put_card(struct jsonw *w, const struct card *c, const struct onnx *m)
{
    jsonw_key(w, "architecture"), jsonw_str(w, STR("onnx"));
    jsonw_key(w, "task"), jsonw_str(w, str_c(card_task_name(c->task)));
    jsonw_key(w, "output"), jsonw_str(w, io_name(m, &m->graph.outputs[c->output]));
    if (c->task == CARD_EMBED) {
        jsonw_key(w, "embedding"), jsonw_int(w, c->width);
        jsonw_key(w, "pooling"), jsonw_str(w, str_c(card_pool_name(c->pool)));
        jsonw_key(w, "normalize"), jsonw_bool(w, c->normalize);
    } else {
        jsonw_key(w, "labels"), jsonw_arr(w);
        for (int i = 0; i < c->width; i++) jsonw_str(w, c->labels[i]);
        jsonw_end(w);
        jsonw_key(w, "activation"), jsonw_str(w, str_c(card_score_name(c->score)));
    }
    jsonw_key(w, "vocabulary"), jsonw_int(w, c->n_vocab);
    jsonw_key(w, "context"), jsonw_int(w, c->n_ctx);
}

static void add_graph_json(const struct inspected *x, const struct onnx *m, struct buf *out)
{
    struct jsonw w = { .out = out };

    jsonw_obj(&w);
    jsonw_key(&w, "path"), jsonw_str(&w, str_c(source_onnx(x->s)));
    jsonw_key(&w, "format"), jsonw_str(&w, STR("onnx"));
    if (x->planned) put_card(&w, &x->plan->graph->card, m);
    else jsonw_key(&w, "not_runnable"), jsonw_str(&w, str_c(x->why.msg));
    if (x->planned) put_memory(&w, x->plan);
    jsonw_key(&w, "opset"), jsonw_int(&w, m->opset);
    jsonw_key(&w, "producer"), jsonw_str(&w, m->producer);
    jsonw_key(&w, "nodes"), jsonw_int(&w, m->graph.n_nodes);
    jsonw_key(&w, "parameters"), jsonw_int(&w, (int64_t)m->n_params);
    jsonw_key(&w, "bytes"), jsonw_int(&w, (int64_t)m->weight_bytes);
    jsonw_end(&w);
    buf_putc(out, '\n');
}

/* Names of a graph's inputs or outputs. */
static void add_ios(const struct onnx *m, const char *what, const struct onnx_io *io, int n,
                    struct buf *out)
{
    buf_printf(out, "  %-13s ", what);
    for (int i = 0; i < n; i++)
        buf_printf(out, "%s%.*s", i ? ", " : "", STR_ARG(str_take(io_name(m, &io[i]), 60)));
    buf_putc(out, '\n');
}

static void add_graph_text(const struct inspected *x, const struct onnx *m, struct buf *out)
{
    const struct card *c = x->planned ? &x->plan->graph->card : NULL;

    buf_printf(out, "%s\n", source_onnx(x->s));
    if (!c) buf_printf(out, "  not runnable  %s\n", x->why.msg);
    else if (c->task == CARD_EMBED)
        buf_printf(out, "  task          embed: %d dimensions from %.*s, pooling: %s%s\n", c->width,
                   STR_ARG(io_name(m, &m->graph.outputs[c->output])), card_pool_name(c->pool),
                   c->normalize ? ", normalized" : "");
    else {
        buf_printf(out, "  task          classify: %s of %.*s\n  labels        ",
                   card_score_name(c->score), STR_ARG(io_name(m, &m->graph.outputs[c->output])));
        for (int i = 0; i < c->width && i < 20; i++)
            buf_printf(out, "%s%.*s", i ? ", " : "", STR_ARG(c->labels[i]));
        buf_puts(out, c->width > 20 ? ", ...\n" : "\n");
    }
    if (c) buf_printf(out, "  vocabulary    %d\n  context       %d\n", c->n_vocab, c->n_ctx);
    add_ios(m, "inputs", m->graph.inputs, m->graph.n_inputs, out);
    add_ios(m, "outputs", m->graph.outputs, m->graph.n_outputs, out);
    buf_printf(out,
               "  graph         %d nodes, opset %d, by %.*s\n  parameters    %.2f M, %.1f MiB\n",
               m->graph.n_nodes, m->opset, STR_ARG(str_take(m->producer, 60)),
               (double)m->n_params / 1e6, (double)m->weight_bytes / 1048576);
    if (x->planned) add_memory_text(x->plan, out);
}

/* An ONNX model is described by its graph and by its card (task, labels, pooling). A graph with
 * unsupported operators is shown, with the reason why it does not run. */
static int inspect_graph(const struct inspected *x, bool json, struct err *e)
{
    struct onnx *own = NULL;
    struct buf out = { 0 };
    int rc = x->plan ? OK : onnx_open(&own, source_onnx(x->s), e);
    const struct onnx *m = x->plan ? x->plan->graph->file : own;

    if (rc == OK && json) add_graph_json(x, m, &out);
    else if (rc == OK) add_graph_text(x, m, &out);
    if (rc == OK) rc = cli_write(stdout, &out, e);
    buf_release(&out);
    onnx_close(own);
    return rc;
}

static void add_json(const struct inspected *x, struct buf *out)
{
    const struct source *s = x->s;
    struct jsonw w = { .out = out };
    struct type_sum sums[DT_COUNT] = { 0 }, all = { 0 };
    struct value v;

    sum_types(s, sums, &all);
    jsonw_obj(&w);
    jsonw_key(&w, "path"), jsonw_str(&w, str_c(source_path(s)));
    jsonw_key(&w, "format"),
        jsonw_str(&w, source_kind(s) == SOURCE_GGUF ? STR("gguf") : STR("safetensors"));
    if (x->plan) put_hparams(&w, x->plan->hp);
    if (x->planned) put_memory(&w, x->plan);
    else jsonw_key(&w, "not_runnable"), jsonw_str(&w, str_c(x->why.msg));
    put_schemes(&w, s);
    if (x->planned && source_quant(s)) all.elements = x->plan->facts.n_params;
    jsonw_key(&w, "parameters"), jsonw_int(&w, (int64_t)all.elements);
    jsonw_key(&w, "bytes"), jsonw_int(&w, (int64_t)all.bytes);
    jsonw_key(&w, "keys"), jsonw_obj(&w);
    for (size_t i = 0; i < source_n_keys(s); i++)
        if (source_key(s, source_key_name(s, i), &v)) {
            jsonw_key(&w, source_key_name(s, i));
            put_value(&w, &v, 64);
        }
    jsonw_end(&w);
    jsonw_key(&w, "tensors"), jsonw_arr(&w);
    for (size_t i = 0; i < source_n_tensors(s); i++) {
        const struct source_tensor *t = source_tensor(s, i);
        jsonw_obj(&w);
        jsonw_key(&w, "name"), jsonw_str(&w, t->name);
        jsonw_key(&w, "type"), jsonw_str(&w, str_c(dtype_name((int)t->type)));
        jsonw_key(&w, "shape"), jsonw_arr(&w);
        for (int d = 0; d < t->n_dims; d++) jsonw_int(&w, t->dims[d]);
        jsonw_end(&w);
        jsonw_key(&w, "bytes"), jsonw_int(&w, (int64_t)t->bytes);
        jsonw_end(&w);
    }
    jsonw_end(&w);
    jsonw_end(&w);
    buf_putc(out, '\n');
}

/* One line per key; long values are cut at 80 bytes. */
static void add_keys_text(const struct source *s, struct buf *out)
{
    struct value v;

    for (size_t i = 0; i < source_n_keys(s); i++) {
        struct buf one = { 0 };
        struct jsonw w = { .out = &one };
        if (!source_key(s, source_key_name(s, i), &v)) continue;
        put_value(&w, &v, 8);
        buf_printf(out, "  %-44s %.80s%s\n", source_key_name(s, i), buf_cstr(&one),
                   one.n > 80 ? "..." : "");
        out->failed |= one.failed;
        buf_release(&one);
    }
}

/* Recurrent state, latent attention, and the pooling of an encoder. */
static void add_mixers_text(const struct hparams *hp, struct buf *out)
{
    static const char *const pools[] = {
        [POOL_LAST] = "last token", [POOL_MEAN] = "mean", [POOL_CLS] = "first token"
    };
    uint64_t bytes = 0;
    int n = 0;

    for (int l = 0; l < hp->n_layers; l++) {
        struct stateshape s = mix_stateshape(hp, l);
        bytes += state_bytes(&s, 1);
        n += state_bytes(&s, 1) > 0;
    }
    if (n)
        buf_printf(out, "  state         %.1f KiB per sequence, in %d of %d layers\n",
                   (double)bytes / 1024, n, hp->n_layers);
    if (hp->layers[0].mix.kind == MIX_MLA)
        buf_printf(out, "  latent        %d dimensions and a rotary key of %d per token\n",
                   hp->layers[0].mix.kv_rank, hp->layers[0].mix.rope);
    if (hp->encoder)
        buf_printf(out, "  encoder       bidirectional attention; pooling: %s\n",
                   pools[hp->pooling]);
}

static void add_text(const struct inspected *x, bool keys, bool tensors, struct buf *out)
{
    const struct hparams *hp = x->plan ? x->plan->hp : NULL;
    const struct source *s = x->s;
    struct type_sum sums[DT_COUNT] = { 0 }, all = { 0 };

    sum_types(s, sums, &all);
    buf_printf(out, "%s\n", source_path(s));
    if (hp) {
        const struct layer_hp *l = &hp->layers[0];
        buf_printf(
            out, "  architecture  %s\n  layers        %d\n  embedding     %d\n  feed-forward  %d\n",
            hp->arch, hp->n_layers, hp->n_embd, l->n_ff);
        if (hp->moe.n)
            buf_printf(out, "  experts       %d of %d per token, %d wide\n", hp->moe.n_used,
                       hp->moe.n, hp->moe.n_ff);
        if (l->n_heads)
            buf_printf(out, "  heads         %d (%d KV) of %d\n", l->n_heads, l->n_kv_heads,
                       l->head_dim);
        add_mixers_text(hp, out);
        buf_printf(out, "  vocabulary    %d\n  context       %d\n", hp->n_vocab, hp->n_ctx);
    }
    if (x->planned) add_memory_text(x->plan, out);
    else buf_printf(out, "  not runnable  %s\n", x->why.msg);
    add_schemes_text(s, out);
    if (x->planned && source_quant(s)) all.elements = x->plan->facts.n_params;
    buf_printf(out, "  parameters    %.2f M in %d tensors, %.1f MiB\n", (double)all.elements / 1e6,
               all.n, (double)all.bytes / 1048576);
    for (int t = 0; t < DT_COUNT; t++)
        if (sums[t].n)
            buf_printf(out, "  %-13s %d tensors, %.1f MiB, %.2f bits per weight\n", dtype_name(t),
                       sums[t].n, (double)sums[t].bytes / 1048576,
                       sums[t].elements ? 8.0 * (double)sums[t].bytes / (double)sums[t].elements
                                        : 0.0);
    if (keys) buf_puts(out, "\nkeys:\n"), add_keys_text(s, out);
    if (tensors) buf_puts(out, "\ntensors:\n");
    for (size_t i = 0; tensors && i < source_n_tensors(s); i++) {
        const struct source_tensor *t = source_tensor(s, i);
        buf_printf(out, "  %-44.*s %-8s", STR_ARG(t->name), dtype_name((int)t->type));
        for (int d = 0; d < t->n_dims; d++)
            buf_printf(out, "%s%lld", d ? " x " : " ", (long long)t->dims[d]);
        buf_putc(out, '\n');
    }
}

/* A model of an unknown architecture is shown too, with the reason why it does not run. */
static int inspect_weights(const struct inspected *x, bool json, bool keys, bool tensors,
                           struct err *e)
{
    struct buf out = { 0 };
    int rc;

    if (json) add_json(x, &out);
    else add_text(x, keys, tensors, &out);
    rc = cli_write(stdout, &out, e);
    buf_release(&out);
    return rc;
}

int cmd_inspect(int argc, char **argv)
{
    bool json = false, tensors = false, keys = false, helped;
    const char *path = NULL, *model = NULL;
    struct guard guard = { 0 };
    const struct arg table[] = {
        { "--json", NULL, ARG_FLAG, &json, NULL, "print everything as one JSON object" },
        { "--tensors", NULL, ARG_FLAG, &tensors, NULL, "list the tensors" },
        { "--keys", NULL, ARG_FLAG, &keys, NULL, "list the metadata keys" },
        { "--model", "-m", ARG_STR, &model, "MODEL", "the model, in place of the argument" },
        GUARD_KEY_ARGS(&guard),
        { 0 },
    };
    struct inspected x = { 0 };
    struct err e = { 0 };
    int n_pos, rc = args_parse(&verb, table, argc, argv, &path, 1, &n_pos, &helped, &e);

    if (rc != OK) return cmd_usage("inspect", &e);
    if (helped) return EXIT_OK;
    if (!path) path = model;
    if (cmd_need_model(&path, &e) != OK) return cmd_usage("inspect", &e);
    if (cmd_model(&path, &e) != OK || guard_join(&guard, &e) != OK ||
        open_inspected(&x, path, &e) != OK)
        return cmd_fail(&e);
    guard_release(&guard);
    rc = source_onnx(x.s) ? inspect_graph(&x, json, &e)
                          : inspect_weights(&x, json, keys, tensors, &e);
    close_inspected(&x);
    return cmd_result(rc, &e);
}
