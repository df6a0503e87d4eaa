/* strsplit.c - methods of str that cut it: strip, split, partition, splitlines and their variants.
 *
 * The parts point into the original text; nothing is copied. */
#include "base/utf8.h"
#include "jinja/builtins.h"
#include "jinja/render.h"
#include "jinja/unicode.h"

/* A method of str receives the str and its arguments. */
#define METHOD(name) \
    static struct jval m_##name(struct render *r, struct jval self, const struct jargs *a)

/* ---- strip ---- */

/* Whether the character `raw` (cp) is among chars; chars.p NULL: whether it is white space. */
static bool is_stripped(struct str chars, int32_t cp, struct str raw)
{
    if (!chars.p) return uni_space(cp);
    for (size_t i = 0; i < chars.n;) {
        int32_t c;
        size_t n = (size_t)utf8_next(str_skip(chars, i), &c);
        if (str_eq(str_of(chars.p + i, n), raw)) return true;
        i += n;
    }
    return false;
}

/* Goes over whole characters from both ends. */
struct str text_strip(struct str s, const struct jval *by, bool left, bool right)
{
    struct str chars =
        by && by->kind == J_STR ? str_of(by->s.n ? by->s.p : "", by->s.n) : (struct str){ 0 };
    int32_t cp;

    while (left && s.n) {
        size_t n = (size_t)utf8_next(s, &cp);
        if (!is_stripped(chars, cp, str_take(s, n))) break;
        s = str_skip(s, n);
    }
    while (right && s.n) {
        size_t at = s.n - 1;
        while (at > 0 && ((unsigned char)s.p[at] & 0xc0) == 0x80) at--;
        utf8_next(str_skip(s, at), &cp);
        if (!is_stripped(chars, cp, str_skip(s, at))) break;
        s.n = at;
    }
    return s;
}

/* strip, lstrip and rstrip: (chars=None). */
static struct jval strip_text(struct render *r, struct jval self, const struct jargs *a, bool left,
                              bool right)
{
    if (a->n > 1 || a->n_kw)
        return jv_fail(r, "strip expected at most 1 argument, got %zu", a->n + a->n_kw);
    if (a->n && a->v[0].kind != J_STR && a->v[0].kind != J_NONE)
        return jv_fail(r, "strip arg must be None or str");
    jv_step(r, self.s.n / 64);
    return jv_str(text_strip(self.s, a->n ? &a->v[0] : NULL, left, right));
}

METHOD(strip) { return strip_text(r, self, a, true, true); }
METHOD(lstrip) { return strip_text(r, self, a, true, false); }
METHOD(rstrip) { return strip_text(r, self, a, false, true); }

/* ---- split ---- */

/* Every part is a step, so splitting a long text is charged. */
static void push_part(struct render *r, struct jval list, struct str s)
{
    jv_step(r, 1);
    jlist_push(r, list.l, jv_str(s));
}

/* The length of the white space character at `at`; 0: it is something else. */
static size_t space_len_at(struct str s, size_t at)
{
    int32_t cp;
    size_t n = (size_t)utf8_next(str_skip(s, at), &cp);
    return uni_space(cp) ? n : 0;
}

/* split() without a separator: runs of white space separate, and none at the ends. max -1: no
 * limit. */
static struct jval split_space(struct render *r, struct str s, int64_t max)
{
    struct jval list = jv_list(r, 8);
    size_t at = 0, n;

    while (!jv_failed(r)) {
        size_t from;
        while (at < s.n && (n = space_len_at(s, at))) at += n;
        if (at >= s.n) break;
        from = at;
        if (max-- == 0) {
            push_part(r, list, str_skip(s, from));
            break;
        }
        while (at < s.n && !space_len_at(s, at)) at += text_offset(str_skip(s, at), 1);
        push_part(r, list, str_of(s.p + from, at - from));
    }
    return list;
}

/* split(sep): empty parts stay. */
static struct jval split_by(struct render *r, struct str s, struct str by, int64_t max)
{
    struct jval list = jv_list(r, 8);
    ptrdiff_t at;

    while (!jv_failed(r) && max-- != 0 && (at = str_find(s, by)) >= 0) {
        push_part(r, list, str_take(s, (size_t)at));
        s = str_skip(s, (size_t)at + by.n);
    }
    push_part(r, list, s);
    return list;
}

static void reverse_list(struct jlist *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        struct jval v = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = v;
    }
}

/* Parts are found from the end, so the list is reversed at last. */
static struct jval rsplit_by(struct render *r, struct str s, struct str by, int64_t max)
{
    struct jval list = jv_list(r, 8);
    ptrdiff_t at;

    while (!jv_failed(r) && max-- != 0 && (at = text_find_last(s, by)) >= 0) {
        push_part(r, list, str_skip(s, (size_t)at + by.n));
        s = str_take(s, (size_t)at);
    }
    push_part(r, list, s);
    reverse_list(list.l);
    return list;
}

/* rsplit() without a separator. */
static struct jval rsplit_space(struct render *r, struct str s, int64_t max)
{
    struct jval list = jv_list(r, 8);

    while (!jv_failed(r)) {
        size_t end, at;
        s = text_strip(s, NULL, false, true);
        if (!s.n) break;
        if (max-- == 0) {
            push_part(r, list, s);
            break;
        }
        for (end = at = s.n; at > 0;) {
            size_t back = at - 1;
            while (back > 0 && ((unsigned char)s.p[back] & 0xc0) == 0x80) back--;
            if (space_len_at(s, back)) break;
            at = back;
        }
        push_part(r, list, str_of(s.p + at, end - at));
        s = str_take(s, at);
    }
    reverse_list(list.l);
    return list;
}

/* split and rsplit: (sep=None, maxsplit=-1). */
static struct jval split_text(struct render *r, struct jval self, const struct jargs *a, bool right)
{
    static const char *const names[] = { "sep", "maxsplit", NULL };
    struct jval arg[2];
    int64_t max;

    if (!jargs_bind(r, a, "split()", names, 0, arg) || !jarg_int(r, arg[1], -1, &max)) return self;
    jv_step(r, self.s.n / 16);
    if (!jv_some(arg[0])) return right ? rsplit_space(r, self.s, max) : split_space(r, self.s, max);
    if (jv_is_undef(arg[0])) return jv_fail(r, "must be str or None, not Undefined");
    if (arg[0].kind != J_STR) return jv_fail(r, "must be str or None, not %s", jv_type(arg[0]));
    if (arg[0].s.n == 0) return jv_fail(r, "empty separator");
    return right ? rsplit_by(r, self.s, arg[0].s, max) : split_by(r, self.s, arg[0].s, max);
}

METHOD(split) { return split_text(r, self, a, false); }
METHOD(rsplit) { return split_text(r, self, a, true); }

/* partition and rpartition: (before, sep, after). If sep is absent, the text is the first or the
 * last item. */
static struct jval partition_text(struct render *r, struct jval self, const struct jargs *a,
                                  bool right)
{
    struct jval t = jv_tuple(r, 3);
    struct str s = self.s, by, empty = STR("");
    ptrdiff_t at;

    if (a->n != 1 || a->v[0].kind != J_STR) return jv_fail(r, "partition() takes one str");
    by = a->v[0].s;
    if (!by.n) return jv_fail(r, "empty separator");
    jv_step(r, s.n / 16);
    at = right ? text_find_last(s, by) : str_find(s, by);
    if (at < 0) {
        jlist_push(r, t.l, jv_str(right ? empty : s));
        jlist_push(r, t.l, jv_str(empty));
        jlist_push(r, t.l, jv_str(right ? s : empty));
    } else {
        jlist_push(r, t.l, jv_str(str_take(s, (size_t)at)));
        jlist_push(r, t.l, jv_str(by));
        jlist_push(r, t.l, jv_str(str_skip(s, (size_t)at + by.n)));
    }
    return t;
}

METHOD(partition) { return partition_text(r, self, a, false); }
METHOD(rpartition) { return partition_text(r, self, a, true); }

/* A line end at the end of the text does not begin another line. */
struct jval text_splitlines(struct render *r, struct str s, bool keep_ends)
{
    struct jval list = jv_list(r, 8);
    size_t from = 0;

    for (size_t at = 0; at < s.n && !jv_failed(r);) {
        int32_t cp;
        size_t n = (size_t)utf8_next(str_skip(s, at), &cp), end = at;
        at += n;
        if (!uni_line_end(cp)) continue;
        /* "\r\n" is one line end. */
        if (cp == '\r' && at < s.n && s.p[at] == '\n') at++;
        push_part(r, list, str_of(s.p + from, (keep_ends ? at : end) - from));
        from = at;
    }
    if (from < s.n) push_part(r, list, str_skip(s, from));
    return list;
}

METHOD(splitlines)
{
    static const char *const names[] = { "keepends", NULL };
    struct jval keep;

    if (!jargs_bind(r, a, "splitlines()", names, 0, &keep)) return self;
    jv_step(r, self.s.n / 16);
    return text_splitlines(r, self.s, jv_given(keep) && jv_truth(r, keep));
}

const struct jmethod_def str_split_methods[] = {
    { "strip", m_strip },           { "lstrip", m_lstrip },         { "rstrip", m_rstrip },
    { "split", m_split },           { "rsplit", m_rsplit },         { "partition", m_partition },
    { "rpartition", m_rpartition }, { "splitlines", m_splitlines }, { NULL, NULL }
};
