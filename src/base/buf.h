/* buf.h - a growing byte buffer. A zeroed buf is a valid empty one.
 *
 * A buf remembers its first failed allocation: from then on additions do nothing and buf_check
 * returns E_NOMEM. The code that passes the bytes on calls buf_check once, at the end. The buf owns
 * its bytes until buf_release; pointers into them are valid until the next addition. */
#ifndef TERN_BASE_BUF_H
#define TERN_BASE_BUF_H

#include "base/err.h"
#include "base/str.h"

#include <stddef.h>

struct buf {
    char *p;       /* NULL while nothing was added; not NUL-terminated, see buf_cstr */
    size_t n, cap; /* bytes used and allocated */
    bool failed;   /* an addition found no memory; the bytes are incomplete */
};

bool buf_reserve(struct buf *b, size_t more); /* room for `more` bytes; false: failed */
void buf_add(struct buf *b, const void *p, size_t n);
void buf_putc(struct buf *b, char c);
void buf_puts(struct buf *b, const char *s);
void buf_put_str(struct buf *b, struct str s);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *buf_cstr(struct buf *b); /* NUL-terminated; "" after a failure, never NULL */
int buf_check(const struct buf *b, struct err *e); /* OK, or E_NOMEM after a failure */
static inline struct str buf_str(const struct buf *b) { return str_of(b->p, b->n); } /* borrowed */
/* Empties the buf and forgets a failure, but keeps the allocation. */
static inline void buf_clear(struct buf *b) { b->n = 0, b->failed = false; }
void buf_release(struct buf *b); /* frees the bytes; b is empty and valid afterwards */
#endif
