/* attend.h - attention over paged keys and values: one call, and the pieces it is cut into. */
#ifndef TERN_KERNEL_CPU_ATTEND_H
#define TERN_KERNEL_CPU_ATTEND_H

#include "base/par.h"
#include "kernel/backend.h"
#include "kernel/cpu/vec.h"

#define MAX_HEAD_DIM 1024

/* Keys or values of one layer. */
struct kvrows {
    enum dtype type;
    const char *base;
    size_t block_bytes, head_bytes, row_bytes;
    int dim;
};

static inline const void *kvrows_at(const struct kvrows *k, const int32_t *blocks, int head,
                                    int pos)
{
    return k->base + (size_t)blocks[pos / KV_BLOCK] * k->block_bytes +
           (size_t)head * k->head_bytes + (size_t)(pos % KV_BLOCK) * k->row_bytes;
}

/* A call of attend, checked. */
struct attend_job {
    const struct attend_opt *opt;
    const struct tensor *out, *q;
    const struct kvview *kv;
    const struct vec *vec;
    struct kvrows k, v;
    int group; /* query heads that share a KV head */
};

static inline const int32_t *attend_blocks(const struct attend_job *j, int seq)
{
    return j->kv->table + (size_t)seq * j->kv->table_stride;
}
/* The first position that a query at pos sees. */
static inline int attend_first(const struct attend_job *j, int pos)
{
    int w = j->opt->window, back = j->opt->bidirectional ? w / 2 : w - 1;
    return w > 0 && pos > back ? pos - back : 0;
}
/* One past the last position that token t of the batch sees. */
static inline int attend_end(const struct attend_job *j, int t)
{
    int pos = j->kv->pos[t], w = j->opt->window, end;
    if (!j->opt->bidirectional) return pos + 1;
    end = j->kv->seq_end[j->kv->seq[t]];
    return w > 0 && pos + w / 2 + 1 < end ? pos + w / 2 + 1 : end;
}

/* Plan and scratch, kept between calls; they grow at first need. flash NULL: attend_ref does the
 * work. */
struct attn;
struct flash;
struct attn *attn_open(struct par *par, const struct flash *flash);
void attn_close(struct attn *a); /* NULL is fine */
const struct flash *attn_flash(const struct attn *a);

/* The definition: one query head of one token; scores has room for its position + 1. */
void attend_ref(const struct attend_job *j, int token, int head, float *scores);
#endif
