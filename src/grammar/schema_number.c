/* schema_number.c - numbers of a schema: bounds and multiples, as conditions on decimal digits.
 *
 * A range of integers becomes alternatives by the number of digits, and within one length by the
 * first digit that differs from a bound: 12 to 345 is 1[2-9] | [2-9][0-9] | [12][0-9]{2} |
 * 3[0-3][0-9] | 34[0-5]. The digits after the decimal point are compared with a bound in the same
 * way. Multiples of an integer are a DFA whose states are the remainders, intersected with the
 * range; other multiples are listed. */
#include "grammar/schema_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    MAX_DIGITS = 15,     /* of a number without bounds: a double does not keep more */
    MAX_FRACTION = 8,    /* digits after the point */
    DECIMAL_BYTES = 400, /* digits of a number below 1e300, and of its reciprocal */
    MAX_MODULUS = 1000,  /* multiples of larger numbers are listed */
    MAX_LISTED = 6000    /* multiples of one number */
};

/* A number that is not negative, in decimal: "12" and "5" for 12.5. */
struct decimal {
    char whole[DECIMAL_BYTES]; /* without leading zeros, but "0" for 0 */
    char part[DECIMAL_BYTES];  /* the digits after the point, without trailing zeros */
    bool open;                 /* a bound that is not included */
};

struct number_range {
    bool has_lo, has_hi, lo_open, hi_open; /* open: the bound is not included */
    double lo, hi;
};

/* ---- decimals ---- */

/* The fewest digits that read back as v, in exponent notation. */
static void print_shortest(double v, char *out, size_t n)
{
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(out, n, "%.*e", digits - 1, v);
        if (strtod(out, NULL) == v) return;
    }
}

/* v >= 0 and below 1e300. */
static struct decimal make_decimal(double v, bool open)
{
    struct decimal d = { .open = open };
    char text[64], digits[32];
    int n = 0, exp, nw = 0, np = 0;

    print_shortest(v, text, sizeof text);
    exp = atoi(strchr(text, 'e') + 1); /* the power of ten of the first digit */
    for (const char *s = text; *s != 'e'; s++)
        if (*s >= '0' && *s <= '9' && n < 30) digits[n++] = *s;
    for (int k = exp > 0 ? exp : 0; k >= 0; k--)
        d.whole[nw++] = exp - k >= 0 && exp - k < n ? digits[exp - k] : '0';
    for (int k = -1; exp - k < n && np < DECIMAL_BYTES - 1; k--)
        d.part[np++] = exp - k >= 0 ? digits[exp - k] : '0';
    while (np > 0 && d.part[np - 1] == '0') np--;
    d.part[np] = 0;
    d.whole[nw] = 0;
    return d;
}

/* Compares integers in decimal: without leading zeros the longer one is larger. */
static int compare_whole(const char *a, const char *b)
{
    size_t x = strlen(a), y = strlen(b);
    return x != y ? (x > y) - (x < y) : strcmp(a, b);
}

/* Adds 1 in place; there is room for one more digit. */
static void increment(char *s)
{
    size_t n = strlen(s), i = n;

    while (i > 0 && s[i - 1] == '9') s[--i] = '0';
    if (i > 0) s[i - 1]++;
    else {
        memmove(s + 1, s, n + 1);
        s[0] = '1';
    }
}

/* false: the number was 0. */
static bool decrement(char *s)
{
    size_t n = strlen(s), i = n;

    if (!strcmp(s, "0")) return false;
    while (s[i - 1] == '0') s[--i] = '9';
    s[i - 1]--;
    if (n > 1 && s[0] == '0') memmove(s, s + 1, n);
    return true;
}

/* ---- digits ---- */

/* One digit; none if lo is above hi. */
static struct rule_node *make_digit(struct schema_build *x, char lo, char hi)
{
    return lo > hi ? rules_node(x->g, NODE_NEVER) : rules_range(x->g, lo, hi);
}

/* min to max digits. */
static struct rule_node *make_digits(struct schema_build *x, int min, int max)
{
    return rules_repeat(x->g, rules_range(x->g, '0', '9'), min, max);
}

/* Does s consist of this character only? The empty text does. */
static bool is_all(const char *s, char c)
{
    while (*s == c) s++;
    return !*s;
}

/* Numbers with as many digits as s that are at least s, or (at_most) at most s. */
static struct rule_node *make_same_length(struct schema_build *x, const char *s, bool at_most)
{
    struct rules *g = x->g;
    int n = (int)strlen(s);
    struct rule_node *alt;

    if (is_all(s, at_most ? '9' : '0')) return make_digits(x, n, n);
    alt = rules_node(g, NODE_ALT);
    rules_add_child(g, alt,
                    RULES_SEQ(g, make_digit(x, s[0], s[0]), make_same_length(x, s + 1, at_most)));
    rules_add_child(g, alt,
                    RULES_SEQ(g,
                              at_most ? make_digit(x, '0', (char)(s[0] - 1))
                                      : make_digit(x, (char)(s[0] + 1), '9'),
                              make_digits(x, n - 1, n - 1)));
    return alt;
}

/* Numbers from lo to hi, which have the same number of digits. */
static struct rule_node *make_between(struct schema_build *x, const char *lo, const char *hi)
{
    struct rules *g = x->g;
    int n = (int)strlen(lo);
    struct rule_node *alt;

    if (n == 0) return rules_node(g, NODE_EMPTY);
    if (lo[0] == hi[0])
        return RULES_SEQ(g, make_digit(x, lo[0], lo[0]), make_between(x, lo + 1, hi + 1));
    alt = rules_node(g, NODE_ALT);
    rules_add_child(g, alt,
                    RULES_SEQ(g, make_digit(x, lo[0], lo[0]), make_same_length(x, lo + 1, false)));
    rules_add_child(g, alt,
                    RULES_SEQ(g, make_digit(x, (char)(lo[0] + 1), (char)(hi[0] - 1)),
                              make_digits(x, n - 1, n - 1)));
    return rules_add_child(
        g, alt, RULES_SEQ(g, make_digit(x, hi[0], hi[0]), make_same_length(x, hi + 1, true)));
}

/* Integers from lo to hi, both included. hi NULL: up to some number of digits. */
static struct rule_node *make_integers_between(struct schema_build *x, const char *lo,
                                               const char *hi)
{
    struct rules *g = x->g;
    struct rule_node *alt = rules_node(g, NODE_ALT);
    int nl = (int)strlen(lo), nh = hi ? (int)strlen(hi) : nl < MAX_DIGITS ? MAX_DIGITS : nl + 1;
    char edge[DECIMAL_BYTES];

    if (hi && compare_whole(lo, hi) > 0) return rules_node(g, NODE_NEVER);
    if (hi && nl == nh) return make_between(x, lo, hi);
    memset(edge, '9', (size_t)nl);
    edge[nl] = 0;
    rules_add_child(g, alt, make_between(x, lo, edge));
    if (nh - 1 >= nl + 1 || !hi)
        rules_add_child(
            g, alt,
            RULES_SEQ(g, make_digit(x, '1', '9'), make_digits(x, nl, (hi ? nh - 1 : nh) - 1)));
    if (!hi) return alt;
    memset(edge, '0', (size_t)nh);
    edge[0] = '1';
    edge[nh] = 0;
    return rules_add_child(g, alt, make_between(x, edge, hi));
}

/* ---- fractions ---- */

/* These compare the digits after the point with the digits of a bound. `left` digits may follow at
 * most, `open` means that the bound itself is excluded, and `first` that no digit was written yet,
 * so that one must come. */

/* Digits that are at least (open: above) the digits s. Once a digit is larger, any may follow. */
static struct rule_node *make_fraction_above(struct schema_build *x, const char *s, bool open,
                                             int left)
{
    struct rules *g = x->g;
    struct rule_node *alt;

    if (left < 1) left = 1;
    if (!*s && !open) return make_digits(x, 0, left);
    if (!*s)
        return RULES_SEQ(g, rules_repeat(g, rules_text(g, "0"), 0, left), make_digit(x, '1', '9'),
                         make_digits(x, 0, left));
    alt = rules_node(g, NODE_ALT);
    rules_add_child(
        g, alt,
        RULES_SEQ(g, make_digit(x, s[0], s[0]), make_fraction_above(x, s + 1, open, left - 1)));
    return rules_add_child(
        g, alt, RULES_SEQ(g, make_digit(x, (char)(s[0] + 1), '9'), make_digits(x, 0, left - 1)));
}

/* Digits that are at most (open: below) the digits s. Fewer digits are smaller, so it may end at
 * any point before s does. */
static struct rule_node *make_fraction_below(struct schema_build *x, const char *s, bool open,
                                             int left, bool first)
{
    struct rules *g = x->g;
    struct rule_node *alt = rules_node(g, NODE_ALT);

    if (left < 1) left = 1;
    if (!*s) return rules_node(g, open || first ? NODE_NEVER : NODE_EMPTY);
    if (!first) rules_add_child(g, alt, rules_node(g, NODE_EMPTY));
    rules_add_child(g, alt,
                    RULES_SEQ(g, make_digit(x, s[0], s[0]),
                              make_fraction_below(x, s + 1, open, left - 1, false)));
    return rules_add_child(
        g, alt, RULES_SEQ(g, make_digit(x, '0', (char)(s[0] - 1)), make_digits(x, 0, left - 1)));
}

/* Both at once, as long as the digits of the bounds are the same; then one of the two above. */
static struct rule_node *make_fraction_between(struct schema_build *x, const char *lo, bool lo_open,
                                               const char *hi, bool hi_open, int left, bool first)
{
    struct rules *g = x->g;
    char l = *lo ? *lo : '0';
    struct rule_node *alt = rules_node(g, NODE_ALT);

    if (left < 1) left = 1;
    if (!*hi) return rules_node(g, first || *lo || lo_open || hi_open ? NODE_NEVER : NODE_EMPTY);
    if (!*lo && !lo_open && !first) return make_fraction_below(x, hi, hi_open, left, false);
    lo += *lo != 0;
    if (l == hi[0])
        return RULES_SEQ(g, make_digit(x, l, l),
                         make_fraction_between(x, lo, lo_open, hi + 1, hi_open, left - 1, false));
    if (l > hi[0]) return rules_node(g, NODE_NEVER);
    rules_add_child(
        g, alt, RULES_SEQ(g, make_digit(x, l, l), make_fraction_above(x, lo, lo_open, left - 1)));
    rules_add_child(
        g, alt,
        RULES_SEQ(g, make_digit(x, (char)(l + 1), (char)(hi[0] - 1)), make_digits(x, 0, left - 1)));
    return rules_add_child(g, alt,
                           RULES_SEQ(g, make_digit(x, hi[0], hi[0]),
                                     make_fraction_below(x, hi + 1, hi_open, left - 1, false)));
}

/* How many digits may follow the point: few enough for a double to keep them all, and one more than
 * the bound has. */
static int count_fraction_digits(const struct decimal *d)
{
    int n = MAX_DIGITS - (int)strlen(d->whole), least = (int)strlen(d->part) + 1;

    n = n < MAX_FRACTION ? n : MAX_FRACTION;
    return n > least ? n : least;
}

/* A point and the digits after it. */
static struct rule_node *add_point(struct schema_build *x, struct rule_node *part)
{
    return RULES_SEQ(x->g, rules_text(x->g, "."), part);
}

/* Nothing, or a point and some digits. */
static struct rule_node *make_fraction(struct schema_build *x)
{
    return rules_repeat(x->g, add_point(x, make_digits(x, 1, MAX_FRACTION)), 0, 1);
}

/* Numbers with the integer part of lo that are at least lo. */
static struct rule_node *make_above_edge(struct schema_build *x, const struct decimal *lo)
{
    struct rules *g = x->g;
    struct rule_node *alt = rules_node(g, NODE_ALT);
    int room = count_fraction_digits(lo);
    struct rule_node *part = lo->part[0] || lo->open
                                 ? make_fraction_above(x, lo->part, lo->open, room)
                                 : make_digits(x, 1, room);

    if (!lo->part[0] && !lo->open) rules_add_child(g, alt, rules_node(g, NODE_EMPTY));
    return RULES_SEQ(g, rules_text(g, lo->whole), rules_add_child(g, alt, add_point(x, part)));
}

/* Numbers with the integer part of hi that are at most hi. */
static struct rule_node *make_below_edge(struct schema_build *x, const struct decimal *hi)
{
    struct rules *g = x->g;
    struct rule_node *alt = rules_node(g, NODE_ALT);

    if (hi->part[0] || !hi->open) rules_add_child(g, alt, rules_node(g, NODE_EMPTY));
    if (hi->part[0])
        rules_add_child(g, alt,
                        add_point(x, make_fraction_below(x, hi->part, hi->open,
                                                         count_fraction_digits(hi), true)));
    return RULES_SEQ(g, rules_text(g, hi->whole), alt);
}

/* Real numbers of 0 or more from lo to hi; hi NULL: without an upper bound. */
static struct rule_node *make_reals(struct schema_build *x, const struct decimal *lo,
                                    const struct decimal *hi)
{
    struct rules *g = x->g;
    struct rule_node *alt = rules_node(g, NODE_ALT);
    struct decimal from = *lo, to;
    int c = hi ? compare_whole(lo->whole, hi->whole) : -1;

    if (c > 0) return rules_node(g, NODE_NEVER);
    if (c == 0) {
        if (!lo->part[0] && !lo->open && (hi->part[0] || !hi->open))
            rules_add_child(g, alt, rules_node(g, NODE_EMPTY));
        int room = count_fraction_digits(strlen(lo->part) > strlen(hi->part) ? lo : hi);
        rules_add_child(g, alt,
                        add_point(x, make_fraction_between(x, lo->part, lo->open, hi->part,
                                                           hi->open, room, true)));
        return RULES_SEQ(g, rules_text(g, lo->whole), alt);
    }
    rules_add_child(g, alt, make_above_edge(x, lo));
    increment(from.whole);
    if (!hi)
        return rules_add_child(
            g, alt, RULES_SEQ(g, make_integers_between(x, from.whole, NULL), make_fraction(x)));
    to = *hi;
    if (decrement(to.whole))
        rules_add_child(
            g, alt, RULES_SEQ(g, make_integers_between(x, from.whole, to.whole), make_fraction(x)));
    return rules_add_child(g, alt, make_below_edge(x, hi));
}

/* The same for integers. */
static struct rule_node *make_integers(struct schema_build *x, const struct decimal *lo,
                                       const struct decimal *hi)
{
    struct decimal from = *lo, to;

    if (lo->part[0] || lo->open) increment(from.whole);
    if (!hi) return make_integers_between(x, from.whole, NULL);
    to = *hi;
    if (!to.part[0] && to.open && !decrement(to.whole)) return rules_node(x->g, NODE_NEVER);
    return make_integers_between(x, from.whole, to.whole);
}

/* ---- signs ---- */

/* The negative numbers of a range are those of the mirrored range with a minus. -0 is left out. */
static struct rule_node *make_in_range(struct schema_build *x, const struct number_range *r,
                                       bool integer)
{
    struct rules *g = x->g;
    struct rule_node *alt = rules_node(g, NODE_ALT);
    struct decimal zero = make_decimal(0, false), above = make_decimal(0, true), lo, hi;

    if (!r->has_hi || r->hi > 0 || (!(r->hi < 0) && !r->hi_open)) {
        lo = r->has_lo && r->lo >= 0 ? make_decimal(r->lo, r->lo_open) : zero;
        if (r->has_hi) hi = make_decimal(r->hi, r->hi_open);
        rules_add_child(g, alt,
                        (integer ? make_integers : make_reals)(x, &lo, r->has_hi ? &hi : NULL));
    }
    if (!r->has_lo || r->lo < 0) {
        lo = r->has_hi && r->hi < 0 ? make_decimal(-r->hi, r->hi_open) : above;
        if (r->has_lo) hi = make_decimal(-r->lo, r->lo_open);
        rules_add_child(
            g, alt,
            RULES_SEQ(g, rules_text(g, "-"),
                      (integer ? make_integers : make_reals)(x, &lo, r->has_lo ? &hi : NULL)));
    }
    return alt;
}

/* ---- multiples ---- */

/* Those numbers of `base` that are multiples of m. A digit d takes the remainder r to (10 r + d)
 * mod m. */
static bool build_multiples_dfa(struct schema_build *x, struct rule_node *base, int m,
                                const char *path, struct dfa *out)
{
    struct dfa mod = { 0 }, in = { 0 };
    struct err e = { 0 };
    int n = m + 2; /* the start, the state after a minus, and the remainders */
    bool ok;

    if (!schema_step(x, (size_t)n * 10)) return false;
    mod.states = arena_array(&x->g->arena, (size_t)n, sizeof *mod.states);
    mod.edges = arena_array(&x->g->arena, (size_t)n * 10 + 1, sizeof *mod.edges);
    if (!mod.states || !mod.edges) {
        schema_nomem(x);
        return false;
    }
    mod.n_states = n;
    for (int i = 0; i < n; i++) {
        struct dfa_state *s = &mod.states[i];
        s->edge = mod.n_edges;
        s->final = i == 2;
        if (i == 0) mod.edges[mod.n_edges++] = (struct dfa_edge){ '-', '-', 1 };
        for (int d = 0; d < 10; d++)
            mod.edges[mod.n_edges++] = (struct dfa_edge){ (uint8_t)('0' + d), (uint8_t)('0' + d),
                                                          2 + ((i < 2 ? 0 : i - 2) * 10 + d) % m };
        s->n_edges = mod.n_edges - s->edge;
    }
    ok = schema_build_dfa(x, base, path, &in);
    if (ok && dfa_product(out, &in, &mod, DFA_INTERSECT, &x->env, &e) != OK) {
        schema_fail_with(x, path, "'multipleOf': ", &e);
        ok = false;
    }
    dfa_release(&in);
    return ok;
}

/* Is v in the range? Comparisons are written so that NaN is not. */
static bool is_within(const struct number_range *r, double v)
{
    if (r->has_lo && (v < r->lo || (r->lo_open && !(v > r->lo)))) return false;
    return !(r->has_hi && (v > r->hi || (r->hi_open && !(v < r->hi))));
}

/* Validators divide doubles and ask whether the quotient is an integer. Some exact multiples fail
 * this, and are left out here too. */
static struct rule_node *list_multiples(struct schema_build *x, const struct number_range *r,
                                        double m)
{
    struct rules *g = x->g;
    struct rule_node *alt = rules_node(g, NODE_ALT);
    double from = r->has_lo   ? ceil(r->lo / m)
                  : r->has_hi ? floor(r->hi / m) - MAX_LISTED
                              : -MAX_LISTED / 4;
    int decimals = 0;
    char text[64];

    for (double v = m; decimals < 15 && fabs(v - nearbyint(v)) > 1e-9 * fabs(v); v *= 10)
        decimals++;
    for (int i = 0; i <= MAX_LISTED && schema_step(x, 32); i++) {
        double v;
        snprintf(text, sizeof text, "%.*f", decimals, (from + i) * m);
        v = strtod(text, NULL);
        if (!is_within(r, v) || v / m != nearbyint(v / m) || !strncmp(text, "-0", 3)) continue;
        if (decimals && strspn(text, "-0.") == strlen(text)) snprintf(text, sizeof text, "0");
        rules_add_child(g, alt, rules_text(g, text));
    }
    return alt;
}

/* The numbers of a range that are multiples of m: by remainders if m is a small integer, else
 * listed. Multiples of 1/k include all integers, which need no list. */
static struct rule_node *make_multiples(struct schema_build *x, const struct number_range *r,
                                        double m, bool integer, const char *path)
{
    struct rule_node *alt;
    struct dfa f = { 0 };
    double unit = 1 / m;

    if (m >= 1 && m <= MAX_MODULUS && nearbyint(m) == m) {
        if (!build_multiples_dfa(x, make_in_range(x, r, true), (int)m, path, &f))
            return rules_node(x->g, NODE_NEVER);
        alt = dfa_trim(&f) ? dfa_node(x->g, &f) : rules_node(x->g, NODE_NEVER);
        dfa_release(&f);
        return alt;
    }
    if (m > 1e15) {
        schema_fail(x, path, "'multipleOf' above 1e15 is not supported");
        return rules_node(x->g, NODE_NEVER);
    }
    if (integer && m < 1 && unit == nearbyint(unit)) return make_in_range(x, r, true);
    if (integer && nearbyint(m) != m) {
        schema_fail(x, path, "'multipleOf' with a fraction is not supported for integers");
        return rules_node(x->g, NODE_NEVER);
    }
    alt = list_multiples(x, r, m);
    if (m < 1 && unit == nearbyint(unit)) rules_add_child(x->g, alt, make_in_range(x, r, true));
    return alt;
}

/* The least common multiple of two multipleOf. */
static double find_common_multiple(struct schema_build *x, double a, double b, const char *path)
{
    double p = a, q = b;

    if (a == nearbyint(a) && b == nearbyint(b) && a < 1e7 && b < 1e7) {
        while (q > 0) {
            double t = fmod(p, q);
            p = q;
            q = t;
        }
        return a / p * b;
    }
    if (fmod(a, b) == 0) return a;
    if (fmod(b, a) == 0) return b;
    schema_fail(x, path, "two 'multipleOf' with fractions are not supported together");
    return a;
}

/* ---- keywords ---- */

/* false: the keyword is absent, or x has the error. A boolean is exclusiveMinimum in older drafts. */
static bool read_number(struct schema_build *x, const struct subschema *p, const char *key,
                        double *out)
{
    const json_t *v = json_object_get(p->s, key);

    if (!v || json_is_boolean(v)) return false;
    if (!json_is_number(v)) schema_fail(x, p->path, "'%s' must be a number", key);
    *out = json_number_value(v);
    if (fabs(*out) < 1e300) return true;
    if (json_is_number(v)) schema_fail(x, p->path, "'%s' is too large", key);
    return false;
}

/* Raises the lower bound to v, if that is stricter. Of equal bounds the open one is. */
static void raise_lo(struct number_range *r, double v, bool open)
{
    if (r->has_lo && (v < r->lo || (!(v > r->lo) && !open))) return;
    r->has_lo = true, r->lo = v, r->lo_open = open;
}

/* Lowers the upper bound to v, if that is stricter. */
static void lower_hi(struct number_range *r, double v, bool open)
{
    if (r->has_hi && (v > r->hi || (!(v < r->hi) && !open))) return;
    r->has_hi = true, r->hi = v, r->hi_open = open;
}

/* The bounds of all parts. The format "int32" is a range, too. */
static struct number_range read_range(struct schema_build *x, const struct conjunction *p)
{
    struct number_range r = { 0 };
    double v;

    for (int i = 0; i < p->n; i++) {
        const struct subschema *s = &p->p[i];
        const json_t *format = json_object_get(s->s, "format");
        if (read_number(x, s, "minimum", &v))
            raise_lo(&r, v, json_is_true(json_object_get(s->s, "exclusiveMinimum")));
        if (read_number(x, s, "maximum", &v))
            lower_hi(&r, v, json_is_true(json_object_get(s->s, "exclusiveMaximum")));
        if (read_number(x, s, "exclusiveMinimum", &v)) raise_lo(&r, v, true);
        if (read_number(x, s, "exclusiveMaximum", &v)) lower_hi(&r, v, true);
        if (json_is_string(format) && !strcmp(json_string_value(format), "int32"))
            raise_lo(&r, -2147483648.0, false), lower_hi(&r, 2147483647.0, false);
    }
    return r;
}

/* Numbers without bounds: one rule for all. */
static struct rule_node *make_unbounded(struct schema_build *x, bool integer)
{
    struct rules *g = x->g;
    int *rule = integer ? &x->integer : &x->number;
    struct rule_node *whole, *alt, *sign = rules_repeat(g, rules_text(g, "-"), 0, 1);

    if (*rule >= 0) return rules_ref(g, *rule);
    whole = RULES_SEQ(g, make_digit(x, '1', '9'), make_digits(x, 0, MAX_DIGITS - 1));
    alt = rules_node(g, NODE_ALT);
    if (integer) {
        rules_add_child(g, alt, RULES_SEQ(g, sign, whole));
        rules_add_child(g, alt, rules_text(g, "0"));
    } else {
        struct rule_node *e =
            RULES_SEQ(g, rules_range(g, 'e', 'e'), rules_repeat(g, rules_text(g, "-"), 0, 1),
                      make_digits(x, 1, 2));
        rules_add_child(g, rules_add_child(g, alt, whole), rules_text(g, "0"));
        alt = RULES_SEQ(g, sign, alt, make_fraction(x), rules_repeat(g, e, 0, 1));
    }
    *rule = rules_add_shared(g, integer ? STR("integer") : STR("number"), alt);
    return rules_ref(g, *rule);
}

/* Numbers that all parts accept. integer: no fraction and no exponent. */
struct rule_node *schema_make_number(struct schema_build *x, const struct conjunction *p,
                                     bool integer)
{
    struct number_range r = read_range(x, p);
    double m = 0, v;

    for (int i = 0; i < p->n; i++) {
        if (!read_number(x, &p->p[i], "multipleOf", &v)) continue;
        if (!(v > 0)) schema_fail(x, p->p[i].path, "'multipleOf' must be above 0");
        else m = m > 0 ? find_common_multiple(x, m, v, p->p[i].path) : v;
    }
    if (x->rc != OK) return rules_node(x->g, NODE_NEVER);
    if (m > 0) return make_multiples(x, &r, m, integer, p->p[0].path);
    return r.has_lo || r.has_hi ? make_in_range(x, &r, integer) : make_unbounded(x, integer);
}
