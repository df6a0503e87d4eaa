/* The queue of an engine: calls with many prompts, which wait once and leave places to others.
 *
 * Engines run a small random model and are stepped by the test. */
#include "engine_world.h"

enum { TEXTS = 12, OTHERS = 4 };

/* Texts of one call, and other requests, each with a vector or one token to compute. */
struct list {
    struct ticket ticket;
    struct client texts[TEXTS], others[OTHERS], *all[TEXTS + OTHERS];
};

static void open_list(struct list *l, struct engine *g)
{
    struct ids prompts[TEXTS];
    struct err e = { 0 };

    memset(l, 0, sizeof *l);
    for (int i = 0; i < TEXTS; i++) {
        l->texts[i] = make_client(i, 20, 1);
        l->texts[i].r->embed = true;
        l->texts[i].r->ticket = &l->ticket;
        l->texts[i].r->is_further = i > 0;
        prompts[i] = l->texts[i].r->prompt;
        l->all[i] = &l->texts[i];
    }
    for (int i = 0; i < OTHERS; i++) {
        l->others[i] = make_client(TEXTS + i, 20, 8);
        l->all[TEXTS + i] = &l->others[i];
    }
    if (engine_admit(g, &l->ticket, prompts, TEXTS, 0, &e) != OK) fail_msg("%s", e.msg);
}

static void close_list(struct list *l, struct engine *g)
{
    engine_give_back(g, &l->ticket);
    for (int i = 0; i < TEXTS; i++) release_client(&l->texts[i]);
    for (int i = 0; i < OTHERS; i++) release_client(&l->others[i]);
    assert_true(engine_is_idle(g));
    engine_close(g);
}

static int count_begun(const struct client *c, int n)
{
    int begun = 0;

    for (int i = 0; i < n; i++) begun += c[i].r->start_ns != 0;
    return begun;
}

static void a_list_of_texts_leaves_places_to_others(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 64, .max_seqs = 4 });
    struct list l;

    (void)state;
    open_list(&l, g);
    for (int i = 0; i < TEXTS; i++) submit_client(g, &l.texts[i]);
    for (int i = 0; i < OTHERS; i++) submit_client(g, &l.others[i]);
    engine_step(g);
    assert_int_equal(count_begun(l.texts, TEXTS), 2); /* of 12, which all came first */
    assert_int_equal(count_begun(l.others, OTHERS), 2);
    run_clients(g, l.all, TEXTS + OTHERS);
    for (int i = 0; i < TEXTS + OTHERS; i++) assert_true(l.all[i]->finish <= FINISH_LENGTH);
    close_list(&l, g);
}

static void a_list_of_texts_alone_has_all_places(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 64, .max_seqs = 4 });
    struct list l;

    (void)state;
    open_list(&l, g);
    for (int i = 0; i < TEXTS; i++) submit_client(g, &l.texts[i]);
    engine_step(g);
    assert_int_equal(count_begun(l.texts, TEXTS), 4);
    run_clients(g, l.all, TEXTS);
    close_list(&l, g);
}

/* Those that came while the first texts ran are not computed before the next ones. */
static void later_texts_of_a_list_keep_its_place_in_the_queue(void **state)
{
    struct engine *g = open_manual((struct engine_opt){ .n_ctx = 64, .max_seqs = 1 });
    struct list l;

    (void)state;
    open_list(&l, g);
    submit_client(g, &l.texts[0]);
    for (int i = 0; i < OTHERS; i++) submit_client(g, &l.others[i]);
    for (int i = 1; i < TEXTS; i++) submit_client(g, &l.texts[i]);
    run_clients(g, l.all, TEXTS + OTHERS);
    for (int i = 0; i < TEXTS; i++) assert_true(l.texts[i].r->start_ns < l.others[0].r->start_ns);
    close_list(&l, g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_of_texts_leaves_places_to_others),
        cmocka_unit_test(a_list_of_texts_alone_has_all_places),
        cmocka_unit_test(later_texts_of_a_list_keep_its_place_in_the_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
