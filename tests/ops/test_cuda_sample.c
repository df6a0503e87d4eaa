/* Sampling on the GPU against the sampler on the host: through the backend table and through the
 * engine.
 *
 * Logits are random; seeds are fixed. Skipped without a GPU. */
#include "cuda_world.h"

#include "engine/engine.h"
#include "engine/info.h"
#include "engine/request.h"
#include "engine/stats.h"
#include "sample/sampler.h"

#include <string.h>

enum { ROWS = 24, MAX_ADJUST = ROWS * 128 };

static struct rng rng;

static int below(int n) { return (int)(rng_u64(&rng) % (uint64_t)n); }

struct world {
    struct backend *be;
    int n;
    float *x, *d_x;
    struct sample_row *d_rows;
    struct logit_adjust *d_adjust;
    int32_t *d_ids;
};

static void *alloc_device(struct backend *be, size_t bytes)
{
    struct err e = { 0 };
    void *p = NULL;

    if (be->alloc(be, &p, bytes, MEM_SCRATCH, &e) != OK) fail_msg("%s", e.msg);
    return p;
}

static void world_open(struct world *w, struct backend *be, int n)
{
    struct backend_limits lim = { .max_tokens = ROWS,
                                  .max_seqs = ROWS,
                                  .max_out = ROWS,
                                  .max_cols = 256,
                                  .max_rows = 256,
                                  .n_vocab = n,
                                  .n_heads = 1,
                                  .head_dim = 64,
                                  .max_adjust = MAX_ADJUST };
    struct err e = { 0 };

    *w =
        (struct world){ .be = be, .n = n, .x = mem_array((size_t)ROWS * (size_t)n, sizeof(float)) };
    if (be->reserve(be, &lim, &e) != OK) fail_msg("%s", e.msg);
    w->d_x = alloc_device(be, (size_t)ROWS * (size_t)n * sizeof(float));
    w->d_rows = alloc_device(be, ROWS * sizeof(struct sample_row));
    w->d_adjust = alloc_device(be, MAX_ADJUST * sizeof(struct logit_adjust));
    w->d_ids = alloc_device(be, ROWS * sizeof(int32_t));
}

static void world_close(struct world *w)
{
    w->be->free(w->be, w->d_x, (size_t)ROWS * (size_t)w->n * sizeof(float), MEM_SCRATCH);
    w->be->free(w->be, w->d_rows, ROWS * sizeof(struct sample_row), MEM_SCRATCH);
    w->be->free(w->be, w->d_adjust, MAX_ADJUST * sizeof(struct logit_adjust), MEM_SCRATCH);
    w->be->free(w->be, w->d_ids, ROWS * sizeof(int32_t), MEM_SCRATCH);
    mem_free(w->x);
}

static void fill_logits(struct world *w, int kind)
{
    static const float size[] = { 2, 0.3f, 9, 2, 0, 2 };

    for (size_t i = 0; i < (size_t)ROWS * (size_t)w->n; i++) {
        w->x[i] = rng_normal(&rng) * size[kind];
        if (kind == 3) w->x[i] = rintf(w->x[i] * 2) / 2; /* many equal logits */
        if (kind == 5 && below(3) == 0) w->x[i] = below(2) ? NAN : below(9) ? -INFINITY : INFINITY;
    }
    w->be->put(w->be, w->d_x, w->x, (size_t)ROWS * (size_t)w->n * sizeof(float));
    sync_backend(w->be);
}

static struct sample_opt make_options(int row, struct logit_bias bias[4], int n)
{
    static const float top_p[] = { 1, 0.95f, 0.5f, 0.999f }, min_p[] = { 0, 0, 0.05f };
    static const int top_k[] = { 0, 40, 1, 700, 5000 };
    struct sample_opt o = { .temp = row % 6 ? 0.3f + 0.2f * (float)below(8) : 0,
                            .top_k = top_k[below(5)],
                            .top_p = top_p[below(4)],
                            .min_p = min_p[below(3)],
                            .typical = 1,
                            .repeat_penalty = 1,
                            .repeat_last = 64,
                            .seed = rng_u64(&rng) };

    if (row % 3 == 1) o.repeat_penalty = 1.3f, o.freq_penalty = 0.2f, o.presence_penalty = 0.4f;
    if (row % 4 == 1) {
        for (int i = 0; i < 4; i++) bias[i] = (struct logit_bias){ below(n), rng_normal(&rng) * 4 };
        o.bias = bias, o.n_bias = 4;
    }
    return o;
}

/* Samples tokens of ROWS requests over some steps, on the GPU and on the host. Returns how many
 * tokens differ. */
static int count_different_samples(struct world *w, int steps)
{
    struct sampler *host[ROWS], *dev[ROWS];
    static struct logit_adjust adjust[MAX_ADJUST];
    struct sample_row rows[ROWS];
    struct err e = { 0 };
    int n_differ = 0;

    for (int r = 0; r < ROWS; r++) {
        struct logit_bias bias[4];
        struct sample_opt o = make_options(r, bias, w->n);
        if (sampler_open(&host[r], &o, w->n, &e) != OK || sampler_open(&dev[r], &o, w->n, &e) != OK)
            fail_msg("%s", e.msg);
    }
    for (int s = 0; s < steps; s++) {
        int32_t ids[ROWS], again[ROWS], want;
        int n = 0;
        struct tensor logits = tensor_f32(w->d_x, ROWS, w->n);
        for (int r = 0; r < ROWS; r++) {
            int k = sampler_plan(dev[r], NULL, 0, &rows[r], adjust + n, MAX_ADJUST - n);
            assert_true(k >= 0);
            rows[r].row = r, rows[r].adjust = n;
            n += k;
        }
        w->be->put(w->be, w->d_rows, rows, sizeof rows);
        w->be->put(w->be, w->d_adjust, adjust, (size_t)n * sizeof *adjust);
        w->be->sample(w->be, w->d_ids, &logits, w->d_rows, ROWS, w->d_adjust);
        w->be->get(w->be, ids, w->d_ids, sizeof ids);
        w->be->sample(w->be, w->d_ids, &logits, w->d_rows, ROWS, w->d_adjust);
        w->be->get(w->be, again, w->d_ids, sizeof again);
        sync_backend(w->be);
        assert_memory_equal(ids, again, sizeof ids);
        for (int r = 0; r < ROWS; r++) {
            if (sampler_next(host[r], w->x + (size_t)r * (size_t)w->n, &want, &e) != OK) want = -1;
            n_differ += ids[r] != want;
            sampler_accept_device(dev[r], want, &e);
        }
    }
    for (int r = 0; r < ROWS; r++) sampler_close(host[r]), sampler_close(dev[r]);
    return n_differ;
}

static void tokens_sampled_on_the_gpu_are_those_of_the_host(void **state)
{
    static const int sizes[] = { 1, 3, 255, 4097, 32000 };
    int n = 0, n_differ = 0;
    (void)state;
    rng_seed(&rng, 5);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct backend *be = cuda_open();
        struct world w;
        world_open(&w, be, sizes[i]);
        for (int kind = 0; kind < 6; kind++) {
            if (!is_selected()) continue;
            size_t bytes = (size_t)ROWS * (size_t)w.n * sizeof(float);
            float *back = mem_alloc(bytes);
            fill_logits(&w, kind);
            n_differ += count_different_samples(&w, 8);
            n += 8 * ROWS;
            be->get(be, back, w.d_x, bytes); /* the GPU has undone its adjustments */
            sync_backend(be);
            assert_memory_equal(back, w.x, bytes);
            mem_free(back);
        }
        world_close(&w);
        backend_close(be);
    }
    print_message("%d of %d sampled tokens differ from the host's\n", n_differ, n);
    assert_true(n_differ * 1000 <= n);
}

static void rows_without_a_finite_logit_return_no_token(void **state)
{
    struct backend *be;
    struct world w;
    struct sample_row rows[ROWS];
    int32_t ids[ROWS];
    (void)state;
    be = cuda_open();
    world_open(&w, be, 1000);
    for (int i = 0; i < ROWS * 1000; i++)
        w.x[i] = i / 1000 % 2 ? NAN : i % 1000 == 7 ? 1.f : -INFINITY;
    for (int i = 4000; i < 5000; i++) w.x[i] = -INFINITY;
    be->put(be, w.d_x, w.x, ROWS * 1000 * sizeof(float));
    for (int r = 0; r < ROWS; r++)
        rows[r] = (struct sample_row){
            .row = r, .temp = r % 4 < 2 ? 0 : 1, .top_p = r % 3 ? 1 : 0.9f, .u = 0.5
        };
    be->put(be, w.d_rows, rows, sizeof rows);
    struct tensor logits = tensor_f32(w.d_x, ROWS, 1000);
    be->sample(be, w.d_ids, &logits, w.d_rows, ROWS, w.d_adjust);
    be->get(be, ids, w.d_ids, sizeof ids);
    sync_backend(be);
    for (int r = 0; r < ROWS; r++) assert_int_equal(ids[r], r % 2 || r == 4 ? -1 : 7);
    world_close(&w);
    backend_close(be);
}

/* ---- the engine ---- */

struct asked {
    struct request *r;
    int32_t out[64];
    int n;
};

static struct asked make_request(int seed, float temp, bool logprobs)
{
    struct asked a = { .r = request_open() };

    for (int i = 0; i < 12 + seed % 5; i++) ids_push(&a.r->prompt, (seed * 131 + i * 31) % 300 + 5);
    a.r->max_tokens = 40;
    a.r->min_tokens = 40;
    a.r->sample.temp = temp;
    a.r->sample.seed = (uint64_t)seed;
    a.r->sample.repeat_penalty = seed % 2 ? 1.1f : 1;
    a.r->n_top = logprobs ? 0 : -1;
    return a;
}

static void run_requests(struct engine *g, struct asked *a, int n)
{
    struct err e = { 0 };
    struct event ev;

    for (int i = 0; i < n; i++)
        if (engine_submit(g, a[i].r, &e) != OK) fail_msg("%s", e.msg);
    for (int guard = 0; engine_step(g); guard++) {
        assert_true(guard < 10000);
        for (int i = 0; i < n; i++)
            while (request_next(a[i].r, &ev))
                if (ev.id >= 0 && a[i].n < 64) a[i].out[a[i].n++] = ev.id;
    }
    for (int i = 0; i < n; i++) {
        while (request_next(a[i].r, &ev))
            if (ev.id >= 0 && a[i].n < 64) a[i].out[a[i].n++] = ev.id;
        assert_int_equal(a[i].r->finish, FINISH_LENGTH);
        assert_int_equal(a[i].n, 40);
        request_unref(a[i].r);
    }
}

/* The host samples for requests with logprobs, the GPU for all others. In one batch, both kinds
 * get the same tokens. */
static void the_engine_gives_the_tokens_of_the_host(void **state)
{
    enum { PAIRS = 8 };
    struct engine_opt o = { .device = "cuda",
                            .n_ctx = 256,
                            .max_seqs = 16,
                            .kv_type = DT_NONE,
                            .no_prefix = true,
                            .manual = true };
    struct engine *g = NULL;
    struct err e = { 0 };
    struct asked a[2 * PAIRS], b[PAIRS];
    int same = 0;
    (void)state;
    backend_close(cuda_open());
    if (engine_open(&g, repo("models/tern-tales.gguf"), &o, &e) != OK) fail_msg("%s", e.msg);
    for (int i = 0; i < PAIRS; i++) {
        a[2 * i] = make_request(i, i % 3 ? 0.8f : 0, false);
        a[2 * i + 1] = make_request(i, i % 3 ? 0.8f : 0, true);
        b[i] = make_request(i, i % 3 ? 0.8f : 0, false);
    }
    run_requests(g, a, 2 * PAIRS);
    run_requests(g, b, PAIRS);
    for (int i = 0; i < PAIRS; i++) {
        same += memcmp(a[2 * i].out, a[2 * i + 1].out, 40 * sizeof(int32_t)) == 0;
        same += memcmp(a[2 * i].out, b[i].out, 40 * sizeof(int32_t)) == 0;
    }
    print_message("%d of %d requests have the same tokens\n", same, 2 * PAIRS);
    assert_true(same >= 2 * PAIRS - 3); /* logits may round differently beside other rows */
    engine_close(g);
}

/* An argument selects tests by name: '*engine*'. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_sampled_on_the_gpu_are_those_of_the_host),
        cmocka_unit_test(rows_without_a_finite_logit_return_no_token),
        cmocka_unit_test(the_engine_gives_the_tokens_of_the_host),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
