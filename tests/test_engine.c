/* Texts of an engine: a request gets the same tokens whatever else runs, however its prompt is
 * cut into chunks, and whether its prefix is cached.
 *
 * Requests are compared with runs alone in a fresh engine on a small random model; one test is
 * compared with greedy tokens of transformers (tests/golden/hf). */
#include "engine_world.h"

static void greedy_continuations_are_those_of_transformers(void **state)
{
    struct source *golden = NULL;
    const struct source_tensor *in, *want;
    struct engine *g;
    struct client a;
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
    a = make_client_of(ids, 48, 16);
    run_client(g, &a);
    assert_int_equal(a.out.n, 16);
    for (int i = 0; i < 16; i++)
        assert_int_equal(a.out.p[i], want->type == DT_I64
                                         ? (int32_t)((const int64_t *)want->data)[i]
                                         : ((const int32_t *)want->data)[i]);
    assert_true(a.r->submit_ns <= a.r->start_ns && a.r->start_ns < a.r->first_ns &&
                a.r->first_ns < a.r->end_ns);
    assert_int_equal(a.r->n_out, 16);
    release_client(&a);
    engine_close(g);
    source_close(golden);
}

static void a_prompt_in_chunks_gives_the_same_tokens(void **state)
{
    struct client truth = run_alone(1, 50, 20);
    (void)state;
    for (int batch = 1; batch < 60; batch += 13) {
        struct engine *g =
            open_manual((struct engine_opt){ .n_ctx = 256, .max_batch = batch, .max_seqs = 1 });
        struct client a = make_client(1, 50, 20);
        run_client(g, &a);
        assert_same(&a, &truth);
        release_client(&a);
        engine_close(g);
    }
    release_client(&truth);
}

static void sequences_run_together_as_if_alone(void **state)
{
    enum { N = 5 };
    struct engine *g =
        open_manual((struct engine_opt){ .n_ctx = 512, .max_batch = 32, .max_seqs = 3 });
    struct client a[N], *all[N];
    (void)state;
    for (int i = 0; i < N; i++) {
        a[i] = make_client(i, 10 + 17 * i, 12 + i);
        all[i] = &a[i];
        submit_client(g, &a[i]);
    }
    run_clients(g, all, N);
    for (int i = 0; i < N; i++) {
        struct client truth = run_alone(i, 10 + 17 * i, 12 + i);
        assert_same(&a[i], &truth);
        release_client(&truth);
        release_client(&a[i]);
    }
    assert_int_equal(kv_blocks_used(g), 0);
    engine_close(g);
}

static void preempted_sequences_give_the_same_tokens_when_the_kv_cache_is_full(void **state)
{
    enum { N = 4 };
    struct engine *g =
        open_manual(/* 9 blocks; each sequence needs 6 */
                    (struct engine_opt){
                        .n_ctx = 128, .kv_tokens = 128, .max_batch = 64, .max_seqs = 4 });
    struct client a[N], *all[N];
    (void)state;
    for (int i = 0; i < N; i++) {
        a[i] = make_client(i, 30, 60);
        all[i] = &a[i];
        submit_client(g, &a[i]);
    }
    run_clients(g, all, N);
    for (int i = 0; i < N; i++) {
        struct client truth = run_alone(i, 30, 60);
        assert_int_equal(a[i].finish, FINISH_LENGTH);
        assert_same(&a[i], &truth);
        release_client(&truth);
        release_client(&a[i]);
    }
    assert_true(counter_get(&engine_stats(g)->preemptions) > 0);
    assert_int_equal(kv_blocks_used(g), 0);
    engine_close(g);
}

static void a_continued_conversation_computes_only_its_new_tokens(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 256 });
    struct engine *fresh = open_manual((struct engine_opt){ .n_ctx = 256, .no_prefix = true });
    struct client first = make_client(3, 40, 10), second, again, truth;
    int32_t ids[200];
    int n = 0;
    (void)state;
    run_client(g, &first);
    assert_int_equal(first.r->n_cached, 0);
    for (size_t i = 0; i < first.r->prompt.n; i++) ids[n++] = first.r->prompt.p[i];
    for (size_t i = 0; i < first.out.n; i++) ids[n++] = first.out.p[i];
    for (int i = 0; i < 9; i++) ids[n++] = 5 + i;
    second = make_client_of(ids, n, 10);
    run_client(g, &second);
    assert_int_equal(second.r->n_cached, 48); /* whole blocks of the tokens that were computed */
    truth = make_client_of(ids, n, 10);
    run_client(fresh, &truth);
    assert_int_equal(truth.r->n_cached, 0);
    assert_same(&second, &truth);

    ids[20] = 99; /* a text that differs after 20 tokens */
    again = make_client_of(ids, n, 10);
    run_client(g, &again);
    assert_int_equal(again.r->n_cached, 16);
    release_client(&truth);
    truth = make_client_of(ids, n, 10);
    run_client(fresh, &truth);
    assert_same(&again, &truth);
    release_client(&again);
    again = make_client_of(ids, n, 10);
    again.r->salt = 7; /* another salt: no shared prefix */
    run_client(g, &again);
    assert_int_equal(again.r->n_cached, 0);
    assert_same(&again, &truth);
    release_client(&first), release_client(&second), release_client(&again), release_client(&truth);
    engine_close(g);
    engine_close(fresh);
}

static void a_prefix_of_many_concurrent_requests_is_computed_once(void **state)
{
    enum { N = 6 };
    struct engine *g =
        open_manual((struct engine_opt){ .n_ctx = 256, .max_batch = 32, .max_seqs = 8 });
    struct client a[N], *all[N], truth;
    int cached = 0;
    (void)state;
    for (int i = 0; i < N; i++) {
        a[i] = make_client(5, 100, 8); /* the same prompt, submitted together */
        a[i].r->sample.seed = (uint64_t)i;
        all[i] = &a[i];
        submit_client(g, &a[i]);
    }
    run_clients(g, all, N);
    truth = run_alone(5, 100, 8);
    for (int i = 0; i < N; i++) {
        assert_same(&a[i], &truth);
        cached += a[i].r->n_cached;
        release_client(&a[i]);
    }
    assert_int_equal(cached, (N - 1) * 96);
    release_client(&truth);
    engine_close(g);
}

/* ---- models with recurrent state or latent attention ---- */

/* The state that a cancelled request leaves in its slot must not affect the next request in that
 * slot. */
static void check_slot_after_cancel(void)
{
    struct engine *g =
        open_manual((struct engine_opt){ .n_ctx = 256, .max_batch = 16, .max_seqs = 2 });
    struct client gone = make_client(1, 60, 50), stays = make_client(2, 30, 20),
                  next = make_client(3, 30, 20);
    struct client *all[] = { &gone, &stays, &next }, truth;

    for (int i = 0; i < 3; i++) submit_client(g, all[i]);
    for (int i = 0; i < 12; i++) engine_step(g);
    request_cancel(gone.r, CANCEL_ASKED);
    run_clients(g, all, 3);
    assert_int_equal(gone.finish, FINISH_CANCELLED);
    truth = run_alone(2, 30, 20);
    assert_same(&stays, &truth);
    release_client(&truth);
    truth = run_alone(3, 30, 20);
    assert_same(&next, &truth);
    release_client(&truth);
    for (int i = 0; i < 3; i++) release_client(all[i]);
    engine_close(g);
}

/* Two requests with the same prompt: the second computes only the tokens after the last cached
 * block. */
static void check_cached_prefix(int cached)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 256 });
    struct client a = make_client(4, 70, 10), b = make_client(4, 70, 10);

    run_client(g, &a);
    run_client(g, &b);
    assert_same(&a, &b);
    assert_int_equal(b.r->n_cached, cached);
    release_client(&a), release_client(&b);
    engine_close(g);
}

static void models_with_recurrent_state_or_latents_run_together_as_if_alone(void **state)
{
    static const char *const models[] = { "tests/golden/hf/mamba2", "tests/golden/hf/qwen3_next",
                                          "tests/golden/hf/deepseek_v3" };

    for (size_t i = 0; i < 3; i++) {
        model = models[i];
        sequences_run_together_as_if_alone(state);
        a_prompt_in_chunks_gives_the_same_tokens(state);
        preempted_sequences_give_the_same_tokens_when_the_kv_cache_is_full(state);
        check_slot_after_cancel();
        check_cached_prefix(64);
        a_prefix_of_many_concurrent_requests_is_computed_once(state);
    }
    model = MODEL;
}

static void a_seed_gives_the_same_text_whatever_else_runs(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 512 });
    struct client a[4], *all[4];
    (void)state;
    for (int i = 0; i < 4; i++) {
        a[i] = make_client(i < 2 ? 7 : i, 10, 30);
        a[i].r->sample.temp = 1;
        a[i].r->sample.seed = 11;
        all[i] = &a[i];
        submit_client(g, &a[i]);
    }
    run_clients(g, all, 4);
    assert_same(&a[0], &a[1]);
    for (int i = 0; i < 4; i++) release_client(&a[i]);
    engine_close(g);
}

static void logprobs_are_those_of_the_model_in_descending_order(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 64 });
    struct client a = make_client(1, 12, 5);
    struct event ev;
    int n = 0;
    (void)state;
    a.r->n_top = 5;
    submit_client(g, &a);
    while (n < 5) {
        assert_true(engine_step(g));
        if (!request_next(a.r, &ev) || ev.id < 0) continue;
        n++;
        assert_int_equal(ev.n_top, 5);
        assert_int_equal(ev.top[0].id, ev.id); /* greedy sampling takes the most likely token */
        assert_true(fabsf(ev.top[0].logprob - ev.logprob) < 1e-5f);
        for (int i = 1; i < 5; i++) assert_true(ev.top[i].logprob <= ev.top[i - 1].logprob);
        assert_true(ev.logprob < 0);
    }
    assert_int_equal(n, 5);
    release_client(&a);
    engine_close(g);
}

/* The logits of two tokens, beside a request that generates: no token is sampled, and their difference
 * is that of the log probabilities. */
static void logits_of_single_tokens_are_those_that_a_token_is_sampled_from(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 64 });
    struct client a = make_client(1, 40, 1), b = make_client(1, 40, 1), c = make_client(2, 63, 1),
                  bad = make_client(1, 4, 1);
    struct event ev, end;
    struct err e = { 0 };
    (void)state;

    a.r->n_top = 2;
    submit_client(g, &a);
    while (engine_step(g)) {}
    assert_true(request_next(a.r, &ev));
    b.r->n_pick = c.r->n_pick = 2;
    b.r->pick[0] = ev.top[0].id;
    b.r->pick[1] = ev.top[1].id;
    c.r->pick[0] = c.r->pick[1] = g->lim.n_vocab - 1;
    submit_client(g, &b);
    submit_client(g, &c);
    while (engine_step(g)) {}
    assert_true(request_next(b.r, &end));
    assert_int_equal(end.finish, FINISH_STOP);
    assert_int_equal(b.r->n_out, 0);
    assert_int_equal(b.r->n_cached, 32); /* whole blocks of the first request's prompt */
    assert_true(fabsf((b.r->vec[0] - b.r->vec[1]) - (ev.top[0].logprob - ev.top[1].logprob)) <
                1e-4f);
    assert_true(request_next(c.r, &end));
    assert_int_equal(end.finish, FINISH_STOP);
    assert_true(isfinite(c.r->vec[0]) && c.r->vec[0] == c.r->vec[1]);
    bad.r->n_pick = 1;
    bad.r->pick[0] = g->lim.n_vocab;
    assert_int_equal(engine_submit(g, bad.r, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "the logit of token"));
    bad.r->pick[0] = 0;
    bad.r->n_pick = REQUEST_PICKS + 1;
    assert_int_equal(engine_submit(g, bad.r, &e), E_INVALID);
    release_client(&a);
    release_client(&b);
    release_client(&c);
    release_client(&bad);
    engine_close(g);
}

static void banned_end_tokens_do_not_change_the_logprobs(void **state)
{
    struct event first[2];
    (void)state;
    for (int how = 0; how < 2; how++) {
        struct engine *g = open_manual((struct engine_opt){ .n_ctx = 64 });
        struct client a = make_client(1, 12, 6);
        a.r->n_top = TOP_MAX;
        a.r->ignore_eos = false;
        a.r->min_tokens = how ? 5 : 0;
        submit_client(g, &a);
        while (engine_step(g)) {}
        assert_true(request_next(a.r, &first[how]));
        release_client(&a);
        engine_close(g);
    }
    assert_int_equal(first[0].n_top, TOP_MAX);
    assert_memory_equal(first[0].top, first[1].top, sizeof first[0].top);
    assert_true(first[0].logprob == first[1].logprob);
}

/* A request that continues one of another engine: greedy and sampled, from any point, up to all of its
 * tokens. */
static void a_request_continues_behind_the_tokens_of_another_engine(void **state)
{
    static const int at[] = { 1, 7, 16, 23, 24 };

    (void)state;
    for (int sampled = 0; sampled < 2; sampled++) {
        struct engine *g = open_manual((struct engine_opt){ .n_ctx = 256 });
        struct client truth = make_client(3, 40, 24);
        truth.r->sample.temp = sampled ? 1 : 0;
        truth.r->sample.seed = 77;
        run_client(g, &truth);
        engine_close(g);
        for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
            struct client a = make_client(3, 40, 24);
            g = open_manual((struct engine_opt){ .n_ctx = 256 });
            a.r->sample = truth.r->sample;
            ids_add(&a.r->resume, truth.out.p, (size_t)at[i]);
            run_client(g, &a);
            assert_int_equal(a.finish, FINISH_LENGTH);
            assert_int_equal(a.r->n_out, 24);
            assert_int_equal(a.out.n, 24 - at[i]);
            assert_memory_equal(a.out.p, truth.out.p + at[i], a.out.n * sizeof *a.out.p);
            assert_int_equal(kv_blocks_used(g), 0);
            release_client(&a);
            engine_close(g);
        }
        release_client(&truth);
    }
}

static void tokens_to_continue_behind_are_checked(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 256 });
    struct err e = { 0 };

    (void)state;
    for (int bad = 0; bad < 3; bad++) {
        struct client a = make_client(3, 40, 4);
        for (int i = 0; i < (bad == 0 ? 5 : 2); i++) ids_push(&a.r->resume, 5);
        if (bad == 1) a.r->resume.p[1] = -1;
        if (bad == 2) a.r->resume.p[1] = 1 << 30;
        assert_int_equal(engine_submit(g, a.r, &e), E_INVALID);
        assert_non_null(strstr(e.msg, "continue behind"));
        release_client(&a);
    }
    engine_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_continuations_are_those_of_transformers),
        cmocka_unit_test(a_prompt_in_chunks_gives_the_same_tokens),
        cmocka_unit_test(sequences_run_together_as_if_alone),
        cmocka_unit_test(models_with_recurrent_state_or_latents_run_together_as_if_alone),
        cmocka_unit_test(preempted_sequences_give_the_same_tokens_when_the_kv_cache_is_full),
        cmocka_unit_test(a_continued_conversation_computes_only_its_new_tokens),
        cmocka_unit_test(a_prefix_of_many_concurrent_requests_is_computed_once),
        cmocka_unit_test(a_seed_gives_the_same_text_whatever_else_runs),
        cmocka_unit_test(a_request_continues_behind_the_tokens_of_another_engine),
        cmocka_unit_test(tokens_to_continue_behind_are_checked),
        cmocka_unit_test(logprobs_are_those_of_the_model_in_descending_order),
        cmocka_unit_test(logits_of_single_tokens_are_those_that_a_token_is_sampled_from),
        cmocka_unit_test(banned_end_tokens_do_not_change_the_logprobs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
