/* evalmodel.h - a model that is run batch by batch without an engine, for eval, imatrix and
 * quantize --ppl. */
#ifndef TERN_CLI_EVALMODEL_H
#define TERN_CLI_EVALMODEL_H

#include "base/buf.h"
#include "cli/cmd.h"
#include "kv/chain.h"
#include "cli/gangflags.h"
#include "model/loadplan.h"

struct evalmodel {
    struct loadplan *plan;
    struct runner *runner;
    struct model *model; /* the runner's */
    struct block_pool *pool;
    bool vectors; /* set before it is opened: hidden rows are wanted, not logits */
};

/* The shape of the batches that are run. */
struct eval_shape {
    int max_tokens; /* of a batch; all of them may want logits */
    int n_seqs;     /* sequences of a batch */
    int n_blocks;   /* KV blocks of each */
};

struct eval_opt {
    const char *model;   /* a folder or a file */
    const char *golden;  /* logits: NULL is golden.safetensors in the folder */
    const char *file;    /* ppl: the text */
    const char *device;  /* NULL: the CPU */
    const char *numa;    /* memory nodes of the CPU; NULL: "auto" */
    const char *isa;     /* CPU kernels; NULL: TERN_ISA, or the best */
    bool allow_nan;      /* weights may be NaN or infinite */
    bool reference;      /* plain C kernels and an F32 KV cache */
    const char *kv_name; /* --kv-type; NULL: F32 for logits, F16 for ppl */
    enum dtype kv_type;  /* the same as a type */
    int n_threads, gpu_layers;
    struct cmd_experts experts;
    struct gangflags gang; /* members; tp 0: this process alone */
    int n_ctx;             /* ppl: tokens of a window */
    uint64_t n_chars;      /* ppl: characters of the text at most; 0: all */
    int n_chunks;          /* ppl: windows at most; 0: all */
    bool llama;            /* ppl: scored as llama.cpp's llama-perplexity does */
    /* ppl: called when the model is open, and after each window; NULL: not called */
    int (*opened)(void *arg, struct evalmodel *v, struct err *e);
    int (*scored)(void *arg, int n_windows, int of, struct err *e);
    void *arg;
};

/* Reads the model's files. A model without logits is E_UNSUPPORTED. */
int evalmodel_open(struct evalmodel *v, const struct eval_opt *opt, struct err *e);
/* Loads the model, once the shape of the batches is known. */
int evalmodel_prepare(struct evalmodel *v, const struct eval_opt *opt, struct eval_shape shape,
                      struct err *e);
/* After the last batch: E_DAMAGED if the model's files have changed since, or have a NaN. */
int evalmodel_check(const struct evalmodel *v, struct err *e);
void evalmodel_release(struct evalmodel *v); /* a zeroed one is fine */

struct eval_ppl_result {
    double ppl;
    uint64_t n_tokens; /* scored */
    double seconds;
};
int eval_ppl_run(const struct eval_opt *opt, struct eval_ppl_result *out, struct err *e);

/* Each appends its result as a JSON line. */
int eval_logits(const struct eval_opt *opt, struct buf *out, struct err *e);
int eval_ppl(const struct eval_opt *opt, struct buf *out, struct err *e);
/* The vectors of an encoder, or the scores of a reranker. */
int eval_vectors(const struct eval_opt *opt, bool rerank, struct buf *out, struct err *e);
#endif
