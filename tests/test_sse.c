/* Server-sent events: which parts of a stream tell a client nothing. */
#include "support.h"

#include "net/sse.h"

static void comments_and_pings_are_idle(void **state)
{
    static const char *const idle[] = {
        "",          ": ping\n\n",
        "\n",        ": ping\n\n: ping\n\n",
        ": ids -\n", "event: ping\ndata: {\"type\":\"ping\"}\n\n",
    };

    (void)state;
    for (size_t i = 0; i < sizeof idle / sizeof *idle; i++)
        if (!sse_is_idle(str_c(idle[i]))) fail_msg("not idle: %s", idle[i]);
}

static void events_and_parts_of_them_are_not_idle(void **state)
{
    static const char *const told[] = {
        "data: {}\n\n",
        ": ping\n\ndata: {}\n\n",
        ": pin",
        "event: ping\ndata: {}\n",
        "event: ping\ndata: {}",
        "event: pings\ndata: {}\n\n",
        "data: {}\nevent: ping\n\n",
        "event: ping\ndata: {}\n\ndata: {}\n\n",
        "{\"response\":\"a\"}\n",
        "x",
    };

    (void)state;
    for (size_t i = 0; i < sizeof told / sizeof *told; i++)
        if (sse_is_idle(str_c(told[i]))) fail_msg("idle: %s", told[i]);
    assert_false(sse_is_idle(str_of("\0\n", 2)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comments_and_pings_are_idle),
        cmocka_unit_test(events_and_parts_of_them_are_not_idle),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
