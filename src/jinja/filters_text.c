/* filters_text.c - filters over text: case, HTML, trimming, indentation, wrapping.
 *
 * wordwrap is Python's textwrap.wrap, striptags and escape are markupsafe's. */
#include "base/utf8.h"
#include "jinja/builtins.h"
#include "jinja/iter.h"
#include "jinja/render.h"
#include "jinja/unicode.h"

#include <ctype.h>
#include <stdlib.h>

/* A filter receives the value on its left and its arguments. */
#define FILTER(name) \
    static struct jval f_##name(struct render *r, struct jval v, const struct jargs *a)

/* jinja2's soft_str: str() of a value that is not a str; Markup stays Markup. */
static struct jval to_soft_str(struct render *r, struct jval v)
{
    return v.kind == J_STR ? v : jv_str(jv_text(r, v));
}

/* v, as Markup if `from` is. */
static struct jval keep_markup(struct jval v, struct jval from)
{
    v.flags = v.kind == J_STR && from.kind == J_STR ? from.flags & JV_MARKUP : v.flags;
    return v;
}

/* ---- case ---- */

FILTER(upper)
{
    (void)a;
    return keep_markup(text_upper(r, to_soft_str(r, v).s), v);
}
FILTER(lower)
{
    (void)a;
    return keep_markup(text_lower(r, to_soft_str(r, v).s), v);
}
FILTER(capitalize)
{
    (void)a;
    return keep_markup(text_capitalize(r, to_soft_str(r, v).s), v);
}

/* After such a character the filter title starts a new word. */
static bool begins_word(int32_t cp)
{
    return uni_space(cp) || (cp < 0x80 && strchr("-({[<", cp) && cp);
}

/* title: unlike str.title() of Python, words are separated by white space, hyphens and opening
 * brackets only, so "don't" keeps its small t. */
FILTER(title)
{
    struct str s = to_soft_str(r, v).s;
    struct jtext t = { .r = r };
    bool first = true;

    (void)a;
    for (size_t at = 0; at < s.n && !jv_failed(r);) {
        int32_t cp;
        size_t n = (size_t)utf8_next(str_skip(s, at), &cp), end = at + n;
        if (begins_word(cp)) {
            jtext_add(&t, str_of(s.p + at, n));
            first = true;
        } else if (first) {
            jtext_add(&t, text_upper(r, str_of(s.p + at, n)).s);
            first = false;
        } else {
            while (end < s.n) {
                n = (size_t)utf8_next(str_skip(s, end), &cp);
                if (begins_word(cp)) break;
                end += n;
            }
            jtext_add(&t, text_lower(r, str_of(s.p + at, end - at)).s);
        }
        at = end;
    }
    return jtext_done(&t);
}

/* ---- HTML ---- */

/* The five characters and their entities are those of markupsafe. */
struct jval text_escape(struct render *r, struct jval v)
{
    struct jtext t = { .r = r };
    struct str s = jv_text(r, v);

    if (v.kind == J_STR && v.flags & JV_MARKUP) return v;
    for (size_t i = 0; i < s.n && !jv_failed(r); i++) {
        switch (s.p[i]) {
        case '&': jtext_puts(&t, "&amp;"); break;
        case '<': jtext_puts(&t, "&lt;"); break;
        case '>': jtext_puts(&t, "&gt;"); break;
        case '\'': jtext_puts(&t, "&#39;"); break;
        case '"': jtext_puts(&t, "&#34;"); break;
        default: jtext_putc(&t, s.p[i]); break;
        }
    }
    v = jtext_done(&t);
    v.flags = JV_MARKUP;
    return v;
}

FILTER(escape)
{
    (void)a;
    return text_escape(r, v);
}
/* Escapes again what is safe already. */
FILTER(forceescape)
{
    (void)a;
    return text_escape(r, jv_str(jv_text(r, v)));
}

/* An HTML entity, s from behind the '&'. Returns the bytes it takes, 0: not an entity. */
static size_t parse_entity(struct str s, int32_t *cp)
{
    static const struct {
        const char *name;
        int32_t cp;
    } names[] = { { "amp;", '&' },  { "lt;", '<' },    { "gt;", '>' },
                  { "quot;", '"' }, { "apos;", '\'' }, { "nbsp;", 0xa0 } };
    char text[12] = "";
    const char *digits = text + 1;
    char *end;
    long v;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (str_starts(s, str_c(names[i].name))) return *cp = names[i].cp, strlen(names[i].name);
    if (s.n < 3 || s.p[0] != '#') return 0;
    memcpy(text, s.p, s.n < 11 ? s.n : 11);
    if (*digits == 'x' || *digits == 'X') digits++;
    v = strtol(digits, &end, digits == text + 1 ? 10 : 16);
    if (end == digits || *end != ';' || v <= 0 || v > 0x10ffff || (v >= 0xd800 && v < 0xe000))
        return 0;
    *cp = (int32_t)v;
    return (size_t)(end - text) + 1;
}

/* s without everything from an `open` to the next `close`. */
static struct str remove_between(struct render *r, struct str s, struct str open, struct str close)
{
    struct jtext t = { .r = r };
    ptrdiff_t from, to;

    while (jv_step(r, 1 + s.n / 64) && (from = str_find(s, open)) >= 0) {
        to = str_find(str_skip(s, (size_t)from), close);
        if (to < 0) break;
        jtext_add(&t, str_take(s, (size_t)from));
        s = str_skip(s, (size_t)(from + to) + close.n);
    }
    jtext_add(&t, s);
    return jtext_done(&t).s;
}

/* Removes comments and tags, joins white space to single spaces, and decodes entities. */
FILTER(striptags)
{
    struct str s = jv_text(r, v);
    struct jargs none = { 0 };
    struct jval words;
    struct jtext t = { .r = r }, out = { .r = r };

    (void)a;
    s = remove_between(r, remove_between(r, s, STR("<!--"), STR("-->")), STR("<"), STR(">"));
    /* split() without arguments drops all runs of white space. */
    words = value_call(r, attr_only(r, jv_str(s), STR("split")), &none);
    for (size_t i = 0; words.kind == J_LIST && i < words.l->n; i++) {
        if (i) jtext_putc(&t, ' ');
        jtext_add(&t, words.l->v[i].s);
    }
    s = jtext_done(&t).s;
    for (size_t i = 0; i < s.n && !jv_failed(r);) {
        int32_t cp;
        size_t n = s.p[i] == '&' ? parse_entity(str_skip(s, i + 1), &cp) : 0;
        if (n) jtext_put_cp(&out, cp);
        else jtext_putc(&out, s.p[i]);
        i += n + 1;
    }
    return jtext_done(&out);
}

/* xmlattr(autospace=true): a dict as HTML attributes; None and undefined values are left out. */
FILTER(xmlattr)
{
    static const char *const names[] = { "autospace", NULL };
    struct jtext t = { .r = r };
    struct jval space;

    if (!jargs_bind(r, a, "xmlattr", names, 0, &space)) return v;
    if (v.kind != J_DICT) return jv_fail(r, "'%s' object has no attribute 'items'", jv_type(v));
    for (size_t i = 0; i < v.d->n && jv_step(r, 1); i++) {
        struct jpair *p = &v.d->e[i];
        if (p->value.kind == J_NONE || jv_is_undef(p->value)) continue;
        if (p->key.kind != J_STR)
            return jv_fail(r, "the name of an attribute must be str, not %s", jv_type(p->key));
        for (size_t k = 0; k < p->key.s.n; k++)
            if (strchr(" \t\n\v\f\r/>=", p->key.s.p[k]))
                return jv_fail(r, "Invalid character in attribute name");
        if (t.n || !jv_given(space) || jv_truth(r, space)) jtext_putc(&t, ' ');
        jtext_add(&t, text_escape(r, p->key).s);
        jtext_puts(&t, "=\"");
        jtext_add(&t, text_escape(r, p->value).s);
        jtext_putc(&t, '"');
    }
    return jtext_done(&t);
}

/* Percent-encoding; query: for the query part, where "/" is encoded and a space is "+". */
static void put_url_quoted(struct jtext *t, struct str s, bool query)
{
    for (size_t i = 0; i < s.n && !jv_failed(t->r); i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (isalnum(c) || (c && strchr("_.-~", c)) || (c == '/' && !query)) jtext_putc(t, (char)c);
        else if (c == ' ' && query) jtext_putc(t, '+');
        else jtext_printf(t, "%%%02X", c);
    }
}

/* A str is a path (slashes stay); a dict or an iterable of pairs is a query. */
FILTER(urlencode)
{
    struct jtext t = { .r = r };
    struct jiter it;
    struct jval item, all, one;

    (void)a;
    if (v.kind == J_STR || !jv_iterable(v)) {
        put_url_quoted(&t, jv_text(r, v), false);
        return jtext_done(&t);
    }
    all = v.kind == J_DICT ? filter_find(STR("items"))->call(r, v, &(struct jargs){ 0 }) : v;
    if (jv_failed(r)) return v;
    if (!jiter_begin(r, &it, all)) return v;
    for (bool first = true; jiter_next(r, &it, &item); first = false) {
        one = jv_to_list(r, item);
        if (jv_failed(r) || one.l->n != 2) return jv_fail(r, "urlencode takes a mapping or pairs");
        if (!first) jtext_putc(&t, '&');
        put_url_quoted(&t, jv_text(r, one.l->v[0]), true);
        jtext_putc(&t, '=');
        put_url_quoted(&t, jv_text(r, one.l->v[1]), true);
    }
    return jtext_done(&t);
}

/* ---- shape ---- */

/* trim(chars=None): white space, or these characters, off both ends. */
FILTER(trim)
{
    static const char *const names[] = { "chars", NULL };
    struct jval chars;

    if (!jargs_bind(r, a, "trim", names, 0, &chars)) return v;
    if (jv_some(chars) && chars.kind != J_STR) return jv_fail(r, "strip arg must be None or str");
    v = to_soft_str(r, v);
    jv_step(r, v.s.n / 64);
    v.s = text_strip(v.s, jv_some(chars) ? &chars : NULL, true, true);
    return v;
}

/* replace(old, new, count=None): str() of all arguments. */
FILTER(replace)
{
    static const char *const names[] = { "old", "new", "count", NULL };
    struct jval arg[3];
    int64_t max = -1;

    if (!jargs_bind(r, a, "replace", names, 2, arg)) return v;
    if (jv_some(arg[2]) && !jarg_int(r, arg[2], -1, &max)) return v;
    return text_replace(r, jv_text(r, v), jv_text(r, arg[0]), jv_text(r, arg[1]),
                        max < 0 ? -1 : max);
}

/* center(width=80) */
FILTER(center)
{
    static const char *const names[] = { "width", NULL };
    struct jval width;
    int64_t n;

    if (!jargs_bind(r, a, "center", names, 0, &width) || !jarg_int(r, width, 80, &n)) return v;
    return keep_markup(text_center(r, to_soft_str(r, v).s, n, STR(" ")), v);
}

/* indent(width=4, first=false, blank=false): a number of spaces or a str before each line; first
 * and blank also indent the first and empty lines. */
FILTER(indent)
{
    static const char *const names[] = { "width", "first", "blank", NULL };
    struct jval arg[3], lines;
    struct jtext t = { .r = r }, pad = { .r = r };
    bool first, blank;

    if (!jargs_bind(r, a, "indent", names, 0, arg)) return v;
    if (jv_is_undef(v)) return jv_fail_undef(r, v);
    if (v.kind != J_STR) return jv_fail(r, "indent takes a str, not %s", jv_type(v));
    if (jv_given(arg[0]) && arg[0].kind == J_STR) jtext_add(&pad, arg[0].s);
    else if (!jv_given(arg[0]) || jv_is_int(arg[0]))
        jtext_fill(&pad, STR(" "), jv_given(arg[0]) ? jv_as_int(arg[0]) : 4);
    else
        return jv_fail(r, "the width of indent must be an integer or a str, not %s",
                       jv_type(arg[0]));
    first = jv_given(arg[1]) && jv_truth(r, arg[1]);
    blank = jv_given(arg[2]) && jv_truth(r, arg[2]);
    jtext_add(&t, v.s);
    jtext_putc(&t, '\n');
    lines = text_splitlines(r, jtext_done(&t).s, false);
    t = (struct jtext){ .r = r };
    for (size_t i = 0; i < lines.l->n && !jv_failed(r); i++) {
        if (i) jtext_putc(&t, '\n');
        if (i ? blank || lines.l->v[i].s.n : first) jtext_add(&t, str_of(pad.p, pad.n));
        jtext_add(&t, lines.l->v[i].s);
    }
    return keep_markup(jtext_done(&t), v);
}

/* truncate(length=255, killwords=false, end='...', leeway=5): cuts at the last space unless
 * killwords; texts up to length + leeway stay whole. */
FILTER(truncate)
{
    static const char *const names[] = { "length", "killwords", "end", "leeway", NULL };
    struct jval arg[4], end;
    int64_t length, leeway, keep;
    struct jtext t = { .r = r };
    struct str head;

    if (!jargs_bind(r, a, "truncate", names, 0, arg) || !jarg_int(r, arg[0], 255, &length))
        return v;
    if (jv_some(arg[3]) ? !jarg_int(r, arg[3], 5, &leeway) : (leeway = 5, false)) return v;
    end = jv_given(arg[2]) ? arg[2] : jv_str(STR("..."));
    if (v.kind != J_STR || end.kind != J_STR)
        return jv_fail(r, "truncate takes a str, not %s", jv_type(v));
    /* The length includes the end mark. */
    keep = length - (int64_t)jstr_len(end.s);
    if (keep < 0 || leeway < 0)
        return jv_fail(r, "truncate: expected length >= %zu and leeway >= 0", jstr_len(end.s));
    if ((int64_t)jstr_len(v.s) <= length + leeway) return v;
    head = str_take(v.s, text_offset(v.s, (size_t)keep));
    if (!(jv_given(arg[1]) && jv_truth(r, arg[1]))) {
        size_t at = head.n;
        while (at > 0 && head.p[at - 1] != ' ') at--;
        if (at > 0) head.n = at - 1;
    }
    jtext_add(&t, head);
    jtext_add(&t, end.s);
    return jtext_done(&t);
}

/* Runs of word characters. */
FILTER(wordcount)
{
    struct str s = to_soft_str(r, v).s;
    bool inside = false;
    int64_t n = 0;

    (void)a;
    for (size_t i = 0; i < s.n;) {
        int32_t cp;
        i += (size_t)utf8_next(str_skip(s, i), &cp);
        if (uni_word(cp) && !inside) n++;
        inside = uni_word(cp);
    }
    return jv_int(n);
}

/* ---- wrapping ---- */

struct wrap {
    struct render *r;
    struct jtext t;
    int64_t width;      /* in code points */
    bool break_long;    /* words longer than the width are cut */
    bool break_hyphens; /* words may be cut behind a hyphen */
    bool first;         /* no line of the current paragraph was written yet */
    struct str between; /* written between lines */
};

static bool is_wrap_space(char c) { return c && strchr(" \t\n\v\f\r", c); }

/* Whether the character that contains the byte `at` is a letter. */
static bool is_letter_at(struct str s, size_t at)
{
    int32_t cp;

    if (at >= s.n) return false;
    while (at > 0 && ((unsigned char)s.p[at] & 0xc0) == 0x80) at--;
    utf8_next(str_skip(s, at), &cp);
    return uni_word(cp) && !uni_decimal(cp);
}

/* Whether the word that begins at `from` may be cut behind the hyphen at `at`: textwrap wants two
 * letters on each side. */
static bool may_cut_behind(struct str s, size_t from, size_t at)
{
    size_t next = at + 1;

    if (at < from + 2 || !is_letter_at(s, at - 1)) return false;
    if (!is_letter_at(s, at - 2) && !(s.p[at - 2] == '-' && at >= from + 3)) return false;
    if (!is_letter_at(s, next)) return false;
    next += text_offset(str_skip(s, next), 1);
    if (next < s.n && s.p[next] == '-') next++;
    return is_letter_at(s, next);
}

/* The end of the chunk at `at`: a run of white space, or a word up to a place where it may be cut. */
static size_t find_chunk_end(const struct wrap *w, struct str s, size_t at)
{
    size_t from = at;

    if (is_wrap_space(s.p[at])) {
        while (at < s.n && is_wrap_space(s.p[at])) at++;
        return at;
    }
    for (; at < s.n && !is_wrap_space(s.p[at]); at++)
        if (w->break_hyphens && s.p[at] == '-' && may_cut_behind(s, from, at)) return at + 1;
    return at;
}

static void put_wrapped_line(struct wrap *w, struct str line)
{
    if (!w->first) jtext_add(&w->t, w->between);
    w->first = false;
    jtext_add(&w->t, line);
}

/* Wraps one paragraph, a line of the input: fills lines greedily with chunks. */
static void wrap_paragraph(struct wrap *w, struct str s)
{
    size_t at = 0;
    bool any = false;

    while (at < s.n && jv_step(w->r, 1)) {
        size_t from, end;
        int64_t used = 0;
        if (any)
            while (at < s.n && is_wrap_space(s.p[at])) at++;
        if (at >= s.n) break;
        from = end = at;
        while (end < s.n) {
            size_t next = find_chunk_end(w, s, end);
            int64_t n = (int64_t)jstr_len(str_of(s.p + end, next - end));
            if (used + n > w->width) break;
            used += n;
            end = next;
        }
        /* The next chunk does not fit: a word longer than a whole line is cut, or stands alone. */
        if (end < s.n && used < w->width && !is_wrap_space(s.p[end])) {
            size_t next = find_chunk_end(w, s, end);
            if ((int64_t)jstr_len(str_of(s.p + end, next - end)) > w->width) {
                if (w->break_long) end += text_offset(str_skip(s, end), (size_t)(w->width - used));
                else if (used == 0) end = next;
            }
        }
        at = end;
        /* White space at the end of a line is dropped. */
        while (end > from && is_wrap_space(s.p[end - 1])) end--;
        if (end > from) put_wrapped_line(w, str_of(s.p + from, end - from)), any = true;
    }
}

/* wordwrap(width=79, break_long_words=true, wrapstring=newline, break_on_hyphens=true): each line
 * of the input is a paragraph of its own. */
FILTER(wordwrap)
{
    static const char *const names[] = { "width", "break_long_words", "wrapstring",
                                         "break_on_hyphens", NULL };
    struct wrap w = { .r = r, .t = { .r = r }, .between = STR("\n") };
    struct jval arg[4], lines;

    if (!jargs_bind(r, a, "wordwrap", names, 0, arg) || !jarg_int(r, arg[0], 79, &w.width))
        return v;
    if (v.kind != J_STR) return jv_fail(r, "wordwrap takes a str, not %s", jv_type(v));
    if (w.width <= 0) return jv_fail(r, "invalid width %lld (must be > 0)", (long long)w.width);
    w.break_long = !jv_given(arg[1]) || jv_truth(r, arg[1]);
    w.break_hyphens = !jv_given(arg[3]) || jv_truth(r, arg[3]);
    if (jv_some(arg[2])) w.between = jv_text(r, arg[2]);
    lines = text_splitlines(r, v.s, false);
    for (size_t i = 0; i < lines.l->n && !jv_failed(r); i++) {
        if (i) jtext_add(&w.t, w.between);
        w.first = true;
        wrap_paragraph(&w, lines.l->v[i].s);
    }
    return jtext_done(&w.t);
}

/* Names and aliases of jinja2. */
const struct jfilter filters_text[] = {
    { "upper", f_upper },         { "lower", f_lower },       { "capitalize", f_capitalize },
    { "title", f_title },         { "trim", f_trim },         { "replace", f_replace },
    { "escape", f_escape },       { "e", f_escape },          { "forceescape", f_forceescape },
    { "striptags", f_striptags }, { "xmlattr", f_xmlattr },   { "urlencode", f_urlencode },
    { "center", f_center },       { "indent", f_indent },     { "truncate", f_truncate },
    { "wordcount", f_wordcount }, { "wordwrap", f_wordwrap }, { NULL, NULL }
};
