/* record.h - the operations that a backend was asked for since its last launch, in order.
 *
 * The operations of the GPU's backend table do not launch anything: each appends itself to a
 * record. At flush or sync the record is fused (record_fuse), then launched operation by operation
 * (launch.cu), or a captured graph of an equal record is replayed (graphs.h).
 *
 * Operations are data: ops.inc lists them with their fields, and this header, record.c, fuse.c and
 * launch.cu derive the rest from that list. A recorded operation is a header and its fields, after
 * the one before it in one byte string; `ops` indexes it. No struct in it has padding, so two
 * records are equal exactly if their byte strings (operations, jobs, views) are equal.
 *
 * Plain C without a device: this header, record.c, record_ops.c, fuse.c and graphs.c call no CUDA
 * function and are tested on any machine (tests/ops/test_fuse.c, test_record.c).
 *
 * Ownership: arguments are copied. Weights, the layers of a view and all device memory are borrowed
 * until the record is cleared. All memory is allocated by record_init; nothing is allocated while
 * recording. One thread drives a backend, so nothing here locks. */
#ifndef TERN_KERNEL_CUDA_RECORD_H
#define TERN_KERNEL_CUDA_RECORD_H

#include "kernel/backend.h"

/* clang-format off */
enum op_kind {
#define OP(NAME, name) OP_##NAME,
#include "kernel/cuda/ops.inc"
    OP_KINDS
};

enum op_norm_kind { OP_NORM_NONE, OP_NORM_RMS, OP_NORM_LAYER };

#define OP(NAME, name) struct op_##name {
#define PART(name) struct op_##name {
#define FIELD(name, role, type, field) type field;
#define END(name) };
#include "kernel/cuda/ops.inc"
/* clang-format on */

/* ---- descriptors ---- */

/* How an operation uses a field; ops.inc says what each means. */
enum op_role {
    ROLE_READ,
    ROLE_WRITTEN,
    ROLE_WRITTEN_DENSE,
    ROLE_ADDED,
    ROLE_UPDATED,
    ROLE_READ_BYTES,
    ROLE_WRITTEN_BYTES,
    ROLE_JOBS,
    ROLE_ADDRESS, /* from here on fusion looks at none of them */
    ROLE_VALUE,
    ROLE_FUSED,
    ROLE_PAD
};

struct op_field {
    const char *name;
    enum op_role role;
    uint16_t at, size; /* bytes, in the operation's struct */
    uint16_t aux;      /* where the field is that the role refers to: dense, add, bytes, n_jobs */
};

struct op_desc {
    const char *name; /* "gate_rows" */
    const struct op_field *fields;
    int n_fields;
    size_t size; /* of the operation's struct */
};

extern const struct op_desc op_descs[OP_KINDS];
/* Of the structs inside: op_desc_job, op_desc_tensor, ... */
#define PART(name) extern const struct op_desc op_desc_##name;
#include "kernel/cuda/ops.inc"

/* ---- a record ---- */

/* An entry of the index. u points at the fields, in the record's byte string. */
struct op {
    enum op_kind kind;
    bool absorbed; /* another operation does this one's work too */
    union {
        void *any;
#define OP(NAME, name) struct op_##name *name;
#include "kernel/cuda/ops.inc"
    } u;
};

struct record {
    struct op *ops;
    char *bytes; /* headers and fields of the operations */
    struct op_job *jobs;
    struct op_view *views;
    int n, cap, n_jobs, cap_jobs, n_views, cap_views;
    size_t n_bytes, cap_bytes;
    int n_tokens; /* the most rows that any operation's activations had */
    bool fused;   /* record_fuse was called */

    /* Set by the owner. */
    int max_tokens;   /* rows that scratch memory was reserved for */
    int index_keys;   /* positions that indexers can score in scratch memory */
    int share_tokens; /* views of at most so many tokens get a max_pos that many steps share */
    /* Launches and clears the record: there is no room for the next operation. */
    void (*make_room)(void *device);
    void *device;

    /* The first operation that was refused since the owner last took the error. */
    int rc;
    char msg[256];
};

int record_init(struct record *r, int cap, struct err *e);
void record_release(struct record *r); /* a zeroed one is allowed */
void record_clear(struct record *r);   /* keeps rc and msg */
bool record_has_room(const struct record *r, int n_jobs);

/* Appends an operation and returns its fields, which the caller fills completely. n_rows: of its
 * activations. There is room for it. */
void *record_append(struct record *r, enum op_kind kind, int n_rows);
/* Fields for an operation that is not in the index: record_fuse puts it in the place of another. */
void *record_new_fields(struct record *r, enum op_kind kind);

/* ---- equality ---- */

/* Equal records have equal hashes. Of an unfused record. */
uint64_t record_hash(const struct record *r);
/* What record_save writes and record_equals compares: all operations, jobs and views. */
size_t record_saved_bytes(const struct record *r);
void record_save(const struct record *r, void *to);
/* saved, n: what record_save wrote of another record, before that was fused. */
bool record_equals(const struct record *r, const void *saved, size_t n);

/* ---- recording (record_ops.c) ---- */

/* Rows of a head's recurrent state that the kernels of cu_recur.cu hold; wide: every row has a
 * decay factor of its own. */
enum { RECUR_MAX_ROWS = 256, RECUR_MAX_ROWS_WIDE = 128 };
/* Limits of cu_family.cu, cu_index.cu and attend_pick.cu: residual streams of hyper-connections,
 * dimensions of an index key, of an attention head. */
enum { HYPER_MAX_STREAMS = 64, INDEX_MAX_DIM = 512, PICK_MAX_DIM = 1024 };

/* Tokens up to which a norm, the router's product and its choice become one kernel (moe_route.cu). */
enum { ROUTER_TOKENS = 8 };

/* Fills in the operations of a backend table. be->self is the record. */
void record_fill_table(struct backend *be);
/* dst or src is the pinned host memory. There is room. */
void record_upload(struct record *r, void *dst, const void *src, size_t bytes);
void record_download(struct record *r, void *dst, const void *src, size_t bytes);

/* ---- fusion (fuse.c) ---- */

/* Replaces neighbours by one operation that does the work of both. last: this is the end of a step,
 * and intermediates are not read after it. */
void record_fuse(struct record *r, bool last);

/* How operation o uses the n bytes of device memory at p: it reads some of them, or it writes all
 * of them without reading any, or neither. */
enum op_use { USE_NONE, USE_READ, USE_OVERWRITE };
enum op_use record_use(const struct record *r, const struct op *o, const void *p, size_t n);
#endif
