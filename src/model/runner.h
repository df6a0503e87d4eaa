/* runner.h - the boundary between the engine and whatever computes its batches.
 *
 * The engine knows a runner by its limits and a handful of calls: start a flat batch (batch.h),
 * wait for its results, copy recurrent state, close. Everything behind them belongs to the runner:
 * weights, scratch, the memory of KV blocks and of recurrent state, devices, processes. The engine
 * keeps block ids, slot ids and reference counts only, and never looks behind this struct.
 *
 * Implementations embed a struct runner as their first member and fill it when they open:
 *   model/decoder.c     transformer and state space layers on one or two devices
 *   model/onnxrunner.c  an ONNX graph on the CPU
 *
 * One thread drives a runner: start and wait alternate, copy_state comes between a wait and the
 * next start. runner_devices may be called by any thread at any time. */
#ifndef TERN_MODEL_RUNNER_H
#define TERN_MODEL_RUNNER_H

#include "kernel/backend.h"
#include "model/batch.h"

/* Facts that do not change while the runner is open. */
struct runner_limits {
    int n_vocab;     /* token ids a batch may hold; columns of the logits */
    int n_vec;       /* numbers of a hidden row (batch.hidden) */
    int max_tokens;  /* of a batch */
    int max_seqs;    /* rows of a batch's block table */
    int max_table;   /* its stride at most: blocks of the longest sequence */
    int max_out;     /* rows of logits of a batch */
    int max_adjust;  /* logit adjustments of a batch's samples together */
    int n_blocks;    /* KV blocks: ids 0 to n_blocks - 1 */
    int n_slots;     /* slots of recurrent state: ids 0 to n_slots - 1; 0: the model has none */
    int min_chunk;   /* prefill tokens: fewer take a step almost as long */
    int warm_tokens; /* tokens of a first batch after which later ones run at full speed */
    int warm_output; /* tokens that the warm-up generates; 0: one */
    size_t
        block_bytes; /* of the keys and values of one KV block, as runner_read_block copies them */
    bool samples;    /* the runner samples tokens itself where it can (batch.samples) */
    bool bidirectional; /* all tokens of a text must come in one batch; there are no logits */
    bool shares_prefix; /* a full KV block depends on its tokens and those before it only, so that
                         * sequences with the same beginning can share it */
};

/* A device at work for a runner. Strings live as long as the runner. */
struct runner_device {
    const char *name, *detail; /* "cuda:0", "NVIDIA H200" */
    int n_layers;
    int n_experts;  /* layers whose routed experts are here, though the layers are not */
    bool has_stats; /* false: stats are zero, the device counts nothing */
    struct backend_stats stats;
};

struct runner {
    struct runner_limits lim;
    double pack_ms; /* time spent on bringing the weights into the devices' order */

    int (*start)(struct runner *r, const struct batch *b, struct err *e);
    int (*wait)(struct runner *r, const float **logits, struct err *e);
    void (*copy_state)(struct runner *r, int to, int from); /* NULL: lim.n_slots is 0 */
    /* NULL: lim.block_bytes is 0. */
    void (*read_block)(struct runner *r, int id, void *data);
    void (*write_block)(struct runner *r, int id, const void *data);
    int (*sync_blocks)(struct runner *r, struct err *e);
    int (*devices)(const struct runner *r, struct runner_device *out, int max);
    /* A runner with other processes: has one of them gone, and what to call by another thread when
     * that happens. NULL: there are none. */
    bool (*is_lost)(struct runner *r, struct err *e);
    void (*on_lost)(struct runner *r, void (*fn)(void *arg), void *arg);
    void (*close)(struct runner *r);
};

/* Begins a batch. It is checked against the limits first (E_INVALID). The batch's arrays must stay
 * unchanged until runner_wait, which must follow unless this call failed. A GPU works from here on;
 * the CPU works in runner_wait. */
static inline int runner_start(struct runner *r, const struct batch *b, struct err *e)
{
    return r->start(r, b, e);
}

/* Returns when the batch is done. *logits is [n_out][n_vocab] in the runner's memory, valid until
 * the next start; rows that were sampled by the runner (batch.samples) are not filled. */
static inline int runner_wait(struct runner *r, const float **logits, struct err *e)
{
    return r->wait(r, logits, e);
}

static inline int runner_run(struct runner *r, const struct batch *b, const float **logits,
                             struct err *e)
{
    int rc = runner_start(r, b, e);
    return rc != OK ? rc : runner_wait(r, logits, e);
}

/* Copies the recurrent state of slot `from` to slot `to`: saves a snapshot or restores one. */
static inline void runner_copy_state(struct runner *r, int to, int from)
{
    r->copy_state(r, to, from);
}

/* Copies the keys and values of a KV block to host memory, or from it: lim.block_bytes bytes, which
 * stay as they are until runner_sync_blocks returns. Between a wait and the next start. */
static inline void runner_read_block(struct runner *r, int id, void *data)
{
    r->read_block(r, id, data);
}
static inline void runner_write_block(struct runner *r, int id, const void *data)
{
    r->write_block(r, id, data);
}
static inline int runner_sync_blocks(struct runner *r, struct err *e)
{
    return r->sync_blocks(r, e);
}

/* Fills out for up to max devices; returns how many there are. */
static inline int runner_devices(const struct runner *r, struct runner_device *out, int max)
{
    return r->devices(r, out, max);
}

static inline void runner_close(struct runner *r) /* NULL is allowed */
{
    if (r) r->close(r);
}
#endif
