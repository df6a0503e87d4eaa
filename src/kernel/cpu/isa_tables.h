/* isa_tables.h - the tables of the instruction sets that are compiled in; isa.c decides which of
 * them this machine can run. */
#ifndef TERN_KERNEL_CPU_ISA_TABLES_H
#define TERN_KERNEL_CPU_ISA_TABLES_H

#include "kernel/cpu/isa.h"

extern const struct isa isa_avx2, isa_avxvnni, isa_avx512, isa_neon;
bool isa_has_i8mm(void); /* ARM's 8-bit matrix products; false elsewhere */
#endif
