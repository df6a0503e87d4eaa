/* shard.h - the part of a model that one member of a gang has.
 *
 * Two divisions, which go together:
 *
 *   pp stages   each has consecutive layers; rows pass from one stage to the next
 *   tp members  of a stage each have a part of every layer's heads, feed-forward width (or of the
 *               experts) and of the output head's rows; what they compute of a block's output is
 *               summed over the members of the stage
 *
 * A shard is a model of its own for the rest of the code: hyper-parameters with the member's own
 * head counts and widths, and a weight list whose items name the rows and columns to read. Only
 * the sums, and the norms that go over several members' columns, know that there are others.
 *
 *   rows of the member      wq wk wv, gate up, experts' gate up, output head; their biases
 *   columns of the member   wo, down, experts' down; their biases on member 0 alone
 *   whole on every member   norms, router, embedding (rows are read where the file has them), latent
 *                           projections of MLA
 *
 * Heads are divided by groups of queries that share a key. Where there are fewer KV heads than
 * members, several members keep the same KV head and divide its queries. Divisions may be uneven.
 * Columns of quantized matrices are cut between blocks; a cut inside a block is read as F16. */
#ifndef TERN_MODEL_SHARD_H
#define TERN_MODEL_SHARD_H

#include "comm/comm.h"
#include "kernel/group.h"
#include "model/cut.h"
#include "model/weightlist.h"

struct shard_opt {
    int tp, pp;
    int tp_rank, stage;
    bool ep; /* experts are divided among the members of a stage, not cut */
    /* Relative speeds of the tp members, or without these of the pp stages: what each gets is in
     * this proportion. All 0: equal. */
    int shares[COMM_MAX];
    int layers[COMM_MAX]; /* of each stage; all 0: by shares, or equal */
};

/* The member's part of one layer, as ranges of the whole layer's. */
struct shard_layer {
    struct span heads, kv_heads;       /* attention; latent attention: kv_heads is not used */
    bool first_of_kv;                  /* no member before this one has its KV heads */
    struct span ff;                    /* feed-forward width */
    struct span mix_heads, mix_groups; /* mamba2: heads, groups; delta: value heads, key heads */
    struct span channels;              /* mamba, short convolution */
    bool split_norm; /* mamba2: the norm after the gate goes over the columns of all members */
};

enum { SHARD_DEVICES = 8 }; /* as many as a model has parts */

struct shard {
    struct shard_opt opt;
    const struct hparams *whole;
    const struct weight_list *list; /* of the whole model */
    struct hparams hp;              /* the member's; hp.shard is this shard */
    struct weight_list weights;     /* the member's */
    int first, end;                 /* layers of the stage */
    struct shard_layer *layers;     /* [end - first] */
    struct span exp_ff, experts, vocab;
    bool has_embd, has_head; /* of the first and the last stage */
    struct comm *group;      /* the members of the stage; NULL: this member alone */
    struct err failed;       /* of a sum, until the step's end */
    enum comm_wire wire;     /* of the sums of a block's outputs */
    enum group_way way;      /* in which members on devices sum (devgroup.h) */
    struct shard_sums {      /* of split norms, on each device of the member */
        struct backend *be;
        float *p; /* [2 * max_tokens] */
        size_t bytes;
    } sums[SHARD_DEVICES];
};

/* Makes the shard; all memory is in the arena. E_UNSUPPORTED names what cannot be divided so. */
int shard_make(struct shard **out, struct arena *a, const struct hparams *hp,
               const struct weight_list *whole, const struct shard_opt *opt, struct err *e);
/* Which divisions the model allows: E_UNSUPPORTED with the reason. shard_make asks it, too. */
int shard_check(const struct hparams *hp, const struct shard_opt *opt, struct err *e);

/* Rows of the output head of the member; layers of stage i of n, as even as they go. */
struct span shard_vocab(const struct hparams *hp, const struct shard_opt *o);
struct span shard_stage(const struct hparams *hp, int i, int n);

/* Memory for sums of steps of that size, on one of the member's devices. */
int shard_reserve(struct shard *s, struct backend *be, int max_tokens, struct err *e);
/* Numbers of the largest sum of such steps. */
size_t shard_largest_sum(const struct shard *s, int max_tokens);
void shard_release(struct shard *s);

/* x = sum over the members of the stage; nothing without a shard. A failure is kept in the shard. be: the
 * device that x is on. */
void shard_sum(struct backend *be, const struct hparams *hp, const struct tensor *x);
/* RMSNorm of rows whose columns are divided among the members: out = x / sqrt(mean + eps) * w. The mean
 * is that of all n columns. counts: this member's columns are not also another's. */
struct shard_norm {
    const struct tensor *out, *x; /* may be the same */
    const float *w;               /* [x->cols] */
    int n;
    bool counts;
};
void shard_norms(struct backend *be, const struct hparams *hp, const struct shard_norm *list,
                 int n_list, float eps); /* at most two */

/* ---- for the loader ---- */

/* Members other than the first add no biases of blocks that are summed. */
void shard_drop_biases(const struct shard *s, struct model *m);

static inline bool shard_divides(const struct hparams *hp)
{
    return hp->shard && hp->shard->opt.tp > 1;
}
/* Rows of the output head, which are columns of the logits. */
static inline int shard_logits(const struct hparams *hp)
{
    return hp->shard ? (int)hp->shard->vocab.n : hp->n_vocab;
}
/* Heads of the whole model's attention, and the member's first of them: for ALiBi, whose slopes are
 * the same in all layers. */
static inline int shard_all_heads(const struct hparams *hp)
{
    return hp->shard ? hp->shard->whole->layers[0].n_heads : hp->layers[0].n_heads;
}
static inline int shard_first_head(const struct hparams *hp)
{
    return hp->shard ? (int)hp->shard->layers[0].heads.at : 0;
}
static inline bool shard_has_head(const struct hparams *hp)
{
    return !hp->shard || hp->shard->has_head;
}
static inline bool shard_has_embd(const struct hparams *hp)
{
    return !hp->shard || hp->shard->has_embd;
}
#endif
