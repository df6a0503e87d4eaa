#include "pool/budget.h"

#include "model/hparams.h"

static uint64_t or_default(int given, uint64_t dflt) { return given > 0 ? (uint64_t)given : dflt; }

static uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

static uint64_t blocks_for(uint64_t tokens) { return (tokens + KV_BLOCK - 1) / KV_BLOCK; }

static uint64_t kv_bytes(const struct hparams *hp, const struct engine_opt *o, uint64_t n_ctx)
{
    enum dtype type = o->kv_type == DT_NONE ? (o->backend.reference ? DT_F32 : DT_F16) : o->kv_type;
    uint64_t n = blocks_for(max_u64(or_default(o->kv_tokens, 4 * n_ctx), n_ctx)) + 1, bytes = 0,
             state = 0, slots;

    for (int l = 0; l < hp->n_layers; l++) {
        struct kvshape kv = mix_kvshape(hp, l);
        struct stateshape st = mix_stateshape(hp, l);
        bytes += block_bytes(&kv, 1, type);
        state += state_bytes(&st, 1);
    }
    slots = or_default(o->max_seqs, 16);
    if (!o->no_prefix) slots += (uint64_t)engine_snaps((int)slots);
    return n * bytes + slots * state;
}

/* Rows of activations of the widest layer, and logits: the large part of what a decoder takes. */
static uint64_t scratch_bytes(const struct hparams *hp, const struct engine_opt *o)
{
    uint64_t n = or_default(o->max_batch, (uint64_t)engine_batch_default(&o->backend));
    uint64_t n_out = or_default(o->max_seqs, 16), row = hparams_step_row(hp), out;

    out = 2 * (uint64_t)hp->n_embd + (uint64_t)hp->n_vocab;
    return sizeof(float) * (n * row + n_out * out);
}

int budget_plan(struct budget *out, const char *path, const struct engine_opt *opt, struct err *e)
{
    struct source *src = NULL;
    struct arena arena = { 0 };
    struct hparams hp = { 0 };
    uint64_t n_ctx;
    int rc;

    if ((rc = source_open(&src, path, e)) != OK) goto out;
    if ((rc = hparams_read(&hp, &arena, src, e)) != OK) goto out;
    n_ctx = or_default(opt->n_ctx, hp.n_ctx > 1 && hp.n_ctx < 4096 ? (uint64_t)hp.n_ctx : 4096);
    *out = (struct budget){ source_bytes(src), kv_bytes(&hp, opt, n_ctx), scratch_bytes(&hp, opt) };
out:
    arena_release(&arena);
    source_close(src);
    return rc;
}

int budget_check(const struct budget *b, uint64_t taken, uint64_t limit, struct err *e)
{
    const double mib = 1024.0 * 1024.0;

    if (limit == 0 || taken + budget_total(b) <= limit) return OK;
    return err_set(e, E_MEMORY,
                   "it needs %.1f MiB (weights %.1f, KV %.1f, scratch %.1f), other models take "
                   "%.1f, and memory-limit "
                   "is %.1f: a smaller ctx, kv-tokens or max-batch needs less",
                   (double)budget_total(b) / mib, (double)b->weights / mib, (double)b->kv / mib,
                   (double)b->scratch / mib, (double)taken / mib, (double)limit / mib);
}
