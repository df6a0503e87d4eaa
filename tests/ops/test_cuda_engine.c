/* The engine on the GPU with a model that has recurrent state and with embedding models, against
 * the engine on the CPU.
 *
 * Models are small, with random weights. Skipped without a GPU. */
#include "cuda_world.h"
#include "encoder_world.h"

#include "engine/engine.h"
#include "engine/info.h"
#include "engine/request.h"
#include "engine/stats.h"

static struct engine *open_on(const char *device, const char *path)
{
    struct engine_opt o = {
        .device = device, .n_ctx = 64, .max_seqs = 8, .kv_type = DT_NONE, .manual = true
    };
    struct engine *g = NULL;
    struct err e = { 0 };

    if (engine_open(&g, path, &o, &e) != OK) fail_msg("%s", e.msg);
    return g;
}

static struct request *submit_prompt(struct engine *g, int seed, int n, bool embed)
{
    struct request *r = request_open();
    struct err e = { 0 };

    for (int i = 0; i < n; i++) ids_push(&r->prompt, (seed * 131 + i * 31) % 37 + 5);
    r->embed = embed;
    r->max_tokens = r->min_tokens = 12;
    r->sample.temp = 0;
    if (engine_submit(g, r, &e) != OK) fail_msg("%s", e.msg);
    return r;
}

/* Runs a prompt of n tokens and stores the 12 sampled tokens. Returns how many prompt tokens
 * were in the prefix cache. */
static int sample_after_prompt(struct engine *g, int n, int32_t out[12])
{
    struct request *r = submit_prompt(g, 1, n, false);
    struct event ev;
    int at = 0, cached;

    for (bool more = true; more;) {
        more = engine_step(g);
        while (request_next(r, &ev))
            if (ev.id >= 0 && at < 12) out[at++] = ev.id;
    }
    assert_int_equal(at, 12);
    cached = r->n_cached;
    request_unref(r);
    return cached;
}

/* The second time, the state after the prompt's cached part is restored from a snapshot. The
 * steps that remain are the same as the first time, and so are the tokens. */
static void the_engine_continues_from_a_cached_state(void **state)
{
    static const char *const models[] = { "tests/golden/hf/mamba2", "tests/golden/hf/qwen3_next" };
    (void)state;
    backend_close(cuda_open());
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct engine *g = open_on("cuda", repo(models[i]));
        int32_t first[12], again[12];
        assert_int_equal(sample_after_prompt(g, 45, first), 0);
        assert_int_equal(sample_after_prompt(g, 45, again), 32);
        assert_memory_equal(first, again, sizeof first);
        engine_close(g);
    }
}

static void the_engine_gives_the_embeddings_of_the_cpu(void **state)
{
    enum { N = 6 };
    static const int lens[N] = { 1, 33, 7, 20, 2, 12 };
    struct rng rng;
    (void)state;
    backend_close(cuda_open());
    rng_seed(&rng, 6);
    for (int kind = 0; kind < KINDS; kind++) {
        struct weights *w = random_weights(&rng);
        struct folder f;
        const char *path = write_encoder(&f, w, (enum kind)kind, "mean_tokens");
        struct engine *g[2] = { open_on("cpu", path), open_on("cuda", path) };
        struct request *r[2][N];
        for (int side = 0; side < 2; side++) {
            for (int i = 0; i < N; i++) r[side][i] = submit_prompt(g[side], i, lens[i], true);
            while (engine_step(g[side])) {}
        }
        for (int i = 0; i < N; i++) {
            double e = error_of(r[1][i]->vec, r[0][i]->vec, E, 0);
            if (!(e < 5e-3)) fail_msg("%s, text %d: relative error %g", types[kind], i, e);
            request_unref(r[0][i]), request_unref(r[1][i]);
        }
        engine_close(g[0]), engine_close(g[1]);
        mem_free(w);
    }
}

/* An argument selects tests by name. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_engine_continues_from_a_cached_state),
        cmocka_unit_test(the_engine_gives_the_embeddings_of_the_cpu),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
