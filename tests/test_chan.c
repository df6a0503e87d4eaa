/* The channel between threads (base/chan) and the event queue of a request (engine outbox):
 * order, capacity, blocking, and no lost items between threads.
 *
 * Reads no files. */
#include "support.h"

#include "base/chan.h"
#include "base/clock.h"
#include "engine/outbox.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static void a_channel_keeps_its_order_and_its_capacity(void **state)
{
    struct chan *c = NULL;
    int v[5];
    (void)state;
    assert_int_equal(chan_open(&c, 0, NULL), E_INVALID);
    assert_int_equal(chan_open(&c, 3, NULL), OK);
    assert_null(chan_pop(c));
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 3; i++) assert_true(chan_push(c, &v[i]));
        assert_false(chan_push(c, &v[3]));
        assert_int_equal(chan_n(c), 3);
        for (int i = 0; i < 3; i++) assert_ptr_equal(chan_pop(c), &v[i]);
    }
    assert_null(chan_pop(c));
    chan_close(c);
    chan_close(NULL);
}

static void waiting_ends_by_timeout_by_poke_and_by_an_item(void **state)
{
    struct chan *c = NULL;
    uint64_t begin = clock_ns();
    int v;
    (void)state;
    assert_int_equal(chan_open(&c, 3, NULL), OK);
    chan_wait(c, 2000000);
    assert_true(clock_ns() - begin >= 2000000);
    chan_poke(c);
    chan_wait(c, UINT64_MAX); /* returns at once: the channel was poked before */
    chan_push(c, &v);
    chan_wait(c, UINT64_MAX);
    assert_ptr_equal(chan_pop(c), &v);
    chan_close(c);
}

enum { PER_THREAD = 20000, PUSHERS = 3 };

static void *push_many(void *arg)
{
    static char item;
    for (int i = 0; i < PER_THREAD; i++)
        while (!chan_push(arg, &item)) sched_yield();
    return NULL;
}

static void no_item_is_lost_between_threads(void **state)
{
    struct chan *c = NULL;
    pthread_t t[PUSHERS];
    int n = 0;
    (void)state;
    assert_int_equal(chan_open(&c, 16, NULL), OK);
    for (int i = 0; i < PUSHERS; i++) pthread_create(&t[i], NULL, push_many, c);
    while (n < PUSHERS * PER_THREAD) {
        if (chan_pop(c)) n++;
        else chan_wait(c, UINT64_MAX);
    }
    for (int i = 0; i < PUSHERS; i++) pthread_join(t[i], NULL);
    assert_null(chan_pop(c));
    chan_close(c);
}

/* ---- outbox ---- */

static struct event make_event(int i, char *text)
{
    struct event ev = {
        .id = i, .logprob = (float)-i, .n_top = i % (TOP_MAX + 1), .at_ns = (uint64_t)i * 7
    };
    int n = i * 37 % OUTBOX_TEXT;

    for (int k = 0; k < n; k++) text[k] = (char)('a' + (i + k) % 26);
    for (int k = 0; k < ev.n_top; k++) ev.top[k] = (struct top){ i + k, (float)k };
    ev.text = str_of(text, (size_t)n);
    return ev;
}

static void assert_event(const struct event *got, int i)
{
    char text[OUTBOX_TEXT];
    struct event want = make_event(i, text);

    assert_int_equal(got->id, want.id);
    assert_true(got->logprob == want.logprob && got->at_ns == want.at_ns);
    assert_int_equal(got->n_top, want.n_top);
    assert_memory_equal(got->top, want.top, sizeof(struct top) * (size_t)want.n_top);
    assert_true(str_eq(got->text, want.text));
}

static void *write_events(void *arg)
{
    struct outbox *o = arg;
    char text[OUTBOX_TEXT];

    for (int i = 0; i < PER_THREAD; i++) {
        struct event ev = make_event(i, text);
        while (!outbox_has_room(o)) sched_yield();
        outbox_push(o, &ev);
    }
    return NULL;
}

static void events_are_read_as_they_were_written(void **state)
{
    struct outbox o;
    struct event ev;
    pthread_t t;
    (void)state;
    outbox_init(&o);
    assert_false(outbox_pop(&o, &ev));
    pthread_create(&t, NULL, write_events, &o);
    for (int i = 0; i < PER_THREAD; i++) {
        while (!outbox_pop(&o, &ev)) sched_yield();
        assert_event(&ev, i);
    }
    pthread_join(t, NULL);
    assert_false(outbox_pop(&o, &ev));
    outbox_release(&o);
}

static void a_full_outbox_still_has_space_for_the_last_event(void **state)
{
    struct outbox o;
    struct event ev, big;
    char text[OUTBOX_TEXT];
    int n = 0;
    (void)state;
    outbox_init(&o);
    memset(text, 'x', sizeof text);
    big = (struct event){ .n_top = TOP_MAX, .text = str_of(text, sizeof text) };
    while (outbox_has_room(&o)) outbox_push(&o, &big), n++;
    assert_true(n > (HARD ? 0 : 4));
    outbox_push(&o, &big); /* the last event of a request, of any size */
    for (int i = 0; i <= n; i++) assert_true(outbox_pop(&o, &ev));
    assert_true(outbox_has_room(&o));
    outbox_release(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_channel_keeps_its_order_and_its_capacity),
        cmocka_unit_test(waiting_ends_by_timeout_by_poke_and_by_an_item),
        cmocka_unit_test(no_item_is_lost_between_threads),
        cmocka_unit_test(events_are_read_as_they_were_written),
        cmocka_unit_test(a_full_outbox_still_has_space_for_the_last_event),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
