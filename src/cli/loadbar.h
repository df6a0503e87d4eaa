/* loadbar.h - a line on the terminal while a model is being opened: its name, its size, the part of its
 * weights that are loaded, the time so far.
 *
 * Opening is one call that returns when the model is ready. A thread draws the line, on a terminal only,
 * and only when opening takes longer than a moment. */
#ifndef TERN_CLI_LOADBAR_H
#define TERN_CLI_LOADBAR_H

#include <stdbool.h>

struct loadbar;

/* NULL: nothing is drawn, which is no failure. path: of the model. */
struct loadbar *loadbar_start(const char *path, const char *name, bool quiet);
/* The part that is loaded, of the type of tern_options.on_progress; bar NULL: nothing happens. */
void loadbar_tell(void *bar, int percent);
void loadbar_stop(struct loadbar *b); /* erases the line; NULL is allowed */
#endif
