/* backend.h - a compute device as a table of operations over whole batches.
 *
 * Two backends exist: the CPU (kernel/cpu) and CUDA (kernel/cuda, a library that is loaded at run
 * time). model/decoder.c writes a forward pass as calls of this table and does not know which
 * device executes it.
 *
 * Execution. Calls are executed in order and may be asynchronous; none of them returns a result to
 * the host. Data goes to the device by `put` and comes back by `get`, and the host may read it only
 * after `sync`. An operation that fails records the error; `sync` returns the first one since the
 * last sync. Until the next sync all arguments of a call (tensors, weights, views, option structs)
 * must stay in place and unchanged.
 *
 * Memory. Everything is allocated through `alloc` and `reserve` when an engine opens; a step
 * allocates nothing. Pointers inside tensors and views are device memory; option structs and
 * struct tensor itself are host memory.
 *
 * Threads. One thread at a time drives a backend. Only `stats` may be called from any thread.
 *
 * Notation: n_tokens is the number of rows of a batch; x[n][m] is row-major; activations are F32.
 * An entry may be NULL where its comment says so. */
#ifndef TERN_KERNEL_BACKEND_H
#define TERN_KERNEL_BACKEND_H

#include "base/err.h"
#include "kernel/group.h"
#include "kernel/kvview.h"
#include "kernel/samplerow.h"
#include "kernel/stateview.h"
#include "kernel/tensor.h"

struct backend;

/* What memory is for: accounting only. */
enum mem_kind { MEM_WEIGHTS, MEM_KV, MEM_SCRATCH, MEM_KINDS };

/* Activation functions of the feed-forward block. */
enum act {
    ACT_SILU,        /* x * sigmoid(x) */
    ACT_GELU,        /* exact, with erf */
    ACT_GELU_TANH,   /* tanh approximation */
    ACT_RELU,        /* max(x, 0) */
    ACT_RELU2,       /* max(x, 0)^2 */
    ACT_GELU_QUICK,  /* x * sigmoid(1.702 x) */
    ACT_SIGMOID,     /* 1 / (1 + e^-x) */
    ACT_SWIGLU_CLIP, /* gpt-oss: quick GELU of min(gate, 7), times (clamp(up, -7, 7) + 1) */
    ACT_NONE,        /* identity: act(gate) * up is then the plain product */
    ACT_XIELU        /* apertus: has parameters of each layer; see backend.xielu */
};

/* Options of operations that only some backends know. A model that needs one of them is refused by
 * the others (model/pass.c). */
enum {
    BACKEND_CHUNKS = 1 << 0,        /* attend_opt.chunk */
    BACKEND_INPUT_WEIGHTS = 1 << 1, /* experts_opt.weigh_inputs */
    BACKEND_ZERO_EXPERTS = 1 << 2,  /* experts_opt.n_zero */
    BACKEND_EXPERT_SCALES = 1 << 3, /* route_opt.expert_scale */
    BACKEND_BETA_SCALE = 1 << 4,    /* delta_opt.beta_scale */
    BACKEND_CLIPPED_GLU = 1 << 5,   /* experts_opt.clip */
    BACKEND_SQRT_SOFTPLUS = 1 << 6, /* ROUTE_SQRT_SOFTPLUS */
    BACKEND_HASH_ROUTES = 1 << 7,   /* route_opt.by_token */
    BACKEND_KEY_CHOICE = 1 << 8,    /* attend_opt.keys */
    BACKEND_CONV_PARTS = 1 << 9     /* conv_opt.at */
};

/* Which two elements of a head form a pair that the rotary embedding rotates. */
enum rope_style {
    ROPE_HALF, /* (i, i + n/2): Hugging Face's order; GGUF calls it neox */
    ROPE_PAIR  /* (2i, 2i + 1): the order of the RoPE paper, and of GGUF's llama */
};

/* One matrix product of a `linear` call: out = scale * W x + bias, or out += the same.
 * W is [w->rows][w->cols]; x is [n_tokens][w->cols]; out is [n_tokens][w->rows]. */
struct linear {
    struct tensor out;
    const struct weight *w;
    const float *bias; /* [w->rows] or NULL */
    bool add;          /* accumulate into out: the residual connection */
    float scale;       /* of W x, not of the bias; 0 means 1 */
};

struct attend_opt {
    int n_heads, n_kv_heads; /* grouped-query attention: n_heads / n_kv_heads queries share a key */
    int head_dim, head_dim_v; /* of queries and keys; of values */
    float scale;              /* of the scores q.k, usually 1 / sqrt(head_dim) */
    float softcap;            /* 0: none; else score = cap * tanh(score / cap) */
    int window;               /* sliding window: the last `window` positions including the token's
                               * own; 0: none */
    bool bidirectional;       /* not causal: a token attends to its whole sequence (kvview.seq_end
                               * must be set); with a window, to positions at most window / 2 away */
    const float *sinks;       /* [n_heads] or NULL: attention sinks, an extra score per head that
                               * takes part in the softmax and contributes no value (gpt-oss) */
    const float *slopes;      /* [n_heads] or NULL: ALiBi, score += slope * (key pos - query pos) */
    int chunk; /* chunked attention: positions are divided into chunks of this size, and
                               * a token attends to its own chunk only; 0: none (llama 4) */
    const struct key_choice *keys; /* sparse attention: only these keys; NULL: all of them */
};

/* The keys that each token attends to, selected by an indexer (backend.choose): a bit for every
 * position of the sequence, in device memory. Tokens see the keys that their row allows and that
 * the rest of attend_opt allows, too. */
struct key_choice {
    uint32_t *bits; /* [n_tokens][stride] */
    size_t stride;  /* words of a row */
    int n_heads; /* KV heads with rows of their own: [n_tokens][n_heads][stride]; 1: all share one */
};

/* Router of a mixture of experts: how the n_used experts of a token are selected from the router's
 * logits and weighted. */
enum route_kind {
    ROUTE_SOFTMAX,     /* softmax over all experts, then the largest; weight = probability */
    ROUTE_TOP_SOFTMAX, /* the largest logits, then softmax over those only */
    ROUTE_SIGMOID,     /* sigmoid of each logit; selection by sigmoid + bias, weight without bias */
    ROUTE_SPARSEMIXER, /* phimoe: two experts, each weighted by a softmax over logits near its own */
    ROUTE_SQRT_SOFTPLUS /* sqrt(softplus) of each logit; otherwise as ROUTE_SIGMOID */
};

/* Limits that the loader checks. */
enum { MOE_MAX_USED = 64, MOE_MAX_EXPERTS = 1024, MOE_MAX_GROUPS = 64 };

struct route_opt {
    enum route_kind route;
    int n_used;        /* experts per token */
    bool norm;         /* divide the weights by their sum */
    float scale;       /* multiplies the weights, after norm */
    const float *bias; /* [experts] or NULL: added for the selection, not in the weight */
    /* Group-limited routing (DeepSeek): experts form n_groups equal groups; only those of the best
     * n_groups_used groups can be selected. A group's score is the sum of its group_top best
     * experts. n_groups 0: no groups. */
    int n_groups, n_groups_used;
    int group_top;
    float jitter; /* ROUTE_SPARSEMIXER: its epsilon */
    const float
        *expert_scale; /* [experts] or NULL: multiplies the weights of an expert, at the end */
    /* Hash routing: the experts of a token depend on its id only: [n_vocab][n_used], or NULL; ids is
     * [n_tokens]. Their weights are still those of the router. */
    const int32_t *by_token, *ids;
};

/* A gated activation with bounds: g = min(gate, limit), u = clamp(up, -limit, limit),
 * out = g * sigmoid(alpha * g) * (u + plus). */
struct glu_clip {
    float alpha, limit, plus; /* limit 0: not used */
};

/* The feed-forward blocks of a mixture of experts. Token rows are copied once per selected expert
 * and sorted by expert, so that the weights of an expert are read once per step. The scratch
 * memory is the caller's, one row per selection. */
struct experts_opt {
    int n, n_used; /* experts, and experts per token */
    /* [n] each; gate NULL: blocks without a gate. An expert whose matrices have no rows is on another
     * machine and adds nothing here (CPU). */
    const struct weight *gate, *up, *down;
    const float *b_gate, *b_up, *b_down; /* [n][rows] biases, or NULL */
    enum act act;
    struct glu_clip clip; /* instead of act, if its limit is not 0 */
    float scale;          /* of the weighted sum */
    bool add;             /* out += instead of out = */
    bool
        weigh_inputs; /* the weights multiply the inputs of the experts, not their outputs (llama 4) */
    int n_zero;       /* experts n, n + 1, ... of the router return their input (longcat) */
    /* Scratch, [n_tokens * n_used] rows each: inputs, gate (then hidden), up, outputs. */
    struct tensor xs, hs, us, ys;
    int32_t *order; /* scratch, [2 * n_tokens * n_used + n + 1] */
};

/* One matrix product per head: out[:, h * out_step ..] = W[h] x[:, h * x_step ..] for each of the
 * w->n heads. `tail` further elements of each head, those after the multiplied ones, are copied
 * from x to out unchanged. Multi-head latent attention uses it to absorb its projections. */
struct linear_heads_opt {
    const struct weight *w;     /* w->n matrices [w->rows][w->cols] */
    int x_step, out_step, tail; /* in elements */
};

/* A depthwise causal convolution over the tokens of each sequence (Mamba's conv1d). */
struct conv_opt {
    const float *w;    /* [k][cols], the row of the oldest token first */
    const float *bias; /* [cols] or NULL */
    int k;             /* kernel size; the state holds the last k - 1 inputs */
    bool silu;         /* apply SiLU to the result */
    int at, of;        /* the state has the inputs of several convolutions: this one's are columns
                        * [at, at + cols) of `of`; of 0: it is the only one */
};

/* The selective scan of Mamba: for every head and token in order,
 *     h = e^(dt a) h + dt b x,  y = c h + d x,  with dt = clamp(softplus(dt + dt_bias)). */
struct scan_in {
    struct tensor x;    /* [n_tokens][n_heads * head_dim] */
    struct tensor dt;   /* [n_tokens][n_heads] before bias and softplus; overwritten */
    struct tensor b, c; /* [n_tokens][n_groups * n_state] */
};
struct scan_opt {
    int n_heads, head_dim, n_groups, n_state;
    bool wide;      /* Mamba 1: `a` differs for every state element; head_dim and n_groups are 1 */
    const float *a; /* negative: [n_heads], or wide: [n_state][n_heads] */
    const float *d, *dt_bias; /* [n_heads] */
    float dt_min, dt_max;     /* bounds of softplus(dt + dt_bias) */
};

/* The gated delta rule (Gated DeltaNet): for every head and token in order,
 *     h = e^g h,  h += k (x) beta (v - k h),  y = q h,
 * with g = a softplus(alpha + dt_bias) and beta = sigmoid(beta). n_heads / n_k_heads heads share
 * queries and keys: delta_key_head. */
struct delta_in {
    struct tensor q, k;        /* [n_tokens][n_k_heads * dim_k] */
    struct tensor v;           /* [n_tokens][n_heads * dim_v] */
    struct tensor alpha, beta; /* [n_tokens][n_heads]; overwritten */
};
struct delta_opt {
    int n_heads, n_k_heads, dim_k, dim_v;
    const float *a, *dt_bias; /* [n_heads]; a is negative */
    float q_scale, k_scale;   /* multiply queries and keys */
    float beta_scale;         /* multiplies sigmoid(beta); 0 means 1 */
    bool tiled; /* heads have key heads 0, 1, .., 0, 1, .. and not 0, 0, .., 1, 1, .. */
};

/* The head of q and k that belongs to a head of v. */
static inline int delta_key_head(const struct delta_opt *o, int head)
{
    return o->tiled ? head % o->n_k_heads : head / (o->n_heads / o->n_k_heads);
}

/* The indexer of sparse attention: it scores the positions up to a token's own by index queries and
 * index keys, and keeps the best `top` of them, or of blocks of them, whose score is that of the best
 * key. */
struct index_opt {
    int n_heads, head_dim;
    int top;     /* keys or blocks that a token keeps */
    int block;   /* keys of a block; 0: single keys */
    int local;   /* blocks that are always kept: the token's own and those before it */
    float scale; /* of scores */
    int rate; /* keys are entries of so many positions (compress_opt); 0: every position has one */
};

/* Compressed attention (DeepSeek V4): every `rate` positions become one entry, a weighted mean of their
 * rows, element by element; weights are the softmax of gates. A row of the cache is the entry (in the
 * window's last position), the raw numbers and the gates: dim elements, and twice dim or, with
 * overlap, twice 2 dim. With overlap the first half of raw numbers and gates counts in the next
 * window, the second in its own. */
struct compress_opt {
    int rate, dim;
    bool overlap;
    bool index;        /* rows are those of index keys, else values */
    const float *bias; /* [rate][dim, or 2 dim] added to gates */
    const float *norm; /* [dim] weights of the entries' norm */
    float eps;
    /* Rotary embedding of an entry's last n_rot elements, at the window's first position. */
    const float *freq;
    int n_rot;
    float mscale;
};

/* Hyper-connections: n residual streams, which a block reads and writes with weights of the token. */
struct hyper_opt {
    int n, iters; /* streams; rounds of the Sinkhorn normalization */
    float eps;
};

/* The parameters of xIELU (apertus): a_p x^2 + b x where x > 0, else
 * (e^min(x, eps) - 1 - x) a_n + b x. */
struct xielu_opt {
    float a_p, a_n, b, eps;
};

/* A factor of rows that grows with the position: 1 + beta * ln(1 + floor((pos + first) / step)). */
struct pos_scale_opt {
    float beta, first, step;
};

/* The largest step an engine will run; a backend sizes its own memory by it. */
struct backend_limits {
    int max_tokens, max_seqs, max_out; /* rows of a batch, sequences in it, rows of logits */
    int max_cols, max_rows; /* widest input and output of any matrix product but the output head */
    int n_vocab;
    int n_heads, head_dim; /* the largest of any layer; head_dim covers keys and values */
    int max_adjust;        /* logit adjustments of all sampled rows of a step together */
    /* Indexers of sparse attention: rows of scores that a token has, and scores of a row; 0: none. */
    int index_rows, index_keys;
};

/* Counters of a device; 0: zero or not known. */
struct backend_stats {
    uint64_t init_ns; /* time to open the device */
    /* Time to load weights: reading the file, packing into the device's layout, uploading. */
    uint64_t read_ns, pack_ns, upload_ns;
    uint64_t busy_ns;                      /* time the device has computed, in total */
    uint64_t bytes[MEM_KINDS];             /* device memory by purpose */
    uint64_t graph_bytes;                  /* memory of captured graphs of steps */
    uint64_t library_bytes;                /* memory of libraries such as cuBLAS */
    uint64_t free_bytes, total_bytes;      /* of the whole device, at the last measurement */
    uint64_t n_steps, n_graphs, n_replays; /* steps run, graphs captured, steps run as a graph */
    uint64_t sum_ns; /* spent on the device in sums over a group, waiting for others included */
};

struct backend {
    const char *name; /* "cpu", "cuda:0" */
    char detail[96];  /* "avx512+vnni+amx, 2 threads" */
    void *self;       /* the backend's own state */
    size_t used_bytes[MEM_KINDS];
    bool fill_kv;      /* alloc takes the pages of KV memory at once: set before it is called */
    bool thin_kv;      /* KV memory has many small arrays, each used from its beginning: likewise */
    bool lost;         /* sync has failed for good: it must be closed, and opened again */
    uint64_t n_allocs; /* number of allocations so far: tests check that a step adds none */
    unsigned features; /* BACKEND_*: options it knows */

    /* ---- memory and execution ---- */

    /* The calling thread drives the backend from now on. NULL: nothing to do. */
    void (*drive)(struct backend *be);
    /* Device memory, aligned to at least 64 bytes, not zeroed. On failure *out is unchanged. */
    int (*alloc)(struct backend *be, void **out, size_t bytes, enum mem_kind kind, struct err *e);
    void (*free)(struct backend *be, void *p, size_t bytes, enum mem_kind kind); /* p may be NULL */
    /* Copies host to device, and device to host. */
    void (*put)(struct backend *be, void *dst, const void *src, size_t bytes);
    void (*get)(struct backend *be, void *dst, const void *src, size_t bytes);
    /* Copies device to device. NULL: put does that too. */
    void (*copy)(struct backend *be, void *dst, const void *src, size_t bytes);
    /* Waits until all calls are executed; returns the first error since the last sync. A backend
     * may fuse operations: an intermediate result that only a later operation of the same step
     * reads (the output of a norm, the `up` of an activation) may then never be written. Such
     * memory can be read by `get` calls before the sync, but not after it. */
    int (*sync)(struct backend *be, struct err *e);
    /* Starts executing the calls made so far, without waiting. whole: they are one complete step, or
     * a part of one that comes again in every step, which a backend may capture as a graph and
     * replay. The rule about intermediate results in `sync` applies from here on. NULL: calls are
     * executed as they are made. */
    void (*flush)(struct backend *be, bool whole);
    /* Waits until at most `ahead` (0 to 3) of the flushes since the last sync are still executing,
     * so that a step can be cancelled between flushes. What `get` copied to memory of host_alloc
     * before a flush that is over can be read. Not NULL where flush is not. */
    void (*throttle)(struct backend *be, int ahead);
    int whole_tokens; /* with flush: steps of up to this many tokens run best as one whole flush */
    /* Any thread, at any time. NULL: the backend keeps no counters. */
    void (*stats)(const struct backend *be, struct backend_stats *out);
    /* Page-locked host memory, the fastest source and target of copies. NULL: any memory is. */
    int (*host_alloc)(struct backend *be, void **out, size_t bytes, struct err *e);
    void (*host_free)(struct backend *be, void *p, size_t bytes);
    /* Allocates the backend's own scratch memory for the largest step. Called once, before the
     * first step. NULL: it needs none, or grows it on demand. */
    int (*reserve)(struct backend *be, const struct backend_limits *lim, struct err *e);
    /* Device memory still free, less a safety margin. NULL: the limit is host memory. */
    uint64_t (*available_bytes)(struct backend *be);
    void (*close)(struct backend *be);

    /* ---- weights ---- */

    /* Registers a weight: the backend uploads it, repacks it, or keeps reading the mapped file.
     * May be called for many weights; weights_finish then does the work in parallel, and only
     * after it may the weights be used. */
    int (*weight_put)(struct backend *be, struct weight *w, struct err *e);
    int (*weights_finish)(struct backend *be, struct err *e);
    void (*weight_drop)(struct backend *be, struct weight *w);  /* frees the device's copy */
    bool (*weight_supported)(struct backend *be, enum dtype t); /* by linear and embed */

    /* ---- rows ---- */

    /* Token embedding: out[i] = W[ids[i]] * scale, out [n][w->cols]. */
    void (*embed)(struct backend *be, const struct tensor *out, const struct weight *w,
                  const int32_t *ids, float scale);
    /* out[i] = x[rows[i]] for each of the out->rows rows. */
    void (*gather)(struct backend *be, const struct tensor *out, const struct tensor *x,
                   const int32_t *rows);

    /* ---- normalization ---- */

    /* RMSNorm of each row: out = x / sqrt(mean(x^2) + eps) * w; w [x->cols], NULL: all ones. */
    void (*rmsnorm)(struct backend *be, const struct tensor *out, const struct tensor *x,
                    const float *w, float eps);
    /* LayerNorm of each row: out = (x - mean) / sqrt(var + eps) * w + b; w and b may be NULL. */
    void (*layernorm)(struct backend *be, const struct tensor *out, const struct tensor *x,
                      const float *w, const float *b, float eps);
    /* RMSNorm of each of the n_heads heads of head_dim elements in every row of x, in place. One
     * weight for all heads (w_stride 0) or one per head (w_stride = head_dim). */
    void (*headnorm)(struct backend *be, const struct tensor *x, int n_heads, int head_dim,
                     const float *w, int w_stride, float eps);
    /* LayerNorm of each head, as headnorm; b may be NULL. Entry NULL: models with it are refused. */
    void (*headnorm_layer)(struct backend *be, const struct tensor *x, int n_heads, int head_dim,
                           const float *w, const float *b, int w_stride, float eps);

    /* ---- matrix products and attention ---- */

    /* n_jobs matrix products of the same x, which is quantized once for all of them. */
    void (*linear)(struct backend *be, const struct tensor *x, const struct linear *jobs,
                   int n_jobs);

    /* Angles of the rotary embedding: table[i][2j], [2j+1] = cos, sin of pos[i] * freq[j], times
     * mscale. table [n_tokens][n_rot], freq [n_rot / 2]. Computed once per step and kind of rotary
     * embedding. */
    void (*rope_table)(struct backend *be, const struct tensor *table, const int32_t *pos,
                       const float *freq, int n_rot, float mscale);
    /* Rotates the first n_rot elements of each of the n_heads heads in every row, in place. */
    void (*rope)(struct backend *be, const struct tensor *x, int n_heads, int head_dim, int n_rot,
                 const struct tensor *table, enum rope_style style);

    /* Writes the batch's k [n_tokens][n_kv_heads * head_dim] and v into the KV cache. v is NULL for
     * a layer whose values are part of its keys (kvlayer.v_in_k). */
    void (*kv_put)(struct backend *be, const struct kvview *kv, int layer, const struct tensor *k,
                   const struct tensor *v);
    /* Attention over the KV cache: q [n_tokens][n_heads * head_dim], out
     * [n_tokens][n_heads * head_dim_v]. Causal: a token attends to its own sequence up to its own
     * position; see attend_opt for the exceptions. */
    void (*attend)(struct backend *be, const struct tensor *out, const struct tensor *q,
                   const struct kvview *kv, int layer, const struct attend_opt *opt);

    /* ---- element by element ---- */

    /* out = act(gate) * up; up NULL: out = act(gate). out may be gate or up. */
    void (*act)(struct backend *be, const struct tensor *out, const struct tensor *gate,
                const struct tensor *up, enum act act);
    /* x += scale * y */
    void (*add)(struct backend *be, const struct tensor *x, const struct tensor *y, float scale);
    /* x *= scale */
    void (*scale)(struct backend *be, const struct tensor *x, float scale);
    /* x = cap * tanh(x / cap) */
    void (*softcap)(struct backend *be, const struct tensor *x, float cap);

    /* All entries from here on may be NULL; models that need a missing one are refused. */

    /* x = clamp(x, -limit, limit) */
    void (*clamp)(struct backend *be, const struct tensor *x, float limit);
    /* Every row r of x is multiplied by sigmoid(s[r]); s [n_tokens][1]. */
    void (*gate_rows)(struct backend *be, const struct tensor *x, const struct tensor *s);
    /* x = xIELU(x) */
    void (*xielu)(struct backend *be, const struct tensor *x, const struct xielu_opt *opt);
    /* out = glu_clip(gate, up); out may be one of them. */
    void (*clipped_glu)(struct backend *be, const struct tensor *out, const struct tensor *gate,
                        const struct tensor *up, const struct glu_clip *opt);
    /* Row r of x is multiplied by the factor of position pos[r]. */
    void (*scale_by_pos)(struct backend *be, const struct tensor *x, const int32_t *pos,
                         const struct pos_scale_opt *opt);

    /* ---- several residual streams ---- */

    /* x and out have n streams in each row: out_i = x_i + sum over j of coefs[i * n + j] x_j, with
     * coefs [n_tokens][n * n]. */
    void (*mix_streams)(struct backend *be, const struct tensor *out, const struct tensor *x,
                        const struct tensor *coefs, int n);
    /* Row r of x += (coefs[r][col] + plus) * row r of y. */
    void (*add_weighted)(struct backend *be, const struct tensor *x, const struct tensor *y,
                         const struct tensor *coefs, int col, float plus);
    /* Rows of x are scaled to the root mean square of those of `like`; eps: the least mean square. */
    void (*match_rms)(struct backend *be, const struct tensor *x, const struct tensor *like,
                      float eps);
    /* x = max(x - (mean + deviations * standard deviation), 0), row by row. */
    void (*sparsify)(struct backend *be, const struct tensor *x, float deviations);

    /* Logits x [n_tokens][(2 + n) n] become weights, in place: how much of each stream a block reads,
     * how much of its output each stream gets, and the matrix that mixes the streams, doubly
     * stochastic; base has a number for each column, scale one for each of the three. With n columns
     * there is the first part only. */
    void (*hyper_weights)(struct backend *be, const struct tensor *x, const float *base,
                          const float *scale, const struct hyper_opt *opt);
    /* out = sum over i of w[i] s_i */
    void (*hyper_in)(struct backend *be, const struct tensor *out, const struct tensor *s,
                     const struct tensor *w, int n);
    /* s_k = w[n + k] y + sum over i of w[2n + i n + k] s_i */
    void (*hyper_out)(struct backend *be, const struct tensor *s, const struct tensor *y,
                      const struct tensor *w, int n);

    /* ---- sparse attention ---- */

    /* Writes the index keys k [n_tokens][head_dim] into the KV cache. */
    void (*index_put)(struct backend *be, const struct kvview *kv, int layer,
                      const struct tensor *k);
    /* Selects the keys of each token by q [n_tokens][n_heads * head_dim]. weights [n_tokens][n_heads]:
     * the heads' positive scores are summed with them, and out has one row per token; NULL: every
     * head selects by itself. */
    void (*index_choose)(struct backend *be, const struct key_choice *out, const struct tensor *q,
                         const struct tensor *weights, const struct kvview *kv, int layer,
                         const struct index_opt *opt);

    /* Makes the entries of all windows that end in the batch, whose rows are in the cache. */
    void (*compress)(struct backend *be, const struct kvview *kv, int layer,
                     const struct compress_opt *opt);
    /* Attention over the keys of the window, which are values, too, and over the entries of all
     * windows before or at the token's position; opt->keys selects entries. */
    void (*attend_compressed)(struct backend *be, const struct tensor *out, const struct tensor *q,
                              const struct kvview *kv, int layer, const struct attend_opt *opt,
                              const struct compress_opt *c);

    /* ---- mixture of experts ---- */

    /* Selects experts: ids and weights [n_tokens][n_used], the best first, from logits
     * [n_tokens][experts]. */
    void (*route)(struct backend *be, int32_t *ids, float *weights, const struct tensor *logits,
                  const struct route_opt *opt);
    /* out = scale * sum over the token's experts of weight * down(act(gate x) * up x), or += . */
    void (*experts)(struct backend *be, const struct tensor *out, const struct tensor *x,
                    const int32_t *ids, const float *weights, const struct experts_opt *opt);

    /* ---- latent attention and recurrent layers ---- */

    void (*linear_heads)(struct backend *be, const struct tensor *out, const struct tensor *x,
                         const struct linear_heads_opt *opt);
    /* Each reads and updates the state of `layer` for every sequence of the batch. out must not
     * overlap the inputs. */
    void (*conv)(struct backend *be, const struct tensor *out, const struct tensor *x,
                 const struct stateview *st, int layer, const struct conv_opt *opt);
    void (*scan)(struct backend *be, const struct tensor *out, const struct scan_in *in,
                 const struct stateview *st, int layer, const struct scan_opt *opt);
    void (*delta)(struct backend *be, const struct tensor *out, const struct delta_in *in,
                  const struct stateview *st, int layer, const struct delta_opt *opt);

    /* ---- sums over the members of a stage (group.h) ---- */

    /* Fills in the ways of summing that this device has, and allocates the buffer that other members read.
     * This and the next three are NULL for a device in host memory: there the communicator sums. */
    int (*group_offer)(struct backend *be, struct group_offer *out, const struct group_ask *ask,
                       struct err *e);
    /* Joins, in the way that all members have chosen. After a failure, or to take another way, join
     * may be called again. The offers are copied. */
    int (*group_join)(struct backend *be, const struct sum_group *g, struct err *e);
    void (*group_leave)(struct backend *be); /* also of a backend that is in no group */
    /* x = sum over the members of the group; rows without gaps. wire: how GROUP_HOST sends it, an enum
     * comm_wire. Failures of other members are kept by the group, not by sync. */
    void (*all_reduce)(struct backend *be, const struct tensor *x, int wire);

    /* RMSNorm of rows whose columns several members have divided, in two operations with a sum over
     * the members between them: sums[r] = sum of x[r]^2, or 0 unless counts; then
     * out = x / sqrt(sums[r] / n + eps) * w, where w may be NULL and out may be x. */
    void (*square_sums)(struct backend *be, float *sums, const struct tensor *x, bool counts);
    void (*norm_by_sums)(struct backend *be, const struct tensor *out, const struct tensor *x,
                         const float *sums, int n, const float *w, float eps);

    /* ---- sampling ---- */

    /* Samples one token from each of n_rows rows of logits: ids[i] is the token sampled from row
     * rows[i].row, or -1 if all its logits are NaN. logits->cols tokens can be sampled. All arrays
     * are device memory. NULL: the host samples, from logits it copies back. */
    void (*sample)(struct backend *be, int32_t *ids, const struct tensor *logits,
                   const struct sample_row *rows, int n_rows, const struct logit_adjust *adjust);
};

struct backend_opt {
    const char *device; /* NULL or "cpu"; "cuda", "cuda:1": by tern-cuda.so */
    int n_threads;      /* CPU: 0: one per physical core */
    bool reference;     /* CPU: plain C kernels, F32 throughout: the definition of the results */
    const char
        *isa; /* CPU: kernels of this instruction set (kernels.h); NULL: TERN_ISA or the best */
    const char *numa; /* CPU: threads and weights on memory nodes (base/numa.h); NULL: "auto" */
    bool profile;     /* CUDA: log at the end how long each operation took */
    int gpu_layers;   /* CUDA: this many of the last layers lie on the GPU, the others on the CPU;
                         * 0: as many as fit. See model/place.h */
    bool vram_only;   /* CUDA: all layers on the GPU, or opening fails */
    /* CUDA: routed experts on the CPU, of layers on the GPU: of all layers, of the first so many, by the
     * names of tensors ("PATTERN=DEVICE,...", NULL or "": none). See model/expertplace.h */
    bool cpu_moe;
    int n_cpu_moe;
    const char *place;
    bool place_loose; /* models that these do not fit are no error: several share the options */
};

/* A device's share of a model: n_layers consecutive layers. */
struct backend_share {
    struct backend *be;
    int n_layers;
};

/* Opens the device that opt names. E_UNSUPPORTED: tern has no backend for it, or the CUDA library
 * is missing or does not match this program. */
int backend_open(struct backend **out, const struct backend_opt *opt, struct err *e);
/* Whether backend_opt.device may have this value: is it a device, and is its library there? The
 * device itself is not opened. */
int backend_check(const char *device, struct err *e);
void backend_close(struct backend *be); /* NULL is allowed */
/* Describes the device without opening it. E_NOTFOUND, E_DEVICE, E_UNSUPPORTED. */
int backend_card(struct device_card *out, const struct backend_opt *opt, struct err *e);

/* The CPU backend; called by backend_open. */
int cpu_open(struct backend **out, const struct backend_opt *opt, struct err *e);
/* Whether backend_opt.isa may have this value: OK, or an error that names the sets of this CPU. */
int cpu_check_isa(const char *name, struct err *e);
/* The card of the CPU; called by backend_card. */
void cpu_card(struct device_card *out, const struct backend_opt *opt);
/* The instruction set that a CPU backend with these options uses, or NULL: this CPU lacks it. */
const char *cpu_isa_name(const struct backend_opt *opt);
/* Whether backend_opt.numa may have this value: OK, or an error that names the nodes. */
int cpu_check_numa(const char *mode, struct err *e);

/* The function tern-cuda.so exports as tern_cuda_open. layout is the caller's backend_layout(): a
 * hash of the sizes of all structs that cross the boundary. A library from another build, with
 * another layout, refuses to open. Raise BACKEND_VERSION when a struct changes but not its size. */
#define BACKEND_VERSION 8
typedef int backend_open_fn(struct backend **out, const struct backend_opt *opt, uint64_t layout,
                            struct err *e);
/* The one it exports as tern_cuda_card. */
typedef int backend_card_fn(struct device_card *out, const struct backend_opt *opt, uint64_t layout,
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
                         sizeof(struct statelayer),     sizeof(struct state_run),
                         sizeof(struct sum_group),      sizeof(struct group_offer),
                         sizeof(struct group_ask),      sizeof(struct device_card) };
    uint64_t h = BACKEND_VERSION;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) h = h * 1000003 + sizes[i];
    return h;
}
#endif
