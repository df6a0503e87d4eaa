/* cmd_run.c - tern run: generate text for one prompt, streamed to stdout.
 *
 * The first argument is the model if it is one: a path, an hf: name, an alias, a name of the cache. The
 * arguments after it are the prompt. Text that cannot be a name is the prompt, and one that could be
 * is refused, so that a mistyped model is never told a story about. */
#include "cli/runanswer.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/gen.h"
#include "cli/repl.h"

#include <string.h>
#include <unistd.h>

enum { MAX_PROMPT_BYTES = 1 << 29, MAX_WORDS = 256 };

static const struct verb verb = {
    "run",
    "tern run [MODEL] [PROMPT...] [-m MODEL] [-p TEXT] [-n N] [flags]",
    "Generates text for a prompt and streams it to stdout. A model with a chat template gets the\n"
    "prompt as a user message; other models, and all models with --raw, continue the text. The\n"
    "model is a path, hf:ORG/NAME, an alias or a name that tern list shows; without one it is the\n"
    "one that ships with tern. The prompt comes from the arguments, from -p, from a file or from "
    "a\n"
    "pipe; without one, on a terminal, this command is the same as tern chat. One line of\n"
    "statistics goes to stderr. Ctrl-C stops (exit code 130).\n"
    "\n"
    "examples:\n"
    "  tern run \"Tell me a story about a frog.\" -n 200\n"
    "  tern run hf:Qwen/Qwen3-0.6B-GGUF \"Why is the sky blue?\"\n"
    "  tern run -m model.gguf --raw --temp 0 -p \"Once upon a time\" -n 60\n"
    "  tern run -p \"Who is in the story?\" --json-schema people.json\n"
    "  tern run -m folder/ --system \"Answer in one word.\" < question.txt",
};

struct run {
    struct gen gen;
    const char *prompt, *file;    /* NULL: stdin */
    const char *words[MAX_WORDS]; /* arguments; after take_words those of the prompt */
    int n_words;
    bool raw, ids, json;
    struct buf text; /* the prompt */
};

/* Fills r->text. Returns the exit code. */
static int read_prompt(struct run *r)
{
    struct err e = { 0 };

    if (r->prompt) {
        buf_puts(&r->text, r->prompt);
    } else if (r->n_words) {
        for (int i = 0; i < r->n_words; i++)
            buf_printf(&r->text, "%s%s", i ? " " : "", r->words[i]);
    } else {
        if (cli_read(&r->text, r->file, MAX_PROMPT_BYTES, &e) != OK) return cmd_fail(&e);
        if (!r->raw && r->text.n > 0 && r->text.p[r->text.n - 1] == '\n')
            r->text.n--; /* the line end that echo and editors add */
        if (r->text.n == 0) {
            err_set(&e, E_INVALID,
                    "the prompt is empty: give one behind the model, with -p, --file or a pipe");
            return cmd_usage(verb.name, &e);
        }
    }
    cli_text(&r->text);
    return EXIT_OK;
}

static int submit_prompt(struct run *r, tern_request **req)
{
    struct gen *g = &r->gen;
    const tern_message msgs[] = { { "system", g->system }, { "user", r->text.p } };

    if (!g->system || r->raw) return tern_submit(req, g->m, r->text.p, r->text.n, &g->params);
    return tern_submit_chat(req, g->m, msgs, 2, &g->params);
}

/* Prints text, or ids with a space between; with --json collects instead. false: nobody reads. */
static bool show_event(struct run *r, struct runanswer *a, const tern_event *ev)
{
    char id[16];

    if (r->json) {
        runanswer_add(a, ev);
        return true;
    }
    if (!r->ids) return ev->n == 0 || gen_write(ev->text, ev->n);
    if (ev->id < 0) return true;
    snprintf(id, sizeof id, "%s%d", a->ids.n ? " " : "", ev->id);
    ids_push(&a->ids, ev->id);
    return gen_write(id, strlen(id));
}

/* Streams the answer. *reader becomes false when nobody reads stdout any more. */
static int stream_answer(struct run *r, tern_request *req, struct runanswer *a, tern_finish *finish,
                         bool *reader)
{
    tern_event ev = { 0 };
    char last = 0;
    int rc = TERN_OK;

    while (*reader && (rc = tern_next(req, &ev)) == TERN_OK) {
        if (ev.n > 0) last = ev.text[ev.n - 1];
        *reader = show_event(r, a, &ev);
        if (ev.finish != TERN_FINISH_NONE) break;
    }
    *finish = ev.finish;
    if (rc != TERN_OK && !last) return rc; /* nothing was printed: no line to end */
    if (*reader && !r->json && (r->ids || last != '\n')) *reader = gen_write("\n", 1);
    return rc;
}

static int generate_text(struct run *r)
{
    struct gen *g = &r->gen;
    struct runanswer answer = { 0 };
    tern_request *req = NULL;
    tern_finish finish;
    tern_stats stats;
    bool reader = true;
    int rc, code = EXIT_OK;

    if ((rc = submit_prompt(r, &req)) != TERN_OK) return gen_fail(verb.name, rc);
    gen_watch(req);
    rc = stream_answer(r, req, &answer, &finish, &reader);
    gen_watch(NULL);
    tern_request_stats(req, &stats);
    if (rc != TERN_OK) code = gen_fail(verb.name, rc);
    else if (r->json) reader = runanswer_write(&answer, g, &stats, finish);
    if (reader && rc == TERN_OK && !g->quiet) gen_print_stats(stderr, g, &stats);
    if (code == EXIT_OK && gen_interrupted()) code = EXIT_INTERRUPTED;
    if (code == EXIT_OK && gen_write_failed()) code = EXIT_FAILED;
    runanswer_release(&answer);
    tern_request_close(req);
    return code;
}

/* Decides which of the arguments is the model: the first, or none. */
static int take_words(struct run *r, struct err *e)
{
    enum cmd_word kind = WORD_PROMPT;

    if (r->n_words > 0 && !r->gen.model) kind = cmd_word_kind(r->words[0], e);
    if (kind == WORD_UNKNOWN) return E_INVALID;
    if (kind == WORD_MODEL) {
        r->gen.model = r->words[0];
        memmove(r->words, r->words + 1, (size_t)--r->n_words * sizeof *r->words);
    } else if (r->n_words > 1 && !r->gen.model) {
        return err_set(e, E_INVALID, "'%s' is no model, so that '%s' is one argument too many",
                       r->words[0], r->words[1]);
    }
    if (r->n_words > 0 && r->prompt)
        return err_set(e, E_INVALID, "two prompts: -p and '%s'; give one", r->words[0]);
    return OK;
}

static int parse_flags(struct run *r, int argc, char **argv, bool *helped)
{
    struct gen *g = &r->gen;
    const struct arg table[] = {
        GEN_MODEL_ARGS(g),
        { "--prompt", "-p", ARG_STR, &r->prompt, "TEXT", "the prompt (--file, or stdin)" },
        { "--file", "-f", ARG_STR, &r->file, "PATH", "read the prompt from a file; -: stdin" },
        { "--system", NULL, ARG_STR, &g->system, "TEXT", "system message (none)" },
        { "--raw", NULL, ARG_FLAG, &r->raw, NULL, "continue the prompt: no chat template" },
        GEN_SAMPLE_ARGS(g),
        GEN_GRAMMAR_ARGS(g),
        { "--ids", NULL, ARG_FLAG, &r->ids, NULL, "print token ids instead of text" },
        { "--json", NULL, ARG_FLAG, &r->json, NULL,
          "print one JSON object at the end: text, ids, finish reason, statistics" },
        { "--quiet", "-q", ARG_FLAG, &g->quiet, NULL, "no statistics on stderr" },
        { "--verbose", "-v", ARG_FLAG, &g->verbose, NULL,
          "print the model, the device and memory" },
        { 0 },
    };
    struct err e = { 0 };

    if (args_parse(&verb, table, argc, argv, r->words, MAX_WORDS, &r->n_words, helped, &e) != OK)
        return cmd_usage(verb.name, &e);
    if (!*helped && take_words(r, &e) != OK) return cmd_usage(verb.name, &e);
    gen_collect_stops(g, argc, argv);
    return EXIT_OK;
}

int cmd_run(int argc, char **argv)
{
    struct run r = { 0 };
    bool helped;
    int code;

    gen_init(&r.gen);
    if ((code = parse_flags(&r, argc, argv, &helped)) != EXIT_OK || helped) return code;
    if (!r.prompt && !r.n_words && !r.file && isatty(STDIN_FILENO))
        return repl_run(&r.gen, verb.name);
    if ((code = read_prompt(&r)) == EXIT_OK && (code = gen_open(&r.gen, verb.name)) == EXIT_OK) {
        r.gen.params.raw = r.raw;
        code = generate_text(&r);
    }
    gen_close(&r.gen);
    buf_release(&r.text);
    return code;
}
