/* backend.h - a device as a table of operations over whole batches.
 *
 * Calls are in order and may be asynchronous: none of them returns a result to the host.
 * Host arrays go in by `put`, results come out by `get`, both valid for the host only after
 * `sync`, which also tells the first failure of any call since the last one. A step
 * allocates nothing: memory comes from `alloc` when an engine opens.
 *
 * One thread drives a backend. Everything a call is handed (tensors, weights, views) must
 * stay in place until the next sync. */
#ifndef TERN_KERNEL_BACKEND_H
#define TERN_KERNEL_BACKEND_H

#include "base/err.h"
#include "kernel/kvview.h"
#include "kernel/samplerow.h"
#include "kernel/stateview.h"
#include "kernel/tensor.h"

struct backend;

enum mem_kind { MEM_WEIGHTS, MEM_KV, MEM_SCRATCH, MEM_KINDS };

enum act {
    ACT_SILU,
    ACT_GELU,
    ACT_GELU_TANH,
    ACT_RELU,
    ACT_RELU2,
    ACT_GELU_QUICK,
    ACT_SIGMOID,
    ACT_SWIGLU_CLIP, /* quick gelu of a gate of at most 7, times up in [-7, 7] plus 1 (gpt-oss) */
    ACT_NONE         /* x itself: of gates that multiply as they are */
};

enum rope_style {
    ROPE_HALF, /* pairs (i, i + n/2): Hugging Face's order, GGUF calls it neox */
    ROPE_PAIR  /* pairs (2i, 2i + 1): GGUF's order for llama */
};

/* One product of a `linear` call: out = W x + bias, or out += W x + bias. */
struct linear {
    struct tensor out;
    const struct weight *w;
    const float *bias; /* [w->rows] or NULL */
    bool add;
    float scale; /* of the product before adding; 0 means 1 */
};

struct attend_opt {
    int n_heads, n_kv_heads, head_dim, head_dim_v;
    float scale;
    float softcap;       /* 0: none; else cap * tanh(score / cap) */
    int window;          /* 0: none; else only the last `window` positions, itself included */
    bool bidirectional;  /* not causal: a token sees its whole sequence (kvview.seq_end), with a
                          * window  those at most window / 2 away */
    const float *sinks;  /* [n_heads] or NULL: an extra logit that takes weight and gives nothing */
    const float *slopes; /* [n_heads] or NULL: ALiBi, slope * (key pos - query pos) */
};

/* How a token's experts are chosen from its scores (logits), and what weight each gets. */
enum route_kind {
    ROUTE_SOFTMAX,     /* softmax of all; the largest; their shares */
    ROUTE_TOP_SOFTMAX, /* the largest; softmax of those */
    ROUTE_SIGMOID,     /* sigmoid of each; the largest, bias added for the choice only */
    ROUTE_SPARSEMIXER  /* two; each a softmax of those not far behind it (phimoe) */
};

/* What a model may have at most. */
enum { MOE_MAX_USED = 64, MOE_MAX_EXPERTS = 1024, MOE_MAX_GROUPS = 64 };

struct route_opt {
    enum route_kind route;
    int n_used;
    bool norm;                   /* weights divided by their sum */
    float scale;                 /* then times this */
    const float *bias;           /* [experts] or NULL: counts in the choice, not in the weight */
    int n_groups, n_groups_used; /* 0: none; else only experts of the best groups can be chosen, */
    int group_top;               /* where a group counts as the sum of its so many best */
    float jitter;                /* sparsemixer */
};

/* Feed-forward blocks of which each token has a few. The scratch is the caller's: a row for every
 * choice. */
struct experts_opt {
    int n, n_used;
    const struct weight *gate, *up, *down; /* [n] each; gate NULL: plain blocks */
    const float *b_gate, *b_up, *b_down;   /* [n][rows], or NULL */
    enum act act;
    float scale;                  /* of the sum */
    bool add;                     /* out += instead of out = */
    struct tensor xs, hs, us, ys; /* [tokens * n_used][in, wide, wide, out] */
    int32_t *order;               /* [2 * tokens * n_used + n + 1] */
};

/* out[:, h * out_step ...] = W[h] x[:, h * x_step ...] for each of w->n heads; behind it, `tail`
 * numbers that stand behind those multiplied are passed on. */
struct linear_heads_opt {
    const struct weight *w;
    int x_step, out_step, tail;
};

/* A causal convolution over the tokens of each run, channel by channel. */
struct conv_opt {
    const float *w;    /* [k][cols], the oldest token's row first */
    const float *bias; /* [cols] or NULL */
    int k;             /* taps; k - 1 inputs are kept in the state */
    bool silu;         /* of the result */
};

/* A selective scan: for every head, h = e^(dt a) h + dt b x and y = c h + d x, token by token. */
struct scan_in {
    struct tensor x;    /* [n_tokens][n_heads * head_dim] */
    struct tensor dt;   /* [n_tokens][n_heads], before bias and softplus; not kept */
    struct tensor b, c; /* [n_tokens][n_groups * n_state] */
};
struct scan_opt {
    int n_heads, head_dim, n_groups, n_state;
    bool wide;      /* a has a number for every row of the state; head_dim and n_groups are 1 */
    const float *a; /* below 0: [n_heads]; wide: [n_state][n_heads] */
    const float *d, *dt_bias; /* [n_heads] */
    float dt_min, dt_max;     /* what softplus(dt + dt_bias) is kept between */
};

/* The gated delta rule: for every head, h = e^g h; h += k beta (v - k h) and y = q h, token by
 * token, with g = a softplus(alpha + dt_bias), beta = sigmoid(beta). Heads share the queries and
 * keys of n_k_heads. */
struct delta_in {
    struct tensor q, k;        /* [n_tokens][n_k_heads * dim_k] */
    struct tensor v;           /* [n_tokens][n_heads * dim_v] */
    struct tensor alpha, beta; /* [n_tokens][n_heads]; not kept */
};
struct delta_opt {
    int n_heads, n_k_heads, dim_k, dim_v;
    const float *a, *dt_bias; /* [n_heads]; a is below 0 */
    float q_scale, k_scale;   /* of queries and keys */
};

/* The largest step that will come: what a backend takes its own memory for. */
struct backend_limits {
    int max_tokens, max_seqs, max_out;
    int max_cols, max_rows; /* the widest input and output of any product but the head's */
    int n_vocab;
    int n_heads, head_dim; /* the largest of any layer, keys' and values' */
    int max_adjust;        /* adjustments of all picks of a step */
};

/* What a device tells of itself; 0: nothing, or not known. */
struct backend_stats {
    uint64_t init_ns; /* to open it */
    uint64_t read_ns, pack_ns,
        upload_ns;             /* to take weights over: out of the file, into its order, to it */
    uint64_t busy_ns;          /* it worked so long in all */
    uint64_t bytes[MEM_KINDS]; /* of its memory, by who asked */
    uint64_t graph_bytes,
        library_bytes; /* what graphs of steps and what libraries took for themselves */
    uint64_t free_bytes, total_bytes; /* of the whole device, when last looked at */
    uint64_t n_steps, n_graphs,
        n_replays; /* so far: steps, those kept as graphs, those that were one */
};

struct backend {
    const char *name; /* "cpu", "cuda:0" */
    char detail[96];  /* "avx512+vnni+amx, 2 threads" */
    void *self;
    size_t used_bytes[MEM_KINDS];
    uint64_t n_allocs; /* times memory was taken: a step adds none */

    /* memory: 64-byte aligned at least; NULL never comes without an error */
    int (*alloc)(struct backend *be, void **out, size_t bytes, enum mem_kind kind, struct err *e);
    void (*free)(struct backend *be, void *p, size_t bytes, enum mem_kind kind);
    void (*put)(struct backend *be, void *dst, const void *src, size_t bytes);
    void (*get)(struct backend *be, void *dst, const void *src, size_t bytes);
    /* From its own memory to its own. NULL: put does that too. */
    void (*copy)(struct backend *be, void *dst, const void *src, size_t bytes);
    /* A result that only an operation of the same step was to read (what a norm hands a product,
     * the up of an activation) may never be written: read such memory before sync or not at all. */
    int (*sync)(struct backend *be, struct err *e);
    /* Begins what was asked for so far and does not wait for it; whole: that is a step and all of
     * it. What was said of results that are not written is true from here on too. NULL: operations
     * are carried out when asked for. */
    void (*flush)(struct backend *be, bool whole);
    /* Waits until no more than so many (at most 3) of the flushes since the last sync are under
     * way. With flush. */
    void (*throttle)(struct backend *be, int ahead);
    int whole_tokens; /* with flush: steps of up to so many tokens are best flushed whole */
    /* Any thread, at any time. NULL: it has nothing to tell. */
    void (*stats)(const struct backend *be, struct backend_stats *out);
    /* Host memory that get fills fastest. NULL: any is as good. */
    int (*host_alloc)(struct backend *be, void **out, size_t bytes, struct err *e);
    void (*host_free)(struct backend *be, void *p, size_t bytes);
    /* Before the first step, and once: memory for the largest. NULL: it needs none of its own. */
    int (*reserve)(struct backend *be, const struct backend_limits *lim, struct err *e);
    /* Bytes that could still be taken, less a margin that others may need. NULL: as many as the
     * machine has. */
    uint64_t (*available_bytes)(struct backend *be);
    void (*close)(struct backend *be);

    /* Takes a weight over: uploads it, repacks it, or keeps reading the mapped file. May be
     * called for many weights before one weights_finish, which does the work in parallel. */
    int (*weight_put)(struct backend *be, struct weight *w, struct err *e);
    int (*weights_finish)(struct backend *be, struct err *e);
    void (*weight_drop)(struct backend *be, struct weight *w);
    bool (*weight_supported)(struct backend *be,
                             enum dtype t); /* can linear and embed read this type? */

    /* rows: out[i] = W[ids[i]] * scale */
    void (*embed)(struct backend *be, const struct tensor *out, const struct weight *w,
                  const int32_t *ids, float scale);
    /* out[i] = x[rows[i]] for out->rows rows */
    void (*gather)(struct backend *be, const struct tensor *out, const struct tensor *x,
                   const int32_t *rows);

    /* out = x / rms(x) * w, in rows of x->cols; w NULL: no weight. Heads: reshape the tensor. */
    void (*rmsnorm)(struct backend *be, const struct tensor *out, const struct tensor *x,
                    const float *w, float eps);
    /* out = (x - mean) / std * w + b; w, b may be NULL */
    void (*layernorm)(struct backend *be, const struct tensor *out, const struct tensor *x,
                      const float *w, const float *b, float eps);
    /* The same for n_heads heads of head_dim inside every row of x, in place, one weight for all
     * heads (w_stride 0) or each its own (w_stride = head_dim). */
    void (*headnorm)(struct backend *be, const struct tensor *x, int n_heads, int head_dim,
                     const float *w, int w_stride, float eps);

    /* Layer norm of each head, w and b [head_dim] (w_stride 0) or each head its own; b may be NULL.
     * NULL: it has none, and models that need one are refused. */
    void (*headnorm_layer)(struct backend *be, const struct tensor *x, int n_heads, int head_dim,
                           const float *w, const float *b, int w_stride, float eps);

    /* All products share x; the backend quantizes it once. */
    void (*linear)(struct backend *be, const struct tensor *x, const struct linear *jobs,
                   int n_jobs);

    /* table[i] = n_rot/2 pairs (cos, sin) * mscale of pos[i] * freq[j]; made once a step per rotary
     * kind */
    void (*rope_table)(struct backend *be, const struct tensor *table, const int32_t *pos,
                       const float *freq, int n_rot, float mscale);
    /* Turns the first n_rot numbers of each of n_heads heads in every row, in place. */
    void (*rope)(struct backend *be, const struct tensor *x, int n_heads, int head_dim, int n_rot,
                 const struct tensor *table, enum rope_style style);

    /* k [n_tokens][n_kv_heads * head_dim], v likewise, into their blocks. */
    void (*kv_put)(struct backend *be, const struct kvview *kv, int layer, const struct tensor *k,
                   const struct tensor *v);
    /* out [n_tokens][n_heads * head_dim_v]; causal, unless bidirectional: each token sees its own
     * sequence up to its position. */
    void (*attend)(struct backend *be, const struct tensor *out, const struct tensor *q,
                   const struct kvview *kv, int layer, const struct attend_opt *opt);

    /* out = act(gate) * up; up NULL: out = act(gate). out may be one of them. */
    void (*act)(struct backend *be, const struct tensor *out, const struct tensor *gate,
                const struct tensor *up, enum act act);
    void (*add)(struct backend *be, const struct tensor *x, const struct tensor *y,
                float scale); /* x += scale * y */
    void (*scale)(struct backend *be, const struct tensor *x, float scale);
    void (*softcap)(struct backend *be, const struct tensor *x,
                    float cap); /* x = cap * tanh(x / cap) */
    /* The rest may be NULL: models that need them are refused. */
    void (*clamp)(struct backend *be, const struct tensor *x,
                  float limit); /* x into [-limit, limit] */
    void (*gate_rows)(struct backend *be, const struct tensor *x,
                      const struct tensor *s); /* row *= sigmoid(s[row]) */

    /* ids and weights [tokens][n_used]: each token's experts by its row of logits, the best first.
     */
    void (*route)(struct backend *be, int32_t *ids, float *weights, const struct tensor *logits,
                  const struct route_opt *opt);
    /* out = (+) scale * sum over the token's experts of weight * down(act(gate x) * up x) */
    void (*experts)(struct backend *be, const struct tensor *out, const struct tensor *x,
                    const int32_t *ids, const float *weights, const struct experts_opt *opt);

    /* Each head's product with a matrix of its own. NULL: no model that needs it runs. */
    void (*linear_heads)(struct backend *be, const struct tensor *out, const struct tensor *x,
                         const struct linear_heads_opt *opt);
    /* Operations of recurrent layers, each on its state of `layer`. A backend that has none of one
     * (NULL) runs no model that needs it. out is none of the inputs. */
    void (*conv)(struct backend *be, const struct tensor *out, const struct tensor *x,
                 const struct stateview *st, int layer, const struct conv_opt *opt);
    void (*scan)(struct backend *be, const struct tensor *out, const struct scan_in *in,
                 const struct stateview *st, int layer, const struct scan_opt *opt);
    void (*delta)(struct backend *be, const struct tensor *out, const struct delta_in *in,
                  const struct stateview *st, int layer, const struct delta_opt *opt);

    /* ids[i] = the token that picks[i] draws of its row of logits, whose cols are the tokens that
     * may be drawn; -1: none of them is a number. All in the backend's memory. NULL: the host
     * draws, from logits that it gets. */
    void (*sample)(struct backend *be, int32_t *ids, const struct tensor *logits,
                   const struct sample_row *picks, int n_picks, const struct logit_adjust *adjust);
};

struct backend_opt {
    const char *device; /* NULL or "cpu"; "cuda", "cuda:1": by tern-cuda.so */
    int n_threads;      /* 0: physical cores */
    bool reference;     /* plain C kernels, F32 throughout: the definition */
    bool profile;       /* a GPU: tell at the end which operation took how long */
    int gpu_layers;     /* a GPU: the last so many layers lie there; 0: as many as fit. See
                           model/place.h */
    bool vram_only;     /* a GPU: all of them, or it does not open */
};

/* A device's share of a model: so many of its layers, in order. */
struct backend_share {
    struct backend *be;
    int n_layers;
};

int backend_open(struct backend **out, const struct backend_opt *opt, struct err *e);
void backend_close(struct backend *be); /* NULL is fine */

/* The CPU's table; backend_open calls it. */
int cpu_open(struct backend **out, const struct backend_opt *opt, struct err *e);

/* What tern-cuda.so exports. layout is backend_layout() of the caller: a library of another build,
 * whose structs may lie differently, refuses. */
#define BACKEND_VERSION 5
typedef int backend_open_fn(struct backend **out, const struct backend_opt *opt, uint64_t layout,
                            struct err *e);
static inline uint64_t backend_layout(void)
{
    uint64_t sizes[] = { sizeof(struct backend),        sizeof(struct backend_opt),
                         sizeof(struct backend_limits), sizeof(struct linear),
                         sizeof(struct attend_opt),     sizeof(struct tensor),
                         sizeof(struct weight),         sizeof(struct kvview),
                         sizeof(struct kvlayer),        sizeof(struct err),
                         sizeof(struct sample_row),     sizeof(struct logit_adjust),
                         sizeof(struct route_opt),      sizeof(struct experts_opt),
                         sizeof(struct backend_stats),  sizeof(struct linear_heads_opt),
                         sizeof(struct conv_opt),       sizeof(struct scan_in),
                         sizeof(struct scan_opt),       sizeof(struct delta_in),
                         sizeof(struct delta_opt),      sizeof(struct stateview),
                         sizeof(struct statelayer),     sizeof(struct state_run) };
    uint64_t h = BACKEND_VERSION;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) h = h * 1000003 + sizes[i];
    return h;
}
#endif
