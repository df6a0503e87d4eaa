/* tiles_amx.c - tile configurations, and whether this process may use AMX. */
#include "kernel/cpu/tiles_amx.h"

#include <cpuid.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The 64-byte operand of LDTILECFG. Static, because some compilers assume that the intrinsic reads
 * only its first word and drop the rest of a local variable. */
static const struct {
    uint8_t palette, start_row, zero[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} shapes[] = {
    [TILES_BF16] = { 1,
                     0,
                     { 0 },
                     { 64, 64, 64, 64, 64, 64, 64, 64 },
                     { 16, 16, 16, 16, 16, 16, 16, 16 } },
    [TILES_32] = { 1,
                   0,
                   { 0 },
                   { 64, 64, 64, 64, 32, 32, 64, 64 },
                   { 16, 16, 16, 16, 16, 16, 8, 8 } },
    [TILES_16] = { 1,
                   0,
                   { 0 },
                   { 64, 64, 64, 64, 16, 16, 64, 64 },
                   { 16, 16, 16, 16, 16, 16, 4, 4 } },
};

void tiles_enter(enum tiles shape)
{
    static _Thread_local enum tiles now;

    if (now == shape) return;
    _tile_loadconfig(&shapes[shape]);
    now = shape;
}

/* The CPU has AMX, the kernel saves the tiles on a context switch, and grants their use (on Linux a
 * process must ask for it once). */
static bool detect_amx(void)
{
    enum {
        BF16 = 1 << 22,
        TILES = 1 << 24,
        INT8 = 1 << 25,
        AVX512_BF16 = 1 << 5,
        OSXSAVE = 1 << 27
    };
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    unsigned a, b, c, d, state = 0x600e6, lo, hi;

    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE)) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) ||
        (d & (BF16 | TILES | INT8)) != (BF16 | TILES | INT8))
        return false;
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & AVX512_BF16)) return false;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (lo & state) == state && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0;
}

bool tiles_here(void)
{
    static atomic_int here; /* 0: not detected yet; several threads may do it at once */
    int h = atomic_load_explicit(&here, memory_order_relaxed);

    if (!h) atomic_store_explicit(&here, h = detect_amx() ? 1 : -1, memory_order_relaxed);
    return h > 0;
}
