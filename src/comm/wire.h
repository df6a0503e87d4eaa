/* wire.h - the form of numbers on their way between members. */
#ifndef TERN_COMM_WIRE_H
#define TERN_COMM_WIRE_H

#include "comm/comm.h"

enum { WIRE_BLOCK = 32 }; /* numbers that share a scale; parts of a sum begin at such borders */

/* Bytes of n numbers. */
size_t wire_bytes(enum comm_wire w, size_t n);
void wire_put(enum comm_wire w, void *out, const float *x, size_t n);
void wire_get(enum comm_wire w, float *x, const void *in, size_t n);
/* x += the numbers. */
void wire_add(enum comm_wire w, float *x, const void *in, size_t n);
#endif
