#include "base/buf.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>

/* Growth at least doubles the capacity, so that n additions copy O(n) bytes. */
bool buf_reserve(struct buf *b, size_t more)
{
    size_t need;

    if (b->failed || !mem_add(b->n, more, &need)) return !(b->failed = true);
    if (need <= b->cap) return true;
    if (need < 64) need = 64;
    return !(b->failed = !mem_ensure(b->p, b->cap, need));
}

void buf_add(struct buf *b, const void *p, size_t n)
{
    if (n == 0 || !buf_reserve(b, n)) return;
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

void buf_putc(struct buf *b, char c) { buf_add(b, &c, 1); }
void buf_puts(struct buf *b, const char *s) { buf_add(b, s, strlen(s)); }
void buf_put_str(struct buf *b, struct str s) { buf_add(b, s.p, s.n); }

/* Formats twice: once to measure, once to write. */
void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap, again;
    int n;

    va_start(ap, fmt);
    va_copy(again, ap);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n > 0 && buf_reserve(b, (size_t)n + 1)) { /* vsnprintf writes a NUL behind the text */
        vsnprintf(b->p + b->n, (size_t)n + 1, fmt, again);
        b->n += (size_t)n;
    }
    va_end(again);
}

/* The NUL is not counted in n, so that more can be appended. */
const char *buf_cstr(struct buf *b)
{
    if (!buf_reserve(b, 1)) return "";
    b->p[b->n] = 0;
    return b->p;
}

int buf_check(const struct buf *b, struct err *e)
{
    return b->failed ? err_nomem(e, "a byte buffer") : OK;
}

void buf_release(struct buf *b)
{
    mem_free(b->p);
    *b = (struct buf){ 0 };
}
