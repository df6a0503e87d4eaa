/* toolparse_impl.h - between toolparse.c and toolparse_harmony.c.
 *
 * A step function looks at the bytes that are held. It returns true if it changed something, so
 * that another step may follow, and false if it needs more bytes. */
#ifndef TERN_TOOLCALL_TOOLPARSE_IMPL_H
#define TERN_TOOLCALL_TOOLPARSE_IMPL_H

#include "toolcall/toolparse.h"

#include <ctype.h>

static inline bool is_space(char c) { return isspace((unsigned char)c); }

static inline size_t count_spaces(struct str s)
{
    size_t n = 0;

    while (n < s.n && is_space(s.p[n])) n++;
    return n;
}

/* Reports text or reasoning. White space at its beginning is dropped, at its end it waits. */
void toolparse_emit(struct toolparse *p, struct str s, bool think);
void toolparse_emit_held(struct toolparse *p, size_t n, bool think); /* the first n bytes held */
void toolparse_drop_held(struct toolparse *p, size_t n);
/* A toolcall_sink's callback: reports a complete call. */
void toolparse_emit_call(void *arg, const struct toolcall *call);
/* Reports the call and passes its arguments on from now on. */
void toolparse_begin_args(struct toolparse *p, const struct toolcall_head *h);
/* The mark that comes first in the bytes held, and its position; -1: none. *keep: the bytes at the
 * end that may be the beginning of one. marks ends with NULL. */
int toolparse_find_mark(const struct toolparse *p, const char *const *marks, size_t *at,
                        size_t *keep);

bool toolparse_step_header(struct toolparse *p);
bool toolparse_step_body(struct toolparse *p);
void toolparse_end_harmony(struct toolparse *p); /* at the end of the answer */
#endif
