#include "kernel/cpu/flash.h"

#include "kernel/cpu/isa.h"

#include <string.h>

const struct flash *flash_by_name(const char *name)
{
#if defined(__x86_64__)
    static const struct flash *const all[] = { &flash_avx2, &flash_avx512 };
#elif defined(__aarch64__)
    static const struct flash *const all[] = { &flash_neon };
#else
    static const struct flash *const all[] = { NULL };
#endif

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] && strcmp(all[i]->name, name) == 0 && isa_by_name(name)) return all[i];
    return NULL;
}

const struct flash *flash_best(void)
{
    static const char *const best_first[] = { "avx512", "avx2", "neon" };

    for (size_t i = 0; i < sizeof best_first / sizeof *best_first; i++)
        if (flash_by_name(best_first[i])) return flash_by_name(best_first[i]);
    return NULL;
}
