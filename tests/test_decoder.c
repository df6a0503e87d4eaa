/* Steps of a model: mixed batches, chunked prefill, limits, steps that are aborted between
 * layers, backends that run asynchronously, and backends that sample tokens.
 *
 * Logits are compared with those of one sequence alone. Reads models of tests/golden/hf. */
#include "model_world.h"

#define N_SEQS 3

static void fill_ids(int32_t *ids, int n, int seed, int n_vocab)
{
    for (int i = 0; i < n; i++) ids[i] = (int32_t)((i * 37 + seed * 101 + i * i % 13) % n_vocab);
}

/* Runs sequences of 40, 23 and 7 tokens alone, then in batches that mix chunks and single
 * tokens, and compares the logits. */
static void check_mixture(const char *folder, const int *chunk, const char *what)
{
    static const int len[N_SEQS] = { 40, 23, 7 };
    struct world w = open_world(folder, true);
    int n_vocab = w.m->hp.n_vocab, done[N_SEQS] = { 0 };
    int32_t ids[N_SEQS][40], table[N_SEQS * 4] = { 0 };
    float *alone[N_SEQS];
    struct chain c[N_SEQS];

    for (int s = 0; s < N_SEQS; s++) {
        fill_ids(ids[s], len[s], s, n_vocab);
        chain_init(&c[s], 64);
        assert_true(chain_reserve(&c[s], w.pool, len[s]));
        alone[s] = mem_dup(run_tokens(&w, &c[s], ids[s], 0, len[s]),
                           (size_t)len[s] * (size_t)n_vocab * sizeof(float));
        chain_truncate(&c[s], w.pool, 0);
    }
    for (int s = 0; s < N_SEQS; s++) {
        assert_true(chain_reserve(&c[s], w.pool, len[s]));
        for (int i = 0; i < c[s].n; i++) table[s * 4 + i] = c[s].blocks[i];
    }
    for (bool more = true; more;) {
        int32_t tok[MAX_TOKENS], pos[MAX_TOKENS], seq[MAX_TOKENS], rows[MAX_TOKENS];
        struct batch b = { .ids = tok,
                           .pos = pos,
                           .seq = seq,
                           .n_seqs = N_SEQS,
                           .table = table,
                           .table_stride = 4,
                           .out_rows = rows,
                           .seq_len = len };
        const float *logits = NULL;
        struct err e = { 0 };
        more = false;
        for (int s = N_SEQS - 1; s >= 0; s--) /* the block table has another order than the batch */
            for (int i = 0; i < chunk[s] && done[s] < len[s]; i++, b.n_tokens++) {
                tok[b.n_tokens] = ids[s][done[s]];
                pos[b.n_tokens] = done[s]++;
                seq[b.n_tokens] = s;
                if (i % 2 == 0) rows[b.n_out++] = b.n_tokens;
                more = true;
            }
        if (!more) break;
        if (runner_run(w.dec, &b, &logits, &e) != OK) fail_msg("%s", e.msg);
        for (int i = 0; i < b.n_out; i++) {
            int s = seq[rows[i]], p = pos[rows[i]];
            double err = relative_error(logits + (size_t)i * (size_t)n_vocab,
                                        alone[s] + (size_t)p * (size_t)n_vocab, n_vocab);
            if (!(err <= 1e-5))
                fail_msg("%s, %s: sequence %d, position %d: relative error %g", folder, what, s, p,
                         err);
        }
    }
    for (int s = 0; s < N_SEQS; s++) {
        chain_release(&c[s], w.pool);
        mem_free(alone[s]);
    }
    close_world(&w);
}

static void sequences_in_one_batch_give_the_logits_they_give_alone(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(committed); i++)
        check_mixture(golden(committed[i]), (int[]){ 40, 23, 7 }, "together");
}

static void a_prompt_in_chunks_gives_the_logits_of_one_piece(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(committed); i++) {
        check_mixture(golden(committed[i]), (int[]){ 7, 7, 7 }, "in sevens");
        check_mixture(golden(committed[i]), (int[]){ 17, 1, 2 }, "mixed with decode");
    }
}

/* The same with the newer architectures: their states, shared keys and experts. */
static void newer_architectures_do_not_depend_on_the_batch(void **state)
{
    (void)state;
    check_mixture(repo("tests/golden/hf-2026/nemotron_h-latent"), (int[]){ 7, 7, 7 }, "in sevens");
    need_shared("fixtures/hf-2026");
    for (size_t i = 0; i < N(newer); i++) {
        check_mixture(newer_folder(i), (int[]){ 40, 23, 7 }, "together");
        check_mixture(newer_folder(i), (int[]){ 7, 7, 7 }, "in sevens");
        check_mixture(newer_folder(i), (int[]){ 17, 1, 2 }, "mixed with decode");
    }
}

/* Writes a copy of a model with one part of its configuration replaced; the weights stay the
 * same. */
static const char *write_with_config(struct folder *f, const char *fixture_dir, const char *name,
                                     const char *find, const char *replace)
{
    struct buf config = { 0 }, weights = { 0 }, out = { 0 };
    char *path = path_join(fixture_dir, "config.json");
    const char *at;
    folder_begin(f, name);
    assert_int_equal(file_read(&config, path, 1 << 20, NULL), OK);
    mem_free(path);
    path = path_join(fixture_dir, "model.safetensors");
    assert_int_equal(file_read(&weights, path, 16 << 20, NULL), OK);
    mem_free(path);
    at = strstr(buf_cstr(&config), find);
    assert_non_null(at);
    buf_add(&out, config.p, (size_t)(at - config.p));
    buf_puts(&out, replace);
    buf_puts(&out, at + strlen(find));
    folder_write(f, "config.json", buf_str(&out));
    folder_write(f, "model.safetensors", buf_str(&weights));
    buf_release(&config);
    buf_release(&weights);
    buf_release(&out);
    return f->dir;
}

static void chunks_agree_if_the_rotary_embedding_depends_on_the_length(void **state)
{
    static const int sevens[] = { 7, 7, 7 }, mixed[] = { 17, 1, 2 };
    struct folder f;
    (void)state;
    /* A context of 24 tokens is short: the sequence of 40 is long from its first chunk on, the
     * others never are. */
    write_with_config(
        &f, golden("phi3"), "longrope", "\"original_max_position_embeddings\": 4096,",
        "\"original_max_position_embeddings\": 24, \"rope_scaling\": {\"type\": \"longrope\","
        "\"short_factor\": [1,1,1,1,1,1,1,1], \"long_factor\": [1,2,3,4,5,6,7,8]},");
    check_mixture(f.dir, sevens, "longrope in sevens");
    check_mixture(f.dir, mixed, "longrope mixed");
    write_with_config(&f, golden("qwen2"), "dynamic", "\"max_position_embeddings\": 512,",
                      "\"max_position_embeddings\": 24, \"rope_scaling\": {\"type\": \"dynamic\", "
                      "\"factor\": 2.0},");
    check_mixture(f.dir, sevens, "dynamic in sevens");
    check_mixture(f.dir, mixed, "dynamic mixed");
}

static bool stop_at(void *arg)
{
    int *left = arg;
    return (*left)-- == 0;
}

static void a_cancelled_step_ends_between_layers(void **state)
{
    struct world w = open_world(golden("qwen2"), true);
    int32_t ids[4] = { 5, 9, 12, 7 }, pos[4] = { 0, 1, 2, 3 }, zero[4] = { 0 }, row[1] = { 3 };
    struct batch b = { .n_tokens = 4,
                       .ids = ids,
                       .pos = pos,
                       .seq = zero,
                       .n_seqs = 1,
                       .table = zero,
                       .table_stride = 1,
                       .n_out = 1,
                       .out_rows = row };
    const float *logits = NULL;
    struct err e = { 0 };
    float first;
    int left;
    (void)state;
    assert_int_equal(runner_run(w.dec, &b, &logits, &e), OK);
    first = logits[0];
    b.stop = stop_at, b.stop_arg = &left;
    for (int at = 0; at < w.m->hp.n_layers; at++) {
        left = at;
        assert_int_equal(runner_run(w.dec, &b, &logits, &e), E_CANCELLED);
        assert_int_equal(left, -1);
    }
    left = 1000; /* the next step runs to its end as usual */
    assert_int_equal(runner_run(w.dec, &b, &logits, &e), OK);
    assert_true(logits[0] == first);
    close_world(&w);
}

/* ---- a backend that runs asynchronously ---- */

static int n_parts, n_whole, n_paced;

static void count_flush(struct backend *be, bool whole)
{
    (void)be;
    if (whole) n_whole++;
    else n_parts++;
}

static void count_pace(struct backend *be, int ahead)
{
    (void)be;
    assert_int_equal(ahead, 1);
    n_paced++;
}

static void a_large_step_is_launched_in_parts_and_a_small_one_at_once(void **state)
{
    enum { N = 520 };
    struct world w = open_world(golden("gemma3_text"), false);
    struct decoder_opt opt = { .max_tokens = N,
                               .max_seqs = 1,
                               .max_table = 40,
                               .max_out = 1,
                               .n_blocks = 64,
                               .kv_type = DT_F16 };
    int32_t ids[N], pos[N], seq[N] = { 0 }, table[40], row[1] = { N - 1 };
    struct batch b = { .n_tokens = N,
                       .ids = ids,
                       .pos = pos,
                       .seq = seq,
                       .n_seqs = 1,
                       .table = table,
                       .table_stride = 40,
                       .n_out = 1,
                       .out_rows = row };
    size_t bytes = (size_t)w.m->hp.n_vocab * sizeof(float);
    int n_layers = w.m->hp.n_layers, left;
    const float *logits = NULL;
    struct err e = { 0 };
    void *want;
    (void)state;

    runner_close(w.dec);
    assert_int_equal(decoder_open(&w.dec, w.m, &opt, &e), OK);
    for (int i = 0; i < N; i++) ids[i] = 3 + i % 200, pos[i] = i;
    for (int i = 0; i < 40; i++) table[i] = i;
    assert_int_equal(runner_run(w.dec, &b, &logits, &e), OK);
    want = mem_dup(logits, bytes);

    w.be->flush = count_flush, w.be->throttle = count_pace, w.be->whole_tokens = 64;
    assert_int_equal(runner_start(w.dec, &b, &e), OK);
    assert_int_equal(n_parts, 2); /* no more are launched before somebody waits */
    assert_int_equal(runner_wait(w.dec, &logits, &e), OK);
    assert_memory_equal(logits, want, bytes);
    assert_int_equal(n_parts, n_layers - 1); /* sync launches the last part */
    assert_int_equal(n_paced, n_layers - 2);
    b.stop = stop_at, b.stop_arg = &left;
    for (int at = 0; at < n_layers - 1;
         at++) { /* checked before the start, then before each remaining part */
        left = at;
        n_parts = 0;
        assert_int_equal(runner_run(w.dec, &b, &logits, &e), E_CANCELLED);
        assert_int_equal(n_parts, at ? at + 1 : 0);
    }
    left = 1000, n_parts = n_whole = 0;
    assert_int_equal(runner_run(w.dec, &b, &logits, &e), OK);
    assert_memory_equal(logits, want, bytes);
    w.be->whole_tokens = N;
    n_parts = 0;
    assert_int_equal(runner_run(w.dec, &b, &logits, &e), OK);
    assert_memory_equal(logits, want, bytes);
    assert_true(n_whole == 1 && n_parts == 0);
    mem_free(want);
    close_world(&w);
}

static void a_batch_over_the_limits_is_refused(void **state)
{
    struct world w = open_world(golden("qwen2"), true);
    int32_t ids[MAX_TOKENS + 1] = { 0 }, zero[MAX_TOKENS + 1] = { 0 }, pos[2] = { 0, 1000 },
                             bad_block[1] = { 64 };
    struct batch b = { .n_tokens = 1,
                       .ids = ids,
                       .pos = zero,
                       .seq = zero,
                       .n_seqs = 1,
                       .table = zero,
                       .table_stride = 1,
                       .n_out = 1,
                       .out_rows = zero };
    struct batch c;
    const float *logits;
    struct err e = { 0 };
    int32_t id = w.m->hp.n_vocab;
    (void)state;
    assert_int_equal(runner_run(w.dec, &b, &logits, &e), OK);
    c = b, c.n_tokens = MAX_TOKENS + 1;
    assert_int_equal(runner_run(w.dec, &c, &logits, &e), E_INVALID);
    c = b, c.ids = &id;
    assert_int_equal(runner_run(w.dec, &c, &logits, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "320"));
    c = b, c.pos = pos, c.n_tokens = 2;
    assert_int_equal(runner_run(w.dec, &c, &logits, &e), E_INVALID);
    c = b, c.table = bad_block;
    assert_int_equal(runner_run(w.dec, &c, &logits, &e), E_INVALID);
    c = b, c.out_rows = pos + 1;
    assert_int_equal(runner_run(w.dec, &c, &logits, &e), E_INVALID);
    c = b, c.n_out = 0; /* a chunk without sampled rows */
    assert_int_equal(runner_run(w.dec, &c, &logits, &e), OK);
    close_world(&w);
}

/* A sample operation for the test: takes the largest logit after the adjustments. */
static void sample_largest(struct backend *be, int32_t *ids, const struct tensor *logits,
                           const struct sample_row *picks, int n, const struct logit_adjust *adjust)
{
    (void)be;
    for (int i = 0; i < n; i++) {
        float *x = tensor_row(logits, picks[i].row);
        const struct logit_adjust *a = adjust + picks[i].adjust;
        float aside[8];
        for (int k = 0; k < picks[i].n_adjust; k++) aside[k] = x[a[k].id], x[a[k].id] += a[k].add;
        ids[i] = find_largest(x, logits->cols);
        for (int k = 0; k < picks[i].n_adjust; k++) x[a[k].id] = aside[k];
    }
}

static void a_backend_that_samples_returns_tokens_and_the_logits_of_other_rows(void **state)
{
    enum { N = 6 };
    int32_t ids[N] = { 1, 9, 17, 4, 33, 2 }, pos[N], seq[N] = { 0 }, rows[N], picked[N], want[N];
    struct sample_row picks[3] = { { .row = 0 },
                                   { .row = 2, .n_adjust = 1 },
                                   { .row = 5, .adjust = 1, .n_adjust = 1 } };
    struct logit_adjust adjust[2];
    struct world w = open_world(repo("tests/golden/hf/qwen2"), true);
    struct chain c;
    struct batch b = { .n_tokens = N,
                       .ids = ids,
                       .pos = pos,
                       .seq = seq,
                       .n_seqs = 1,
                       .n_out = N,
                       .out_rows = rows,
                       .n_samples = 3,
                       .samples = picks,
                       .adjust = adjust,
                       .n_adjust = 2,
                       .sampled = picked };
    const float *logits = NULL;
    struct err e = { 0 };
    int vocab = w.m->hp.n_vocab;
    float *plain = mem_array((size_t)N * (size_t)vocab, sizeof *plain);
    (void)state;

    assert_false(w.dec->lim.samples);
    chain_init(&c, N);
    assert_true(chain_reserve(&c, w.pool, N));
    b.table = c.blocks, b.table_stride = c.n, b.n_sample_ids = vocab;
    memcpy(plain, run_tokens(&w, &c, ids, 0, N), (size_t)N * (size_t)vocab * sizeof *plain);
    for (int i = 0; i < N; i++)
        pos[i] = i, rows[i] = i, want[i] = find_largest(plain + (size_t)i * (size_t)vocab, vocab);
    assert_int_equal(runner_run(w.dec, &b, &logits, &e),
                     E_INVALID); /* this backend cannot sample */

    runner_close(w.dec);
    w.dec = NULL;
    w.be->sample = sample_largest;
    w.be->name = "draws"; /* any other name than "cpu": memory is not the host's */
    struct decoder_opt opt = world_opt(DT_F32);
    assert_int_equal(decoder_open(&w.dec, w.m, &opt, &e), OK);
    assert_true(w.dec->lim.samples && w.dec->lim.max_adjust >= 2);
    adjust[0] = (struct logit_adjust){ want[2], -INFINITY, 1, 0 };
    adjust[1] = (struct logit_adjust){ 3, 1e6f, 1, 0 };
    if (runner_run(w.dec, &b, &logits, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(picked[0], want[0]);
    assert_int_not_equal(picked[1], want[2]);
    assert_int_equal(picked[2], 3);
    for (int i = 0; i < N; i++)
        if (i == 1 || i == 3 || i == 4)
            assert_memory_equal(logits + (size_t)i * (size_t)vocab,
                                plain + (size_t)i * (size_t)vocab, (size_t)vocab * sizeof *plain);
    b.n_samples = 0;
    assert_int_equal(runner_run(w.dec, &b, &logits, &e), OK);
    assert_memory_equal(logits, plain, (size_t)N * (size_t)vocab * sizeof *plain);
    b.n_samples = 3;
    picks[2].row = 2;
    assert_int_equal(runner_run(w.dec, &b, &logits, &e), E_INVALID);
    picks[2].row = N;
    assert_int_equal(runner_run(w.dec, &b, &logits, &e), E_INVALID);
    picks[2].row = 5, picks[2].n_adjust = 2;
    assert_int_equal(runner_run(w.dec, &b, &logits, &e), E_INVALID);
    picks[2].n_adjust = 1, adjust[1].id = vocab;
    assert_int_equal(runner_run(w.dec, &b, &logits, &e), E_INVALID);

    mem_free(plain);
    chain_release(&c, w.pool);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_in_one_batch_give_the_logits_they_give_alone),
        cmocka_unit_test(a_prompt_in_chunks_gives_the_logits_of_one_piece),
        cmocka_unit_test(newer_architectures_do_not_depend_on_the_batch),
        cmocka_unit_test(chunks_agree_if_the_rotary_embedding_depends_on_the_length),
        cmocka_unit_test(a_cancelled_step_ends_between_layers),
        cmocka_unit_test(a_large_step_is_launched_in_parts_and_a_small_one_at_once),
        cmocka_unit_test(a_batch_over_the_limits_is_refused),
        cmocka_unit_test(a_backend_that_samples_returns_tokens_and_the_logits_of_other_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
