/* attend.h - attention over the paged KV cache: arguments of one call, and which keys a token sees. */
#ifndef TERN_KERNEL_CPU_ATTEND_H
#define TERN_KERNEL_CPU_ATTEND_H

#include "base/par.h"
#include "kernel/backend.h"
#include "kernel/cpu/vec.h"

#define MAX_HEAD_DIM 1024 /* elements of a head, keys and values */

/* The keys or the values of one layer. */
struct kvrows {
    enum dtype type;
    const char *base;                          /* block 0 */
    size_t block_bytes, head_bytes, row_bytes; /* strides: [block][head][position in block] */
    int dim;                                   /* elements per row */
};

/* The row of position pos. blocks: the sequence's block table. */
static inline const void *kvrows_at(const struct kvrows *k, const int32_t *blocks, int head,
                                    int pos)
{
    return k->base + (size_t)blocks[pos / KV_BLOCK] * k->block_bytes +
           (size_t)head * k->head_bytes + (size_t)(pos % KV_BLOCK) * k->row_bytes;
}

/* One call of attend, with its arguments checked. */
struct attend_job {
    const struct attend_opt *opt;
    const struct tensor *out, *q;
    const struct kvview *kv;
    const struct vec *vec;
    struct kvrows k, v;
    int group; /* query heads per KV head */
};

static inline const int32_t *attend_blocks(const struct attend_job *j, int seq)
{
    return j->kv->table + (size_t)seq * j->kv->table_stride;
}
/* The first position that a query at pos attends to: the start of its window, or of its chunk. */
static inline int attend_first(const struct attend_job *j, int pos)
{
    int w = j->opt->window, back = j->opt->bidirectional ? w / 2 : w - 1;
    if (j->opt->chunk > 0) return pos / j->opt->chunk * j->opt->chunk;
    return w > 0 && pos > back ? pos - back : 0;
}
/* Has the indexer left the key to the token, where it selects keys? */
static inline bool attend_chosen(const struct attend_job *j, int token, int head, int key)
{
    const struct key_choice *c = j->opt->keys;
    size_t row;
    if (!c) return true;
    row = (size_t)token * (size_t)c->n_heads +
          (size_t)(c->n_heads > 1 ? head / (j->opt->n_heads / c->n_heads) : 0);
    return c->bits[row * c->stride + (size_t)key / 32] >> (key % 32) & 1;
}
/* One past the last position that token t of the batch attends to. */
static inline int attend_end(const struct attend_job *j, int t)
{
    int pos = j->kv->pos[t], w = j->opt->window, end;
    if (!j->opt->bidirectional) return pos + 1;
    end = j->kv->seq_end[j->kv->seq[t]];
    return w > 0 && pos + w / 2 + 1 < end ? pos + w / 2 + 1 : end;
}

/* Scratch memory of attention, kept between calls; it grows on demand. flash NULL: attend_ref
 * computes everything. */
struct attn;
struct flash;
int attn_open(struct attn **out, struct par *par, const struct flash *flash, struct err *e);
void attn_close(struct attn *a); /* NULL is allowed */
const struct flash *attn_flash(const struct attn *a);
/* Memory of at least this many floats for every thread, attn_scratch_stride apart; NULL: there is
 * none. Until the next call of attention. */
float *attn_scratch(struct attn *a, size_t floats);
size_t attn_scratch_stride(const struct attn *a);

/* The reference: one query head of one token. scores: scratch, a float for each position up to
 * attend_end. */
void attend_ref(const struct attend_job *j, int token, int head, float *scores);
#endif
