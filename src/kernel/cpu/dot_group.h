/* dot_group.h - gemv for DT_GROUPED (base/grouped.h) with F32 activations: rows of codes become
 * floats in registers, multiplied by the scale of their group. For dot_group_avx2.c and
 * dot_group_avx512.c, which define
 *
 *   LANES, vf, v_zero(), v_fma(a, b, c), v_load_n(p, n), v_sum(a)
 *   struct code_table, make_table(code, s, z)       a group's values, or its scale and zero point
 *   unpack_codes(p, shift, n, code, table)          n <= LANES codes as floats
 *   expand_scales(g, row, first, n, out)            scales of n groups as F32
 *   expand_zeros(g, row, first, n, out)
 *   GEMV_GROUP(code)                                the tiles of rows and tokens
 *
 * The code is a compile-time constant everywhere. A group begins at a multiple of LANES columns;
 * other matrices are decoded in plain C (gemv_decoded). */
#include "kernel/quant.h"

enum { STRETCH = 256 }; /* groups whose scales are expanded at a time */

struct group_scales {
    float s[STRETCH], z[STRETCH];
};

/* Columns that one load of codes holds: of these, all belong to one group in the fast loop. */
INLINE int chunk_of(const enum group_code code)
{
    return code == CODE_U2 ? 64 : code == CODE_U4 || code == CODE_E2M1 ? 32 : LANES;
}

INLINE bool is_small(const enum group_code code)
{
    return code == CODE_U2 || code == CODE_U4 || code == CODE_E2M1;
}

/* Where the codes of LANES columns from c on are: bytes from the row's start, and bits of these. */
INLINE int code_at(int c, const enum group_code code)
{
    return is_small(code) ? c / chunk_of(code) * 16 + c % 16 : c;
}
INLINE int code_shift(int c, const enum group_code code)
{
    return is_small(code) ? c % chunk_of(code) / 16 * (code == CODE_U2 ? 2 : 4) : 0;
}

/* acc += products of n <= LANES columns from c on, R rows x T tokens. */
INLINE void step_group(vf *acc, const char *const *w, const int R, const float *const *x,
                       const int T, int c, int at, int shift, int n, const enum group_code code,
                       const struct code_table *table)
{
    vf v[4];

    UNROLL
    for (int r = 0; r < R; r++) v[r] = unpack_codes(w[r] + at, shift, n, code, &table[r]);
    UNROLL
    for (int t = 0; t < T; t++) {
        vf a = v_load_n(x[t] + c, n);
        UNROLL
        for (int r = 0; r < R; r++) acc[r * T + t] = v_fma(v[r], a, acc[r * T + t]);
    }
}

/* R rows x T tokens. */
INLINE void tile_group(const struct gemv *g, int r0, const int R, int t0, const int T,
                       const enum group_code code)
{
    const struct grouped *q = g->group;
    const int chunk = chunk_of(code);
    const char *w[4];
    const float *x[8];
    struct group_scales scales[4];
    vf acc[16];

    UNROLL
    for (int r = 0; r < R; r++) w[r] = gemv_row(g, r0 + r);
    UNROLL
    for (int t = 0; t < T; t++) x[t] = gemv_x(g, t0 + t);
    UNROLL
    for (int i = 0; i < R * T; i++) acc[i] = v_zero();
    for (int first = 0; first < q->n_groups; first += STRETCH) {
        int n = q->n_groups - first < STRETCH ? q->n_groups - first : STRETCH;
        for (int r = 0; r < R; r++) {
            expand_scales(q, w[r], first, n, scales[r].s);
            expand_zeros(q, w[r], first, n, scales[r].z);
        }
        for (int k = 0; k < n; k++) {
            int c = (first + k) * q->group, end = c + q->group < g->cols ? c + q->group : g->cols;
            struct code_table table[4];
            UNROLL
            for (int r = 0; r < R; r++) table[r] = make_table(code, scales[r].s[k], scales[r].z[k]);
            if (c % chunk == 0)
                for (; c + chunk <= end; c += chunk) {
                    int at = code_at(c, code);
                    UNROLL
                    for (int i = 0; i < chunk; i += LANES)
                        step_group(acc, w, R, x, T, c + i, at + code_at(i, code),
                                   code_shift(i, code), LANES, code, table);
                }
            for (; c < end; c += LANES) {
                int left = end - c < LANES ? end - c : LANES;
                if (left == LANES)
                    step_group(acc, w, R, x, T, c, code_at(c, code), code_shift(c, code), LANES,
                               code, table);
                else
                    step_group(acc, w, R, x, T, c, code_at(c, code), code_shift(c, code), left,
                               code, table);
            }
        }
    }
    UNROLL
    for (int t = 0; t < T; t++) UNROLL
    for (int r = 0; r < R; r++)
        g->out[(size_t)(t0 + t) * g->out_stride + (size_t)(r0 + r)] = v_sum(acc[r * T + t]);
}

/* Columns [c, c + n) of a row as floats; c is a multiple of LANES. */
INLINE void decode_columns(const struct grouped *q, const char *row, int c, int n, float *dst,
                           const enum group_code code)
{
    for (int end = c + n; c < end;) {
        int k = c / q->group, stop = (k + 1) * q->group < end ? (k + 1) * q->group : end;
        struct code_table table = make_table(code, grouped_scale(q, row, k) * code_unit(code),
                                             (float)grouped_zero(q, row, k));
        for (; c < stop; c += LANES, dst += LANES) {
            int m = stop - c < LANES ? stop - c : LANES;
            v_store_n(
                dst, unpack_codes(row + code_at(c, code), code_shift(c, code), m, code, &table), m);
        }
        c = stop;
    }
}

static bool is_regular(const struct grouped *q)
{
    return q->group % LANES == 0 || q->n_groups == 1;
}

/* One function per code: a switch over constants. */
#define BY_CODE(code, CALL)                 \
    switch (code) {                         \
    case CODE_U2: CALL(CODE_U2); break;     \
    case CODE_U4: CALL(CODE_U4); break;     \
    case CODE_U8: CALL(CODE_U8); break;     \
    case CODE_E2M1: CALL(CODE_E2M1); break; \
    case CODE_E4M3: CALL(CODE_E4M3); break; \
    case CODE_E5M2: CALL(CODE_E5M2); break; \
    }
