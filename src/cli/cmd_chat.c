/* cmd_chat.c - tern chat: a talk in the terminal. */
#include "cli/repl.h"
#include "cli/cmd.h"

#include <stdlib.h>
#include <string.h>

static const struct verb verb = {
    "chat",
    "tern chat [-m MODEL] [flags]",
    "Talks with a model. Lines are edited and remembered (history in ~/.local/state/tern); Ctrl-C "
    "stops\n"
    "an answer, Ctrl-D leaves. A line that ends with \\ goes on; \"\"\" opens and closes a text of "
    "many\n"
    "lines. /help lists the commands. When stdin is a pipe, each line is a turn.\n"
    "\n"
    "examples:\n"
    "  tern chat\n"
    "  tern chat -m model.gguf --system \"You are a patient teacher.\" --temp 0.5",
};

/* One more line of a question; false: it is over (or given up). */
static bool more_lines(struct chat *c, const char *line, bool *block, enum line_end *end)
{
    size_t n = strlen(line);

    if (*block) {
        const char *close = strstr(line, "\"\"\"");
        chat_text_add(c, line, close ? (size_t)(close - line) : n);
        if (close) return false;
        chat_text_add(c, "\n", 1);
    } else if (n > 0 && line[n - 1] == '\\') {
        chat_text_add(c, line, n - 1);
        chat_text_add(c, "\n", 1);
    } else {
        chat_text_add(c, line, n);
        return false;
    }
    *end = LINE_OK;
    return true;
}

/* A whole question into c->text: one line, or several by \ or """. */
static enum line_end read_question(struct chat *c)
{
    const char *line;
    enum line_end end = line_read(c->line, "> ", &line);
    bool block = false;

    chat_text_clear(c);
    if (end != LINE_OK) {
        if (end == LINE_INTERRUPT && *line == 0) fprintf(stderr, "(Ctrl-D or /exit leaves)\n");
        return end;
    }
    if (strncmp(line, "\"\"\"", 3) == 0) block = true, line += 3;
    while (more_lines(c, line, &block, &end)) {
        end = line_read(c->line, ". ", &line);
        if (end == LINE_INTERRUPT) return end;
        if (end == LINE_EOF) break;
    }
    line_remember(c->line, c->text);
    return LINE_OK;
}

static void greet(const struct chat *c)
{
    const tern_model_info *i = &c->g->info;
    fprintf(stderr, "%s (%s, %s) on %s; context %d tokens. /help lists commands, Ctrl-D leaves.\n",
            i->name, i->arch, i->dtype, i->device, i->context);
}

int chat_run(struct gen *g, const char *name)
{
    struct chat c = { .g = g };
    int code;

    if ((code = gen_open(g, name)) != EXIT_OK) return code;
    gen_watch(NULL);
    c.line = line_open("tern");
    if (g->system) talk_set_system(&c.talk, g->system);
    if (line_is_tty(c.line)) {
        gen_stay();
        greet(&c);
    }
    while (!c.leaving) {
        enum line_end end = read_question(&c);
        if (end == LINE_EOF) break;
        if (end == LINE_INTERRUPT || c.text[strspn(c.text, " \t\n")] == 0) continue;
        if (c.text[0] == '/') chat_command(&c, c.text);
        else chat_answer(&c);
    }
    if (line_is_tty(c.line) && !c.leaving) fputc('\n', stderr);
    line_close(c.line);
    talk_release(&c.talk);
    free(c.text);
    gen_close(g);
    return c.code;
}

int cmd_chat(int argc, char **argv)
{
    struct gen g;
    const struct arg table[] = {
        GEN_MODEL_ARGS(&g),
        { "--system", NULL, ARG_STR, &g.system, "TEXT",
          "instructions for the model (default: none)" },
        GEN_SAMPLE_ARGS(&g),
        { "--verbose", "-v", ARG_FLAG, &g.verbose, NULL, "statistics after every answer" },
        { 0 },
    };
    const char *pos[1];
    struct err e = { 0 };
    bool helped;
    int n_pos;

    gen_init(&g);
    if (args_parse(&verb, table, argc, argv, pos, 0, &n_pos, &helped, &e) != OK)
        return cmd_usage(verb.name, &e);
    if (helped) return EXIT_OK;
    gen_take_stops(&g, argc, argv);
    return chat_run(&g, verb.name);
}
