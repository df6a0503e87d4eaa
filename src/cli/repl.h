/* repl.h - the interactive chat of `tern chat`, and of `tern run` without a prompt.
 *
 * repl_run (in cmd_chat.c) reads lines; a line that begins with '/' goes to repl_cmd.c, any other
 * is a question for the model (repl.c). */
#ifndef TERN_CLI_REPL_H
#define TERN_CLI_REPL_H

#include "base/buf.h"
#include "cli/conversation.h"
#include "cli/gen.h"
#include "cli/line.h"

struct repl {
    struct gen *g;
    struct line *line;
    struct conversation conversation;
    tern_stats stats; /* of the last answer */
    bool leaving;
    int code;        /* the exit code */
    struct buf text; /* the question, then the answer */
};

/* g has its flags; the model is opened and closed here. Returns the exit code. */
int repl_run(struct gen *g, const char *verb);

/* Sends the question in r->text, streams the answer to stdout, and adds both to the conversation. */
void repl_answer(struct repl *r);
/* Carries out a command such as "/set temp 0.5"; changes text. */
void repl_command(struct repl *r, char *text);

/* "(TEXT)" on a line of stderr: a remark of the program, not of the model. */
void repl_note(const char *text);
#endif
