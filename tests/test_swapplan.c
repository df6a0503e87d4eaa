/* The swap plan: its rules one by one, and simulations of traffic over more models than fit. */
#include "support.h"

#include "pool/swapplan.h"

#include <string.h>

#define SEC UINT64_C(1000000000)
#define MSEC UINT64_C(1000000)

static const struct swap_opt opt = { .residence_ns = 2 * SEC,
                                     .patience_ns = 5 * SEC,
                                     .age_ns = 250 * MSEC };
static const struct swap_lack one = { .models = 1 };

static struct swap_model loaded(uint64_t ready, uint64_t used)
{
    return (struct swap_model){
        .loaded = true, .ready_ns = ready, .used_ns = used, .reload_ns = 100 * MSEC, .bytes = 10
    };
}
static struct swap_model wanted(uint64_t since)
{
    return (struct swap_model){ .wanted = true, .since_ns = since };
}

static void the_group_that_waits_longest_is_next(void **state)
{
    struct swap_model m[4] = { loaded(0, 0), wanted(7), wanted(3), wanted(5) };
    bool skip[4] = { false, false, true, false };

    (void)state;
    assert_int_equal(swapplan_next(m, 4, NULL, &opt), 2);
    assert_int_equal(swapplan_next(m, 4, skip, &opt), 3);
    assert_int_equal(swapplan_next(m, 1, NULL, &opt), -1);
}

static void a_higher_priority_is_next_until_the_others_have_waited(void **state)
{
    struct swap_model m[3] = { wanted(10 * SEC), wanted(11 * SEC), wanted(12 * SEC) };

    (void)state;
    m[1].priority = 5, m[2].priority = -1;
    assert_int_equal(swapplan_next(m, 3, NULL, &opt), 1);
    m[1].since_ns = 10 * SEC + 5 * opt.age_ns; /* came so much later as its priority is worth */
    assert_int_equal(swapplan_next(m, 3, NULL, &opt), 0);
    m[0].wanted = false;
    assert_int_equal(swapplan_next(m, 3, NULL, &opt), 1);
    m[2].since_ns = 0;
    assert_int_equal(swapplan_next(m, 3, NULL, &opt), 2);
    m[1].since_ns = 0, m[1].priority = 100, m[2].priority = -100; /* no overflow below zero */
    assert_int_equal(swapplan_next(m, 3, NULL, &opt), 1);
}

static void a_lower_priority_goes_first(void **state)
{
    struct swap_model m[4] = { loaded(0, 60 * SEC), loaded(0, 50 * SEC), loaded(0, 40 * SEC),
                               wanted(99 * SEC) };
    struct swap_lack lack = { .bytes = 15 };
    unsigned char act[4];
    uint64_t look;

    (void)state;
    m[0].priority = -1;
    assert_int_equal(swapplan_room(m, 4, 3, &one, &opt, 100 * SEC, act, &look), SWAP_LOAD);
    assert_memory_equal(act, ((unsigned char[]){ SWAP_EVICT, 0, 0, 0 }), 4);
    m[2].priority = 7; /* used longest ago, and yet it stays */
    assert_int_equal(swapplan_room(m, 4, 3, &lack, &opt, 100 * SEC, act, &look), SWAP_LOAD);
    assert_memory_equal(act, ((unsigned char[]){ SWAP_EVICT, SWAP_EVICT, 0, 0 }), 4);
    lack.bytes = 25; /* not for one of lower priority, before that has waited */
    assert_int_equal(swapplan_room(m, 4, 3, &lack, &opt, 100 * SEC, act, &look), SWAP_WAIT);
    assert_true(look == 104 * SEC);
    assert_int_equal(swapplan_room(m, 4, 3, &lack, &opt, 104 * SEC, act, &look), SWAP_LOAD);
    assert_memory_equal(act, ((unsigned char[]){ SWAP_EVICT, SWAP_EVICT, SWAP_EVICT, 0 }), 4);
    lack.bytes = 15;
    m[2].bytes = m[1].bytes = 15; /* of two that would do, the one of lower priority goes */
    assert_int_equal(swapplan_room(m, 4, 3, &lack, &opt, 100 * SEC, act, &look), SWAP_LOAD);
    assert_memory_equal(act, ((unsigned char[]){ 0, SWAP_EVICT, 0, 0 }), 4);
}

static void the_least_recently_used_goes_weighed_by_its_cost(void **state)
{
    struct swap_model m[4] = { loaded(0, 60 * SEC), loaded(0, 50 * SEC), loaded(0, 40 * SEC),
                               wanted(99 * SEC) };
    unsigned char act[4];
    uint64_t look;

    (void)state;
    assert_int_equal(swapplan_room(m, 4, 3, &one, &opt, 100 * SEC, act, &look), SWAP_LOAD);
    assert_memory_equal(act, ((unsigned char[]){ 0, 0, SWAP_EVICT, 0 }), 4);
    m[2].reload_ns = 20 * SEC; /* dear to load again: the next one goes */
    assert_int_equal(swapplan_room(m, 4, 3, &one, &opt, 100 * SEC, act, &look), SWAP_LOAD);
    assert_memory_equal(act, ((unsigned char[]){ 0, SWAP_EVICT, 0, 0 }), 4);
    m[1].pinned = true;
    assert_int_equal(swapplan_room(m, 4, 3, &one, &opt, 100 * SEC, act, &look), SWAP_LOAD);
    assert_memory_equal(act, ((unsigned char[]){ SWAP_EVICT, 0, 0, 0 }), 4);
}

static void as_many_go_as_are_needed_and_no_more(void **state)
{
    struct swap_model m[4] = { loaded(0, 60 * SEC), loaded(0, 50 * SEC), loaded(0, 40 * SEC),
                               wanted(99 * SEC) };
    struct swap_lack lack = { .bytes = 100 };
    unsigned char act[4];
    uint64_t look;

    (void)state;
    m[2].bytes = 5, m[1].bytes = 20, m[0].bytes = 100;
    assert_int_equal(swapplan_room(m, 4, 3, &lack, &opt, 100 * SEC, act, &look), SWAP_LOAD);
    assert_memory_equal(act, ((unsigned char[]){ SWAP_EVICT, 0, 0, 0 }), 4);
    lack.bytes = 121;
    assert_int_equal(swapplan_room(m, 4, 3, &lack, &opt, 100 * SEC, act, &look), SWAP_LOAD);
    assert_memory_equal(act, ((unsigned char[]){ SWAP_EVICT, SWAP_EVICT, SWAP_EVICT, 0 }), 4);
    lack.bytes = 126;
    assert_int_equal(swapplan_room(m, 4, 3, &lack, &opt, 100 * SEC, act, &look), SWAP_NEVER);
    assert_memory_equal(act, ((unsigned char[4]){ 0 }), 4);
}

static void a_model_stays_for_its_residence(void **state)
{
    struct swap_model m[2] = { loaded(10 * SEC, 10 * SEC), wanted(10 * SEC) };
    unsigned char act[2];
    uint64_t look;

    (void)state;
    assert_int_equal(swapplan_room(m, 2, 1, &one, &opt, 11 * SEC, act, &look), SWAP_WAIT);
    assert_true(look == 12 * SEC);
    assert_int_equal(swapplan_room(m, 2, 1, &one, &opt, 12 * SEC, act, &look), SWAP_LOAD);
    m[0].reload_ns = SEC; /* one that loads slowly stays longer */
    assert_int_equal(swapplan_room(m, 2, 1, &one, &opt, 12 * SEC, act, &look), SWAP_WAIT);
    assert_true(look == 14 * SEC);
    m[1].priority = 1; /* but not for a higher priority, unless it is in use */
    assert_int_equal(swapplan_room(m, 2, 1, &one, &opt, 12 * SEC, act, &look), SWAP_LOAD);
    m[0].in_use = true;
    assert_int_equal(swapplan_room(m, 2, 1, &one, &opt, 12 * SEC, act, &look), SWAP_WAIT);
}

static void a_model_in_use_yields_to_those_who_have_waited(void **state)
{
    struct swap_model m[3] = { loaded(2, 20 * SEC), loaded(1, 20 * SEC), wanted(16 * SEC) };
    unsigned char act[3];
    uint64_t look;

    (void)state;
    m[0].in_use = m[1].in_use = true;
    assert_int_equal(swapplan_room(m, 3, 2, &one, &opt, 20 * SEC, act, &look), SWAP_WAIT);
    assert_memory_equal(act, ((unsigned char[3]){ 0 }), 3);
    assert_true(look == 21 * SEC);
    assert_int_equal(swapplan_room(m, 3, 2, &one, &opt, 21 * SEC, act, &look), SWAP_WAIT);
    assert_memory_equal(act, ((unsigned char[]){ 0, SWAP_YIELD, 0 }), 3);
    m[1].in_use = false;
    assert_int_equal(swapplan_room(m, 3, 2, &one, &opt, 21 * SEC, act, &look), SWAP_LOAD);
    assert_memory_equal(act, ((unsigned char[]){ 0, SWAP_EVICT, 0 }), 3);
}

static void what_is_leaving_is_waited_for(void **state)
{
    struct swap_model m[3] = { loaded(0, 0), { .leaving = true, .bytes = 10 }, wanted(19 * SEC) };
    unsigned char act[3];
    uint64_t look;

    (void)state;
    assert_int_equal(swapplan_room(m, 3, 2, &one, &opt, 20 * SEC, act, &look), SWAP_WAIT);
    assert_int_equal(swapplan_room(m, 3, 2, &one, &opt, 25 * SEC, act, &look), SWAP_LOAD);
    m[0].pinned = true;
    assert_int_equal(swapplan_room(m, 3, 2, &one, &opt, 25 * SEC, act, &look), SWAP_WAIT);
}

/* ---- simulation ---- */

enum { MODELS = 3, ROOM = 2, REQUESTS = 20000 };

/* Requests arrive one after the other; each runs for `run` once its model is loaded and open to it. A
 * load takes `load`, one at a time. Time goes in steps of 10 ms. */
struct sim {
    struct swap_model m[MODELS];
    uint64_t arrival[REQUESTS], end[REQUESTS]; /* end 0: waits */
    int model[REQUESTS];
    int n, from; /* of them; those before `from` have ended */
    int loading; /* -1: none */
    bool yields[MODELS];
    uint64_t now, loaded_ns, longest_wait;
    uint64_t wait_of[MODELS]; /* sums */
    int served[MODELS];
    int priority[MODELS];
    int switches, killed;
};

static bool is_loaded(const struct sim *s, int k) { return s->m[k].loaded && !s->yields[k]; }

static void run_requests(struct sim *s, uint64_t run)
{
    bool used[MODELS] = { false };

    for (int k = 0; k < MODELS; k++) s->m[k].wanted = false;
    for (int i = s->from; i < s->n; i++) {
        int k = s->model[i];
        if (!s->end[i] && is_loaded(s, k)) {
            uint64_t waited = s->now - s->arrival[i];
            s->end[i] = s->now + run;
            if (waited > s->longest_wait) s->longest_wait = waited;
            s->wait_of[k] += waited;
            s->served[k]++;
        }
        if (!s->end[i] && !s->m[k].wanted) {
            s->m[k].wanted = !s->m[k].loaded;
            s->m[k].since_ns = s->arrival[i];
        }
        if (s->end[i] && s->end[i] > s->now) {
            used[k] = true;
            s->killed += !s->m[k].loaded;
        }
    }
    for (int k = 0; k < MODELS; k++) {
        if (s->m[k].in_use || used[k]) s->m[k].used_ns = s->now;
        s->m[k].in_use = used[k];
    }
    while (s->from < s->n && s->end[s->from] && s->end[s->from] <= s->now) s->from++;
}

static void plan_loads(struct sim *s, uint64_t load)
{
    struct swap_lack lack = { 0 };
    unsigned char act[MODELS];
    uint64_t look;
    int n = 0, k;

    if (s->loading >= 0 && s->now >= s->loaded_ns) {
        k = s->loading;
        s->m[k] = (struct swap_model){
            .loaded = true, .ready_ns = s->now, .used_ns = s->now, .reload_ns = load, .bytes = 1
        };
        s->loading = -1;
        memset(s->yields, 0, sizeof s->yields);
    }
    for (int i = 0; i < MODELS; i++) s->m[i].priority = s->priority[i];
    if (s->loading >= 0 || (k = swapplan_next(s->m, MODELS, NULL, &opt)) < 0) return;
    for (int i = 0; i < MODELS; i++) n += s->m[i].loaded;
    if (n >= ROOM) lack.models = n + 1 - ROOM;
    if (lack.models) {
        enum swap_verdict v = swapplan_room(s->m, MODELS, k, &lack, &opt, s->now, act, &look);
        assert_int_not_equal(v, SWAP_NEVER);
        for (int i = 0; i < MODELS; i++) s->yields[i] = act[i] == SWAP_YIELD;
        if (v == SWAP_WAIT) return;
        for (int i = 0; i < MODELS; i++)
            if (act[i] == SWAP_EVICT) s->m[i] = (struct swap_model){ 0 }, s->switches++;
    }
    s->loading = k;
    s->loaded_ns = s->now + load;
}

/* every: between two arrivals; hot: model 0 and 1 get all but each 20th request */
static void simulate(struct sim *s, uint64_t seconds, uint64_t every, uint64_t run, uint64_t load,
                     bool hot)
{
    uint64_t next = 0;

    int priority[MODELS];

    memcpy(priority, s->priority, sizeof priority);
    memset(s, 0, sizeof *s);
    memcpy(s->priority, priority, sizeof priority);
    s->loading = -1;
    for (s->now = 0; s->now < seconds * SEC || s->from < s->n; s->now += 10 * MSEC) {
        for (; next <= s->now && s->now < seconds * SEC && s->n < REQUESTS; next += every) {
            int k = hot ? (s->n % 20 == 19 ? 2 : s->n % 2) : s->n % MODELS;
            s->arrival[s->n] = s->now;
            s->model[s->n++] = k;
        }
        plan_loads(s, load);
        run_requests(s, run);
        assert_true(s->now < 4 * seconds * SEC); /* nobody waits for ever */
    }
}

static struct sim sim;

static void abcabc_with_room_for_two_has_bounded_switches(void **state)
{
    (void)state;
    simulate(&sim, 300, 100 * MSEC, 50 * MSEC, 200 * MSEC, false);
    assert_int_equal(sim.from, 3000);
    assert_int_equal(sim.killed, 0);
    /* Each place changes its model at most once in a residence and a load. */
    assert_in_range(sim.switches, 1, ROOM * 300 * 1000 / 2200 + ROOM);
    assert_in_range(sim.longest_wait / MSEC, 0, 5000 + 2 * (2000 + 200 + 50) + 1000);
}

static void a_rare_model_is_served_beside_models_always_in_use(void **state)
{
    (void)state;
    /* Requests overlap: models 0 and 1 are in use at every moment. */
    simulate(&sim, 300, 50 * MSEC, 400 * MSEC, 500 * MSEC, true);
    assert_int_equal(sim.from, sim.n);
    assert_int_equal(sim.killed, 0);
    assert_in_range(sim.switches, 1, ROOM * 300 * 1000 / 2500 + ROOM);
    assert_in_range(sim.longest_wait / MSEC, 0, 5000 + 2 * (2000 + 500 + 400) + 1000);
}

static void slow_loads_stay_in_proportion(void **state)
{
    (void)state;
    simulate(&sim, 1200, 200 * MSEC, 50 * MSEC, 4 * SEC, false);
    assert_int_equal(sim.from, sim.n);
    /* A model stays four times as long as it takes to load. */
    assert_in_range(sim.switches, 1, ROOM * 1300 / (4 + 16) + ROOM);
    assert_in_range(sim.longest_wait / MSEC, 0, 2 * (16000 + 4000 + 50) + 5000);
}

/* All three models have the same traffic; model 2 is preferred, model 0 comes last. */
static void a_priority_shortens_waits_and_starves_nobody(void **state)
{
    (void)state;
    sim.priority[0] = -10, sim.priority[2] = 10;
    simulate(&sim, 300, 100 * MSEC, 50 * MSEC, 200 * MSEC, false);
    assert_int_equal(sim.from, 3000);
    assert_int_equal(sim.killed, 0);
    assert_true(sim.wait_of[2] / (uint64_t)sim.served[2] <
                sim.wait_of[0] / (uint64_t)sim.served[0]);
    assert_int_equal(sim.served[0], 1000);
    /* 20 steps of priority are 5 s more than without. */
    assert_in_range(sim.longest_wait / MSEC, 0, 5000 + 5000 + 2 * (2000 + 200 + 50) + 1000);
    memset(sim.priority, 0, sizeof sim.priority);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_group_that_waits_longest_is_next),
        cmocka_unit_test(a_higher_priority_is_next_until_the_others_have_waited),
        cmocka_unit_test(a_lower_priority_goes_first),
        cmocka_unit_test(the_least_recently_used_goes_weighed_by_its_cost),
        cmocka_unit_test(as_many_go_as_are_needed_and_no_more),
        cmocka_unit_test(a_model_stays_for_its_residence),
        cmocka_unit_test(a_model_in_use_yields_to_those_who_have_waited),
        cmocka_unit_test(what_is_leaving_is_waited_for),
        cmocka_unit_test(abcabc_with_room_for_two_has_bounded_switches),
        cmocka_unit_test(a_rare_model_is_served_beside_models_always_in_use),
        cmocka_unit_test(slow_loads_stay_in_proportion),
        cmocka_unit_test(a_priority_shortens_waits_and_starves_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
