/* line.h - a line from whoever talks to us: edited and remembered on a terminal, plain from a pipe.
 */
#ifndef TERN_CLI_LINE_H
#define TERN_CLI_LINE_H

#include <stdbool.h>

struct line;

enum line_end { LINE_OK, LINE_INTERRUPT, LINE_EOF };

struct line *line_open(const char *program);
void line_close(struct line *l); /* keeps the history; NULL is fine */
bool line_is_tty(const struct line *l);

/* The next line without its end, valid until the next call. LINE_INTERRUPT: Ctrl-C; *text is then
 * what had been typed ("" or more). */
enum line_end line_read(struct line *l, const char *prompt, const char **text);
void line_remember(struct line *l, const char *text); /* into the history */
#endif
