/* cpu.h - what the operations of the CPU backend share.
 *
 * Every cpu_* function below is an entry of the table in backend.h and is described there. */
#ifndef TERN_KERNEL_CPU_CPU_H
#define TERN_KERNEL_CPU_CPU_H

#include "base/par.h"
#include "kernel/backend.h"
#include "kernel/cpu/vec.h"

struct matmul;
struct attn;
struct recur;

struct cpu {
    struct backend be;
    struct par *par;
    const struct vec *vec;
    const struct recur *recur;
    bool reference;
    struct err err; /* the first failure since the last sync */
    struct matmul *matmul;
    struct attn *attn; /* plan and scratch of attend */
};

static inline struct cpu *cpu_of(struct backend *be) { return be->self; }

/* Keeps the first failure for sync. */
void cpu_fail(struct cpu *c, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Calls fn for pieces of [0, rows), on the team if the work (in numbers touched) is worth waking
 * it. */
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

void cpu_kv_put(struct backend *be, const struct kvview *kv, int layer, const struct tensor *k,
                const struct tensor *v);
void cpu_attend(struct backend *be, const struct tensor *out, const struct tensor *q,
                const struct kvview *kv, int layer, const struct attend_opt *opt);
#endif
