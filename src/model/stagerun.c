/* stagerun.c - pieces of a batch through a stage. */
#include "model/stagerun.h"

#include "base/mem.h"
#include "model/decoder.h"

#include <string.h>

int stagerun_open(struct stagerun *s, struct runner *local, struct shard *shard,
                  struct comm_link *link, const struct gang_shape *shape, struct err *e)
{
    const struct runner_limits *lim = &local->lim;
    const struct shard_opt *o = &shard->opt;
    size_t n_out = (size_t)lim->max_out, n = (size_t)lim->max_tokens;
    int rc;

    *s = (struct stagerun){
        .local = local, .shard = shard, .n_vec = lim->n_vec, .n_logits = (int)shard->vocab.n
    };
    if ((rc = comm_open(&s->all, link, shape->step_ns, e)) != OK) return rc;
    rc = comm_open_group(&s->group, link, stage_rank(o, o->stage, 0), 1, o->tp, shape->step_ns, e);
    if (rc != OK) return rc;
    shard->group = &s->group;
    shard->wire = shape->wire;
    s->rows = mem_array(n_out, sizeof *s->rows);
    s->places = mem_array(n_out, sizeof *s->places);
    s->tokens = mem_array(n, sizeof *s->tokens);
    if (!s->rows || !s->places || !s->tokens) return err_nomem(e, "the pieces of a step");
    if (!shard->has_head) return OK;
    s->logits = mem_array(n_out, (size_t)s->n_logits * sizeof *s->logits);
    s->hidden = mem_array(n, (size_t)s->n_vec * sizeof *s->hidden);
    return s->logits && s->hidden ? OK : err_nomem(e, "the results of a step");
}

int stagerun_group(struct stagerun *s, const struct gang_shape *shape, struct err *e)
{
    const struct model *m = decoder_model(s->local);
    struct devgroup_opt opt = { .way = shape->wire == COMM_F32 || shape->way != WAY_AUTO
                                           ? shape->way
                                           : WAY_HOST, /* the only one with other wires */
                                .whole = m->n_parts == 1,
                                .max = shard_largest_sum(s->shard, s->local->lim.max_tokens),
                                .timeout_ns = shape->step_ns,
                                .failed = &s->shard->failed };
    int rc;

    if (s->shard->opt.tp < 2) return OK;
    rc = devgroup_open(&s->dev, &s->group, m->parts[m->n_parts - 1].be, &opt, e);
    if (rc == OK) s->shard->way = s->dev.way;
    return rc;
}

void stagerun_release(struct stagerun *s)
{
    if (s->shard) s->shard->group = NULL;
    devgroup_release(&s->dev);
    comm_release(&s->all);
    comm_release(&s->group);
    mem_free(s->rows);
    mem_free(s->places);
    mem_free(s->tokens);
    mem_free(s->logits);
    mem_free(s->hidden);
    *s = (struct stagerun){ 0 };
}

/* Tokens [first, end) of the batch as a batch of their own: wanted rows are counted from its start. */
static struct batch make_piece(struct stagerun *s, const struct batch *b, int first, int end)
{
    struct batch p = *b;

    p.n_tokens = end - first;
    p.ids += first;
    p.pos += first;
    p.seq += first;
    p.n_out = p.n_hidden = 0;
    p.n_samples = 0;
    p.stop = NULL;
    for (int i = 0; i < b->n_out; i++)
        if (b->out_rows[i] >= first && b->out_rows[i] < end) {
            s->rows[p.n_out] = b->out_rows[i] - first;
            s->places[p.n_out++] = i;
        }
    for (int i = 0; i < b->n_hidden; i++)
        if (b->hidden_rows[i] >= first && b->hidden_rows[i] < end) {
            if (p.n_hidden == 0 && s->hidden) p.hidden = s->hidden + (size_t)i * (size_t)s->n_vec;
            s->tokens[p.n_hidden++] = b->hidden_rows[i] - first;
        }
    p.out_rows = s->rows;
    p.hidden_rows = s->tokens;
    if (!s->shard->has_head) p.n_out = p.n_hidden = 0;
    return p;
}

static int run_piece(struct stagerun *s, const struct batch *p, struct err *e)
{
    const struct shard_opt *o = &s->shard->opt;
    size_t bytes = (size_t)p->n_tokens * (size_t)s->n_vec * sizeof(float),
           row = (size_t)s->n_logits * sizeof(float);
    const float *logits = NULL;
    int rc = OK;

    if (o->stage > 0)
        rc = comm_recv(&s->all, stage_rank(o, o->stage - 1, o->tp_rank), decoder_inlet(s->local),
                       bytes, e);
    if (rc == OK) rc = runner_run(s->local, p, &logits, e);
    if (rc != OK) return rc;
    if (!s->shard->has_head)
        return comm_send(&s->all, stage_rank(o, o->stage + 1, o->tp_rank), decoder_outlet(s->local),
                         bytes, e);
    for (int i = 0; i < p->n_out; i++)
        memcpy((char *)s->logits + (size_t)s->places[i] * row,
               (const char *)logits + (size_t)i * row, row);
    return OK;
}

int stagerun_step(struct stagerun *s, const struct stepplan *p, struct err *e)
{
    int rc = OK;

    for (int at = 0, end; at < p->b.n_tokens && rc == OK; at = end) {
        end = p->micro < p->b.n_tokens - at ? at + p->micro : p->b.n_tokens;
        struct batch piece = make_piece(s, &p->b, at, end);
        rc = run_piece(s, &piece, e);
    }
    return rc;
}
