#include "cli/bandwidth.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/par.h"

#include <string.h>

typedef uint64_t lanes __attribute__((vector_size(64))); /* one cache line */

struct reading {
    const lanes *p;
    size_t n;
    uint64_t sink[64]; /* results, so that the compiler keeps the loads */
};

/* One loop for each vector width: with narrow vectors the loop is slower than the memory. Four
 * cache lines per pass, prefetched 16 KiB ahead. */
#define READ_LOOP(name, attr)                                              \
    attr static uint64_t name(const lanes *p, size_t n)                    \
    {                                                                      \
        lanes a = { 0 }, b = a;                                            \
        for (size_t i = 0; i < n; i += 4) {                                \
            __builtin_prefetch((const char *)(p + i) + 16384, 0, 2);       \
            __builtin_prefetch((const char *)(p + i) + 16384 + 64, 0, 2);  \
            __builtin_prefetch((const char *)(p + i) + 16384 + 128, 0, 2); \
            __builtin_prefetch((const char *)(p + i) + 16384 + 192, 0, 2); \
            a ^= p[i] ^ p[i + 1];                                          \
            b ^= p[i + 2] ^ p[i + 3];                                      \
        }                                                                  \
        a ^= b;                                                            \
        return a[0] ^ a[1] ^ a[2] ^ a[3] ^ a[4] ^ a[5] ^ a[6] ^ a[7];      \
    }

READ_LOOP(read_plain, )
#ifdef __x86_64__
READ_LOOP(read_avx2, __attribute__((target("avx2"))))
READ_LOOP(read_avx512, __attribute__((target("avx512f"))))
#endif

/* par_run's function: each thread reads its own part of the memory. */
static void read_part(void *arg, int t, int n)
{
    struct reading *r = arg;
    size_t part = r->n / (size_t)n / 4 * 4;
    uint64_t (*read)(const lanes *, size_t) = read_plain;

#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f")) read = read_avx512;
    else if (__builtin_cpu_supports("avx2")) read = read_avx2;
#endif
    r->sink[t % 64] += read(r->p + part * (size_t)t, part);
}

/* memset first touches the pages, so that the passes measure reads and not page faults. The best of
 * five passes: a limit is what can be reached. */
double bandwidth_measure(int n_threads)
{
    size_t bytes = (size_t)1 << 30;
    struct par *par = NULL;
    double best = 0;
    void *p = NULL;

    while (bytes >= (size_t)1 << 26 && !(p = mem_aligned(bytes))) bytes /= 2;
    if (!p || par_open(&par, (struct par_opt){ .n_threads = n_threads, .pin = true }, NULL) != OK) {
        mem_free_aligned(p, bytes);
        return 0;
    }
    memset(p, 1, bytes);
    struct reading r = { .p = p, .n = bytes / sizeof(lanes) };
    for (int i = 0; i < 5; i++) {
        uint64_t start = clock_ns();
        par_run(par, read_part, &r);
        double gb_s = (double)bytes / 1e6 / clock_ms_since(start);
        if (gb_s > best) best = gb_s;
    }
    volatile uint64_t keep = r.sink[0];
    (void)keep;
    par_close(par);
    mem_free_aligned(p, bytes);
    return best;
}
