/* kernels.c - the kernel sets of x86 and ARM, and what each needs. */
#include "kernel/cpu/kernels.h"

#include "kernel/cpu/isa_tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The sets of all architectures by name, the best first; ref is everywhere. */
static const char *const names[] = { "amx", "avx512", "avxvnni", "avx2", "neon", "ref" };
enum { NAMES = sizeof names / sizeof *names };

/* The CPU features that a kernel set needs, as the error message names them. */
static const char *needs(const char *name)
{
    if (strcmp(name, "amx") == 0) return "AMX tiles (INT8 and BF16), enabled by the system";
    if (strcmp(name, "avx512") == 0) return "AVX-512 (F, BW, DQ, VL, VBMI, VNNI)";
    if (strcmp(name, "avxvnni") == 0) return "AVX-VNNI, FMA, F16C and BMI2";
    if (strcmp(name, "avx2") == 0) return "AVX2, FMA, F16C and BMI2";
    return "64-bit ARM with dot products and F16 arithmetic";
}

static void fill_ref(struct kernels *k)
{
    *k = (struct kernels){
        .name = "ref", .matmul = { .isa = &isa_ref }, .vec = &vec_ref, .recur = &recur_ref
    };
}

/* The matrix-matrix product for many tokens; NULL: the set has none. */
static const struct gemm *find_gemm(const char *name)
{
#if defined(__x86_64__)
    if (strcmp(name, "amx") == 0) return gemm_amx();
    if (strcmp(name, "avx512") == 0) return &gemm_avx512;
    if (strcmp(name, "avxvnni") == 0) return &gemm_avxvnni;
    if (strcmp(name, "avx2") == 0) return &gemm_avx2;
#elif defined(__aarch64__)
    if (strcmp(name, "neon") == 0) return isa_has_i8mm() ? &gemm_i8mm : &gemm_neon;
#else
    (void)name;
#endif
    return NULL;
}

/* false: this machine cannot run the set. AMX has matrix products and attention of its own, and takes
 * the rest from AVX-512; AVX-VNNI has matrix products, and the rest from AVX2. */
static bool fill_set(struct kernels *k, const char *name)
{
    bool amx = strcmp(name, "amx") == 0, vnni = strcmp(name, "avxvnni") == 0;
    const char *base = amx ? "avx512" : vnni ? "avx2" : name;

    if (strcmp(name, "ref") == 0) {
        fill_ref(k);
        return true;
    }
    *k = (struct kernels){ .name = name,
                           .matmul = { .isa = isa_by_name(amx ? base : name),
                                       .gemm = find_gemm(name),
                                       .few = amx ? gemm8_amx() : NULL,
                                       .rest = amx ? find_gemm(base) : NULL },
                           .vec = vec_by_name(base),
                           .recur = recur_by_name(base),
                           .flash = flash_by_name(vnni ? base : name) };
    return k->matmul.isa && k->vec && k->recur && k->flash && (!amx || k->matmul.gemm);
}

const char *kernels_at(int i)
{
    struct kernels k;

    for (int n = 0; n < NAMES; n++)
        if (fill_set(&k, names[n]) && i-- == 0) return names[n];
    return NULL;
}

/* "avx512, avxvnni, avx2, ref" */
static void list_sets(char *out, size_t size)
{
    size_t n = 0;

    out[0] = 0;
    for (int i = 0; kernels_at(i) && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%s", i ? ", " : "", kernels_at(i));
}

static int refuse_set(const char *name, struct err *e)
{
    char have[64];

    list_sets(have, sizeof have);
    for (int i = 0; i < NAMES; i++)
        if (strcmp(names[i], name) == 0)
            return err_set(e, E_UNSUPPORTED, "isa \"%s\": this CPU lacks %s; it has %s", name,
                           needs(name), have);
    return err_set(e, E_INVALID, "isa \"%s\" is not known; this CPU has %s", name, have);
}

int kernels_find(struct kernels *out, const char *name, struct err *e)
{
    if (!name || !*name) name = getenv("TERN_ISA");
    if (name && *name && strcmp(name, "auto") != 0)
        return fill_set(out, name) ? OK : refuse_set(name, e);
    for (int i = 0; i < NAMES; i++)
        if (fill_set(out, names[i])) return OK;
    return err_set(e, E_INTERNAL,
                   "no kernels for this machine"); /* not reached: ref is always there */
}
