/* Settings, API keys and limits without memory and with files that cannot be read. */
#include "fault.h"

#include "base/buf.h"
#include "base/log.h"
#include "server/auth.h"
#include "server/limit.h"
#include "server/settings.h"

#include <stdio.h>
#include <stdlib.h>

static int load(int argc, char **argv, struct err *e)
{
    struct settings s;
    struct buf json = { 0 };
    bool helped;
    int rc = settings_load(&s, argc, argv, &helped, e);

    if (rc != OK) return rc;
    settings_json(&s, NULL, &json);
    rc = buf_check(&json, e);
    buf_release(&json);
    settings_release(&s);
    return rc;
}

static int load_flags(void *arg, struct err *e)
{
    char *argv[] = { "serve",  "-m",     "a.gguf",  "-m",  "b.gguf", "-a",        "one,two",
                     "--cors", "--host", "0.0.0.0", "-np", "4",      "--kv-type", "q8_0" };

    (void)arg;
    return load(sizeof argv / sizeof *argv, argv, e);
}

static int load_env(void *arg, struct err *e)
{
    char *argv[] = { "serve" };

    (void)arg;
    return load(1, argv, e);
}

static int load_yaml(void *path, struct err *e)
{
    char *argv[] = { "serve", "--config", path };
    return load(3, argv, e);
}

static int reload(void *path, struct err *e)
{
    char *argv[] = { "serve", "--config", path };
    struct settings s;
    struct buf changed = { 0 };
    bool helped;
    int rc = settings_load(&s, 3, argv, &helped, e);

    if (rc != OK) return rc;
    s.rate_per_min = 1; /* as if the file had changed */
    rc = settings_reload(&s, &changed, e);
    assert_int_equal(s.rate_per_min, rc == OK ? 20 : 1); /* all or nothing */
    if (rc == OK) rc = buf_check(&changed, e);
    buf_release(&changed);
    settings_release(&s);
    return rc;
}

static int refuse_flag(void *arg, struct err *e)
{
    char *argv[] = { "serve", "--max-batch", "lots" };
    int rc = load(3, argv, e);

    (void)arg;
    return rc == E_INVALID ? OK : rc; /* the message needs memory */
}

static int use_keys(void *path, struct err *e)
{
    struct auth *a = NULL;
    const struct tenant *t = NULL;
    int rc = auth_open(&a, "sk-flag,sk-other", path, e);

    if (rc == OK) rc = auth_check(a, STR("Bearer sk-a"), STR(""), &t, e);
    if (rc == OK) rc = auth_reload(a, e);
    if (a) assert_int_equal(auth_n_keys(a), 4); /* also after a reload that failed */
    auth_close(a);
    return rc;
}

static int use_limits(void *arg, struct err *e)
{
    struct limit *l = NULL;
    int rc = limit_open(&l, e);

    (void)arg;
    for (uint32_t t = 0; t < 100 && rc == OK; t += 33) {
        if ((rc = limit_take(l, t, 60, 2, 1000000000, e)) == OK) limit_give(l, t);
    }
    limit_close(l);
    return rc;
}

static void settings_report_every_failure(void **state)
{
    static const char yaml[] =
        "models:\n  - a.gguf\n  - {path: b.gguf, alias: [bee, wasp], device: cpu,\n"
        "     chat-template: t.jinja, ctx: 2K}\nport: 9001\n"
        "rate-per-min: 20\nmetrics-compat: [vllm, llamacpp]\n";
    char *path = (char *)temp_file("tern.yaml", yaml, sizeof yaml - 1);

    (void)state;
    fault_run("settings from flags", load_flags, NULL);
    setenv("TERN_MODEL", "e.gguf,f.gguf", 1);
    setenv("TERN_HOST", "127.0.0.2", 1);
    fault_run("settings from the environment", load_env, NULL);
    unsetenv("TERN_MODEL");
    unsetenv("TERN_HOST");
    fault_run("settings from YAML", load_yaml, path);
    fault_run("settings reloaded", reload, path);
    fault_run("a setting refused", refuse_flag, NULL);
}

static void keys_and_limits_report_every_failure(void **state)
{
    static const char keys[] = "sk-a name=a rate=60/min\nsk-b name=b concurrency=2 admin\n";

    (void)state;
    fault_run("API keys", use_keys, (void *)temp_file("keys", keys, sizeof keys - 1));
    fault_run("limits", use_limits, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(settings_report_every_failure),
                                        cmocka_unit_test(keys_and_limits_report_every_failure) };

    fault_init();
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
