/* Whole models on the GPU against the reference backend: logits of every golden model and
 * embeddings of encoders. Also CUDA graphs: a replayed step must give what single launches give,
 * and a step must allocate nothing.
 *
 * Reads tests/golden/hf and hf-2026, the same two folders of ../shared/fixtures and the model that
 * ships with tern. Skipped without a GPU. */
#include "cuda_model_world.h"
#include "encoder_world.h"

#include <dirent.h>

static double compare_with_cpu(const char *path, bool split, bool *known)
{
    return compare_lying(path, split ? LIES_SPLIT : LIES_WHOLE, known);
}

static double compare_texts(const char *path, bool split, bool *known);

/* A model without an output head: its hidden rows are compared. */
static bool is_encoder(const char *name)
{
    return strstr(name, "-embed") || strstr(name, "-rerank");
}

static int compare_each_folder(const char *folder)
{
    DIR *d = folder ? opendir(folder) : NULL;
    int bad = 0;

    for (struct dirent *f; d && (f = readdir(d));) {
        char path[1024];
        bool known;
        if (f->d_name[0] == '.' || strchr(f->d_name, '.') || !is_selected()) continue;
        snprintf(path, sizeof path, "%s/%s", folder, f->d_name);
        double e = is_encoder(f->d_name) ? compare_texts(path, false, &known)
                                         : compare_with_cpu(path, false, &known);
        if (!known) {
            print_message("%-20s IS NOT SUPPORTED HERE\n", f->d_name);
            bad++;
            continue;
        }
        print_message("%-20s worst error %.2e%s\n", f->d_name, e, e < 5e-3 ? "" : "  TOO FAR OFF");
        bad += !(e < 5e-3);
    }
    if (d) closedir(d);
    return bad;
}

static void logits_of_every_model_agree_with_the_cpu(void **state)
{
    bool known;
    int bad = 0;
    (void)state;
    need_gpu();
    double e = compare_with_cpu(repo("models/tern-tales.gguf"), false, &known);
    print_message("%-20s worst error %.2e\n", "tern-tales", e);
    bad += !(e < 5e-3) || !known;
    bad += compare_each_folder(repo("tests/golden/hf"));
    bad += compare_each_folder(shared("fixtures/hf"));
    assert_int_equal(bad, 0);
}

/* Also those that need operations of their own family: none of them may be refused. */
static void models_of_2026_agree_with_the_cpu(void **state)
{
    int bad = 0;
    (void)state;
    need_gpu();
    bad += compare_each_folder(repo("tests/golden/hf-2026"));
    bad += compare_each_folder(shared("fixtures/hf-2026"));
    assert_int_equal(bad, 0);
}

/* Runs one step of whole texts of n[i] tokens, as an encoder needs them, and stores the output
 * of every token. */
static void encode_texts(struct world *w, const int n[MAX_SEQS], uint64_t seed, float *hidden)
{
    int32_t ids[MAX_TOKENS], pos[MAX_TOKENS], seq[MAX_TOKENS], rows[MAX_TOKENS],
        table[MAX_SEQS * TABLE];
    struct batch b = { .ids = ids,
                       .pos = pos,
                       .seq = seq,
                       .n_seqs = MAX_SEQS,
                       .table = table,
                       .table_stride = TABLE,
                       .hidden_rows = rows,
                       .hidden = hidden };
    const float *logits = NULL;
    struct err e = { 0 };
    struct rng r;

    rng_seed(&r, seed);
    for (int s = 0; s < MAX_SEQS; s++) {
        memcpy(table + s * TABLE, w->chain[s].blocks, TABLE * sizeof(int32_t));
        for (int i = 0; i < n[s]; i++, b.n_tokens++) {
            ids[b.n_tokens] = (int32_t)(rng_u64(&r) % (uint64_t)w->m->hp.n_vocab);
            pos[b.n_tokens] = i;
            seq[b.n_tokens] = s;
            rows[b.n_tokens] = b.n_tokens;
        }
    }
    b.n_hidden = b.n_tokens;
    if (runner_run(w->dec, &b, &logits, &e) != OK) fail_msg("%s", e.msg);
}

static double compare_texts(const char *path, bool split, bool *known)
{
    static const int batches[][MAX_SEQS] = { { 33, 1, 7, 20 }, { 1, 0, 0, 0 },   { 33, 1, 7, 20 },
                                             { 70, 40, 2, 9 }, { 33, 1, 7, 20 }, { 0, 33, 20, 0 },
                                             { 12, 9, 20, 20 } };
    struct backend *gpu = cuda_open(), *cpu = reference_open();
    static float want[MAX_TOKENS * MAX_WIDTH], got[MAX_TOKENS * MAX_WIDTH];
    struct world g, c;
    double worst = 0;

    *known = world_open(&c, path, cpu, NULL);
    if (*known && !(*known = world_open(&g, path, gpu, split ? cpu : NULL))) world_close(&c);
    if (!*known) {
        backend_close(gpu), backend_close(cpu);
        return INFINITY;
    }
    int wide = c.m->hp.n_embd;
    assert_in_range(wide, 1, MAX_WIDTH);
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        encode_texts(&c, batches[i], i, want), encode_texts(&g, batches[i], i, got);
        for (int s = 0, t = 0; s < MAX_SEQS; t += batches[i][s++])
            worst = fmax(worst, error_of(got + t * wide, want + t * wide,
                                         (size_t)batches[i][s] * (size_t)wide, 0));
    }
    world_close(&g), world_close(&c);
    backend_close(gpu), backend_close(cpu);
    return worst;
}

static void embeddings_of_encoders_agree_with_the_cpu(void **state)
{
    struct rng rng;
    (void)state;
    need_gpu();
    rng_seed(&rng, 5);
    for (int kind = 0; kind < KINDS; kind++)
        for (int split = 0; split < 2; split++) {
            struct weights *w = random_weights(&rng);
            struct folder f;
            bool known;
            double e =
                compare_texts(write_encoder(&f, w, (enum kind)kind, "mean_tokens"), split, &known);
            print_message("%-20s worst error %.2e\n", types[kind], e);
            assert_true(e < 5e-3);
            mem_free(w);
        }
}

static void layers_split_between_gpu_and_cpu_give_the_same_logits(void **state)
{
    /* tied output heads, two rotary embeddings, scales, experts, recurrent state, latents */
    static const char *const names[] = { "qwen2",  "gemma3_text", "bitnet",     "glm4_moe",
                                         "mamba2", "qwen3_next",  "deepseek_v3" };
    bool known;
    (void)state;
    need_gpu();
    assert_true(compare_with_cpu(repo("models/tern-tales.gguf"), true, &known) < 5e-3);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[64];
        snprintf(path, sizeof path, "tests/golden/hf/%s", names[i]);
        assert_true(compare_with_cpu(repo(path), true, &known) < 5e-3);
    }
}

/* Opens the same model twice: with graphs and fused operations, and without. */
static void open_both(struct world *with, struct world *without, const char *path)
{
    assert_true(world_open(with, path, cuda_open(), NULL));
    setenv("TERN_CUDA_GRAPHS", "0", 1);
    setenv("TERN_CUDA_FUSE", "0", 1);
    assert_true(world_open(without, path, cuda_open(), NULL));
    unsetenv("TERN_CUDA_GRAPHS");
    unsetenv("TERN_CUDA_FUSE");
}

static void close_both(struct world *a, struct world *b)
{
    world_close(a), world_close(b);
    backend_close(a->be), backend_close(b->be);
}

static void check_replay(const char *path)
{
    static const int prompt[MAX_SEQS] = { 20, 9, 30, 1 }, one[MAX_SEQS] = { 1, 1, 1, 1 };
    struct world a, b;
    size_t bytes;
    open_both(&a, &b, path);
    run_step(&a, prompt, 1, false), run_step(&b, prompt, 1, false);
    bytes = 4 * (size_t)a.m->hp.n_vocab * sizeof(float);
    float *first = mem_alloc(bytes);
    for (int i = 0; i < 12; i++) {
        memcpy(first, run_step(&a, one, (uint64_t)i, false), bytes);
        assert_true(error_of(run_step(&b, one, (uint64_t)i, false), first, bytes / sizeof(float),
                             0) < 2e-3);
        /* The step is launched, captured and replayed: the results must be equal. */
        for (int k = 0; k < 3; k++)
            assert_true(error_of(run_step(&a, one, (uint64_t)i, true), first, bytes / sizeof(float),
                                 0) < 1e-5);
    }
    mem_free(first);
    close_both(&a, &b);
}

static void a_replayed_graph_gives_the_results_of_the_launched_step(void **state)
{
    (void)state;
    need_gpu();
    check_replay(repo("models/tern-tales.gguf"));
    check_replay(repo("tests/golden/hf/glm4_moe"));
}

/* Recurrent state continues from step to step. A replayed graph finds other sequences in the
 * same state slots. */
static void check_replay_with_state(const char *path, double tol)
{
    static const int prompt[MAX_SEQS] = { 20, 9, 30, 1 }, who[][MAX_SEQS] = {
        { 1, 1, 1, 0 }, { 0, 1, 1, 1 }, { 1, 0, 1, 1 }, { 2, 1, 0, 0 }
    };
    struct backend_stats stats = { 0 };
    struct world a, b;

    open_both(&a, &b, path);
    run_step(&a, prompt, 1, false), run_step(&b, prompt, 1, false);
    for (int i = 0; i < 12; i++) {
        const int *n = who[i % 4];
        const float *x = run_step(&a, n, (uint64_t)i, false),
                    *y = run_step(&b, n, (uint64_t)i, false);
        assert_true(error_of(x, y, (size_t)sum_counts(n) * (size_t)a.m->hp.n_vocab, 0) < tol);
    }
    a.be->stats(a.be, &stats);
    assert_true(stats.n_replays >= 6);
    close_both(&a, &b);
}

static void a_replayed_graph_continues_recurrent_states(void **state)
{
    (void)state;
    need_gpu();
    check_replay_with_state(repo("tests/golden/hf/mamba2"), 2e-3);
    check_replay_with_state(repo("tests/golden/hf/qwen3_next"), 2e-3);
    check_replay_with_state(repo("tests/golden/hf/deepseek_v3"), 2e-3);
}

/* The steps have more shapes than there are cached graphs. Graphs are evicted, and every step
 * still gives the same result. */
static void evicted_graphs_do_not_change_results(void **state)
{
    enum { N_SHAPES = 78, ROUNDS = 4 };
    static const int prompt[MAX_SEQS] = { 100, 13, 0,
                                          /* Three rounds, above and below 256 positions. */
                                          0 };
    struct backend *be;
    struct world w;
    double first[N_SHAPES];
    (void)state;
    need_gpu();
    be = cuda_open();
    assert_true(world_open(&w, repo("models/tern-tales.gguf"), be, NULL));
    for (int i = 0; i < 3; i++) run_step(&w, prompt, 1, false);
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < N_SHAPES; i++) {
            int n[MAX_SEQS] = { i < 39 ? 1 + i : 0, i < 39 ? 0 : i - 38, 0, 0 };
            const float *x = run_step(&w, n, (uint64_t)i, true);
            double sum = 0;
            for (int k = 0; k < sum_counts(n) * w.m->hp.n_vocab; k++) sum += fabs((double)x[k]);
            /* the next round reads the KV rows that this round wrote */
            if (round <= 1) first[i] = sum;
            if (!(fabs(sum - first[i]) <= 1e-5 * first[i]))
                fail_msg("round %d, shape %d: sum %g, in the first round %g", round, i, sum,
                         first[i]);
        }
    world_close(&w);
    backend_close(be);
}

static void check_no_allocation(const char *path)
{
    struct backend *be = cuda_open();
    struct world w;
    uint64_t before;

    assert_true(world_open(&w, path, be, NULL));
    before = be->n_allocs;
    for (int i = 0; i < N_STEPS; i++) run_step(&w, steps[i], (uint64_t)i, false);
    assert_int_equal(be->n_allocs, before);
    world_close(&w);
    backend_close(be);
}

static void a_step_allocates_nothing(void **state)
{
    (void)state;
    need_gpu();
    check_no_allocation(repo("models/tern-tales.gguf"));
    check_no_allocation(repo("tests/golden/hf/glm4_moe"));
    check_no_allocation(repo("tests/golden/hf/mamba2"));
    check_no_allocation(repo("tests/golden/hf/qwen3_next"));
    check_no_allocation(repo("tests/golden/hf/deepseek_v3"));
}

/* Sparse and compressed attention, residual streams and shared states in captured steps. Steps of
 * one shape follow each other while positions grow past the indexers' limits. */
static void models_of_2026_replay_and_allocate_nothing(void **state)
{
    static const char *const names[] = { "deepseek_v32",  "deepseek_v4",  "glm_moe_dsa",
                                         "minimax_m3_vl", "gemma3n_text", "llama4_text",
                                         "longcat_flash", "olmo_hybrid",  "apertus" };
    (void)state;
    need_gpu();
    need_shared("fixtures/hf-2026");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", shared("fixtures/hf-2026"), names[i]);
        print_message("%s\n", names[i]);
        check_replay_with_state(path, 5e-3);
        check_no_allocation(path);
    }
}

static void a_model_can_be_closed_and_reopened(void **state)
{
    (void)state;
    need_gpu();
    for (int i = 0; i < 10; i++) {
        struct backend *be = cuda_open();
        struct world w;
        for (int k = 0; k < 2; k++) {
            assert_true(world_open(&w, repo("models/tern-tales.gguf"), be, NULL));
            run_step(&w, steps[0], 1, false);
            world_close(&w);
        }
        backend_close(be);
    }
}

/* An argument selects tests by name: '*memory*'. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_of_every_model_agree_with_the_cpu),
        cmocka_unit_test(models_of_2026_agree_with_the_cpu),
        cmocka_unit_test(embeddings_of_encoders_agree_with_the_cpu),
        cmocka_unit_test(layers_split_between_gpu_and_cpu_give_the_same_logits),
        cmocka_unit_test(a_replayed_graph_gives_the_results_of_the_launched_step),
        cmocka_unit_test(a_replayed_graph_continues_recurrent_states),
        cmocka_unit_test(evicted_graphs_do_not_change_results),
        cmocka_unit_test(a_step_allocates_nothing),
        cmocka_unit_test(models_of_2026_replay_and_allocate_nothing),
        cmocka_unit_test(a_model_can_be_closed_and_reopened),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
