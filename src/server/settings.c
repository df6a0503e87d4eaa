/* settings.c - settings from flags, environment and file, and reloading them.
 *
 * Sources are read from the strongest to the weakest: flags, environment, file. Every value is
 * checked; a value from a weaker source is stored only where no stronger one was given (knob_set).
 * Defaults are set first, with the lowest rank. */
#include "server/settings.h"

#include "base/log.h"
#include "server/settings_impl.h"

#include <ctype.h>
#include <stdlib.h>

extern char **environ;

/* "max-batch" → "TERN_MAX_BATCH". */
void knob_env(const struct knob *k, char out[64])
{
    int n = snprintf(out, 64, "TERN_%s", k->name);

    for (int i = 0; i < n && i < 63; i++)
        out[i] = out[i] == '-' ? '_' : (char)toupper((unsigned char)out[i]);
}

/* b may have underscores in place of dashes. */
static bool is_same_name(struct str a, struct str b)
{
    if (a.n != b.n) return false;
    for (size_t i = 0; i < a.n; i++)
        if (a.p[i] != (b.p[i] == '_' ? '-' : b.p[i])) return false;
    return true;
}

/* Other names of the knob; a YAML key has no dashes in front. */
static bool has_alt(const struct knob *k, struct str name, bool dashes)
{
    struct str rest = str_c(k->alt);

    while (rest.n) {
        ptrdiff_t bar = str_find(rest, STR("|"));
        struct str one = bar < 0 ? rest : str_take(rest, (size_t)bar);
        rest = str_skip(rest, one.n + 1);
        if (!dashes && !str_starts(one, STR("--"))) continue;
        if (is_same_name(dashes ? one : str_skip(one, 2), name)) return true;
    }
    return false;
}

const struct knob *knob_find(struct str name, bool dashes)
{
    for (const struct knob *k = settings_knobs; k->name; k++) {
        bool is =
            dashes ? str_starts(name, STR("--")) && is_same_name(str_c(k->name), str_skip(name, 2))
                   : is_same_name(str_c(k->name), name);
        if (is || has_alt(k, name, dashes)) return k;
    }
    return NULL;
}

/* Other names of the setting, without dashes; short ones are too short to be similar to anything. */
static bool is_alt_nearer(const struct knob *k, struct str word, int *least, struct str *as)
{
    struct str rest = str_c(k->alt);
    bool nearer = false;

    while (rest.n) {
        ptrdiff_t bar = str_find(rest, STR("|"));
        struct str one = bar < 0 ? rest : str_take(rest, (size_t)bar);
        rest = str_skip(rest, one.n + 1);
        if (!str_starts(one, STR("--")) || !str_is_nearer(word, str_skip(one, 2), least)) continue;
        *as = str_skip(one, 2);
        nearer = true;
    }
    return nearer;
}

const struct knob *knob_suggest(struct str name, struct str *as)
{
    const struct knob *best = NULL;
    int least = 4;

    while (name.n && name.p[0] == '-') name = str_skip(name, 1);
    for (const struct knob *k = settings_knobs; k->name; k++) {
        if (str_is_nearer(name, str_c(k->name), &least)) best = k, *as = str_c(k->name);
        if (is_alt_nearer(k, name, &least, as)) best = k;
    }
    return best;
}

static int refuse_unknown_flag(struct str name, struct err *e)
{
    struct str as;

    if (knob_suggest(name, &as))
        return err_set(e, E_INVALID, "unknown flag '%.*s'; did you mean --%.*s?", STR_ARG(name),
                       STR_ARG(as));
    return err_set(e, E_INVALID, "unknown flag '%.*s'", STR_ARG(name));
}

/* "--no-cors" is --cors=false. */
static const struct knob *find_negated(struct str name)
{
    const struct knob *k;

    if (!str_starts(name, STR("--no-"))) return NULL;
    k = knob_find(str_skip(name, 5), false);
    return k && k->kind == KNOB_BOOL ? k : NULL;
}

/* split: the value is a list with commas ("-a a,b"). Paths on the command line may contain commas. */
static int set_list(struct settings *s, const struct knob *k, struct str v, bool split,
                    struct knob_source src, struct err *e)
{
    int rc = OK;

    if (!split) return knob_set(s, k, v, src, e);
    do {
        ptrdiff_t comma = str_find(v, STR(","));
        struct str one = comma < 0 ? v : str_take(v, (size_t)comma);
        rc = knob_set(s, k, str_trim(one), src, e);
        v = str_skip(v, one.n + 1);
    } while (rc == OK && v.n);
    return rc;
}

/* The word after a switch is its value only if it can be nothing else: "--cors false". A model of that
 * name is written ./false. */
static bool is_switch_word(struct str w) { return str_is(w, "true") || str_is(w, "false"); }

/* The command is in argv[0]. */
static bool is_gateway(char **argv) { return str_is(str_c(argv[0]), "gateway"); }

/* "--name value", "--name=value", "--switch", "--no-switch", "-n value". *i: index of the word,
 * moved on past its value. */
static int set_flag(struct settings *s, int argc, char **argv, int *i, struct err *e)
{
    struct str word = str_c(argv[*i]), name = word, value = { 0 };
    ptrdiff_t eq = str_starts(word, STR("--")) ? str_find(word, STR("=")) : -1;
    struct knob_source src = { FROM_FLAG, argv[*i] };
    const struct knob *k;
    char shown[80];

    if (eq >= 0) name = str_take(word, (size_t)eq), value = str_skip(word, (size_t)eq + 1);
    snprintf(shown, sizeof shown, "%.*s", STR_ARG(name));
    src.name = shown;
    if (eq < 0 && (k = find_negated(name))) return knob_set(s, k, STR("false"), src, e);
    if (!(k = knob_find(name, true))) return refuse_unknown_flag(name, e);
    if (is_gateway(argv) && !knob_is_of_gateway(k))
        return err_set(e, E_INVALID, "%s is a flag of tern serve: tern gateway has no model",
                       shown);
    if (eq < 0 && k->kind == KNOB_BOOL) {
        value = STR("true");
        if (*i + 1 < argc && is_switch_word(str_c(argv[*i + 1]))) value = str_c(argv[++*i]);
    } else if (eq < 0) {
        if (*i + 1 >= argc) return err_set(e, E_INVALID, "%s needs a value", shown);
        value = str_c(argv[++*i]);
    }
    if (k->kind == KNOB_LIST)
        return set_list(s, k, value, k->at == offsetof(struct settings, aliases), src, e);
    return knob_set(s, k, value, src, e);
}

/* Words without a dash are models. */
static int set_flags(struct settings *s, int argc, char **argv, bool *helped, struct err *e)
{
    struct knob_source positional = { FROM_FLAG, "model" };
    int rc = OK;

    for (int i = 1; i < argc && rc == OK; i++) {
        struct str w = str_c(argv[i]);
        if (str_is(w, "-h") || str_is(w, "--help") || str_starts(w, STR("--help="))) {
            settings_help(stdout, str_skip(w, w.n > 7 ? 7 : w.n), is_gateway(argv));
            *helped = true;
            return OK;
        }
        if (str_is(w, "--print-config")) s->print_config = true;
        else if (w.n > 1 && w.p[0] == '-') rc = set_flag(s, argc, argv, &i, e);
        else rc = knob_set(s, &settings_knobs[0], w, positional, e);
    }
    return rc;
}

/* Empty variables count as unset. */
static int set_env(struct settings *s, struct err *e)
{
    for (const struct knob *k = settings_knobs; k->name; k++) {
        char name[64];
        const char *v;
        int rc;

        knob_env(k, name);
        if (!(v = getenv(name)) || !*v) continue;
        rc = k->kind == KNOB_LIST
                 ? set_list(s, k, str_c(v), true, (struct knob_source){ FROM_ENV, name }, e)
                 : knob_set(s, k, str_c(v), (struct knob_source){ FROM_ENV, name }, e);
        if (rc != OK) return rc;
    }
    return OK;
}

/* A mistyped variable has no effect, so the log names it. Variables that are similar to no setting
 * may belong to another program. */
static void warn_mistyped_env(void)
{
    for (char **v = environ; *v; v++) {
        struct str all = str_c(*v);
        ptrdiff_t eq = str_find(all, STR("="));
        struct str as;
        char name[64];
        int n = 0;

        if (!str_starts(all, STR("TERN_")) || eq < 0) continue;
        for (int i = 5; i < eq && n < 63; i++)
            name[n++] = (*v)[i] == '_' ? '-' : (char)tolower((unsigned char)(*v)[i]);
        name[n] = 0;
        if (knob_find(str_c(name), false) || !knob_suggest(str_c(name), &as)) continue;
        log_warn("environment variable %.*s: no such setting; did you mean --%.*s?", (int)eq, *v,
                 STR_ARG(as));
    }
}

/* Through knob_set, so that every default is checked. */
static int set_defaults(struct settings *s, struct err *e)
{
    for (const struct knob *k = settings_knobs; k->name; k++) {
        int rc;
        if (k->kind == KNOB_LIST) continue;
        rc = knob_set(s, k, str_c(k->dflt), (struct knob_source){ FROM_DEFAULT, k->name }, e);
        if (rc != OK) return rc;
    }
    return OK;
}

/* Rules between settings. */
static int check_combinations(const struct settings *s, struct err *e)
{
    int n_models =
        s->n_models || *s->models_dir ? s->n_models : 1; /* the one that ships with tern */
    struct membudget_limit limits[MEMBUDGET_LIMITS];
    int n_limits, rc;

    if (s->n_aliases > n_models)
        return err_set(e, E_INVALID, "alias '%s' has no model: %d aliases for %d models",
                       s->aliases[s->n_aliases - 1], s->n_aliases, n_models);
    if (!*s->tls_cert != !*s->tls_key)
        return err_set(e, E_INVALID, "tls-cert is '%s' and tls-key is '%s': TLS needs both",
                       s->tls_cert, s->tls_key);
    if (!*s->host && !*s->socket)
        return err_set(
            e, E_INVALID,
            "host and socket are both '': the server would listen nowhere; give one of them");
    if (*s->tls_cert && !*s->host)
        return err_set(e, E_INVALID, "tls-cert is '%s', but host is '': TLS needs a TCP address",
                       s->tls_cert);
    if ((rc = settings_device_limits(s, limits, &n_limits, e)) != OK) return rc;
    if (s->ctx == 1)
        return err_set(e, E_INVALID,
                       "ctx is 1: it must be at least 2 tokens, or 0 for the model's own");
    return OK;
}

/* On an error, and after help, s owns nothing. */
int settings_load(struct settings *s, int argc, char **argv, bool *helped, struct err *e)
{
    int rc;

    memset(s, 0, sizeof *s);
    *helped = false;
    if ((rc = set_defaults(s, e)) != OK) goto out;
    if ((rc = set_flags(s, argc, argv, helped, e)) != OK || *helped) goto out;
    if ((rc = set_env(s, e)) != OK) goto out;
    if (*s->config && (rc = settings_yaml_file(s, s->config, e)) != OK) goto out;
    rc = check_combinations(s, e);
    if (rc == OK) warn_mistyped_env();
out:
    if (rc != OK) settings_release(s);
    return rc;
}

void settings_release(struct settings *s)
{
    for (const struct knob *k = settings_knobs; k->name; k++) knob_free(s, k);
}

enum knob_from settings_from(const struct settings *s, const struct knob *k)
{
    return (enum knob_from)s->from[knob_index(k)];
}

static const char *source_name(enum knob_from from)
{
    static const char *const names[] = { "default", "file", "env", "flag" };
    return names[from];
}

void settings_json(const struct settings *s, const struct settings_facts *f, struct buf *out)
{
    struct settings_facts none = { 0 };
    struct jsonw w = { .out = out };

    jsonw_obj(&w);
    for (const struct knob *k = settings_knobs; k->name; k++) {
        if (f && f->gateway && !knob_is_of_gateway(k)) continue;
        jsonw_key(&w, k->name), jsonw_obj(&w);
        jsonw_key(&w, "value");
        if (k->kind == KNOB_LIST) knob_write_list(&w, s, k);
        else knob_write(&w, s, k);
        jsonw_key(&w, "effective"), knob_write_effective(&w, s, k, f ? f : &none);
        jsonw_key(&w, "from"), jsonw_str(&w, str_c(source_name(settings_from(s, k))));
        jsonw_end(&w);
    }
    jsonw_end(&w);
}

int settings_defaults(struct settings *s, struct err *e)
{
    int rc;

    memset(s, 0, sizeof *s);
    if ((rc = set_defaults(s, e)) != OK) settings_release(s);
    return rc;
}

int settings_add_model(struct settings *s, const char *path, struct err *e)
{
    return knob_set(s, &settings_knobs[0], str_c(path),
                    (struct knob_source){ FROM_DEFAULT, "model" }, e);
}

/* A change that is not applied is reported all the same. */
static void note_restart(const struct settings *s, const struct settings *fresh,
                         const struct knob *k, struct buf *out)
{
    if (fresh->from[knob_index(k)] == FROM_DEFAULT && s->from[knob_index(k)] == FROM_DEFAULT)
        return;
    if (!knob_is_equal(s, fresh, k))
        buf_printf(out, "%s%s (needs a restart)", out->n ? ", " : "", k->name);
}

/* A fresh struct is built and compared, so an error changes nothing. Flags are not read again, and
 * override as before. */
int settings_reload(struct settings *s, struct buf *changed, struct err *e)
{
    struct settings fresh = { 0 };
    int rc;

    if ((rc = set_defaults(&fresh, e)) != OK) goto out;
    if ((rc = set_env(&fresh, e)) != OK) goto out;
    if (*s->config && (rc = settings_yaml_file(&fresh, s->config, e)) != OK) goto out;
    for (const struct knob *k = settings_knobs; k->name; k++) {
        if (settings_from(s, k) == FROM_FLAG || strcmp(k->name, "config") == 0) continue;
        if (!k->reload) {
            note_restart(s, &fresh, k, changed);
        } else if (!knob_is_equal(s, &fresh, k)) {
            buf_printf(changed, "%s%s", changed->n ? ", " : "", k->name);
            knob_move(s, &fresh, k);
        }
    }
out:
    settings_release(&fresh);
    return rc;
}
