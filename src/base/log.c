#include "base/log.h"

#include "base/jsonw.h"

#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static int threshold = LOG_WARN, format = LOG_PLAIN;
static const char *const names[] = { "debug", "info", "warning", "error" };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned long n_dropped; /* under lock */

void log_set_level(enum log_level least)
{
    __atomic_store_n(&threshold, (int)least, __ATOMIC_RELAXED);
}
void log_set_format(enum log_format f) { __atomic_store_n(&format, (int)f, __ATOMIC_RELAXED); }
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

/* "2026-11-15T06:31:40.123Z" */
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

/* Up to where the level and the text go. */
static void put_head(struct buf *b, enum log_level level, enum log_format f, struct str msg)
{
    struct jsonw w = { .out = b };
    char time[32];

    if (f == LOG_JSON) {
        jsonw_obj(&w);
        jsonw_key(&w, "time"), jsonw_str(&w, str_c(now_text(time)));
        jsonw_key(&w, "level"), jsonw_str(&w, str_c(names[level]));
        jsonw_key(&w, "msg"), jsonw_str(&w, msg);
    } else if (f == LOG_TEXT) {
        buf_printf(b, "%s %-7s %.*s", now_text(time), names[level], STR_ARG(msg));
    } else {
        buf_printf(b, "tern: %s: %.*s", names[level], STR_ARG(msg));
    }
}

/* Linux says a pipe can be written when a page of it is free: a line fits into that. */
static bool has_room(void)
{
    struct pollfd p = { .fd = 2, .events = POLLOUT };
    return poll(&p, 1, 0) == 1 && (p.revents & POLLOUT);
}

static bool put_line(const struct buf *b)
{
    ssize_t n;

    if (!has_room()) return false;
    n = write(2, b->p, b->n);
    return n == (ssize_t)b->n;
}

static void tell_dropped(enum log_format f)
{
    struct buf b = { 0 };
    char msg[64];

    snprintf(msg, sizeof msg, "%lu log lines were dropped: nobody read them", n_dropped);
    put_head(&b, LOG_WARN, f, str_c(msg));
    buf_puts(&b, f == LOG_JSON ? "}\n" : "\n");
    if (put_line(&b)) n_dropped = 0;
    buf_release(&b);
}

static void put(const struct buf *b, enum log_format f)
{
    if (f == LOG_PLAIN) {
        if (write(2, b->p, b->n) < 0) return;
        return;
    }
    pthread_mutex_lock(&lock);
    if (n_dropped > 0) tell_dropped(f);
    if (n_dropped > 0 || !put_line(b)) n_dropped++;
    pthread_mutex_unlock(&lock);
}

void log_line(enum log_level level, const char *fmt, ...)
{
    enum log_format f = (enum log_format)__atomic_load_n(&format, __ATOMIC_RELAXED);
    char msg[1024];
    struct buf b = { 0 };
    va_list ap;
    int n;

    if (!log_is_on(level)) return;
    va_start(ap, fmt);
    n = vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    if (n < 0) return;
    for (char *c = msg; f == LOG_TEXT && *c; c++)
        if ((unsigned char)*c < ' ') *c = ' '; /* what strangers sent stays in its line */
    put_head(&b, level, f, str_of(msg, (size_t)n < sizeof msg ? (size_t)n : sizeof msg - 1));
    buf_puts(&b, f == LOG_JSON ? "}\n" : "\n");
    put(&b, f);
    buf_release(&b);
}

void log_begin(struct log_event *ev, enum log_level level, const char *what)
{
    enum log_format f = (enum log_format)__atomic_load_n(&format, __ATOMIC_RELAXED);

    *ev = (struct log_event){ .level = level, .json = f == LOG_JSON, .on = log_is_on(level) };
    if (ev->on) put_head(&ev->b, level, f, str_c(what));
}

static void put_key(struct log_event *ev, const char *key)
{
    struct jsonw w = { .out = &ev->b, .comma = true };

    if (ev->json) jsonw_key(&w, key);
    else buf_printf(&ev->b, " %s=", key);
}

void log_str(struct log_event *ev, const char *key, struct str v)
{
    struct jsonw w = { .out = &ev->b };
    bool plain = v.n > 0;

    if (!ev->on) return;
    put_key(ev, key);
    for (size_t i = 0; i < v.n; i++)
        if ((unsigned char)v.p[i] <= ' ' || v.p[i] == '"' || v.p[i] == '=' ||
            (unsigned char)v.p[i] >= 0x7f)
            plain = false;
    if (ev->json || !plain) jsonw_str(&w, v);
    else buf_put_str(&ev->b, v);
}

void log_int(struct log_event *ev, const char *key, int64_t v)
{
    if (!ev->on) return;
    put_key(ev, key);
    buf_printf(&ev->b, "%lld", (long long)v);
}

void log_ms(struct log_event *ev, const char *key, double v)
{
    if (!ev->on) return;
    put_key(ev, key);
    buf_printf(&ev->b, "%.3f", v);
}

void log_end(struct log_event *ev)
{
    if (ev->on) {
        buf_puts(&ev->b, ev->json ? "}\n" : "\n");
        put(&ev->b, (enum log_format)__atomic_load_n(&format, __ATOMIC_RELAXED));
    }
    buf_release(&ev->b);
}
