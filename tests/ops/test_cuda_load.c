/* Engines on a GPU: a closed model leaves no memory allocated, a cancel does not wait for a
 * large step, and the device's statistics are correct.
 *
 * TERN_LOAD_MODEL names a model other than the one in the repository, TERN_LOAD_CYCLES the
 * number of loads. Skipped without a GPU. */
#include "cuda_world.h"

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/info.h"
#include "engine/request.h"
#include "engine/stats.h"

#include <time.h>

static const char *model_path(void)
{
    const char *named = getenv("TERN_LOAD_MODEL");
    return named ? named : repo("models/tern-tales.gguf");
}

static struct engine_opt engine_options(void)
{
    return (struct engine_opt){ .device = "cuda",
                                .n_ctx = 4096,
                                .kv_tokens = 8192,
                                .max_seqs = 4,
                                .kv_type = DT_NONE,
                                .no_prefix = true };
}

static struct engine *open_engine(struct engine_opt o)
{
    struct engine *g = NULL;
    struct err e = { 0 };

    if (engine_open(&g, model_path(), &o, &e) != OK) fail_msg("%s", e.msg);
    return g;
}

static struct request *make_request(int n_prompt, int max_tokens)
{
    struct request *r = request_open();

    for (int i = 0; i < n_prompt; i++) ids_push(&r->prompt, (i * 31 + i / 7) % 300 + 5);
    r->max_tokens = max_tokens;
    r->sample.temp = 0;
    r->ignore_eos = true;
    return r;
}

static void nap_us(long us) { nanosleep(&(struct timespec){ .tv_nsec = us * 1000 }, NULL); }

static enum finish wait_for_end(struct request *r)
{
    struct event ev = { 0 };
    uint64_t start = clock_ns();

    while (ev.finish == FINISH_NONE) {
        if (request_next(r, &ev)) continue;
        if (clock_ms_since(start) > 60000) fail_msg("the request did not end");
        nap_us(20);
    }
    return (enum finish)ev.finish;
}

/* ---- memory ---- */

/* Free device memory in bytes, read by a backend that does nothing else. */
static uint64_t free_device_bytes(struct backend *watcher)
{
    struct backend_limits none = { .max_tokens = 1,
                                   .max_seqs = 1,
                                   .max_out = 1,
                                   .max_cols = 32,
                                   .max_rows = 32,
                                   .n_vocab = 32,
                                   .n_heads = 1,
                                   .head_dim = 32 };
    struct backend_stats s;
    struct err e = { 0 };

    if (watcher->reserve(watcher, &none, &e) != OK) fail_msg("%s", e.msg);
    watcher->stats(watcher, &s);
    return s.free_bytes;
}

static void load_and_use(void)
{
    struct engine *g = open_engine(engine_options());
    struct request *r = make_request(64, 4);
    struct err e = { 0 };

    if (engine_submit(g, r, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(wait_for_end(r), FINISH_LENGTH);
    request_unref(r);
    engine_close(g);
}

/* Kernels and libraries allocate memory at first use and keep it. The first loads are not
 * counted for that reason. */
static void closed_models_leave_no_memory_allocated(void **state)
{
    const char *n = getenv("TERN_LOAD_CYCLES");
    int cycles = n ? atoi(n) : 10;
    struct backend *watcher = cuda_open();
    uint64_t before, start;
    (void)state;

    for (int i = 0; i < 2; i++) load_and_use();
    before = free_device_bytes(watcher);
    start = clock_ns();
    for (int i = 0; i < cycles; i++) {
        load_and_use();
        uint64_t after = free_device_bytes(watcher);
        if (after != before)
            fail_msg("round %d: %llu bytes are free, before it were %llu", i,
                     (unsigned long long)after, (unsigned long long)before);
    }
    print_message("%d loads of %.0f ms each, %llu bytes free before and after all\n", cycles,
                  clock_ms_since(start) / cycles, (unsigned long long)before);
    backend_close(watcher);
}

/* ---- cancelling ---- */

struct times {
    double most, sum;
    int n;
};

/* Submits a prompt of n_prompt tokens, cancels it after_us microseconds later, and adds the time
 * until its end to t. */
static void cancel_one(struct engine *g, int n_prompt, long after_us, struct times *t)
{
    struct request *r = make_request(n_prompt, 16);
    struct err e = { 0 };
    uint64_t at;
    double ms;

    if (engine_submit(g, r, &e) != OK) fail_msg("%s", e.msg);
    while (atomic_load(&r->state) < REQ_PREFILL) nap_us(10);
    nap_us(after_us);
    at = clock_ns();
    request_cancel(r, CANCEL_ASKED);
    if (wait_for_end(r) == FINISH_CANCELLED) {
        ms = (double)(r->end_ns - at) / 1e6;
        t->most = ms > t->most ? ms : t->most;
        t->sum += ms;
        t->n++;
    }
    request_unref(r);
}

static void a_cancel_does_not_wait_for_a_large_step(void **state)
{
    struct engine_opt o = engine_options();
    struct engine *g;
    struct times t = { 0 };
    struct err e = { 0 };
    (void)state;

    backend_close(cuda_open());
    o.max_batch = 2048;
    o.step_ms = 1000;
    g = open_engine(o);
    if (engine_warm(g, &e) != OK) fail_msg("%s", e.msg);
    for (int i = 0; i < 20; i++) cancel_one(g, 4000, 500 + 3700 * i % 40000, &t);
    assert_true(t.n > 0);
    print_message("%d cancels of a prompt of 4000 tokens: mean %.2f ms, largest %.2f ms\n", t.n,
                  t.sum / t.n, t.most);
    assert_true(t.most < 20);
    assert_int_equal(counter_get(&engine_stats(g)->after_cancel), 0);
    load_and_use();
    engine_close(g);
}

/* One request of a batch is cancelled in the middle of a step. The others get the tokens that
 * they get without it. */
static void other_requests_of_a_step_continue_after_a_cancel(void **state)
{
    struct engine *g;
    struct request *r[4], *alone;
    struct err e = { 0 };
    struct event ev;
    int32_t want[8], got;
    (void)state;

    backend_close(cuda_open());
    g = open_engine(engine_options());
    alone = make_request(900, 8);
    assert_int_equal(engine_submit(g, alone, &e), OK);
    for (int n = 0; n < 8;) {
        if (!request_next(alone, &ev)) continue;
        if (ev.id >= 0) want[n++] = ev.id;
    }
    for (int i = 0; i < 4; i++) {
        r[i] = make_request(900, 8);
        assert_int_equal(engine_submit(g, r[i], &e), OK);
    }
    while (atomic_load(&r[1]->state) < REQ_PREFILL) nap_us(10);
    nap_us(1500);
    request_cancel(r[1], CANCEL_GONE);
    for (int i = 0, n; i < 4; i++) {
        for (n = 0, ev.finish = FINISH_NONE; ev.finish == FINISH_NONE;) {
            if (!request_next(r[i], &ev)) continue;
            got = ev.id;
            if (got >= 0 && i != 1 && n < 8 && want[n] != got)
                fail_msg("token %d of request %d differs", n, i);
            n += got >= 0;
        }
        if (i != 1) assert_int_equal(n, 8);
        request_unref(r[i]);
    }
    request_unref(alone);
    engine_close(g);
}

/* ---- statistics ---- */

static void device_statistics_are_reported(void **state)
{
    struct engine_device a, b;
    struct engine_info info;
    struct engine *g;
    struct request *r;
    struct err e = { 0 };
    uint64_t start;
    (void)state;

    backend_close(cuda_open());
    g = open_engine(engine_options());
    engine_info(g, &info);
    a = info.device[info.n_devices - 1];
    assert_true(a.init_ns > 0 && a.read_ns + a.pack_ns + a.upload_ns > 0);
    assert_true(a.weight_bytes > 0 && a.kv_bytes == info.kv_bytes &&
                a.scratch_bytes == info.scratch_bytes);
    assert_true(a.total_bytes > a.free_bytes && a.free_bytes > 0);
    r = make_request(512, 64);
    start = clock_ns();
    assert_int_equal(engine_submit(g, r, &e), OK);
    assert_int_equal(wait_for_end(r), FINISH_LENGTH);
    start = clock_ns() - start;
    engine_info(g, &info);
    b = info.device[info.n_devices - 1];
    print_message("init %.0f ms; load: read %.0f, repack %.0f, upload %.0f ms; busy %.1f%% of %.1f "
                  "ms; %llu steps, %llu "
                  "graphs of %llu KiB, %llu replays; libraries %llu MiB\n",
                  (double)b.init_ns / 1e6, (double)b.read_ns / 1e6, (double)b.pack_ns / 1e6,
                  (double)b.upload_ns / 1e6, 100 * (double)(b.busy_ns - a.busy_ns) / (double)start,
                  (double)start / 1e6, (unsigned long long)b.n_steps,
                  (unsigned long long)b.n_graphs, (unsigned long long)b.graph_bytes >> 10,
                  (unsigned long long)b.n_replays, (unsigned long long)b.library_bytes >> 20);
    assert_true(b.busy_ns > a.busy_ns && b.busy_ns - a.busy_ns <= start);
    assert_true(b.n_steps >= 64 && b.n_replays > 0 && b.n_graphs > 0);
    request_unref(r);
    engine_close(g);
}

/* An argument selects tests by name: '*cancel*'. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_models_leave_no_memory_allocated),
        cmocka_unit_test(a_cancel_does_not_wait_for_a_large_step),
        cmocka_unit_test(other_requests_of_a_step_continue_after_a_cancel),
        cmocka_unit_test(device_statistics_are_reported),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
