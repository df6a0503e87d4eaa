#include "kernel/cpu/vec.h"

#include "kernel/cpu/isa.h"

#include <string.h>

const struct vec *vec_by_name(const char *name)
{
    static const struct vec *const all[] = {
        &vec_ref,
#if defined(__x86_64__)
        &vec_avx2, &vec_avx512,
#elif defined(__aarch64__)
        &vec_neon,
#endif
    };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i]->name, name) == 0 && (i == 0 || isa_by_name(name))) return all[i];
    return NULL;
}

const struct vec *vec_best(void)
{
    static const char *const best_first[] = { "avx512", "avx2", "neon" };

    for (size_t i = 0; i < sizeof best_first / sizeof *best_first; i++)
        if (vec_by_name(best_first[i])) return vec_by_name(best_first[i]);
    return &vec_ref;
}
