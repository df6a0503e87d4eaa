/* Settings of `tern serve` from flags, environment and YAML: names, units, ranges, precedence,
 * errors, reload.
 *
 * Expected values are written by hand. YAML files are temporary. */
#include "support.h"

#include "engine/info.h"
#include "server/settings.h"
#include "server/settings_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ARGS 24

/* Calls settings_load with these words after the command. */
static int load_settings(struct settings *s, struct err *e, const char *words)
{
    static char copy[2048];
    char *argv[MAX_ARGS] = { "serve" }, *word;
    bool helped;
    int n = 1;

    snprintf(copy, sizeof copy, "%s", words);
    for (word = strtok(copy, " "); word && n < MAX_ARGS; word = strtok(NULL, " ")) argv[n++] = word;
    return settings_load(s, n, argv, &helped, e);
}

static void assert_accepted(struct settings *s, const char *words)
{
    struct err e = { 0 };
    if (load_settings(s, &e, words) != OK) fail_msg("'%s': %s", words, e.msg);
}

static void assert_refused(const char *words, const char *says)
{
    struct settings s;
    struct err e = { 0 };

    if (load_settings(&s, &e, words) == OK) fail_msg("'%s' was accepted", words);
    if (!strstr(e.msg, says))
        fail_msg("'%s': the error does not contain '%s': '%s'", words, says, e.msg);
}

static const struct knob *find_knob(const char *name)
{
    const struct knob *k = knob_find(str_c(name), false);
    assert_non_null(k);
    return k;
}

static const char *yaml(const char *text) { return temp_file("tern.yaml", text, strlen(text)); }

static void every_knob_has_a_valid_default_and_help(void **state)
{
    struct settings s;

    (void)state;
    assert_accepted(&s, "");
    assert_int_equal(s.port, 8080);
    assert_string_equal(s.host, "127.0.0.1");
    assert_int_equal(s.max_body, 16 << 20);
    assert_int_equal(s.drain_timeout_ms, 30000);
    assert_true(s.prefix_cache && s.warm && !s.cors && !s.log_prompts && !s.allow_open);
    for (const struct knob *k = settings_knobs; k->name; k++) {
        assert_true(k->help && *k->help);
        assert_true(k->at < sizeof s);
        assert_int_equal(settings_from(&s, k), FROM_DEFAULT);
        for (const struct knob *o = settings_knobs; o < k; o++)
            assert_true(strcmp(o->name, k->name) && o->at != k->at);
    }
    settings_release(&s);
}

static void flags_have_the_names_of_other_servers(void **state)
{
    struct settings s;

    (void)state;
    assert_accepted(
        &s,
        "-m a.gguf -c 32K -np 64 -b 2048 -t 2 -ctk q8_0 -a x --port=9000 --cors --no-prefix-cache "
        "--warm=off");
    assert_int_equal(s.ctx, 32768);
    assert_int_equal(s.max_seqs, 64);
    assert_int_equal(s.max_batch, 2048);
    assert_int_equal(s.threads, 2);
    assert_string_equal(s.kv_type, "q8_0");
    assert_int_equal(s.port, 9000);
    assert_true(s.cors && !s.prefix_cache && !s.warm);
    settings_release(&s);
    assert_accepted(&s, "--warm false --cors true a.gguf --log-prompts");
    assert_true(s.cors && !s.warm && s.log_prompts);
    assert_int_equal(s.n_models, 1);
    settings_release(&s);
    assert_accepted(
        &s, "a.gguf --max-model-len 1k --max-num-seqs 3 --max_num_batched_tokens 7 "
            "--kv-cache-dtype f16 "
            "--served-model-name y --ssl-cert-file c --ssl-key-file k --shutdown-timeout 5");
    assert_string_equal(s.models[0], "a.gguf");
    assert_string_equal(s.aliases[0], "y");
    assert_int_equal(s.ctx, 1024);
    assert_int_equal(s.max_seqs, 3);
    assert_int_equal(s.max_batch, 7);
    assert_string_equal(s.tls_cert, "c");
    assert_int_equal(s.drain_timeout_ms, 5000);
    settings_release(&s);
}

static void sizes_and_times_have_units(void **state)
{
    static const struct {
        const char *text;
        int64_t bytes;
    } sizes[] = {
        { "65536", 65536 },      { "64K", 65536 },  { "16M", 16 << 20 }, { "2G", 2ll << 30 },
        { "1.5GiB", 3ll << 29 }, { "64kb", 65536 }, { "1MB", 1 << 20 },  { "0.5m", 1 << 19 },
    };
    struct settings s;
    char words[64];

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        snprintf(words, sizeof words, "--max-body %s", sizes[i].text);
        assert_accepted(&s, words);
        assert_int_equal(s.max_body, sizes[i].bytes);
        settings_release(&s);
    }
    assert_accepted(
        &s, "--drain-timeout 500ms --idle-timeout 2m --step-ms 50 --age-ms 2s --watchdog 0");
    assert_int_equal(s.drain_timeout_ms, 500);
    assert_int_equal(s.idle_timeout_ms, 120000);
    assert_int_equal(s.step_ms, 50);
    assert_int_equal(s.age_ms, 2000);
    assert_int_equal(s.watchdog_ms, 0);
    settings_release(&s);
}

static void memory_limits_may_name_devices(void **state)
{
    struct membudget_limit l[MEMBUDGET_LIMITS];
    struct settings s;
    int n;

    (void)state;
    assert_accepted(&s, "--memory-limit cuda=40G,cpu=8G,cuda:1=20G");
    assert_int_equal(s.memory_limit, 8ll << 30);
    assert_int_equal(settings_device_limits(&s, l, &n, NULL), OK);
    assert_int_equal(n, 2);
    assert_int_equal(membudget_limit_of(l, n, "cuda:0"), 40ull << 30);
    assert_int_equal(membudget_limit_of(l, n, "cuda:1"), 20ull << 30);
    assert_int_equal(membudget_limit_of(l, n, "cpu"), 0);
    settings_release(&s);
    assert_accepted(&s, "--memory-limit cuda=1M"); /* the host's is as it was */
    assert_int_equal(s.memory_limit, -1);
    settings_release(&s);
    assert_accepted(&s, "--memory-limit 8G --device-memory-limit cuda:3=1.5G");
    assert_int_equal(settings_device_limits(&s, l, &n, NULL), OK);
    assert_int_equal(membudget_limit_of(l, n, "cuda:3"), 3ull << 29);
    assert_int_equal(membudget_limit_of(l, n, "cuda:0"), 0);
    settings_release(&s);
    assert_refused("--memory-limit cuda=40G,8G", "'8G' must be DEVICE=SIZE");
    assert_refused("--memory-limit cuda=x", "'cuda=x' must be DEVICE=SIZE");
    assert_refused("--memory-limit cuda=0", "'cuda=0' must be");
    assert_refused("--memory-limit =4G", "'=4G' must be");
    assert_refused("--memory-limit cpu=x", "--memory-limit is 'x'");
    assert_refused("--memory-limit cpu=1G,cpu=2G", "each device once");
    assert_refused("--memory-limit cuda=1G,cuda=2G", "each device once");
    assert_refused("--device-memory-limit rocket=2G", "'rocket=2G' must be");
}

static void a_bad_flag_is_refused_with_what_is_allowed(void **state)
{
    (void)state;
    assert_refused("--max-batch abc",
                   "--max-batch is 'abc': it must be an integer from 0 to 65536");
    assert_refused("-np 5000", "-np is '5000'");
    assert_refused("--port 65536", "from 0 to 65535");
    assert_refused("--port 1.5", "--port is '1.5'");
    assert_refused("--port", "--port needs a value");
    assert_refused("--max-body 1X", "64K");
    assert_refused("--max-body 1KQ", "'1KQ'");
    assert_refused("--max-body -1K", "'-1K'");
    assert_refused("--max-body 10000T", "to 4G");
    assert_refused("--kv-type q3", "one of auto, f16, bf16, q8_0, f8, fp8, f32");
    assert_refused("--metrics-compat vllm,graphite", "any of vllm, llamacpp");
    assert_refused("--cors=maybe", "true or false");
    assert_refused("--drain-timeout 5y", "a time such as");
    assert_refused("--kv-overcommit 0.5", "--kv-overcommit is '0.5'");
    assert_refused("--max-bacth 3", "unknown flag '--max-bacth'; did you mean --max-batch?");
    assert_refused("--zzzzzz 3", "unknown flag '--zzzzzz'");
    assert_refused("--no-port", "unknown flag '--no-port'");
    assert_refused("-m a -a x,y", "alias 'y' has no model");
    assert_refused("--tls-cert c", "TLS needs both");
    assert_refused("--host= --port 1", "listen nowhere");
    assert_refused("--ctx 1", "ctx is 1");
}

static void flags_override_variables_and_variables_override_the_file(void **state)
{
    struct settings s;
    char words[256];

    (void)state;
    setenv("TERN_MAX_BATCH", "11", 1);
    setenv("TERN_MAX_SEQS", "12", 1);
    setenv("TERN_API_KEY", "sk-secret", 1);
    setenv("TERN_PORT", "", 1); /* empty: treated as unset */
    snprintf(words, sizeof words, "--config %s --max-batch 10",
             yaml("max-batch: 1\nmax-seqs: 2\nage-ms: 3\n"));
    assert_accepted(&s, words);
    assert_int_equal(s.max_batch, 10);
    assert_int_equal(s.max_seqs, 12);
    assert_int_equal(s.age_ms, 3);
    assert_int_equal(settings_from(&s, find_knob("max-batch")), FROM_FLAG);
    assert_int_equal(settings_from(&s, find_knob("max-seqs")), FROM_ENV);
    assert_int_equal(settings_from(&s, find_knob("age-ms")), FROM_FILE);
    assert_int_equal(settings_from(&s, find_knob("port")), FROM_DEFAULT);
    settings_release(&s);
    setenv("TERN_MAX_SEQS", "many", 1);
    assert_refused("--max-seqs 5",
                   "TERN_MAX_SEQS is 'many'"); /* refused although the flag overrides it */
    unsetenv("TERN_MAX_BATCH"), unsetenv("TERN_MAX_SEQS"), unsetenv("TERN_API_KEY"),
        unsetenv("TERN_PORT");
}

static void models_are_taken_from_one_source(void **state)
{
    struct settings s;
    char words[256];

    (void)state;
    setenv("TERN_MODEL", "e.gguf, f.gguf", 1);
    assert_accepted(&s, "");
    assert_int_equal(s.n_models, 2);
    assert_string_equal(s.models[1], "f.gguf");
    settings_release(&s);
    assert_accepted(&s, "-m a,b.gguf -m c.gguf -a one,two");
    assert_int_equal(s.n_models, 2);
    assert_string_equal(s.models[0], "a,b.gguf");
    assert_string_equal(s.aliases[1], "two");
    settings_release(&s);
    unsetenv("TERN_MODEL");
    snprintf(words, sizeof words, "--config %s",
             yaml("models:\n  - a.gguf\n  - {path: b.gguf, alias: bee}\n  - alias: sea\n    path: "
                  "c.gguf\n"));
    assert_accepted(&s, words);
    assert_int_equal(s.n_models, 3);
    assert_int_equal(s.n_aliases, 3);
    assert_string_equal(s.aliases[0], "");
    assert_string_equal(s.aliases[1], "bee");
    assert_string_equal(s.models[2], "c.gguf");
    settings_release(&s);
    snprintf(words, sizeof words, "-m x.gguf --config %s",
             yaml("models: [{path: b.gguf, alias: bee}]\n"));
    assert_accepted(&s, words);
    assert_int_equal(s.n_models, 1);
    assert_int_equal(s.n_aliases, 0); /* the file's alias was for the file's model */
    settings_release(&s);
}

static void a_yaml_file_is_refused_with_file_and_line(void **state)
{
    static const char *const cases[][2] = {
        { "port: 1\nmax-batch: lots\n", "tern.yaml:2: max-batch is 'lots': it must be an integer" },
        { "port: 99999\n", "tern.yaml:1: port is '99999'" },
        { "\n\nmax-bacth: 3\n", "tern.yaml:3: unknown key 'max-bacth'; did you mean max-batch?" },
        { "server:\n  port: 1\n", "tern.yaml:1: unknown key 'server'" },
        { "port: [1, 2]\n", "port is a list" },
        { "port: {a: 1}\n", "port is a mapping" },
        { "port: 1\nport: 2\n", "tern.yaml:2: port was given in line 1" },
        { "max_batch: 1\nmax-num-batched-tokens: 2\n", "max-batch was given in line 1" },
        { "- port\n", "settings are a mapping" },
        { "port\n", "settings are a mapping" },
        { "port: 1\n---\nport: 2\n", "a second document" },
        { "a: &x 1\nport: *x\n", "unknown key 'a'" },
        { "port: &x 1\nmax-batch: *x\n", "references are not supported" },
        { "port: \"1\n", "tern.yaml:" },
        { "models:\n- b\n- {path: a, size: 3}\n",
          "tern.yaml:3: model 2 'a': unknown key 'size': a model has path, alias, ctx" },
        { "models:\n- {path: a, ctx: many}\n",
          "tern.yaml:2: model 1 'a': ctx is 'many': it must be a size such as 65536" },
        { "models:\n- {path: a,\n   kv-share: 1.5}\n",
          "tern.yaml:3: model 1 'a': kv-share is '1.5': it must be a number from 0.001 to 1" },
        { "models: [{path: a, kv-share: 0}]\n", "kv-share is '0'" },
        { "models: [{path: a, max-seqs: 4097}]\n", "an integer from 0 to 4096" },
        { "models: [{path: a, priority: 101}]\n", "an integer from -100 to 100" },
        { "models: [{path: a, keep-alive: soon}]\n", "keep-alive is 'soon': it must be a time" },
        { "models: [{path: a, pinned: maybe}]\n", "pinned is 'maybe': it must be true or false" },
        { "models: [{path: a, threads: -1}]\n", "threads is '-1'" },
        { "models: [{path: a, device: [cpu]}]\n", "device is a list: it must be a text" },
        { "models: [{path: a, ctx: {x: 1}}]\n", "ctx is a mapping" },
        { "models: [{path: a, ctx: 1K, ctx_size: 2K}]\n", "ctx was given twice" },
        { "models: [{path: a, path: b}]\n", "path was given twice" },
        { "models: [{path: \"a\\0b\"}]\n", "path is 'a" },
        { "models: [{path: [a]}]\n", "model 1: path is a list: it must be a text" },
        { "models: [{path: ''}]\n", "path is '': it must be a text that is not empty" },
        { "models: [{path: a, alias: {b: c}}]\n", "alias is a mapping: it must be a text" },
        { "models: [{path: a, alias: [b, [c]]}]\n", "alias is a list" },
        { "models: [{path: a, alias: [1,2,3,4,5,6,7,8,9]}]\n", "alias has more than 8 names" },
        { "models: [{path: a, [b]: c}]\n", "a key is not a text" },
        { "models: {path: a}\n", "models is a mapping: it must be a list" },
        { "models: [{alias: a}]\n", "model 1 has no path: expected" },
        { "models: [[a]]\n", "models is a list of lists: it must be a list" },
        { "config: other.yaml\n", "config is not allowed inside a config file" },
        { "[1]: 2\n", "a key is not a text" },
        { "port: 1\n\tx: 2\n", "tern.yaml:2" },
    };
    char words[256];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(words, sizeof words, "--config %s", yaml(cases[i][0]));
        assert_refused(words, cases[i][1]);
    }
    assert_refused("--config /nowhere/tern.yaml", "/nowhere/tern.yaml");
}

static void yaml_accepts_common_forms(void **state)
{
    struct settings s;
    char words[256];

    (void)state;
    snprintf(
        words, sizeof words, "--config %s",
        yaml(
            "# comment\nport: \"9001\"\nmax_body: 2M\ncors: yes\nhost: ~\nsocket:\nmetrics-compat: "
            "[vllm, llamacpp]\n"
            "drain-timeout: 3\nkv_cache_dtype: f32\nmodel: one.gguf\n"));
    assert_accepted(&s, words);
    assert_int_equal(s.port, 9001);
    assert_int_equal(s.max_body, 2 << 20);
    assert_true(s.cors);
    assert_string_equal(s.host, "127.0.0.1");
    assert_string_equal(s.metrics_compat, "vllm,llamacpp");
    assert_int_equal(s.drain_timeout_ms, 3000);
    assert_string_equal(s.kv_type, "f32");
    assert_string_equal(s.models[0], "one.gguf");
    settings_release(&s);
    snprintf(words, sizeof words, "--config %s", yaml("# nothing\n"));
    assert_accepted(&s, words);
    settings_release(&s);
    snprintf(words, sizeof words, "--config %s", yaml(""));
    assert_accepted(&s, words);
    settings_release(&s);
}

static void a_listed_model_has_its_own_settings(void **state)
{
    struct settings s;
    struct registry_item items[SETTINGS_MODELS];
    const struct model_opt *o;
    struct buf out = { 0 };
    char words[256];

    (void)state;
    snprintf(words, sizeof words, "--config %s",
             yaml("models:\n  - plain.gguf\n  - path: big.gguf\n    alias: [big, large, huge]\n"
                  "    ctx: 32K\n    kv_tokens: 0\n    kv-share: 0.25\n    max-seqs: 8\n"
                  "    priority: -5\n    keep-alive: -1\n    preload: yes\n    pinned: off\n"
                  "    device: 'cuda:1'\n    isolate: true\n    threads: 4\n"
                  "    chat-template: t.jinja\n    verify-manifest: warn\n"
                  "    rerank: generative\n    model-key-file: k\n    model-key-command: c\n    "
                  "tier: light\n  - "
                  "{path: c.gguf, "
                  "keep_alive: 90, ctx: ~}\n"
                  "  - {aliases: d, path: d.gguf, keep-alive: 0}\n"));
    assert_accepted(&s, words);
    assert_int_equal(settings_items(&s, items), 4);
    assert_string_equal(items[0].path, "plain.gguf");
    assert_int_equal(items[0].origin, REGISTRY_CONFIG);
    assert_non_null(strstr(items[0].where, "tern.yaml:2"));
    assert_int_equal(items[0].opt.given, 0);
    assert_string_equal(items[0].aliases[0], "");
    o = &items[1].opt;
    assert_int_equal(o->given, (1u << MODEL_N_KEYS) - 1);
    assert_int_equal(items[1].n_aliases, 3);
    assert_string_equal(items[1].aliases[0], "big");
    assert_string_equal(items[1].aliases[2], "huge");
    assert_int_equal(o->ctx, 32768);
    assert_int_equal(o->kv_tokens, 0);
    assert_true(o->kv_share == 0.25);
    assert_int_equal(o->max_seqs, 8);
    assert_int_equal(o->priority, -5);
    assert_int_equal(o->keep_alive_ms, MODEL_FOREVER);
    assert_true(o->preload && o->isolate && !o->pinned);
    assert_string_equal(o->device, "cuda:1");
    assert_int_equal(o->threads, 4);
    assert_string_equal(o->chat_template, "t.jinja");
    assert_string_equal(o->verify_manifest, "warn");
    assert_string_equal(o->rerank, "generative");
    assert_string_equal(o->key_file, "k");
    assert_string_equal(o->key_command, "c");
    assert_string_equal(o->tier, "light");
    assert_int_equal(items[2].opt.given, 1u << MODEL_KEEP_ALIVE); /* null is "not set" */
    assert_int_equal(items[2].opt.keep_alive_ms, 90000);
    assert_int_equal(items[3].opt.keep_alive_ms, 0);
    assert_true(model_has(&items[3].opt, MODEL_KEEP_ALIVE));
    assert_string_equal(items[3].aliases[0], "d");
    assert_string_equal(settings_find_alias(&s, "large"), "big.gguf");
    assert_null(settings_find_alias(&s, "plain"));
    settings_json(&s, NULL, &out);
    assert_non_null(strstr(buf_cstr(&out), "[\"plain.gguf\",{\"path\":\"big.gguf\",\"aliases\":"
                                           "[\"large\",\"huge\"],\"ctx\":32768,"));
    assert_non_null(strstr(buf_cstr(&out), "{\"path\":\"c.gguf\",\"keep-alive\":90}"));
    assert_non_null(strstr(buf_cstr(&out), "\"keep-alive\":\"forever\""));
    buf_release(&out);
    settings_release(&s);
    snprintf(words, sizeof words, "-m flag.gguf -a f --config %s",
             yaml("models:\n- {path: a, alias: [b, c], ctx: 1K}\n"));
    assert_accepted(&s, words); /* flags override the list, and its settings with it */
    assert_int_equal(settings_items(&s, items), 1);
    assert_string_equal(items[0].path, "flag.gguf");
    assert_int_equal(items[0].n_aliases, 1);
    assert_int_equal(items[0].opt.given, 0);
    assert_int_equal(items[0].origin, REGISTRY_FLAG);
    assert_null(items[0].where);
    settings_release(&s);
}

static void a_model_accepts_the_values_that_the_server_does(void **state)
{
    (void)state;
    for (const struct knob *k = model_knobs; k->name; k++) {
        const struct knob *of_server = knob_find(str_c(k->name), false);

        assert_ptr_equal(model_knob_find(str_c(k->name)), k);
        if (!of_server || k == &model_knobs[MODEL_PRELOAD]) continue; /* a list of names there */
        assert_int_equal(k->kind, of_server->kind);
        assert_true(k->least == of_server->least && k->most == of_server->most);
        assert_true(!k->words == !of_server->words);
    }
    assert_ptr_equal(model_knob_find(STR("max-model-len")), &model_knobs[MODEL_CTX]);
    assert_ptr_equal(model_knob_find(STR("kv_share")), &model_knobs[MODEL_KV_SHARE]);
    assert_null(model_knob_find(STR("port")));
}

static void a_folder_of_models_has_settings(void **state)
{
    struct settings s;
    struct buf out = { 0 };

    (void)state;
    assert_accepted(&s, "");
    assert_string_equal(s.models_dir, "");
    assert_int_equal(s.keep_alive_ms, 300000);
    assert_int_equal(s.models_max, 0);
    assert_false(s.isolate);
    settings_release(&s);
    assert_accepted(&s, "--models-dir /m --keep-alive -1 --models-max 3 --isolate --preload a,b");
    assert_string_equal(s.models_dir, "/m");
    assert_int_equal(s.keep_alive_ms, MODEL_FOREVER);
    assert_int_equal(s.models_max, 3);
    assert_true(s.isolate);
    assert_string_equal(s.preload, "a,b");
    settings_json(&s, NULL, &out);
    assert_non_null(strstr(buf_cstr(&out), "\"keep-alive\":{\"value\":\"forever\""));
    buf_release(&out);
    settings_release(&s);
    assert_accepted(&s, "--keep-alive none");
    assert_int_equal(s.keep_alive_ms, 0);
    settings_release(&s);
    assert_accepted(&s, "--keep-alive forever");
    assert_int_equal(s.keep_alive_ms, MODEL_FOREVER);
    settings_release(&s);
    assert_refused("--keep-alive often", "a time such as 500ms, 30s, 2m from 0 s");
    assert_refused("--drain-timeout -1", "--drain-timeout is '-1'");
    assert_refused("--models-dir /m -a x", "alias 'x' has no model: 1 aliases for 0 models");
}

static void json_shows_every_knob_and_no_secret(void **state)
{
    struct settings s;
    struct buf out = { 0 };

    (void)state;
    assert_accepted(&s, "-m a.gguf --api-key sk-secret --max-batch 64 --drain-timeout 1500ms");
    settings_json(&s, NULL, &out);
    assert_null(strstr(buf_cstr(&out), "sk-secret"));
    assert_non_null(
        strstr(buf_cstr(&out),
               "\"api-key\":{\"value\":\"(set)\",\"effective\":\"(set)\",\"from\":\"flag\"}"));
    assert_non_null(
        strstr(buf_cstr(&out), "\"max-batch\":{\"value\":64,\"effective\":64,\"from\":\"flag\"}"));
    assert_non_null(strstr(
        buf_cstr(&out), "\"drain-timeout\":{\"value\":1.5,\"effective\":1.5,\"from\":\"flag\"}"));
    assert_non_null(
        strstr(buf_cstr(&out),
               "\"model\":{\"value\":[\"a.gguf\"],\"effective\":[\"a.gguf\"],\"from\":\"flag\"}"));
    for (const struct knob *k = settings_knobs; k->name; k++) {
        char name[64];
        snprintf(name, sizeof name, "\"%s\":{\"value\":", k->name);
        assert_non_null(strstr(buf_cstr(&out), name));
    }
    buf_release(&out);
    settings_release(&s);
}

static void a_reload_applies_reloadable_knobs_only(void **state)
{
    const char *path = yaml("rate-per-min: 10\nmax-batch: 5\nlog-level: warn\n");
    struct settings s;
    struct buf changed = { 0 };
    struct err e = { 0 };
    char words[256];

    (void)state;
    snprintf(words, sizeof words, "--concurrency 3 --config %s", path);
    assert_accepted(&s, words);
    assert_string_equal(yaml("rate-per-min: 20\nmax-batch: 6\nconcurrency: 9\n"), path);
    assert_int_equal(settings_reload(&s, &changed, &e), OK);
    assert_int_equal(s.rate_per_min, 20);
    assert_int_equal(s.concurrency, 3); /* a flag is not reloaded */
    assert_int_equal(s.max_batch, 5);
    assert_string_equal(s.log_level, "info"); /* its line was removed: the default applies */
    assert_string_equal(buf_cstr(&changed), "rate-per-min, max-batch (needs a restart), log-level");
    yaml("rate-per-min: -1\nlog-level: error\n");
    buf_clear(&changed);
    assert_int_equal(settings_reload(&s, &changed, &e), E_INVALID);
    assert_int_equal(s.rate_per_min, 20);
    assert_string_equal(s.log_level, "info");
    assert_int_equal(changed.n, 0);
    buf_release(&changed);
    settings_release(&s);
}

static bool json_has(const struct settings *s, const struct settings_facts *f, const char *want)
{
    struct buf out = { 0 };
    bool has;

    settings_json(s, f, &out);
    has = strstr(buf_cstr(&out), want) != NULL;
    if (!has) print_message("no '%s' in %s\n", want, buf_cstr(&out));
    buf_release(&out);
    return has;
}

/* Without a model, sizes have the limits that they have in an engine. */
static void effective_sizes_are_those_of_an_engine(void **state)
{
    struct settings s;

    (void)state;
    assert_accepted(&s, "--max-seqs 1024 --max-batch 7 --ctx 100");
    assert_true(json_has(&s, NULL, "\"max-seqs\":{\"value\":1024,\"effective\":7,"));
    assert_true(json_has(&s, NULL, "\"max-requests\":{\"value\":0,\"effective\":112,"));
    assert_true(json_has(&s, NULL, "\"max-queue-tokens\":{\"value\":0,\"effective\":6400,"));
    assert_true(json_has(&s, NULL, "\"batch-inflight\":{\"value\":0,\"effective\":3,"));
    settings_release(&s);
    assert_accepted(&s, "--kv-tokens 64 --ctx 96 --max-requests 3");
    assert_true(json_has(&s, NULL, "\"kv-tokens\":{\"value\":64,\"effective\":96,"));
    assert_true(json_has(&s, NULL, "\"max-batch\":{\"value\":0,\"effective\":96,"));
    assert_true(json_has(&s, NULL, "\"max-requests\":{\"value\":3,\"effective\":16,"));
    settings_release(&s);
    assert_accepted(&s, "--device cuda");
    assert_true(json_has(&s, NULL, "\"max-seqs\":{\"value\":0,\"effective\":\"16 to 256"));
    assert_true(json_has(&s, NULL, "\"max-batch\":{\"value\":0,\"effective\":2048,"));
    assert_true(json_has(&s, NULL, "\"max-requests\":{\"value\":0,\"effective\":\"16 times"));
    settings_release(&s);
}

static void effective_values_are_numbers_or_words(void **state)
{
    struct engine_info model = { .kv_type = "f16",
                                 .device = { { .name = "cpu", .n_layers = 4 },
                                             { .name = "cuda:0", .n_layers = 20 } },
                                 .n_devices = 2,
                                 .opt = { .n_ctx = 4096,
                                          .kv_tokens = 8192,
                                          .max_batch = 512,
                                          .max_seqs = 16,
                                          .max_requests = 256,
                                          .max_queue_tokens = 1000 } };
    struct settings_facts machine = { .n_cores = 6, .numa = "spread", .memory = 1 << 30 },
                          server = machine;
    struct settings s;

    (void)state;
    server.port = 4711, server.max_conns = 99, server.has_keys = true, server.model = &model;
    assert_accepted(&s, "--port 0");
    s.isa_auto = "avx2";
    assert_true(json_has(&s, &machine, "\"threads\":{\"value\":0,\"effective\":6,"));
    assert_true(json_has(&s, &machine, "\"isa\":{\"value\":\"auto\",\"effective\":\"avx2\""));
    assert_true(json_has(&s, &machine, "\"numa\":{\"value\":\"auto\",\"effective\":\"spread\""));
    assert_true(
        json_has(&s, &machine, "\"memory-limit\":{\"value\":\"auto\",\"effective\":1073741824"));
    assert_true(json_has(&s, &machine, "\"max-requests\":{\"value\":0,\"effective\":256"));
    assert_true(
        json_has(&s, &machine, "\"max-tenant-bodies\":{\"value\":0,\"effective\":\"unlimited\""));
    assert_true(json_has(&s, &machine, "\"ctx\":{\"value\":0,\"effective\":\"as trained"));
    assert_true(json_has(&s, &machine, "\"port\":{\"value\":0,\"effective\":\"any free port\""));
    assert_true(json_has(&s, &machine, "\"gpu-layers\":{\"value\":-1,\"effective\":0"));
    assert_true(json_has(&s, &server, "\"ctx\":{\"value\":0,\"effective\":4096"));
    assert_true(json_has(&s, &server, "\"port\":{\"value\":0,\"effective\":4711"));
    assert_true(json_has(&s, &server, "\"gpu-layers\":{\"value\":-1,\"effective\":20"));
    assert_true(json_has(&s, &server, "\"device\":{\"value\":\"cpu\",\"effective\":\"cuda:0\""));
    assert_true(json_has(&s, &server, "\"max-connections\":{\"value\":1024,\"effective\":99"));
    assert_true(
        json_has(&s, &server, "\"max-tenant-bodies\":{\"value\":0,\"effective\":134217728"));
    settings_release(&s);
    assert_accepted(&s, "--device cuda -ngl 0");
    assert_true(json_has(&s, NULL, "\"device\":{\"value\":\"cuda\",\"effective\":\"cpu\""));
    settings_release(&s);
}

static void the_defaults_are_a_valid_settings_file(void **state)
{
    struct settings s, again;
    struct buf out = { 0 };
    struct err e = { 0 };
    char words[400];

    (void)state;
    assert_int_equal(settings_defaults(&s, &e), OK);
    settings_write_yaml(&s, &out);
    for (const struct knob *k = settings_knobs; k->name; k++)
        assert_non_null(strstr(buf_cstr(&out), k->name));
    snprintf(words, sizeof words, "--config %s", yaml(buf_cstr(&out)));
    assert_accepted(&again, words);
    for (const struct knob *k = settings_knobs; k->name; k++)
        if (strcmp(k->name, "config") != 0) assert_true(knob_is_equal(&s, &again, k));
    settings_release(&again);
    settings_release(&s);
    buf_release(&out);
}

static void help_can_be_searched_by_word(void **state)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);

    (void)state;
    settings_help(f, STR("TLS"), false);
    fclose(f);
    assert_non_null(strstr(text, "--tls-cert"));
    assert_non_null(strstr(text, "TERN_TLS_KEY"));
    assert_null(strstr(text, "--max-batch"));
    free(text);
    f = open_memstream(&text, &n);
    settings_help(f, STR(""),
                  false); /* a setting is in the help of serve, of gateway, or of both */
    settings_help(f, STR(""), true);
    fclose(f);
    for (const struct knob *k = settings_knobs; k->name; k++)
        assert_non_null(strstr(text, k->name));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_knob_has_a_valid_default_and_help),
        cmocka_unit_test(flags_have_the_names_of_other_servers),
        cmocka_unit_test(sizes_and_times_have_units),
        cmocka_unit_test(memory_limits_may_name_devices),
        cmocka_unit_test(a_bad_flag_is_refused_with_what_is_allowed),
        cmocka_unit_test(flags_override_variables_and_variables_override_the_file),
        cmocka_unit_test(models_are_taken_from_one_source),
        cmocka_unit_test(a_yaml_file_is_refused_with_file_and_line),
        cmocka_unit_test(yaml_accepts_common_forms),
        cmocka_unit_test(a_listed_model_has_its_own_settings),
        cmocka_unit_test(a_model_accepts_the_values_that_the_server_does),
        cmocka_unit_test(a_folder_of_models_has_settings),
        cmocka_unit_test(json_shows_every_knob_and_no_secret),
        cmocka_unit_test(a_reload_applies_reloadable_knobs_only),
        cmocka_unit_test(effective_values_are_numbers_or_words),
        cmocka_unit_test(effective_sizes_are_those_of_an_engine),
        cmocka_unit_test(the_defaults_are_a_valid_settings_file),
        cmocka_unit_test(help_can_be_searched_by_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
