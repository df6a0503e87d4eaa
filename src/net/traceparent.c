/* traceparent.c - checks, copies and makes headers of W3C Trace Context. */
#include "net/traceparent.h"

#include <inttypes.h>
#include <stdio.h>

static bool is_lower_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

/* The standard reserves ids of zeros alone: they name no trace and no span. */
static bool is_zero(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != '0') return false;
    return true;
}

bool traceparent_is_valid(struct str s)
{
    if (s.n < 55 || s.n >= TRACEPARENT_BYTES) return false;
    for (size_t i = 0; i < s.n; i++)
        if (i == 2 || i == 35 || i == 52 ? s.p[i] != '-'
                                         : !is_lower_hex(s.p[i]) && (i < 55 || s.p[i] != '-'))
            return false;
    return !is_zero(s.p + 3, 32) && !is_zero(s.p + 36, 16);
}

void traceparent_take(char out[TRACEPARENT_BYTES], struct str sent, struct rng *rng)
{
    if (traceparent_is_valid(sent)) {
        snprintf(out, TRACEPARENT_BYTES, "%.*s", (int)sent.n, sent.p);
        return;
    }
    /* |1: no id is zero */
    snprintf(out, TRACEPARENT_BYTES, "00-%016" PRIx64 "%016" PRIx64 "-%016" PRIx64 "-01",
             rng_u64(rng), rng_u64(rng) | 1, rng_u64(rng) | 1);
}
