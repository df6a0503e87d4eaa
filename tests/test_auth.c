/* API keys: which tenant a key belongs to, the key file and its errors, and reloading it. Keys
 * are never shown in messages.
 *
 * Key files are written by the test. */
#include "support.h"

#include "base/log.h"
#include "server/auth.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const char *write_key_file(const char *text)
{
    const char *path = temp_file("keys", text, strlen(text));
    chmod(path, 0600);
    return path;
}

static void without_keys_every_request_is_the_default_tenant(void **state)
{
    const struct tenant *t = NULL;
    struct auth *a = NULL;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(auth_open(&a, "", "", &e), OK);
    assert_true(auth_is_open(a));
    assert_int_equal(auth_check(a, STR("Bearer sk-no-key-required"), STR(""), &t, &e), OK);
    assert_string_equal(t->name, "default");
    assert_int_equal(t->index, 0);
    assert_int_equal(auth_check(a, STR("Basic xyz"), STR(""), &t, &e), OK);
    assert_true(t->admin);
    auth_close(a);
}

static void a_key_is_read_from_either_header(void **state)
{
    const struct tenant *t = NULL;
    struct auth *a = NULL;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(auth_open(&a, "sk-one, sk-two", NULL, &e), OK);
    assert_false(auth_is_open(a));
    assert_int_equal(auth_n_keys(a), 2);
    assert_int_equal(auth_check(a, STR("Bearer sk-one"), STR(""), &t, &e), OK);
    assert_string_equal(t->name, "api-key");
    assert_int_equal(auth_check(a, STR("bearer   sk-two"), STR(""), &t, &e), OK);
    assert_string_equal(t->name, "api-key-2");
    assert_int_equal(auth_check(a, STR(""), STR("sk-two"), &t, &e), OK);
    assert_int_equal(auth_check(a, STR(""), STR(""), &t, &e), E_DENIED);
    assert_non_null(strstr(e.msg, "Bearer"));
    assert_int_equal(auth_check(a, STR("Bearer"), STR("sk-one"), &t, &e), E_DENIED);
    assert_int_equal(auth_check(a, STR("Basic sk-one"), STR(""), &t, &e), E_DENIED);
    assert_int_equal(auth_check(a, STR("Bearer sk-on"), STR(""), &t, &e), E_DENIED);
    assert_int_equal(auth_check(a, STR("Bearer sk-one2"), STR(""), &t, &e), E_DENIED);
    assert_null(strstr(e.msg, "sk-one2")); /* the key that was sent is not shown */
    auth_close(a);
}

static void a_file_names_tenants_and_their_limits(void **state)
{
    const char *path =
        write_key_file("# keys\n\nsk-a name=team_a rate=60/min concurrency=4 priority=5 admin\r\n"
                       "  sk-b\tname=team_b rate=2/s\nsk-c\nsk-d name=team_a\n");
    const struct tenant *t = NULL, *team_a;
    struct auth *a = NULL;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(auth_open(&a, NULL, path, &e), OK);
    assert_int_equal(auth_check(a, STR("Bearer sk-a"), STR(""), &team_a, &e), OK);
    assert_string_equal(team_a->name, "team_a");
    assert_int_equal(team_a->rate_per_min, 60);
    assert_int_equal(team_a->concurrency, 4);
    assert_int_equal(team_a->priority_max, 5);
    assert_true(team_a->admin && team_a->index > 0);
    assert_int_equal(auth_check(a, STR("Bearer sk-b"), STR(""), &t, &e), OK);
    assert_int_equal(t->rate_per_min, 120);
    assert_int_equal(t->concurrency, -1);
    assert_false(t->admin);
    assert_int_equal(auth_check(a, STR("Bearer sk-c"), STR(""), &t, &e), OK);
    assert_string_equal(t->name, "line-5");
    assert_int_equal(auth_check(a, STR("Bearer sk-d"), STR(""), &t, &e), OK);
    assert_int_equal(t->index, team_a->index); /* two keys of the same tenant */
    assert_string_equal(auth_name(a, t->index), "team_a");
    assert_true(auth_has_admin(a));
    auth_close(a);
}

static void a_bad_line_is_refused_with_its_number(void **state)
{
    static const char *const bad[][2] = {
        { "sk-a\nsk-b rate=fast\n", ":2: rate is 'fast'" },
        { "sk-a concurrency=-1\n", ":1: concurrency is '-1'" },
        { "sk-a priority=1000\n", ":1: priority" },
        { "sk-a name=\n", ":1: name is ''" },
        { "sk-a name=default\n", ":1: name" },
        { "sk-a name=a/b\n", ":1: name" },
        { "\n\nsk-a nonsense\n", ":3: a word" },
        { "sk-a\nsk-a name=x\n", ":2: the key of 'x' is the same as that of" },
        { "sk-\xc3\xa9\n", ":1: a key must be" },
        { "# nothing\n", "contains no keys" },
        { "", "contains no keys" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct auth *a = NULL;
        struct err e = { 0 };
        assert_int_equal(auth_open(&a, NULL, write_key_file(bad[i][0]), &e), E_INVALID);
        if (!strstr(e.msg, bad[i][1]))
            fail_msg("the error does not contain '%s': '%s'", bad[i][1], e.msg);
        assert_null(strstr(e.msg, "sk-")); /* no key in any message */
        assert_null(a);
    }
}

static void a_missing_file_is_named(void **state)
{
    struct auth *a = NULL;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(auth_open(&a, NULL, "/nowhere/keys", &e), E_NOTFOUND);
    assert_non_null(strstr(e.msg, "/nowhere/keys"));
}

static void a_reload_keeps_indexes_and_survives_a_bad_file(void **state)
{
    const char *path = write_key_file("sk-a name=a\nsk-b name=b\n");
    const struct tenant *t = NULL;
    struct auth *a = NULL;
    struct err e = { 0 };
    uint32_t b;

    (void)state;
    assert_int_equal(auth_open(&a, NULL, path, &e), OK);
    assert_int_equal(auth_check(a, STR("Bearer sk-b"), STR(""), &t, &e), OK);
    b = t->index;
    assert_string_equal(write_key_file("sk-c name=c\nsk-b2 name=b\n"), path);
    assert_int_equal(auth_reload(a, &e), OK);
    assert_int_equal(auth_check(a, STR("Bearer sk-b"), STR(""), &t, &e), E_DENIED);
    assert_int_equal(auth_check(a, STR("Bearer sk-b2"), STR(""), &t, &e), OK);
    assert_int_equal(t->index, b);
    write_key_file("sk-d rate=\n");
    assert_int_equal(auth_reload(a, &e), E_INVALID);
    assert_int_equal(auth_check(a, STR("Bearer sk-b2"), STR(""), &t, &e), OK);
    assert_string_equal(auth_name(a, 1), "a"); /* the name outlives its key */
    auth_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_keys_every_request_is_the_default_tenant),
        cmocka_unit_test(a_key_is_read_from_either_header),
        cmocka_unit_test(a_file_names_tenants_and_their_limits),
        cmocka_unit_test(a_bad_line_is_refused_with_its_number),
        cmocka_unit_test(a_missing_file_is_named),
        cmocka_unit_test(a_reload_keeps_indexes_and_survives_a_bad_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
