/* schema_number.c - numbers of a schema: bounds digit by digit, and multiples. */
#include "grammar/schema_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    DIGITS = 15, /* of a number without bounds: more are not told apart by others */
    FRACTION = 8,
    TEXT = 400,
    MODULO = 1000, /* multiples of more than that are listed */
    LISTED = 6000
};

/* A number that is not negative, in decimal: "12" and "5" for 12.5. */
struct decimal {
    char whole[TEXT], part[TEXT]; /* no zeros before whole, none behind part */
    bool open;                    /* the bound itself is left out */
};

struct range {
    bool has_lo, has_hi, lo_open, hi_open;
    double lo, hi;
};

/* ---- decimals ---- */

static void shortest(double v, char *out, size_t n)
{
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(out, n, "%.*e", digits - 1, v);
        if (strtod(out, NULL) == v) return;
    }
}

/* v >= 0 and below 1e300. */
static struct decimal decimal_of(double v, bool open)
{
    struct decimal d = { .open = open };
    char text[64], digits[32];
    int n = 0, exp, nw = 0, np = 0;

    shortest(v, text, sizeof text);
    exp = atoi(strchr(text, 'e') + 1); /* of the first digit */
    for (const char *s = text; *s != 'e'; s++)
        if (*s >= '0' && *s <= '9' && n < 30) digits[n++] = *s;
    for (int k = exp > 0 ? exp : 0; k >= 0; k--)
        d.whole[nw++] = exp - k >= 0 && exp - k < n ? digits[exp - k] : '0';
    for (int k = -1; exp - k < n && np < TEXT - 1; k--)
        d.part[np++] = exp - k >= 0 ? digits[exp - k] : '0';
    while (np > 0 && d.part[np - 1] == '0') np--;
    d.part[np] = 0;
    d.whole[nw] = 0;
    return d;
}

static int compare_whole(const char *a, const char *b)
{
    size_t x = strlen(a), y = strlen(b);
    return x != y ? (x > y) - (x < y) : strcmp(a, b);
}

static void plus_one(char *s)
{
    size_t n = strlen(s), i = n;

    while (i > 0 && s[i - 1] == '9') s[--i] = '0';
    if (i > 0) s[i - 1]++;
    else {
        memmove(s + 1, s, n + 1);
        s[0] = '1';
    }
}

/* false: it was 0. */
static bool minus_one(char *s)
{
    size_t n = strlen(s), i = n;

    if (!strcmp(s, "0")) return false;
    while (s[i - 1] == '0') s[--i] = '9';
    s[i - 1]--;
    if (n > 1 && s[0] == '0') memmove(s, s + 1, n);
    return true;
}

/* ---- digits ---- */

static struct gnode *digit(struct schema *x, char lo, char hi)
{
    return lo > hi ? gnode_new(x->g, GN_NEVER) : gnode_range(x->g, lo, hi);
}

static struct gnode *digits(struct schema *x, int min, int max)
{
    return gnode_rep(x->g, gnode_range(x->g, '0', '9'), min, max);
}

static bool all(const char *s, char c)
{
    while (*s == c) s++;
    return !*s;
}

/* As many digits as s has, at least (up: at most) s. */
static struct gnode *beside(struct schema *x, const char *s, bool up)
{
    struct grules *g = x->g;
    int n = (int)strlen(s);
    struct gnode *alt;

    if (all(s, up ? '9' : '0')) return digits(x, n, n);
    alt = gnode_new(g, GN_ALT);
    gnode_add(g, alt, GSEQ(g, digit(x, s[0], s[0]), beside(x, s + 1, up)));
    gnode_add(g, alt,
              GSEQ(g, up ? digit(x, '0', (char)(s[0] - 1)) : digit(x, (char)(s[0] + 1), '9'),
                   digits(x, n - 1, n - 1)));
    return alt;
}

static struct gnode *between(struct schema *x, const char *lo, const char *hi)
{
    struct grules *g = x->g;
    int n = (int)strlen(lo);
    struct gnode *alt;

    if (n == 0) return gnode_new(g, GN_EMPTY);
    if (lo[0] == hi[0]) return GSEQ(g, digit(x, lo[0], lo[0]), between(x, lo + 1, hi + 1));
    alt = gnode_new(g, GN_ALT);
    gnode_add(g, alt, GSEQ(g, digit(x, lo[0], lo[0]), beside(x, lo + 1, false)));
    gnode_add(g, alt,
              GSEQ(g, digit(x, (char)(lo[0] + 1), (char)(hi[0] - 1)), digits(x, n - 1, n - 1)));
    return gnode_add(g, alt, GSEQ(g, digit(x, hi[0], hi[0]), beside(x, hi + 1, true)));
}

/* Whole numbers from lo to hi, both included; hi NULL: with at most some digits. */
static struct gnode *wholes(struct schema *x, const char *lo, const char *hi)
{
    struct grules *g = x->g;
    struct gnode *alt = gnode_new(g, GN_ALT);
    int nl = (int)strlen(lo), nh = hi ? (int)strlen(hi) : nl < DIGITS ? DIGITS : nl + 1;
    char edge[TEXT];

    if (hi && compare_whole(lo, hi) > 0) return gnode_new(g, GN_NEVER);
    if (hi && nl == nh) return between(x, lo, hi);
    memset(edge, '9', (size_t)nl);
    edge[nl] = 0;
    gnode_add(g, alt, between(x, lo, edge));
    if (nh - 1 >= nl + 1 || !hi)
        gnode_add(g, alt, GSEQ(g, digit(x, '1', '9'), digits(x, nl, (hi ? nh - 1 : nh) - 1)));
    if (!hi) return alt;
    memset(edge, '0', (size_t)nh);
    edge[0] = '1';
    edge[nh] = 0;
    return gnode_add(g, alt, between(x, edge, hi));
}

/* ---- fractions: digits behind the point, against a bound; `left` more at most ---- */

static struct gnode *part_above(struct schema *x, const char *s, bool open, int left)
{
    struct grules *g = x->g;
    struct gnode *alt;

    if (left < 1) left = 1;
    if (!*s && !open) return digits(x, 0, left);
    if (!*s)
        return GSEQ(g, gnode_rep(g, gnode_c(g, "0"), 0, left), digit(x, '1', '9'),
                    digits(x, 0, left));
    alt = gnode_new(g, GN_ALT);
    gnode_add(g, alt, GSEQ(g, digit(x, s[0], s[0]), part_above(x, s + 1, open, left - 1)));
    return gnode_add(g, alt, GSEQ(g, digit(x, (char)(s[0] + 1), '9'), digits(x, 0, left - 1)));
}

static struct gnode *part_below(struct schema *x, const char *s, bool open, int left, bool first)
{
    struct grules *g = x->g;
    struct gnode *alt = gnode_new(g, GN_ALT);

    if (left < 1) left = 1;
    if (!*s) return gnode_new(g, open || first ? GN_NEVER : GN_EMPTY);
    if (!first) gnode_add(g, alt, gnode_new(g, GN_EMPTY));
    gnode_add(g, alt, GSEQ(g, digit(x, s[0], s[0]), part_below(x, s + 1, open, left - 1, false)));
    return gnode_add(g, alt, GSEQ(g, digit(x, '0', (char)(s[0] - 1)), digits(x, 0, left - 1)));
}

static struct gnode *part_between(struct schema *x, const char *lo, bool lo_open, const char *hi,
                                  bool hi_open, int left, bool first)
{
    struct grules *g = x->g;
    char l = *lo ? *lo : '0';
    struct gnode *alt = gnode_new(g, GN_ALT);

    if (left < 1) left = 1;
    if (!*hi) return gnode_new(g, first || *lo || lo_open || hi_open ? GN_NEVER : GN_EMPTY);
    if (!*lo && !lo_open && !first) return part_below(x, hi, hi_open, left, false);
    lo += *lo != 0;
    if (l == hi[0])
        return GSEQ(g, digit(x, l, l),
                    part_between(x, lo, lo_open, hi + 1, hi_open, left - 1, false));
    if (l > hi[0]) return gnode_new(g, GN_NEVER);
    gnode_add(g, alt, GSEQ(g, digit(x, l, l), part_above(x, lo, lo_open, left - 1)));
    gnode_add(g, alt, GSEQ(g, digit(x, (char)(l + 1), (char)(hi[0] - 1)), digits(x, 0, left - 1)));
    return gnode_add(
        g, alt, GSEQ(g, digit(x, hi[0], hi[0]), part_below(x, hi + 1, hi_open, left - 1, false)));
}

/* Digits behind the point, so that all of them together are told apart. */
static int room_behind(const struct decimal *d)
{
    int n = DIGITS - (int)strlen(d->whole), least = (int)strlen(d->part) + 1;

    n = n < FRACTION ? n : FRACTION;
    return n > least ? n : least;
}

static struct gnode *with_point(struct schema *x, struct gnode *part)
{
    return GSEQ(x->g, gnode_c(x->g, "."), part);
}

static struct gnode *any_part(struct schema *x)
{
    return gnode_rep(x->g, with_point(x, digits(x, 1, FRACTION)), 0, 1);
}

/* The number with lo's whole part, then what is behind the point. */
static struct gnode *from_edge(struct schema *x, const struct decimal *lo)
{
    struct grules *g = x->g;
    struct gnode *alt = gnode_new(g, GN_ALT);
    int room = room_behind(lo);
    struct gnode *part =
        lo->part[0] || lo->open ? part_above(x, lo->part, lo->open, room) : digits(x, 1, room);

    if (!lo->part[0] && !lo->open) gnode_add(g, alt, gnode_new(g, GN_EMPTY));
    return GSEQ(g, gnode_c(g, lo->whole), gnode_add(g, alt, with_point(x, part)));
}

static struct gnode *to_edge(struct schema *x, const struct decimal *hi)
{
    struct grules *g = x->g;
    struct gnode *alt = gnode_new(g, GN_ALT);

    if (hi->part[0] || !hi->open) gnode_add(g, alt, gnode_new(g, GN_EMPTY));
    if (hi->part[0])
        gnode_add(g, alt, with_point(x, part_below(x, hi->part, hi->open, room_behind(hi), true)));
    return GSEQ(g, gnode_c(g, hi->whole), alt);
}

/* Numbers from lo to hi (NULL: any), none negative. */
static struct gnode *reals(struct schema *x, const struct decimal *lo, const struct decimal *hi)
{
    struct grules *g = x->g;
    struct gnode *alt = gnode_new(g, GN_ALT);
    struct decimal from = *lo, to;
    int c = hi ? compare_whole(lo->whole, hi->whole) : -1;

    if (c > 0) return gnode_new(g, GN_NEVER);
    if (c == 0) {
        if (!lo->part[0] && !lo->open && (hi->part[0] || !hi->open))
            gnode_add(g, alt, gnode_new(g, GN_EMPTY));
        int room = room_behind(strlen(lo->part) > strlen(hi->part) ? lo : hi);
        gnode_add(
            g, alt,
            with_point(x, part_between(x, lo->part, lo->open, hi->part, hi->open, room, true)));
        return GSEQ(g, gnode_c(g, lo->whole), alt);
    }
    gnode_add(g, alt, from_edge(x, lo));
    plus_one(from.whole);
    if (!hi) return gnode_add(g, alt, GSEQ(g, wholes(x, from.whole, NULL), any_part(x)));
    to = *hi;
    if (minus_one(to.whole))
        gnode_add(g, alt, GSEQ(g, wholes(x, from.whole, to.whole), any_part(x)));
    return gnode_add(g, alt, to_edge(x, hi));
}

static struct gnode *integers(struct schema *x, const struct decimal *lo, const struct decimal *hi)
{
    struct decimal from = *lo, to;

    if (lo->part[0] || lo->open) plus_one(from.whole);
    if (!hi) return wholes(x, from.whole, NULL);
    to = *hi;
    if (!to.part[0] && to.open && !minus_one(to.whole)) return gnode_new(x->g, GN_NEVER);
    return wholes(x, from.whole, to.whole);
}

/* ---- signs ---- */

static struct gnode *in_range(struct schema *x, const struct range *r, bool integer)
{
    struct grules *g = x->g;
    struct gnode *alt = gnode_new(g, GN_ALT);
    struct decimal zero = decimal_of(0, false), above = decimal_of(0, true), lo, hi;

    if (!r->has_hi || r->hi > 0 || (!(r->hi < 0) && !r->hi_open)) {
        lo = r->has_lo && r->lo >= 0 ? decimal_of(r->lo, r->lo_open) : zero;
        if (r->has_hi) hi = decimal_of(r->hi, r->hi_open);
        gnode_add(g, alt, (integer ? integers : reals)(x, &lo, r->has_hi ? &hi : NULL));
    }
    if (!r->has_lo || r->lo < 0) {
        lo = r->has_hi && r->hi < 0 ? decimal_of(-r->hi, r->hi_open) : above;
        if (r->has_lo) hi = decimal_of(-r->lo, r->lo_open);
        gnode_add(
            g, alt,
            GSEQ(g, gnode_c(g, "-"), (integer ? integers : reals)(x, &lo, r->has_lo ? &hi : NULL)));
    }
    return alt;
}

/* ---- multiples ---- */

/* Digits whose value is a multiple of m, with or without a minus before them. */
static bool multiples_fsm(struct schema *x, struct gnode *base, int m, const char *path,
                          struct fsm *out)
{
    struct fsm mod = { 0 }, in = { 0 };
    struct err e = { 0 };
    int n = m + 2; /* start, behind the minus, the remainders */
    bool ok;

    mod.states = arena_array(&x->g->arena, (size_t)n, sizeof *mod.states);
    mod.edges = arena_array(&x->g->arena, (size_t)n * 10 + 1, sizeof *mod.edges);
    mod.n_states = n;
    for (int i = 0; i < n; i++) {
        struct fsm_state *s = &mod.states[i];
        s->edge = mod.n_edges;
        s->final = i == 2;
        if (i == 0) mod.edges[mod.n_edges++] = (struct fsm_edge){ '-', '-', 1 };
        for (int d = 0; d < 10; d++)
            mod.edges[mod.n_edges++] = (struct fsm_edge){ (uint8_t)('0' + d), (uint8_t)('0' + d),
                                                          2 + ((i < 2 ? 0 : i - 2) * 10 + d) % m };
        s->n_edges = mod.n_edges - s->edge;
    }
    ok = schema_fsm(x, base, path, &in);
    if (ok && fsm_product(out, &in, &mod, FSM_AND, &x->env, &e) != OK) {
        schema_bad(x, path, "'multipleOf': %s", e.msg);
        ok = false;
    }
    fsm_release(&in);
    return ok;
}

static bool is_within(const struct range *r, double v)
{
    if (r->has_lo && (v < r->lo || (r->lo_open && !(v > r->lo)))) return false;
    return !(r->has_hi && (v > r->hi || (r->hi_open && !(v < r->hi))));
}

/* Numbers as others divide them: in doubles, so that some exact multiples do not count. */
static struct gnode *listed_multiples(struct schema *x, const struct range *r, double m)
{
    struct grules *g = x->g;
    struct gnode *alt = gnode_new(g, GN_ALT);
    double from = r->has_lo ? ceil(r->lo / m) : r->has_hi ? floor(r->hi / m) - LISTED : -LISTED / 4;
    int decimals = 0;
    char text[64];

    for (double v = m; decimals < 15 && fabs(v - nearbyint(v)) > 1e-9 * fabs(v); v *= 10)
        decimals++;
    for (int i = 0; i <= LISTED; i++) {
        double v;
        snprintf(text, sizeof text, "%.*f", decimals, (from + i) * m);
        v = strtod(text, NULL);
        if (!is_within(r, v) || v / m != nearbyint(v / m) || !strncmp(text, "-0", 3)) continue;
        if (decimals && strspn(text, "-0.") == strlen(text)) snprintf(text, sizeof text, "0");
        gnode_add(g, alt, gnode_c(g, text));
    }
    return alt;
}

static struct gnode *multiples(struct schema *x, const struct range *r, double m, bool integer,
                               const char *path)
{
    struct gnode *alt;
    struct fsm f = { 0 };
    double unit = 1 / m;

    if (m >= 1 && m <= MODULO && nearbyint(m) == m) {
        if (!multiples_fsm(x, in_range(x, r, true), (int)m, path, &f))
            return gnode_new(x->g, GN_NEVER);
        alt = fsm_trim(&f) ? gnode_fsm(x->g, &f) : gnode_new(x->g, GN_NEVER);
        fsm_release(&f);
        return alt;
    }
    if (m > 1e15) {
        schema_bad(x, path, "'multipleOf' above 1e15 is not supported");
        return gnode_new(x->g, GN_NEVER);
    }
    if (integer && m < 1 && unit == nearbyint(unit)) return in_range(x, r, true);
    if (integer && nearbyint(m) != m) {
        schema_bad(x, path, "'multipleOf' with a fraction is not supported for integers");
        return gnode_new(x->g, GN_NEVER);
    }
    alt = listed_multiples(x, r, m);
    if (m < 1 && unit == nearbyint(unit)) gnode_add(x->g, alt, in_range(x, r, true));
    return alt;
}

static double common_multiple(struct schema *x, double a, double b, const char *path)
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
    schema_bad(x, path, "two 'multipleOf' with fractions are not supported together");
    return a;
}

/* ---- keywords ---- */

static bool number_at(struct schema *x, const struct part *p, const char *key, double *out)
{
    const json_t *v = json_object_get(p->s, key);

    if (!v || json_is_boolean(v)) return false;
    if (!json_is_number(v)) schema_bad(x, p->path, "'%s' must be a number", key);
    *out = json_number_value(v);
    if (fabs(*out) < 1e300) return true;
    if (json_is_number(v)) schema_bad(x, p->path, "'%s' is too large", key);
    return false;
}

static void raise(struct range *r, double v, bool open)
{
    if (r->has_lo && (v < r->lo || (!(v > r->lo) && !open))) return;
    r->has_lo = true, r->lo = v, r->lo_open = open;
}

static void lower(struct range *r, double v, bool open)
{
    if (r->has_hi && (v > r->hi || (!(v < r->hi) && !open))) return;
    r->has_hi = true, r->hi = v, r->hi_open = open;
}

static struct range range_of(struct schema *x, const struct parts *p)
{
    struct range r = { 0 };
    double v;

    for (int i = 0; i < p->n; i++) {
        const struct part *s = &p->p[i];
        const json_t *format = json_object_get(s->s, "format");
        if (number_at(x, s, "minimum", &v))
            raise(&r, v, json_is_true(json_object_get(s->s, "exclusiveMinimum")));
        if (number_at(x, s, "maximum", &v))
            lower(&r, v, json_is_true(json_object_get(s->s, "exclusiveMaximum")));
        if (number_at(x, s, "exclusiveMinimum", &v)) raise(&r, v, true);
        if (number_at(x, s, "exclusiveMaximum", &v)) lower(&r, v, true);
        if (json_is_string(format) && !strcmp(json_string_value(format), "int32"))
            raise(&r, -2147483648.0, false), lower(&r, 2147483647.0, false);
    }
    return r;
}

/* Without bounds: the same rule for all. */
static struct gnode *plain(struct schema *x, bool integer)
{
    struct grules *g = x->g;
    int *rule = integer ? &x->integer : &x->number;
    struct gnode *whole, *alt, *sign = gnode_rep(g, gnode_c(g, "-"), 0, 1);

    if (*rule >= 0) return gnode_ref(g, *rule);
    *rule = grules_new(g);
    whole = GSEQ(g, digit(x, '1', '9'), digits(x, 0, DIGITS - 1));
    alt = gnode_new(g, GN_ALT);
    if (integer) {
        gnode_add(g, alt, GSEQ(g, sign, whole));
        gnode_add(g, alt, gnode_c(g, "0"));
    } else {
        struct gnode *e =
            GSEQ(g, gnode_range(g, 'e', 'e'), gnode_rep(g, gnode_c(g, "-"), 0, 1), digits(x, 1, 2));
        gnode_add(g, gnode_add(g, alt, whole), gnode_c(g, "0"));
        alt = GSEQ(g, sign, alt, any_part(x), gnode_rep(g, e, 0, 1));
    }
    g->rules[*rule].name = integer ? STR("integer") : STR("number");
    g->rules[*rule].keep = true;
    g->rules[*rule].body = alt;
    return gnode_ref(g, *rule);
}

struct gnode *schema_number(struct schema *x, const struct parts *p, bool integer)
{
    struct range r = range_of(x, p);
    double m = 0, v;

    for (int i = 0; i < p->n; i++) {
        if (!number_at(x, &p->p[i], "multipleOf", &v)) continue;
        if (!(v > 0)) schema_bad(x, p->p[i].path, "'multipleOf' must be above 0");
        else m = m > 0 ? common_multiple(x, m, v, p->p[i].path) : v;
    }
    if (x->rc != OK) return gnode_new(x->g, GN_NEVER);
    if (m > 0) return multiples(x, &r, m, integer, p->p[0].path);
    return r.has_lo || r.has_hi ? in_range(x, &r, integer) : plain(x, integer);
}
