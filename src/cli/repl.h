/* repl.h - the talk in the terminal, for `tern chat` and for `tern run` without a prompt. */
#ifndef TERN_CLI_REPL_H
#define TERN_CLI_REPL_H

#include "cli/gen.h"
#include "cli/line.h"
#include "cli/conversation.h"

struct chat {
    struct gen *g;
    struct line *line;
    struct talk talk;
    tern_stats stats; /* of the last answer */
    bool leaving;
    int code;
    char *text; /* a question or an answer that grows */
    size_t n, cap;
};

/* g has its flags; opens and closes the model itself. Returns the exit code. */
int chat_run(struct gen *g, const char *verb);

/* Asks what is in c->text, streams the answer, and adds both to the talk. */
void chat_answer(struct chat *c);
void chat_command(struct chat *c, char *text); /* "/set temp 0.5" */

void chat_text_add(struct chat *c, const char *s, size_t n);
void chat_text_clear(struct chat *c);
#endif
