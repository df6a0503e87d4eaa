#include "base/log.h"

#include "base/jsonw.h"

#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* JSON writes a control character as six bytes (\u001f), so a line of log_line has at most
 * LINE_BYTES bytes. */
#define MSG_BYTES 1024
#define NAME_BYTES 64
#define LINE_BYTES (6 * MSG_BYTES + 2 * NAME_BYTES + 160)

static int threshold = LOG_WARN, format = LOG_PLAIN; /* atomic: set at start-up, read anywhere */
static char own_name[NAME_BYTES];
static const char *const names[] = { "debug", "info", "warning", "error" };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* one writer; guards n_dropped */
static unsigned long n_dropped;

void log_set_level(enum log_level least)
{
    __atomic_store_n(&threshold, (int)least, __ATOMIC_RELAXED);
}
void log_set_format(enum log_format f) { __atomic_store_n(&format, (int)f, __ATOMIC_RELAXED); }
void log_set_name(const char *name)
{
    snprintf(own_name, sizeof own_name, "%s", name);
    for (char *c = own_name; *c; c++)
        if ((unsigned char)*c < ' ' || (unsigned char)*c >= 0x7f) *c = '?';
}

bool log_is_on(enum log_level level)
{
    return (int)level >= __atomic_load_n(&threshold, __ATOMIC_RELAXED);
}

bool log_level_by_name(struct str name, enum log_level *out)
{
    for (int i = LOG_DEBUG; i <= LOG_ERROR; i++)
        if (str_is(name, names[i]) || (i == LOG_WARN && str_is(name, "warn"))) {
            *out = (enum log_level)i;
            return true;
        }
    return false;
}

/* UTC with milliseconds, ISO 8601: "2026-11-15T06:31:40.123Z" */
static const char *now_text(char out[32])
{
    struct timespec t;
    struct tm tm;
    size_t n;

    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &tm);
    n = strftime(out, 24, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out + n, 32 - n, ".%03dZ", (int)(t.tv_nsec / 1000000));
    return out;
}

static enum log_format current_format(void)
{
    return (enum log_format)__atomic_load_n(&format, __ATOMIC_RELAXED);
}

/* Time, level and message. A JSON object stays open for more members. */
static void write_head(struct buf *b, enum log_level level, enum log_format f, struct str msg)
{
    struct jsonw w = { .out = b };
    const char *open = *own_name ? "[" : "", *close = *own_name ? "] " : "";
    char time[32];

    if (f == LOG_JSON) {
        jsonw_obj(&w);
        jsonw_key(&w, "time"), jsonw_str(&w, str_c(now_text(time)));
        jsonw_key(&w, "level"), jsonw_str(&w, str_c(names[level]));
        if (*own_name) jsonw_key(&w, "worker"), jsonw_str(&w, str_c(own_name));
        jsonw_key(&w, "msg"), jsonw_str(&w, msg);
    } else if (f == LOG_TEXT) {
        buf_printf(b, "%s %-7s %s%s%s%.*s", now_text(time), names[level], open, own_name, close,
                   STR_ARG(msg));
    } else {
        buf_printf(b, "tern: %s: %s%s%s%.*s", names[level], open, own_name, close, STR_ARG(msg));
    }
}

/* poll reports a pipe as writable when PIPE_BUF bytes (4 KiB on Linux) are free, so a line of up
 * to that size does not block. Longer lines are rare and may block for a moment. */
static bool stderr_has_room(void)
{
    struct pollfd p = { .fd = 2, .events = POLLOUT };
    return poll(&p, 1, 0) == 1 && (p.revents & POLLOUT);
}

static bool write_line(const struct buf *b, enum log_format f)
{
    if (b->failed || (f != LOG_PLAIN && !stderr_has_room())) return false;
    return write(2, b->p, b->n) == (ssize_t)b->n;
}

/* Under lock. */
static void report_dropped(enum log_format f)
{
    char space[512], msg[96];
    struct buf b = { .p = space,
                     .cap = sizeof space }; /* large enough: never grows, not released */

    snprintf(msg, sizeof msg, "%lu log lines were dropped: stderr was not read or memory was short",
             n_dropped);
    write_head(&b, LOG_WARN, f, str_c(msg));
    buf_puts(&b, f == LOG_JSON ? "}\n" : "\n");
    if (write_line(&b, f)) n_dropped = 0;
}

static void write_or_drop(const struct buf *b, enum log_format f)
{
    pthread_mutex_lock(&lock);
    if (n_dropped > 0) report_dropped(f);
    if (n_dropped > 0 || !write_line(b, f)) n_dropped++;
    pthread_mutex_unlock(&lock);
}

unsigned long log_n_dropped(void)
{
    unsigned long n;

    pthread_mutex_lock(&lock);
    n = n_dropped;
    pthread_mutex_unlock(&lock);
    return n;
}

void log_line(enum log_level level, const char *fmt, ...)
{
    enum log_format f = current_format();
    char msg[MSG_BYTES], space[LINE_BYTES];
    struct buf b = { .p = space,
                     .cap = sizeof space }; /* large enough: never grows, not released */
    va_list ap;
    int n;

    if (!log_is_on(level)) return;
    va_start(ap, fmt);
    n = vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    if (n < 0) return;
    for (char *c = msg; f == LOG_TEXT && *c; c++)
        if ((unsigned char)*c < ' ') *c = ' '; /* text from a client must not forge a second line */
    write_head(&b, level, f, str_of(msg, (size_t)n < sizeof msg ? (size_t)n : sizeof msg - 1));
    buf_puts(&b, f == LOG_JSON ? "}\n" : "\n");
    write_or_drop(&b, f);
}

void log_begin(struct log_event *ev, enum log_level level, const char *text)
{
    *ev = (struct log_event){ .format = current_format(), .on = log_is_on(level) };
    if (ev->on) write_head(&ev->b, level, ev->format, str_c(text));
}

/* A member of the JSON object, or " key=". comma is set, because "msg" precedes it. */
static void write_key(struct log_event *ev, const char *key)
{
    struct jsonw w = { .out = &ev->b, .comma = true };

    if (ev->format == LOG_JSON) jsonw_key(&w, key);
    else buf_printf(&ev->b, " %s=", key);
}

/* In the text formats a value is quoted only if it could be misread. */
void log_str(struct log_event *ev, const char *key, struct str v)
{
    struct jsonw w = { .out = &ev->b };
    bool bare = v.n > 0; /* readable without quotes */

    if (!ev->on) return;
    write_key(ev, key);
    for (size_t i = 0; i < v.n; i++)
        if ((unsigned char)v.p[i] <= ' ' || v.p[i] == '"' || v.p[i] == '=' ||
            (unsigned char)v.p[i] >= 0x7f)
            bare = false;
    if (ev->format == LOG_JSON || !bare) jsonw_str(&w, v);
    else buf_put_str(&ev->b, v);
}

void log_int(struct log_event *ev, const char *key, int64_t v)
{
    if (!ev->on) return;
    write_key(ev, key);
    buf_printf(&ev->b, "%lld", (long long)v);
}

void log_ms(struct log_event *ev, const char *key, double v)
{
    if (!ev->on) return;
    write_key(ev, key);
    buf_printf(&ev->b, "%.3f", v);
}

/* Safe to call when the level is off: the buffer is then empty. */
void log_end(struct log_event *ev)
{
    if (ev->on) {
        buf_puts(&ev->b, ev->format == LOG_JSON ? "}\n" : "\n");
        write_or_drop(&ev->b, ev->format);
    }
    buf_release(&ev->b);
}
