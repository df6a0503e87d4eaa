/* cmd_show.c - tern show: what a model is, in a few lines. tern inspect has the rest. */
#include "base/file.h"
#include "base/jsonw.h"
#include "base/mem.h"
#include "cli/args.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/guard.h"
#include "format/source.h"
#include "model/loadplan.h"
#include "model/onnxrunner.h"
#include "pool/modelbytes.h"
#include "token/tokenizer.h"

static const struct verb verb = {
    "show",
    "tern show MODEL [--json | --template]",
    "Shows architecture, parameters, context, quantization, chat template and license of a model. "
    "The\n"
    "model is a path, hf:ORG/NAME, an alias or a name that tern list shows. tern inspect shows "
    "more.\n\n"
    "examples:\n"
    "  tern show hf:Qwen/Qwen3-0.6B-GGUF\n"
    "  tern show model.gguf --template",
};

struct shown {
    const char *name, *path;
    struct loadplan *plan;
    struct source *own; /* of a model that has no plan */
    const struct source *s;
    struct tokenizer *t; /* NULL: none */
    struct err why;      /* it does not run */
    struct buf license, types;
    uint64_t n_params, bytes;
};

/* ---- facts ---- */

/* The license in the head of README.md ("license: mit"), as the hub's pages have it. */
static void read_card(struct shown *x, const char *dir)
{
    char *path = cli_need(path_join(dir, "README.md"));
    struct buf text = { 0 };
    struct str s;

    if (file_exists(path) && file_read(&text, path, 1 << 20, NULL) == OK) {
        s = buf_str(&text);
        while (s.n && !x->license.n) {
            ptrdiff_t end = str_find(s, STR("\n"));
            struct str line = end < 0 ? s : str_take(s, (size_t)end);
            if (str_starts(line, STR("license:")))
                buf_put_str(&x->license, str_trim(str_skip(line, 8)));
            s = str_skip(s, line.n + 1);
        }
    }
    buf_release(&text);
    mem_free(path);
}

static void find_license(struct shown *x)
{
    struct str s;

    if (source_str(x->s, "general.license", &s) || source_str(x->s, "license", &s))
        buf_put_str(&x->license, s);
    else if (file_is_dir(x->path)) read_card(x, x->path);
}

/* The types of the matrices, that with the most bytes first. */
static void sum_types(struct shown *x)
{
    uint64_t bytes[DT_COUNT] = { 0 };

    for (size_t i = 0; i < source_n_tensors(x->s); i++) {
        const struct source_tensor *t = source_tensor(x->s, i);
        uint64_t n = 1;
        for (int d = 0; d < t->n_dims; d++) n *= (uint64_t)t->dims[d];
        x->n_params += n;
        if (t->n_dims > 1) bytes[t->type] += t->bytes;
    }
    for (;;) {
        int best = 0;
        for (int t = 1; t < DT_COUNT; t++)
            if (bytes[t] > bytes[best]) best = t;
        if (!bytes[best]) break;
        buf_printf(&x->types, "%s%s", x->types.n ? ", " : "", dtype_name(best));
        bytes[best] = 0;
    }
    if (x->plan && x->plan->facts.n_params) x->n_params = x->plan->facts.n_params;
}

static int open_shown(struct shown *x, struct err *e)
{
    int rc = OK;

    if (loadplan_read(&x->plan, x->path, &x->why) == OK) x->s = x->plan->source;
    else if ((rc = source_open_head(&x->own, x->path, e)) == OK) x->s = x->own;
    if (rc != OK) return rc;
    x->bytes = model_file_bytes(x->path);
    if (tokenizer_open(&x->t, source_path(x->s), NULL) != OK) x->t = NULL;
    sum_types(x);
    find_license(x);
    return OK;
}

static void close_shown(struct shown *x)
{
    tokenizer_close(x->t);
    loadplan_close(x->plan);
    source_close(x->own);
    buf_release(&x->license);
    buf_release(&x->types);
}

static struct str template_of(const struct shown *x)
{
    return x->t ? tokenizer_chat_template(x->t) : STR("");
}

static const char *format_of(const struct shown *x)
{
    if (source_onnx(x->s)) return "onnx";
    return source_kind(x->s) == SOURCE_GGUF ? "gguf" : "safetensors";
}

/* ---- output ---- */

static void write_json(const struct shown *x, struct buf *out)
{
    struct jsonw w = { .out = out };

    jsonw_obj(&w);
    jsonw_key(&w, "name"), jsonw_str(&w, str_c(x->name));
    jsonw_key(&w, "path"), jsonw_str(&w, str_c(x->path));
    jsonw_key(&w, "format"), jsonw_str(&w, str_c(format_of(x)));
    if (x->plan) {
        jsonw_key(&w, "architecture"), jsonw_str(&w, str_c(x->plan->facts.arch));
        jsonw_key(&w, "context"), jsonw_int(&w, x->plan->facts.n_ctx);
    } else {
        jsonw_key(&w, "not_runnable"), jsonw_str(&w, str_c(x->why.msg));
    }
    jsonw_key(&w, "parameters"), jsonw_int(&w, (int64_t)x->n_params);
    jsonw_key(&w, "bytes"), jsonw_int(&w, (int64_t)x->bytes);
    jsonw_key(&w, "quantization"), jsonw_str(&w, buf_str(&x->types));
    jsonw_key(&w, "template"), jsonw_str(&w, template_of(x));
    jsonw_key(&w, "license"), jsonw_str(&w, buf_str(&x->license));
    jsonw_end(&w);
    buf_putc(out, '\n');
}

static void write_text(const struct shown *x, struct buf *out)
{
    struct str template = template_of(x);

    buf_printf(out, "%s\n", x->name);
    if (strcmp(x->name, x->path) != 0) buf_printf(out, "  path          %s\n", x->path);
    if (x->plan)
        buf_printf(out, "  architecture  %s\n  parameters    %.2f M\n  context       %d\n",
                   x->plan->facts.arch, (double)x->n_params / 1e6, x->plan->facts.n_ctx);
    else
        buf_printf(out, "  not runnable  %s\n  parameters    %.2f M\n", x->why.msg,
                   (double)x->n_params / 1e6);
    buf_printf(out, "  size          %.1f MB (%s)\n", (double)x->bytes / 1e6, format_of(x));
    if (x->types.n)
        buf_printf(out, "  quantization  %.*s\n", STR_ARG(str_take(buf_str(&x->types), 100)));
    if (template.n)
        buf_printf(out, "  template      %zu characters of Jinja; --template prints it\n",
                   template.n);
    else buf_puts(out, "  template      none\n");
    if (x->license.n)
        buf_printf(out, "  license       %.*s\n", STR_ARG(str_take(buf_str(&x->license), 100)));
    else buf_puts(out, "  license       its files do not say\n");
}

int cmd_show(int argc, char **argv)
{
    struct shown x = { 0 };
    struct guard guard = { 0 };
    bool json = false, template = false, helped;
    const struct arg table[] = {
        { "--json", NULL, ARG_FLAG, &json, NULL, "print one JSON object" },
        { "--template", NULL, ARG_FLAG, &template, NULL, "print the chat template only" },
        GUARD_KEY_ARGS(&guard),
        { 0 },
    };
    struct buf out = { 0 };
    struct err e = { 0 };
    int n_pos, rc = args_parse(&verb, table, argc, argv, &x.name, 1, &n_pos, &helped, &e);

    if (rc == OK && helped) return EXIT_OK;
    if (rc == OK && json && template)
        rc = err_set(&e, E_INVALID, "--json and --template exclude each other");
    if (rc == OK) rc = cmd_need_model(&x.name, &e);
    if (rc != OK) return cmd_usage(verb.name, &e);
    x.path = x.name;
    if ((rc = cmd_model(&x.path, &e)) == OK) rc = guard_join(&guard, &e);
    if (rc == OK) rc = open_shown(&x, &e);
    guard_release(&guard);
    if (rc == OK && json) write_json(&x, &out);
    else if (rc == OK && template) buf_put_str(&out, template_of(&x));
    else if (rc == OK) write_text(&x, &out);
    if (rc == OK) rc = cli_write(stdout, &out, &e);
    close_shown(&x);
    buf_release(&out);
    return cmd_result(rc, &e);
}
