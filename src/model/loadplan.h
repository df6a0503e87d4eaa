/* loadplan.h - the one plan by which a model is opened.
 *
 * Everything that can be decided without reading weights is decided here, once and in this order:
 *
 *   loadplan_read   source → facts (hyper-parameters, or an ONNX graph's card)
 *   loadplan_make   options with their defaults → devices and layers on them → memory per device
 *   runner_open     weights, KV cache and scratch, as planned
 *
 * The pool's memory limit, `tern inspect`, /status and the load itself use the same plan: on the
 * CPU its bytes are exactly those that the backend counts after opening. The plan owns the source
 * and the devices and outlives every runner that was opened from it. One thread at a time uses
 * it. */
#ifndef TERN_MODEL_LOADPLAN_H
#define TERN_MODEL_LOADPLAN_H

#include "base/arena.h"
#include "base/buf.h"
#include "comm/gang.h"
#include "model/loadprogress.h"
#include "model/place.h"
#include "model/pooler.h"
#include "model/runner.h"
#include "model/shard.h"
#include "model/sizes.h"

enum model_task { TASK_GENERATE, TASK_EMBED, TASK_CLASSIFY };

/* What a model is, as far as the engine and its users need to know. */
struct model_facts {
    const char *arch; /* "llama", "onnx" */
    enum model_task task;
    int n_vocab, n_vec;
    int n_ctx;   /* trained context length */
    int max_ctx; /* the longest sequence that can run: learned positions; 0: no limit */
    bool bidirectional;
    struct pooler pooler;     /* how hidden rows become a vector */
    const struct str *labels; /* [n_labels] of a classifier */
    int n_labels;
    uint64_t n_params;
};

/* Options of a load. 0 (kv_type: DT_NONE) means the default. Defaults of n_ctx, kv_tokens and
 * max_seqs depend on the memory that is free: sizes.h. */
struct load_opt {
    struct backend_opt backend;
    struct sizes_room room; /* memory for the defaults */
    int n_ctx;              /* tokens of a sequence */
    int kv_tokens;          /* of the whole KV cache; at least one context */
    int max_batch;          /* tokens of a step; default: 512, on a GPU 2048 */
    int max_seqs;           /* sequences of a step */
    int max_out;            /* rows of logits of a step; default: max_seqs */
    enum dtype kv_type;     /* default: F16, with the reference kernels F32 */
    /* Devices that are open already, which become the plan's; NULL: backend says which (tests). */
    const struct place *place;
    bool no_prefix; /* prefixes are not shared: no memory for snapshots of recurrent state */
    bool allow_nan; /* weights may be NaN or infinite: they are not looked for (scan.h) */
    struct loadprogress progress;   /* of the weights */
    struct shard_opt shard;         /* the part that this process has; tp 0: all of the model */
    struct gang_source gang_source; /* of the leader, where the gang is not there yet */
    struct gang *gang; /* of the leader (parallel.h); NULL: no other members. The plan's from
                        * loadplan_make on, and then the runner's */
};

/* Memory on one device, in bytes. */
struct load_memory {
    uint64_t mapped;  /* weights that are read where the file has them */
    uint64_t weights; /* weights that are allocated */
    uint64_t kv;      /* KV blocks and recurrent state */
    uint64_t scratch; /* activations, logits and batch arrays of the largest step */
    uint64_t backend; /* scratch that the backend takes for itself, known once it is open; CPU: 0 */
    uint64_t tables;  /* host: the vocabulary, and activations in the form of the kernels; about */
};

struct load_bytes { /* sums over the devices */
    uint64_t weights, kv, scratch;
};

struct loader;
struct source;
struct hparams;
struct weight_list;
struct onnxrunner;
struct scan;

struct loadplan {
    const struct loader *loader; /* how this kind of model is planned and opened */
    struct arena arena;
    /* loadplan_read */
    const char *path; /* as it was given */
    struct source *source;
    struct model_facts facts;
    struct hparams *hp;          /* of a decoder; in the arena */
    struct weight_list *weights; /* of a decoder; in the arena */
    struct shard *shard;         /* of a decoder: its part; then hp and weights are the part's */
    struct onnxrunner *graph;    /* of an ONNX model, until runner_open takes it */
    /* loadplan_make */
    struct load_opt opt; /* effective: no field means a default any more */
    struct sizes_out sizes;
    const char *sizes_text; /* how context and KV cache were chosen, for people; in the arena */
    int n_blocks;           /* KV blocks */
    int n_saved;            /* slots of recurrent state for snapshots, behind max_seqs others */
    struct place place;
    struct load_memory memory[PLACE_DEVICES]; /* of place.shares */
    /* A device has too little memory now, with the numbers: E_DEVICE_MEMORY, and the rest of the plan
     * is as if it had enough. Who can free place.lack bytes of it plans again; runner_open fails. */
    struct err refused;
    struct scan *scan; /* of a large decoder, from runner_open on; NULL: none */
};

/* path: see source_open. */
int loadplan_read(struct loadplan **out, const char *path, struct err *e);
int loadplan_make(struct loadplan *p, const struct load_opt *opt, struct err *e);
void loadplan_close(struct loadplan *p); /* NULL is allowed */

struct load_bytes loadplan_bytes(const struct loadplan *p);
/* "cuda:0 (NVIDIA H200)", or "cpu (avx2, 8 threads): 12 layers, cuda:0 (…): 20 layers", or
 * "cpu (avx2, 8 threads): the experts of 32 layers, cuda:0 (…): 32 layers". */
void loadplan_describe_devices(const struct loadplan *p, struct buf *out);
const char *model_task_name(enum model_task t); /* "generate", "embed", "classify" */

/* Loads the weights and opens the runner. Once per plan. */
int runner_open(struct runner **out, struct loadplan *p, struct err *e);

/* For the loaders: chooses the sizes and puts them into the plan. in: what the loader knows of
 * memory; the rest is filled in. */
int loadplan_choose_sizes(struct loadplan *p, struct sizes_in *in, struct err *e);

/* One per kind of runner; each call fills its part of the plan. */
struct loader {
    int (*read)(struct loadplan *p, struct err *e);  /* facts */
    int (*place)(struct loadplan *p, struct err *e); /* sizes, place and memory */
    int (*open)(struct runner **out, struct loadplan *p, struct err *e);
    void (*release)(struct loadplan *p); /* what read and place left in the plan; may be NULL */
};
extern const struct loader decoder_loader; /* decoderload.c */
extern const struct loader onnx_loader;    /* onnxrunner.c */
#endif
