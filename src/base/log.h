/* log.h - one line an event, with a level, on stderr. The only place that prints.
 *
 * A line is one write, so that lines of several threads stay whole. In the plain form (programs on
 * a terminal) a line is "tern: level: text". A server sets the text form, with time and level, or
 * the JSON form, one object a line; in these a reader that does not read stops nothing: lines it
 * has no room for are dropped, and their number is logged when there is room again. */
#ifndef TERN_BASE_LOG_H
#define TERN_BASE_LOG_H

#include "base/buf.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };
enum log_format { LOG_PLAIN, LOG_TEXT, LOG_JSON };

void log_set_level(enum log_level least); /* default LOG_WARN */
void log_set_format(enum log_format f);   /* default LOG_PLAIN */
bool log_is_on(enum log_level level);
/* "debug", "info", "warn", "error"; false: none of them. */
bool log_level_by_name(struct str name, enum log_level *out);

void log_line(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)
#define log_info(...) log_line(LOG_INFO, __VA_ARGS__)
#define log_warn(...) log_line(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)

/* A line with fields: `what key=value ...`, or members of the JSON object behind "msg". log_end
 * writes it and releases the buffer; between begin and end the caller holds it. */
struct log_event {
    struct buf b;
    enum log_level level;
    bool json, on;
};

void log_begin(struct log_event *ev, enum log_level level, const char *what);
void log_str(struct log_event *ev, const char *key, struct str v);
void log_int(struct log_event *ev, const char *key, int64_t v);
void log_ms(struct log_event *ev, const char *key, double v); /* three decimals */
void log_end(struct log_event *ev);
#endif
