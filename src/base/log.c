#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static enum log_level threshold = LOG_WARN;

void log_set_level(enum log_level least) { __atomic_store_n(&threshold, least, __ATOMIC_RELAXED); }

void log_line(enum log_level level, const char *fmt, ...)
{
    static const char *const names[] = { "debug", "info", "warning", "error" };
    char line[1024];
    va_list ap;
    int n;

    if (level < __atomic_load_n(&threshold, __ATOMIC_RELAXED)) return;
    n = snprintf(line, sizeof line, "tern: %s: ", names[level]);
    va_start(ap, fmt);
    n += vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
    va_end(ap);
    if ((size_t)n > sizeof line - 2) n = sizeof line - 2;
    line[n++] = '\n';                                    /* one write, so that lines stay whole */
    if (write(2, line, (size_t)n) < 0) return;
}
