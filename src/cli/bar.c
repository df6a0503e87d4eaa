#include "cli/bar.h"

#include "base/clock.h"

#include <stdio.h>
#include <unistd.h>

#define WIDTH 24

void bar_begin(struct bar *b, bool bytes, bool quiet)
{
    *b = (struct bar){ .on = !quiet && isatty(STDERR_FILENO),
                       .bytes = bytes,
                       .start_ns = clock_ns() };
}

void bar_show(struct bar *b, uint64_t done, uint64_t total, const char *what)
{
    char cells[WIDTH + 1], rate[32] = "";
    double part = total ? (double)done / (double)total : 0, seconds, left;

    if (!b->on || (b->drawn_ns && clock_ms_since(b->drawn_ns) < 100)) return;
    b->drawn_ns = clock_ns();
    seconds = clock_ms_since(b->start_ns) / 1e3;
    left = part > 0 ? seconds * (1 - part) / part : 0;
    for (int i = 0; i < WIDTH; i++) cells[i] = i < (int)(part * WIDTH) ? '=' : ' ';
    cells[WIDTH] = 0;
    if (seconds > 0.2 && b->bytes)
        snprintf(rate, sizeof rate, "%5.0f MB/s", (double)done / seconds / 1e6);
    else if (seconds > 0.2) snprintf(rate, sizeof rate, "%6.1f /s", (double)done / seconds);
    fprintf(stderr, "\r%3d%% [%s] %10s  %d:%02d left  %-32.32s", (int)(100 * part), cells, rate,
            (int)left / 60, (int)left % 60, what ? what : "");
    fflush(stderr);
}

void bar_end(struct bar *b)
{
    if (b->on && b->drawn_ns) fprintf(stderr, "\r%95s\r", "");
    b->on = false;
}
