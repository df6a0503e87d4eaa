/* rope.c - rotary position embedding (RoFormer, Su et al.): tables of angles, and the rotation. */
#include "kernel/cpu/cpu.h"

#include <math.h>

/* Cost of sin and cos of a double, in units of one element touched. */
#define SINCOS_WORK 30

struct rotation {
    const struct vec *vec;
    const struct tensor *x, *table;
    const int32_t *pos;
    const float *freq;
    int n_heads, head_dim, n_rot;
    enum rope_style style;
    float mscale;
};

/* One row per token: cos and sin of every frequency, interleaved. */
static void fill_table_rows(const void *arg, int begin, int end)
{
    const struct rotation *a = arg;

    for (int r = begin; r < end; r++) {
        float *cs = tensor_row(a->table, r);
        for (int j = 0; j < a->n_rot / 2; j++) {
            /* The angle is rounded to float before cos and sin, as in the frameworks the models
             * were trained with. */
            float angle = (float)a->pos[r] * a->freq[j];
            cs[2 * j] = (float)cos((double)angle) * a->mscale;
            cs[2 * j + 1] = (float)sin((double)angle) * a->mscale;
        }
    }
}

void cpu_rope_table(struct backend *be, const struct tensor *table, const int32_t *pos,
                    const float *freq, int n_rot, float mscale)
{
    struct rotation a = {
        .table = table, .pos = pos, .freq = freq, .n_rot = n_rot, .mscale = mscale
    };

    cpu_rows(cpu_of(be), table->rows, (long long)table->rows * n_rot * SINCOS_WORK, fill_table_rows,
             &a);
}

static void rotate_rows(const void *arg, int begin, int end)
{
    const struct rotation *a = arg;

    for (int r = begin; r < end; r++) {
        const float *cs = tensor_row(a->table, r);
        float *x = tensor_row(a->x, r);
        for (int h = 0; h < a->n_heads; h++)
            a->vec->rope[a->style](x + (size_t)h * a->head_dim, cs, a->n_rot);
    }
}

void cpu_rope(struct backend *be, const struct tensor *x, int n_heads, int head_dim, int n_rot,
              const struct tensor *table, enum rope_style style)
{
    struct cpu *c = cpu_of(be);
    struct rotation a = { .vec = c->vec,
                          .x = x,
                          .table = table,
                          .n_heads = n_heads,
                          .head_dim = head_dim,
                          .n_rot = n_rot,
                          .style = style };

    cpu_rows(c, x->rows, (long long)x->rows * n_heads * n_rot, rotate_rows, &a);
}
