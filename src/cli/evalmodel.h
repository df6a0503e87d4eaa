/* evalmodel.h - what the ways of `tern eval` share: a model opened to be run batch by batch. */
#ifndef TERN_CLI_EVALMODEL_H
#define TERN_CLI_EVALMODEL_H

#include "base/buf.h"
#include "format/source.h"
#include "kv/chain.h"
#include "model/decoder.h"
#include "model/place.h"

struct eval {
    struct source *src;
    struct place place;
    struct model *model;
    struct block_pool *pool;
    struct decoder *dec;
};

struct eval_opt {
    const char *model;   /* a folder or a file */
    const char *golden;  /* logits: NULL is golden.safetensors in the folder */
    const char *file;    /* ppl: the text */
    const char *device;  /* NULL: the CPU */
    bool reference;      /* plain C kernels and F32 KV */
    const char *kv_name; /* type of keys and values; NULL: logits F32, ppl F16 */
    enum dtype kv_type;  /* and that as a type */
    int n_threads, gpu_layers;
    int n_ctx;        /* ppl: tokens of a window */
    uint64_t n_chars; /* ppl: of the text; 0: all */
    int n_chunks;     /* ppl: windows at most; 0: all */
    bool llama;       /* ppl: scored as llama-perplexity does */
    /* ppl: called when the model is open, and after each batch; NULL: nobody listens */
    int (*opened)(void *arg, struct eval *v, struct err *e);
    int (*scored)(void *arg, int n_windows, int of, struct err *e);
    void *arg;
};

/* Source, backend and model; then, when the shape of the work is known, KV and decoder. */
int eval_open(struct eval *v, const struct eval_opt *opt, struct err *e);
int eval_prepare(struct eval *v, const struct eval_opt *opt, struct decoder_opt dec, int n_blocks,
                 struct err *e);
void eval_release(struct eval *v); /* a zeroed one is fine */

struct eval_ppl_result {
    double ppl;
    uint64_t n_tokens; /* that were scored */
    double seconds;
};
int eval_ppl_run(const struct eval_opt *opt, struct eval_ppl_result *out, struct err *e);

/* Each writes its JSON line into out. */
int eval_logits(const struct eval_opt *opt, struct buf *out, struct err *e);
int eval_ppl(const struct eval_opt *opt, struct buf *out, struct err *e);
#endif
