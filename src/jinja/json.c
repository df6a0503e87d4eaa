/* json.c - JSON values of the caller to template values, and the filter tojson.
 *
 * tojson is transformers' replacement for jinja2's: json.dumps with ensure_ascii, indent,
 * separators and sort_keys as parameters, ensure_ascii off by default, and no HTML escaping. */
#include "base/utf8.h"
#include "jinja/builtins.h"
#include "jinja/render.h"

#include <math.h>

/* ---- reading ---- */

/* A JSON array is a list. */
static struct jval load_array(struct render *r, const json_t *j)
{
    struct jval list = jv_list(r, json_array_size(j));

    for (size_t i = 0; i < json_array_size(j) && !jv_failed(r); i++)
        jlist_push(r, list.l, json_load(r, json_array_get(j, i)));
    return list;
}

/* A JSON object is a dict in jansson's order, which is that of insertion. */
static struct jval load_object(struct render *r, const json_t *j)
{
    struct jval dict = jv_dict(r, json_object_size(j));
    void *at = json_object_iter((json_t *)j);

    for (; at && !jv_failed(r); at = json_object_iter_next((json_t *)j, at)) {
        struct str key = str_of(json_object_iter_key(at), json_object_iter_key_len(at));
        jdict_append(r, dict.d, jv_str(key), json_load(r, json_object_iter_value(at)));
    }
    return dict;
}

/* Deep values are limited by jv_enter like everything that recurses. */
struct jval json_load(struct render *r, const json_t *j)
{
    struct jval v = jv_none();

    switch (j ? json_typeof(j) : JSON_NULL) {
    case JSON_TRUE: return jv_bool(true);
    case JSON_FALSE: return jv_bool(false);
    case JSON_INTEGER: return jv_int(json_integer_value(j));
    case JSON_REAL: return jv_float(json_real_value(j));
    case JSON_STRING: return jv_str(str_of(json_string_value(j), json_string_length(j)));
    case JSON_NULL: return v;
    default: break;
    }
    if (!jv_enter(r)) return v;
    v = json_is_array(j) ? load_array(r, j) : load_object(r, j);
    jv_leave(r);
    return v;
}

/* ---- writing ---- */

struct dump {
    struct jtext t;
    bool ascii, sorted;      /* ensure_ascii, sort_keys */
    bool lines;              /* indent is given: one item a line */
    struct str indent;       /* of one level */
    struct str comma, colon; /* separators */
};

static void dump_value(struct dump *d, struct jval v, int depth);

/* A character as a JSON escape; beyond the basic plane as a pair of surrogates. */
static void dump_escape(struct jtext *t, int32_t cp)
{
    if (cp >= 0x10000) {
        jtext_printf(t, "\\u%04x\\u%04x", 0xd800 + (unsigned)((cp - 0x10000) >> 10),
                     0xdc00 + (unsigned)((cp - 0x10000) & 0x3ff));
        return;
    }
    switch (cp) {
    case '"': jtext_puts(t, "\\\""); break;
    case '\\': jtext_puts(t, "\\\\"); break;
    case '\n': jtext_puts(t, "\\n"); break;
    case '\r': jtext_puts(t, "\\r"); break;
    case '\t': jtext_puts(t, "\\t"); break;
    case '\b': jtext_puts(t, "\\b"); break;
    case '\f': jtext_puts(t, "\\f"); break;
    default: jtext_printf(t, "\\u%04x", (unsigned)cp); break;
    }
}

/* Copies runs of plain characters at once. */
static void dump_str(struct dump *d, struct str s)
{
    size_t from = 0;

    jtext_putc(&d->t, '"');
    for (size_t i = 0; i < s.n && !jv_failed(d->t.r);) {
        unsigned char c = (unsigned char)s.p[i];
        int32_t cp = c;
        size_t n = 1;
        if (c >= 0x80) n = (size_t)utf8_next(str_skip(s, i), &cp);
        /* Everything else is copied as it is, in runs. */
        if (c < 0x20 || c == '"' || c == '\\' || (c >= 0x7f && d->ascii)) {
            jtext_add(&d->t, str_of(s.p + from, i - from));
            dump_escape(&d->t, cp < 0 ? 0xfffd : cp);
            from = i + n;
        }
        i += n;
    }
    jtext_add(&d->t, str_of(s.p + from, s.n - from));
    jtext_putc(&d->t, '"');
}

/* json.dumps writes NaN and Infinity, which JSON does not have. */
static void dump_float(struct jtext *t, double f)
{
    if (isnan(f)) jtext_puts(t, "NaN");
    else if (isinf(f)) jtext_puts(t, f < 0 ? "-Infinity" : "Infinity");
    else jtext_put_float(t, f);
}

/* A line break and the indentation; nothing without indent. */
static void dump_newline(struct dump *d, int depth)
{
    if (!d->lines) return;
    jtext_putc(&d->t, '\n');
    jtext_fill(&d->t, d->indent, depth);
}

/* An empty list is "[]" also with indent. */
static void dump_list(struct dump *d, const struct jlist *l, int depth)
{
    jtext_putc(&d->t, '[');
    for (size_t i = 0; i < l->n && jv_step(d->t.r, 1); i++) {
        if (i) jtext_add(&d->t, d->comma);
        dump_newline(d, depth + 1);
        dump_value(d, l->v[i], depth + 1);
    }
    if (l->n) dump_newline(d, depth);
    jtext_putc(&d->t, ']');
}

/* Keys of other types than str become strings, as in json.dumps. */
static void dump_key(struct dump *d, struct jval key)
{
    struct jtext t = { .r = d->t.r };

    switch (key.kind) {
    case J_STR: dump_str(d, key.s); return;
    case J_NONE: jtext_puts(&t, "null"); break;
    case J_BOOL: jtext_puts(&t, key.b ? "true" : "false"); break;
    case J_INT: jtext_printf(&t, "%lld", (long long)key.i); break;
    case J_FLOAT: dump_float(&t, key.f); break;
    default:
        jv_fail(d->t.r, "keys must be str, int, float, bool or None, not %s", jv_type(key));
        return;
    }
    dump_str(d, jtext_done(&t).s);
}

/* The pairs in the order of their keys; incomplete or NULL after a failure. */
static struct jpair *sort_pairs(struct dump *d, const struct jdict *from)
{
    struct jpair *e = jv_array(d->t.r, from->n, sizeof *e);

    if (!e) return NULL;
    for (size_t i = 0; i < from->n && jv_step(d->t.r, 1 + i / 8); i++) {
        size_t at = i;
        /* Insertion sort: objects are small, and steps are charged. */
        for (; at > 0 && jv_less(d->t.r, from->e[i].key, e[at - 1].key); at--) e[at] = e[at - 1];
        e[at] = from->e[i];
    }
    return e;
}

/* An empty dict is "{}" also with indent. */
static void dump_dict(struct dump *d, const struct jdict *from, int depth)
{
    const struct jpair *e = d->sorted ? sort_pairs(d, from) : from->e;

    jtext_putc(&d->t, '{');
    for (size_t i = 0; i < from->n && jv_step(d->t.r, 1); i++) {
        if (i) jtext_add(&d->t, d->comma);
        dump_newline(d, depth + 1);
        dump_key(d, e[i].key);
        jtext_add(&d->t, d->colon);
        dump_value(d, e[i].value, depth + 1);
    }
    if (from->n) dump_newline(d, depth);
    jtext_putc(&d->t, '}');
}

/* Types that JSON has; others, such as undefined values, are an error. */
static void dump_value(struct dump *d, struct jval v, int depth)
{
    if (!jv_enter(d->t.r)) return;
    switch (v.kind) {
    case J_NONE: jtext_puts(&d->t, "null"); break;
    case J_BOOL: jtext_puts(&d->t, v.b ? "true" : "false"); break;
    case J_INT: jtext_printf(&d->t, "%lld", (long long)v.i); break;
    case J_FLOAT: dump_float(&d->t, v.f); break;
    case J_STR: dump_str(d, v.s); break;
    case J_LIST:
    case J_TUPLE: dump_list(d, v.l, depth); break;
    case J_DICT: dump_dict(d, v.d, depth); break;
    default: jv_fail(d->t.r, "Object of type %s is not JSON serializable", jv_type(v)); break;
    }
    jv_leave(d->t.r);
}

/* separators=(item_separator, key_separator) */
static bool read_separators(struct render *r, struct dump *d, struct jval v)
{
    if (!jv_some(v)) return true;
    if ((v.kind != J_LIST && v.kind != J_TUPLE) || v.l->n != 2 || v.l->v[0].kind != J_STR ||
        v.l->v[1].kind != J_STR)
        return jv_fail(r, "separators must be a tuple of two strings"), false;
    d->comma = v.l->v[0].s;
    d->colon = v.l->v[1].s;
    return true;
}

/* An integer is a number of spaces. With indent the item separator loses its space. */
static bool read_indent(struct render *r, struct dump *d, struct jval v)
{
    struct jtext t = { .r = r };

    if (!jv_some(v)) return true;
    d->lines = true;
    d->comma = STR(",");
    if (v.kind == J_STR) {
        d->indent = v.s;
    } else if (jv_is_int(v)) {
        jtext_fill(&t, STR(" "), jv_as_int(v));
        d->indent = jtext_done(&t).s;
    } else {
        return jv_fail(r, "indent must be an integer or a str, not %s", jv_type(v)), false;
    }
    return true;
}

/* The result is a plain str: transformers does not mark it as safe. */
struct jval json_dump(struct render *r, struct jval v, const struct jargs *a)
{
    static const char *const names[] = { "ensure_ascii", "indent", "separators", "sort_keys",
                                         NULL };
    struct dump d = { .t = { .r = r }, .comma = STR(", "), .colon = STR(": ") };
    struct jval arg[4];

    if (!jargs_bind(r, a, "tojson", names, 0, arg)) return v;
    d.ascii = jv_given(arg[0]) && jv_truth(r, arg[0]);
    d.sorted = jv_given(arg[3]) && jv_truth(r, arg[3]);
    if (!read_indent(r, &d, arg[1]) || !read_separators(r, &d, arg[2])) return v;
    dump_value(&d, v, 0);
    return jtext_done(&d.t);
}
