/* line.h - lines of input: with editing and history (libedit) on a terminal, plain from a pipe.
 *
 * The history is kept in $XDG_STATE_HOME/tern/history or ~/.local/state/tern/history, mode 600. */
#ifndef TERN_CLI_LINE_H
#define TERN_CLI_LINE_H

#include <stdbool.h>

struct line;

enum line_end { LINE_OK, LINE_INTERRUPT, LINE_EOF };

struct line *line_open(const char *program); /* NULL: no memory */
void line_close(struct line *l);             /* saves the history; NULL is fine */
bool line_is_tty(const struct line *l);

/* Reads the next line. *text is the line without its line end, valid until the next call. On
 * LINE_INTERRUPT (Ctrl-C) it is what had been typed, maybe "". */
enum line_end line_read(struct line *l, const char *prompt, const char **text);
void line_remember(struct line *l, const char *text); /* adds to the history */
#endif
