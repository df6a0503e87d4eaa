/* record_impl.h - what the files that record operations share (record_ops.c, record_family.c). */
#ifndef TERN_KERNEL_CUDA_RECORD_IMPL_H
#define TERN_KERNEL_CUDA_RECORD_IMPL_H

#include "kernel/cuda/record.h"

/* push_add(r, n_rows): the fields of a new OP_ADD, and so on. */
#define OP(NAME, name)                                                        \
    static inline struct op_##name *push_##name(struct record *r, int n_rows) \
    {                                                                         \
        return record_append(r, OP_##NAME, n_rows);                           \
    }
#include "kernel/cuda/ops.inc"

/* The record, with room for one operation. May launch and clear it, so indices into it that were
 * taken before are void. */
static inline struct record *room_for(struct backend *be, int n_jobs)
{
    struct record *r = be->self;

    if (!record_has_room(r, n_jobs)) r->make_room(r->device);
    return r;
}

static inline struct op_tensor tensor_ref(const struct tensor *t)
{
    return (struct op_tensor){ t->data, t->stride, t->rows, t->cols };
}

/* data NULL: no tensor. */
static inline struct op_tensor optional_ref(const struct tensor *t)
{
    return t ? tensor_ref(t) : (struct op_tensor){ 0 };
}

/* Keeps the first refusal; the next sync reports it. */
void record_refuse(struct backend *be, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The layer of a view, with its content. */
struct op_kv record_kv_ref(struct record *r, const struct kvview *kv, int layer);
/* Operations that single model families need; called by record_fill_table. */
void record_fill_family(struct backend *be);
#endif
