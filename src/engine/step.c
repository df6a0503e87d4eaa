/* step.c - one batch from the engine's sequences, and their progress when it is done. */
#include "engine/step.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

/* The arrays of a step, so that they are allocated and freed by the same list. */
struct step_array {
    void **p;
    size_t n, size;
};

enum { STEP_ARRAYS = 18, STRIDE_LEAST = 64 /* blocks of a row of the table */ };

static void list_arrays(struct step *st, const struct runner_limits *m, struct step_array *a)
{
    size_t nt = (size_t)m->max_tokens, ns = (size_t)m->max_seqs, nh = (size_t)st->max_hidden;
    const struct step_array all[STEP_ARRAYS] = {
        { (void **)&st->ids, nt, sizeof *st->ids },
        { (void **)&st->pos, nt, sizeof *st->pos },
        { (void **)&st->row, nt, sizeof *st->row },
        { (void **)&st->table, ns * (size_t)m->max_table, sizeof *st->table },
        { (void **)&st->slots, ns, sizeof *st->slots },
        { (void **)&st->hidden_rows, nh, sizeof *st->hidden_rows },
        { (void **)&st->hidden, nh * (size_t)m->n_vec, sizeof *st->hidden },
        { (void **)&st->n_hidden_of, ns, sizeof *st->n_hidden_of },
        { (void **)&st->out_rows, ns, sizeof *st->out_rows },
        { (void **)&st->seqs, ns, sizeof *st->seqs },
        { (void **)&st->n_new, ns, sizeof *st->n_new },
        { (void **)&st->out, ns, sizeof *st->out },
        { (void **)&st->second, ns, sizeof *st->second },
        { (void **)&st->seq_len, ns, sizeof *st->seq_len },
        { (void **)&st->sample_of, ns, sizeof *st->sample_of },
        { (void **)&st->samples, ns, sizeof *st->samples },
        { (void **)&st->adjust, (size_t)m->max_adjust + 1, sizeof *st->adjust },
        { (void **)&st->sampled, ns, sizeof *st->sampled },
    };
    memcpy(a, all, sizeof all);
}

int step_init(struct step *st, struct runner *r, const struct step_opt *opt, struct err *e)
{
    struct step_array a[STEP_ARRAYS];

    *st = (struct step){ .runner = r, .opt = *opt };
    st->max_hidden = pooler_max_rows(&opt->pooler, r->lim.max_tokens, r->lim.max_seqs);
    list_arrays(st, &r->lim, a);
    for (int i = 0; i < STEP_ARRAYS; i++) {
        void *p = mem_array(a[i].n, a[i].size);
        memcpy(a[i].p, &p, sizeof p);
        if (p) continue;
        step_release(st);
        return err_set(e, E_NOMEM, "no memory for steps of %d tokens and %d sequences",
                       r->lim.max_tokens, r->lim.max_seqs);
    }
    return OK;
}

void step_release(struct step *st)
{
    struct step_array a[STEP_ARRAYS];

    if (!st->runner) return;
    list_arrays(st, &st->runner->lim, a);
    for (int i = 0; i < STEP_ARRAYS; i++) {
        void *p;
        memcpy(&p, a[i].p, sizeof p);
        mem_free(p);
    }
    *st = (struct step){ 0 };
}

void step_clear(struct step *st)
{
    st->n_tokens = st->n_seqs = st->n_out = st->n_samples = st->n_adjust = st->n_hidden = 0;
    st->longest = 0;
}

/* The last n tokens of the batch are those of s: which of them its vector is made of. */
static void add_hidden(struct step *st, const struct seq *s, int row, int n)
{
    int first = st->n_tokens - n;

    for (int i = 0; i < n; i++) {
        if (!pooler_wants(&st->opt.pooler, s->n_kv + i, (int)s->tokens.n)) continue;
        st->hidden_rows[st->n_hidden++] = first + i;
        st->n_hidden_of[row]++;
    }
}

/* The table's row is copied: the chain may grow while the step runs. A sequence whose last token is
 * in the batch gets a row of logits. */
void step_add(struct step *st, struct seq *s, int n)
{
    const struct runner_limits *m = &st->runner->lim;
    int row = st->n_seqs++;

    assert(row < m->max_seqs && st->n_tokens + n <= m->max_tokens && s->chain.n <= m->max_table);
    assert(n > 0 && (size_t)(s->n_kv + n) <= s->tokens.n && s->chain.n * KV_BLOCK >= s->n_kv + n);
    memcpy(st->table + (size_t)row * (size_t)m->max_table, s->chain.blocks,
           (size_t)s->chain.n * sizeof *st->table);
    if (s->chain.n > st->longest) st->longest = s->chain.n;
    st->seqs[row] = s;
    st->slots[row] = s->slot;
    st->n_new[row] = n;
    st->second[row] = s->r->second;
    st->seq_len[row] = (int32_t)s->tokens.n; /* all of the prompt, also while it comes in chunks */
    for (int i = 0; i < n; i++) {
        st->ids[st->n_tokens] = s->tokens.p[s->n_kv + i];
        st->pos[st->n_tokens] = s->n_kv + i;
        st->row[st->n_tokens++] = row;
    }
    st->out[row] = st->sample_of[row] = -1;
    st->n_hidden_of[row] = 0;
    if (s->r->embed) {
        add_hidden(st, s, row, n);
        return;
    }
    if ((size_t)(s->n_kv + n) == s->tokens.n) { /* its last token is in: the next can be sampled */
        st->out[row] = st->n_out;
        st->out_rows[st->n_out++] = st->n_tokens - 1;
    }
}

/* Not possible if the sampler uses something that devices do not (typical sampling), or its
 * adjustments do not fit: then logits come back. */
void step_add_sample(struct step *st, int i, const int32_t *bans, int n_bans)
{
    struct sample_row *p = &st->samples[st->n_samples];
    int max_adjust = st->runner->lim.max_adjust, n;

    if (!st->runner->lim.samples || st->out[i] < 0) return;
    n = sampler_plan(st->seqs[i]->sampler, bans, n_bans, p, st->adjust + st->n_adjust,
                     max_adjust - st->n_adjust);
    if (n < 0) return;
    p->row = st->out[i];
    p->adjust = st->n_adjust;
    st->n_adjust += n;
    st->sample_of[i] = st->n_samples++;
}

/* Brings the rows of the table together: a device gets no more than the step needs of a table that
 * has room for the longest context. Returns the stride, a power of two where it can be: steps of
 * about the same length then look the same to a GPU, which replays its recorded graph. */
static int pack_table(struct step *st)
{
    int max = st->runner->lim.max_table, stride = STRIDE_LEAST;

    while (stride < st->longest) stride *= 2;
    if (stride >= max) return max;
    for (size_t i = 1; i < (size_t)st->n_seqs; i++)
        memmove(st->table + i * (size_t)stride, st->table + i * (size_t)max,
                (size_t)stride * sizeof *st->table);
    return stride;
}

int step_start(struct step *st, bool (*stop)(void *arg), void *arg, struct err *e)
{
    struct batch b = { .n_tokens = st->n_tokens,
                       .ids = st->ids,
                       .pos = st->pos,
                       .seq = st->row,
                       .n_seqs = st->n_seqs,
                       .table = st->table,
                       .table_stride = pack_table(st),
                       .n_out = st->n_out,
                       .out_rows = st->out_rows,
                       .n_samples = st->n_samples,
                       .samples = st->samples,
                       .adjust = st->adjust,
                       .n_adjust = st->n_adjust,
                       .n_sample_ids = st->opt.n_sample,
                       .sampled = st->sampled,
                       .seq_len = st->seq_len,
                       .second = st->second,
                       .slots = st->runner->lim.n_slots ? st->slots : NULL,
                       .n_hidden = st->n_hidden,
                       .hidden_rows = st->hidden_rows,
                       .hidden = st->hidden,
                       .stop = stop,
                       .stop_arg = arg };

    return runner_start(st->runner, &b, e);
}

/* Sequences advance only after success: after a failure their KV counts for nothing. */
int step_wait(struct step *st, const float **logits, struct err *e)
{
    int rc = runner_wait(st->runner, logits, e);

    if (rc != OK) return rc;
    for (int i = 0; i < st->n_seqs; i++)
        if (st->seqs[i]) st->seqs[i]->n_kv += st->n_new[i];
    return OK;
}
