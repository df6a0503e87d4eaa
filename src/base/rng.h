/* rng.h - seeded pseudo-random numbers: xoshiro256** (Blackman, Vigna), the same on every machine.
 *
 * Sampling uses one struct rng per request, so a seed gives the same tokens again. Not for
 * secrets. */
#ifndef TERN_BASE_RNG_H
#define TERN_BASE_RNG_H

#include <math.h>
#include <stdint.h>

struct rng {
    uint64_t s[4];
};

static inline void rng_seed(struct rng *r, uint64_t seed)
{
    for (int i = 0; i < 4; i++) { /* splitmix64 spreads the seed over the state */
        uint64_t z = (seed += 0x9e3779b97f4a7c15u);
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        r->s[i] = z ^ z >> 31;
    }
}

static inline uint64_t rng_u64(struct rng *r)
{
    uint64_t *s = r->s, x = s[1] * 5, out = (x << 7 | x >> 57) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = s[3] << 45 | s[3] >> 19;
    return out;
}

/* Uniform in [0, 1), with 53 random bits. */
static inline double rng_unit(struct rng *r) { return (double)(rng_u64(r) >> 11) * 0x1p-53; }

/* Standard normal, by the Box-Muller transform; 1 - u keeps the logarithm finite. */
static inline float rng_normal(struct rng *r)
{
    double u = 1.0 - rng_unit(r), v = rng_unit(r);
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}
#endif
