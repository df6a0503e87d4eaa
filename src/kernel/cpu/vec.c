/* vec.c - which vec tables this machine can run. */
#include "kernel/cpu/vec.h"

#include "kernel/cpu/isa.h"

#include <string.h>

/* On x86 not by isa_by_name: under a hypervisor each CPUID takes tens of microseconds, and libgcc
 * has executed them all at start-up already. */
bool vec_runs(const char *set)
{
#if defined(__x86_64__)
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                __builtin_cpu_supports("bmi2");
    if (strcmp(set, "avx2") == 0) return avx2;
    return strcmp(set, "avx512") == 0 && avx2 && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") &&
           __builtin_cpu_supports("avx512vbmi");
#else
    return isa_by_name(set) != NULL;
#endif
}

const struct vec *vec_by_name(const char *name)
{
    static const struct vec *const all[] = {
        &vec_ref,
#if defined(__x86_64__)
        &vec_avx2,
        &vec_avx512,
#elif defined(__aarch64__)
        &vec_neon,
#endif
    };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i]->name, name) == 0 && (i == 0 || vec_runs(name))) return all[i];
    return NULL;
}

const struct vec *vec_best(void)
{
    static const char *const best_first[] = { "avx512", "avx2", "neon" };

    for (size_t i = 0; i < sizeof best_first / sizeof *best_first; i++)
        if (vec_by_name(best_first[i])) return vec_by_name(best_first[i]);
    return &vec_ref;
}
