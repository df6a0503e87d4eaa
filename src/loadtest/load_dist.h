/* load_dist.h - lengths and arrivals of a made-up load.
 *
 * A distribution is written "64" (always), "16-512" (each as likely), "exp:128" (mean),
 * "normal:128,20" (mean, spread) or "lognormal:128,0.6" (median, spread of the logarithm). */
#ifndef TERN_LOADTEST_LOAD_DIST_H
#define TERN_LOADTEST_LOAD_DIST_H

#include "base/err.h"
#include "base/rng.h"

enum load_dist_kind { DIST_FIXED, DIST_UNIFORM, DIST_EXP, DIST_NORMAL, DIST_LOGNORMAL };

struct load_dist {
    enum load_dist_kind kind;
    double a, b;
};

int load_dist_parse(struct load_dist *d, const char *text, struct err *e);
int load_dist_draw(const struct load_dist *d, struct rng *r); /* 1 to LOAD_DIST_MAX */
#define LOAD_DIST_MAX 1000000

/* Gamma of that shape with mean 1: 1 is Poisson's gap, below it comes in bursts, above it is even.
 */
double load_gap_draw(struct rng *r, double shape);

/* When the x-th arrival is due, in seconds, if the rate rises evenly from 0 for ramp_s and stays.
 */
double load_due(double x, double rate, double ramp_s);
#endif
