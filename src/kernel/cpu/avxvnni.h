/* avxvnni.h - vpdpbusd on 256 bits (AVX-VNNI): adds 4 products of unsigned and signed bytes to each
 * 32-bit lane.
 *
 * Files *_avxvnni.c compile those of AVX2 again, under other names and with DOT4 in place of
 * vpmaddubsw and vpmaddwd. With TERN_EVEX, as the tests compile them once more, DOT4 is the EVEX form
 * of AVX-512 VNNI: it computes the same, on machines that lack the VEX form. */
#ifndef TERN_KERNEL_CPU_AVXVNNI_H
#define TERN_KERNEL_CPU_AVXVNNI_H

#include <immintrin.h>

#ifdef TERN_EVEX
#define DOT4(sum, w, x) _mm256_dpbusd_epi32(sum, w, x)
#define VNNI(name) name##_evex
#else
#define DOT4(sum, w, x) _mm256_dpbusd_avx_epi32(sum, w, x)
#define VNNI(name) name##_avxvnni
#endif

/* Names of the functions and tables that the AVX2 files define, or take from each other. */
#define isa_avx2 VNNI(isa)
#define x8_make_avx2 VNNI(x8_make)
#define gemv_q4_0_avx2 VNNI(gemv_q4_0)
#define gemv_q4_1_avx2 VNNI(gemv_q4_1)
#define gemv_q5_0_avx2 VNNI(gemv_q5_0)
#define gemv_q5_1_avx2 VNNI(gemv_q5_1)
#define gemv_q8_0_avx2 VNNI(gemv_q8_0)
#define gemv_iq4_nl_avx2 VNNI(gemv_iq4_nl)
#define gemv_mxfp4_avx2 VNNI(gemv_mxfp4)
#define gemv_q2_k_avx2 VNNI(gemv_q2_k)
#define gemv_q3_k_avx2 VNNI(gemv_q3_k)
#define gemv_iq4_xs_avx2 VNNI(gemv_iq4_xs)
#endif
