/* cu.cuh - what the GPU's files share: the device and its errors, launching, the parts' interfaces.
 *
 * The table of cuda.cu only writes down what it is asked for; sync and get carry it out: they look
 * for neighbours that one kernel can do together, launch them in order on one stream, or replay the
 * graph of an equal step. So the calls below are the real ones: each launches kernels on c->stream,
 * allocates nothing, waits for nothing, and reports what fails by cu_fail. All activations are F32
 * rows in device memory; pointers in struct weight (packed) and kvview are the device's. */
#ifndef TERN_KERNEL_CUDA_CU_CUH
#define TERN_KERNEL_CUDA_CU_CUH

extern "C" {
#include "kernel/backend.h"
#include "kernel/quantblocks.h"
}

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

/* The parts that need device memory of their own for the largest step. */
enum cu_part { CU_MATVEC, CU_GEMM, CU_ATTEND, CU_SAMPLE, CU_PARTS };

struct cu_mem;
struct cu_record;
struct op_state; /* record.h */
struct cu_profile;

struct cuda {
    struct backend be;    /* first: a struct backend * is a struct cuda *. be.self: the record */
    int device, cc, n_sm; /* cc: 90 for 9.0 */
    size_t smem_max, l2_bytes; /* shared memory a block may ask for */
    cudaStream_t stream;
    int rc; /* first failure since the last sync */
    char msg[256];
    struct backend_limits lim; /* of the largest step */
    void *scratch[CU_PARTS];   /* each part's own, cu_<part>_bytes(c, &lim) of it */
    size_t scratch_bytes[CU_PARTS];
    void *blas;                 /* cu_gemm's handle */
    uint64_t types;             /* of weights that were taken over, by bit */
    struct backend_stats stats; /* read by any thread: written by cu_count and cu_note alone */
    struct cu_mem *mem;
    struct cu_record *record;
    struct cu_profile *profile; /* NULL: nobody asked */
    const void *shaped[256];    /* kernels that cu_shape has seen, by hash */
};

static inline void cu_count(uint64_t *stat, uint64_t n)
{
    __atomic_fetch_add(stat, n, __ATOMIC_RELAXED);
}
static inline void cu_note(uint64_t *stat, uint64_t n)
{
    __atomic_store_n(stat, n, __ATOMIC_RELAXED);
}

static inline struct cuda *cu_of(struct backend *be) { return (struct cuda *)be; }

/* Keeps the first failure for sync. */
void cu_fail(struct cuda *c, int rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* E_NOMEM, E_DEVICE with what CUDA says; OK for cudaSuccess. */
int cu_check(struct cuda *c, cudaError_t rc, const char *what);

/* ---- launching ---- */

/* Around every launch; name is what a profile shows ("matvec q4_k"). */
void cu_begin(struct cuda *c, const char *name);
void cu_end(struct cuda *c);

/* Before a kernel's first launch: all of them have a multiprocessor split its memory alike. One
 * that wants another split than the kernel before it cannot begin until that has left. */
void cu_shape(struct cuda *c, const void *kernel);

/* Launches so that the kernel may begin while the one before it ends (Hopper and later). Therefore
 * every kernel calls cu_wait() before it reads or writes anything that another kernel touches;
 * weights and their scales may be fetched before that. It calls cu_next() as early as it likes,
 * best at its top. */
template <typename... P, typename... A>
static void cu_launch(struct cuda *c, const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                      size_t smem, A... args)
{
    cudaLaunchConfig_t cfg = {};
    cudaLaunchAttribute attr[1];

    cfg.gridDim = grid;
    cfg.blockDim = block;
    cfg.dynamicSmemBytes = smem;
    cfg.stream = c->stream;
    attr[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[0].val.programmaticStreamSerializationAllowed = 1;
    cfg.attrs = attr;
    cfg.numAttrs = c->cc >= 90 ? 1 : 0;
    cu_shape(c, (const void *)kernel);
    cu_begin(c, name);
    cu_check(c, cudaLaunchKernelEx(&cfg, kernel, static_cast<P>(args)...), name);
    cu_end(c);
}

#ifdef __CUDACC__
__device__ __forceinline__ void cu_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void cu_next(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ float warp_sum(float v)
{
    for (int m = 16; m; m >>= 1) v += __shfl_xor_sync(~0u, v, m);
    return v;
}
__device__ __forceinline__ float warp_max(float v)
{
    for (int m = 16; m; m >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, m));
    return v;
}
/* To F16, the largest finite number where it is beyond. */
__device__ __forceinline__ __half half_sat(float v)
{
    return __float2half_rn(fminf(fmaxf(v, -65504.f), 65504.f));
}
__device__ __forceinline__ float act_of(enum act a, float x)
{
    switch (a) {
    case ACT_SILU: return x / (1.f + __expf(-x));
    case ACT_GELU: return 0.5f * x * (1.f + erff(x * 0.70710678118654752f));
    case ACT_GELU_TANH:
        return 0.5f * x * (1.f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    case ACT_RELU: return fmaxf(x, 0.f);
    case ACT_RELU2: return x > 0.f ? x * x : 0.f;
    case ACT_GELU_QUICK: return x / (1.f + __expf(-1.702f * x));
    case ACT_SIGMOID: return 1.f / (1.f + __expf(-x));
    case ACT_NONE: break;
    case ACT_SWIGLU_CLIP: x = fminf(x, 7.f); return x / (1.f + __expf(-1.702f * x));
    }
    return x;
}
/* act(gate) * up, of which one clips up too. */
__device__ __forceinline__ float act_pair(enum act a, float gate, float up)
{
    if (a == ACT_SWIGLU_CLIP) up = fminf(fmaxf(up, -7.f), 7.f) + 1.f;
    return act_of(a, gate) * up;
}
#endif

/* ---- products (matvec.cu and its parts; gemm.cu and its parts) ---- */

struct cu_norm { /* of x before a product; w NULL with CU_NORM_RMS: no weight */
    int kind;    /* CU_NORM_NONE: x as it is */
    const float *w, *b;
    float eps;
};
enum { CU_NORM_NONE, CU_NORM_RMS, CU_NORM_LAYER };

/* What a flush hands to a product: jobs share x. fuse_act: jobs are gate and up (or gate alone,
 * n_jobs 1), and only out = act(gate) * up is wanted, in jobs[0].out; that out's contents before
 * are of no interest. */
struct cu_product {
    struct tensor x;
    struct cu_norm norm;
    const struct linear *jobs;
    int n_jobs;
    bool fuse_act;
    enum act act;
    const struct cu_product
        *then; /* the very next operation, if it is a product; NULL is always right */
};

/* Device bytes of a weight in this backend's layout; 0: this type cannot be read. */
size_t cu_weight_bytes(enum dtype t, int rows, int cols, int n);
/* The layout itself: from rows as they lie in a file (host memory) to the device's order, rows [r0,
 * r1) of matrix i, into the whole image at dst (host memory; pinned staging is dst minus what lies
 * before). Any thread. cu_pack_range says which bytes of the image those rows fill: a list of
 * (offset, length) planes. */
struct cu_plane {
    size_t at, bytes;
};
int cu_pack_planes(const struct weight *w, int i, int r0, int r1,
                   struct cu_plane out[4]); /* how many */
/* dst[p]: where plane p of those rows goes. src: the first of those rows as the file has it. */
void cu_pack_rows(const struct weight *w, const void *src, int r0, int r1, void *const dst[4]);

#define CU_FEW 8                  /* tokens up to which matvec is the way */
bool cu_matvec_can(enum dtype t); /* every type cu_weight_bytes knows */
size_t cu_matvec_bytes(const struct cuda *c, const struct backend_limits *lim);
void cu_matvec_begin(void); /* what an earlier run left counts no more */
void cu_matvec(struct cuda *c, const struct cu_product *p); /* x.rows <= CU_FEW */

int cu_gemm_open(struct cuda *c, struct err *e); /* libraries, handles; once */
void cu_gemm_close(struct cuda *c);
size_t cu_gemm_bytes(const struct cuda *c, const struct backend_limits *lim);
/* When all is reserved: finds out from how many tokens on which way is the faster one, for types of
 * weights by bit. */
void cu_gemm_tune(struct cuda *c, uint64_t types);
void cu_gemm_begin(struct cuda *c); /* what an earlier run left in F16 counts no more */
void cu_gemm(struct cuda *c, const struct cu_product *p); /* any number of tokens */

/* n numbers from column 0 of rows [r0, r0 + n_rows) of matrix i as F16, rows of cols numbers: for
 * the gemm and for tests. */
void cu_dequant(struct cuda *c, __half *out, const struct weight *w, int i, int r0, int n_rows);

/* Products in F32 throughout, of weights of plain numbers; false: they are not of those. */
bool cu_exact(struct cuda *c, const struct cu_product *p);

/* ---- mixtures of experts (moe*.cu, route.cu): as the table's ---- */
void cu_route(struct cuda *c, int32_t *ids, float *weights, const struct tensor *logits,
              const struct route_opt *opt);
void cu_experts(struct cuda *c, const struct tensor *out, const struct tensor *x,
                const int32_t *ids, const float *weights, const struct experts_opt *opt);

/* ---- attention (attend*.cu) ---- */

/* rope of q and k (table NULL: none) and k, v into their blocks, in one go. q_norm, k_norm: head
 * norms before that (NULL: none), one weight for all heads. */
struct cu_rope_kv {
    struct tensor q, k, v;
    int n_heads, n_kv_heads, head_dim, head_dim_v, n_rot;
    const float *q_norm, *k_norm;
    float eps;
    const float *table; /* [tokens][n_rot]: cos, sin pairs */
    enum rope_style style;
    const struct kvview *kv;
    int layer;
};
void cu_rope_kv(struct cuda *c, const struct cu_rope_kv *r);
size_t cu_attend_bytes(const struct cuda *c, const struct backend_limits *lim);
/* kv->max_pos may be more than the largest position: a graph serves until then. rope: what is to be
 * done before, NULL: nothing; of one token it is part of the same kernel, which leaves q as it was.
 */
void cu_attend(struct cuda *c, const struct tensor *out, const struct tensor *q,
               const struct kvview *kv, int layer, const struct attend_opt *opt,
               const struct cu_rope_kv *rope);
void cu_kv_put(struct cuda *c, const struct kvview *kv, int layer, const struct tensor *k,
               const struct tensor *v);

/* ---- the rest (ops.cu): as the table's, launched at once ---- */
void cu_embed(struct cuda *c, const struct tensor *out, const struct weight *w, const int32_t *ids,
              float scale);
void cu_gather(struct cuda *c, const struct tensor *out, const struct tensor *x,
               const int32_t *rows);
void cu_norm_rows(struct cuda *c, const struct tensor *out, const struct tensor *x,
                  const struct cu_norm *n);
void cu_headnorm(struct cuda *c, const struct tensor *x, int n_heads, int head_dim,
                 const struct cu_norm *n, int w_stride);
void cu_rope_table(struct cuda *c, const struct tensor *table, const int32_t *pos,
                   const float *freq, int n_rot, float mscale);
void cu_rope(struct cuda *c, const struct tensor *x, int n_heads, int head_dim, int n_rot,
             const struct tensor *table, enum rope_style style);
void cu_act(struct cuda *c, const struct tensor *out, const struct tensor *gate,
            const struct tensor *up, enum act act);
void cu_add(struct cuda *c, const struct tensor *x, const struct tensor *y, float scale);
void cu_scale(struct cuda *c, const struct tensor *x, float scale);
void cu_softcap(struct cuda *c, const struct tensor *x, float cap);
void cu_clamp(struct cuda *c, const struct tensor *x, float limit);
void cu_gate_rows(struct cuda *c, const struct tensor *x, const struct tensor *s);

/* ---- recurrent layers (recur.cu), a matrix for each head (heads.cu): as the table's ---- */
void cu_conv(struct cuda *c, const struct tensor *out, const struct tensor *x,
             const struct op_state *st, const struct conv_opt *opt);
void cu_scan(struct cuda *c, const struct tensor *out, const struct scan_in *in,
             const struct op_state *st, const struct scan_opt *opt);
void cu_delta(struct cuda *c, const struct tensor *out, const struct delta_in *in,
              const struct op_state *st, const struct delta_opt *opt);
void cu_heads(struct cuda *c, const struct tensor *out, const struct tensor *x,
              const struct linear_heads_opt *opt);

/* ---- tokens (sample.cu) ---- */
size_t cu_sample_bytes(const struct cuda *c, const struct backend_limits *lim);
void cu_sample(struct cuda *c, int32_t *ids, const struct tensor *logits,
               const struct sample_row *picks, int n_picks, const struct logit_adjust *adjust);

/* ---- device memory (mem.cu) ---- */
int cu_mem_open(struct cuda *c, struct err *e);
void cu_mem_close(struct cuda *c); /* says what was never freed */
int cu_mem_get(struct cuda *c, void **out, size_t bytes, enum mem_kind kind, const char *owner,
               struct err *e);
void cu_mem_put(struct cuda *c, void *p, size_t bytes, enum mem_kind kind);
uint64_t cu_mem_calls(const struct cuda *c); /* allocations so far: a step adds none */
/* How much of the device is free; it is noted in stats. Takes tens of microseconds: not for every
 * step. */
size_t cu_mem_look(struct cuda *c);
#endif
