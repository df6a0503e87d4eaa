#include "cli/progress.h"

#include "base/clock.h"

#include <stdio.h>
#include <unistd.h>

#define WIDTH 24 /* cells of the bar */

/* The line is 95 columns wide at most; progress_end overwrites it with spaces. */
void progress_begin(struct progress *p, bool bytes, bool quiet)
{
    *p = (struct progress){ .on = !quiet && isatty(STDERR_FILENO),
                            .bytes = bytes,
                            .start_ns = clock_ns() };
}

/* The time left is extrapolated from the average speed so far. */
void progress_show(struct progress *p, uint64_t done, uint64_t total, const char *item)
{
    char cells[WIDTH + 1], rate[32] = "";
    double part = total ? (double)done / (double)total : 0, seconds, left;

    if (!p->on || (p->drawn_ns && clock_ms_since(p->drawn_ns) < 100)) return;
    p->drawn_ns = clock_ns();
    seconds = clock_ms_since(p->start_ns) / 1e3;
    left = part > 0 ? seconds * (1 - part) / part : 0;
    for (int i = 0; i < WIDTH; i++) cells[i] = i < (int)(part * WIDTH) ? '=' : ' ';
    cells[WIDTH] = 0;
    if (seconds > 0.2 && p->bytes)
        snprintf(rate, sizeof rate, "%5.0f MB/s", (double)done / seconds / 1e6);
    else if (seconds > 0.2) snprintf(rate, sizeof rate, "%6.1f /s", (double)done / seconds);
    fprintf(stderr, "\r%3d%% [%s] %10s  %d:%02d left  %-32.32s", (int)(100 * part), cells, rate,
            (int)left / 60, (int)left % 60, item ? item : "");
    fflush(stderr);
}

void progress_end(struct progress *p)
{
    if (p->on && p->drawn_ns) fprintf(stderr, "\r%95s\r", "");
    p->on = false;
}
