/* format.c - Python's three ways of formatting: "..." % x, "...".format(), format specifications.
 *
 * All of them fill a struct field and end in put_padded. Width and precision are limited, so that a
 * format cannot ask for more memory than a rendering has.
 *
 *     conversion    %[(key)][flags][width][.precision][hlL]type     flags: - + space # 0
 *                   width and precision: digits, or * for an argument
 *     field         {[name][!r|!s|!a][:specification]}
 *                   name: a number or a name, then .attribute or [index]; empty: the next number
 *     specification [[fill]align][sign][#][0][width][, or _][.precision][type] */
#include "base/utf8.h"
#include "jinja/builtins.h"
#include "jinja/render.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_PRECISION = 300, MAX_WIDTH = 1 << 20 };

/* A conversion, in the terms of Python's format specification mini-language. */
struct field {
    struct str fill;      /* one character; empty: '0' with `zero`, else a space */
    char align;           /* '<', '>', '^', '='; 0: the default of the type */
    char sign, type;      /* 0: none */
    char group;           /* ',' or '_' between groups of digits; 0: none */
    bool alt, zero;       /* '#' and '0' */
    int width, precision; /* precision -1: none */
};

/* ---- numbers ---- */

/* The digits of v in a base, NUL-terminated. */
static void write_digits(char out[72], uint64_t v, int base, bool upper)
{
    const char *digits = upper ? "0123456789ABCDEF" : "0123456789abcdef";
    char rev[72];
    int n = 0;

    /* Digits come out in reverse. */
    do rev[n++] = digits[v % (unsigned)base];
    while (v /= (unsigned)base);
    for (int i = 0; i < n; i++) out[i] = rev[n - 1 - i];
    out[n] = 0;
}

/* Digits, with a separator between groups of the integer part. */
static void put_grouped(struct jtext *t, struct str digits, char sep, int every)
{
    size_t whole = 0;

    while (whole < digits.n && isxdigit((unsigned char)digits.p[whole])) whole++;
    for (size_t i = 0; i < whole; i++) {
        if (i && (whole - i) % (size_t)every == 0) jtext_putc(t, sep);
        jtext_putc(t, digits.p[i]);
    }
    jtext_add(t, str_skip(digits, whole));
}

/* prefix and body, padded to the width. Alignment '=' pads between them; `fallback` is the default
 * alignment of the type. */
static void put_padded(struct jtext *t, const struct field *f, struct str prefix, struct str body,
                       char fallback)
{
    int64_t room = f->width - (int64_t)jstr_len(prefix) - (int64_t)jstr_len(body);
    char align = f->align ? f->align : f->zero ? '=' : fallback;
    struct str fill = f->fill.n ? f->fill : f->zero ? STR("0") : STR(" ");
    int64_t left = align == '>' ? room : align == '^' ? room / 2 : 0;

    if (room < 0) room = left = 0;
    /* Padding goes between the sign and the digits. */
    if (align == '=') {
        jtext_add(t, prefix);
        jtext_fill(t, fill, room);
        jtext_add(t, body);
        return;
    }
    jtext_fill(t, fill, left);
    jtext_add(t, prefix);
    jtext_add(t, body);
    jtext_fill(t, fill, room - left);
}

/* Sign, radix ("0x") and digits. Digits of other bases than ten are in groups of four. */
static void put_signed_number(struct jtext *t, const struct field *f, bool negative,
                              const char *radix, struct str digits)
{
    struct jtext body = { .r = t->r };
    char prefix[8];

    snprintf(prefix, sizeof prefix, "%s%s",
             negative         ? "-"
             : f->sign == '+' ? "+"
             : f->sign == ' ' ? " "
                              : "",
             radix);
    if (f->group)
        put_grouped(&body, digits, f->group,
                    *radix || strchr("xXob", f->type) ? (f->type && strchr("xXob", f->type) ? 4 : 3)
                                                      : 3);
    else jtext_add(&body, digits);
    put_padded(t, f, str_c(prefix), jtext_done(&body).s, '>');
}

/* Python writes a negative number as a sign and its absolute value in every base. */
static void put_int_field(struct jtext *t, const struct field *f, int64_t v)
{
    int base = f->type == 'x' || f->type == 'X' ? 16 : f->type == 'o' ? 8 : f->type == 'b' ? 2 : 10;
    const char *radix = !f->alt || base == 10 ? ""
                        : f->type == 'X'      ? "0X"
                        : base == 16          ? "0x"
                        : base == 8           ? "0o"
                                              : "0b";
    char digits[72 + MAX_PRECISION];
    size_t n;

    write_digits(digits, v < 0 ? 0 - (uint64_t)v : (uint64_t)v, base, f->type == 'X');
    n = strlen(digits);
    if (f->precision > (int)n) { /* "%.5d": at least so many digits */
        memmove(digits + f->precision - n, digits, n + 1);
        memset(digits, '0', (size_t)f->precision - n);
    }
    put_signed_number(t, f, v < 0, radix, str_c(digits));
}

/* The types e, f, g and their capitals are those of printf; % multiplies by 100; without a type
 * and precision it is repr(). */
static void put_float_field(struct jtext *t, const struct field *f, double v)
{
    struct jtext own = { .r = t->r };
    char text[MAX_PRECISION + 400], fmt[16], type = f->type ? f->type : 'g';
    int precision = f->precision < 0 ? 6 : f->precision;

    if (!f->type && f->precision < 0) {
        jtext_put_float(&own, fabs(v));
        put_signed_number(t, f, signbit(v) && !isnan(v), "", jtext_done(&own).s);
        return;
    }
    if (type == '%') v *= 100, type = 'f';
    if (type == 'n') type = 'g';
    snprintf(fmt, sizeof fmt, "%%%s.*%c", f->alt ? "#" : "", type);
    /* printf would write "-nan" for some of them. */
    if (isnan(v) || isinf(v))
        snprintf(text, sizeof text, "%s",
                 isnan(v)                       ? (isupper((unsigned char)type) ? "NAN" : "nan")
                 : isupper((unsigned char)type) ? "INF"
                                                : "inf");
    else snprintf(text, sizeof text, fmt, precision, fabs(v));
    if (!f->type && !strpbrk(text, ".en")) snprintf(text + strlen(text), 4, ".0");
    if (f->type == '%') snprintf(text + strlen(text), 4, "%%");
    put_signed_number(t, f, signbit(v) && !isnan(v), "", str_c(text));
}

/* A precision cuts a text to so many characters. */
static void put_text_field(struct jtext *t, const struct field *f, struct str s)
{
    if (f->precision >= 0) s = str_take(s, text_offset(s, (size_t)f->precision));
    put_padded(t, f, STR(""), s, '<');
}

/* ---- "..." % x ---- */

struct percent {
    struct jtext t;
    struct str fmt;
    size_t at;   /* offset in fmt */
    size_t next; /* index of the next item of a tuple of arguments */
    struct jval args;
    bool used;   /* a single argument was used */
    bool markup; /* fmt is Markup: arguments are escaped */
};

/* A tuple provides its items in order; any other value is a single argument. */
static struct jval next_percent_arg(struct percent *p)
{
    if (p->args.kind == J_TUPLE) {
        if (p->next < p->args.l->n) return p->args.l->v[p->next++];
    } else if (!p->used) {
        p->used = true;
        return p->args;
    }
    return jv_fail(p->t.r, "not enough arguments for format string");
}

/* The next character of the format; 0: the end. */
static char peek_format(const struct percent *p) { return p->at < p->fmt.n ? p->fmt.p[p->at] : 0; }

/* A width or precision; "*" takes it from the arguments. */
static int read_percent_number(struct percent *p)
{
    int64_t v = 0;

    if (peek_format(p) == '*') {
        p->at++;
        jarg_int(p->t.r, next_percent_arg(p), 0, &v);
    } else {
        while (isdigit((unsigned char)peek_format(p)))
            v = v < MAX_WIDTH ? v * 10 + (p->fmt.p[p->at] - '0') : v, p->at++;
    }
    if (v > MAX_WIDTH || v < -MAX_WIDTH)
        jv_fail(p->t.r, "a width or precision is larger than %d", MAX_WIDTH);
    return (int)v;
}

/* "(key)": the value of a mapping. */
static bool read_percent_key(struct percent *p, struct jval *out)
{
    size_t from = ++p->at;
    int open = 1;
    const struct jval *v;
    struct str key;

    for (; p->at < p->fmt.n && open > 0; p->at++)
        open += p->fmt.p[p->at] == '(' ? 1 : p->fmt.p[p->at] == ')' ? -1 : 0;
    if (open) return jv_fail(p->t.r, "incomplete format key"), false;
    key = str_of(p->fmt.p + from, p->at - 1 - from);
    if (p->args.kind != J_DICT) return jv_fail(p->t.r, "format requires a mapping"), false;
    v = jdict_get(p->t.r, p->args.d, jv_str(key));
    if (!v)
        return jv_fail(p->t.r, "the mapping has no key '%.*s'", STR_ARG(str_take(key, 60))), false;
    *out = *v;
    return true;
}

/* Flags, width, precision and length modifier, in this order. Length modifiers have no meaning in
 * Python. */
static void read_percent_flags(struct percent *p, struct field *f)
{
    for (; peek_format(p) && strchr("-+ #0", peek_format(p)); p->at++) {
        char c = peek_format(p);
        if (c == '-') f->align = '<';
        else if (c == '#') f->alt = true;
        else if (c == '0') f->zero = true;
        else if (f->sign != '+') f->sign = c;
    }
    f->width = read_percent_number(p);
    if (f->width < 0) f->align = '<', f->width = -f->width;
    if (peek_format(p) == '.') {
        p->at++;
        f->precision = read_percent_number(p);
        if (f->precision < 0) f->precision = 0;
    }
    if (peek_format(p) && strchr("hlL", peek_format(p))) p->at++;
    /* As in C, "-" overrides "0". */
    if (f->align == '<') f->zero = false;
}

/* d, i, u, o, x, X. d truncates a float; the others need an integer. */
static void put_percent_int(struct percent *p, struct field *f, struct jval v)
{
    struct render *r = p->t.r;

    if (jv_is_undef(v)) jv_fail_undef(r, v);
    else if (!jv_is_num(v) || (v.kind == J_FLOAT && strchr("oxX", f->type)))
        jv_fail(r, "%%%c format: a real number is required, not %s", f->type, jv_type(v));
    else if (v.kind == J_FLOAT && !(fabs(v.f) < 9e18))
        jv_fail(r, "%%%c format: the number is too large", f->type);
    else if (f->precision > MAX_PRECISION)
        jv_fail(r, "a precision is larger than %d", MAX_PRECISION);
    else put_int_field(&p->t, f, v.kind == J_FLOAT ? (int64_t)v.f : jv_as_int(v));
}

static void put_percent_float(struct percent *p, struct field *f, struct jval v)
{
    if (jv_is_undef(v)) jv_fail_undef(p->t.r, v);
    else if (!jv_is_num(v)) jv_fail(p->t.r, "must be real number, not %s", jv_type(v));
    else if (f->precision > MAX_PRECISION)
        jv_fail(p->t.r, "a precision is larger than %d", MAX_PRECISION);
    else put_float_field(&p->t, f, jv_as_float(v));
}

/* c: a code point, or a str of one character. */
static void put_percent_char(struct percent *p, struct field *f, struct jval v)
{
    char c[4];

    if (jv_is_int(v) && jv_as_int(v) >= 0 && jv_as_int(v) < 0x110000)
        put_padded(&p->t, f, STR(""), str_of(c, (size_t)utf8_put(c, (int32_t)jv_as_int(v))), '>');
    else if (v.kind == J_STR && jstr_len(v.s) == 1) put_padded(&p->t, f, STR(""), v.s, '>');
    else jv_fail(p->t.r, "%%c requires int or char");
}

/* s is str(), r and a are repr(). Unlike Python a does not escape non-ASCII characters. */
static void put_percent_text(struct percent *p, struct field *f, struct jval v)
{
    struct str s = f->type == 's' ? jv_text(p->t.r, v) : jv_repr(p->t.r, v);

    if (p->markup) s = text_escape(p->t.r, f->type == 's' ? v : jv_str(s)).s;
    f->zero = false;
    if (f->precision >= 0) s = str_take(s, text_offset(s, (size_t)f->precision));
    put_padded(&p->t, f, STR(""), s, '>');
}

/* One conversion, from behind its "%". */
static void put_percent_field(struct percent *p)
{
    struct field f = { .precision = -1 };
    struct jval v = { .kind = J_MISSING };

    if (peek_format(p) == '(' && !read_percent_key(p, &v)) return;
    read_percent_flags(p, &f);
    if (p->at >= p->fmt.n) {
        jv_fail(p->t.r, "incomplete format");
        return;
    }
    f.type = p->fmt.p[p->at++];
    if (f.type == '%') {
        jtext_putc(&p->t, '%');
        return;
    }
    if (!strchr("diuoxXeEfFgGcrsa", f.type)) {
        jv_fail(p->t.r, "unsupported format character '%c'",
                isprint((unsigned char)f.type) ? f.type : '?');
        return;
    }
    if (v.kind == J_MISSING) v = next_percent_arg(p);
    if (jv_failed(p->t.r)) return;
    if (strchr("diuoxX", f.type)) put_percent_int(p, &f, v);
    else if (f.type == 'c') put_percent_char(p, &f, v);
    else if (strchr("rsa", f.type)) put_percent_text(p, &f, v);
    else put_percent_float(p, &f, v);
}

/* The str operator %. All arguments of a tuple must be used. */
struct jval format_percent(struct render *r, struct str fmt, struct jval args, bool markup)
{
    struct percent p = { .t = { .r = r }, .fmt = fmt, .args = args, .markup = markup };
    bool mapping = /* Python does not insist that a mapping is used */
        args.kind == J_DICT || args.kind == J_LIST || args.kind == J_UNDEF || args.kind == J_RANGE;
    struct jval out;

    while (p.at < fmt.n && jv_step(r, 1)) {
        const char *next = memchr(fmt.p + p.at, '%', fmt.n - p.at);
        size_t end = next ? (size_t)(next - fmt.p) : fmt.n;
        jtext_add(&p.t, str_of(fmt.p + p.at, end - p.at));
        p.at = end + 1;
        if (next) put_percent_field(&p);
    }
    if (args.kind == J_TUPLE ? p.next < args.l->n : !p.used && !mapping)
        jv_fail(r, "not all arguments converted during string formatting");
    out = jtext_done(&p.t);
    out.flags = markup ? JV_MARKUP : 0;
    return out;
}

/* ---- format specs ---- */

static bool is_align(char c) { return c && strchr("<>=^", c); }

/* Digits at the front of *s; saturates above MAX_WIDTH, which parse_spec refuses. */
static int read_spec_number(struct str *s)
{
    int v = 0;

    while (s->n && isdigit((unsigned char)*s->p)) {
        v = v < MAX_WIDTH ? v * 10 + (*s->p - '0') : v;
        *s = str_skip(*s, 1);
    }
    return v;
}

/* [[fill]align][sign][#][0][width][group][.precision][type]; false: s is something else. */
static bool parse_spec(struct str s, struct field *f)
{
    size_t first = s.n ? text_offset(s, 1) : 0;

    *f = (struct field){ .precision = -1 };
    /* An alignment in second place makes the first character the fill. */
    if (s.n > first && is_align(s.p[first])) {
        f->fill = str_take(s, first);
        f->align = s.p[first];
        s = str_skip(s, first + 1);
    } else if (s.n && is_align(s.p[0])) {
        f->align = s.p[0];
        s = str_skip(s, 1);
    }
    if (s.n && strchr("+- ", s.p[0])) f->sign = s.p[0], s = str_skip(s, 1);
    if (s.n && s.p[0] == '#') f->alt = true, s = str_skip(s, 1);
    if (s.n && s.p[0] == '0') f->zero = true, s = str_skip(s, 1);
    f->width = read_spec_number(&s);
    if (s.n && (s.p[0] == ',' || s.p[0] == '_')) f->group = s.p[0], s = str_skip(s, 1);
    if (s.n && s.p[0] == '.') {
        s = str_skip(s, 1);
        if (!s.n || !isdigit((unsigned char)s.p[0])) return false;
        f->precision = read_spec_number(&s);
        if (f->precision > MAX_PRECISION) return false;
    }
    if (s.n) f->type = s.p[0], s = str_skip(s, 1);
    return s.n == 0 && f->width <= MAX_WIDTH;
}

/* Text is left-aligned by default. */
static void put_str_spec(struct jtext *t, struct field *f, struct str s)
{
    if (f->type && f->type != 's') {
        jv_fail(t->r, "Unknown format code '%c' for object of type 'str'", f->type);
    } else if (f->align == '=') {
        jv_fail(t->r, "'=' alignment not allowed in string format specifier");
    } else {
        if (f->zero && !f->align) f->align = '<', f->fill = STR("0");
        put_text_field(t, f, s);
    }
}

/* Type c: an integer as a character. */
static void put_char_spec(struct jtext *t, const struct field *f, int64_t cp)
{
    char c[4];

    if (cp < 0 || cp > 0x10ffff) jv_fail(t->r, "%%c arg not in range(0x110000)");
    else put_padded(t, f, STR(""), str_of(c, (size_t)utf8_put(c, (int32_t)cp)), '<');
}

/* Which types a value accepts, and the messages, are those of Python. */
void format_spec(struct jtext *t, struct jval v, struct str spec)
{
    struct field f;

    if (!spec.n) {
        jtext_put_value(t, v);
    } else if (!parse_spec(spec, &f) || (f.type && !strchr("bcdeEfFgGnosxX%", f.type))) {
        jv_fail(t->r, "Invalid format specifier '%.*s'", STR_ARG(str_take(spec, 60)));
    } else if (v.kind == J_STR) {
        put_str_spec(t, &f, v.s);
    } else if (jv_is_int(v) && f.type == 'c') {
        put_char_spec(t, &f, jv_as_int(v));
    } else if (v.kind == J_BOOL && !f.type) {
        put_int_field(t, &f, v.b);
    } else if (jv_is_int(v) && (!f.type || strchr("bdnoxX", f.type))) {
        if (f.precision >= 0) jv_fail(t->r, "Precision not allowed in integer format specifier");
        else put_int_field(t, &f, jv_as_int(v));
    } else if (jv_is_num(v) && (!f.type || strchr("eEfFgGn%", f.type))) {
        put_float_field(t, &f, jv_as_float(v));
    } else if (jv_is_num(v)) {
        jv_fail(t->r, "Unknown format code '%c' for object of type '%s'", f.type, jv_type(v));
    } else {
        jv_fail(t->r, "unsupported format string passed to %s.__format__", jv_type(v));
    }
}

/* ---- "...".format() ---- */

struct braces {
    struct render *r;
    const struct jargs *a;
    struct jval map;          /* of format_map(), else None */
    size_t next;              /* index that the next "{}" uses */
    bool numbered, automatic; /* "{0}" or "{}" occurred; Python allows only one of them */
};

/* The argument that the name or number at the beginning of a field means. */
static struct jval find_braces_arg(struct braces *b, struct str name)
{
    int64_t i;
    const struct jval *v;

    /* "{}" and "{0}": positional. */
    if (!name.n || str_to_i64(name, &i)) {
        if (name.n ? b->automatic : b->numbered)
            return jv_fail(
                b->r,
                "cannot switch between automatic field numbering and manual field specification");
        if (name.n) b->numbered = true;
        else b->automatic = true, i = (int64_t)b->next++;
        if (i < 0 || (size_t)i >= b->a->n)
            return jv_fail(b->r, "Replacement index %lld out of range for positional args tuple",
                           (long long)i);
        return b->a->v[i];
    }
    if (b->map.kind == J_DICT && (v = jdict_get(b->r, b->map.d, jv_str(name)))) return *v;
    for (size_t k = 0; k < b->a->n_kw; k++)
        if (str_eq(b->a->kw[k].key.s, name)) return b->a->kw[k].value;
    return jv_fail(b->r, "the arguments of format() have no '%.*s'", STR_ARG(str_take(name, 60)));
}

/* The value of a field name like "name.attr[0]". */
static struct jval find_braces_value(struct braces *b, struct str field)
{
    size_t n = 0;
    struct jval v;

    while (n < field.n && field.p[n] != '.' && field.p[n] != '[') n++;
    v = find_braces_arg(b, str_take(field, n));
    field = str_skip(field, n);
    while (field.n && !jv_failed(b->r)) {
        bool item = field.p[0] == '[';
        struct str name;
        int64_t i;
        for (n = 1;
             n < field.n && (item ? field.p[n] != ']' : field.p[n] != '.' && field.p[n] != '[');
             n++) {}
        name = str_of(field.p + 1, n - 1);
        if ((item && n == field.n) || !name.n)
            return jv_fail(b->r, "Missing ']' or attribute in format string");
        /* Digits in brackets are an integer index, anything else a key without quotes. */
        if (item) v = attr_item(b->r, v, str_to_i64(name, &i) ? jv_int(i) : jv_str(name));
        else v = attr_get(b->r, v, name);
        if (jv_is_undef(v)) return jv_fail_undef(b->r, v);
        field = str_skip(field, n + item);
        if (item && field.n && field.p[0] != '.' && field.p[0] != '[')
            return jv_fail(b->r, "Only '.' or '[' may follow ']' in format field specifier");
    }
    return v;
}

static void put_braces_text(struct braces *b, struct jtext *t, struct str fmt, int depth);

/* One replacement field, without its braces: name!conversion:spec. The spec may hold fields. */
static void put_braces_field(struct braces *b, struct jtext *t, struct str field, int depth)
{
    struct jtext spec = { .r = b->r };
    size_t n = 0;
    int open = 0;
    char conversion = 0;
    struct str rest;
    struct jval v;

    for (; n < field.n && (open || (field.p[n] != ':' && field.p[n] != '!')); n++)
        open += field.p[n] == '[' ? 1 : field.p[n] == ']' ? -1 : 0;
    v = find_braces_value(b, str_take(field, n));
    rest = str_skip(field, n);
    if (rest.n && rest.p[0] == '!') {
        if (rest.n < 2 || !strchr("rsa", rest.p[1]) || (rest.n > 2 && rest.p[2] != ':')) {
            jv_fail(b->r, "expected ':' after conversion specifier");
            return;
        }
        conversion = rest.p[1];
        rest = str_skip(rest, 2);
    }
    if (rest.n) put_braces_text(b, &spec, str_skip(rest, 1), depth + 1);
    if (jv_failed(b->r)) return;
    if (conversion) v = jv_str(conversion == 's' ? jv_text(b->r, v) : jv_repr(b->r, v));
    format_spec(t, v, jtext_done(&spec).s);
}

/* Text with replacement fields. "{{" and "}}" are literal braces. */
static void put_braces_text(struct braces *b, struct jtext *t, struct str fmt, int depth)
{
    if (depth > 2) jv_fail(b->r, "Max string recursion exceeded");
    for (size_t i = 0; i < fmt.n && jv_step(b->r, 1);) {
        char c = fmt.p[i];
        size_t from = i + 1, end = from;
        int open = 1;
        if (c != '{' && c != '}') {
            while (i < fmt.n && fmt.p[i] != '{' && fmt.p[i] != '}') i++;
            jtext_add(t, str_of(fmt.p + from - 1, i - from + 1));
            continue;
        }
        if (from < fmt.n && fmt.p[from] == c) {
            jtext_putc(t, c);
            i += 2;
            continue;
        }
        if (c == '}') {
            jv_fail(b->r, "Single '}' encountered in format string");
            return;
        }
        for (; end < fmt.n && open > 0; end++)
            open += fmt.p[end] == '{' ? 1 : fmt.p[end] == '}' ? -1 : 0;
        if (open) {
            jv_fail(b->r, from == fmt.n ? "Single '{' encountered in format string"
                                        : "expected '}' before end of string");
            return;
        }
        put_braces_field(b, t, str_of(fmt.p + from, end - 1 - from), depth);
        i = end;
    }
}

/* A format specification may contain fields; their nesting is limited as in Python. */
struct jval format_braces(struct render *r, struct str fmt, const struct jargs *a, struct jval map)
{
    struct braces b = { .r = r, .a = a, .map = map };
    struct jtext t = { .r = r };

    put_braces_text(&b, &t, fmt, 0);
    return jtext_done(&t);
}
