/* Whole models on the GPU against the reference backend: logits of every golden model and
 * embeddings of encoders. Also CUDA graphs: a replayed step must give what single launches give,
 * and a step must allocate nothing.
 *
 * Reads tests/golden/hf, ../shared/fixtures/hf and the model that ships with tern. Skipped
 * without a GPU. */
#include "cuda_world.h"
#include "encoder_world.h"
#include "open_model.h"

#include "kv/chain.h"
#include "model/decoder.h"

#include <dirent.h>

enum { MAX_TOKENS = 128, MAX_SEQS = 4, N_BLOCKS = 96, TABLE = 20 };

struct world {
    struct source *src;
    struct backend *be;
    struct arena arena;
    struct model *m;
    struct block_pool *pool;
    struct runner *dec;
    struct chain chain[MAX_SEQS];
    int len[MAX_SEQS];
};

/* Divides the layers between the backends: the first half on the host if there is one, else all
 * on be. Returns the number of shares; 0: the hyper-parameters cannot be read. */
static int divide_layers(struct backend_share out[2], struct backend *be, struct backend *host,
                         const struct source *src, struct err *e)
{
    struct arena a = { 0 };
    struct hparams hp;
    int rc = hparams_read(&hp, &a, src, e), half = rc == OK ? hp.n_layers / 2 : 0;

    arena_release(&a);
    if (rc != OK) return 0;
    out[0] = (struct backend_share){ host ? host : be, host ? half : hp.n_layers };
    out[1] = (struct backend_share){ be, hp.n_layers - half };
    return host ? 2 : 1;
}

/* false: tern does not support this model, or not on this device. */
static bool world_open(struct world *w, const char *path, struct backend *be, struct backend *host)
{
    struct decoder_opt opt = { .max_tokens = MAX_TOKENS,
                               .max_seqs = MAX_SEQS,
                               .max_table = TABLE,
                               .max_out = MAX_TOKENS,
                               .n_blocks = N_BLOCKS,
                               .kv_type = DT_F16 };
    struct err e = { 0 };
    struct backend_share shares[2];
    int n = 0;

    *w = (struct world){ .be = be };
    if (source_open(&w->src, path, &e) == OK) n = divide_layers(shares, be, host, w->src, &e);
    if (n == 0 || open_model_over(&w->m, &w->arena, w->src, shares, n, &e) != OK) {
        if (e.code != E_UNSUPPORTED) fail_msg("%s: %s", path, e.msg);
        if (strcmp(be->name, "cpu") != 0) print_message("%s\n", e.msg);
        arena_release(&w->arena);
        source_close(w->src);
        return false;
    }
    if (block_pool_open(&w->pool, N_BLOCKS, &e) != OK ||
        decoder_open(&w->dec, w->m, &opt, &e) != OK)
        fail_msg("%s: %s", path, e.msg);
    for (int i = 0; i < MAX_SEQS; i++) {
        assert_true(chain_init(&w->chain[i], TABLE * KV_BLOCK));
        assert_true(chain_reserve(&w->chain[i], w->pool, TABLE * KV_BLOCK));
    }
    return true;
}

static void world_close(struct world *w)
{
    for (int i = 0; i < MAX_SEQS; i++) chain_release(&w->chain[i], w->pool);
    runner_close(w->dec);
    block_pool_close(w->pool);
    model_close(w->m);
    arena_release(&w->arena);
    assert_int_equal(w->be->used_bytes[MEM_WEIGHTS], 0);
    assert_int_equal(w->be->used_bytes[MEM_KV], 0);
    source_close(w->src);
}

/* Runs a step with n[i] new tokens of sequence i; ids are derived from seed. Returns the logits
 * of all tokens. again: repeats the last step at the same positions. */
static const float *run_step(struct world *w, const int n[MAX_SEQS], uint64_t seed, bool again)
{
    int32_t ids[MAX_TOKENS], pos[MAX_TOKENS], seq[MAX_TOKENS], rows[MAX_TOKENS],
        table[MAX_SEQS * TABLE];
    struct batch b = { .ids = ids,
                       .pos = pos,
                       .seq = seq,
                       .n_seqs = MAX_SEQS,
                       .table = table,
                       .table_stride = TABLE,
                       .out_rows = rows };
    const float *logits = NULL;
    struct err e = { 0 };
    struct rng r;

    rng_seed(&r, seed);
    for (int s = 0; s < MAX_SEQS; s++) {
        memcpy(table + s * TABLE, w->chain[s].blocks, TABLE * sizeof(int32_t));
        for (int i = 0; i < n[s]; i++, b.n_tokens++) {
            ids[b.n_tokens] = (int32_t)(rng_u64(&r) % (uint64_t)w->m->hp.n_vocab);
            pos[b.n_tokens] = w->len[s] + i - (again ? n[s] : 0);
            seq[b.n_tokens] = s;
            rows[b.n_tokens] = b.n_tokens;
        }
        if (!again) w->len[s] += n[s];
    }
    b.n_out = b.n_tokens;
    if (runner_run(w->dec, &b, &logits, &e) != OK) fail_msg("%s", e.msg);
    return logits;
}

static int sum_counts(const int n[MAX_SEQS]) { return n[0] + n[1] + n[2] + n[3]; }

/* Token counts of each sequence in each step: prefill of one sequence, decode, prefill and
 * decode mixed, decode of all. */
static const int steps[][MAX_SEQS] = {
    { 40, 0, 0, 0 }, { 1, 0, 0, 0 },  { 1, 0, 0, 0 }, { 1, 0, 0, 0 },
    { 1, 30, 0, 0 }, { 1, 1, 70, 3 }, { 1, 1, 1, 1 }, { 1, 1, 1, 1 },
    { 1, 1, 1, 1 },  { 4, 0, 5, 0 },  { 0, 0, 0, 1 }, { 100, 1, 1, 1 },
};
enum { N_STEPS = sizeof steps / sizeof *steps };

/* ---- routing decisions that are nearly ties ---- */

#define TIE 2e-3 /* a difference of router scores that rounding to F16 may reverse */

static void (*plain_route)(struct backend *be, int32_t *ids, float *weights,
                           const struct tensor *logits, const struct route_opt *opt);
/* For each token of this step, over all layers: the smallest difference between the score of the
 * last expert that was chosen and the first that was not. */
static double margins[MAX_TOKENS];

static int compare_descending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* The difference between the n-th largest of x and the next; sorts x in descending order. */
static double gap_after_nth(double *x, int n_all, int n)
{
    qsort(x, (size_t)n_all, sizeof *x, compare_descending);
    return n < n_all ? x[n - 1] - x[n] : INFINITY;
}

static double routing_margin(const float *logits, int n, const struct route_opt *o)
{
    double score[MOE_MAX_EXPERTS], group[MOE_MAX_GROUPS], some[MOE_MAX_EXPERTS], least = INFINITY,
                                                                                 last;
    int each = o->n_groups > 1 ? n / o->n_groups : n;

    for (int i = 0; i < n; i++)
        score[i] = o->route != ROUTE_SIGMOID
                       ? (double)logits[i]
                       : 1 / (1 + exp(-(double)logits[i])) + (o->bias ? (double)o->bias[i] : 0);
    for (int i = 0; i < n / each && o->n_groups > 1; i++) {
        group[i] = 0;
        memcpy(some, score + i * each, (size_t)each * sizeof *some);
        gap_after_nth(some, each, each);
        for (int k = 0; k < o->group_top && k < each; k++) group[i] += some[k];
    }
    if (o->n_groups > 1) {
        memcpy(some, group, (size_t)o->n_groups * sizeof *some);
        least = gap_after_nth(some, o->n_groups, o->n_groups_used);
        last = some[o->n_groups_used - 1];
        for (int i = 0; i < n; i++)
            if (group[i / each] < last) score[i] = -INFINITY;
    }
    return fmin(least, gap_after_nth(score, n, o->n_used));
}

/* Stands in for the backend's route operation: records the margins and calls the original. */
static void record_margins(struct backend *be, int32_t *ids, float *weights,
                           const struct tensor *logits, const struct route_opt *opt)
{
    for (int r = 0; r < logits->rows; r++)
        margins[r] = fmin(margins[r], routing_margin(tensor_row(logits, r), logits->cols, opt));
    plain_route(be, ids, weights, logits, opt);
}

/* ---- logits ---- */

/* The comparison of all steps. After a nearly tied routing decision the two backends may choose
 * different experts. The keys of that sequence differ from then on, and so may its results: such
 * tokens count as excused, up to a third of all. */
struct verdict {
    double worst;
    int n_excused, n_all;
    bool tied[MAX_SEQS]; /* had a nearly tied routing decision */
};

static void compare_step(struct verdict *v, const char *path, int i, const float *want,
                         const float *got, int vocab)
{
    for (int s = 0, t = 0; s < MAX_SEQS; s++)
        for (int k = 0; k < steps[i][s]; k++, t++) {
            size_t at = (size_t)t * (size_t)vocab;
            v->n_all++;
            v->tied[s] |= margins[t] < TIE;
            double e = error_of(got + at, want + at, (size_t)vocab, 0);
            if (!(e < 5e-3) && v->tied[s]) {
                v->n_excused++;
                continue;
            }
            if (!(e < 5e-3) && v->worst < 5e-3)
                print_message("%s: step %d, token %d of %d: relative error %g\n", path, i, t,
                              sum_counts(steps[i]), e);
            v->worst = fmax(v->worst, e);
        }
}

static double compare_with_cpu(const char *path, bool split, bool *known)
{
    struct backend *gpu = cuda_open(), *cpu = reference_open();
    struct verdict v = { 0 };
    struct world g, c;

    *known = world_open(&c, path, cpu, NULL);
    if (*known && !(*known = world_open(&g, path, gpu, split ? cpu : NULL))) world_close(&c);
    if (*known) {
        plain_route = cpu->route;
        for (int i = 0; i < N_STEPS; i++) {
            const float *want, *got;
            for (int t = 0; t < MAX_TOKENS; t++) margins[t] = INFINITY;
            cpu->route = record_margins;
            want = run_step(&c, steps[i], (uint64_t)i, false);
            cpu->route = plain_route;
            got = run_step(&g, steps[i], (uint64_t)i, false);
            compare_step(&v, path, i, want, got, c.m->hp.n_vocab);
        }
        world_close(&g), world_close(&c);
        if (v.n_excused)
            print_message("%s: %d of %d tokens differ after a tied routing decision\n", path,
                          v.n_excused, v.n_all);
        if (3 * v.n_excused > v.n_all) v.worst = INFINITY;
    }
    backend_close(gpu), backend_close(cpu);
    return v.worst;
}

static void need_gpu(void)
{
    struct backend *be = cuda_open();
    backend_close(be);
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
        double e = compare_with_cpu(path, false, &known);
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

static double compare_texts(const char *path, bool split)
{
    static const int batches[][MAX_SEQS] = { { 33, 1, 7, 20 }, { 1, 0, 0, 0 },   { 33, 1, 7, 20 },
                                             { 70, 40, 2, 9 }, { 33, 1, 7, 20 }, { 0, 33, 20, 0 },
                                             { 12, 9, 20, 20 } };
    struct backend *gpu = cuda_open(), *cpu = reference_open();
    static float want[MAX_TOKENS * E], got[MAX_TOKENS * E];
    struct world g, c;
    double worst = 0;

    assert_true(world_open(&c, path, cpu, NULL));
    assert_true(world_open(&g, path, gpu, split ? cpu : NULL));
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        encode_texts(&c, batches[i], i, want), encode_texts(&g, batches[i], i, got);
        for (int s = 0, t = 0; s < MAX_SEQS; t += batches[i][s++])
            worst = fmax(worst, error_of(got + t * E, want + t * E, (size_t)batches[i][s] * E, 0));
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
            double e = compare_texts(write_encoder(&f, w, (enum kind)kind, "mean_tokens"), split);
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
static void check_replay_with_state(const char *path)
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
        assert_true(error_of(x, y, (size_t)sum_counts(n) * (size_t)a.m->hp.n_vocab, 0) < 2e-3);
    }
    a.be->stats(a.be, &stats);
    assert_true(stats.n_replays >= 6);
    close_both(&a, &b);
}

static void a_replayed_graph_continues_recurrent_states(void **state)
{
    (void)state;
    need_gpu();
    check_replay_with_state(repo("tests/golden/hf/mamba2"));
    check_replay_with_state(repo("tests/golden/hf/qwen3_next"));
    check_replay_with_state(repo("tests/golden/hf/deepseek_v3"));
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
        cmocka_unit_test(embeddings_of_encoders_agree_with_the_cpu),
        cmocka_unit_test(layers_split_between_gpu_and_cpu_give_the_same_logits),
        cmocka_unit_test(a_replayed_graph_gives_the_results_of_the_launched_step),
        cmocka_unit_test(a_replayed_graph_continues_recurrent_states),
        cmocka_unit_test(evicted_graphs_do_not_change_results),
        cmocka_unit_test(a_step_allocates_nothing),
        cmocka_unit_test(a_model_can_be_closed_and_reopened),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
