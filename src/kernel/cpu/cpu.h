/* cpu.h - the state of the CPU backend, shared by the files of this folder.
 *
 * Operations are executed when they are called, so `put`, `get` and `sync` cost nothing. Work is
 * divided among the threads of a team (base/par.h) by rows or by pieces of rows. How a result is
 * divided never changes the numbers: every output element is computed by one thread, in an order
 * that depends on the shapes only.
 *
 * Every cpu_* function below that takes a struct backend is an entry of the table in
 * kernel/backend.h and is described there. */
#ifndef TERN_KERNEL_CPU_CPU_H
#define TERN_KERNEL_CPU_CPU_H

#include "base/numa.h"
#include "base/par.h"
#include "kernel/backend.h"
#include "kernel/cpu/vec.h"

struct matmul;
struct attn;
struct recur;

struct cpu {
    struct backend be;         /* the table; be.self points to this struct */
    struct numa numa;          /* memory nodes: of the threads, and of the weights they read */
    struct par *par;           /* owned; the driving thread is its thread 0 */
    const struct vec *vec;     /* element-wise kernels of the best instruction set */
    const struct recur *recur; /* kernels of recurrent layers */
    bool reference;            /* plain C kernels only */
    struct err err;            /* the first failure since the last sync */
    struct matmul *matmul;     /* owned: matrix products and their scratch */
    struct attn *attn;         /* owned: attention and its scratch */
};

static inline struct cpu *cpu_of(struct backend *be) { return be->self; }

/* Records a failure for sync, unless one is recorded already. */
void cpu_fail(struct cpu *c, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Calls fn for ranges that cover [0, rows), on the team if the work (elements touched) outweighs
 * the cost of waking it, else on the caller. */
typedef void cpu_rows_fn(const void *arg, int begin, int end);
void cpu_rows(struct cpu *c, int rows, long long work, cpu_rows_fn *fn, const void *arg);

void cpu_embed(struct backend *be, const struct tensor *out, const struct weight *w,
               const int32_t *ids, float scale);
void cpu_gather(struct backend *be, const struct tensor *out, const struct tensor *x,
                const int32_t *rows);
void cpu_rmsnorm(struct backend *be, const struct tensor *out, const struct tensor *x,
                 const float *w, float eps);
void cpu_layernorm(struct backend *be, const struct tensor *out, const struct tensor *x,
                   const float *w, const float *b, float eps);
void cpu_headnorm(struct backend *be, const struct tensor *x, int n_heads, int head_dim,
                  const float *w, int w_stride, float eps);
void cpu_square_sums(struct backend *be, float *sums, const struct tensor *x, bool counts);
void cpu_norm_by_sums(struct backend *be, const struct tensor *out, const struct tensor *x,
                      const float *sums, int n, const float *w, float eps);
void cpu_rope_table(struct backend *be, const struct tensor *table, const int32_t *pos,
                    const float *freq, int n_rot, float mscale);
void cpu_rope(struct backend *be, const struct tensor *x, int n_heads, int head_dim, int n_rot,
              const struct tensor *table, enum rope_style style);
void cpu_act(struct backend *be, const struct tensor *out, const struct tensor *gate,
             const struct tensor *up, enum act act);
void cpu_add(struct backend *be, const struct tensor *x, const struct tensor *y, float scale);
void cpu_scale(struct backend *be, const struct tensor *x, float scale);
void cpu_softcap(struct backend *be, const struct tensor *x, float cap);
void cpu_clamp(struct backend *be, const struct tensor *x, float limit);
void cpu_gate_rows(struct backend *be, const struct tensor *x, const struct tensor *s);
void cpu_xielu(struct backend *be, const struct tensor *x, const struct xielu_opt *opt);
void cpu_clipped_glu(struct backend *be, const struct tensor *out, const struct tensor *gate,
                     const struct tensor *up, const struct glu_clip *opt);
void cpu_scale_by_pos(struct backend *be, const struct tensor *x, const int32_t *pos,
                      const struct pos_scale_opt *opt);
void cpu_headnorm_layer(struct backend *be, const struct tensor *x, int n_heads, int head_dim,
                        const float *w, const float *b, int w_stride, float eps);
void cpu_route(struct backend *be, int32_t *ids, float *weights, const struct tensor *logits,
               const struct route_opt *opt);
void cpu_experts(struct backend *be, const struct tensor *out, const struct tensor *x,
                 const int32_t *ids, const float *weights, const struct experts_opt *opt);

void cpu_linear_heads(struct backend *be, const struct tensor *out, const struct tensor *x,
                      const struct linear_heads_opt *opt);
void cpu_conv(struct backend *be, const struct tensor *out, const struct tensor *x,
              const struct stateview *st, int layer, const struct conv_opt *opt);
void cpu_scan(struct backend *be, const struct tensor *out, const struct scan_in *in,
              const struct stateview *st, int layer, const struct scan_opt *opt);
void cpu_delta(struct backend *be, const struct tensor *out, const struct delta_in *in,
               const struct stateview *st, int layer, const struct delta_opt *opt);

void cpu_mix_streams(struct backend *be, const struct tensor *out, const struct tensor *x,
                     const struct tensor *coefs, int n);
void cpu_add_weighted(struct backend *be, const struct tensor *x, const struct tensor *y,
                      const struct tensor *coefs, int col, float plus);
void cpu_match_rms(struct backend *be, const struct tensor *x, const struct tensor *like,
                   float eps);
void cpu_sparsify(struct backend *be, const struct tensor *x, float deviations);
void cpu_hyper_weights(struct backend *be, const struct tensor *x, const float *base,
                       const float *scale, const struct hyper_opt *opt);
void cpu_hyper_in(struct backend *be, const struct tensor *out, const struct tensor *s,
                  const struct tensor *w, int n);
void cpu_hyper_out(struct backend *be, const struct tensor *s, const struct tensor *y,
                   const struct tensor *w, int n);
void cpu_compress(struct backend *be, const struct kvview *kv, int layer,
                  const struct compress_opt *opt);
void cpu_attend_compressed(struct backend *be, const struct tensor *out, const struct tensor *q,
                           const struct kvview *kv, int layer, const struct attend_opt *opt,
                           const struct compress_opt *c);
void cpu_index_put(struct backend *be, const struct kvview *kv, int layer, const struct tensor *k);
void cpu_index_choose(struct backend *be, const struct key_choice *out, const struct tensor *q,
                      const struct tensor *weights, const struct kvview *kv, int layer,
                      const struct index_opt *opt);
void cpu_kv_put(struct backend *be, const struct kvview *kv, int layer, const struct tensor *k,
                const struct tensor *v);
void cpu_attend(struct backend *be, const struct tensor *out, const struct tensor *q,
                const struct kvview *kv, int layer, const struct attend_opt *opt);
#endif
