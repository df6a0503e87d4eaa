/* Layers on the GPU with their routed experts on the CPU, against all of the model on the CPU: logits of
 * every mixture, whole models and those whose first layers are on the CPU; graphs of the parts of a
 * step; memory by the load plan.
 *
 * Reads tests/golden/hf, ../shared/fixtures/hf and hf-2026. Skipped without a GPU. */
#include "cuda_model_world.h"

#include "model/loadplan.h"
#include "model/weightlist.h"

#include <dirent.h>

static bool is_mixture(const char *path)
{
    struct source *src = NULL;
    struct arena a = { 0 };
    struct hparams hp;
    bool is = source_open(&src, path, NULL) == OK && hparams_read(&hp, &a, src, NULL) == OK &&
              hp.moe.n > 0 && !hp.encoder;

    arena_release(&a);
    source_close(src);
    return is;
}

/* Returns how many were too far off. */
static int compare_mixtures(const char *folder, int *n)
{
    DIR *d = folder ? opendir(folder) : NULL;
    int bad = 0;

    for (struct dirent *f; d && (f = readdir(d));) {
        char path[1024];
        bool known;
        snprintf(path, sizeof path, "%s/%s", folder, f->d_name);
        if (strchr(f->d_name, '.') || !is_mixture(path) || !is_selected()) continue;
        double e = compare_lying(path, LIES_APART, &known), whole = 0;
        if (!known) {
            print_message("%-20s not on a GPU\n", f->d_name);
            continue;
        }
        /* Where the GPU alone is as far off, the place of the experts is not why. */
        if (!(e < 5e-3)) whole = compare_lying(path, LIES_WHOLE, &known);
        print_message("%-20s worst error %.2e", f->d_name, e);
        if (!(e < 5e-3)) print_message(", all of it on the GPU %.2e", whole);
        print_message("\n");
        bad += !(e < 5e-3) && !(whole >= 5e-3);
        ++*n;
    }
    if (d) closedir(d);
    return bad;
}

static void experts_on_the_cpu_give_the_logits_of_the_cpu(void **state)
{
    int n = 0, bad = 0;
    (void)state;
    need_gpu();
    bad += compare_mixtures(repo("tests/golden/hf"), &n);
    bad += compare_mixtures(shared("fixtures/hf"), &n);
    bad += compare_mixtures(shared("fixtures/hf-2026"), &n);
    assert_int_equal(bad, 0);
    assert_true(n >= 1);
}

static void layers_and_experts_on_the_cpu_give_the_logits_of_the_cpu(void **state)
{
    static const char *const names[] = { "glm4_moe", "qwen3_next", "deepseek_v3" };
    bool known;
    (void)state;
    need_gpu();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[64];
        snprintf(path, sizeof path, "tests/golden/hf/%s", names[i]);
        assert_true(compare_lying(repo(path), LIES_BOTH, &known) < 5e-3);
        assert_true(known);
    }
}

/* Parts of a step are launched, captured and replayed with the same results, and nothing is allocated. */
static void repeated_steps_give_the_same_results(void **state)
{
    static const int prompt[MAX_SEQS] = { 20, 9, 30, 1 }, one[MAX_SEQS] = { 1, 1, 1, 1 };
    static const char *const names[] = { "glm4_moe", "qwen3_next", "deepseek_v3" };
    (void)state;
    need_gpu();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct backend *gpu = cuda_open(), *host = reference_open();
        struct backend_stats stats = { 0 };
        struct world w;
        char path[64];
        snprintf(path, sizeof path, "tests/golden/hf/%s", names[i]);
        assert_true(world_open_apart(&w, repo(path), gpu, NULL, host));
        run_step(&w, prompt, 1, false);
        size_t n = 4 * (size_t)w.m->hp.n_vocab;
        float *first = mem_array(n, sizeof *first);
        bool state_goes_on = model_has_state(w.m);
        memcpy(first, run_step(&w, one, 5, false), n * sizeof *first);
        uint64_t allocs = gpu->n_allocs + host->n_allocs;
        for (int k = 0; k < 6; k++) {
            const float *again = run_step(&w, one, 5, !state_goes_on);
            if (!state_goes_on) assert_true(error_of(again, first, n, 0) < 1e-5);
        }
        assert_int_equal(gpu->n_allocs + host->n_allocs, allocs);
        gpu->stats(gpu, &stats);
        print_message("%s: %llu parts, %llu graphs, %llu replays\n", names[i],
                      (unsigned long long)stats.n_steps, (unsigned long long)stats.n_graphs,
                      (unsigned long long)stats.n_replays);
        mem_free(first);
        world_close(&w);
        backend_close(gpu), backend_close(host);
    }
}

/* Bytes of routed experts in the files. */
static uint64_t expert_bytes(const struct weight_list *list)
{
    uint64_t n = 0;

    for (int i = 0; i < list->n; i++)
        if (weight_expert_matrix(&list->items[i]) >= 0) n += list->items[i].t->bytes;
    return n;
}

/* Bytes of weights on the GPU. */
static uint64_t check_plan(bool cpu_moe)
{
    struct load_opt o = { .backend = { .device = "cuda", .cpu_moe = cpu_moe },
                          .n_ctx = 64,
                          .max_batch = 64,
                          .max_seqs = 2,
                          .kv_type = DT_NONE };
    struct loadplan *p = NULL;
    struct runner *r = NULL;
    struct runner_device d[4];
    struct err e = { 0 };
    int last = cpu_moe;

    assert_int_equal(loadplan_read(&p, repo("tests/golden/hf/glm4_moe"), &e), OK);
    if (loadplan_make(p, &o, &e) != OK || runner_open(&r, p, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(p->place.n_shares, last + 1);
    assert_int_equal(p->place.shares[last].n_layers, p->hp->n_layers);
    assert_int_equal(runner_devices(r, d, 4), last + 1);
    assert_int_equal(d[last].n_experts, 0);
    if (cpu_moe) {
        assert_int_equal(p->place.shares[0].n_layers, 0);
        assert_true(p->memory[0].mapped + p->memory[0].weights >= expert_bytes(p->weights));
        assert_int_equal(p->memory[0].kv, 0);
        assert_int_equal(p->place.shares[0].be->used_bytes[MEM_SCRATCH], p->memory[0].scratch);
        assert_string_equal(d[0].name, "cpu");
        assert_int_equal(d[0].n_layers, 0);
        assert_true(d[0].n_experts > 0);
    }
    runner_close(r);
    loadplan_close(p);
    return d[last].stats.bytes[MEM_WEIGHTS];
}

static void the_plan_counts_experts_on_the_cpu(void **state)
{
    (void)state;
    need_gpu();
    assert_true(check_plan(true) < check_plan(false));
}

/* An argument selects tests by name: '*plan*'. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_on_the_cpu_give_the_logits_of_the_cpu),
        cmocka_unit_test(layers_and_experts_on_the_cpu_give_the_logits_of_the_cpu),
        cmocka_unit_test(repeated_steps_give_the_same_results),
        cmocka_unit_test(the_plan_counts_experts_on_the_cpu),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
