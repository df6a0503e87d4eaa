#include "support.h"

#include "base/mem.h"
#include "base/rng.h"
#include "engine/engine_impl.h"
#include "tern.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* A tiny random model without a tokenizer, plain C kernels: results do not depend on the batch. */
#define MODEL "tests/golden/hf/qwen2"
static const char *model = MODEL;

/* A request and what was read of it. */
struct asked {
    struct request *r;
    struct ids out;
    enum finish finish;
    int n_events;
};

static struct engine *open_engine(struct engine_opt o)
{
    struct engine *g = NULL;
    struct err e = { 0 };
    o.backend.reference = true;
    o.backend.n_threads = 1;
    o.kv_type = DT_NONE;
    if (engine_open(&g, repo(model), &o, &e) != OK) fail_msg("%s", e.msg);
    return g;
}

static struct engine *open_manual(struct engine_opt o)
{
    o.manual = true;
    return open_engine(o);
}

static struct asked ask(const int32_t *ids, int n, int max_tokens)
{
    struct asked a = { .r = request_open() };
    for (int i = 0; i < n; i++) ids_push(&a.r->prompt, ids[i]);
    a.r->max_tokens = max_tokens;
    a.r->sample.temp = 0;
    a.r->ignore_eos = true;
    return a;
}

/* A prompt of n tokens that differ from seed to seed. */
static struct asked ask_any(int seed, int n, int max_tokens)
{
    int32_t ids[512];
    for (int i = 0; i < n; i++) ids[i] = (seed * 131 + i * 31 + i * i * 7) % 100 + 3;
    return ask(ids, n, max_tokens);
}

static void done(struct asked *a)
{
    request_unref(a->r);
    ids_release(&a->out);
}

static void submit(struct engine *g, struct asked *a)
{
    struct err e = { 0 };
    if (engine_submit(g, a->r, &e) != OK) fail_msg("%s", e.msg);
}

static void take(struct asked *a)
{
    struct event ev;
    while (request_next(a->r, &ev)) {
        assert_int_equal(a->finish, FINISH_NONE);        /* nothing comes behind the end */
        a->n_events++;
        if (ev.id >= 0) ids_push(&a->out, ev.id);
        a->finish = (enum finish)ev.finish;
    }
}

static int run_all(struct engine *g, struct asked *const *all, int n)
{
    int steps = 0;
    while (engine_step(g)) {
        assert_true(++steps < 10000);
        for (int i = 0; i < n; i++) take(all[i]);
    }
    for (int i = 0; i < n; i++) take(all[i]);
    return steps;
}

static int run_one(struct engine *g, struct asked *a)
{
    submit(g, a);
    return run_all(g, &a, 1);
}

static void assert_same(const struct asked *a, const struct asked *b)
{
    assert_int_equal(a->out.n, b->out.n);
    assert_memory_equal(a->out.p, b->out.p, a->out.n * sizeof *a->out.p);
}

/* What a fresh engine gives: the truth the others are held to. */
static struct asked alone(int seed, int n, int max_tokens)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 256 });
    struct asked a = ask_any(seed, n, max_tokens);
    run_one(g, &a);
    assert_int_equal(a.finish, FINISH_LENGTH);
    engine_close(g);
    return a;
}

static int64_t used(struct engine *g) { return gauge_get(&engine_stats(g)->kv_used); }

static void greedy_goes_on_as_transformers_does(void **state)
{
    struct source *golden = NULL;
    const struct source_tensor *in, *want;
    struct engine *g;
    struct asked a;
    struct err e = { 0 };
    int32_t ids[48];
    char path[1200];
    (void)state;
    snprintf(path, sizeof path, "%s/golden.safetensors", repo(MODEL));
    if (source_open(&golden, path, &e) != OK) fail_msg("%s", e.msg);
    in = source_find(golden, "input_ids");
    want = source_find(golden, "greedy");
    assert_true(in && want && in->dims[in->n_dims - 1] == 48);
    for (int i = 0; i < 48; i++)
        ids[i] = in->type == DT_I64 ? (int32_t)((const int64_t *)in->data)[i]
                                    : ((const int32_t *)in->data)[i];
    g = open_manual((struct engine_opt){ .max_batch = 20 });
    a = ask(ids, 48, 16);
    run_one(g, &a);
    assert_int_equal(a.out.n, 16);
    for (int i = 0; i < 16; i++)
        assert_int_equal(a.out.p[i], want->type == DT_I64 ? (int32_t)((const int64_t *)want->data)[i]
                                                          : ((const int32_t *)want->data)[i]);
    assert_true(a.r->submit_ns <= a.r->start_ns && a.r->start_ns < a.r->first_ns &&
                a.r->first_ns < a.r->end_ns);
    assert_int_equal(a.r->n_out, 16);
    done(&a);
    engine_close(g);
    source_close(golden);
}

static void a_prompt_in_chunks_gives_the_same_tokens(void **state)
{
    struct asked truth = alone(1, 50, 20);
    (void)state;
    for (int batch = 1; batch < 60; batch += 13) {
        struct engine *g =
            open_manual((struct engine_opt){ .n_ctx = 256, .max_batch = batch, .max_seqs = 1 });
        struct asked a = ask_any(1, 50, 20);
        run_one(g, &a);
        assert_same(&a, &truth);
        done(&a);
        engine_close(g);
    }
    done(&truth);
}

static void sequences_run_together_as_if_alone(void **state)
{
    enum { N = 5 };
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 512, .max_batch = 32, .max_seqs = 3 });
    struct asked a[N], *all[N];
    (void)state;
    for (int i = 0; i < N; i++) {
        a[i] = ask_any(i, 10 + 17 * i, 12 + i);
        all[i] = &a[i];
        submit(g, &a[i]);
    }
    run_all(g, all, N);
    for (int i = 0; i < N; i++) {
        struct asked truth = alone(i, 10 + 17 * i, 12 + i);
        assert_same(&a[i], &truth);
        done(&truth);
        done(&a[i]);
    }
    assert_int_equal(used(g), 0);
    engine_close(g);
}

static void a_full_pool_sends_some_back_and_loses_nothing(void **state)
{
    enum { N = 4 };
    struct engine *g = open_manual(                      /* 9 blocks; each takes 6 */
        (struct engine_opt){ .n_ctx = 128, .kv_tokens = 128, .max_batch = 64, .max_seqs = 4 });
    struct asked a[N], *all[N];
    (void)state;
    for (int i = 0; i < N; i++) {
        a[i] = ask_any(i, 30, 60);
        all[i] = &a[i];
        submit(g, &a[i]);
    }
    run_all(g, all, N);
    for (int i = 0; i < N; i++) {
        struct asked truth = alone(i, 30, 60);
        assert_int_equal(a[i].finish, FINISH_LENGTH);
        assert_same(&a[i], &truth);
        done(&truth);
        done(&a[i]);
    }
    assert_true(counter_get(&engine_stats(g)->preemptions) > 0);
    assert_int_equal(used(g), 0);
    engine_close(g);
}

static void a_talk_that_goes_on_computes_only_what_is_new(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 256 });
    struct engine *fresh = open_manual((struct engine_opt){ .n_ctx = 256, .no_prefix = true });
    struct asked first = ask_any(3, 40, 10), second, again, truth;
    int32_t ids[200];
    int n = 0;
    (void)state;
    run_one(g, &first);
    assert_int_equal(first.r->n_cached, 0);
    for (size_t i = 0; i < first.r->prompt.n; i++) ids[n++] = first.r->prompt.p[i];
    for (size_t i = 0; i < first.out.n; i++) ids[n++] = first.out.p[i];
    for (int i = 0; i < 9; i++) ids[n++] = 5 + i;
    second = ask(ids, n, 10);
    run_one(g, &second);
    assert_int_equal(second.r->n_cached, 48);            /* whole blocks of what was run */
    truth = ask(ids, n, 10);
    run_one(fresh, &truth);
    assert_int_equal(truth.r->n_cached, 0);
    assert_same(&second, &truth);

    ids[20] = 99;                                        /* another text behind 20 tokens */
    again = ask(ids, n, 10);
    run_one(g, &again);
    assert_int_equal(again.r->n_cached, 16);
    done(&truth);
    truth = ask(ids, n, 10);
    run_one(fresh, &truth);
    assert_same(&again, &truth);
    done(&again);
    again = ask(ids, n, 10);
    again.r->salt = 7;                                   /* somebody who shares with nobody */
    run_one(g, &again);
    assert_int_equal(again.r->n_cached, 0);
    assert_same(&again, &truth);
    done(&first), done(&second), done(&again), done(&truth);
    engine_close(g);
    engine_close(fresh);
}

static void one_computes_a_prefix_that_many_begin_with(void **state)
{
    enum { N = 6 };
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 256, .max_batch = 32, .max_seqs = 8 });
    struct asked a[N], *all[N], truth;
    int cached = 0;
    (void)state;
    for (int i = 0; i < N; i++) {
        a[i] = ask_any(5, 100, 8);                       /* the same, arriving together */
        a[i].r->sample.seed = (uint64_t)i;
        all[i] = &a[i];
        submit(g, &a[i]);
    }
    run_all(g, all, N);
    truth = alone(5, 100, 8);
    for (int i = 0; i < N; i++) {
        assert_same(&a[i], &truth);
        cached += a[i].r->n_cached;
        done(&a[i]);
    }
    assert_int_equal(cached, (N - 1) * 96);
    done(&truth);
    engine_close(g);
}

/* ---- models that carry a state, and that keep a latent ---- */

/* What a cancelled one leaves in its slot is nobody's beginning. */
static void check_cancel(void)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 256, .max_batch = 16, .max_seqs = 2 });
    struct asked gone = ask_any(1, 60, 50), stays = ask_any(2, 30, 20), next = ask_any(3, 30, 20);
    struct asked *all[] = { &gone, &stays, &next }, truth;

    for (int i = 0; i < 3; i++) submit(g, all[i]);
    for (int i = 0; i < 12; i++) engine_step(g);
    request_cancel(gone.r, CANCEL_ASKED);
    run_all(g, all, 3);
    assert_int_equal(gone.finish, FINISH_CANCELLED);
    truth = alone(2, 30, 20);
    assert_same(&stays, &truth);
    done(&truth);
    truth = alone(3, 30, 20);
    assert_same(&next, &truth);
    done(&truth);
    for (int i = 0; i < 3; i++) done(all[i]);
    engine_close(g);
}

/* Two that begin the same: the second computes what is behind the last whole block. */
static void check_prefix(int cached)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 256 });
    struct asked a = ask_any(4, 70, 10), b = ask_any(4, 70, 10);

    run_one(g, &a);
    run_one(g, &b);
    assert_same(&a, &b);
    assert_int_equal(b.r->n_cached, cached);
    done(&a), done(&b);
    engine_close(g);
}

static void models_with_a_state_or_a_latent_run_together_as_if_alone(void **state)
{
    static const char *const models[] = { "tests/golden/hf/mamba2", "tests/golden/hf/qwen3_next",
                                          "tests/golden/hf/deepseek_v3" };

    for (size_t i = 0; i < 3; i++) {
        model = models[i];
        sequences_run_together_as_if_alone(state);
        a_prompt_in_chunks_gives_the_same_tokens(state);
        a_full_pool_sends_some_back_and_loses_nothing(state);
        check_cancel();
        check_prefix(64);
        one_computes_a_prefix_that_many_begin_with(state);
    }
    model = MODEL;
}

static void a_prompt_that_cannot_fit_is_told_both_numbers(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 32 });
    struct asked a = ask_any(1, 100, 0);
    struct err e = { 0 };
    (void)state;
    assert_int_equal(engine_submit(g, a.r, &e), E_CONTEXT);
    assert_non_null(strstr(e.msg, "100"));
    assert_non_null(strstr(e.msg, "32"));
    a.r->prompt.n = 0;
    assert_int_equal(engine_submit(g, a.r, &e), E_INVALID);
    ids_push(&a.r->prompt, 1 << 30);
    assert_int_equal(engine_submit(g, a.r, &e), E_INVALID);
    a.r->prompt.p[0] = 1;
    a.r->sample.top_p = 7;
    assert_int_equal(engine_submit(g, a.r, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "top_p"));
    assert_true(engine_is_idle(g));                      /* nothing of it is counted */
    done(&a);
    engine_close(g);
}

static void generation_ends_where_the_context_does(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 48 });
    struct asked a = ask_any(2, 20, 0);
    (void)state;
    run_one(g, &a);
    assert_int_equal(a.finish, FINISH_LENGTH);
    assert_int_equal(a.out.n, 28);
    done(&a);
    a = ask_any(2, 47, 0);                               /* room for one */
    run_one(g, &a);
    assert_int_equal(a.out.n, 1);
    done(&a);
    engine_close(g);
}

static void an_end_token_stops_unless_it_is_ignored_or_too_early(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 64 });
    int32_t end = -1;
    (void)state;
    for (int32_t id = 0; id < 64 && end < 0; id++)
        if (engine_is_end(g, id)) end = id;
    assert_true(end >= 0);
    for (int how = 0; how < 3; how++) {
        struct asked a = ask_any(4, 8, 10);
        struct logit_bias *bias = mem_alloc(sizeof *bias);
        *bias = (struct logit_bias){ end, 1000 };
        a.r->ignore_eos = how == 1;
        a.r->min_tokens = how == 2 ? 4 : 0;
        a.r->sample.bias = bias, a.r->sample.n_bias = 1;
        run_one(g, &a);
        assert_int_equal(a.finish, how == 1 ? FINISH_LENGTH : FINISH_STOP);
        assert_int_equal(a.out.n, how == 1 ? 10 : how == 2 ? 5 : 1);
        done(&a);
    }
    engine_close(g);
}

static void cancel_ends_at_the_next_step_and_leaves_the_others(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 256, .max_seqs = 2 });
    struct asked a = ask_any(1, 12, 100), b = ask_any(2, 12, 20), c = ask_any(3, 12, 20), truth;
    struct asked *all[] = { &a, &b, &c };
    (void)state;
    submit(g, &a), submit(g, &b), submit(g, &c);         /* c waits */
    for (int i = 0; i < 5; i++) engine_step(g);
    assert_true(request_cancel(a.r, CANCEL_ASKED));
    assert_false(request_cancel(a.r, CANCEL_GONE));      /* the first one counts */
    request_cancel(c.r, CANCEL_GONE);
    engine_step(g);
    take(&a), take(&c);
    assert_int_equal(a.finish, FINISH_CANCELLED);
    assert_int_equal(a.out.n, 5);
    assert_int_equal(c.finish, FINISH_CANCELLED);
    assert_int_equal(c.out.n, 0);
    run_all(g, all, 3);
    truth = alone(2, 12, 20);
    assert_same(&b, &truth);
    assert_int_equal(counter_get(&engine_stats(g)->after_cancel), 0);
    done(&a), done(&b), done(&c), done(&truth);
    engine_close(g);
}

static void cancelling_in_any_state_gives_the_blocks_back(void **state)
{
    struct engine *g = open_manual(
        (struct engine_opt){ .n_ctx = 96, .kv_tokens = 96, .max_batch = 16, .max_seqs = 2 });
    struct asked truth = alone(9, 60, 30), a;
    (void)state;
    for (int steps = 0; steps < 12; steps++) {
        a = ask_any(steps, 60, 30);
        submit(g, &a);
        for (int i = 0; i < steps; i++) engine_step(g);
        request_cancel(a.r, CANCEL_GONE);
        engine_step(g);
        take(&a);
        assert_int_equal(a.finish, FINISH_CANCELLED);
        assert_int_equal(used(g), 0);
        assert_true(engine_is_idle(g));
        done(&a);
    }
    a = ask_any(9, 60, 30);
    run_one(g, &a);
    assert_same(&a, &truth);
    done(&a), done(&truth);
    engine_close(g);
}

static void a_deadline_ends_what_runs_and_what_waits(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 256, .max_seqs = 1 });
    struct asked a = ask_any(1, 12, 200), b = ask_any(2, 12, 20);
    struct asked *all[] = { &a, &b };
    struct timespec now;
    struct err e = { 0 };
    (void)state;
    clock_gettime(CLOCK_MONOTONIC, &now);
    a.r->deadline_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec + 300000000u;
    b.r->deadline_ns = a.r->deadline_ns;
    submit(g, &a), submit(g, &b);
    engine_step(g);
    nanosleep(&(struct timespec){ .tv_nsec = 310000000 }, NULL);
    run_all(g, all, 2);
    assert_int_equal(a.finish, FINISH_DEADLINE);
    assert_int_equal(a.r->err.code, E_DEADLINE);
    assert_int_equal(a.out.n, 1);
    assert_int_equal(b.finish, FINISH_DEADLINE);
    assert_int_equal(b.r->n_out, 0);
    done(&b);
    b = ask_any(2, 12, 20);
    b.r->deadline_ns = 1;                                /* long ago: not even taken */
    assert_int_equal(engine_submit(g, b.r, &e), E_DEADLINE);
    done(&a), done(&b);
    engine_close(g);
}

static void more_than_may_wait_is_refused_with_a_time_to_come_back(void **state)
{
    enum { N = 4 };
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 256, .max_seqs = 1, .max_requests = N });
    struct asked a[N + 1], *all[N];
    struct err e = { 0 };
    (void)state;
    for (int i = 0; i < N; i++) {
        a[i] = ask_any(i, 10, 5);
        all[i] = &a[i];
        submit(g, &a[i]);
    }
    a[N] = ask_any(9, 10, 5);
    assert_int_equal(engine_submit(g, a[N].r, &e), E_QUEUE_FULL);
    assert_true(e.retry_ms >= 1000);
    run_all(g, all, N);
    run_one(g, &a[N]);                                   /* now there is room */
    assert_int_equal(a[N].finish, FINISH_LENGTH);
    engine_drain(g);
    assert_int_equal(engine_submit(g, a[N].r, &e), E_SHUTDOWN);
    for (int i = 0; i <= N; i++) done(&a[i]);
    engine_close(g);
}

static void a_reader_that_does_not_read_stops_only_itself(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 512, .max_seqs = 2 });
    struct asked slow = ask_any(1, 8, 500), quick = ask_any(2, 8, 500);
    struct asked *both[] = { &slow, &quick };
    (void)state;
    slow.r->n_top = 20;                                  /* large events */
    submit(g, &slow), submit(g, &quick);
    for (int i = 0; i < 600; i++) {
        engine_step(g);
        take(&quick);
    }
    assert_int_equal(quick.finish, FINISH_LENGTH);
    assert_int_equal(quick.out.n, 500);
    assert_true(slow.r->n_out < 200);                    /* waits for its reader */
    take(&slow);
    run_all(g, both, 2);
    assert_int_equal(slow.finish, FINISH_LENGTH);
    assert_int_equal(slow.out.n, 500);
    done(&slow), done(&quick);
    engine_close(g);
}

static void seeds_repeat_a_text_whoever_else_is_there(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 512 });
    struct asked a[4], *all[4];
    (void)state;
    for (int i = 0; i < 4; i++) {
        a[i] = ask_any(i < 2 ? 7 : i, 10, 30);
        a[i].r->sample.temp = 1;
        a[i].r->sample.seed = 11;
        all[i] = &a[i];
        submit(g, &a[i]);
    }
    run_all(g, all, 4);
    assert_same(&a[0], &a[1]);
    for (int i = 0; i < 4; i++) done(&a[i]);
    engine_close(g);
}

static void logprobs_are_of_the_model_and_in_order(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 64 });
    struct asked a = ask_any(1, 12, 5);
    struct event ev;
    int n = 0;
    (void)state;
    a.r->n_top = 5;
    submit(g, &a);
    while (engine_step(g)) {}
    while (request_next(a.r, &ev)) {
        if (ev.id < 0) continue;
        n++;
        assert_int_equal(ev.n_top, 5);
        assert_int_equal(ev.top[0].id, ev.id);           /* greedy takes the likeliest */
        assert_true(fabsf(ev.top[0].logprob - ev.logprob) < 1e-5f);
        for (int i = 1; i < 5; i++) assert_true(ev.top[i].logprob <= ev.top[i - 1].logprob);
        assert_true(ev.logprob < 0);
    }
    assert_int_equal(n, 5);
    done(&a);
    engine_close(g);
}

static void forbidding_an_end_leaves_the_logprobs_as_they_are(void **state)
{
    struct event first[2];
    (void)state;
    for (int how = 0; how < 2; how++) {
        struct engine *g = open_manual((struct engine_opt){ .n_ctx = 64 });
        struct asked a = ask_any(1, 12, 6);
        a.r->n_top = TOP_MAX;
        a.r->ignore_eos = false;
        a.r->min_tokens = how ? 5 : 0;
        submit(g, &a);
        while (engine_step(g)) {}
        assert_true(request_next(a.r, &first[how]));
        done(&a);
        engine_close(g);
    }
    assert_int_equal(first[0].n_top, TOP_MAX);
    assert_memory_equal(first[0].top, first[1].top, sizeof first[0].top);
    assert_true(first[0].logprob == first[1].logprob);
}

static void a_failure_ends_one_request_and_not_the_engine(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 256 });
    struct asked bad = ask_any(1, 10, 20), good = ask_any(2, 12, 20), truth;
    struct asked *all[] = { &bad, &good };
    struct logit_bias *ban = mem_array(320, sizeof *ban);
    (void)state;
    for (int i = 0; i < 320; i++) ban[i] = (struct logit_bias){ i, -INFINITY };
    bad.r->sample.bias = ban, bad.r->sample.n_bias = 320;        /* nothing is left to pick */
    submit(g, &bad), submit(g, &good);
    run_all(g, all, 2);
    assert_int_equal(bad.finish, FINISH_ERROR);
    assert_int_equal(bad.r->err.code, E_DEVICE);
    assert_int_equal(bad.out.n, 0);
    truth = alone(2, 12, 20);
    assert_same(&good, &truth);
    done(&bad), done(&good), done(&truth);
    engine_close(g);
}

static void impossible_options_are_refused(void **state)
{
    struct engine *g = NULL;
    struct err e = { 0 };
    const struct engine_opt bad[] = { { .n_ctx = -5 }, { .n_ctx = 1 }, { .max_batch = -1 },
                                      { .max_seqs = 1 << 20 }, { .kv_tokens = -1 }, { .max_requests = -1 } };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(engine_open(&g, repo(MODEL), &bad[i], &e), E_INVALID);
    assert_true(engine_open(&g, "/no/such/model", NULL, &e) != OK);
    assert_null(g);
    engine_close(NULL);
}

/* ---- while a step runs ---- */

static struct asked *victim;

/* Called when a token of the last step is told: the next step has begun by then. */
static void cancel_victim(struct request *r)
{
    if (victim) request_cancel(victim->r, CANCEL_ASKED);
    request_unref(r);
}

/* Rounds of the engine's thread, one by one: what a step came to is told in the next. */
static void a_token_is_told_when_the_next_step_has_begun(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 64 });
    struct asked a = ask_any(1, 8, 3), truth = alone(1, 8, 3);
    (void)state;
    submit(g, &a);
    for (int round = 0; round < 4; round++) {
        assert_int_equal(engine_round(g), round < 3 ? ROUND_WORKED : ROUND_IDLE);
        take(&a);
        assert_int_equal(a.out.n, round);
    }
    assert_int_equal(a.finish, FINISH_LENGTH);
    assert_same(&a, &truth);
    assert_true(engine_is_idle(g));
    done(&a), done(&truth);
    engine_close(g);
}

static void a_cancel_is_answered_in_the_middle_of_a_step(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 256 });
    struct asked a = ask_any(1, 12, 20), b = ask_any(2, 12, 20), truth = alone(1, 12, 20);
    struct asked *both[] = { &a, &b };
    (void)state;
    a.r->notify = cancel_victim;
    submit(g, &a), submit(g, &b);
    for (int i = 0; i < 4; i++) assert_int_equal(engine_round(g), ROUND_WORKED);
    take(&a), take(&b);
    assert_int_equal(b.out.n, 3);
    victim = &b;                                         /* in the next round, once its step runs */
    assert_int_equal(engine_round(g), ROUND_WORKED);
    victim = NULL;
    take(&a), take(&b);
    assert_int_equal(b.finish, FINISH_CANCELLED);        /* by that round, not the one behind it */
    assert_int_equal(b.out.n, 3);                        /* nothing that was not told by then */
    assert_int_equal(b.r->n_out, 3);
    run_all(g, both, 2);
    assert_same(&a, &truth);
    assert_int_equal(counter_get(&engine_stats(g)->after_cancel), 0);
    assert_int_equal(counter_get(&engine_stats(g)->generated_tokens), 23);
    assert_int_equal(used(g), 0);
    done(&a), done(&b), done(&truth);
    engine_close(g);
}

/* Nobody is left in it: the step itself ends. */
static void a_step_that_nobody_wants_is_not_computed(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 256 });
    struct asked a = ask_any(1, 12, 20);
    uint64_t steps;
    (void)state;
    a.r->notify = cancel_victim;
    submit(g, &a);
    for (int i = 0; i < 3; i++) engine_round(g);
    take(&a);
    steps = counter_get(&engine_stats(g)->steps);
    victim = &a;
    engine_round(g);
    victim = NULL;
    take(&a);
    assert_int_equal(a.finish, FINISH_CANCELLED);
    assert_int_equal(a.out.n, 3);                        /* the last was being told when it was cancelled */
    assert_int_equal(counter_get(&engine_stats(g)->steps), steps);
    assert_int_equal(engine_round(g), ROUND_IDLE);
    assert_int_equal(used(g), 0);
    done(&a);
    engine_close(g);
}

/* ---- with its thread ---- */

static void warm_up_runs_and_is_not_counted(void **state)
{
    struct engine *g = open_engine((struct engine_opt){ .n_ctx = 64 });
    struct err e = { 0 };
    (void)state;
    assert_int_equal(engine_warm(g, &e), OK);
    assert_int_equal(counter_get(&engine_stats(g)->generated_tokens), 0);
    assert_int_equal(counter_get(&engine_stats(g)->submitted), 0);
    engine_close(g);
}

static void closing_tells_everyone_who_still_waits(void **state)
{
    enum { N = 6 };
    struct engine *g = open_engine((struct engine_opt){ .n_ctx = 512, .max_seqs = 2 });
    struct asked a[N];
    (void)state;
    for (int i = 0; i < N; i++) {
        a[i] = ask_any(i, 20, 400);
        submit(g, &a[i]);
    }
    engine_close(g);
    for (int i = 0; i < N; i++) {
        take(&a[i]);
        assert_int_equal(a[i].finish, FINISH_CANCELLED);
        done(&a[i]);
    }
}

/* Threads that submit, read a little, and leave at random points. */
struct crowd {
    struct engine *g;
    int seed, n;
};

static void *come_and_go(void *arg)
{
    struct crowd *c = arg;
    struct rng rng;

    rng_seed(&rng, (uint64_t)c->seed);
    for (int i = 0; i < c->n; i++) {
        struct asked a = ask_any((int)(rng_u64(&rng) % 7), 1 + (int)(rng_u64(&rng) % 60), 24);
        uint64_t patience = rng_u64(&rng) % 30;
        struct event ev = { 0 };
        struct err e = { 0 };
        a.r->priority = (int)(rng_u64(&rng) % 3);
        if (engine_submit(c->g, a.r, &e) == OK) {
            for (uint64_t tries = 0; ev.finish == FINISH_NONE; tries++) {
                if (tries == patience) request_cancel(a.r, CANCEL_GONE);
                if (!request_next(a.r, &ev)) nanosleep(&(struct timespec){ .tv_nsec = 50000 }, NULL);
            }
        }
        done(&a);
    }
    return NULL;
}

static void a_crowd_that_comes_and_goes_leaves_nothing_behind(void **state)
{
    enum { N = 4 };
    struct engine *g = open_engine((struct engine_opt){ .n_ctx = 96, .kv_tokens = 160, .max_seqs = 6,
                                                        .max_batch = 48 });
    struct crowd c[N];
    pthread_t t[N];
    (void)state;
    for (int i = 0; i < N; i++) {
        c[i] = (struct crowd){ g, i, 250 };
        assert_int_equal(pthread_create(&t[i], NULL, come_and_go, &c[i]), 0);
    }
    for (int i = 0; i < N; i++) pthread_join(t[i], NULL);
    for (int i = 0; i < 1000 && gauge_get(&engine_stats(g)->running); i++)
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    assert_true(engine_is_idle(g));
    assert_int_equal(used(g), 0);
    assert_int_equal(counter_get(&engine_stats(g)->after_cancel), 0);
    engine_close(g);
}

static void *cancel_soon(void *arg)
{
    nanosleep(&(struct timespec){ .tv_nsec = 20 * 1000 * 1000 }, NULL);
    tern_cancel(arg);
    return NULL;
}

static void cancel_from_another_thread_ends_the_request(void **state)
{
    tern_model *m = NULL;
    tern_options o;
    tern_params p;
    const int32_t ids[4] = { 1, 5, 9, 3 };
    (void)state;
    tern_options_init(&o);
    o.context = 4096;
    o.threads = 2;
    if (tern_open(&m, repo(MODEL), &o) != TERN_OK) fail_msg("%s", tern_error());
    tern_params_init(&p, m);
    p.ignore_eos = 1;
    for (int round = 0; round < 3; round++) {
        tern_request *r = NULL;
        tern_event ev;
        pthread_t thread;
        int n = 0;
        if (tern_submit_ids(&r, m, ids, 4, &p) != TERN_OK) fail_msg("%s", tern_error());
        assert_int_equal(pthread_create(&thread, NULL, cancel_soon, r), 0);
        do {
            assert_int_equal(tern_next(r, &ev), TERN_OK);
            n++;
        } while (ev.finish == TERN_FINISH_NONE);
        pthread_join(thread, NULL);
        if (n < 4000) assert_int_equal(ev.finish, TERN_FINISH_CANCELLED);
        tern_request_close(r);
    }
    tern_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_goes_on_as_transformers_does),
        cmocka_unit_test(a_prompt_in_chunks_gives_the_same_tokens),
        cmocka_unit_test(sequences_run_together_as_if_alone),
        cmocka_unit_test(models_with_a_state_or_a_latent_run_together_as_if_alone),
        cmocka_unit_test(a_full_pool_sends_some_back_and_loses_nothing),
        cmocka_unit_test(a_talk_that_goes_on_computes_only_what_is_new),
        cmocka_unit_test(one_computes_a_prefix_that_many_begin_with),
        cmocka_unit_test(a_prompt_that_cannot_fit_is_told_both_numbers),
        cmocka_unit_test(generation_ends_where_the_context_does),
        cmocka_unit_test(an_end_token_stops_unless_it_is_ignored_or_too_early),
        cmocka_unit_test(cancel_ends_at_the_next_step_and_leaves_the_others),
        cmocka_unit_test(cancelling_in_any_state_gives_the_blocks_back),
        cmocka_unit_test(a_deadline_ends_what_runs_and_what_waits),
        cmocka_unit_test(more_than_may_wait_is_refused_with_a_time_to_come_back),
        cmocka_unit_test(a_reader_that_does_not_read_stops_only_itself),
        cmocka_unit_test(seeds_repeat_a_text_whoever_else_is_there),
        cmocka_unit_test(logprobs_are_of_the_model_and_in_order),
        cmocka_unit_test(forbidding_an_end_leaves_the_logprobs_as_they_are),
        cmocka_unit_test(a_failure_ends_one_request_and_not_the_engine),
        cmocka_unit_test(impossible_options_are_refused),
        cmocka_unit_test(a_token_is_told_when_the_next_step_has_begun),
        cmocka_unit_test(a_cancel_is_answered_in_the_middle_of_a_step),
        cmocka_unit_test(a_step_that_nobody_wants_is_not_computed),
        cmocka_unit_test(warm_up_runs_and_is_not_counted),
        cmocka_unit_test(closing_tells_everyone_who_still_waits),
        cmocka_unit_test(a_crowd_that_comes_and_goes_leaves_nothing_behind),
        cmocka_unit_test(cancel_from_another_thread_ends_the_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
