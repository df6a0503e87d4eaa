/* cuda_cache.h - one layer of a paged KV cache on the GPU and on the reference backend, for
 * tests of attention.
 *
 * Sequences have the lengths of lens[]. Their blocks lie scattered over the pool, and rows that
 * no token was written to are NaN, so a kernel that reads too far yields NaN. */
#ifndef TERN_TESTS_OPS_CUDA_CACHE_H
#define TERN_TESTS_OPS_CUDA_CACHE_H

#include "cuda_both.h"

enum { N_SEQS = 4, STRIDE = 20, N_BLOCKS = 64 };
static const int lens[N_SEQS] = { 300, 1, 37, 64 };

/* The same KV cache on the reference backend (lc, c) and on the GPU (lg, g). cache_fill writes
 * it with kv_put, in chunks of 100 tokens. */
struct cache {
    struct kvlayer lc, lg;
    struct kvview c, g;
    struct ints table, seq, pos, end;
    size_t k_bytes, v_bytes;
};

/* latent: the cache stores no values. The values are the first dim_v numbers of each key, as in
 * multi-head latent attention. */
static inline void cache_open_as(struct cache *k, enum dtype type, int heads, int dim, int dim_v,
                                 bool latent)
{
    uint64_t kb = 0, vb = 0;
    int next = 0, perm[N_BLOCKS];

    assert_true(dtype_row_bytes(type, (uint64_t)dim, &kb) &&
                dtype_row_bytes(type, (uint64_t)dim_v, &vb));
    kb *= (uint64_t)heads * KV_BLOCK, vb *= latent ? 0 : (uint64_t)heads * KV_BLOCK;
    k->k_bytes = kb * N_BLOCKS, k->v_bytes = vb * N_BLOCKS;
    k->lc = (struct kvlayer){ mem_alloc(k->k_bytes),
                              latent ? NULL : mem_alloc(k->v_bytes),
                              heads,
                              dim,
                              dim_v,
                              kb,
                              vb,
                              latent,
                              NULL,
                              0,
                              0 };
    memset(k->lc.k, 0xff, k->k_bytes);
    if (!latent) memset(k->lc.v, 0xff, k->v_bytes);
    k->lg = k->lc;
    k->lg.k = device_copy(gpu, k->lc.k, k->k_bytes);
    if (!latent) k->lg.v = device_copy(gpu, k->lc.v, k->v_bytes);
    for (int i = 0; i < N_BLOCKS; i++) perm[i] = i * 37 % N_BLOCKS; /* a permutation: 37 is odd */
    for (int s = 0; s < N_SEQS; s++)
        for (int b = 0; b < STRIDE; b++)
            k->table.c[s * STRIDE + b] =
                b < (lens[s] + KV_BLOCK - 1) / KV_BLOCK ? perm[next++] : -1;
    memcpy(k->end.c, lens, sizeof lens);
    ints_upload(&k->table, N_SEQS * STRIDE), ints_upload(&k->seq, 1024), ints_upload(&k->pos, 1024),
        ints_upload(&k->end, N_SEQS);
    k->c = (struct kvview){ .type = type,
                            .layers = &k->lc,
                            .n_layers = 1,
                            .table = k->table.c,
                            .table_stride = STRIDE,
                            .seq = k->seq.c,
                            .pos = k->pos.c,
                            .n_seqs = N_SEQS,
                            .seq_end = k->end.c };
    k->g = k->c;
    k->g.layers = &k->lg, k->g.table = k->table.g, k->g.seq = k->seq.g, k->g.pos = k->pos.g,
    k->g.seq_end = k->end.g;
}

static inline void cache_open(struct cache *k, enum dtype type, int heads, int dim, int dim_v)
{
    cache_open_as(k, type, heads, dim, dim_v, false);
}

/* Appends tokens [from, to) of a sequence to the batch; first: begins a new batch. */
static inline void cache_add_tokens(struct cache *k, int seq, int from, int to, bool first)
{
    int n = first ? 0 : k->c.n_tokens, top = first ? 0 : k->c.max_pos;

    for (int p = from; p < to; p++, n++)
        k->seq.c[n] = seq, k->pos.c[n] = p, top = p > top ? p : top;
    k->c.n_tokens = k->g.n_tokens = n, k->c.max_pos = k->g.max_pos = top;
}

static inline void cache_upload_batch(struct cache *k)
{
    gpu->put(gpu, k->seq.g, k->seq.c, (size_t)k->c.n_tokens * sizeof(int32_t));
    gpu->put(gpu, k->pos.g, k->pos.c, (size_t)k->c.n_tokens * sizeof(int32_t));
}

static inline void cache_fill(struct cache *k)
{
    for (int s = 0; s < N_SEQS; s++)
        for (int p = 0; p < lens[s]; p += 100) {
            int to = p + 100 < lens[s] ? p + 100 : lens[s];
            struct both kk = both_new(to - p, k->lc.n_kv_heads * k->lc.head_dim, 3, 1.5f);
            struct both vv = both_new(to - p, k->lc.n_kv_heads * k->lc.head_dim_v, 3, 1);
            cache_add_tokens(k, s, p, to, true), cache_upload_batch(k);
            bool latent = k->lc.v_in_k;
            ref->kv_put(ref, &k->c, 0, &kk.c, latent ? NULL : &vv.c);
            gpu->kv_put(gpu, &k->g, 0, &kk.g, latent ? NULL : &vv.g);
            sync_backend(gpu);
            both_free(&kk), both_free(&vv);
        }
}

static inline void cache_close(struct cache *k)
{
    gpu->free(gpu, k->lg.k, k->k_bytes, MEM_SCRATCH);
    if (k->lg.v) gpu->free(gpu, k->lg.v, k->v_bytes, MEM_SCRATCH);
    ints_free(&k->table, N_SEQS * STRIDE), ints_free(&k->end, N_SEQS);
    ints_free(&k->seq, 1024), ints_free(&k->pos, 1024);
    mem_free(k->lc.k), mem_free(k->lc.v);
}

/* Builds batch number `shape` and uploads it. 0 decodes one sequence, 1 decodes all, 2 is a
 * chunk of a prompt, 3 a whole prompt, 4 decode and prefill mixed, 5 a short chunk. 6 to 8
 * contain only whole sequences, short and long, as bidirectional attention needs them. */
static inline void cache_make_batch(struct cache *k, int shape)
{
    cache_add_tokens(k, 0, 299, 300, true);
    if (shape == 1 || shape == 4)
        for (int s = 1; s < N_SEQS; s++) cache_add_tokens(k, s, lens[s] - 1, lens[s], false);
    if (shape == 2) cache_add_tokens(k, 0, 150, 190, true);
    if (shape == 3) cache_add_tokens(k, 0, 0, 300, true);
    if (shape == 4) cache_add_tokens(k, 3, 0, 64, false);
    if (shape == 5) cache_add_tokens(k, 2, 20, 27, true);
    if (shape == 6) cache_add_tokens(k, 1, 0, 1, true);
    if (shape >= 7) cache_add_tokens(k, 2, 0, 37, true);
    if (shape == 8)
        cache_add_tokens(k, 0, 0, 300, false), cache_add_tokens(k, 1, 0, 1, false),
            cache_add_tokens(k, 3, 0, 64, false);
    cache_upload_batch(k);
}

/* Runs attention on both backends for all batch shapes that the option allows (bidirectional
 * attention: whole sequences only) and returns the largest relative error. */
static inline double compare_attend(struct cache *k, const struct attend_opt *oc,
                                    const struct attend_opt *og)
{
    double worst = 0;

    for (int shape = oc->bidirectional ? 6 : 0; shape < (oc->bidirectional ? 9 : 6); shape++) {
        if (!is_selected()) continue;
        cache_make_batch(k, shape);
        struct both q = both_new(k->c.n_tokens, oc->n_heads * oc->head_dim, 4, 1.5f);
        struct both out = both_new(k->c.n_tokens, oc->n_heads * oc->head_dim_v, 4, 1);
        ref->attend(ref, &out.c, &q.c, &k->c, 0, oc), gpu->attend(gpu, &out.g, &q.g, &k->g, 0, og);
        double e = both_error(&out);
        if (!(e < 5e-3))
            print_message("attend %s, %d KV heads, %d heads, head size %d and %d, shape %d, window "
                          "%d: error %g\n",
                          dtype_name((int)k->c.type), oc->n_kv_heads, oc->n_heads, oc->head_dim,
                          oc->head_dim_v, shape, oc->window, e);
        worst = fmax(worst, e);
        both_free(&q), both_free(&out);
    }
    return worst;
}
#endif
