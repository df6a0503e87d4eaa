/* sizes.c - from a model and its memory to context, KV cache and batch. Reads nothing but its
 * arguments. */
#include "model/sizes.h"

#include "base/minmax.h"
#include "kernel/kvview.h"

enum {
    CTX_LEAST = 4096,
    CTX_MOST = 1 << 24,
    BATCH_CPU = 512,
    BATCH_GPU = 2048,
    SEQS_LEAST = 16,
    SEQ_TOKENS = 512,     /* of the KV cache for each sequence, before there are more of them */
    KV_MOST = 1 << 22,    /* tokens; what is known of each block takes host memory too */
    KV_CONTEXTS_SMALL = 4 /* where memory is not known, and of an encoder */
};

int sizes_blocks(int kv_tokens) { return (kv_tokens + KV_BLOCK - 1) / KV_BLOCK + 1; }

/* Snapshots of recurrent state, whatever the memory. */
static int least_saved(const struct sizes_in *in, const struct sizes *s)
{
    return in->no_prefix ? 0 : min_int(max_int(s->max_seqs / 2, 4), 8);
}

/* More are of little use: a border of the prompt and the end of the completion of every sequence, and
 * those of a few conversations before. */
static int most_saved(const struct sizes_in *in, const struct sizes *s)
{
    if (in->no_prefix || in->few_saved || !in->known) return least_saved(in, s);
    return min_int(max_int(2 * s->max_seqs, 16), 32);
}

/* Bytes of memory i for snapshots, of `left` bytes for KV blocks and state. They grow evenly with
 * `left`, so that the KV cache does, too: the last snapshot may fit in part only. */
static uint64_t saved_bytes(const struct sizes_in *in, int i, const struct sizes *s, uint64_t left)
{
    const struct sizes_memory *m = &in->memory[i];
    uint64_t least = (uint64_t)least_saved(in, s), most = (uint64_t)most_saved(in, s);
    uint64_t taken = m->slot_bytes * (uint64_t)s->max_seqs;

    if (in->given.kv_tokens) taken += m->block_bytes * (uint64_t)sizes_blocks(in->given.kv_tokens);
    left = left > taken ? (left - taken) / 4 : 0;
    return min_u64(max_u64(left, least * m->slot_bytes), most * m->slot_bytes);
}

/* Models before this one have taken their part of the same whole: of what is left, this one's part
 * is larger. */
double sizes_share(const struct sizes_room *r, double all)
{
    double share = r->share > 0 && r->share <= 1 ? r->share : 1, before = r->share_before;

    if (!(before > 0)) before = 0;
    if (before + share > 1) before = 1 - share;
    return all * share / (1 - all * before);
}

static int round_up(int n) { return (n + KV_BLOCK - 1) / KV_BLOCK * KV_BLOCK; }

/* The context that is wanted: given, or as trained. */
static int wanted_ctx(const struct sizes_in *in)
{
    int n = in->given.n_ctx;

    if (n == 0) n = in->trained_ctx > 1 ? in->trained_ctx : CTX_LEAST;
    if (!in->given.n_ctx && !in->known) n = min_int(n, CTX_LEAST);
    if (in->max_ctx > 0) n = min_int(n, in->max_ctx);
    return min_int(n, CTX_MOST);
}

/* Bytes of memory i for KV blocks and state, beside weights and the scratch of s. */
static uint64_t left_bytes(const struct sizes_in *in, int i, const struct sizes *s)
{
    const struct sizes_memory *m = &in->memory[i];
    uint64_t scratch = in->scratch(in->arg, i, s), fixed = m->weights + scratch, left;

    if (scratch == UINT64_MAX || fixed < scratch || fixed > m->room) return 0;
    left = (uint64_t)((double)(m->room - fixed) * m->share);
    return min_u64(left, m->room - fixed); /* rounding of the product */
}

/* Tokens for which memory i has KV blocks, with state and scratch of s beside them. */
static int64_t fit_tokens(const struct sizes_in *in, int i, const struct sizes *s)
{
    const struct sizes_memory *m = &in->memory[i];
    uint64_t left = left_bytes(in, i, s), state;

    if (m->slot_bytes > left / (uint64_t)(s->max_seqs + least_saved(in, s))) return 0;
    state = m->slot_bytes * (uint64_t)s->max_seqs + saved_bytes(in, i, s, left);
    if (left == 0) return 0;
    if (m->block_bytes == 0) return KV_MOST;
    left = (left - state) / m->block_bytes;
    if (left < 2) return 0; /* one block is not for tokens: sizes_blocks */
    return left - 1 > KV_MOST / KV_BLOCK ? KV_MOST : (int64_t)(left - 1) * KV_BLOCK;
}

/* The least of all memories. */
static int64_t fit_all(const struct sizes_in *in, const struct sizes *s, int *limited_by)
{
    int64_t least = KV_MOST;

    *limited_by = 0;
    for (int i = 0; i < in->n_memories; i++) {
        int64_t n = fit_tokens(in, i, s);
        if (n < least) least = n, *limited_by = i;
    }
    return least;
}

/* Tokens beyond which a KV cache is of little use. Few sequences get more than their contexts, for
 * the prefixes of those that ran before. */
static int64_t useful_tokens(const struct sizes_in *in, const struct sizes *s)
{
    int64_t ctx = round_up(s->n_ctx), n = ctx * s->max_seqs, step;
    int64_t least = (int64_t)KV_CONTEXTS_SMALL * min_int((int)ctx, CTX_LEAST);

    if (n < least) n = least;
    if (in->at_once) {
        step = round_up(s->max_batch) + (int64_t)s->max_seqs * KV_BLOCK;
        n = step > KV_CONTEXTS_SMALL * ctx ? step : KV_CONTEXTS_SMALL * ctx;
    }
    return n < KV_MOST ? n : ctx > KV_MOST ? ctx : KV_MOST;
}

/* The number of sequences, and how many tokens fit beside their scratch: s->max_seqs is set. */
static int64_t choose_seqs(const struct sizes_in *in, struct sizes *s, int *limited_by)
{
    int64_t fit;

    s->max_seqs = in->given.max_seqs;
    if (s->max_seqs == 0) s->max_seqs = in->gpu && in->known ? SIZES_SEQS_GPU : SEQS_LEAST;
    s->max_seqs = min_int(s->max_seqs, s->max_batch);
    for (;; s->max_seqs /= 2) {
        fit = fit_all(in, s, limited_by);
        if (in->given.max_seqs || s->max_seqs <= SEQS_LEAST) return fit;
        if (fit >= (int64_t)SEQ_TOKENS * s->max_seqs) return fit;
    }
}

/* The KV cache where it is not given. fit: what memory has room for. */
static void choose_kv(struct sizes_out *out, const struct sizes_in *in, int64_t fit)
{
    int64_t useful = useful_tokens(in, &out->s);
    int least = in->given.n_ctx ? out->s.n_ctx : min_int(out->s.n_ctx, CTX_LEAST);

    if (!in->known) {
        out->kv_why = SIZES_UNKNOWN;
        fit = (int64_t)KV_CONTEXTS_SMALL * out->s.n_ctx;
        out->s.kv_tokens = fit < CTX_MOST ? (int)fit : out->s.n_ctx;
    } else if (fit < least) {
        /* With a part of the layers on the CPU there is room for more contexts. */
        out->kv_why = SIZES_LEAST;
        out->s.kv_tokens = in->gpu && !in->given.n_ctx ? KV_CONTEXTS_SMALL * least : least;
    } else {
        out->kv_why = fit < useful ? SIZES_MEMORY : SIZES_OF_USE;
        out->s.kv_tokens = (int)(fit < useful ? fit : useful);
    }
}

/* As many snapshots as every memory has room for. */
static int choose_saved(const struct sizes_in *in, const struct sizes *s)
{
    int n = most_saved(in, s);

    for (int i = 0; i < in->n_memories; i++) {
        uint64_t slot = in->memory[i].slot_bytes;
        if (slot) n = min_int(n, (int)(saved_bytes(in, i, s, left_bytes(in, i, s)) / slot));
    }
    return n;
}

void sizes_choose(struct sizes_out *out, const struct sizes_in *in)
{
    struct sizes *s = &out->s;
    int64_t fit;

    *out = (struct sizes_out){ .s = in->given, .kv_why = SIZES_GIVEN };
    s->n_ctx = wanted_ctx(in);
    if (s->max_batch == 0) s->max_batch = in->gpu ? BATCH_GPU : BATCH_CPU;
    fit = choose_seqs(in, s, &out->limited_by);
    if (s->kv_tokens == 0) choose_kv(out, in, fit);
    /* A context is given and the cache holds at least one; or it is chosen, and as long as the
     * cache is, but not shorter than the least. */
    if (!in->given.n_ctx) s->n_ctx = min_int(s->n_ctx, max_int(s->kv_tokens, CTX_LEAST));
    s->kv_tokens = max_int(s->kv_tokens, s->n_ctx);
    s->max_batch = min_int(s->max_batch, s->kv_tokens);
    s->max_seqs = min_int(s->max_seqs, s->max_batch);
    out->n_saved = choose_saved(in, s);
}
