/* quant_group.c - the definition of DT_GROUPED (base/grouped.h): its decoder in plain C. */
#include "kernel/quant_impl.h"

#include "base/grouped.h"
#include "kernel/iq_grid.h"

float grouped_scale(const struct grouped *g, const void *row, int group)
{
    const uint8_t *p = (const uint8_t *)row + g->scales_at;
    uint16_t h;
    float f;

    switch (g->scale) {
    case SCALE_NONE: return g->factor;
    case SCALE_F32: memcpy(&f, p + (size_t)group * 4, 4); break;
    case SCALE_E8M0: f = f8_e8m0_to_f32(p[group]); break;
    case SCALE_E4M3: quant_decode(DT_F8_E4M3, p + group, &f, 1); break;
    default:
        memcpy(&h, p + (size_t)group * 2, 2);
        f = g->scale == SCALE_F16 ? f16_to_f32(h) : bf16_to_f32(h);
    }
    return f * g->factor;
}

int grouped_zero(const struct grouped *g, const void *row, int group)
{
    const uint8_t *p = (const uint8_t *)row + g->zeros_at;

    return g->zero + (g->zeros ? p[group] : 0);
}

uint8_t grouped_code(const struct grouped *g, const void *row, int c)
{
    const uint8_t *codes = row;
    int chunk = group_chunk(g->code), bits = chunk == 64 ? 2 : 4;

    if (!chunk) return codes[c];
    codes += (size_t)(c / chunk) * 16;
    c %= chunk;
    return codes[c % 16] >> c / 16 * bits & ((1 << bits) - 1);
}

void grouped_decode(const struct grouped *g, const void *row, int first, int n, float *dst)
{
    int at = -1, zero = 0;
    float s = 0, v;

    for (int c = first; c < first + n; c++) {
        uint8_t q = grouped_code(g, row, c);
        if (c / g->group != at) {
            at = c / g->group;
            s = grouped_scale(g, row, at);
            zero = grouped_zero(g, row, at);
        }
        switch (g->code) {
        case CODE_E2M1: v = (float)mxfp4_levels[q] * 0.5f; break;
        case CODE_E4M3: quant_decode(DT_F8_E4M3, &q, &v, 1); break;
        case CODE_E5M2: quant_decode(DT_F8_E5M2, &q, &v, 1); break;
        default: v = (float)((int)q - zero);
        }
        dst[c - first] = v * s;
    }
}

/* ---- columns ---- */

static int64_t common(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

bool grouped_cut(const struct grouped *g, int64_t first, int64_t n, struct grouped *out)
{
    int64_t chunk = group_chunk(g->code) ? group_chunk(g->code) : 1, end = first + n,
            group = common(g->group, first);

    if (g->order || first < 0 || n < 1 || end > g->cols) return false;
    if (first % chunk || (end < g->cols && end % chunk)) return false;
    if (end < g->cols) group = common(group, end);
    if (g->n_groups == 1) group = n;
    else if (group % 16) return false;
    *out = *g;
    out->cols = (int)n;
    out->group = (int)group;
    grouped_measure(out);
    return true;
}

void grouped_copy(const struct grouped *g, const void *row, int64_t first,
                  const struct grouped *part, void *out)
{
    const uint8_t *in = row;
    uint8_t *to = out;
    size_t scale = (size_t)group_scale_bytes(g->scale), n = part->scales_at;

    memcpy(to, in + group_code_bytes(g->code, (int)first), n);
    for (int k = 0; k < part->n_groups; k++) {
        size_t from = (size_t)((first + (int64_t)k * part->group) / g->group);
        memcpy(to + part->scales_at + (size_t)k * scale, in + g->scales_at + from * scale, scale);
        if (g->zeros) to[part->zeros_at + (size_t)k] = in[g->zeros_at + from];
    }
}

void quant_decode_part(enum dtype t, const struct grouped *g, const void *row, int64_t first,
                       int64_t n, float *dst)
{
    const struct dtype_info *d = dtype_info((int)t);

    if (t == DT_GROUPED) grouped_decode(g, row, (int)first, (int)n, dst);
    else if (dtype_head(t)) quant_decode_row(t, row, first, n, dst);
    else quant_decode(t, (const char *)row + first / d->block * d->bytes, dst, n);
}
