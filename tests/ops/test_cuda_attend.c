/* Attention on the GPU against the reference backend: all KV types and head sizes, kernels fused
 * with rotary embedding and KV writes, long contexts.
 *
 * Inputs are random. KV cache rows that no token was written to are NaN. Skipped without a GPU. */
#include "cuda_cache.h"

static void attention_agrees_for_all_kv_types_and_head_sizes(void **state)
{
    static const enum dtype types[] = { DT_F16, DT_F32, DT_BF16, DT_Q8_0, DT_F8_E4M3 };
    static const struct {
        int heads, kv, dim, dim_v;
    } shapes[] = {
        { 4, 4, 64, 64 },    { 8, 2, 128, 128 }, { 6, 2, 96, 96 }, { 3, 1, 80, 80 },
        { 32, 8, 128, 128 }, { 2, 1, 256, 256 }, { 5, 5, 32, 32 }, { 4, 2, 192, 128 },
        { 14, 2, 64, 64 },   { 16, 1, 16, 16 },
    };
    (void)state;
    need_gpu();
    EACH(t, types)
    {
        double worst = 0;
        EACH(s, shapes)
        {
            int heads = shapes[s].heads, dim = shapes[s].dim;
            if (types[t] == DT_Q8_0 && (dim % 32 || shapes[s].dim_v % 32)) continue;
            struct cache k;
            struct both sinks = both_new(1, heads, 0, 1), slopes = both_new(1, heads, 0, 0.05f);
            cache_open(&k, types[t], shapes[s].kv, dim, shapes[s].dim_v);
            cache_fill(&k);
            for (int how = 0; how < (s % 3 == 1 ? 5 : 2); how++) {
                struct attend_opt oc = { .n_heads = heads,
                                         .n_kv_heads = shapes[s].kv,
                                         .head_dim = dim,
                                         .head_dim_v = shapes[s].dim_v,
                                         .scale = 1 / sqrtf((float)dim) };
                struct attend_opt og;
                if (how == 1) oc.window = 25;
                if (how == 2) oc.softcap = 10;
                og = oc;
                if (how == 3) oc.sinks = sinks.c.data, og.sinks = sinks.g.data;
                if (how == 4) oc.slopes = slopes.c.data, og.slopes = slopes.g.data;
                worst = fmax(worst, compare_attend(&k, &oc, &og));
            }
            cache_close(&k), both_free(&sinks), both_free(&slopes);
        }
        print_message("attention over %-5s largest error %.2e\n", dtype_name((int)types[t]), worst);
        if (!(worst < 5e-3)) fail_msg("%s: the error is too large", dtype_name((int)types[t]));
    }
}

/* Head norm, rotary embedding and KV write of a step fused into one kernel, then attention over
 * the rows that it wrote. */
static void fused_head_norm_rotary_embedding_and_kv_write_agree(void **state)
{
    (void)state;
    need_gpu();
    for (int how = 0; how < 16; how++) {
        int heads = 8, kv = 2, dim = how & 1 ? 128 : 64, n_rot = how & 2 ? dim : dim / 2;
        struct cache k;
        cache_open(&k, DT_F16, kv, dim, dim);
        cache_add_tokens(&k, 2, 0, how & 8 ? 37 : 5, true), cache_upload_batch(&k);
        int n = k.c.n_tokens;
        struct both q = both_new(n, heads * dim, 0, 1), kk = both_new(n, kv * dim, 0, 1),
                    v = both_new(n, kv * dim, 0, 1);
        struct both table = both_new(n, n_rot, 0, 1), w = both_new(1, dim, 0, 1),
                    out = both_new(n, heads * dim, 0, 1);
        struct attend_opt o = {
            .n_heads = heads, .n_kv_heads = kv, .head_dim = dim, .head_dim_v = dim, .scale = 0.1f
        };
        for (int side = 0; side < 2; side++) {
            struct backend *be = side ? gpu : ref;
            const struct kvview *view = side ? &k.g : &k.c;
#define SIDE(b) (side ? &(b).g : &(b).c)
            if (how & 4) be->headnorm(be, SIDE(q), heads, dim, SIDE(w)->data, 0, 1e-5f);
            if (how & 4) be->headnorm(be, SIDE(kk), kv, dim, SIDE(w)->data, 0, 1e-5f);
            be->rope(be, SIDE(q), heads, dim, n_rot, SIDE(table), how & 2 ? ROPE_PAIR : ROPE_HALF);
            be->rope(be, SIDE(kk), kv, dim, n_rot, SIDE(table), how & 2 ? ROPE_PAIR : ROPE_HALF);
            be->kv_put(be, view, 0, SIDE(kk), SIDE(v));
            be->attend(be, SIDE(out), SIDE(q), view, 0, &o);
#undef SIDE
        }
        assert_both_close("q", &q, 1e-4);
        assert_both_close("attention over keys just put", &out, 5e-3);
        both_free(&q), both_free(&kk), both_free(&v), both_free(&table), both_free(&w),
            both_free(&out);
        cache_close(&k);
    }
}

/* For one token, rotary embedding, KV write and attention are one kernel. Later tokens read the
 * KV rows that it wrote. */
static void one_token_is_rotated_written_and_attended_by_one_kernel(void **state)
{
    static const enum dtype types[] = { DT_F16, DT_BF16, DT_F32, DT_Q8_0 };
    static const struct {
        int heads, kv, dim;
    } shapes[] = { { 8, 2, 128 }, { 32, 8, 128 }, { 5, 5, 32 }, { 14, 1, 64 }, { 4, 2, 256 } };
    static const int at[] = { 0, 15, 16, 255, 256, 299 };
    (void)state;
    need_gpu();
    EACH(t, types) EACH(s, shapes)
    {
        int heads = shapes[s].heads, kv = shapes[s].kv, dim = shapes[s].dim,
            n_rot = s % 2 ? dim : dim / 2;
        struct attend_opt o = { .n_heads = heads,
                                .n_kv_heads = kv,
                                .head_dim = dim,
                                .head_dim_v = dim,
                                .scale = 0.1f,
                                .window = s == 2 ? 20 : 0 };
        struct both w = both_new(1, dim, 0, 1);
        struct cache k;
        cache_open(&k, types[t], kv, dim, dim);
        cache_fill(&k);
        EACH(i, at)
        {
            struct both q = both_new(1, heads * dim, 0, 1), out = both_new(1, heads * dim, 0, 1);
            struct both kk = both_new(1, kv * dim, 0, 1), v = both_new(1, kv * dim, 0, 1),
                        table = both_new(1, n_rot, 0, 1);
            cache_add_tokens(&k, 0, at[i], at[i] + 1, true), cache_upload_batch(&k);
            for (int side = 0; side < 2; side++) {
                struct backend *be = side ? gpu : ref;
                const struct kvview *view = side ? &k.g : &k.c;
#define SIDE(b) (side ? &(b).g : &(b).c)
                if (i % 2) be->headnorm(be, SIDE(q), heads, dim, SIDE(w)->data, 0, 1e-5f);
                if (i % 2) be->headnorm(be, SIDE(kk), kv, dim, SIDE(w)->data, 0, 1e-5f);
                be->rope(be, SIDE(q), heads, dim, n_rot, SIDE(table),
                         i % 3 ? ROPE_PAIR : ROPE_HALF);
                be->rope(be, SIDE(kk), kv, dim, n_rot, SIDE(table), i % 3 ? ROPE_PAIR : ROPE_HALF);
                be->kv_put(be, view, 0, SIDE(kk), SIDE(v));
                be->attend(be, SIDE(out), SIDE(q), view, 0, &o);
#undef SIDE
            }
            assert_both_close("one token's attention", &out, 5e-3);
            both_free(&q), both_free(&kk), both_free(&v), both_free(&table), both_free(&out);
        }
        if (compare_attend(&k, &o, &o) > 5e-3)
            fail_msg("%s: the KV rows that the fused kernel wrote are wrong",
                     dtype_name((int)types[t]));
        cache_close(&k), both_free(&w);
    }
}

/* More keys than a warp has KV pages in flight. One token with its rotary embedding inside the
 * attention kernel, one token with it before, and two tokens. */
static void attention_covers_all_keys_of_a_long_context(void **state)
{
    enum { LEN = 5003, BLOCKS = (LEN + KV_BLOCK - 1) / KV_BLOCK };
    static const enum dtype types[] = { DT_F16, DT_BF16, DT_Q8_0 };
    (void)state;
    need_gpu();
    EACH(t, types) for (int how = 0; how < 3; how++)
    {
        if (!is_selected()) continue;
        int heads = how ? 8 : 12, kv = how ? 2 : 3, dim = how == 1 ? 64 : 128, n = how == 2 ? 2 : 1;
        int32_t table[BLOCKS], seq[100] = { 0 }, pos[100];
        uint64_t row = 0;
        assert_true(dtype_row_bytes(types[t], (uint64_t)dim, &row));
        size_t block = (size_t)row * (size_t)kv * KV_BLOCK;
        struct kvlayer lc = { mem_alloc(block * BLOCKS),
                              mem_alloc(block * BLOCKS),
                              kv,
                              dim,
                              dim,
                              block,
                              block,
                              false,
                              NULL,
                              0,
                              0 };
        struct kvlayer lg = lc;
        memset(lc.k, 0xff, block * BLOCKS), memset(lc.v, 0xff, block * BLOCKS);
        lg.k = device_copy(gpu, lc.k, block * BLOCKS),
        lg.v = device_copy(gpu, lc.v, block * BLOCKS);
        for (int i = 0; i < BLOCKS; i++)
            table[i] = i * 37 % BLOCKS; /* a permutation: BLOCKS is 313 */
        struct kvview c = { .type = types[t],
                            .layers = &lc,
                            .n_layers = 1,
                            .table = table,
                            .table_stride = BLOCKS,
                            .seq = seq,
                            .pos = pos,
                            .n_seqs = 1 },
                      g = c;
        g.layers = &lg, g.table = device_copy(gpu, table, sizeof table);
        int32_t *gseq = device_copy(gpu, seq, sizeof seq),
                *gpos = device_copy(gpu, seq, sizeof seq);
        g.seq = gseq, g.pos = gpos;
        struct attend_opt o = {
            .n_heads = heads, .n_kv_heads = kv, .head_dim = dim, .head_dim_v = dim, .scale = 0.1f
        };
        for (int at = 0; at < LEN;) {
            int m = at + 100 <= LEN - n ? 100 : at < LEN - n ? LEN - n - at : n;
            bool last = at + m == LEN;
            struct both q = both_new(m, heads * dim, 0, 1), out = both_new(m, heads * dim, 0, 1);
            struct both k = both_new(m, kv * dim, 0, 1), v = both_new(m, kv * dim, 0, 1),
                        turn = both_new(m, dim, 0, 1);
            for (int i = 0; i < m; i++) pos[i] = at + i;
            c.n_tokens = g.n_tokens = m, c.max_pos = g.max_pos = at + m - 1;
            gpu->put(gpu, gpos, pos, (size_t)m * sizeof *pos);
            for (int side = 0; side < 2; side++) {
                struct backend *be = side ? gpu : ref;
#define SIDE(b) (side ? &(b).g : &(b).c)
                if (last) be->rope(be, SIDE(q), heads, dim, dim, SIDE(turn), ROPE_HALF);
                if (last) be->rope(be, SIDE(k), kv, dim, dim, SIDE(turn), ROPE_HALF);
                be->kv_put(be, side ? &g : &c, 0, SIDE(k), SIDE(v));
                if (last) be->attend(be, SIDE(out), SIDE(q), side ? &g : &c, 0, &o);
#undef SIDE
            }
            if (last) assert_both_close("attention over a long past", &out, 5e-3);
            else sync_backend(gpu);
            both_free(&q), both_free(&k), both_free(&v), both_free(&turn), both_free(&out);
            at += m;
        }
        gpu->free(gpu, lg.k, block * BLOCKS, MEM_SCRATCH),
            gpu->free(gpu, lg.v, block * BLOCKS, MEM_SCRATCH);
        gpu->free(gpu, (void *)g.table, sizeof table, MEM_SCRATCH);
        gpu->free(gpu, gseq, sizeof seq, MEM_SCRATCH),
            gpu->free(gpu, gpos, sizeof seq, MEM_SCRATCH);
        mem_free(lc.k), mem_free(lc.v);
    }
}

/* An argument selects tests by name. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_agrees_for_all_kv_types_and_head_sizes),
        cmocka_unit_test(fused_head_norm_rotary_embedding_and_kv_write_agree),
        cmocka_unit_test(one_token_is_rotated_written_and_attended_by_one_kernel),
        cmocka_unit_test(attention_covers_all_keys_of_a_long_context),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, open_all, close_all);
}
