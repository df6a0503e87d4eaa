/* work.h - a small budget for a fuzz target, and whether the work has kept to it: not by the budget's
 * own counts alone, but by the memory that the sanitizer sees and by the processor's time.
 *
 * The factors are wide: they find work that goes on without counting, not work that counts badly. */
#ifndef TERN_TESTS_FUZZ_WORK_H
#define TERN_TESTS_FUZZ_WORK_H

#include "base/budget.h"

#include <sanitizer/allocator_interface.h>
#include <time.h>

enum {
    WORK_STEPS = 3000000,      /* a tenth of a second under the sanitizers */
    WORK_BYTES = 32 << 20,     /* counted */
    WORK_UNCOUNTED = 32 << 20, /* small things beside it */
    WORK_SECONDS = 8           /* of the processor */
};

static size_t work_live, work_peak; /* allocated bytes */

static void work_on_malloc(const volatile void *p, size_t n)
{
    (void)p;
    work_live += n;
    if (work_live > work_peak) work_peak = work_live;
}

static void work_on_free(const volatile void *p)
{
    size_t n = p ? __sanitizer_get_allocated_size(p) : 0;

    work_live -= n < work_live ? n : work_live;
}

static inline double work_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

struct work {
    size_t live;
    double seconds;
};

/* What was allocated before the first call is not counted. */
static inline struct work work_begin(void)
{
    static bool hooked;

    if (!hooked) __sanitizer_install_malloc_and_free_hooks(work_on_malloc, work_on_free);
    hooked = true;
    work_peak = work_live;
    return (struct work){ work_live, work_seconds() };
}

/* Traps if the work took clearly more than it was allowed. b NULL: the target cannot see the budget. */
static inline void work_end(const struct work *w, const struct budget *b)
{
    if (b && b->steps > 2 * (uint64_t)WORK_STEPS) __builtin_trap();
    if (b && b->peak_bytes > WORK_BYTES) __builtin_trap();
    if (work_peak > w->live + WORK_BYTES + WORK_UNCOUNTED) __builtin_trap();
    if (work_seconds() - w->seconds > WORK_SECONDS) __builtin_trap();
}
#endif
