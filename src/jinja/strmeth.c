/* strmeth.c - methods of str that search, replace, join, pad and format.
 *
 * Positions count code points, as in Python; the text is UTF-8, so they are converted here. */
#include "base/utf8.h"
#include "jinja/builtins.h"
#include "jinja/iter.h"
#include "jinja/render.h"

/* A method of str receives the str and its arguments. */
#define METHOD(name) \
    static struct jval m_##name(struct render *r, struct jval self, const struct jargs *a)

/* A positional argument that must be a str; false: the rendering failed. */
static bool read_str_arg(struct render *r, const struct jargs *a, size_t i, const char *what,
                         struct str *out)
{
    if (i < a->n && a->v[i].kind == J_STR) {
        *out = a->v[i].s;
        return true;
    }
    if (i < a->n) jv_fail(r, "%s: must be str, not %s", what, jv_type(a->v[i]));
    else jv_fail(r, "%s takes at least %zu arguments (%zu given)", what, i + 1, a->n);
    return false;
}

/* ---- searching ---- */

/* The optional arguments start and end behind the first one: *out is s[start:end], *at its offset
 * in code points. out->p is NULL if start lies behind end: then not even "" is found in it. */
static bool read_window(struct render *r, struct str s, const struct jargs *a, struct str *out,
                        int64_t *at)
{
    int64_t n = (int64_t)jstr_len(s), from = 0, to = n;

    jv_step(r, s.n / 16);
    if (a->n > 1 && jv_some(a->v[1]) && !jarg_int(r, a->v[1], 0, &from)) return false;
    if (a->n > 2 && jv_some(a->v[2]) && !jarg_int(r, a->v[2], n, &to)) return false;
    if (from < 0 && (from += n) < 0) from = 0;
    if (to < 0 && (to += n) < 0) to = 0;
    if (to > n) to = n;
    *at = from;
    if (from > to) return *out = (struct str){ 0 }, true;
    *out = str_skip(s, text_offset(s, (size_t)from));
    *out = str_take(*out, text_offset(*out, (size_t)(to - from)));
    if (!out->p) out->p = "";
    return true;
}

/* An empty `what` is found at the end. */
ptrdiff_t text_find_last(struct str in, struct str what)
{
    if (what.n > in.n) return -1;
    for (size_t i = in.n - what.n + 1; i-- > 0;)
        if (!what.n || !memcmp(in.p + i, what.p, what.n)) return (ptrdiff_t)i;
    return -1;
}

/* find, rfind (last), index and rindex (must). */
static struct jval find_substring(struct render *r, struct jval self, const struct jargs *a,
                                  bool last, bool must)
{
    struct str what, in;
    ptrdiff_t found;
    int64_t at;

    if (!read_str_arg(r, a, 0, "find()", &what) || !read_window(r, self.s, a, &in, &at))
        return self;
    /* Byte offsets are converted back to code points. */
    found = !in.p ? -1 : last ? text_find_last(in, what) : str_find(in, what);
    if (found < 0) return must ? jv_fail(r, "substring not found") : jv_int(-1);
    return jv_int(at + (int64_t)jstr_len(str_take(in, (size_t)found)));
}

METHOD(find) { return find_substring(r, self, a, false, false); }
METHOD(rfind) { return find_substring(r, self, a, true, false); }
METHOD(index) { return find_substring(r, self, a, false, true); }
METHOD(rindex) { return find_substring(r, self, a, true, true); }

/* Occurrences that do not overlap; "" occurs between all characters and at both ends. */
METHOD(count)
{
    struct str what, in;
    int64_t n = 0, at;

    if (!read_str_arg(r, a, 0, "count()", &what) || !read_window(r, self.s, a, &in, &at))
        return self;
    if (!what.n) return jv_int(in.p ? (int64_t)jstr_len(in) + 1 : 0);
    for (ptrdiff_t i; in.p && (i = str_find(in, what)) >= 0; in = str_skip(in, (size_t)i + what.n))
        n++;
    return jv_int(n);
}

/* startswith and endswith: a str or a tuple of them. */
static struct jval test_affix(struct render *r, struct jval self, const struct jargs *a, bool ends)
{
    struct jval what = a->n ? a->v[0] : jv_none(), one;
    struct str in;
    int64_t at;

    if (!a->n) return jv_fail(r, "startswith() and endswith() take at least 1 argument");
    if (what.kind != J_STR && what.kind != J_TUPLE)
        return jv_fail(r, "%s first arg must be str or a tuple of str, not %s",
                       ends ? "endswith" : "startswith", jv_type(what));
    if (!read_window(r, self.s, a, &in, &at)) return self;
    for (size_t i = 0; i < (what.kind == J_STR ? 1 : what.l->n); i++) {
        one = what.kind == J_STR ? what : what.l->v[i];
        if (one.kind != J_STR)
            return jv_fail(r, "the tuple must contain only str, not %s", jv_type(one));
        if (in.p && (ends ? str_ends(in, one.s) : str_starts(in, one.s))) return jv_bool(true);
    }
    return jv_bool(false);
}

METHOD(startswith) { return test_affix(r, self, a, false); }
METHOD(endswith) { return test_affix(r, self, a, true); }

/* ---- replacing ---- */

/* replace("", with): inserts before every character and at the end. */
static struct jval replace_empty(struct render *r, struct str s, struct str with, int64_t max)
{
    struct jtext t = { .r = r };
    size_t at = 0;

    for (;;) {
        size_t n;
        if (max != 0) jtext_add(&t, with), max--;
        if (at >= s.n || !jv_step(r, 1)) break;
        n = text_offset(str_skip(s, at), 1);
        jtext_add(&t, str_of(s.p + at, n));
        at += n;
    }
    return jtext_done(&t);
}

/* If nothing matches, the result shares the bytes of s. */
struct jval text_replace(struct render *r, struct str s, struct str old, struct str with,
                         int64_t max)
{
    struct jtext t = { .r = r };
    ptrdiff_t at;

    jv_step(r, s.n / 16);
    if (max == 0) return jv_str(s);
    if (!old.n) return replace_empty(r, s, with, max);
    for (; max != 0 && jv_step(r, 1) && (at = str_find(s, old)) >= 0; max--) {
        jtext_add(&t, str_take(s, (size_t)at));
        jtext_add(&t, with);
        s = str_skip(s, (size_t)at + old.n);
    }
    if (!t.n && !t.p) return jv_str(s);
    jtext_add(&t, s);
    return jtext_done(&t);
}

/* replace(old, new, count=-1). A Markup escapes its arguments. */
METHOD(replace)
{
    struct str old, with;
    int64_t max = -1;

    if (!read_str_arg(r, a, 0, "replace()", &old) || !read_str_arg(r, a, 1, "replace()", &with))
        return self;
    if (a->n > 2 && !jarg_int(r, a->v[2], -1, &max)) return self;
    if (a->n > 3 || a->n_kw) return jv_fail(r, "replace() takes 2 or 3 arguments");
    /* Arguments of a safe text are escaped, so the result is safe. */
    if (self.flags & JV_MARKUP) {
        old = text_escape(r, a->v[0]).s;
        with = text_escape(r, a->v[1]).s;
    }
    return text_replace(r, self.s, old, with, max < 0 ? -1 : max);
}

METHOD(removeprefix)
{
    struct str what;

    if (!read_str_arg(r, a, 0, "removeprefix()", &what)) return self;
    return jv_str(str_starts(self.s, what) ? str_skip(self.s, what.n) : self.s);
}

METHOD(removesuffix)
{
    struct str what;

    if (!read_str_arg(r, a, 0, "removesuffix()", &what)) return self;
    return jv_str(str_ends(self.s, what) ? str_take(self.s, self.s.n - what.n) : self.s);
}

/* expandtabs(tabsize=8): tabs become spaces up to the next column. */
METHOD(expandtabs)
{
    static const char *const names[] = { "tabsize", NULL };
    struct jtext t = { .r = r };
    struct jval arg;
    int64_t size, column = 0;

    if (!jargs_bind(r, a, "expandtabs()", names, 0, &arg) || !jarg_int(r, arg, 8, &size))
        return self;
    for (size_t i = 0; i < self.s.n && !jv_failed(r); i++) {
        char c = self.s.p[i];
        if (c == '\t') {
            int64_t n = size > 0 ? size - column % size : 0;
            jtext_fill(&t, STR(" "), n);
            column += n;
            continue;
        }
        jtext_putc(&t, c);
        /* Continuation bytes of UTF-8 do not count as columns. */
        if (c == '\n' || c == '\r') column = 0;
        else if (((unsigned char)c & 0xc0) != 0x80) column++;
    }
    return jtext_done(&t);
}

/* ---- joining and padding ---- */

/* Unlike the filter join, all items must be str. */
METHOD(join)
{
    struct jtext t = { .r = r };
    struct jiter it;
    struct jval v;
    bool first = true, markup = self.flags & JV_MARKUP;

    if (a->n != 1 || a->n_kw)
        return jv_fail(r, "join() takes exactly one argument (%zu given)", a->n);
    if (!jiter_begin(r, &it, a->v[0])) return self;
    for (size_t i = 0; jiter_next(r, &it, &v); i++) {
        if (v.kind != J_STR)
            return jv_fail(r, "sequence item %zu: expected str instance, %s found", i, jv_type(v));
        if (!first) jtext_add(&t, self.s);
        first = false;
        jtext_add(&t, markup ? text_escape(r, v).s : v.s);
    }
    return jtext_done(&t);
}

/* Negative widths add nothing. */
static struct jval pad_text(struct render *r, struct str s, int64_t left, int64_t right,
                            struct str fill)
{
    struct jtext t = { .r = r };

    jtext_fill(&t, fill, left);
    jtext_add(&t, s);
    jtext_fill(&t, fill, right);
    return jtext_done(&t);
}

struct jval text_center(struct render *r, struct str s, int64_t width, struct str fill)
{
    int64_t n = (int64_t)jstr_len(s), marg = width - n, left;

    if (marg <= 0) return jv_str(s);
    left = marg / 2 + (marg & width & 1); /* where CPython puts an odd space */
    return pad_text(r, s, left, marg - left, fill);
}

/* (width, fillchar=" "); *room: how much the text is too short. */
static bool read_pad_args(struct render *r, struct jval self, const struct jargs *a, int64_t *room,
                          struct str *fill)
{
    int64_t width;

    *fill = STR(" ");
    if (a->n < 1 || a->n > 2 || a->n_kw)
        return jv_fail(r, "expected 1 or 2 arguments, got %zu", a->n), false;
    if (!jarg_int(r, a->v[0], 0, &width)) return false;
    if (a->n == 2 && !read_str_arg(r, a, 1, "the fill character", fill)) return false;
    if (jstr_len(*fill) != 1)
        return jv_fail(r, "The fill character must be exactly one character long"), false;
    *room = width - (int64_t)jstr_len(self.s);
    return true;
}

METHOD(ljust)
{
    struct str fill;
    int64_t room;
    return read_pad_args(r, self, a, &room, &fill) ? pad_text(r, self.s, 0, room, fill) : self;
}

METHOD(rjust)
{
    struct str fill;
    int64_t room;
    return read_pad_args(r, self, a, &room, &fill) ? pad_text(r, self.s, room, 0, fill) : self;
}

METHOD(center)
{
    struct str fill;
    int64_t room;
    if (!read_pad_args(r, self, a, &room, &fill)) return self;
    return text_center(r, self.s, jv_as_int(a->v[0]), fill);
}

/* Zeros between the sign and the digits. */
METHOD(zfill)
{
    struct jtext t = { .r = r };
    bool sign = self.s.n && (self.s.p[0] == '-' || self.s.p[0] == '+');
    int64_t width;

    if (a->n != 1 || !jarg_int(r, a->v[0], 0, &width))
        return jv_fail(r, "zfill() takes exactly one number");
    if (sign) jtext_putc(&t, self.s.p[0]);
    jtext_fill(&t, STR("0"), width - (int64_t)jstr_len(self.s));
    jtext_add(&t, str_skip(self.s, sign));
    return jtext_done(&t);
}

METHOD(format) { return format_braces(r, self.s, a, jv_none()); }

/* format(**mapping) */
METHOD(format_map)
{
    struct jargs none = { 0 };

    if (a->n != 1 || a->v[0].kind != J_DICT) return jv_fail(r, "format_map() takes one mapping");
    return format_braces(r, self.s, &none, a->v[0]);
}

const struct jmethod_def str_methods[] = { { "find", m_find },
                                           { "rfind", m_rfind },
                                           { "index", m_index },
                                           { "rindex", m_rindex },
                                           { "count", m_count },
                                           { "startswith", m_startswith },
                                           { "endswith", m_endswith },
                                           { "replace", m_replace },
                                           { "removeprefix", m_removeprefix },
                                           { "removesuffix", m_removesuffix },
                                           { "expandtabs", m_expandtabs },
                                           { "join", m_join },
                                           { "ljust", m_ljust },
                                           { "rjust", m_rjust },
                                           { "center", m_center },
                                           { "zfill", m_zfill },
                                           { "format", m_format },
                                           { "format_map", m_format_map },
                                           { NULL, NULL } };
