/* cmd_run.c - tern run: one prompt to stdout. */
#include "cli/repl.h"
#include "cli/cmd.h"
#include "cli/gen.h"
#include "cli/answer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct verb verb = {
    "run",
    "tern run [-m MODEL] -p TEXT [-n N] [flags]",
    "Streams what the model says to the prompt. A chat model is asked the prompt as a question; "
    "any\n"
    "other model, or any model with --raw, continues the text. The prompt comes from -p, from a "
    "file,\n"
    "or from a pipe; without one, on a terminal, this is `tern chat`. Text goes to stdout, one "
    "line of\n"
    "statistics to stderr. Ctrl-C ends the answer (exit code 130).\n"
    "\n"
    "examples:\n"
    "  tern run -p \"Tell me a story about a frog.\" -n 200\n"
    "  tern run -m model.gguf --raw --temp 0 -p \"Once upon a time\" -n 60\n"
    "  tern run -p \"Who is in the story?\" --json-schema people.json\n"
    "  tern run -m folder/ --system \"Answer in one word.\" < question.txt",
};

struct run {
    struct gen gen;
    const char *prompt, *file;
    bool raw, ids, json;
    char *text; /* prompt read from a file or a pipe */
    size_t n_text;
};

/* Everything f has; false: a read failed. */
static bool read_all(struct run *r, FILE *f)
{
    size_t cap = 0, got;

    do {
        if (r->n_text == cap) {
            char *p = realloc(r->text, cap = cap ? 2 * cap : 65536);
            if (!p) return false;
            r->text = p;
        }
        got = fread(r->text + r->n_text, 1, cap - r->n_text, f);
        r->n_text += got;
    } while (got > 0);
    if (!r->raw && r->n_text > 0 && r->text[r->n_text - 1] == '\n') r->n_text--; /* echo's own */
    return !ferror(f);
}

static int read_prompt(struct run *r)
{
    bool from_stdin = r->file && strcmp(r->file, "-") == 0;
    struct err e;
    FILE *f;
    int rc = EXIT_OK;

    if (r->prompt) return EXIT_OK;
    f = !r->file || from_stdin ? stdin : fopen(r->file, "rb");
    if (!f || !read_all(r, f)) {
        err_set(&e, E_IO, "%s: %s", r->file ? r->file : "stdin", strerror(errno));
        rc = cmd_fail(&e);
    } else if (r->n_text == 0) {
        err_set(&e, E_INVALID, "the prompt is empty: give one with -p, --file or a pipe");
        rc = cmd_usage(verb.name, &e);
    }
    if (f && f != stdin) fclose(f);
    r->prompt = r->text;
    return rc;
}

static int submit(struct run *r, tern_request **req)
{
    struct gen *g = &r->gen;
    size_t n = r->text ? r->n_text : strlen(r->prompt);
    tern_message msgs[2] = { { "system", g->system } };
    char *copy;
    int rc;

    if (!g->system || r->raw) return tern_submit(req, g->m, r->prompt, n, &g->params);
    if (!(copy = strndup(r->prompt, n))) return TERN_E_NOMEM;
    msgs[1] = (tern_message){ "user", copy };
    rc = tern_submit_chat(req, g->m, msgs, 2, &g->params);
    free(copy);
    return rc;
}

/* Text, or ids with a space between; the JSON report collects instead. */
static bool show(struct run *r, struct report *rep, const tern_event *ev)
{
    char id[16];

    if (r->json) {
        report_add(rep, ev);
        return true;
    }
    if (!r->ids) return ev->n == 0 || gen_write(ev->text, ev->n);
    if (ev->id < 0) return true;
    snprintf(id, sizeof id, "%s%d", rep->n_ids++ ? " " : "", ev->id);
    return gen_write(id, strlen(id));
}

static int generate(struct run *r)
{
    struct gen *g = &r->gen;
    struct report rep = { 0 };
    tern_request *req = NULL;
    tern_event ev = { 0 };
    tern_stats stats;
    char last = 0;
    bool reader = true;
    int rc, code = EXIT_OK;

    if ((rc = submit(r, &req)) != TERN_OK) return gen_fail(verb.name, rc);
    gen_watch(req);
    while (reader && (rc = tern_next(req, &ev)) == TERN_OK) {
        if (ev.n > 0) last = ev.text[ev.n - 1];
        reader = show(r, &rep, &ev);
        if (ev.finish != TERN_FINISH_NONE) break;
    }
    gen_watch(NULL);
    tern_request_stats(req, &stats);
    if (reader && !r->json && (r->ids || last != '\n')) reader = gen_write("\n", 1);
    if (rc != TERN_OK) code = gen_fail(verb.name, rc);
    else if (r->json) reader = report_write(&rep, g, &stats, ev.finish);
    if (reader && rc == TERN_OK && !g->quiet) gen_print_stats(stderr, g, &stats);
    if (code == EXIT_OK && gen_interrupted()) code = 130;
    if (code == EXIT_OK && gen_write_failed()) code = EXIT_FAILED;
    report_release(&rep);
    tern_request_close(req);
    return code;
}

static int parse(struct run *r, int argc, char **argv, bool *helped)
{
    struct gen *g = &r->gen;
    const struct arg table[] = {
        GEN_MODEL_ARGS(g),
        { "--prompt", "-p", ARG_STR, &r->prompt, "TEXT",
          "the prompt (default: --file, or what comes by a pipe)" },
        { "--file", "-f", ARG_STR, &r->file, "PATH", "read the prompt from a file; -: from stdin" },
        { "--system", NULL, ARG_STR, &g->system, "TEXT",
          "instructions put before the question (default: none)" },
        { "--raw", NULL, ARG_FLAG, &r->raw, NULL, "the prompt as it is: no chat form" },
        GEN_SAMPLE_ARGS(g),
        GEN_GRAMMAR_ARGS(g),
        { "--ids", NULL, ARG_FLAG, &r->ids, NULL, "print token ids instead of text" },
        { "--json", NULL, ARG_FLAG, &r->json, NULL,
          "print one JSON object at the end: text, ids, finish, statistics" },
        { "--quiet", "-q", ARG_FLAG, &g->quiet, NULL, "no statistics on stderr" },
        { "--verbose", "-v", ARG_FLAG, &g->verbose, NULL,
          "say more: the model, the device, memory" },
        { 0 },
    };
    const char *pos[1];
    struct err e = { 0 };
    int n_pos;

    if (args_parse(&verb, table, argc, argv, pos, 1, &n_pos, helped, &e) != OK)
        return cmd_usage(verb.name, &e);
    if (n_pos > 0 && r->prompt) {
        err_set(&e, E_INVALID, "two prompts: -p and '%s'", pos[0]);
        return cmd_usage(verb.name, &e);
    }
    if (n_pos > 0) r->prompt = pos[0];
    gen_take_stops(g, argc, argv);
    return EXIT_OK;
}

int cmd_run(int argc, char **argv)
{
    struct run r = { 0 };
    bool helped;
    int code;

    gen_init(&r.gen);
    if ((code = parse(&r, argc, argv, &helped)) != EXIT_OK || helped) return code;
    if (!r.prompt && !r.file && isatty(STDIN_FILENO)) return chat_run(&r.gen, verb.name);
    if ((code = read_prompt(&r)) == EXIT_OK && (code = gen_open(&r.gen, verb.name)) == EXIT_OK) {
        r.gen.params.raw = r.raw;
        code = generate(&r);
    }
    gen_close(&r.gen);
    free(r.text);
    return code;
}
