/* text.c - values as text: str() and repr() of every type, byte for byte as CPython prints them.
 *
 * Addresses in the repr of objects are printed as 0x0.
 *
 *     type      str()                 repr()
 *     str       the text              quoted and escaped; Markup('...') if safe
 *     float     1.5, 1e+16, nan       the same
 *     bool      True                  the same
 *     None      None                  the same
 *     list      as repr()             [1, 'a']        tuple (1,)       dict {'a': 1}
 *     undefined the empty text        Undefined */
#include "base/utf8.h"
#include "jinja/iter.h"
#include "jinja/render.h"
#include "jinja/unicode.h"
#include "jinja/value.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* Room for `more` bytes; false: the rendering failed. */
static bool grow_text(struct jtext *t, size_t more)
{
    size_t cap = t->cap ? t->cap : 64;
    char *p;

    if (more <= t->cap - t->n) return true;
    while (cap - t->n < more) {
        if (cap > SIZE_MAX / 4) return jv_check_room(t->r, SIZE_MAX / 2);
        cap *= 2;
    }
    if (!(p = jv_alloc(t->r, cap))) return false;
    if (t->n) memcpy(p, t->p, t->n);
    t->p = p;
    t->cap = cap;
    return true;
}

void jtext_add(struct jtext *t, struct str s)
{
    if (s.n == 0 || !grow_text(t, s.n)) return;
    memcpy(t->p + t->n, s.p, s.n);
    t->n += s.n;
}

void jtext_putc(struct jtext *t, char c) { jtext_add(t, str_of(&c, 1)); }
void jtext_puts(struct jtext *t, const char *s) { jtext_add(t, str_c(s)); }

void jtext_put_cp(struct jtext *t, int32_t cp)
{
    char c[4];
    jtext_add(t, str_of(c, (size_t)utf8_put(c, cp)));
}

/* Appends s `times` times; the size is checked at once. */
void jtext_fill(struct jtext *t, struct str s, int64_t times)
{
    if (times <= 0 || s.n == 0) return;
    if ((uint64_t)times > SIZE_MAX / 4 / s.n || !grow_text(t, s.n * (size_t)times)) {
        jv_check_room(t->r, SIZE_MAX / 2);
        return;
    }
    for (; times > 0 && !jv_failed(t->r); times--) jtext_add(t, s);
}

/* For numbers and short texts: longer results are cut. */
void jtext_printf(struct jtext *t, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n > 0) jtext_add(t, str_of(text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1));
}

/* Counts bytes that are not continuation bytes. */
size_t jstr_len(struct str s)
{
    size_t n = 0;

    for (size_t i = 0; i < s.n; i++) n += ((unsigned char)s.p[i] & 0xc0) != 0x80;
    return n;
}

/* ---- numbers ---- */

/* The shortest decimal digits that read back as f, and the power of ten of the first one. Returns
 * how many. */
static int find_shortest_digits(double f, char digits[32], int *exp10)
{
    char text[40];
    int n = 0;

    /* 17 significant digits always read back; fewer often do. */
    for (int p = 0; p <= 16; p++) {
        snprintf(text, sizeof text, "%.*e", p, f);
        if (!(strtod(text, NULL) < f) && !(strtod(text, NULL) > f)) break;
    }
    for (const char *s = text; *s && *s != 'e'; s++)
        if (*s >= '0' && *s <= '9') digits[n++] = *s;
    *exp10 = atoi(strchr(text, 'e') + 1);
    return n;
}

/* repr(): positional notation for exponents -4 to 15, else scientific with at least two digits of
 * exponent. */
void jtext_put_float(struct jtext *t, double f)
{
    char digits[32];
    int exp10, n;

    if (isnan(f) || isinf(f)) {
        jtext_puts(t, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    if (signbit(f)) jtext_putc(t, '-');
    n = find_shortest_digits(fabs(f), digits, &exp10);
    /* Scientific notation, as repr() chooses it. */
    if (exp10 < -4 || exp10 >= 16) {
        jtext_putc(t, digits[0]);
        if (n > 1) jtext_putc(t, '.'), jtext_add(t, str_of(digits + 1, (size_t)n - 1));
        jtext_printf(t, "e%c%02d", exp10 < 0 ? '-' : '+', abs(exp10));
        return;
    }
    if (exp10 < 0) {
        jtext_puts(t, "0.");
        jtext_fill(t, STR("0"), -1 - exp10);
        jtext_add(t, str_of(digits, (size_t)n));
        return;
    }
    for (int i = 0; i <= exp10; i++) jtext_putc(t, i < n ? digits[i] : '0');
    jtext_putc(t, '.');
    if (n > exp10 + 1) jtext_add(t, str_of(digits + exp10 + 1, (size_t)(n - exp10 - 1)));
    else jtext_putc(t, '0');
}

/* ---- strings ---- */

/* Characters that are not printable are escaped, as in Python. */
static void put_repr_cp(struct jtext *t, int32_t cp, char quote, struct str raw)
{
    if (cp == quote || cp == '\\') jtext_putc(t, '\\'), jtext_putc(t, (char)cp);
    else if (cp == '\n') jtext_puts(t, "\\n");
    else if (cp == '\r') jtext_puts(t, "\\r");
    else if (cp == '\t') jtext_puts(t, "\\t");
    else if (cp >= 0 && uni_printable(cp)) jtext_add(t, raw);
    else if (cp < 0x100)
        jtext_printf(t, "\\x%02x", cp < 0 ? (unsigned char)raw.p[0] : (unsigned)cp);
    else if (cp < 0x10000) jtext_printf(t, "\\u%04x", (unsigned)cp);
    else jtext_printf(t, "\\U%08x", (unsigned)cp);
}

/* The repr of a str: single quotes, unless only those occur in it. */
static void put_repr_str(struct jtext *t, struct str s)
{
    /* Double quotes only if the text has single ones and no double ones. */
    bool single = s.n && memchr(s.p, '\'', s.n), both = single && memchr(s.p, '"', s.n);
    char quote = single && !both ? '"' : '\'';

    jtext_putc(t, quote);
    for (size_t i = 0; i < s.n && !jv_failed(t->r);) {
        struct str rest = str_skip(s, i);
        int32_t cp;
        size_t n = (size_t)utf8_next(rest, &cp);
        put_repr_cp(t, cp, quote, str_take(rest, n));
        i += n;
    }
    jtext_putc(t, quote);
}

/* ---- containers ---- */

/* Separated by ", ". */
static void put_repr_items(struct jtext *t, const struct jlist *l)
{
    for (size_t i = 0; i < l->n && jv_step(t->r, 1); i++) {
        if (i) jtext_puts(t, ", ");
        jtext_put_repr(t, l->v[i]);
    }
}

static void put_repr_dict(struct jtext *t, const struct jdict *d)
{
    jtext_putc(t, '{');
    for (size_t i = 0; i < d->n && jv_step(t->r, 1); i++) {
        if (i) jtext_puts(t, ", ");
        jtext_put_repr(t, d->e[i].key);
        jtext_puts(t, ": ");
        jtext_put_repr(t, d->e[i].value);
    }
    jtext_putc(t, '}');
}

static void put_repr_view(struct jtext *t, const struct jview *v)
{
    struct jval all = jv_to_list(t->r, (struct jval){ .kind = J_VIEW, .view = (struct jview *)v });

    jtext_puts(t, v->kind == VIEW_KEYS     ? "dict_keys(["
                  : v->kind == VIEW_VALUES ? "dict_values(["
                                           : "dict_items([");
    put_repr_items(t, all.l);
    jtext_puts(t, "])");
}

/* Objects of jinja2 and Python that have no literal. */
static void put_repr_object(struct jtext *t, struct jval v)
{
    switch (v.kind) {
    case J_RANGE:
        jtext_printf(t, "range(%lld, %lld", (long long)v.range->start, (long long)v.range->stop);
        if (v.range->step != 1) jtext_printf(t, ", %lld", (long long)v.range->step);
        jtext_putc(t, ')');
        break;
    case J_ITER: jtext_printf(t, "<%s at 0x0>", v.iter->shows); break;
    case J_NAMESPACE:
        jtext_puts(t, "<Namespace ");
        put_repr_dict(t, v.d);
        jtext_putc(t, '>');
        break;
    case J_MACRO:
        jtext_puts(t, "<Macro ");
        if (jmacro_name(v.macro).p) put_repr_str(t, jmacro_name(v.macro));
        else jtext_puts(t, "anonymous");
        jtext_putc(t, '>');
        break;
    case J_LOOP:
        jtext_printf(t, "<LoopContext %lld/%zu>", (long long)v.loop->index0 + 1,
                     jloop_length(t->r, v.loop));
        break;
    case J_METHOD:
        jtext_printf(t, "<built-in method %s of %s object at 0x0>", v.method->def->name,
                     jv_type(v.method->self));
        break;
    case J_FUNC: jtext_printf(t, "<function %s at 0x0>", v.func->name); break;
    default: jtext_printf(t, "<jinja2.utils.%s object at 0x0>", jv_type(v)); break;
    }
}

/* Types whose repr may contain that of others. */
static void put_repr_deep(struct jtext *t, struct jval v)
{
    switch (v.kind) {
    case J_LIST:
        jtext_putc(t, '[');
        put_repr_items(t, v.l);
        jtext_putc(t, ']');
        break;
    case J_TUPLE:
        jtext_putc(t, '(');
        put_repr_items(t, v.l);
        jtext_puts(t, v.l->n == 1 ? ",)" : ")");
        break;
    case J_DICT: put_repr_dict(t, v.d); break;
    case J_VIEW: put_repr_view(t, v.view); break;
    default: put_repr_object(t, v); break;
    }
}

/* Nested values are limited by jv_enter. */
void jtext_put_repr(struct jtext *t, struct jval v)
{
    switch (v.kind) {
    case J_MISSING:
    case J_UNDEF: jtext_puts(t, "Undefined"); return;
    case J_NONE: jtext_puts(t, "None"); return;
    case J_BOOL: jtext_puts(t, v.b ? "True" : "False"); return;
    case J_INT: jtext_printf(t, "%lld", (long long)v.i); return;
    case J_FLOAT: jtext_put_float(t, v.f); return;
    case J_STR:
        if (v.flags & JV_MARKUP) jtext_puts(t, "Markup(");
        put_repr_str(t, v.s);
        if (v.flags & JV_MARKUP) jtext_putc(t, ')');
        return;
    default: break;
    }
    if (!jv_enter(t->r)) return;
    put_repr_deep(t, v);
    jv_leave(t->r);
}

void jtext_put_value(struct jtext *t, struct jval v)
{
    if (v.kind == J_STR) jtext_add(t, v.s);
    else if (v.kind != J_UNDEF && v.kind != J_MISSING) jtext_put_repr(t, v);
}

/* A str is returned as it is, without a copy. */
struct str jv_text(struct render *r, struct jval v)
{
    struct jtext t = { .r = r };

    if (v.kind == J_STR) return v.s;
    jtext_put_value(&t, v);
    return jtext_done(&t).s;
}

struct str jv_repr(struct render *r, struct jval v)
{
    struct jtext t = { .r = r };

    jtext_put_repr(&t, v);
    return jtext_done(&t).s;
}
