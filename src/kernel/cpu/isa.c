/* isa.c - which instruction sets this machine has. */
#include "kernel/cpu/isa.h"

#include "kernel/cpu/isa_tables.h"

#include <stdatomic.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* The operating system saves these registers on a context switch: bits of XCR0. */
static bool os_saves(unsigned mask)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return false;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (a & mask) == mask;
}

static bool has_avx2(void)
{
    unsigned a, b, c, d;
    if (!os_saves(0x6) || !__get_cpuid(1, &a, &b, &c, &d)) return false;
    if (!(c >> 12 & 1) || !(c >> 29 & 1)) return false; /* FMA, F16C */
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    return (b >> 5 & 1) && (b >> 8 & 1); /* AVX2, BMI2 */
}

/* On a CPU with AVX2. */
static bool has_avxvnni(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

static bool has_avx512(void)
{
    unsigned a, b, c, d;
    if (!has_avx2() || !os_saves(0xe6) || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    unsigned need_b = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F, DQ, BW, VL */
    unsigned need_c = 1u << 1 | 1u << 11;                        /* VBMI, VNNI */
    return (b & need_b) == need_b && (c & need_c) == need_c;
}
#elif defined(__aarch64__)
#include <sys/auxv.h>

/* Dot products (HWCAP bit 20) and F16 arithmetic (bit 10). */
static bool has_neon(void)
{
    return (getauxval(AT_HWCAP) & (1u << 20 | 1u << 10)) == (1u << 20 | 1u << 10);
}
#endif

/* Bits: 1 always, 2 AVX2 or NEON, 4 AVX-512, 8 AVX-VNNI, 16 I8MM. Detected once:
 * under a hypervisor every CPUID traps. */
static unsigned find_features(void)
{
    static atomic_uint known;
    unsigned k = atomic_load_explicit(&known, memory_order_relaxed);

    if (k) return k;
    k = 1;
#if defined(__x86_64__)
    if (has_avx2()) k |= 2;
    if (has_avx512()) k |= 4;
    if (k & 2 && has_avxvnni()) k |= 8;
#elif defined(__aarch64__)
    if (has_neon()) k |= 2;
    if (k & 2 && getauxval(AT_HWCAP2) >> 13 & 1) k |= 16;
#endif
    atomic_store_explicit(&known, k, memory_order_relaxed);
    return k;
}

const struct isa *isa_at(int i)
{
    const struct isa *list[5];
    int n = 0;
    list[n++] = &isa_ref;
#if defined(__x86_64__)
    if (find_features() & 2) list[n++] = &isa_avx2;
    if (find_features() & 8) list[n++] = &isa_avxvnni;
    if (find_features() & 4) list[n++] = &isa_avx512;
#elif defined(__aarch64__)
    if (find_features() & 2) list[n++] = &isa_neon;
#endif
    return i >= 0 && i < n ? list[i] : NULL;
}

bool isa_has_i8mm(void) { return find_features() & 16; }

const struct isa *isa_best(void)
{
    const struct isa *best = &isa_ref;
    for (int i = 1; isa_at(i); i++) best = isa_at(i);
    return best;
}

const struct isa *isa_by_name(const char *name)
{
    for (int i = 0; isa_at(i); i++)
        if (strcmp(isa_at(i)->name, name) == 0) return isa_at(i);
    return NULL;
}
