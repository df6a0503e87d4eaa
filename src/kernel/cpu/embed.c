/* embed.c - rows selected by index: token embeddings, and the rows whose logits are wanted. */
#include "kernel/cpu/cpu.h"
#include "kernel/quant.h"

#include <string.h>

struct lookup { /* arguments of embed_rows and gather_rows */
    const struct vec *vec;
    const struct tensor *out, *x;
    const struct weight *w;
    const int32_t *ids;
    uint64_t row_bytes;
    float scale;
};

/* Types of a KV cache have vector code; other types are decoded in plain C, which is fast enough
 * for one row per token. */
static void embed_rows(const void *arg, int begin, int end)
{
    const struct lookup *a = arg;

    for (int r = begin; r < end; r++) {
        const char *src = (const char *)a->w->data + (uint64_t)a->ids[r] * a->row_bytes;
        float *out = tensor_row(a->out, r);
        switch (a->w->type) {
        case DT_F32:
        case DT_F16:
        case DT_BF16:
        case DT_Q8_0: a->vec->load(a->w->type, out, src, a->w->cols); break;
        default: quant_decode_part(a->w->type, a->w->group, src, 0, a->w->cols, out);
        }
        if (a->scale != 1) a->vec->scale(out, out, a->scale, a->w->cols);
    }
}

/* Token ids are checked, because they index memory. */
void cpu_embed(struct backend *be, const struct tensor *out, const struct weight *w,
               const int32_t *ids, float scale)
{
    struct cpu *c = cpu_of(be);
    struct lookup a = { .vec = c->vec, .out = out, .w = w, .ids = ids, .scale = scale };

    a.row_bytes = weight_row_bytes(w);
    if ((!w->group && !quant_can_decode(w->type)) || !a.row_bytes ||
        (w->group && w->group->order)) {
        cpu_fail(c, E_UNSUPPORTED, "embed: cannot decode rows of %d elements of type %s", w->cols,
                 dtype_name(w->type));
        return;
    }
    for (int i = 0; i < out->rows; i++) {
        if (ids[i] >= 0 && ids[i] < w->rows) continue;
        cpu_fail(c, E_INVALID, "embed: token id %d: must be below the vocabulary size %d",
                 (int)ids[i], w->rows);
        return;
    }
    cpu_rows(c, out->rows, 4ll * out->rows * w->cols, embed_rows, &a);
}

static void gather_rows(const void *arg, int begin, int end)
{
    const struct lookup *a = arg;

    for (int r = begin; r < end; r++)
        memcpy(tensor_row(a->out, r), tensor_row(a->x, a->ids[r]),
               (size_t)a->out->cols * sizeof(float));
}

void cpu_gather(struct backend *be, const struct tensor *out, const struct tensor *x,
                const int32_t *rows)
{
    struct lookup a = { .out = out, .x = x, .ids = rows };

    cpu_rows(cpu_of(be), out->rows, (long long)out->rows * out->cols, gather_rows, &a);
}
