/* cmd_template.c - tern template: what a chat template makes of messages. */
#include "base/file.h"
#include "base/mem.h"
#include "cli/args.h"
#include "cli/cmd.h"
#include "format/jsonload.h"
#include "jinja/jinja.h"
#include "token/tokenizer.h"

#include <errno.h>
#include <stdio.h>

enum { MAX_VARS = 1 << 28 };

static const struct verb verb = {
    "template", "tern template [-m MODEL | --file F] --json VARS",
    "Renders a chat template to stdout, with nothing added. VARS is a JSON object, @FILE or @- "
    "(stdin):\n"
    "messages, tools, add_generation_prompt and whatever else the template asks for; with -m the "
    "special\n"
    "tokens come from the model. A text under \"strftime_now\" (\"2026-01-31 23:59:59\") is what "
    "the "
    "template\n"
    "takes as the time. A template that refuses, or is wrong, ends with exit code 1 and names line "
    "and column.\n"
    "  tern template -m model.gguf --json '{\"messages\": [{\"role\": \"user\", \"content\": "
    "\"Hi\"}],\n"
    "                                       \"add_generation_prompt\": true}'\n"
    "  tern template --file chat_template.jinja --json @vars.json"
};

struct job {
    const char *model, *file, *json, *name;
    struct tokenizer *t;
    struct buf source, text, out;
    json_t *vars;
    struct jinja *tmpl;
};

static int read_stdin(struct buf *out, struct err *e)
{
    size_t n;

    do {
        buf_reserve(out, 1 << 16);
        n = fread(out->p + out->n, 1, out->cap - out->n, stdin);
        out->n += n;
        if (out->n > MAX_VARS)
            return err_set(e, E_INVALID, "stdin has more than %d bytes", MAX_VARS);
    } while (n);
    return ferror(stdin) ? err_set(e, E_IO, "stdin: %s", strerror(errno)) : OK;
}

static int read_vars(struct job *j, struct err *e)
{
    int rc = OK;

    if (j->json[0] != '@') buf_puts(&j->text, j->json);
    else if (str_is(str_c(j->json), "@-")) rc = read_stdin(&j->text, e);
    else rc = file_read(&j->text, j->json + 1, MAX_VARS, e);
    if (rc == OK) rc = jsonload(&j->vars, buf_str(&j->text), JSON_ALLOW_NUL, "--json", e);
    if (rc == OK && !json_is_object(j->vars))
        rc = err_set(e, E_FORMAT, "--json: expected an object of variables");
    return rc;
}

/* What the caller did not say about special tokens. */
static void add_token(struct job *j, const char *name, int32_t id)
{
    struct str piece;

    if (id < 0 || json_object_get(j->vars, name)) return;
    piece = tokenizer_piece(j->t, id);
    json_object_set_new(j->vars, name, json_stringn(piece.p, piece.n));
}

static int from_model(struct job *j, struct err *e)
{
    struct str source;
    int rc = tokenizer_open(&j->t, j->model, e);

    if (rc != OK) return rc;
    source = tokenizer_tool_template(j->t);
    if (!source.n || !json_array_size(json_object_get(j->vars, "tools")))
        source = tokenizer_chat_template(j->t);
    if (!source.n) return err_set(e, E_NOTFOUND, "%s: the model has no chat template", j->model);
    add_token(j, "bos_token", tokenizer_bos(j->t));
    add_token(j, "eos_token", tokenizer_eos(j->t));
    add_token(j, "unk_token", tokenizer_unk(j->t));
    add_token(j, "pad_token", tokenizer_pad(j->t));
    return jinja_open(&j->tmpl, source, "chat_template", e);
}

static int run(struct job *j, struct err *e)
{
    int rc;

    if ((rc = read_vars(j, e)) != OK) return rc;
    if (!j->file) {
        rc = from_model(j, e);
    } else if ((rc = file_read(&j->source, j->file, JINJA_MAX_SOURCE, e)) == OK) {
        rc = jinja_open(&j->tmpl, buf_str(&j->source), path_base(j->file), e);
    }
    if (rc == OK) rc = jinja_render(j->tmpl, j->vars, NULL, &j->out, e);
    if (rc == OK &&
        (fwrite(j->out.p ? j->out.p : "", 1, j->out.n, stdout) != j->out.n || fflush(stdout) != 0))
        rc = err_set(e, E_IO, "stdout: %s", strerror(errno));
    return rc;
}

int cmd_template(int argc, char **argv)
{
    struct job j = { .model = NULL };
    const struct arg table[] = { { "--model", "-m", ARG_STR, &j.model, "MODEL",
                                   "whose template (default: the model that ships)" },
                                 { "--file", "-f", ARG_STR, &j.file, "F", "a template of its own" },
                                 { "--json", "-j", ARG_STR, &j.json, "VARS",
                                   "its variables: a JSON object, @FILE or @-" },
                                 { NULL, NULL, ARG_FLAG, NULL, NULL, NULL } };
    struct err e = { 0 };
    bool helped = false;
    int n_pos = 0, rc;

    rc = args_parse(&verb, table, argc, argv, NULL, 0, &n_pos, &helped, &e);
    if (rc == OK && helped) return EXIT_OK;
    if (rc == OK && !j.json) rc = err_set(&e, E_INVALID, "--json VARS is needed");
    if (rc == OK && j.model && j.file)
        rc = err_set(&e, E_INVALID, "-m and --file do not go together");
    if (rc != OK) return cmd_usage("template", &e);
    if (!j.model) j.model = cmd_default_model();
    rc = !j.model && !j.file ? err_set(&e, E_NOTFOUND, "no model: say -m MODEL or --file F")
                             : run(&j, &e);
    jinja_close(j.tmpl);
    tokenizer_close(j.t);
    json_decref(j.vars);
    buf_release(&j.source);
    buf_release(&j.text);
    buf_release(&j.out);
    return rc == OK ? EXIT_OK : cmd_fail(&e);
}
