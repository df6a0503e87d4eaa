#include "base/buf.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

void buf_reserve(struct buf *b, size_t more)
{
    size_t need, cap = b->cap ? b->cap : 64;

    if (!mem_add(b->n, more, &need) || need > PTRDIFF_MAX) need = SIZE_MAX; /* dies in mem_grow */
    if (need <= b->cap) return;
    while (cap < need && cap < SIZE_MAX / 2) cap *= 2;
    if (cap < need) cap = need;
    b->p = mem_grow(b->p, cap);
    b->cap = cap;
}

void buf_add(struct buf *b, const void *p, size_t n)
{
    if (n == 0) return;
    buf_reserve(b, n);
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

void buf_putc(struct buf *b, char c) { buf_add(b, &c, 1); }
void buf_puts(struct buf *b, const char *s) { buf_add(b, s, strlen(s)); }
void buf_put_str(struct buf *b, struct str s) { buf_add(b, s.p, s.n); }

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap, again;
    int n;

    va_start(ap, fmt);
    va_copy(again, ap);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n > 0) {
        buf_reserve(b, (size_t)n + 1);
        vsnprintf(b->p + b->n, (size_t)n + 1, fmt, again);
        b->n += (size_t)n;
    }
    va_end(again);
}

const char *buf_cstr(struct buf *b)
{
    buf_reserve(b, 1);
    b->p[b->n] = 0;
    return b->p;
}

void buf_release(struct buf *b)
{
    mem_free(b->p);
    *b = (struct buf){ 0 };
}
