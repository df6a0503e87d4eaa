/* filters_misc.c - filters over any value: conversions, numbers, default, attr, format, tojson.
 *
 * int, float and round follow Python's int(), float() and round(), including underscores in digits
 * and rounding halves to even. */
#include "jinja/builtins.h"
#include "jinja/pprint.h"
#include "jinja/render.h"
#include "jinja/unicode.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* A filter receives the value on its left and its arguments. */
#define FILTER(name) \
    static struct jval f_##name(struct render *r, struct jval v, const struct jargs *a)

/* ---- texts to numbers ---- */

/* 99: not a digit in any base. */
static int digit_value(char c)
{
    c = (char)tolower((unsigned char)c);
    return isdigit((unsigned char)c) ? c - '0' : c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
}

/* int(text, base): white space, sign, prefix for base 0, 2, 8 or 16, single underscores between
 * digits. */
bool text_to_int(struct str s, int base, int64_t *out)
{
    bool negative = false, any = false, under = true;
    int64_t v = 0;
    char p;

    s = text_strip(s, NULL, true, true);
    if (s.n && (s.p[0] == '-' || s.p[0] == '+')) negative = s.p[0] == '-', s = str_skip(s, 1);
    p = s.n > 2 && s.p[0] == '0' ? (char)tolower((unsigned char)s.p[1]) : 0;
    if ((p == 'x' && (base == 16 || base == 0)) || (p == 'o' && (base == 8 || base == 0)) ||
        (p == 'b' && (base == 2 || base == 0))) {
        base = p == 'x' ? 16 : p == 'o' ? 8 : 2;
        s = str_skip(s, 2);
        under = false;
    }
    if (base == 0) base = 10;
    /* Negative sums: the smallest integer has no positive counterpart. */
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] == '_' && !under) {
            under = true;
            continue;
        }
        if (digit_value(s.p[i]) >= base) return false;
        if (__builtin_mul_overflow(v, base, &v) ||
            __builtin_sub_overflow(v, digit_value(s.p[i]), &v))
            return false;
        any = true;
        under = false;
    }
    if (!any || under || (!negative && v == INT64_MIN)) return false;
    *out = negative ? v : -v;
    return true;
}

/* float(text): also "inf" and "nan". Hexadecimal floats, which strtod reads, are refused as in
 * Python. */
bool text_to_float(struct str s, double *out)
{
    char text[400], *end;
    size_t n = 0;

    s = text_strip(s, NULL, true, true);
    if (s.n == 0 || s.n >= sizeof text) return false;
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (c == '_') {
            if (i == 0 || i + 1 == s.n || !isdigit((unsigned char)s.p[i - 1]) ||
                !isdigit((unsigned char)s.p[i + 1]))
                return false;
            continue;
        }
        if (c == 'x' || c == 'X' || c == '(' || !isprint(c)) return false;
        text[n++] = (char)c;
    }
    text[n] = 0;
    *out = strtod(text, &end);
    return *end == 0;
}

/* int(v), or false where Python would raise TypeError or ValueError. */
static bool convert_to_int(struct render *r, struct jval v, int base, int64_t *out)
{
    if (v.kind == J_STR) return text_to_int(v.s, base, out);
    if (jv_is_int(v)) return *out = jv_as_int(v), true;
    if (v.kind != J_FLOAT || isnan(v.f)) return false;
    if (!(fabs(v.f) < 9.2233720368547e18))
        return jv_fail(r, "cannot convert a float of this size to an integer"), false;
    *out = (int64_t)v.f;
    return true;
}

/* int(default=0, base=10): never raises ValueError; text that is not a number gives the default.
 * "42.7" gives 42. */
FILTER(int)
{
    static const char *const names[] = { "default", "base", NULL };
    struct jval arg[2];
    int64_t base, i;
    double f;

    if (!jargs_bind(r, a, "int", names, 0, arg) || !jarg_int(r, arg[1], 10, &base)) return v;
    if (jv_is_undef(v)) return jv_fail_undef(r, v);
    /* An invalid base makes int() fail for text, which gives the default. */
    if (base != 0 && (base < 2 || base > 36)) base = 99;
    if ((base != 99 || v.kind != J_STR) && convert_to_int(r, v, (int)base, &i)) return jv_int(i);
    if (!jv_failed(r) && v.kind == J_STR && text_to_float(v.s, &f) && fabs(f) < 9.2233720368547e18)
        return jv_int((int64_t)f);
    return jv_given(arg[0]) ? arg[0] : jv_int(0);
}

/* float(default=0.0) */
FILTER(float)
{
    static const char *const names[] = { "default", NULL };
    struct jval arg;
    double f;

    if (!jargs_bind(r, a, "float", names, 0, &arg)) return v;
    if (jv_is_undef(v)) return jv_fail_undef(r, v);
    if (jv_is_num(v)) return jv_float(jv_as_float(v));
    if (v.kind == J_STR && text_to_float(v.s, &f)) return jv_float(f);
    return jv_given(arg) ? arg : jv_float(0);
}

/* abs(value) */
FILTER(abs)
{
    (void)a;
    if (v.kind == J_FLOAT) return jv_float(fabs(v.f));
    if (!jv_is_int(v)) return jv_fail(r, "bad operand type for abs(): '%s'", jv_type(v));
    return jv_as_int(v) < 0 ? op_unary(r, '-', v) : jv_int(jv_as_int(v));
}

/* ---- rounding ---- */

/* round(v, precision) of an integer: halves go to even. */
static struct jval round_int(struct render *r, int64_t v, int64_t precision)
{
    int64_t unit = 1, rest;

    if (precision >= 0) return jv_int(v);
    if (precision < -18) return jv_int(0);
    for (; precision < 0; precision++) unit *= 10;
    rest = v % unit;
    if (rest < 0) rest += unit;
    v -= rest;
    /* Halves go to the even multiple of the unit. */
    if (rest > unit / 2 || (rest == unit / 2 && v / unit % 2))
        return op_add(r, jv_int(v), jv_int(unit));
    return jv_int(v);
}

/* The method "common" of the filter round. printf rounds the exact binary value, as Python does. */
static struct jval round_common(struct render *r, struct jval v, int64_t precision)
{
    char text[700];
    double unit;

    if (v.kind != J_FLOAT) return round_int(r, jv_as_int(v), precision);
    if (isnan(v.f) || isinf(v.f) || precision > 300) return v;
    if (precision < 0) {
        if (precision < -308) return jv_float(copysign(0, v.f));
        unit = pow(10, (double)-precision);
        return jv_float(nearbyint(v.f / unit) * unit);
    }
    snprintf(text, sizeof text, "%.*f", (int)precision, v.f);
    return jv_float(strtod(text, NULL));
}

/* round(precision=0, method='common'); ceil and floor work on value * 10 ** precision. */
FILTER(round)
{
    static const char *const names[] = { "precision", "method", NULL };
    struct jval arg[2], unit, scaled;
    int64_t precision;

    if (!jargs_bind(r, a, "round", names, 0, arg) || !jarg_int(r, arg[0], 0, &precision)) return v;
    if (jv_is_undef(v)) return jv_fail_undef(r, v);
    if (!jv_is_num(v)) return jv_fail(r, "type %s doesn't define __round__ method", jv_type(v));
    if (!jv_given(arg[1]) || (arg[1].kind == J_STR && str_is(arg[1].s, "common")))
        return round_common(r, v, precision);
    if (arg[1].kind != J_STR || (!str_is(arg[1].s, "ceil") && !str_is(arg[1].s, "floor")))
        return jv_fail(r, "method must be common, ceil or floor");
    unit = op_binary(r, "**", jv_int(10), jv_int(precision));
    scaled = op_binary(r, "*", v, unit);
    if (jv_failed(r)) return v;
    if (scaled.kind == J_FLOAT)
        scaled.f = str_is(arg[1].s, "ceil") ? ceil(scaled.f) : floor(scaled.f);
    return op_binary(r, "/", scaled, unit);
}

/* ---- other filters ---- */

/* default(default_value='', boolean=false), also d: for undefined values, or with boolean for all
 * false ones. */
FILTER(default)
{
    static const char *const names[] = { "default_value", "boolean", NULL };
    struct jval arg[2];

    if (!jargs_bind(r, a, "default", names, 0, arg)) return v;
    if (!jv_is_undef(v) && !(jv_given(arg[1]) && jv_truth(r, arg[1]) && !jv_truth(r, v))) return v;
    return jv_given(arg[0]) ? arg[0] : jv_str(STR(""));
}

/* attr(name): getattr without the fallback to items. */
FILTER(attr)
{
    static const char *const names[] = { "name", NULL };
    struct jval name;

    if (!jargs_bind(r, a, "attr", names, 1, &name)) return v;
    if (name.kind != J_STR)
        return jv_fail(r, "attribute name must be string, not '%s'", jv_type(name));
    return attr_only(r, v, name.s);
}

/* str(value); Markup stays Markup. */
FILTER(string)
{
    (void)a;
    return v.kind == J_STR ? v : jv_str(jv_text(r, v));
}

/* Marks a str as safe HTML. */
FILTER(safe)
{
    (void)a;
    v = jv_str(jv_text(r, v));
    v.flags = JV_MARKUP;
    return v;
}

/* "%s and %s" | format(a, b), or with named arguments. */
FILTER(format)
{
    struct jval args;

    if (a->n && a->n_kw)
        return jv_fail(r, "can't handle positional and keyword arguments at the same time");
    args = a->n_kw ? jv_dict(r, a->n_kw) : jv_tuple(r, a->n);
    for (size_t i = 0; i < a->n_kw; i++) jdict_append(r, args.d, a->kw[i].key, a->kw[i].value);
    for (size_t i = 0; i < a->n; i++) jlist_push(r, args.l, a->v[i]);
    return format_percent(r, jv_text(r, v), args, v.kind == J_STR && v.flags & JV_MARKUP);
}

/* filesizeformat(binary=false): 1300 becomes "1.3 kB", with binary 1.3 KiB. */
FILTER(filesizeformat)
{
    static const char *const names[] = { "binary", NULL }, units[] = "kMGTPEZY";
    struct jval binary, number = f_float(r, v, &(struct jargs){ 0 });
    double base, bytes = number.f, unit;
    struct jtext t = { .r = r };
    int i = 0;

    if (!jargs_bind(r, a, "filesizeformat", names, 0, &binary)) return v;
    base = jv_given(binary) && jv_truth(r, binary) ? 1024 : 1000;
    /* Exactly one byte has a singular. */
    if (!(bytes < 1) && !(bytes > 1)) return jv_str(STR("1 Byte"));
    if (bytes < base) {
        jtext_printf(&t, "%lld Bytes", (long long)bytes);
        return jtext_done(&t);
    }
    for (unit = base * base; i < 7 && bytes >= unit; i++) unit *= base;
    jtext_printf(&t, "%.1f %c%s", base * bytes / unit,
                 base > 1000 ? toupper((unsigned char)units[i]) : units[i],
                 base > 1000 ? "iB" : "B");
    return jtext_done(&t);
}

FILTER(pprint)
{
    (void)a;
    return pprint_value(r, v);
}

/* Names and aliases of jinja2. */
const struct jfilter filters_misc[] = {
    { "tojson", json_dump }, { "default", f_default },
    { "d", f_default },      { "string", f_string },
    { "safe", f_safe },      { "int", f_int },
    { "float", f_float },    { "abs", f_abs },
    { "round", f_round },    { "attr", f_attr },
    { "format", f_format },  { "filesizeformat", f_filesizeformat },
    { "pprint", f_pprint },  { NULL, NULL }
};
