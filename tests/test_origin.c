/* Host, Origin and Sec-Fetch-Site: which of them a server without keys accepts. */
#include "support.h"

#include "server/origin.h"

#include <string.h>

static bool is_allowed(const char *host, const char *own, const char *allowed)
{
    return origin_host_allowed(str_c(host), own, allowed);
}

static void names_and_ports_are_split(void **state)
{
    static const struct {
        const char *text, *name;
        int port;
    } good[] = {
        { "localhost", "localhost", -1 },
        { "localhost:8080", "localhost", 8080 },
        { "LocalHost.:80", "LocalHost", 80 },
        { "127.0.0.1:0", "127.0.0.1", 0 },
        { "[::1]", "::1", -1 },
        { "[::1]:65535", "::1", 65535 },
        { "[::ffff:127.0.0.1]:1", "::ffff:127.0.0.1", 1 },
        { "a_b-c.example:1", "a_b-c.example", 1 },
    };
    static const char *const bad[] = {
        "",
        ".",
        "..",
        ":80",
        "localhost:",
        "localhost:65536",
        "localhost:8080:80",
        "localhost:+1",
        "localhost: 80",
        "user@localhost",
        "localhost/",
        "localhost#",
        "local host",
        "[::1",
        "::1",
        "[::1]x",
        "[::1]:",
        "[localhost]",
        "[127.0.0.1]",
        "[]",
        "[::1%25lo]",
        "a..",
        "localhost:0x50",
        "localhost,evil.test",
        "localhost:000080",
        ".localhost",
        "\xc3\xa9.test",
    };
    struct str name;
    int port;

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(origin_split(str_c(good[i].text), &name, &port));
        assert_true(str_is(name, good[i].name));
        assert_int_equal(port, good[i].port);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (origin_split(str_c(bad[i]), &name, &port)) fail_msg("'%s' was accepted", bad[i]);
}

static void a_very_long_host_is_none(void **state)
{
    char text[70000];
    struct str name;
    int port;

    (void)state;
    memset(text, 'a', sizeof text);
    assert_true(origin_split(str_of(text, 253), &name, &port));
    assert_false(origin_split(str_of(text, 254), &name, &port));
    assert_false(origin_split(str_of(text, sizeof text), &name, &port));
    memset(text, ':', sizeof text);
    text[0] = '[';
    text[sizeof text - 1] = ']';
    assert_false(origin_split(str_of(text, sizeof text), &name, &port));
    memset(text, '0', sizeof text);
    memcpy(text, "localhost:", 10);
    assert_false(origin_split(str_of(text, sizeof text), &name, &port));
}

static void names_that_cannot_be_rebound_are_allowed(void **state)
{
    static const char *const yes[] = { "localhost",         "LOCALHOST:1",   "localhost.",
                                       "app.localhost:9",   "a.b.LocalHost", "127.0.0.1",
                                       "127.255.0.9:80",    "[::1]:8080",    "[0:0:0:0:0:0:0:1]",
                                       "[::ffff:127.0.0.1]" };
    static const char *const no[] = { "evil.test",
                                      "localhost.evil.test",
                                      "evillocalhost",
                                      "127.0.0.1.evil.test",
                                      "127.1",
                                      "2130706433",
                                      "0x7f.0.0.1",
                                      "0177.0.0.1",
                                      "0.0.0.0",
                                      "[::]",
                                      "10.0.0.1",
                                      "[::ffff:10.0.0.1]",
                                      "169.254.1.1",
                                      "[fe80::1]",
                                      "localhostx",
                                      "128.0.0.1",
                                      "" };

    (void)state;
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
        if (!is_allowed(yes[i], "127.0.0.1", "")) fail_msg("'%s' was refused", yes[i]);
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        if (is_allowed(no[i], "127.0.0.1", "")) fail_msg("'%s' was accepted", no[i]);
}

static void the_host_of_the_server_is_allowed(void **state)
{
    (void)state;
    assert_true(is_allowed("gpu-box:8080", "gpu-box", ""));
    assert_true(is_allowed("GPU-box.", "gpu-box", ""));
    assert_true(is_allowed("10.1.2.3:8080", "10.1.2.3", ""));
    assert_true(is_allowed("[2001:db8:0::1]:8080", "2001:db8::1", ""));
    assert_true(is_allowed("[2001:db8::1]", "[2001:db8::1]", ""));
    assert_false(is_allowed("10.1.2.4", "10.1.2.3", ""));
    assert_false(is_allowed("gpu-box.evil.test", "gpu-box", ""));
    /* Every address of the machine: any address, but no name. */
    assert_true(is_allowed("10.1.2.3", "0.0.0.0", ""));
    assert_true(is_allowed("[2001:db8::1]", "::", ""));
    assert_false(is_allowed("evil.test", "0.0.0.0", ""));
    assert_false(is_allowed("evil.test", "", ""));
}

static void listed_hosts_are_allowed(void **state)
{
    const char *list = "a.example, b.example:8080 ,*.c.example,10.0.0.1,[2001:db8::2]:1";

    (void)state;
    assert_true(is_allowed("a.example", "127.0.0.1", list));
    assert_true(is_allowed("A.Example.:99", "127.0.0.1", list));
    assert_true(is_allowed("b.example:8080", "127.0.0.1", list));
    assert_false(is_allowed("b.example", "127.0.0.1", list));
    assert_false(is_allowed("b.example:8081", "127.0.0.1", list));
    assert_true(is_allowed("x.y.c.example", "127.0.0.1", list));
    assert_false(is_allowed("c.example", "127.0.0.1", list));
    assert_false(is_allowed("xc.example", "127.0.0.1", list));
    assert_true(is_allowed("10.0.0.1:5", "127.0.0.1", list));
    assert_true(is_allowed("[2001:db8:0::2]:1", "127.0.0.1", list));
    assert_false(is_allowed("[2001:db8::2]:2", "127.0.0.1", list));
    assert_true(is_allowed("evil.test", "127.0.0.1", "*"));
    assert_false(is_allowed("not/a/host", "127.0.0.1", "*"));
}

static void the_list_is_checked_when_it_is_set(void **state)
{
    static const char *const bad[] = {
        "http://a.example", "a b", "a.example,,b", "*x", "a:b", "a.*"
    };
    struct err e = { 0 };

    (void)state;
    assert_int_equal(origin_check_setting("", &e), OK);
    assert_int_equal(origin_check_setting("*", &e), OK);
    assert_int_equal(origin_check_setting("a, *.b:80, [::1]", &e), OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(origin_check_setting(bad[i], &e), E_INVALID);
}

static bool is_foreign(const char *host, const char *origin, const char *site)
{
    return origin_is_foreign(str_c(host), origin ? str_c(origin) : str_of(NULL, 0),
                             site ? str_c(site) : str_of(NULL, 0));
}

static void pages_of_other_origins_are_foreign(void **state)
{
    (void)state;
    assert_false(is_foreign("localhost:1", NULL, NULL)); /* no browser */
    assert_false(is_foreign("localhost:1", "http://localhost:1", "same-origin"));
    assert_false(is_foreign("localhost:1", "HTTP://LOCALHOST:1", NULL));
    assert_false(is_foreign("localhost:1", NULL, "none")); /* typed by the user */
    assert_true(is_foreign("localhost:1", "http://localhost:2", NULL));
    assert_true(is_foreign("localhost:1", "http://localhost", NULL));
    assert_true(is_foreign("localhost:1", "http://127.0.0.1:1", NULL));
    assert_true(is_foreign("localhost:1", "http://localhost:1.evil.test", NULL));
    assert_true(is_foreign("localhost:1", "null", NULL));
    assert_true(is_foreign("localhost:1", "", NULL));
    assert_true(is_foreign("localhost:1", "localhost:1", NULL));
    assert_true(is_foreign("localhost:1", "http://localhost:1, http://a", NULL));
    assert_true(is_foreign("localhost:1", NULL, "cross-site"));
    assert_true(is_foreign("localhost:1", NULL, "same-site")); /* another port */
    assert_true(is_foreign("localhost:1", NULL, "something new"));
    assert_true(is_foreign("localhost:1", "http://localhost:1", "cross-site"));
}

static void origins_are_listed_as_browsers_write_them(void **state)
{
    static const char *const bad[] = { "app.example", "https://", "://x",        "https://a/b",
                                       "null",        "a b",      "https://a b", "https://a,null" };
    const char *list = "https://app.example , http://[::1]:3000,app://x";
    struct err e = { 0 };

    (void)state;
    assert_int_equal(origin_check_list(list, &e), OK);
    assert_int_equal(origin_check_list("", &e), OK);
    assert_int_equal(origin_check_list("*", &e), OK);
    assert_true(origin_is_listed(STR("https://app.example"), list));
    assert_true(origin_is_listed(STR("http://[::1]:3000"), list));
    assert_true(origin_is_listed(STR("app://x"), list));
    assert_false(origin_is_listed(STR("http://app.example"), list));
    assert_false(origin_is_listed(STR("https://app.example:443"), list));
    assert_false(origin_is_listed(STR("null"), list));
    assert_false(origin_is_listed(STR(""), list));
    assert_false(origin_is_listed(STR("https://app.example"), ""));
    assert_true(origin_is_listed(STR("null"), "*"));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(origin_check_list(bad[i], &e), E_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_ports_are_split),
        cmocka_unit_test(a_very_long_host_is_none),
        cmocka_unit_test(names_that_cannot_be_rebound_are_allowed),
        cmocka_unit_test(the_host_of_the_server_is_allowed),
        cmocka_unit_test(listed_hosts_are_allowed),
        cmocka_unit_test(the_list_is_checked_when_it_is_set),
        cmocka_unit_test(pages_of_other_origins_are_foreign),
        cmocka_unit_test(origins_are_listed_as_browsers_write_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
