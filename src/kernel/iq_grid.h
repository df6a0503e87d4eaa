/* iq_grid.h - the lattice points that the IQ formats index, spread out for reading.
 *
 * The tables are made on the first call and live as long as the program. */
#ifndef TERN_KERNEL_IQ_GRID_H
#define TERN_KERNEL_IQ_GRID_H

#include <stdint.h>

struct iq_grid {
    uint8_t iq2_xxs[256][8], iq2_xs[512][8], iq2_s[1024][8]; /* 8, 25, 43 */
    uint8_t iq3_xxs[256][4];                                 /* 4, 12, .. 52, 62 */
    uint8_t iq3_s[512][4];                                   /* 1, 3, .. 15 */
    int8_t iq1[2048][8];                                     /* -1, 0, 1; of IQ1_S and IQ1_M */
    uint8_t signs[128]; /* seven signs, and the eighth that makes their number even */
};

const struct iq_grid *iq_grid(void);

/* The non-linear levels of IQ4_NL and IQ4_XS, and twice the values of E2M1 (MXFP4). */
extern const int8_t iq4_levels[16];
extern const int8_t mxfp4_levels[16];
#endif
