#include "loadtest/load_dist.h"

#include "base/str.h"

#include <math.h>

/* "A,B" or "A-B". A sign of A is skipped: the separator is looked for from the second byte on. */
static bool parse_pair(struct str s, char between, double *a, double *b)
{
    for (size_t i = 1; i < s.n; i++)
        if (s.p[i] == between)
            return str_to_f64(str_take(s, i), a) && str_to_f64(str_skip(s, i + 1), b);
    return false;
}

static bool parse_dist(struct load_dist *d, struct str s)
{
    static const struct {
        struct str name;
        enum load_dist_kind kind;
    } named[] = {
        { STR("exp:"), DIST_EXP },
        { STR("normal:"), DIST_NORMAL },
        { STR("lognormal:"), DIST_LOGNORMAL },
    };
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        if (!str_starts(s, named[i].name)) continue;
        s = str_skip(s, named[i].name.n);
        d->kind = named[i].kind;
        return d->kind == DIST_EXP ? str_to_f64(s, &d->a)
                                   : parse_pair(s, ',', &d->a, &d->b) && d->b >= 0;
    }
    d->kind = DIST_FIXED;
    if (str_to_f64(s, &d->a)) return true;
    d->kind = DIST_UNIFORM;
    return parse_pair(s, '-', &d->a, &d->b) && d->b >= d->a && d->b <= LOAD_DIST_MAX;
}

int load_dist_parse(struct load_dist *d, const char *text, struct err *e)
{
    *d = (struct load_dist){ 0 };
    if (parse_dist(d, str_c(text)) && d->a >= 1 && d->a <= LOAD_DIST_MAX) return OK;
    return err_set(
        e, E_INVALID,
        "'%s' is not a length: write 64, 16-512, exp:128, normal:128,20 or lognormal:128,0.6",
        text);
}

int load_dist_sample(const struct load_dist *d, struct rng *r)
{
    double v = d->a;

    switch (d->kind) {
    case DIST_FIXED: break;
    case DIST_UNIFORM: v = floor(d->a + rng_unit(r) * (d->b - d->a + 1)); break;
    case DIST_EXP: v = -d->a * log(1 - rng_unit(r)); break;
    case DIST_NORMAL: v = d->a + d->b * (double)rng_normal(r); break;
    case DIST_LOGNORMAL: v = d->a * exp(d->b * (double)rng_normal(r)); break;
    }
    v = d->kind == DIST_UNIFORM ? v : round(v);
    return v < 1 ? 1 : v > LOAD_DIST_MAX ? LOAD_DIST_MAX : (int)v;
}

/* The method of Marsaglia and Tsang (2000). A shape below 1 uses a sample of shape + 1. */
static double sample_gamma(struct rng *r, double shape)
{
    double d, c;

    if (shape < 1) return sample_gamma(r, shape + 1) * pow(1 - rng_unit(r), 1 / shape);
    d = shape - 1.0 / 3;
    c = 1 / sqrt(9 * d);
    for (;;) {
        double x = (double)rng_normal(r), v = 1 + c * x;
        if (v <= 0) continue;
        v = v * v * v;
        if (log(1 - rng_unit(r)) < 0.5 * x * x + d - d * v + d * log(v)) return d * v;
    }
}

double load_gap_sample(struct rng *r, double shape) { return sample_gamma(r, shape) / shape; }

double load_arrival_time(double x, double rate, double ramp_s)
{
    double within = rate * ramp_s / 2; /* arrivals during the ramp */

    if (x < within) return sqrt(2 * x * ramp_s / rate);
    return ramp_s + (x - within) / rate;
}
