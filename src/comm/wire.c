/* wire.c - F32 as it is, or blocks of 32 numbers with 8 bits each and one F32 scale. */
#include "comm/wire.h"

#include <math.h>
#include <string.h>

struct block {
    float scale;
    int8_t q[WIRE_BLOCK];
};

size_t wire_bytes(enum comm_wire w, size_t n)
{
    return w == COMM_F32 ? n * sizeof(float)
                         : (n + WIRE_BLOCK - 1) / WIRE_BLOCK * sizeof(struct block);
}

static void put_block(struct block *b, const float *x, size_t n)
{
    float most = 0, back;
    bool bad = false;

    for (size_t i = 0; i < n; i++) {
        most = fmaxf(most, fabsf(x[i]));
        bad |= !isfinite(x[i]);
    }
    b->scale = bad ? NAN : most / 127; /* NaN in the result says that something is wrong */
    back = !bad && most > 0 ? 127 / most : 0;
    for (size_t i = 0; i < n; i++) b->q[i] = bad ? 1 : (int8_t)lrintf(x[i] * back);
    for (size_t i = n; i < WIRE_BLOCK; i++) b->q[i] = 0;
}

static size_t block_len(size_t n, size_t at) { return n - at < WIRE_BLOCK ? n - at : WIRE_BLOCK; }

void wire_put(enum comm_wire w, void *out, const float *x, size_t n)
{
    struct block *b = out;

    if (w == COMM_F32) memcpy(out, x, n * sizeof *x);
    else
        for (size_t i = 0; i < n; i += WIRE_BLOCK) put_block(b++, x + i, block_len(n, i));
}

void wire_get(enum comm_wire w, float *x, const void *in, size_t n)
{
    const struct block *b = in;

    if (w == COMM_F32) {
        memcpy(x, in, n * sizeof *x);
        return;
    }
    for (size_t i = 0; i < n; i += WIRE_BLOCK, b++)
        for (size_t k = 0; k < block_len(n, i); k++) x[i + k] = b->scale * (float)b->q[k];
}

void wire_add(enum comm_wire w, float *x, const void *in, size_t n)
{
    const struct block *b = in;
    const float *y = in;

    if (w == COMM_F32) {
        for (size_t i = 0; i < n; i++) x[i] += y[i];
        return;
    }
    for (size_t i = 0; i < n; i += WIRE_BLOCK, b++)
        for (size_t k = 0; k < block_len(n, i); k++) x[i + k] += b->scale * (float)b->q[k];
}
