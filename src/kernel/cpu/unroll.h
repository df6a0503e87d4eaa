/* unroll.h - INLINE and UNROLL, for kernels whose sizes must become compile-time constants.
 *
 * An INLINE function called with constants is compiled for these constants; UNROLL before a loop
 * over them keeps its arrays in registers. */
#ifndef TERN_KERNEL_CPU_UNROLL_H
#define TERN_KERNEL_CPU_UNROLL_H

#define INLINE static inline __attribute__((always_inline, unused))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#endif
