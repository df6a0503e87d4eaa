/* tiles_amx.h - shared by the AMX kernels: detection, tile configurations, and writing sums to
 * rows.
 *
 * The tile configuration is a state of the thread. A kernel calls tiles_enter before its first tile
 * instruction, because another kernel may have set another one. */
#ifndef TERN_KERNEL_CPU_TILES_AMX_H
#define TERN_KERNEL_CPU_TILES_AMX_H

#include "kernel/cpu/gemm.h"

#include <immintrin.h>

/* Tiles 0 to 3 are sums, 16 x 16 of 4 bytes. Tiles 4 and 5 are left operands, 6 and 7 right ones; a
 * row of a left operand has 64 bytes (bf16), or 32 or 16 bytes: the columns that share a scale. */
enum tiles { TILES_NONE, TILES_BF16, TILES_32, TILES_16 };

bool tiles_here(void);              /* this process may use AMX with bf16 and int8 */
void tiles_enter(enum tiles shape); /* sets this thread's configuration */

/* Transposes 16 x 16 elements of 32 bits. */
static inline __attribute__((always_inline)) void transpose16(__m512i r[16])
{
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 8; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    }
}

/* 16 rows x 16 tokens of sums to out[token][row], with scale, bias and addition. */
static inline void store_sums_tile(const struct gemm_job *j, const float *c, int row, int n_rows,
                                   int token, int n_tokens)
{
    __m512i v[16];
    __mmask16 live = (__mmask16)(n_rows < 16 ? (1u << n_rows) - 1 : 0xffff);
    __m512 scale = _mm512_set1_ps(j->scale);
    __m512 bias = j->bias ? _mm512_maskz_loadu_ps(live, j->bias + row) : _mm512_setzero_ps();
    float *out = tensor_row(j->out, token) + row;
    size_t stride = j->out->stride;
    /* Full cache lines of a large output are written past the caches. */
    bool bypass = !j->add && j->tokens > 64 && n_rows >= 16 && ((uintptr_t)out & 63) == 0 &&
                  (stride & 15) == 0;

    for (int i = 0; i < 16; i++) v[i] = _mm512_load_si512(c + 16 * i);
    transpose16(v);
    for (int i = 0; i < 16 && i < n_tokens; i++, out += stride) {
        __m512 y = _mm512_fmadd_ps(_mm512_castsi512_ps(v[i]), scale, bias);
        if (j->add) y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(live, out));
        if (bypass) _mm512_stream_ps(out, y);
        else _mm512_mask_storeu_ps(out, live, y);
    }
}

#endif
