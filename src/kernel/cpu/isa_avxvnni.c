/* isa_avxvnni.c - the table for x86 with AVX-VNNI and all of AVX2's; what has no kernel of its own is
 * AVX2's. */
#include "kernel/cpu/avxvnni.h"
#define ISA_NAME "avxvnni"
#include "kernel/cpu/isa_avx2.c"
