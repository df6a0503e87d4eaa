#include "engine/step.h"

#include "base/mem.h"

#include <string.h>

int step_init(struct step *st, struct step_opt o, struct err *e)
{
    size_t nt = (size_t)o.max_tokens, ns = (size_t)o.max_seqs, cells = ns * (size_t)o.table_stride;

    *st = (struct step){ .max_tokens = o.max_tokens,
                         .max_seqs = o.max_seqs,
                         .table_stride = o.table_stride,
                         .max_adjust = o.max_adjust,
                         .n_pick_from = o.n_pick_from,
                         .has_state = o.has_state };
    st->ids = mem_array(nt, sizeof *st->ids);
    st->pos = mem_array(nt, sizeof *st->pos);
    st->row = mem_array(nt, sizeof *st->row);
    st->table = mem_array(cells, sizeof *st->table);
    st->slots = mem_array(ns, sizeof *st->slots);
    st->n_embd = o.n_embd;
    st->pooling = o.pooling;
    st->max_hidden = o.pooling == POOL_MEAN ? o.max_tokens : o.max_seqs;
    st->hidden_rows = mem_array((size_t)st->max_hidden, sizeof *st->hidden_rows);
    st->hidden = mem_array((size_t)st->max_hidden * (size_t)o.n_embd, sizeof *st->hidden);
    st->n_hidden_of = mem_array(ns, sizeof *st->n_hidden_of);
    st->out_rows = mem_array(ns, sizeof *st->out_rows);
    st->seqs = mem_array(ns, sizeof *st->seqs);
    st->n_new = mem_array(ns, sizeof *st->n_new);
    st->out = mem_array(ns, sizeof *st->out);
    st->seq_len = mem_array(ns, sizeof *st->seq_len);
    st->second = mem_array(ns, sizeof *st->second);
    st->pick = mem_array(ns, sizeof *st->pick);
    st->picks = mem_array(ns, sizeof *st->picks);
    st->picked = mem_array(ns, sizeof *st->picked);
    st->adjust = mem_array((size_t)o.max_adjust + 1, sizeof *st->adjust);
    if (st->ids && st->pos && st->row && st->table && st->slots && st->hidden_rows && st->hidden &&
        st->n_hidden_of && st->out_rows && st->seqs && st->n_new && st->out && st->seq_len &&
        st->second && st->pick && st->picks && st->picked && st->adjust)
        return OK;
    step_release(st);
    return err_set(e, E_NOMEM, "no memory for steps of %d tokens and %d sequences", o.max_tokens,
                   o.max_seqs);
}

void step_release(struct step *st)
{
    mem_free(st->ids);
    mem_free(st->pos);
    mem_free(st->row);
    mem_free(st->table);
    mem_free(st->slots);
    mem_free(st->hidden_rows);
    mem_free(st->hidden);
    mem_free(st->n_hidden_of);
    mem_free(st->out_rows);
    mem_free(st->seqs);
    mem_free(st->n_new);
    mem_free(st->out);
    mem_free(st->seq_len);
    mem_free(st->second);
    mem_free(st->pick);
    mem_free(st->picks);
    mem_free(st->picked);
    mem_free(st->adjust);
    *st = (struct step){ 0 };
}

void step_begin(struct step *st)
{
    st->n_tokens = st->n_seqs = st->n_out = st->n_picks = st->n_adjust = st->n_hidden = 0;
}

/* The last n tokens of the batch are s's: which of them its embedding is made of. */
static void add_hidden(struct step *st, const struct seq *s, int row, int n)
{
    int first = st->n_tokens - n;

    for (int i = 0; i < n; i++) {
        int pos = s->n_kv + i;
        if (st->pooling == POOL_CLS && pos != 0) continue;
        if (st->pooling == POOL_LAST && (size_t)pos + 1 != s->tokens.n) continue;
        st->hidden_rows[st->n_hidden++] = first + i;
        st->n_hidden_of[row]++;
    }
}

void step_add(struct step *st, struct seq *s, int n)
{
    int row = st->n_seqs++;

    memcpy(st->table + (size_t)row * (size_t)st->table_stride, s->chain.blocks,
           (size_t)s->chain.n * sizeof *st->table);
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
    st->out[row] = st->pick[row] = -1;
    st->n_hidden_of[row] = 0;
    if (s->r->embed) {
        add_hidden(st, s, row, n);
        return;
    }
    if ((size_t)(s->n_kv + n) == s->tokens.n) { /* all of it is in: the next token can be picked */
        st->out[row] = st->n_out;
        st->out_rows[st->n_out++] = st->n_tokens - 1;
    }
}

void step_pick(struct step *st, int i, const int32_t *bans, int n_bans)
{
    struct sample_row *p = &st->picks[st->n_picks];
    int n;

    if (st->max_adjust == 0 || st->out[i] < 0) return;
    n = sampler_plan(st->seqs[i]->sampler, bans, n_bans, p, st->adjust + st->n_adjust,
                     st->max_adjust - st->n_adjust);
    if (n < 0) return;
    p->row = st->out[i];
    p->adjust = st->n_adjust;
    st->n_adjust += n;
    st->pick[i] = st->n_picks++;
}

int step_start(struct step *st, struct decoder *d, bool (*stop)(void *arg), void *arg,
               struct err *e)
{
    struct batch b = { .n_tokens = st->n_tokens,
                       .ids = st->ids,
                       .pos = st->pos,
                       .seq = st->row,
                       .n_seqs = st->n_seqs,
                       .table = st->table,
                       .table_stride = st->table_stride,
                       .n_out = st->n_out,
                       .out_rows = st->out_rows,
                       .n_picks = st->n_picks,
                       .picks = st->picks,
                       .adjust = st->adjust,
                       .n_adjust = st->n_adjust,
                       .n_pick_from = st->n_pick_from,
                       .picked = st->picked,
                       .seq_len = st->seq_len,
                       .second = st->second,
                       .slots = st->has_state ? st->slots : NULL,
                       .n_hidden = st->n_hidden,
                       .hidden_rows = st->hidden_rows,
                       .hidden = st->hidden,
                       .stop = stop,
                       .stop_arg = arg };

    return decoder_start(d, &b, e);
}

int step_wait(struct step *st, struct decoder *d, const float **logits, struct err *e)
{
    int rc = decoder_wait(d, logits, e);

    if (rc != OK) return rc;
    for (int i = 0; i < st->n_seqs; i++)
        if (st->seqs[i]) st->seqs[i]->n_kv += st->n_new[i];
    return OK;
}
