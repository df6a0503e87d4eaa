/* bar.h - a line on the terminal that moves: how far, how fast, how long still.
 *
 * Drawn on stderr ten times a second at most, and only where stderr is a terminal. */
#ifndef TERN_CLI_BAR_H
#define TERN_CLI_BAR_H

#include <stdbool.h>
#include <stdint.h>

struct bar {
    bool on;
    bool bytes; /* what is counted: bytes (told in MB/s), or things */
    uint64_t start_ns, drawn_ns;
};

void bar_begin(struct bar *b, bool bytes, bool quiet);
void bar_show(struct bar *b, uint64_t done, uint64_t total, const char *what);
void bar_end(struct bar *b); /* wipes the line */
#endif
