#include "support.h"

#include "base/mem.h"
#include "engine/engine.h"
#include "tern.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* A tiny random llama without a tokenizer, plain C kernels: results do not depend on the batch. */
#define MODEL "fixtures/hf/llama"

static const char *model_path(void)
{
    const char *p = repo("tests/golden/hf/llama");
    return p ? p : shared(MODEL);
}

#define need_model()                                                                               \
    do {                                                                                           \
        if (!model_path()) {                                                                       \
            print_message("skipped: no tiny llama here\n");                                        \
            skip();                                                                                \
        }                                                                                          \
    } while (0)

static struct engine *open_engine(struct engine_opt o)
{
    struct engine *g = NULL;
    struct err e = { 0 };
    o.backend.reference = true;
    o.backend.n_threads = 1;
    o.kv_type = DT_NONE;
    if (engine_open(&g, model_path(), &o, &e) != OK) fail_msg("%s", e.msg);
    return g;
}

static struct request *ask(const int32_t *ids, int n, int max_tokens)
{
    struct request *r = mem_new(struct request);
    for (int i = 0; i < n; i++) ids_push(&r->prompt, ids[i]);
    r->max_tokens = max_tokens;
    r->sample = sample_defaults();
    r->sample.temp = 0;
    r->ignore_eos = true;
    return r;
}

/* A prompt of n tokens that differ from seed to seed. */
static struct request *ask_any(int seed, int n, int max_tokens)
{
    int32_t ids[512];
    for (int i = 0; i < n; i++) ids[i] = (seed * 131 + i * 31 + i * i * 7) % 100 + 3;
    return ask(ids, n, max_tokens);
}

static void done(struct request *r)
{
    request_release(r);
    mem_free(r);
}

static void submit(struct engine *g, struct request *r)
{
    struct err e = { 0 };
    if (engine_submit(g, r, &e) != OK) fail_msg("%s", e.msg);
}

static int run_all(struct engine *g)
{
    bool more = true;
    int steps = 0;
    while (more) {
        struct err e = { 0 };
        assert_int_equal(engine_step(g, &more, &e), OK);
        assert_true(++steps < 10000);
    }
    return steps;
}

static void assert_same(const struct request *a, const struct request *b)
{
    assert_int_equal(a->out.n, b->out.n);
    assert_memory_equal(a->out.p, b->out.p, a->out.n * sizeof *a->out.p);
}

/* What a fresh engine gives: the truth the others are held to. */
static struct request *alone(int seed, int n, int max_tokens)
{
    struct engine *g = open_engine((struct engine_opt){ .n_ctx = 256 });
    struct request *r = ask_any(seed, n, max_tokens);
    submit(g, r);
    run_all(g);
    assert_int_equal(r->finish, FINISH_LENGTH);
    engine_close(g);
    return r;
}

static void greedy_goes_on_as_transformers_does(void **state)
{
    struct source *golden = NULL;
    const struct source_tensor *in, *want;
    struct engine *g;
    struct request *r;
    struct err e = { 0 };
    int32_t ids[48];
    char path[1200];
    (void)state;
    need_model();
    snprintf(path, sizeof path, "%s/golden.safetensors", model_path());
    if (source_open(&golden, path, &e) != OK) fail_msg("%s", e.msg);
    in = source_find(golden, "input_ids");
    want = source_find(golden, "greedy");
    assert_true(in && want && in->dims[in->n_dims - 1] == 48);
    for (int i = 0; i < 48; i++)
        ids[i] = in->type == DT_I64 ? (int32_t)((const int64_t *)in->data)[i]
                                    : ((const int32_t *)in->data)[i];
    g = open_engine((struct engine_opt){ .max_batch = 20 });
    r = ask(ids, 48, 16);
    submit(g, r);
    run_all(g);
    assert_int_equal(r->out.n, 16);
    for (int i = 0; i < 16; i++)
        assert_int_equal(r->out.p[i], want->type == DT_I64 ? (int32_t)((const int64_t *)want->data)[i]
                                                           : ((const int32_t *)want->data)[i]);
    assert_true(r->submit_ns <= r->start_ns && r->start_ns < r->first_ns && r->first_ns < r->end_ns);
    done(r);
    engine_close(g);
    source_close(golden);
}

static void a_prompt_in_chunks_gives_the_same_tokens(void **state)
{
    struct request *truth;
    (void)state;
    need_model();
    truth = alone(1, 50, 20);
    for (int batch = 1; batch < 60; batch += 13) {
        struct engine *g =
            open_engine((struct engine_opt){ .n_ctx = 256, .max_batch = batch, .max_seqs = 1 });
        struct request *r = ask_any(1, 50, 20);
        submit(g, r);
        assert_int_equal(run_all(g), (50 + batch - 1) / batch + 19);
        assert_same(r, truth);
        done(r);
        engine_close(g);
    }
    done(truth);
}

static void sequences_run_together_as_if_alone(void **state)
{
    enum { N = 5 };
    struct engine *g;
    struct request *r[N];
    (void)state;
    need_model();
    g = open_engine((struct engine_opt){ .n_ctx = 512, .max_batch = 32, .max_seqs = 3 });
    for (int i = 0; i < N; i++) submit(g, r[i] = ask_any(i, 10 + 17 * i, 12 + i));
    run_all(g);
    for (int i = 0; i < N; i++) {
        struct request *truth = alone(i, 10 + 17 * i, 12 + i);
        assert_same(r[i], truth);
        done(truth);
        done(r[i]);
    }
    engine_close(g);
}

static void a_full_pool_sends_the_youngest_back_and_loses_nothing(void **state)
{
    enum { N = 4 };
    struct engine *g;
    struct request *r[N];
    (void)state;
    need_model();
    g = open_engine(
        (struct engine_opt){ .n_ctx = 128, .max_batch = 64, .max_seqs = 4 }); /* 12 blocks */
    for (int i = 0; i < N; i++) submit(g, r[i] = ask_any(i, 30, 60));         /* 6 each */
    run_all(g);
    for (int i = 0; i < N; i++) {
        struct request *truth = alone(i, 30, 60);
        assert_int_equal(r[i]->finish, FINISH_LENGTH);
        assert_same(r[i], truth);
        done(truth);
        done(r[i]);
    }
    engine_close(g);
}

static void a_talk_that_goes_on_computes_only_what_is_new(void **state)
{
    struct engine *g, *fresh;
    struct request *first, *second, *again, *truth;
    int32_t ids[200];
    int n = 0;
    (void)state;
    need_model();
    g = open_engine((struct engine_opt){ .n_ctx = 256 });
    submit(g, first = ask_any(3, 40, 10));
    run_all(g);
    assert_int_equal(first->n_cached, 0);
    for (size_t i = 0; i < first->prompt.n; i++) ids[n++] = first->prompt.p[i];
    for (size_t i = 0; i < first->out.n; i++) ids[n++] = first->out.p[i];
    for (int i = 0; i < 9; i++) ids[n++] = 5 + i;
    submit(g, second = ask(ids, n, 10));
    run_all(g);
    assert_int_equal(second->n_cached, 49);              /* the last token picked was never run */
    fresh = open_engine((struct engine_opt){ .n_ctx = 256 });
    submit(fresh, truth = ask(ids, n, 10));
    run_all(fresh);
    assert_same(second, truth);

    submit(g, again = ask(ids, n, 10));                  /* the very same: all but its last token */
    run_all(g);
    assert_int_equal(again->n_cached, n - 1);
    assert_same(again, truth);
    done(again);
    ids[20] = 99;                                        /* another text behind 20 tokens */
    submit(g, again = ask(ids, n, 10));
    run_all(g);
    assert_int_equal(again->n_cached, 20);
    done(truth);
    submit(fresh, truth = ask(ids, n, 10));
    run_all(fresh);
    assert_same(again, truth);
    done(first), done(second), done(again), done(truth);
    engine_close(g);
    engine_close(fresh);
}

static void a_prompt_that_cannot_fit_is_told_both_numbers(void **state)
{
    struct engine *g;
    struct request *r;
    struct err e = { 0 };
    (void)state;
    need_model();
    g = open_engine((struct engine_opt){ .n_ctx = 32 });
    r = ask_any(1, 100, 0);
    assert_int_equal(engine_submit(g, r, &e), E_CONTEXT);
    assert_non_null(strstr(e.msg, "100"));
    assert_non_null(strstr(e.msg, "32"));
    r->prompt.n = 0;
    assert_int_equal(engine_submit(g, r, &e), E_INVALID);
    ids_push(&r->prompt, 1 << 30);
    assert_int_equal(engine_submit(g, r, &e), E_INVALID);
    r->prompt.p[0] = 1;
    r->sample.top_p = 7;
    assert_int_equal(engine_submit(g, r, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "top_p"));
    done(r);
    engine_close(g);
}

static void generation_ends_where_the_context_does(void **state)
{
    struct engine *g;
    struct request *r;
    (void)state;
    need_model();
    g = open_engine((struct engine_opt){ .n_ctx = 48 });
    submit(g, r = ask_any(2, 20, 0));
    run_all(g);
    assert_int_equal(r->finish, FINISH_LENGTH);
    assert_int_equal(r->out.n, 28);
    done(r);
    submit(g, r = ask_any(2, 47, 0));                    /* room for one */
    run_all(g);
    assert_int_equal(r->out.n, 1);
    done(r);
    engine_close(g);
}

static void an_end_token_stops_unless_it_is_ignored(void **state)
{
    struct engine *g;
    struct request *r;
    struct logit_bias bias = { -1, 1000 };
    (void)state;
    need_model();
    g = open_engine((struct engine_opt){ .n_ctx = 64 });
    for (int32_t id = 0; id < 64 && bias.id < 0; id++)
        if (engine_is_end(g, id)) bias.id = id;
    assert_true(bias.id >= 0);
    for (int ignore = 0; ignore < 2; ignore++) {
        r = ask_any(4, 8, 10);
        r->ignore_eos = ignore;
        r->sample.bias = &bias, r->sample.n_bias = 1;
        submit(g, r);
        run_all(g);
        assert_int_equal(r->finish, ignore ? FINISH_LENGTH : FINISH_STOP);
        assert_int_equal(r->out.n, ignore ? 10 : 1);
        done(r);
    }
    engine_close(g);
}

static void cancel_ends_at_the_next_step_and_leaves_the_others(void **state)
{
    struct engine *g;
    struct request *a, *b, *c, *truth;
    struct err e;
    bool more;
    (void)state;
    need_model();
    g = open_engine((struct engine_opt){ .n_ctx = 256, .max_seqs = 2 });
    submit(g, a = ask_any(1, 12, 100));
    submit(g, b = ask_any(2, 12, 20));
    submit(g, c = ask_any(3, 12, 20));                   /* waits */
    for (int i = 0; i < 5; i++) engine_step(g, &more, &e);
    a->cancel = 1;
    c->cancel = 1;
    engine_step(g, &more, &e);
    assert_int_equal(a->finish, FINISH_CANCELLED);
    assert_int_equal(a->out.n, 5);
    assert_int_equal(c->finish, FINISH_CANCELLED);
    assert_int_equal(c->out.n, 0);
    run_all(g);
    truth = alone(2, 12, 20);
    assert_same(b, truth);
    done(a), done(b), done(c), done(truth);
    engine_close(g);
}

static void dropping_in_any_state_gives_the_blocks_back(void **state)
{
    struct engine *g;
    struct request *r, *truth;
    struct err e;
    bool more;
    (void)state;
    need_model();
    g = open_engine((struct engine_opt){ .n_ctx = 96, .max_batch = 16, .max_seqs = 2 });
    truth = alone(9, 60, 30);
    for (int steps = 0; steps < 12; steps++) {
        r = ask_any(steps, 60, 30);
        submit(g, r);
        for (int i = 0; i < steps; i++) engine_step(g, &more, &e);
        engine_drop(g, r);
        engine_drop(g, r);                               /* twice is fine */
        done(r);
    }
    submit(g, r = ask_any(9, 60, 30));
    run_all(g);
    assert_same(r, truth);
    done(r), done(truth);
    engine_close(g);
}

static void seeds_repeat_a_text_whoever_else_is_there(void **state)
{
    struct engine *g;
    struct request *r[4];
    (void)state;
    need_model();
    g = open_engine((struct engine_opt){ .n_ctx = 512 });
    for (int i = 0; i < 4; i++) {
        r[i] = ask_any(i < 2 ? 7 : i, 10, 30);
        r[i]->sample.temp = 1;
        r[i]->sample.seed = 11;
        submit(g, r[i]);
    }
    run_all(g);
    assert_same(r[0], r[1]);
    for (int i = 0; i < 4; i++) done(r[i]);
    engine_close(g);
}

static void a_failure_ends_one_request_and_not_the_engine(void **state)
{
    struct logit_bias ban[320];
    struct engine *g;
    struct request *bad, *good, *truth;
    (void)state;
    need_model();
    g = open_engine((struct engine_opt){ .n_ctx = 256 });
    for (int i = 0; i < 320; i++) ban[i] = (struct logit_bias){ i, -INFINITY };
    bad = ask_any(1, 10, 20);
    bad->sample.bias = ban, bad->sample.n_bias = 320;    /* nothing is left to pick */
    submit(g, bad);
    submit(g, good = ask_any(2, 12, 20));
    run_all(g);
    assert_int_equal(bad->finish, FINISH_ERROR);
    assert_int_equal(bad->err.code, E_DEVICE);
    assert_int_equal(bad->out.n, 0);
    truth = alone(2, 12, 20);
    assert_same(good, truth);
    done(bad), done(good), done(truth);
    engine_close(g);
}

static void impossible_options_are_refused(void **state)
{
    struct engine *g = NULL;
    struct err e = { 0 };
    (void)state;
    need_model();
    assert_int_equal(engine_open(&g, model_path(), &(struct engine_opt){ .n_ctx = -5 }, &e), E_INVALID);
    assert_int_equal(engine_open(&g, model_path(), &(struct engine_opt){ .n_ctx = 1 }, &e), E_INVALID);
    assert_int_equal(engine_open(&g, model_path(), &(struct engine_opt){ .max_batch = -1 }, &e),
                     E_INVALID);
    assert_int_equal(engine_open(&g, model_path(), &(struct engine_opt){ .max_seqs = 1 << 20 }, &e),
                     E_INVALID);
    assert_true(engine_open(&g, "/no/such/model", NULL, &e) != OK);
    assert_null(g);
    engine_close(NULL);
}

static void *cancel_soon(void *arg)
{
    struct timespec t = { .tv_nsec = 20 * 1000 * 1000 };
    nanosleep(&t, NULL);
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
    need_model();
    tern_options_init(&o);
    o.context = 4096;
    o.threads = 2;
    if (tern_open(&m, model_path(), &o) != TERN_OK) fail_msg("%s", tern_error());
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
        cmocka_unit_test(a_full_pool_sends_the_youngest_back_and_loses_nothing),
        cmocka_unit_test(a_talk_that_goes_on_computes_only_what_is_new),
        cmocka_unit_test(a_prompt_that_cannot_fit_is_told_both_numbers),
        cmocka_unit_test(generation_ends_where_the_context_does),
        cmocka_unit_test(an_end_token_stops_unless_it_is_ignored),
        cmocka_unit_test(cancel_ends_at_the_next_step_and_leaves_the_others),
        cmocka_unit_test(dropping_in_any_state_gives_the_blocks_back),
        cmocka_unit_test(seeds_repeat_a_text_whoever_else_is_there),
        cmocka_unit_test(a_failure_ends_one_request_and_not_the_engine),
        cmocka_unit_test(impossible_options_are_refused),
        cmocka_unit_test(cancel_from_another_thread_ends_the_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
