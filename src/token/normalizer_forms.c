#include "token/normalizer.h"

#include "base/mem.h"
#include "base/utf8.h"

#include <utf8proc.h>

enum { MAX_EXPANSION = 32, SHORT_RUN = 16 };

static int class_of(int32_t cp)
{
    return cp < 0x300 ? 0 : utf8proc_get_property(cp)->combining_class;
}

static int32_t *decompose(struct str text, unsigned flags, size_t *n_out)
{
    int options =
        UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (flags & FORM_COMPAT ? UTF8PROC_COMPAT : 0);
    size_t n = 0, cap = text.n + MAX_EXPANSION;
    int32_t *v = mem_array(cap, sizeof *v), cp;
    int bound = 0;

    for (size_t i = 0; i < text.n;) {
        i += (size_t)utf8_next(str_skip(text, i), &cp);
        if (cap - n < MAX_EXPANSION) {
            cap *= 2;
            v = mem_grow(v, cap * sizeof *v);
        }
        if (cp < 0x80) {
            v[n++] = cp;
            continue;
        }
        utf8proc_ssize_t got =
            utf8proc_decompose_char(cp, v + n, (utf8proc_ssize_t)(cap - n), options, &bound);
        if (got <= 0 || got > MAX_EXPANSION) v[n++] = cp;
        else n += (size_t)got;
    }
    *n_out = n;
    return v;
}

/* Marks in the order of their classes, those of one class as they stood. */
static void order_run(int32_t *v, size_t n)
{
    size_t at[256] = { 0 }, sum = 0;
    int32_t *copy;

    if (n <= SHORT_RUN) {
        for (size_t i = 1; i < n; i++)
            for (size_t j = i; j && class_of(v[j - 1]) > class_of(v[j]); j--) {
                int32_t c = v[j];
                v[j] = v[j - 1];
                v[j - 1] = c;
            }
        return;
    }
    copy = mem_dup(v, n * sizeof *v);
    for (size_t i = 0; i < n; i++) at[class_of(v[i])]++;
    for (int c = 0; c < 256; c++) {
        size_t count = at[c];
        at[c] = sum;
        sum += count;
    }
    for (size_t i = 0; i < n; i++) v[at[class_of(copy[i])]++] = copy[i];
    mem_free(copy);
}

static void order(int32_t *v, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t end = i;
        while (end < n && class_of(v[end])) end++;
        if (end - i > 1) order_run(v + i, end - i);
        i = end + 1;
    }
}

int form_put(struct str text, unsigned flags, struct buf *out, struct err *e)
{
    size_t n;
    int32_t *v = decompose(text, flags, &n);
    int rc = OK;

    order(v, n);
    if (flags & FORM_COMPOSE) {
        utf8proc_ssize_t m =
            utf8proc_normalize_utf32(v, (utf8proc_ssize_t)n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (m < 0) rc = err_set(e, E_INTERNAL, "utf8proc: %s", utf8proc_errmsg(m));
        else n = (size_t)m;
    }
    for (size_t i = 0; rc == OK && i < n; i++) {
        char c[4];
        buf_add(out, c, (size_t)utf8_put(c, v[i]));
    }
    mem_free(v);
    return rc;
}
