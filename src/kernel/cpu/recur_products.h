/* recur_products.h - the products of recur_chunk.h in F32 vectors, tiles of MR rows and PANEL columns
 * in registers. Included by recur_chunk.h only. */
#define PAD (W < MR ? MR : W)
#define IN_PLACE 64 /* floats from row to row; with more, rows would share few sets of the cache */

/* One side of a product: a matrix as it is. */
struct operand {
    const float *p;
    size_t ld;
};

/* m rows of k numbers, as the left side; k rows of PANEL numbers, as the right side. */
INLINE void make_left(struct operand *o, const float *p, size_t ld, int m, int k)
{
    (void)m, (void)k;
    *o = (struct operand){ p, ld };
}
INLINE void make_right(struct operand *o, const float *p, size_t ld, int k)
{
    (void)k;
    *o = (struct operand){ p, ld };
}

/* c = keep c + scale[row] a b: one panel of columns. */
static void multiply(const struct product *p, const struct operand *a, const struct operand *b,
                     int m, int k)
{
    for (int row = 0; row < m; row += MR)
        multiply_tile(p, a->p, a->ld, b->p, b->ld, row, k, PANEL_VECS);
}

/* multiply() with a lower triangular a of m x m. */
static void multiply_lower(const struct product *p, const struct operand *a,
                           const struct operand *b, int m)
{
    for (int row = 0; row < m; row += MR)
        multiply_tile(p, a->p, a->ld, b->p, b->ld, row, row + MR, PANEL_VECS);
}

/* c = a b with rows of BLOCK numbers, of which the lower triangle is needed. */
static void multiply_to_lower(float *c, const struct operand *a, const struct operand *b, int m,
                              int k)
{
    for (int row = 0; row < m; row += MR)
        for (int col = 0; col < row + MR; col += PANEL) {
            struct product p = { c + col, BLOCK, NULL, 0 };
            if (col + PANEL <= m && col + W < row + MR)
                multiply_tile(&p, a->p, a->ld, b->p + col, b->ld, row, k, PANEL_VECS);
            else
                for (int v = 0; col + v < row + MR; v += W, p.c += W)
                    multiply_tile(&p, a->p, a->ld, b->p + col + v, b->ld, row, k, 1);
        }
}
