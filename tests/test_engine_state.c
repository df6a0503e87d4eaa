/* Conversations with models that have recurrent state, alone or beside attention: a later turn begins
 * with the state that an earlier one left, and gives the tokens of an engine without a prefix cache. */
#include "engine_world.h"

/* Prompts of this file have their borders here. */
enum { FIRST = 50, LAST = 90, PROMPT = 101, ANSWER = 40, MORE = 25 };

static int32_t token_of(int seed, int i) { return (seed * 131 + i * 31 + i * i * 7) % 100 + 3; }

static struct client ask(struct engine *g, const struct ids *prompt, const int *borders, int n)
{
    struct client a = make_client_of(prompt->p, (int)prompt->n, ANSWER);

    request_set_borders(a.r, borders, n);
    run_client(g, &a);
    assert_int_equal(a.finish, FINISH_LENGTH);
    return a;
}

/* The same prompt in an engine without a prefix cache. */
static void check_tokens(struct engine *fresh, const struct client *a)
{
    struct client truth = ask(fresh, &a->r->prompt, NULL, 0);

    assert_int_equal(truth.r->n_cached, 0);
    assert_same(a, &truth);
    release_client(&truth);
}

/* In hard mode the KV cache is so small that blocks of earlier turns may be evicted. */
static void check_cached(const struct client *a, int n)
{
    if (!HARD) assert_int_equal(a->r->n_cached, n);
}

/* ids: the first n of the prompt of a, and `more` new ones. */
static void begin_with(struct ids *ids, const struct client *a, int n, int more)
{
    ids->n = 0;
    ids_add(ids, a->r->prompt.p, (size_t)n);
    for (int i = 0; i < more; i++) ids_push(ids, token_of(77, i));
}

static void check_turns(struct engine *g, struct engine *fresh)
{
    static const int borders[] = { FIRST, LAST };
    struct client first = make_client(3, PROMPT, ANSWER), next;
    struct ids ids = { 0 };
    int both[3] = { LAST, 0, 0 };

    request_set_borders(first.r, borders, 2);
    run_client(g, &first);
    assert_int_equal(first.r->n_cached, 0);
    check_tokens(fresh, &first);

    /* The next turn repeats the answer: it computes its new tokens and the rest of a block. */
    begin_with(&ids, &first, PROMPT, 0);
    ids_add(&ids, first.out.p, first.out.n);
    both[1] = (int)ids.n;
    for (int i = 0; i < MORE; i++) ids_push(&ids, token_of(9, i));
    both[2] = (int)ids.n - 3;
    next = ask(g, &ids, both, 3);
    check_cached(&next, (PROMPT + ANSWER - 1) / KV_BLOCK * KV_BLOCK);
    check_tokens(fresh, &next);
    release_client(&next);

    /* The same once more, and one whose new message was edited. */
    next = ask(g, &ids, both, 3);
    check_cached(&next, both[2] / KV_BLOCK * KV_BLOCK);
    check_tokens(fresh, &next);
    release_client(&next);
    ids.p[PROMPT + ANSWER + 3] = 4;
    next = ask(g, &ids, both, 3);
    check_cached(&next, both[1] / KV_BLOCK * KV_BLOCK);
    check_tokens(fresh, &next);
    release_client(&next);

    /* It repeats neither the answer nor the last tokens of the prompt, which opened the answer. */
    begin_with(&ids, &first, LAST, MORE);
    next = ask(g, &ids, NULL, 0);
    check_cached(&next, LAST / KV_BLOCK * KV_BLOCK);
    check_tokens(fresh, &next);
    release_client(&next);

    /* An edit in the middle: up to the border before it. */
    begin_with(&ids, &first, FIRST + 20, MORE);
    next = ask(g, &ids, NULL, 0);
    check_cached(&next, FIRST / KV_BLOCK * KV_BLOCK);
    check_tokens(fresh, &next);
    release_client(&next);
    begin_with(&ids, &first, FIRST - 3, MORE);
    next = ask(g, &ids, NULL, 0);
    check_cached(&next, 0);
    check_tokens(fresh, &next);
    release_client(&next);
    ids_release(&ids);
    release_client(&first);
}

static void check_model(const char *path)
{
    struct engine *g, *fresh;

    model = path;
    g = open_manual((struct engine_opt){ .n_ctx = 512, .max_batch = 64, .max_seqs = 16 });
    fresh = open_manual((struct engine_opt){ .n_ctx = 512, .no_prefix = true });
    if (!g->snaps) fail_msg("%s has no recurrent state", path);
    check_turns(g, fresh);
    assert_int_equal(kv_blocks_used(g), 0);
    engine_close(g), engine_close(fresh);
    model = MODEL;
}

static const char *const committed[] = { "tests/golden/hf/mamba2", "tests/golden/hf/qwen3_next",
                                         "tests/golden/hf-2026/nemotron_h-latent" };

static void the_next_turn_computes_only_its_new_tokens(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof committed / sizeof *committed; i++) check_model(committed[i]);
}

static void the_next_turn_computes_only_its_new_tokens_with_every_kind_of_state(void **state)
{
    static const char *const names[] = {
        "fixtures/hf/lfm2",
        "fixtures/hf-2026/bamba",
        "fixtures/hf-2026/falcon_h1",
        "fixtures/hf-2026/falcon_mamba",
        "fixtures/hf-2026/granitemoehybrid",
        "fixtures/hf-2026/jamba",
        "fixtures/hf-2026/lfm2_moe",
        "fixtures/hf-2026/nemotron_h",
        "fixtures/hf-2026/olmo_hybrid",
        "fixtures/hf-2026/qwen3_5",
        "fixtures/hf-2026/qwen3_5_moe",
    };
    (void)state;
    need_shared("fixtures/hf-2026");
    need_shared("fixtures/hf");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) check_model(names[i]);
}

/* More conversations than there are snapshots, several at a time, in turns: snapshots are replaced while
 * others begin with them. */
static void conversations_that_replace_each_others_snapshots_keep_their_tokens(void **state)
{
    enum { TALKS = 6, TURNS = 3 };
    static const int borders[] = { 20, 40 };
    (void)state;

    for (size_t m = 0; m < 2; m++) {
        struct ids talks[TALKS] = { 0 };
        struct engine *g, *fresh;

        model = committed[m];
        g = open_manual((struct engine_opt){ .n_ctx = 512, .max_batch = 32, .max_seqs = 3 });
        fresh = open_manual((struct engine_opt){ .n_ctx = 512, .no_prefix = true });
        assert_int_equal(snaps_max(g->snaps), 4);
        for (int t = 0; t < TURNS; t++) {
            struct client a[TALKS], *all[TALKS];
            for (int i = 0; i < TALKS; i++) {
                for (int k = 0; k < 45; k++) ids_push(&talks[i], token_of(i + 10 * t, k));
                a[i] = make_client_of(talks[i].p, (int)talks[i].n, ANSWER);
                request_set_borders(a[i].r, borders, 2);
                all[i] = &a[i];
                submit_client(g, &a[i]);
            }
            run_clients(g, all, TALKS);
            for (int i = 0; i < TALKS; i++) {
                check_tokens(fresh, &a[i]);
                ids_add(&talks[i], a[i].out.p, a[i].out.n);
                release_client(&a[i]);
            }
        }
        assert_true(snaps_n(g->snaps) <= 4);
        assert_int_equal(kv_blocks_used(g), 0);
        for (int i = 0; i < TALKS; i++) ids_release(&talks[i]);
        engine_close(g), engine_close(fresh);
    }
    model = MODEL;
}

/* The reader has the tokens that were sampled before the cancel, and continues behind them. */
static void a_cancelled_answer_is_continued_without_computing_it_again(void **state)
{
    struct engine *g, *fresh;
    struct client a, next;
    struct ids ids = { 0 };
    (void)state;

    model = committed[1];
    g = open_manual((struct engine_opt){ .n_ctx = 512 });
    fresh = open_manual((struct engine_opt){ .n_ctx = 512, .no_prefix = true });
    a = make_client(5, PROMPT, 200);
    submit_client(g, &a);
    while (a.out.n < ANSWER) {
        engine_step(g);
        read_events(&a);
    }
    request_cancel(a.r, CANCEL_ASKED);
    run_clients(g, (struct client *[]){ &a }, 1);
    assert_int_equal(a.finish, FINISH_CANCELLED);
    begin_with(&ids, &a, PROMPT, 0);
    ids_add(&ids, a.out.p, a.out.n);
    next = ask(g, &ids, NULL, 0);
    check_cached(&next, (PROMPT + (int)a.out.n - 1) / KV_BLOCK * KV_BLOCK);
    check_tokens(fresh, &next);
    release_client(&a), release_client(&next);
    ids_release(&ids);
    engine_close(g), engine_close(fresh);
    model = MODEL;
}

/* While all sequences decode, what their prompts left stays. */
static void many_answers_leave_the_snapshots_of_prompts(void **state)
{
    enum { N = 12 };
    static const int border = LAST;
    struct engine *g;
    struct client keep, a[N], *all[N];
    (void)state;

    model = committed[0];
    g = open_manual((struct engine_opt){ .n_ctx = 512, .max_seqs = N });
    keep = make_client(50, PROMPT, 1);
    request_set_borders(keep.r, &border, 1);
    run_client(g, &keep);
    for (int i = 0; i < N; i++) {
        a[i] = make_client(i, 10, 100); /* too short for a snapshot of the prompt */
        all[i] = &a[i];
        submit_client(g, &a[i]);
    }
    run_clients(g, all, N);
    assert_true(snaps_n(g->snaps) > 1);
    release_client(&keep);
    keep = make_client(50, PROMPT, 1);
    run_client(g, &keep);
    check_cached(&keep, LAST / KV_BLOCK * KV_BLOCK);
    release_client(&keep);
    for (int i = 0; i < N; i++) release_client(&a[i]);
    engine_close(g);
    model = MODEL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_next_turn_computes_only_its_new_tokens),
        cmocka_unit_test(the_next_turn_computes_only_its_new_tokens_with_every_kind_of_state),
        cmocka_unit_test(conversations_that_replace_each_others_snapshots_keep_their_tokens),
        cmocka_unit_test(a_cancelled_answer_is_continued_without_computing_it_again),
        cmocka_unit_test(many_answers_leave_the_snapshots_of_prompts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
