/* buf.h - bytes that grow. A zeroed buf is a valid empty one. */
#ifndef TERN_BASE_BUF_H
#define TERN_BASE_BUF_H

#include "base/str.h"

#include <stddef.h>

struct buf {
    char *p;
    size_t n, cap;
};

void buf_reserve(struct buf *b, size_t more); /* room for that many more bytes */
void buf_add(struct buf *b, const void *p, size_t n);
void buf_putc(struct buf *b, char c);
void buf_puts(struct buf *b, const char *s);
void buf_put_str(struct buf *b, struct str s);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *buf_cstr(struct buf *b); /* with a NUL behind, which does not count */
static inline struct str buf_str(const struct buf *b) { return str_of(b->p, b->n); }
static inline void buf_clear(struct buf *b) { b->n = 0; }
void buf_release(struct buf *b);
#endif
