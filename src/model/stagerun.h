/* stagerun.h - a step through one member's part: pieces of the batch in, rows and logits out. */
#ifndef TERN_MODEL_STAGERUN_H
#define TERN_MODEL_STAGERUN_H

#include "comm/gang.h"
#include "model/devgroup.h"
#include "model/runner.h"
#include "model/shard.h"
#include "model/stepplan.h"

struct stagerun {
    struct runner *local; /* the member's decoder */
    struct shard *shard;
    struct comm all, group; /* all members; those of the stage */
    struct devgroup dev;    /* those of the stage, as devices; zeroed: this member alone */
    int n_vec, n_logits;    /* numbers of a hidden row, of a row of the member's logits */
    float *logits;          /* [max_out][n_logits] of the step, on the last stage */
    float *hidden;          /* [max_tokens][n_vec], where hidden rows are wanted */
    int32_t *rows, *places; /* [max_out] a piece's wanted rows, and their places in the step */
    int32_t *tokens;        /* [max_tokens] a piece's hidden rows */
};

/* Opens the communicators and points the shard to its group. */
int stagerun_open(struct stagerun *s, struct runner *local, struct shard *shard,
                  struct comm_link *link, const struct gang_shape *shape, struct err *e);
void stagerun_release(struct stagerun *s); /* a zeroed one is allowed */

/* Agrees with the other members of the stage on how sums travel: all of them call it at the same time,
 * before the first step. */
int stagerun_group(struct stagerun *s, const struct gang_shape *shape, struct err *e);

/* All pieces of the step. On the last stage logits and hidden are then filled. */
int stagerun_step(struct stagerun *s, const struct stepplan *p, struct err *e);

/* The rank of member r of a stage among all. */
static inline int stage_rank(const struct shard_opt *o, int stage, int r)
{
    return stage * o->tp + r;
}
#endif
