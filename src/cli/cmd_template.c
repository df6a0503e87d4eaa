/* cmd_template.c - tern template: render a chat template. Its output is exactly the prompt that the
 * server builds from the same messages, so that templates can be compared with transformers. */
#include "base/file.h"
#include "cli/args.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/guard.h"
#include "format/jsonload.h"
#include "pool/prompter.h"
#include "token/tokenizer.h"

enum { MAX_VARS = 1 << 28 };

static const struct verb verb = {
    "template", "tern template [-m MODEL | --file F] --json VARS",
    "Renders a chat template to stdout, with nothing added. VARS is a JSON object, @FILE or @-\n"
    "(stdin) with the template's variables: messages, tools, add_generation_prompt and others.\n"
    "With -m the special tokens come from the model. A text under \"strftime_now\", such as\n"
    "\"2026-01-31 23:59:59\", replaces the current time. If the template is wrong or raises an\n"
    "exception, the exit code is 1 and the message has line and column.\n\n"
    "examples:\n"
    "  tern template -m model.gguf --json '{\"messages\": [{\"role\": \"user\", \"content\": "
    "\"Hi\"}],\n"
    "                                       \"add_generation_prompt\": true}'\n"
    "  tern template --file chat_template.jinja --json @vars.json"
};

struct job {
    const char *model, *file, *json, *name;
    struct tokenizer *t;
    struct buf text, out;
    json_t *vars;
    struct guard guard;
};

/* VARS is JSON text, @FILE or @-. */
static int read_vars(struct job *j, struct err *e)
{
    int rc = OK;

    if (j->json[0] != '@') buf_puts(&j->text, j->json);
    else rc = cli_read(&j->text, j->json + 1, MAX_VARS, e);
    if (rc == OK) rc = buf_check(&j->text, e);
    if (rc == OK) rc = jsonload(&j->vars, buf_str(&j->text), JSON_ALLOW_NUL, "--json", e);
    if (rc == OK && !json_is_object(j->vars))
        rc = err_set(e, E_FORMAT, "--json: must be a JSON object of variables");
    return rc;
}

static int render_template(struct job *j, struct err *e)
{
    int rc = read_vars(j, e);

    if (rc == OK && !j->file) rc = cmd_model(&j->model, e);
    if (rc == OK) rc = guard_join(&j->guard, e);
    if (rc == OK && !j->file) rc = tokenizer_open(&j->t, j->model, e);
    if (rc == OK) rc = prompter_render_vars(j->t, j->file, j->vars, &j->out, e);
    if (rc == E_NOTFOUND && !j->file) err_wrap(e, "%s", j->model);
    return rc == OK ? cli_write(stdout, &j->out, e) : rc;
}

int cmd_template(int argc, char **argv)
{
    struct job j = { .model = NULL };
    const struct arg table[] = { { "--model", "-m", ARG_STR, &j.model, "MODEL",
                                   "model with the template (the one that ships with tern)" },
                                 { "--file", "-f", ARG_STR, &j.file, "F", "file with a template" },
                                 { "--json", "-j", ARG_STR, &j.json, "VARS",
                                   "variables: a JSON object, @FILE or @- (stdin)" },
                                 GUARD_KEY_ARGS(&j.guard),
                                 { NULL, NULL, ARG_FLAG, NULL, NULL, NULL } };
    struct err e = { 0 };
    bool helped = false;
    int n_pos = 0, rc;

    rc = args_parse(&verb, table, argc, argv, NULL, 0, &n_pos, &helped, &e);
    if (rc == OK && helped) return EXIT_OK;
    if (rc == OK && !j.json) rc = err_set(&e, E_INVALID, "--json VARS is required");
    if (rc == OK && j.model && j.file)
        rc = err_set(&e, E_INVALID, "-m and --file exclude each other");
    if (rc != OK) return cmd_usage("template", &e);
    if (!j.model) j.model = cmd_default_model();
    rc = !j.model && !j.file
             ? err_set(&e, E_NOTFOUND, "no template: name a model with -m or a file with --file")
             : render_template(&j, &e);
    guard_release(&j.guard);
    tokenizer_close(j.t);
    json_decref(j.vars);
    buf_release(&j.text);
    buf_release(&j.out);
    return cmd_result(rc, &e);
}
