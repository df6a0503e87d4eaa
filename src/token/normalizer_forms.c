/* normalizer_forms.c - Unicode normal forms NFC, NFD, NFKC and NFKD in linear time.
 *
 * utf8proc decomposes and composes characters. Its canonical ordering is a bubble sort, quadratic
 * in the length of a run of combining marks, and a text may be one long run; so the ordering is
 * done here, with a counting sort over the 256 combining classes for long runs. */
#include "token/normalizer.h"

#include "base/mem.h"
#include "base/utf8.h"

#include <utf8proc.h>

enum {
    MAX_EXPANSION = 32, /* characters one character decomposes to at most; Unicode has 18 */
    SHORT_RUN = 16      /* characters; insertion sort is faster up to here */
};

static int find_combining_class(int32_t cp)
{
    return cp < 0x300 ? 0 : utf8proc_get_property(cp)->combining_class;
}

/* The decomposition of text as code points, from mem_alloc; NULL: no memory. */
static int32_t *decompose_text(struct str text, unsigned flags, size_t *n_out)
{
    int options =
        UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (flags & FORM_COMPAT ? UTF8PROC_COMPAT : 0);
    size_t n = 0, cap = text.n + MAX_EXPANSION;
    int32_t *v = mem_array(cap, sizeof *v), cp;
    int bound = 0;

    if (!v) return NULL;
    for (size_t i = 0; i < text.n;) {
        i += (size_t)utf8_next(str_skip(text, i), &cp);
        if (!mem_ensure(v, cap, n + MAX_EXPANSION)) {
            mem_free(v);
            return NULL;
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

/* Sorts a run of combining marks by class; marks of one class keep their order. false: no memory. */
static bool sort_run(int32_t *v, size_t n)
{
    size_t at[256] = { 0 }, sum = 0;
    int32_t *copy;

    if (n <= SHORT_RUN) {
        for (size_t i = 1; i < n; i++)
            for (size_t j = i; j && find_combining_class(v[j - 1]) > find_combining_class(v[j]);
                 j--) {
                int32_t c = v[j];
                v[j] = v[j - 1];
                v[j - 1] = c;
            }
        return true;
    }
    if (!(copy = mem_dup(v, n * sizeof *v))) return false;
    for (size_t i = 0; i < n; i++) at[find_combining_class(v[i])]++;
    for (int c = 0; c < 256; c++) {
        size_t count = at[c];
        at[c] = sum;
        sum += count;
    }
    for (size_t i = 0; i < n; i++) v[at[find_combining_class(copy[i])]++] = copy[i];
    mem_free(copy);
    return true;
}

/* Canonical ordering: sorts every run of characters whose class is not 0. false: no memory. */
static bool sort_marks(int32_t *v, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t end = i;
        while (end < n && find_combining_class(v[end])) end++;
        if (end - i > 1 && !sort_run(v + i, end - i)) return false;
        i = end + 1;
    }
    return true;
}

/* Decompose, order, compose: the three parts of the normalization algorithm (Unicode UAX #15). */
int form_put(struct str text, unsigned flags, struct buf *out, struct err *e)
{
    size_t n = 0;
    int32_t *v = decompose_text(text, flags, &n);
    int rc = OK;

    if (!v || !sort_marks(v, n)) {
        mem_free(v);
        return err_nomem(e, "a normalized text");
    }
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
    return rc == OK ? buf_check(out, e) : rc;
}
