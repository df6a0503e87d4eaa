/* iq_grid.h - tables of lattice points that the IQ formats index (ggml's iq*_grid), expanded to
 * bytes.
 *
 * Built on the first call and constant for the life of the process; any thread may call. */
#ifndef TERN_KERNEL_IQ_GRID_H
#define TERN_KERNEL_IQ_GRID_H

#include <stdint.h>

struct iq_grid {
    uint8_t iq2_xxs[256][8], iq2_xs[512][8], iq2_s[1024][8]; /* magnitudes 8, 25, 43 */
    uint8_t iq3_xxs[256][4];                                 /* magnitudes 4, 12, .. 52, 62 */
    uint8_t iq3_s[512][4];                                   /* magnitudes 1, 3, .. 15 */
    int8_t iq1[2048][8];                                     /* -1, 0, 1: IQ1_S and IQ1_M */
    uint8_t signs[128]; /* eight sign bits by the first seven: the eighth makes their number even */
};

const struct iq_grid *iq_grid(void);

/* The non-linear levels of IQ4_NL and IQ4_XS; twice the values of E2M1 (MXFP4). */
extern const int8_t iq4_levels[16];
extern const int8_t mxfp4_levels[16];
#endif
