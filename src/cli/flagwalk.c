/* flagwalk.c - see flagwalk.h. */
#include "cli/flagwalk.h"

#include "cli/args.h"
#include "server/settings_impl.h"

/* Words of flags that are no setting of the server, or have other words there. */
static const struct {
    const char *command, *flag, *choices;
} words_of_flags[] = {
    { "bench", "--output", "md|json" },
    { NULL, "--device", "cpu|cuda" },
};

const char *flagwalk_words(const char *command)
{
    static const char *const words[][2] = { { "models", MODELS_WORDS },
                                            { "config", CONFIG_WORDS },
                                            { "cluster", CLUSTER_WORDS },
                                            { "completion", COMPLETION_WORDS },
                                            { "eval", "ppl|logits" } };

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (str_is(str_c(command), words[i][0])) return words[i][1];
    return NULL;
}

static const char *find_choices(const char *command, const char *flag)
{
    const struct knob *k = knob_find(str_c(flag), true);

    for (size_t i = 0; i < sizeof words_of_flags / sizeof *words_of_flags; i++)
        if (str_is(str_c(flag), words_of_flags[i].flag) &&
            (!words_of_flags[i].command || str_is(str_c(command), words_of_flags[i].command)))
            return words_of_flags[i].choices;
    return k && str_is(str_c(flag + 2), k->name) ? k->choices : NULL;
}

struct listening {
    const struct cmd_entry *c;
    const struct flag_visitor *v;
};

static void on_table(void *arg, const struct verb *verb, const struct arg *table)
{
    const struct listening *l = arg;

    if (l->v->begin) l->v->begin(l->v->arg, l->c, verb->usage, verb->about);
    for (const struct arg *a = table; a->name; a++) {
        struct flag_row row = { .name = a->name, .alt = a->alt, .meta = a->meta, .help = a->help };
        row.choices = a->kind == ARG_FLAG ? NULL : find_choices(l->c->name, a->name);
        l->v->flag(l->v->arg, &row);
    }
}

static void visit_knob(const struct flag_visitor *v, const struct knob *k)
{
    char name[64], env[64];
    struct flag_row row = { .name = name,
                            .alt = k->alt,
                            .help = k->help,
                            .choices = k->choices,
                            .env = env,
                            .dflt = k->dflt ? k->dflt : "",
                            .group = k->group };

    snprintf(name, sizeof name, "--%s", k->name);
    knob_env(k, env);
    row.meta = settings_placeholder(k);
    if (!row.choices && row.meta) row.choices = find_choices("serve", name);
    v->flag(v->arg, &row);
}

static void walk_serve(const struct cmd_entry *c, const struct flag_visitor *v)
{
    static const struct flag_row print_config = {
        .name = "--print-config", .help = "print the effective settings as JSON and exit"
    };

    if (v->begin)
        v->begin(v->arg, c, "tern serve [-m MODEL]... [--models-dir DIR] [--config FILE] [flags]",
                 settings_about());
    for (const struct knob *k = settings_knobs; k->name; k++)
        if (k->used_by != USED_BY_GATEWAY) visit_knob(v, k);
    v->flag(v->arg, &print_config);
}

static void walk_gateway(const struct cmd_entry *c, const struct flag_visitor *v)
{
    if (v->begin)
        v->begin(v->arg, c, "tern gateway --peers URL,URL,... [flags]", settings_gateway_about());
    for (const struct knob *k = settings_knobs; k->name; k++)
        if (knob_is_of_gateway(k)) visit_knob(v, k);
}

void flagwalk(const struct cmd_entry *c, const struct flag_visitor *v)
{
    struct listening l = { c, v };
    char *argv[] = { (char *)c->name, NULL };

    if (str_is(str_c(c->name), "serve")) {
        walk_serve(c, v);
        return;
    }
    if (str_is(str_c(c->name), "gateway")) {
        walk_gateway(c, v);
        return;
    }
    args_listen(on_table, &l);
    c->run(1, argv);
    args_listen(NULL, NULL);
}

bool flagwalk_is_path(const struct flag_row *f)
{
    static const char *const metas[] = { "FILE", "PATH", "DIR", "F", "MODEL", "FILE|-" };
    static const char *const names[] = { "--model",        "--config",   "--models-dir",
                                         "--socket",       "--tls-cert", "--tls-key",
                                         "--api-key-file", "--park-dir", "--chat-template",
                                         "--data-dir" };

    if (!f->meta || f->choices) return false;
    for (size_t i = 0; i < sizeof metas / sizeof *metas; i++)
        if (str_is(str_c(f->meta), metas[i])) return true;
    for (size_t i = 0; i < sizeof names / sizeof *names && f->env; i++)
        if (str_is(str_c(f->name), names[i])) return true;
    return false;
}
