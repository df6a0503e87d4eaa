/* batch.c - what every runner checks before it trusts a batch. The arrays come from the engine or
 * from a tool; an index out of range would read or write foreign memory in a kernel. */
#include "model/batch.h"

#include "model/runner.h"

static int check_limits(const struct batch *b, const struct runner_limits *m, struct err *e)
{
    if (b->n_tokens >= 1 && b->n_tokens <= m->max_tokens && b->n_seqs >= 1 &&
        b->n_seqs <= m->max_seqs && b->table_stride >= 1 && b->table_stride <= m->max_table &&
        b->n_out >= 0 && b->n_out <= m->max_out)
        return OK;
    return err_set(e, E_INVALID,
                   "a batch of %d tokens of %d sequences (%d blocks each, %d outputs) is over the "
                   "limits of %d, %d, %d, %d",
                   b->n_tokens, b->n_seqs, b->table_stride, b->n_out, m->max_tokens, m->max_seqs,
                   m->max_table, m->max_out);
}

/* An id of the vocabulary, at a position whose block is in the table and exists. */
static int check_token(const struct batch *b, const struct runner_limits *m, int t, struct err *e)
{
    int32_t pos = b->pos[t], seq = b->seq[t], block;

    if (b->ids[t] < 0 || b->ids[t] >= m->n_vocab)
        return err_set(e, E_INVALID, "token id %d is outside the vocabulary of %d", b->ids[t],
                       m->n_vocab);
    if (seq < 0 || seq >= b->n_seqs || pos < 0 || pos / KV_BLOCK >= b->table_stride)
        return err_set(e, E_INVALID,
                       "token %d at position %d of sequence %d is outside the batch's block table",
                       t, pos, seq);
    block = b->table[(size_t)seq * (size_t)b->table_stride + (size_t)(pos / KV_BLOCK)];
    if (block < 0 || block >= m->n_blocks)
        return err_set(e, E_INVALID,
                       "position %d of sequence %d lies in block %d, but there are %d", pos, seq,
                       block, m->n_blocks);
    return OK;
}

/* Wanted rows are tokens of the batch; hidden rows ascend, so that results need no sorting. */
static int check_rows(const struct batch *b, struct err *e)
{
    for (int i = 0; i < b->n_out; i++)
        if (b->out_rows[i] < 0 || b->out_rows[i] >= b->n_tokens)
            return err_set(e, E_INVALID, "output row %d is not one of %d tokens", b->out_rows[i],
                           b->n_tokens);
    for (int i = 0; i < b->n_hidden; i++)
        if (b->hidden_rows[i] <= (i ? b->hidden_rows[i - 1] : -1) ||
            b->hidden_rows[i] >= b->n_tokens)
            return err_set(e, E_INVALID, "hidden row %d is not one of %d tokens, or out of order",
                           b->hidden_rows[i], b->n_tokens);
    return OK;
}

/* Bidirectional attention needs all tokens of a text at once, and has no logits. */
static int check_whole_texts(const struct batch *b, const int32_t *seq_end, int32_t *n_of,
                             struct err *e)
{
    if (b->n_out)
        return err_set(e, E_INVALID, "a model with bidirectional attention has no logits");
    for (int i = 0; i < b->n_seqs; i++) n_of[i] = 0;
    for (int t = 0; t < b->n_tokens; t++) n_of[b->seq[t]]++;
    for (int i = 0; i < b->n_seqs; i++)
        if (n_of[i] && n_of[i] != seq_end[i])
            return err_set(e, E_INVALID,
                           "%d of %d tokens of sequence %d: bidirectional attention needs all of "
                           "them in one batch",
                           n_of[i], seq_end[i], i);
    return OK;
}

/* Each sampled row is an output of its own, with its adjustments inside the list. */
static int check_samples(const struct batch *b, const struct runner_limits *m, struct err *e)
{
    bool good = m->samples && b->n_samples <= b->n_out && b->n_adjust >= 0 &&
                b->n_adjust <= m->max_adjust && b->n_sample_ids > 0 &&
                b->n_sample_ids <= m->n_vocab && b->sampled;

    for (int i = 0; good && i < b->n_samples; i++) {
        const struct sample_row *p = &b->samples[i];
        good = p->row > (i ? p[-1].row : -1) && p->row < b->n_out && p->adjust >= 0 &&
               p->n_adjust >= 0 && p->n_adjust <= b->n_adjust - p->adjust;
    }
    for (int i = 0; good && i < b->n_adjust; i++)
        good = b->adjust[i].id >= 0 && b->adjust[i].id < m->n_vocab;
    return good ? OK
                : err_set(e, E_INVALID,
                          "%d sampled tokens of %d outputs with %d adjustments do not fit the "
                          "batch or the runner",
                          b->n_samples, b->n_out, b->n_adjust);
}

int batch_check(const struct batch *b, const struct runner_limits *lim, int32_t *seq_end,
                int32_t *n_of, struct err *e)
{
    int rc = check_limits(b, lim, e);

    if (rc != OK) return rc;
    for (int i = 0; i < b->n_seqs; i++) seq_end[i] = b->seq_len ? b->seq_len[i] : 0;
    for (int t = 0; t < b->n_tokens; t++) {
        if ((rc = check_token(b, lim, t, e)) != OK) return rc;
        if (seq_end[b->seq[t]] <= b->pos[t]) seq_end[b->seq[t]] = b->pos[t] + 1;
    }
    if ((rc = check_rows(b, e)) != OK) return rc;
    if (lim->bidirectional && (rc = check_whole_texts(b, seq_end, n_of, e)) != OK) return rc;
    return b->n_samples ? check_samples(b, lim, e) : OK;
}

int batch_stopped(struct err *e)
{
    return err_set(e, E_CANCELLED, "the pass was stopped: its results are not needed any more");
}
