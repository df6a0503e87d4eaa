/* progress.h - a progress bar on stderr: percentage, rate, time left, the current item.
 *
 * Redrawn at most ten times a second, and only where stderr is a terminal. One thread. */
#ifndef TERN_CLI_PROGRESS_H
#define TERN_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    bool on;
    bool bytes; /* the counts are bytes, shown as MB/s; otherwise items, shown as /s */
    uint64_t start_ns, drawn_ns;
};

void progress_begin(struct progress *p, bool bytes, bool quiet);
void progress_show(struct progress *p, uint64_t done, uint64_t total, const char *item);
void progress_end(struct progress *p); /* erases the line */
#endif
