/* cu.cuh - what all files of the GPU backend share: the device, its errors, launching, and the
 * functions that launch kernels.
 *
 * Layers of the backend, top to bottom:
 *
 *     cuda.cu                         the backend table: memory, weights, sync, opening a device
 *     record_ops.c, record.c, fuse.c  operations are recorded and fused (plain C, see record.h)
 *     record.cu, graphs.c             a record is launched, captured as a CUDA graph, or replayed
 *     launch.cu                       one launcher for each recorded operation
 *     the cu_ functions below         each launches kernels for one operation
 *
 * Every cu_ function that launches does so on c->stream, allocates nothing, waits for nothing, and
 * reports failures by cu_fail. Activations are F32 rows in device memory. Addresses in struct
 * weight (packed) and in a kvview are device addresses. One host thread drives a backend. */
#ifndef TERN_KERNEL_CUDA_CU_CUH
#define TERN_KERNEL_CUDA_CU_CUH

extern "C" {
#include "kernel/backend.h"
#include "kernel/quantblocks.h"
}

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

/* The parts of the backend that need scratch memory of their own, sized for the largest step. */
enum cu_part { CU_MATVEC, CU_GEMM, CU_ATTEND, CU_SAMPLE, CU_INDEX, CU_PARTS };

struct cu_mem;
struct cu_record;
struct op_state; /* see record.h */
struct cu_profile;
struct cu_comm;

struct cuda {
    /* The first member: a struct backend * is a struct cuda *. be.self is the struct record. */
    struct backend be;
    int device, cc, n_sm;      /* cc: compute capability, 90 for 9.0 */
    size_t smem_max, l2_bytes; /* smem_max: shared memory that one block may use */
    bool exact;                /* attention of very small models in F32; see TERN_CUDA_EXACT */
    cudaStream_t stream;
    int rc; /* first failure since the last sync, with msg */
    char msg[256];
    struct backend_limits lim; /* the largest step that scratch memory is reserved for */
    void *scratch[CU_PARTS];   /* [part] cu_<part>_bytes(c, &lim) bytes each */
    size_t scratch_bytes[CU_PARTS];
    void *gemm;     /* struct gemm of cu_gemm.cu */
    uint64_t types; /* dtypes of the weights that were uploaded, one bit each */
    /* Read by any thread. Written only by cu_stat_add and cu_stat_set. */
    struct backend_stats stats;
    struct cu_mem *mem;
    struct cu_record *record;
    struct cu_profile *profile;    /* NULL: no profile */
    struct cu_comm *comm;          /* the group that it sums with; NULL: none */
    const void *carveout_set[256]; /* hash table of kernels that cu_set_carveout has seen */
};

static inline void cu_stat_add(uint64_t *stat, uint64_t n)
{
    __atomic_fetch_add(stat, n, __ATOMIC_RELAXED);
}
static inline void cu_stat_set(uint64_t *stat, uint64_t n)
{
    __atomic_store_n(stat, n, __ATOMIC_RELAXED);
}

static inline int cu_div_up(int a, int b) { return (a + b - 1) / b; }
static inline int cu_round_up(int a, int to) { return cu_div_up(a, to) * to; }
/* Rows of floats that start at p, `stride` floats apart, can be read 16 bytes at a time. */
static inline bool cu_aligned16(const void *p, size_t stride)
{
    return (uintptr_t)p % 16 == 0 && stride % 4 == 0;
}

static inline struct cuda *cu_of(struct backend *be) { return (struct cuda *)be; }

/* Keeps the first failure until the next sync reports it. */
void cu_fail(struct cuda *c, int rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* OK for cudaSuccess; otherwise E_DEVICE_MEMORY or E_DEVICE, kept by cu_fail with CUDA's text. what: the
 * failed call. */
int cu_check(struct cuda *c, cudaError_t rc, const char *what);

/* ---- launching ---- */

/* Called before and after every launch. name is what a profile shows ("matvec q4_k"). */
void cu_launch_begin(struct cuda *c, const char *name);
void cu_launch_end(struct cuda *c);

/* Called before a kernel's first launch: makes the SM give shared memory the largest part of its L1
 * storage (the carveout), the same for all kernels. A kernel that wants another carveout than the
 * one before it cannot start until that one has left the SM. */
void cu_set_carveout(struct cuda *c, const void *kernel);

/* Launches with programmatic stream serialization (programmatic dependent launch, Hopper and
 * later): the kernel may start while the one before it still runs. Therefore every kernel calls
 * cu_wait_previous() before it reads or writes memory that another kernel touches; weights and
 * their scales may be fetched earlier. It calls cu_release_next() as early as it can, best at its
 * top, so that the next kernel may start. */
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
    cu_set_carveout(c, (const void *)kernel);
    cu_launch_begin(c, name);
    cu_check(c, cudaLaunchKernelEx(&cfg, kernel, static_cast<P>(args)...), name);
    cu_launch_end(c);
}

#ifdef __CUDACC__
__device__ __forceinline__ void cu_wait_previous(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void cu_release_next(void)
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
/* The sum of v over a block of THREADS threads, for all of them. */
template <int THREADS> __device__ __forceinline__ float block_sum(float v)
{
    __shared__ float part[THREADS / 32];

    v = warp_sum(v);
    __syncthreads(); /* the sum before has been read */
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
    __syncthreads();
    v = 0.f;
    for (int i = 0; i < THREADS / 32; i++) v += part[i];
    return v;
}
/* Rounds to F16; beyond its range to the largest finite F16. */
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
/* act(gate) * up. ACT_SWIGLU_CLIP also clips up. */
__device__ __forceinline__ float act_pair(enum act a, float gate, float up)
{
    if (a == ACT_SWIGLU_CLIP) up = fminf(fmaxf(up, -7.f), 7.f) + 1.f;
    return act_of(a, gate) * up;
}
/* A gated activation with bounds; clip.limit is not 0. */
__device__ __forceinline__ float clip_pair(const struct glu_clip &clip, float gate, float up)
{
    float g = gate < clip.limit ? gate : clip.limit, u = up > clip.limit    ? clip.limit
                                                         : up < -clip.limit ? -clip.limit
                                                                            : up;
    return g / (1.f + expf(-clip.alpha * g)) * (u + clip.plus);
}
#endif

/* ---- matrix products (matvec*.cu*, cu_gemm.cu and gemm*.cu*) ---- */

struct cu_norm { /* applied to x before the matrix product; w NULL: all ones */
    int kind;    /* CU_NORM_NONE: no norm */
    const float *w, *b;
    float eps;
};
enum { CU_NORM_NONE, CU_NORM_RMS, CU_NORM_LAYER };

/* A fused linear operation: n_jobs matrix products with one input x. fuse_act: the jobs are gate
 * and up (or gate alone, n_jobs 1), and the only result is act(gate) * up in jobs[0].out, whose old
 * content is not read. */
struct cu_linear {
    struct tensor x;
    struct cu_norm norm;
    const struct linear *jobs;
    int n_jobs;
    bool fuse_act;
    enum act act;
    const struct cu_linear
        /* The operation that is launched next, if it is a linear one. NULL is always correct. */
        *next;
};

/* Device bytes of n matrices in this backend's layout (cu_layout.cuh); 0: no kernel reads this
 * type. */
size_t cu_weight_bytes(enum dtype t, int rows, int cols, int n);
/* Packing: rows from a file's order (host memory) to the device's order. Any thread may call. The
 * packed form of rows [r0, r1) of matrix i fills one or more byte ranges (planes) of the weight on
 * the device. */
struct cu_plane {
    size_t at, bytes;
};
int cu_pack_planes(const struct weight *w, int i, int r0, int r1,
                   struct cu_plane out[4]); /* returns how many */
/* dst[p]: where the bytes of plane p go. src: row r0 as the file has it. r0 is a multiple of 16. */
void cu_pack_rows(const struct weight *w, const void *src, int r0, int r1, void *const dst[4]);

#define CU_FEW 8                       /* most tokens that matvec takes */
bool cu_matvec_supports(enum dtype t); /* every type that cu_weight_bytes knows */
size_t cu_matvec_bytes(const struct cuda *c, const struct backend_limits *lim);
void cu_matvec_reset(void);                                /* the next matvec finds no prepared x */
void cu_matvec(struct cuda *c, const struct cu_linear *p); /* x.rows <= CU_FEW */
/* Weights of quantized folders may want x in another order of columns (cu_order in cu_layout.cuh).
 * Do all jobs want the same? */
bool cu_same_order(const struct cu_linear *p);
/* One job at a time, by run, and the activation by itself. */
void cu_linear_each(struct cuda *c, const struct cu_linear *p,
                    void (*run)(struct cuda *c, const struct cu_linear *p));

int cu_gemm_open(struct cuda *c, struct err *e); /* opens cuBLASLt; once */
void cu_gemm_close(struct cuda *c);
size_t cu_gemm_bytes(const struct cuda *c, const struct backend_limits *lim);
/* After scratch memory is reserved: measures up to how many tokens the packed GEMM is faster than
 * cuBLASLt, for each dtype in the bit set. */
void cu_gemm_tune(struct cuda *c, uint64_t types);
void cu_gemm_reset(struct cuda *c); /* the next GEMM finds no activations in F16 */
void cu_gemm(struct cuda *c, const struct cu_linear *p); /* any number of tokens */

/* Rows [r0, r0 + n_rows) of matrix i as F16, cols numbers a row without gaps. For the GEMM and for
 * tests. */
void cu_dequant(struct cuda *c, __half *out, const struct weight *w, int i, int r0, int n_rows);

/* The products in F32 throughout. false: a weight has a block format, or an activation or norm is
 * fused, and nothing was launched. */
bool cu_linear_f32(struct cuda *c, const struct cu_linear *p);

/* ---- mixture of experts (cu_moe.cu, moe*.cu*): arguments as in struct backend ---- */
void cu_route(struct cuda *c, int32_t *ids, float *weights, const struct tensor *logits,
              const struct route_opt *opt);
void cu_experts(struct cuda *c, const struct tensor *out, const struct tensor *x,
                const int32_t *ids, const float *weights, const struct experts_opt *opt);

/* ---- attention (cu_attend.cu, attend*.cu*, rope_kv.cu) ---- */

/* Head norms of q and k (q_norm, k_norm: one weight for all heads; NULL: none), rotary embedding of
 * both (table NULL: none), and k and v into their KV blocks, in one kernel. */
struct cu_rope_kv {
    struct tensor q, k, v;
    int n_heads, n_kv_heads, head_dim, head_dim_v, n_rot;
    const float *q_norm, *k_norm;
    float eps;
    const float *table; /* [tokens][n_rot]: pairs of cos, sin */
    enum rope_style style;
    const struct kvview *kv;
    int layer;
};
void cu_rope_kv(struct cuda *c, const struct cu_rope_kv *r);
size_t cu_attend_bytes(const struct cuda *c, const struct backend_limits *lim);
/* kv->max_pos may be larger than the largest position of the batch: a graph serves all steps up to
 * it. rope: is done first; NULL: nothing. For one token it may be part of the attention kernel,
 * which then does not write q. */
void cu_attend(struct cuda *c, const struct tensor *out, const struct tensor *q,
               const struct kvview *kv, int layer, const struct attend_opt *opt,
               const struct cu_rope_kv *rope);
void cu_kv_put(struct cuda *c, const struct kvview *kv, int layer, const struct tensor *k,
               const struct tensor *v);
/* Attention over a window and the entries of a compressed cache (attend_pick.cu). Of opt it uses
 * n_heads, head_dim, scale, window, sinks and keys. */
void cu_attend_compressed(struct cuda *c, const struct tensor *out, const struct tensor *q,
                          const struct kvview *kv, int layer, const struct attend_opt *opt,
                          int rate);
void cu_compress(struct cuda *c, const struct kvview *kv, int layer,
                 const struct compress_opt *opt); /* cu_compress.cu */

/* ---- sparse attention (cu_index.cu): arguments as in struct backend ---- */
size_t cu_index_bytes(const struct cuda *c, const struct backend_limits *lim);
void cu_index_put(struct cuda *c, const struct kvview *kv, int layer, const struct tensor *k);
void cu_index_choose(struct cuda *c, const struct key_choice *out, const struct tensor *q,
                     const struct tensor *weights, const struct kvview *kv, int layer,
                     const struct index_opt *opt);

/* ---- row operations (cu_ops.cu, ops_norm.cu, ops_embed.cu): arguments as in struct backend
 * ---- */
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

/* ---- row operations of single families (cu_family.cu): arguments as in struct backend ---- */
void cu_xielu(struct cuda *c, const struct tensor *x, const struct xielu_opt *opt);
void cu_clipped_glu(struct cuda *c, const struct tensor *out, const struct tensor *gate,
                    const struct tensor *up, const struct glu_clip *opt);
void cu_scale_by_pos(struct cuda *c, const struct tensor *x, const int32_t *pos,
                     const struct pos_scale_opt *opt);
void cu_mix_streams(struct cuda *c, const struct tensor *out, const struct tensor *x,
                    const struct tensor *coefs, int n);
void cu_add_weighted(struct cuda *c, const struct tensor *x, const struct tensor *y,
                     const struct tensor *coefs, int col, float plus);
void cu_match_rms(struct cuda *c, const struct tensor *x, const struct tensor *like, float eps);
void cu_sparsify(struct cuda *c, const struct tensor *x, float deviations);
void cu_hyper_weights(struct cuda *c, const struct tensor *x, const float *base, const float *scale,
                      const struct hyper_opt *opt);
void cu_hyper_in(struct cuda *c, const struct tensor *out, const struct tensor *s,
                 const struct tensor *w, int n);
void cu_hyper_out(struct cuda *c, const struct tensor *s, const struct tensor *y,
                  const struct tensor *w, int n);

/* ---- recurrent layers (cu_recur.cu), one matrix for each head (cu_linear_heads.cu) ---- */
void cu_conv(struct cuda *c, const struct tensor *out, const struct tensor *x,
             const struct op_state *st, const struct conv_opt *opt);
void cu_scan(struct cuda *c, const struct tensor *out, const struct scan_in *in,
             const struct op_state *st, const struct scan_opt *opt);
void cu_delta(struct cuda *c, const struct tensor *out, const struct delta_in *in,
              const struct op_state *st, const struct delta_opt *opt);
void cu_linear_heads(struct cuda *c, const struct tensor *out, const struct tensor *x,
                     const struct linear_heads_opt *opt);

/* ---- sampling (sample.cu) ---- */
size_t cu_sample_bytes(const struct cuda *c, const struct backend_limits *lim);
void cu_sample(struct cuda *c, int32_t *ids, const struct tensor *logits,
               const struct sample_row *rows, int n_rows, const struct logit_adjust *adjust);

/* ---- sums over a group (comm*.cu): arguments as in struct backend ---- */
int cu_group_offer(struct cuda *c, struct group_offer *out, const struct group_ask *ask,
                   struct err *e);
int cu_group_join(struct cuda *c, const struct sum_group *g, struct err *e);
void cu_group_leave(struct cuda *c); /* nothing is in flight, and no graph has a sum */
void cu_all_reduce(struct cuda *c, const struct tensor *x, int wire);
void cu_square_sums(struct cuda *c, float *sums, const struct tensor *x, bool counts);
void cu_norm_by_sums(struct cuda *c, const struct tensor *out, const struct tensor *x,
                     const float *sums, int n, const float *w, float eps);
/* Waits for the event, or if it is NULL for the stream, and as long only as the group exists. */
cudaError_t cu_comm_wait(struct cuda *c, cudaEvent_t event);

/* ---- device memory (cu_mem.cu) ---- */
int cu_mem_open(struct cuda *c, struct err *e);
void cu_mem_close(struct cuda *c); /* logs what was never freed */
int cu_mem_alloc(struct cuda *c, void **out, size_t bytes, enum mem_kind kind, const char *owner,
                 struct err *e);
void cu_mem_free(struct cuda *c, void *p, size_t bytes, enum mem_kind kind);
/* Bytes between the beginning of CUDA's allocation and the address that cu_mem_alloc returns. */
size_t cu_mem_offset(const struct cuda *c);
/* Bytes of the device that are free; also updates stats. Takes tens of microseconds: not for every
 * step. */
size_t cu_mem_query(struct cuda *c);
#endif
