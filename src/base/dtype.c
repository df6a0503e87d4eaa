#include "base/dtype.h"

#include <strings.h>

/* Name, elements per block, bytes per block, quantized. Indexed by enum dtype; gaps have no
 * name. */
static const struct dtype_info table[DT_COUNT] = {
    [DT_F32] = { "F32", 1, 4, false },
    [DT_F16] = { "F16", 1, 2, false },
    [DT_BF16] = { "BF16", 1, 2, false },
    [DT_F64] = { "F64", 1, 8, false },
    [DT_I8] = { "I8", 1, 1, false },
    [DT_I16] = { "I16", 1, 2, false },
    [DT_I32] = { "I32", 1, 4, false },
    [DT_I64] = { "I64", 1, 8, false },
    [DT_U8] = { "U8", 1, 1, false },
    [DT_U16] = { "U16", 1, 2, false },
    [DT_U32] = { "U32", 1, 4, false },
    [DT_U64] = { "U64", 1, 8, false },
    [DT_BOOL] = { "BOOL", 1, 1, false },
    [DT_F8_E4M3] = { "F8_E4M3", 1, 1, false },
    [DT_F8_E5M2] = { "F8_E5M2", 1, 1, false },
    [DT_F8_E8M0] = { "F8_E8M0", 1, 1, false },
    [DT_GROUPED] = { "GROUPED", 1, 0, true },
    [DT_Q4_0] = { "Q4_0", 32, 18, true },
    [DT_Q4_1] = { "Q4_1", 32, 20, true },
    [DT_Q5_0] = { "Q5_0", 32, 22, true },
    [DT_Q5_1] = { "Q5_1", 32, 24, true },
    [DT_Q8_0] = { "Q8_0", 32, 34, true },
    [DT_Q8_1] = { "Q8_1", 32, 36, true },
    [DT_Q2_K] = { "Q2_K", 256, 84, true },
    [DT_Q3_K] = { "Q3_K", 256, 110, true },
    [DT_Q4_K] = { "Q4_K", 256, 144, true },
    [DT_Q5_K] = { "Q5_K", 256, 176, true },
    [DT_Q6_K] = { "Q6_K", 256, 210, true },
    [DT_Q8_K] = { "Q8_K", 256, 292, true },
    [DT_IQ2_XXS] = { "IQ2_XXS", 256, 66, true },
    [DT_IQ2_XS] = { "IQ2_XS", 256, 74, true },
    [DT_IQ2_S] = { "IQ2_S", 256, 82, true },
    [DT_IQ3_XXS] = { "IQ3_XXS", 256, 98, true },
    [DT_IQ3_S] = { "IQ3_S", 256, 110, true },
    [DT_IQ1_S] = { "IQ1_S", 256, 50, true },
    [DT_IQ1_M] = { "IQ1_M", 256, 56, true },
    [DT_IQ4_NL] = { "IQ4_NL", 32, 18, true },
    [DT_IQ4_XS] = { "IQ4_XS", 256, 136, true },
    [DT_TQ1_0] = { "TQ1_0", 256, 54, true },
    [DT_TQ2_0] = { "TQ2_0", 256, 66, true },
    [DT_MXFP4] = { "MXFP4", 32, 17, true },
    [DT_NVFP4] = { "NVFP4", 64, 36, true },
    [DT_Q1_0] = { "Q1_0", 128, 18, true },
    [DT_Q2_0] = { "Q2_0", 64, 18, true },
    [DT_I2_S] = { "I2_S", 128, 32, true },
    [DT_IQ4_K] = { "IQ4_K", 256, 144, true },
    [DT_IQ4_KS] = { "IQ4_KS", 256, 136, true },
    [DT_IQ5_KS] = { "IQ5_KS", 256, 168, true },
    [DT_IQ3_KS] = { "IQ3_KS", 256, 102, true },
    [DT_IQ2_KL] = { "IQ2_KL", 256, 86, true },
};

const struct dtype_info *dtype_info(int type)
{
    return type >= 0 && type < DT_COUNT && table[type].name ? &table[type] : NULL;
}

const char *dtype_name(int type)
{
    const struct dtype_info *d = dtype_info(type);
    return d ? d->name : "unknown";
}

/* A linear search: names come from command lines and file headers only. */
enum dtype dtype_by_name(struct str name)
{
    for (int i = 0; i < DT_COUNT; i++)
        if (table[i].name && strlen(table[i].name) == name.n &&
            strncasecmp(table[i].name, name.p, name.n) == 0)
            return (enum dtype)i;
    if ((name.n == 2 && strncasecmp(name.p, "f8", 2) == 0) ||
        (name.n == 3 && strncasecmp(name.p, "fp8", 3) == 0))
        return DT_F8_E4M3;
    return DT_NONE;
}

enum dtype dtype_by_ggml(uint32_t number)
{
    switch (number) {
    case 139: return DT_IQ4_K;
    case 144: return DT_IQ4_KS;
    case 152: return DT_IQ5_KS;
    case 156: return DT_IQ3_KS;
    case 157: return DT_IQ2_KL;
    default: return number < DT_F8_E4M3 && dtype_info((int)number) ? (enum dtype)number : DT_NONE;
    }
}

int dtype_head(enum dtype t)
{
    if (t == DT_IQ4_KS || t == DT_IQ5_KS) return 4;
    return t == DT_IQ3_KS || t == DT_IQ2_KL ? 2 : 0;
}

bool dtype_row_bytes(enum dtype t, uint64_t n, uint64_t *bytes)
{
    const struct dtype_info *d = dtype_info((int)t);
    return d && d->bytes && n % (uint64_t)d->block == 0 &&
           !__builtin_mul_overflow(n / (uint64_t)d->block, (uint64_t)d->bytes, bytes) &&
           !__builtin_add_overflow(*bytes, (uint64_t)dtype_head(t), bytes);
}
