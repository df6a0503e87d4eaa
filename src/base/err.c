#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Does not allocate: it must work when memory is short. */
int err_set(struct err *e, int code, const char *fmt, ...)
{
    if (e) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(e->msg, sizeof e->msg, fmt, ap);
        va_end(ap);
        e->code = code;
    }
    return code;
}

int err_nomem(struct err *e, const char *what)
{
    return err_set(e, E_NOMEM, "out of memory: no room for %s", what);
}

/* The old message is copied first, because the new one is written over it. */
int err_wrap(struct err *e, const char *fmt, ...)
{
    char old[sizeof e->msg];
    va_list ap;
    int n;

    if (!e) return E_INTERNAL;
    memcpy(old, e->msg, sizeof old);
    va_start(ap, fmt);
    n = vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    if (n < 0) n = 0;
    /* Appended byte by byte and cut at the end of msg: snprintf of "%s: %s" warns of truncation. */
    for (const char *p = ": "; (size_t)n + 1 < sizeof e->msg && *p; p++) e->msg[n++] = *p;
    for (const char *p = old; (size_t)n + 1 < sizeof e->msg && *p; p++) e->msg[n++] = *p;
    e->msg[(size_t)n < sizeof e->msg ? (size_t)n : sizeof e->msg - 1] = 0;
    return e->code;
}

const char *err_name(int code)
{
    switch (code) {
    case OK: return "ok";
    case E_INVALID: return "invalid";
    case E_IO: return "io";
    case E_FORMAT: return "format";
    case E_NOMEM: return "out_of_memory";
    case E_UNSUPPORTED: return "unsupported";
    case E_NOTFOUND: return "not_found";
    case E_CONTEXT: return "context_exceeded";
    case E_CANCELLED: return "cancelled";
    case E_DEVICE: return "device";
    case E_QUEUE_FULL: return "queue_full";
    case E_MEMORY: return "memory_admission";
    case E_CONCURRENCY: return "concurrency_limit";
    case E_RATE: return "rate_limited";
    case E_SHUTDOWN: return "shutting_down";
    case E_LOADING: return "model_loading";
    case E_BYTES: return "body_bytes_limit";
    case E_DEADLINE: return "deadline_exceeded";
    case E_DENIED: return "unauthorized";
    case E_DEVICE_MEMORY: return "device_oom";
    case E_DAMAGED: return "model_damaged";
    case E_WORKER: return "worker_lost";
    case E_FULL: return "disk_full";
    case E_READONLY: return "read_only";
    case E_STORE: return "store_unavailable";
    default: return "internal";
    }
}

int err_by_name(const char *name)
{
    for (int code = E_INVALID; code >= E_STORE; code--)
        if (strcmp(err_name(code), name) == 0) return code;
    return E_INTERNAL;
}
