/* flash.c - which attention kernels this machine can run. */
#include "kernel/cpu/flash.h"

#include "kernel/cpu/gemm.h"

#include <string.h>

static bool can_run(const char *name)
{
#if defined(__x86_64__)
    if (strcmp(name, "amx") == 0) return vec_runs("avx512") && gemm_amx();
#endif
    return vec_runs(name);
}

const struct flash *flash_by_name(const char *name)
{
    static const struct flash *const all[] = {
#if defined(__x86_64__)
        &flash_avx2,
        &flash_avx512,
        &flash_amx,
#elif defined(__aarch64__)
        &flash_neon,
#endif
        NULL,
    };

    for (int i = 0; all[i]; i++)
        if (strcmp(all[i]->name, name) == 0 && can_run(name)) return all[i];
    return NULL;
}

const struct flash *flash_best(void)
{
    static const char *const best_first[] = { "amx", "avx512", "avx2", "neon" };

    for (size_t i = 0; i < sizeof best_first / sizeof *best_first; i++)
        if (flash_by_name(best_first[i])) return flash_by_name(best_first[i]);
    return NULL;
}
