/* Constrained sampling through the engine with the model that ships with tern: completions match
 * their grammar or schema under preemption, max_tokens and stop conditions.
 *
 * Reads tests/schemas/schemas.json. Texts are validated by tests/schemas/validate.py. */
#include "support.h"

#include "base/file.h"
#include "base/jsonw.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "engine/info.h"
#include "engine/request.h"
#include "engine/stats.h"
#include "grammar/grammar.h"
#include "token/tokenizer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* An engine on the shipped model, stepped by the test. */
static struct engine *open_engine(struct engine_opt o)
{
    struct engine *g = NULL;
    struct err e = { 0 };

    o.manual = true;
    o.kv_type = DT_NONE;
    o.n_threads = 1;
    if (engine_open(&g, repo("models/tern-tales.gguf"), &o, &e) != OK) fail_msg("%s", e.msg);
    return g;
}

struct asked {
    struct request *r;
    struct buf text;
    enum finish finish;
    int n;
};

static struct asked make_request(struct engine *g, enum grammar_kind kind, const char *grammar,
                                 int max_tokens, uint64_t seed)
{
    struct asked a = { .r = request_open() };
    struct grammar_spec spec = { .kind = kind, .text = str_c(grammar) };
    struct err e = { 0 };

    if (tokenizer_encode(engine_tokenizer(g), STR("Once upon a time"), ENCODE_SPECIAL, &a.r->prompt,
                         &e) != OK)
        fail_msg("%s", e.msg);
    if (grammar && engine_grammar(g, &spec, &a.r->grammar, &e) != OK)
        fail_msg("%s: %s", grammar, e.msg);
    a.r->max_tokens = max_tokens;
    a.r->sample = (struct sample_opt){
        .temp = 1.5f, .top_p = 1, .typical = 1, .repeat_penalty = 1, .seed = seed
    };
    return a;
}

static void submit_request(struct engine *g, struct asked *a)
{
    struct err e = { 0 };
    if (engine_submit(g, a->r, &e) != OK) fail_msg("%s", e.msg);
}

static void read_events(struct asked *a)
{
    struct event ev;

    while (request_next(a->r, &ev)) {
        buf_put_str(&a->text, ev.text);
        a->n += ev.id >= 0;
        a->finish = (enum finish)ev.finish;
    }
    buf_cstr(&a->text);
}

static void run_requests(struct engine *g, struct asked *a, int n)
{
    for (int i = 0; i < n; i++) submit_request(g, &a[i]);
    while (engine_step(g))
        for (int i = 0; i < n; i++) read_events(&a[i]);
    for (int i = 0; i < n; i++) read_events(&a[i]);
}

static void release_request(struct asked *a)
{
    request_unref(a->r);
    buf_release(&a->text);
}

static void completions_of_two_hundred_schemas_are_all_valid(void **state)
{
    enum { N = 200, BATCH = 20 };
    struct engine *g = open_engine((struct engine_opt){ .n_ctx = 512, .max_seqs = BATCH });
    struct buf file = { 0 }, out = { 0 };
    struct err e = { 0 };
    char cmd[1024];
    json_t *all;
    int rc;

    (void)state;
    if (file_read(&file, repo("tests/schemas/schemas.json"), 1 << 20, &e) != OK)
        fail_msg("%s", e.msg);
    all = json_loadb(file.p, file.n, 0, NULL);
    for (int from = 0; from < N; from += BATCH * THIN) {
        struct asked a[BATCH];
        for (int i = 0; i < BATCH; i++) {
            char *schema = json_dumps(json_array_get(all, (size_t)(from + i)), JSON_ENCODE_ANY);
            a[i] = make_request(g, GRAMMAR_SCHEMA, schema, 160, (uint64_t)(from + i));
            a[i].r->continues = i % 2;
            free(schema);
        }
        run_requests(g, a, BATCH);
        for (int i = 0; i < BATCH; i++) {
            struct jsonw w = { .out = &out };
            if (a[i].finish != FINISH_STOP && a[i].finish != FINISH_LENGTH)
                fail_msg("schema %d: the finish reason is %s: %s", from + i,
                         finish_name(a[i].finish), a[i].r->err.msg);
            jsonw_arr(&w);
            jsonw_int(&w, from + i);
            jsonw_str(&w, buf_str(&a[i].text));
            jsonw_end(&w);
            buf_putc(&out, '\n');
            release_request(&a[i]);
        }
    }
    json_decref(all);
    buf_release(&file);
    engine_close(g);
    snprintf(cmd, sizeof cmd, "python3 %s %s %s %d", repo("tests/schemas/validate.py"),
             repo("tests/schemas/schemas.json"), temp_file("texts", out.p, out.n), N / THIN);
    buf_release(&out);
    rc = system(cmd);
    if (WEXITSTATUS(rc) == 77) skip();
    assert_int_equal(rc, 0);
}

#define LONG "root ::= \"[\" ([a-z ]{3,8} \",\"){60} \"]\""

static void a_grammar_survives_preemption(void **state)
{
    struct engine *wide = open_engine((struct engine_opt){ .n_ctx = 512, .max_seqs = 4 });
    struct engine *tight = open_engine(
        (struct engine_opt){ .n_ctx = 512, .kv_tokens = 512, .max_seqs = 4, .no_prefix = true });
    struct asked a[4], b[4];
    int preempted = 0;

    (void)state;
    for (int i = 0; i < 4; i++) {
        a[i] = make_request(wide, GRAMMAR_GBNF, LONG, 400, (uint64_t)i);
        b[i] = make_request(tight, GRAMMAR_GBNF, LONG, 400, (uint64_t)i);
    }
    run_requests(wide, a, 4);
    run_requests(tight, b, 4);
    for (int i = 0; i < 4; i++) {
        preempted += b[i].r->n_preempted;
        assert_int_equal(a[i].finish, FINISH_STOP);
        assert_int_equal(b[i].finish, FINISH_STOP);
        assert_true(a[i].text.n > 60 * 4 && a[i].text.p[0] == '[' &&
                    a[i].text.p[a[i].text.n - 1] == ']');
        assert_true(b[i].text.n > 60 * 4 && b[i].text.p[0] == '[' &&
                    b[i].text.p[b[i].text.n - 1] == ']');
        release_request(&a[i]);
        release_request(&b[i]);
    }
    assert_true(preempted > 0);
    engine_close(wide);
    engine_close(tight);
}

static void a_completion_ends_when_its_grammar_is_complete(void **state)
{
    struct engine *g = open_engine((struct engine_opt){ .n_ctx = 256 });
    struct asked a[3];

    (void)state;
    a[0] = make_request(g, GRAMMAR_GBNF, "root ::= \"yes\" | \"no\"", 50, 1);
    a[1] = make_request(g, GRAMMAR_GBNF, "root ::= \"yes\" | \"no\"", 50, 2);
    a[1].r->min_tokens = 20; /* has no effect: the grammar is complete */
    a[2] = make_request(g, GRAMMAR_GBNF, "root ::= [a-z]+", 30, 3);
    a[2].r->ignore_eos = true;
    run_requests(g, a, 3);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(a[i].finish, FINISH_STOP);
        assert_true(!strcmp(a[i].text.p, "yes") || !strcmp(a[i].text.p, "no"));
    }
    assert_int_equal(a[2].finish, FINISH_LENGTH);
    assert_int_equal(a[2].n, 30);
    assert_int_equal(strspn(a[2].text.p, "abcdefghijklmnopqrstuvwxyz"), a[2].text.n);
    for (int i = 0; i < 3; i++) release_request(&a[i]);
    engine_close(g);
}

static void no_end_token_is_sampled_before_the_grammar_may_end(void **state)
{
    struct engine *g = open_engine((struct engine_opt){ .n_ctx = 512, .max_seqs = 8 });
    struct asked a[8];

    (void)state;
    for (int i = 0; i < 8; i++) {
        struct logit_bias *bias = mem_array(1, sizeof *bias);
        a[i] = make_request(g, GRAMMAR_GBNF, "root ::= [a-z ]{40,} \".\"?", 200, (uint64_t)i);
        *bias = (struct logit_bias){ tokenizer_eos(engine_tokenizer(g)),
                                     90 }; /* the bias makes the end token most likely */
        a[i].r->sample.bias = bias;
        a[i].r->sample.n_bias = 1;
    }
    run_requests(g, a, 8);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(a[i].finish, FINISH_STOP);
        assert_true(a[i].text.n >= 40 && a[i].text.n < 70);
        release_request(&a[i]);
    }
    engine_close(g);
}

static void a_text_that_reaches_max_tokens_is_closed_before(void **state)
{
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\",\"minLength\":2},"
        "\"l\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}}},\"required\":[\"s\",\"l\"]}";
    struct engine *g = open_engine((struct engine_opt){ .n_ctx = 512, .max_seqs = 16 });
    struct asked a[16];

    (void)state;
    for (int i = 0; i < 16; i++) {
        a[i] = make_request(g, GRAMMAR_SCHEMA, schema, 20 + i, (uint64_t)i);
        a[i].r->ignore_eos = true;
    }
    run_requests(g, a, 16);
    for (int i = 0; i < 16; i++) {
        json_t *v = json_loadb(a[i].text.p, a[i].text.n, 0, NULL);
        if (!v) fail_msg("not complete: %s", a[i].text.p);
        json_decref(v);
        assert_true(a[i].finish == FINISH_LENGTH || a[i].finish == FINISH_STOP);
        release_request(&a[i]);
    }
    a[0] = make_request(g, GRAMMAR_SCHEMA, schema, 3, 1); /* cannot be closed within three tokens */
    run_requests(g, a, 1);
    assert_int_equal(a[0].finish, FINISH_LENGTH);
    assert_int_equal(a[0].n, 3);
    release_request(&a[0]);
    engine_close(g);
}

static void a_grammar_without_a_possible_token_fails_only_its_own_request(void **state)
{
    struct engine *g = open_engine((struct engine_opt){ .n_ctx = 256 });
    struct asked a[2];

    (void)state;
    a[0] = make_request(g, GRAMMAR_GBNF, "root ::= \"ab\" <[9999999]> \"c\"", 50, 1);
    a[1] = make_request(g, GRAMMAR_GBNF, "root ::= [a-z]{30}", 50, 1);
    run_requests(g, a, 2);
    assert_int_equal(a[0].finish, FINISH_ERROR);
    assert_int_equal(a[0].r->err.code, E_INVALID);
    assert_non_null(strstr(a[0].r->err.msg, "the grammar allows no token"));
    assert_int_equal(a[1].finish, FINISH_STOP);
    assert_int_equal(a[1].text.n, 30);
    release_request(&a[0]);
    release_request(&a[1]);
    engine_close(g);
}

/* The text would go on without the grammar if the error were not noticed. */
static void a_grammar_that_is_too_ambiguous_fails_only_its_own_request(void **state)
{
    struct engine *g = open_engine((struct engine_opt){ .n_ctx = 256 });
    struct asked a[2];

    (void)state;
    a[0] = make_request(g, GRAMMAR_GBNF,
                        "root ::= a | b | \"%\"\na ::= [a-z] root \"1\"\nb ::= [a-z] root \"2\"",
                        50, 1);
    a[1] = make_request(g, GRAMMAR_GBNF, "root ::= [a-z]{30}", 50, 1);
    a[0].r->sample.temp = 0;
    run_requests(g, a, 2);
    assert_int_equal(a[0].finish, FINISH_ERROR);
    assert_int_equal(a[0].r->err.code, E_INVALID);
    assert_non_null(strstr(a[0].r->err.msg, "the grammar is too ambiguous: after "));
    assert_int_equal(a[1].finish, FINISH_STOP);
    assert_int_equal(a[1].text.n, 30);
    release_request(&a[0]);
    release_request(&a[1]);
    engine_close(g);
}

static void logprobs_are_those_of_the_unconstrained_model(void **state)
{
    struct engine *g = open_engine((struct engine_opt){ .n_ctx = 256 });
    struct asked free = make_request(g, GRAMMAR_GBNF, NULL, 1, 1),
                 held = make_request(g, GRAMMAR_GBNF, "root ::= [0-9]{4}", 1, 1);
    struct event x = { .id = -1 }, y = { .id = -1 }, ev;

    (void)state;
    free.r->n_top = held.r->n_top = 3;
    submit_request(g, &free);
    submit_request(g, &held);
    while (engine_step(g)) {}
    while (request_next(free.r, &ev)) x = ev.id >= 0 ? ev : x;
    while (request_next(held.r, &ev)) y = ev.id >= 0 ? ev : y;
    assert_int_equal(y.n_top, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(x.top[i].id, y.top[i].id);
    release_request(&free);
    release_request(&held);
    engine_close(g);
}

static void equal_grammars_are_compiled_once(void **state)
{
    struct engine *g = open_engine((struct engine_opt){ .n_ctx = 64 });
    struct grammar_spec spec = { .kind = GRAMMAR_GBNF, .text = STR("root ::= \"x\"") },
                        bad = { .kind = GRAMMAR_GBNF, .text = STR("root ::= y") };
    struct grammar *a = NULL, *b = NULL, *c = NULL;
    struct err e = { 0 };
    char text[64];

    (void)state;
    assert_int_equal(engine_grammar(g, &spec, &a, &e), OK);
    assert_int_equal(engine_grammar(g, &spec, &b, &e), OK);
    assert_ptr_equal(a, b);
    assert_int_equal(engine_grammar(g, &bad, &c, &e), E_INVALID);
    for (int i = 0; i < 200; i++) { /* more than the cache holds */
        snprintf(text, sizeof text, "root ::= \"x%d\"", i);
        spec.text = str_c(text);
        assert_int_equal(engine_grammar(g, &spec, &c, &e), OK);
        grammar_unref(c);
    }
    grammar_unref(a);
    grammar_unref(b);
    engine_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(completions_of_two_hundred_schemas_are_all_valid),
        cmocka_unit_test(a_grammar_survives_preemption),
        cmocka_unit_test(a_completion_ends_when_its_grammar_is_complete),
        cmocka_unit_test(no_end_token_is_sampled_before_the_grammar_may_end),
        cmocka_unit_test(a_text_that_reaches_max_tokens_is_closed_before),
        cmocka_unit_test(a_grammar_without_a_possible_token_fails_only_its_own_request),
        cmocka_unit_test(a_grammar_that_is_too_ambiguous_fails_only_its_own_request),
        cmocka_unit_test(logprobs_are_those_of_the_unconstrained_model),
        cmocka_unit_test(equal_grammars_are_compiled_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
