/* load_dist.h - random lengths and arrival times of a synthetic load.
 *
 * A distribution is written "64" (constant), "16-512" (uniform), "exp:128" (mean), "normal:128,20"
 * (mean, standard deviation) or "lognormal:128,0.6" (median, standard deviation of the logarithm). */
#ifndef TERN_LOADTEST_LOAD_DIST_H
#define TERN_LOADTEST_LOAD_DIST_H

#include "base/err.h"
#include "base/rng.h"

enum load_dist_kind { DIST_FIXED, DIST_UNIFORM, DIST_EXP, DIST_NORMAL, DIST_LOGNORMAL };

struct load_dist {
    enum load_dist_kind kind;
    double a, b; /* the numbers in the order they are written */
};

#define LOAD_DIST_MAX 1000000

int load_dist_parse(struct load_dist *d, const char *text, struct err *e);
/* A length from 1 to LOAD_DIST_MAX. */
int load_dist_sample(const struct load_dist *d, struct rng *r);

/* A gap between arrivals: gamma-distributed with mean 1 and that shape. Shape 1 is a Poisson
 * process, below 1 arrivals come in bursts, above 1 they are more regular. */
double load_gap_sample(struct rng *r, double shape);

/* The time in seconds at which the x-th arrival is due, if the rate rises linearly from 0 to `rate`
 * within ramp_s and then stays. */
double load_arrival_time(double x, double rate, double ramp_s);
#endif
