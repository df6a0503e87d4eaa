/* stage.c - a batch's arrays, copied to a device in one transfer.
 *
 * All arrays are packed into the scratch's ints_host and put to its ints in a single call; the
 * pass then points into the device's copy. */
#include "model/decoder_impl.h"

#include <string.h>

enum { LEAST_ADJUST = 256 };

static const int32_t *stage_ints(struct pass *p, size_t *used, const int32_t *src, size_t n)
{
    const int32_t *there = p->s.ints + *used;

    if (n) memcpy(p->s.ints_host + *used, src, n * sizeof *src);
    *used += n;
    return there;
}

/* Structs begin at a multiple of STAGE_ALIGN. */
static const void *stage_structs(struct pass *p, size_t *used, const void *src, int n, size_t size)
{
    *used = (*used + STAGE_ALIGN - 1) / STAGE_ALIGN * STAGE_ALIGN;
    return stage_ints(p, used, src, (size_t)n * size / sizeof(int32_t));
}

/* The transferred size is rounded up to powers of two, so that steps with a few adjustments more or
 * less are the same sequence of calls: a GPU then replays its recorded graph. */
static void stage_adjust(struct pass *p, size_t *used, const struct batch *b)
{
    int n = LEAST_ADJUST;

    p->adjust = stage_structs(p, used, b->adjust, b->n_adjust, sizeof *b->adjust);
    while (n < b->n_adjust) n *= 2;
    if (n > p->s.max_adjust) n = p->s.max_adjust;
    if (b->n_adjust) *used += (size_t)(n - b->n_adjust) * (sizeof *b->adjust / sizeof(int32_t));
}

/* Tokens of a second text are of type 1, if the model has two types. */
static void stage_types(struct pass *p, size_t *used, const struct batch *b)
{
    int32_t *types = p->s.ints_host + *used;

    p->types = p->s.ints + *used;
    for (int t = 0; t < b->n_tokens; t++) {
        int second = b->second ? b->second[b->seq[t]] : 0;
        types[t] = second > 0 && b->pos[t] >= second && p->m->token_types.rows > 1;
    }
    *used += (size_t)b->n_tokens;
}

/* Ids without per-layer inputs, those of images and sounds, have the inputs of id 0. */
static void stage_ple_ids(struct pass *p, size_t *used, const struct batch *b)
{
    p->ple_ids = p->s.ints + *used;
    for (int t = 0; t < b->n_tokens; t++)
        p->s.ints_host[*used + (size_t)t] = b->ids[t] < p->m->hp.n_ple_vocab ? b->ids[t] : 0;
    *used += (size_t)b->n_tokens;
}

static int largest_pos(const struct batch *b)
{
    int most = 0;

    for (int t = 0; t < b->n_tokens; t++)
        if (b->pos[t] > most) most = b->pos[t];
    return most;
}

void stage_batch(struct pass *p, const struct decoder *d, const struct batch *b)
{
    size_t used = 0, n = (size_t)b->n_tokens;
    bool samples = b->n_samples && p->s.last;

    p->ids = stage_ints(p, &used, b->ids, n);
    p->kv.pos = stage_ints(p, &used, b->pos, n);
    p->kv.seq = stage_ints(p, &used, b->seq, n);
    p->out_rows = stage_ints(p, &used, b->out_rows, (size_t)b->n_out);
    if (samples) p->samples = stage_structs(p, &used, b->samples, b->n_samples, sizeof *b->samples);
    p->kv.table = stage_ints(p, &used, b->table, (size_t)b->n_seqs * (size_t)b->table_stride);
    if (p->m->token_types.rows) stage_types(p, &used, b);
    p->ple_ids = p->ids;
    if (p->m->hp.n_ple && p->m->hp.n_ple_vocab < p->m->hp.n_vocab) stage_ple_ids(p, &used, b);
    if (p->m->hp.encoder) p->kv.seq_end = stage_ints(p, &used, d->seq_end, (size_t)b->n_seqs);
    if (samples) stage_adjust(p, &used, b);
    if (d->states) {
        p->st.runs = stage_structs(p, &used, d->runs, d->n_runs, sizeof *d->runs);
        p->st.n_runs = d->n_runs;
        p->st.n_tokens = b->n_tokens;
    }
    p->kv.table_stride = b->table_stride;
    p->kv.n_tokens = b->n_tokens;
    p->kv.n_seqs = b->n_seqs;
    p->kv.max_pos = largest_pos(b);
    p->be->put(p->be, p->s.ints, p->s.ints_host, used * sizeof(int32_t));
}
