/* isa_tables.h - the tables of each instruction set, built where the compiler knows it. Whether
 * this machine runs one is isa.c's to say. */
#ifndef TERN_KERNEL_CPU_ISA_TABLES_H
#define TERN_KERNEL_CPU_ISA_TABLES_H

#include "kernel/cpu/isa.h"

extern const struct isa isa_avx2, isa_avx512, isa_neon;
#endif
