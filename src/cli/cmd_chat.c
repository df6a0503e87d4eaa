/* cmd_chat.c - tern chat: an interactive chat in the terminal.
 *
 * The loop is read, then answer or command, until Ctrl-D or /exit. On a terminal Ctrl-C never ends
 * the program: it discards the line or stops the answer. From a pipe there is no prompt and no
 * greeting, and the end of the input ends the program. */
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/repl.h"

#include <string.h>

static const struct verb verb = {
    "chat",
    "tern chat [MODEL] [flags]",
    "Chats with a model: a path, hf:ORG/NAME, an alias or a name that tern list shows. Lines\n"
    "can be edited and are kept in a history (~/.local/state/tern).\n"
    "Ctrl-C stops an answer, Ctrl-D exits. A line that ends with \\ continues on the next one;\n"
    "\"\"\" begins and ends a text of several lines. /help lists the commands. If stdin is a "
    "pipe,\n"
    "each line is a question.\n\n"
    "examples:\n"
    "  tern chat\n"
    "  tern chat hf:Qwen/Qwen3-0.6B-GGUF\n"
    "  tern chat model.gguf --system \"You are a patient teacher.\" --temp 0.5",
};

/* Appends a line to the question. in_block: within triple quotes. true: the question continues on
 * the next line. */
static bool add_line(struct repl *r, const char *line, bool in_block)
{
    size_t n = strlen(line);
    const char *close = in_block ? strstr(line, "\"\"\"") : NULL;
    bool continues = in_block ? !close : n > 0 && line[n - 1] == '\\';

    if (close) n = (size_t)(close - line);
    else if (!in_block && continues) n--;
    buf_add(&r->text, line, n);
    if (continues) buf_putc(&r->text, '\n');
    return continues;
}

/* Reads a whole question into r->text: one line, or several by \ or """. */
static enum line_end read_question(struct repl *r)
{
    const char *line;
    enum line_end end = line_read(r->line, "> ", &line);
    bool in_block;

    buf_clear(&r->text);
    if (end != LINE_OK) {
        if (end == LINE_INTERRUPT && *line == 0) repl_note("Ctrl-D or /exit exits");
        return end;
    }
    in_block = strncmp(line, "\"\"\"", 3) == 0;
    if (in_block) line += 3;
    while (add_line(r, line, in_block)) {
        end = line_read(r->line, ". ", &line);
        if (end == LINE_INTERRUPT) return end;
        if (end == LINE_EOF) break;
    }
    line_remember(r->line, cli_text(&r->text));
    return LINE_OK;
}

/* On stderr, so that stdout has the answers only. */
static void print_greeting(const struct repl *r)
{
    const tern_model_info *i = &r->g->info;

    fprintf(stderr, "%s (%s, %s) on %s; context %d tokens. /help lists commands, Ctrl-D exits.\n",
            r->g->shown, i->arch, i->dtype, i->device, i->context);
}

/* Empty lines and interrupted ones are skipped. */
static void read_and_answer(struct repl *r)
{
    while (!r->leaving) {
        enum line_end end = read_question(r);
        if (end == LINE_EOF) break;
        cli_text(&r->text);
        if (end == LINE_INTERRUPT || r->text.p[strspn(r->text.p, " \t\n")] == 0) continue;
        if (r->text.p[0] == '/') repl_command(r, r->text.p);
        else repl_answer(r);
    }
}

int repl_run(struct gen *g, const char *name)
{
    struct repl r = { .g = g };
    int code;

    if ((code = gen_open(g, name)) != EXIT_OK) return code;
    gen_watch(NULL);
    r.line = cli_need(line_open("tern"));
    if (g->system && !conversation_set_system(&r.conversation, g->system)) cli_nomem();
    if (line_is_tty(r.line)) {
        gen_ignore_interrupt();
        print_greeting(&r);
    }
    read_and_answer(&r);
    if (line_is_tty(r.line) && !r.leaving) fputc('\n', stderr);
    line_close(r.line);
    conversation_release(&r.conversation);
    buf_release(&r.text);
    gen_close(g);
    return r.code;
}

int cmd_chat(int argc, char **argv)
{
    struct gen g;
    const struct arg table[] = {
        GEN_MODEL_ARGS(&g),
        { "--system", NULL, ARG_STR, &g.system, "TEXT", "system message (none)" },
        GEN_SAMPLE_ARGS(&g),
        { "--verbose", "-v", ARG_FLAG, &g.verbose, NULL, "print statistics after every answer" },
        { 0 },
    };
    const char *pos[1];
    struct err e = { 0 };
    bool helped;
    int n_pos;

    gen_init(&g);
    if (args_parse(&verb, table, argc, argv, pos, 1, &n_pos, &helped, &e) != OK)
        return cmd_usage(verb.name, &e);
    if (helped) return EXIT_OK;
    if (n_pos > 0 && g.model) {
        err_set(&e, E_INVALID, "two models: -m %s and '%s'; give one", g.model, pos[0]);
        return cmd_usage(verb.name, &e);
    }
    if (n_pos > 0) g.model = pos[0];
    gen_collect_stops(&g, argc, argv);
    return repl_run(&g, verb.name);
}
