/* record.h - what a backend was asked for since its last sync, in order, and which neighbours are
 * one.
 *
 * Plain C without a device, so that what is done together can be tested anywhere. Small arguments
 * are copied; weights and the layers of a view are borrowed until the record is cleared. The arrays
 * are taken once: whoever appends asks record_has_room first, and carries the record out where
 * there is none. */
#ifndef TERN_KERNEL_CUDA_RECORD_H
#define TERN_KERNEL_CUDA_RECORD_H

#include "kernel/backend.h"

enum op_kind {
    OP_PUT,
    OP_GET,
    OP_EMBED,
    OP_GATHER,
    OP_NORM,
    OP_HEADNORM,
    OP_LINEAR,
    OP_ROPE_TABLE,
    OP_ROPE,
    OP_KV_PUT,
    OP_ATTEND,
    OP_ACT,
    OP_ADD,
    OP_SCALE,
    OP_SOFTCAP,
    OP_CLAMP,
    OP_GATE_ROWS,
    OP_HEADNORM_LAYER,
    OP_ROUTE,
    OP_EXPERTS,
    OP_SAMPLE,
    OP_COPY,
    OP_HEADS,
    OP_CONV,
    OP_SCAN,
    OP_DELTA,
    OP_ROPE_KV /* only record_fuse makes these */
};

enum op_norm { OP_NORM_NONE, OP_NORM_RMS, OP_NORM_LAYER };

/* What an operation has of a batch's recurrent state. */
struct op_state {
    float *base;   /* of slot 0 */
    size_t floats; /* from one slot to the next */
    const struct state_run *runs;
    int n_runs, n_tokens;
};

struct op {
    enum op_kind kind;
    bool gone; /* another one does it too */
    union {
        struct {
            void *dst;
            const void *src;
            size_t bytes;
        } copy;
        struct {
            struct tensor out;
            const struct weight *w;
            const int32_t *ids;
            float scale;
        } embed;
        struct {
            struct tensor out, x;
            const int32_t *rows;
        } gather;
        struct {
            struct tensor out, x;
            const float *w, *b;
            float eps;
            enum op_norm kind;
        } norm;
        struct {
            struct tensor x;
            const float *w, *b;
            int n_heads, head_dim, w_stride;
            float eps;
        } headnorm;
        struct { /* x is what goes into the norm where there is one */
            struct tensor x;
            const float *norm_w, *norm_b;
            float eps;
            enum op_norm norm;
            int job, n_jobs; /* r->jobs[job ...] */
            bool fuse_act;   /* jobs[0].out = act(gate) * up, nothing else */
            bool exact; /* in F32, where there is a way: a choice hangs on it, or it is small */
            enum act act;
        } linear;
        struct {
            struct tensor table;
            const int32_t *pos;
            const float *freq;
            int n_rot;
            float mscale;
        } rope_table;
        struct {
            struct tensor x, table;
            int n_heads, head_dim, n_rot;
            enum rope_style style;
        } rope;
        struct {
            struct tensor k, v;
            int view, layer;
        } kv_put;
        struct {
            struct tensor out, q;
            struct attend_opt opt;
            int view, layer, rope;
        } attend; /* rope: see fuse */
        struct {
            struct tensor out, gate, up;
            enum act act;
        } act; /* up.data NULL: none */
        struct {
            struct tensor x, y;
            float scale;
        } add; /* scale, softcap, clamp and gate_rows too */
        struct {
            struct tensor logits;
            int32_t *ids;
            float *weights;
            struct route_opt opt;
        } route;
        struct {
            struct tensor out, x;
            const int32_t *ids;
            const float *weights;
            struct experts_opt opt;
        } experts;
        struct {
            struct tensor logits;
            int32_t *ids;
            const struct sample_row *picks;
            const struct logit_adjust *adjust;
            int n;
        } sample;
        struct {
            struct tensor q, k, v;
            const float *q_norm, *k_norm, *table;
            float eps;
            int n_heads, n_kv_heads, head_dim, n_rot, view, layer;
            enum rope_style style;
        } rope_kv;
        struct {
            struct tensor out, x;
            struct linear_heads_opt opt;
        } heads;
        struct {
            struct tensor out, x;
            struct op_state st;
            struct conv_opt opt;
        } conv;
        struct {
            struct tensor out;
            struct scan_in in;
            struct op_state st;
            struct scan_opt opt;
        } scan;
        struct {
            struct tensor out;
            struct delta_in in;
            struct op_state st;
            struct delta_opt opt;
        } delta;
    } u;
};

struct record {
    struct op *ops;
    struct linear *jobs;
    struct kvview *views;
    int n, cap, n_jobs, cap_jobs, n_views, cap_views;
    int n_tokens; /* the most rows any activation had */
    bool fused;   /* record_fuse was here */
    int few;      /* views of so many tokens get a max_pos that many steps share */
};

int record_init(struct record *r, int cap, int few, struct err *e);
void record_release(struct record *r); /* a zeroed one is fine */
void record_clear(struct record *r);
bool record_has_room(const struct record *r, int n_jobs);

void record_copy(struct record *r, enum op_kind kind, void *dst, const void *src, size_t bytes);
void record_embed(struct record *r, const struct tensor *out, const struct weight *w,
                  const int32_t *ids, float scale);
void record_gather(struct record *r, const struct tensor *out, const struct tensor *x,
                   const int32_t *rows);
void record_norm(struct record *r, enum op_norm kind, const struct tensor *out,
                 const struct tensor *x, const float *w, const float *b, float eps);
void record_headnorm(struct record *r, const struct tensor *x, int n_heads, int head_dim,
                     const float *w, int w_stride, float eps);
void record_headnorm_layer(struct record *r, const struct tensor *x, int n_heads, int head_dim,
                           const float *w, const float *b, int w_stride, float eps);
void record_linear(struct record *r, const struct tensor *x, const struct linear *jobs, int n_jobs);
void record_rope_table(struct record *r, const struct tensor *table, const int32_t *pos,
                       const float *freq, int n_rot, float mscale);
void record_rope(struct record *r, const struct tensor *x, int n_heads, int head_dim, int n_rot,
                 const struct tensor *table, enum rope_style style);
void record_kv_put(struct record *r, const struct kvview *kv, int layer, const struct tensor *k,
                   const struct tensor *v); /* v NULL: in the keys */
void record_attend(struct record *r, const struct tensor *out, const struct tensor *q,
                   const struct kvview *kv, int layer, const struct attend_opt *opt);
void record_act(struct record *r, const struct tensor *out, const struct tensor *gate,
                const struct tensor *up, enum act act);
/* Logits that the product just before it makes are made exactly. */
void record_route(struct record *r, int32_t *ids, float *weights, const struct tensor *logits,
                  const struct route_opt *opt);
void record_experts(struct record *r, const struct tensor *out, const struct tensor *x,
                    const int32_t *ids, const float *weights, const struct experts_opt *opt);
/* OP_ADD, OP_SCALE (y NULL), OP_SOFTCAP and OP_CLAMP (y NULL, by is the limit), OP_GATE_ROWS (y has
 * one column). */
void record_add(struct record *r, enum op_kind kind, const struct tensor *x, const struct tensor *y,
                float by);
void record_sample(struct record *r, int32_t *ids, const struct tensor *logits,
                   const struct sample_row *picks, int n, const struct logit_adjust *adjust);

void record_heads(struct record *r, const struct tensor *out, const struct tensor *x,
                  const struct linear_heads_opt *opt);
void record_conv(struct record *r, const struct tensor *out, const struct tensor *x,
                 const struct stateview *st, int layer, const struct conv_opt *opt);
void record_scan(struct record *r, const struct tensor *out, const struct scan_in *in,
                 const struct stateview *st, int layer, const struct scan_opt *opt);
void record_delta(struct record *r, const struct tensor *out, const struct delta_in *in,
                  const struct stateview *st, int layer, const struct delta_opt *opt);

/* Equal for records that launch the same: every argument that a kernel sees, the weights' and the
 * blocks' places too. Of an unfused record. */
uint64_t record_hash(const struct record *r);

/* Marks what is done together. last: this is the end of a step, nobody reads intermediates after
 * it. An attend of one token also does operation `rope`, an OP_ROPE_KV, unless that is -1. */
void record_fuse(struct record *r, bool last);
#endif
