/* log.h - log lines on stderr, one per event, with a level. The only module that prints there.
 *
 * A line is written with one write(), so lines of several threads do not mix. Three formats:
 *   LOG_PLAIN  "tern: level: text", for programs on a terminal. The write blocks.
 *   LOG_TEXT   "time level text", for a server.
 *   LOG_JSON   one JSON object per line, for a server behind a log collector.
 * In the two server formats a slow or stuck reader of stderr never stops a request: a line for
 * which the pipe has no room is dropped and counted. The same happens to a line that cannot be
 * written or for which there is no memory, in every format. The next line that can be written is
 * preceded by a warning with the number of lines lost.
 *
 * log_line allocates nothing, so it can report that memory is short. Any thread may call. */
#ifndef TERN_BASE_LOG_H
#define TERN_BASE_LOG_H

#include "base/buf.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };
enum log_format { LOG_PLAIN, LOG_TEXT, LOG_JSON };

void log_set_level(enum log_level least); /* lines below it are not written; default LOG_WARN */
void log_set_format(enum log_format f);   /* default LOG_PLAIN */
/* The name of this process among several: each log line has it, as "[name]" or as member "worker". Cut
 * at 63 bytes. To be called before other threads start. */
void log_set_name(const char *name);
bool log_is_on(enum log_level level);
/* "debug", "info", "warn", "warning" or "error". false: another name, *out is unchanged. */
bool log_level_by_name(struct str name, enum log_level *out);
unsigned long log_n_dropped(void); /* lines dropped and not reported yet */

/* The text is cut at 1023 bytes. */
void log_line(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)
#define log_info(...) log_line(LOG_INFO, __VA_ARGS__)
#define log_warn(...) log_line(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)

/* A line with fields: "text key=value ...", or members of the JSON object after "msg". log_begin
 * starts it, log_end writes it and releases the buffer. One thread at a time uses an event. */
struct log_event {
    struct buf b;           /* the line so far */
    enum log_format format; /* as it was at log_begin */
    bool on;                /* false: the level is not logged, all calls do nothing */
};

void log_begin(struct log_event *ev, enum log_level level, const char *text);
void log_str(struct log_event *ev, const char *key, struct str v);
void log_int(struct log_event *ev, const char *key, int64_t v);
void log_ms(struct log_event *ev, const char *key, double v); /* with three decimals */
void log_end(struct log_event *ev);
#endif
