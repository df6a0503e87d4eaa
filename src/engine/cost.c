#include "engine/cost.h"

#define KEEP 0.8       /* weight of the old average against a new measurement */
#define LEAST_CHUNK 16 /* prefill tokens: smaller chunks say little about the time of a token */

static int size_class(int n_decode)
{
    int i = 0;
    while (i < COST_SIZES - 1 && n_decode > 1 << i) i++;
    return i;
}

static void blend(double *average, double v)
{
    *average = *average > 0 ? KEEP * *average + (1 - KEEP) * v : v;
}

/* A size that was not seen yet takes the nearest one that was. */
static double decode_time(const struct cost *c, int n_decode)
{
    int at = size_class(n_decode);

    for (int d = 0; d < COST_SIZES; d++) {
        if (at - d >= 0 && c->decode_ns[at - d] > 0) return c->decode_ns[at - d];
        if (at + d < COST_SIZES && c->decode_ns[at + d] > 0) return c->decode_ns[at + d];
    }
    return 0;
}

/* Time of a step without its prefill: its decodes or, without any, reading all weights once, which
 * is what a single decode does. */
static double fixed_time(const struct cost *c, int n_decode)
{
    return decode_time(c, n_decode ? n_decode : 1);
}

/* The first step of a size: the rest of a mixed step beside its prefill, and no less than smaller sizes
 * take. Otherwise the time of a much smaller size would be the measure for the chunks beside it. */
static void learn_size(struct cost *c, int n_decode, int n_prefill, double step_ns)
{
    double *at = &c->decode_ns[size_class(n_decode)], rest = step_ns - n_prefill * c->prefill_ns;

    if (*at > 0 || c->prefill_ns <= 0) return;
    for (const double *less = c->decode_ns; less < at; less++)
        if (*less > rest) rest = *less;
    if (rest > 0) *at = rest;
}

void cost_learn(struct cost *c, int n_decode, int n_prefill, double step_ns)
{
    double base, each;

    if (n_prefill == 0) {
        blend(&c->decode_ns[size_class(n_decode)], step_ns);
        return;
    }
    if (n_decode > 0) learn_size(c, n_decode, n_prefill, step_ns);
    base = fixed_time(c, n_decode);
    if (n_prefill < LEAST_CHUNK || (n_decode > 0 && base == 0)) return;
    each = (step_ns - base) / n_prefill;
    /* If the measured decode steps happened to be slow, the difference may be 0 or less, but a
     * chunk is never free. */
    if (each < step_ns / n_prefill / 10) each = step_ns / n_prefill / 10;
    blend(&c->prefill_ns, each);
}

struct sched_cost cost_of(const struct cost *c, int n_decode)
{
    return (struct sched_cost){ .step_ns = fixed_time(c, n_decode), .prefill_ns = c->prefill_ns };
}
