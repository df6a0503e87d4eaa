/* rtn.c - which types can be written, and which tables this machine can run. */
#include "quant/rtn.h"

#include "kernel/cpu/vec.h"

bool rtn_can(enum dtype t)
{
    switch (t) {
    case DT_F32:
    case DT_F16:
    case DT_BF16:
    case DT_Q8_0:
    case DT_Q4_0:
    case DT_Q4_1:
    case DT_Q5_0:
    case DT_Q5_1:
    case DT_IQ4_NL:
    case DT_MXFP4:
    case DT_Q2_K:
    case DT_Q3_K:
    case DT_Q4_K:
    case DT_Q5_K:
    case DT_Q6_K:
    case DT_IQ4_XS:
    case DT_TQ1_0:
    case DT_TQ2_0: return true;
    default: return false;
    }
}

const struct rtn *rtn_by_name(const char *name)
{
    static const struct rtn *const all[] = {
        &rtn_any,
#if defined(__x86_64__)
        &rtn_avx2,
        &rtn_avx512,
#elif defined(__aarch64__)
        &rtn_neon,
#endif
    };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i]->name, name) == 0 && (i == 0 || vec_runs(name))) return all[i];
    return NULL;
}

const struct rtn *rtn_best(void)
{
    static const char *const best_first[] = { "avx512", "avx2", "neon" };

    for (size_t i = 0; i < sizeof best_first / sizeof *best_first; i++)
        if (rtn_by_name(best_first[i])) return rtn_by_name(best_first[i]);
    return &rtn_any;
}
