/* cmd_config.c - tern config: the settings of the server, without starting one, or of a running one.
 *
 * With --url the flags are those of remote.h, and the server answers. Without it every flag of
 * `tern serve` is accepted and read as there: flags, environment, file. */
#include "base/jsonr.h"
#include "base/mem.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/remote.h"
#include "cli/servecheck.h"
#include "server/facts.h"

#include <unistd.h>

static const struct verb verb = {
    "config",
    "tern config show|check|defaults [--json] [--url URL | flags of tern serve]",
    "The settings of the server: every one with its value, the effective value (what 0 and auto "
    "stand\n"
    "for) and its source: flag, env, file or default.\n\n"
    "  show      the settings as tern serve would have them with these flags, this environment "
    "and\n"
    "            this file; with --url those of a running server\n"
    "  check     is the configuration valid on this machine? Exit code 0, or 2 with the reason\n"
    "  defaults  a settings file with every setting, its help and its default, as comments\n"
    "\n"
    "examples:\n"
    "  tern config show --json\n"
    "  tern config show --url http://127.0.0.1:8080\n"
    "  tern config check --config tern.yaml\n"
    "  tern config defaults > tern.yaml",
};

struct config {
    const char *word; /* of CONFIG_WORDS */
    bool json, changed;
    struct remote_opt remote;
};

/* ---- printing ---- */

/* A value in a column: texts without quotes, everything else as JSON. */
static void put_value(struct buf *out, const json_t *v, int width)
{
    struct buf raw = { 0 }, text = { 0 };

    if (json_is_string(v)) buf_puts(&raw, json_string_value(v));
    else if (v) jsonr_dump(&raw, v, JSON_ENCODE_ANY | JSON_COMPACT);
    remote_put_text(&text, buf_str(&raw), false);
    buf_printf(out, "%-*s ", width, text.n ? buf_cstr(&text) : "-");
    buf_release(&raw);
    buf_release(&text);
}

/* settings: as settings_json writes them. */
static int print_settings(const struct config *o, json_t *settings, struct err *e)
{
    struct buf out = { 0 };
    const char *name;
    json_t *one;
    int rc;

    if (!json_is_object(settings))
        return err_set(e, E_FORMAT, "the reply has no settings: is this a tern server?");
    if (o->json) {
        jsonr_dump(&out, settings, JSON_INDENT(2));
        buf_putc(&out, '\n');
    } else {
        buf_printf(&out, "%-20s %-24s %-36s %s\n", "SETTING", "VALUE", "EFFECTIVE", "FROM");
        json_object_foreach (settings, name, one) {
            if (o->changed && str_is(str_c(remote_text(one, "from")), "default")) continue;
            remote_put_text(&out, str_c(name), false);
            buf_printf(&out, "%*s", strlen(name) < 20 ? (int)(21 - strlen(name)) : 1, "");
            put_value(&out, remote_at(one, "value"), 24);
            put_value(&out, remote_at(one, "effective"), 36);
            put_value(&out, remote_at(one, "from"), 0);
            buf_puts(&out, "\n");
        }
    }
    rc = cli_write(stdout, &out, e);
    buf_release(&out);
    return rc;
}

/* ---- the settings of this command line ---- */

static int show_local(const struct config *o, const struct settings *s, struct err *e)
{
    struct settings_facts facts = { 0 };
    struct buf text = { 0 };
    json_t *root;
    int rc;

    facts_read_machine(&facts, s);
    settings_json(s, &facts, &text);
    cli_text(&text);
    root = cli_need(jsonr_load(buf_str(&text), 0, NULL));
    rc = print_settings(o, root, e);
    json_decref(root);
    buf_release(&text);
    return rc;
}

static int print_checked(const struct settings *s, struct err *e)
{
    struct buf out = { 0 };
    int n = 0, rc;

    for (const struct knob *k = settings_knobs; k->name; k++)
        n += settings_from(s, k) != FROM_DEFAULT;
    buf_printf(&out, "the configuration is valid; %d settings are not the default\n", n);
    rc = cli_write(stdout, &out, e);
    buf_release(&out);
    return rc;
}

static int print_defaults(const struct config *o, struct err *e)
{
    struct settings s;
    struct buf out = { 0 };
    int rc = settings_defaults(&s, e);

    if (rc != OK) return rc;
    if (o->json) {
        rc = show_local(o, &s, e);
    } else {
        settings_write_yaml(&s, &out);
        rc = cli_write(stdout, &out, e);
    }
    buf_release(&out);
    settings_release(&s);
    return rc;
}

/* A wrong setting is E_INVALID whatever the reason: exit code 2. */
static int run_local(const struct config *o, int argc, char **argv, bool *helped, struct err *e)
{
    struct settings s;
    int rc;

    if (str_is(str_c(o->word), "defaults") && argc > 1)
        return err_set(e, E_INVALID, "defaults takes no setting: '%s'", argv[1]);
    if (str_is(str_c(o->word), "defaults")) return print_defaults(o, e);
    if (settings_load(&s, argc, argv, helped, e) != OK) return e->code = E_INVALID;
    if (*helped) return OK;
    if ((rc = servecheck(&s, e)) != OK) goto out;
    if (s.n_models == 0 && !*s.models_dir && cmd_default_model())
        rc = settings_add_model(&s, cmd_default_model(), e);
    if (rc != OK) goto out;
    rc = str_is(str_c(o->word), "check") ? print_checked(&s, e) : show_local(o, &s, e);
out:
    settings_release(&s);
    return rc;
}

/* ---- a running server ---- */

static int run_remote(struct config *o, struct remote *r, struct err *e)
{
    struct remote_reply p = { 0 };
    int rc;

    if (!str_is(str_c(o->word), "show")) return err_set(e, E_INVALID, "--url goes with show only");
    if ((rc = remote_open(r, &o->remote, e)) != OK) return rc;
    rc = remote_ask(r, "/status", (struct str){ 0 }, &p, e);
    if (rc == OK) rc = print_settings(o, json_object_get(p.json, "settings"), e);
    remote_reply_release(&p);
    return rc;
}

/* ---- the command ---- */

static bool names_server(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        struct str w = str_c(argv[i]);
        if (str_is(w, "--url") || str_starts(w, STR("--url=")) || str_is(w, "-u")) return true;
    }
    return false;
}

/* Moves what belongs to this command out of the arguments; the rest is for tern serve. */
static int take_own(struct config *o, int argc, char **argv, char **rest)
{
    int n = 0;

    rest[n++] = "config";
    for (int i = 1; i < argc; i++) {
        struct str w = str_c(argv[i]);
        if (str_is(w, "--json")) o->json = true;
        else if (str_is(w, "--changed")) o->changed = true;
        else if (o->word || w.p[0] == '-') rest[n++] = argv[i];
        else o->word = argv[i];
        /* The value of a flag is no word of ours: the word comes first. */
        if (!o->word && n > 1) o->word = "";
    }
    return n;
}

static bool is_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (str_is(str_c(argv[i]), "-h") || str_is(str_c(argv[i]), "--help")) return true;
    return false;
}

static int check_word(struct config *o, struct err *e)
{
    static const char *const words[] = { "show", "check", "defaults" };

    if (!o->word || !*o->word)
        return err_set(e, E_INVALID, "the first argument must be show, check or defaults");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (str_is(str_c(o->word), words[i])) return OK;
    return cmd_unknown_word(o->word, CONFIG_WORDS, e);
}

int cmd_config(int argc, char **argv)
{
    struct config o = { .remote.timeout_s = REMOTE_TIMEOUT_S };
    const struct arg table[] = {
        { "--json", NULL, ARG_FLAG, &o.json, NULL, "print JSON: value, effective, from" },
        { "--changed", NULL, ARG_FLAG, &o.changed, NULL, "show: only what is not the default" },
        REMOTE_ARGS(&o.remote),
        { 0 },
    };
    char **rest = cli_need(mem_array((size_t)argc + 1, sizeof *rest));
    struct remote r = { 0 };
    struct err e = { 0 };
    bool helped = false, remote = names_server(argc, argv) || is_help(argc, argv) || argc == 1;
    int n_pos, rc = OK, n;

    if (remote) rc = args_parse(&verb, table, argc, argv, &o.word, 1, &n_pos, &helped, &e);
    n = remote ? 0 : take_own(&o, argc, argv, rest);
    if (rc == OK && !helped) rc = check_word(&o, &e);
    if (rc == OK && !helped)
        rc = remote ? run_remote(&o, &r, &e) : run_local(&o, n, rest, &helped, &e);
    rc = remote_result(&r, verb.name, rc, &e);
    remote_close(&r);
    mem_free(rest);
    return rc;
}
