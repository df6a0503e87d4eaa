/* settings_yaml.c - settings from a YAML file: one flat mapping, read event by event with libyaml.
 *
 * `models` may be a list of paths or of mappings: path, alias (one or a list) and the settings of
 * that model (model_knobs). Every other value is a scalar, or for lists and sets a list of scalars.
 * Aliases of anchors are refused, so the cost of a file is bounded by its length. */
#include "base/file.h"
#include "base/map.h"
#include "base/mem.h"
#include "server/settings_impl.h"

#include <yaml.h>

enum { FILE_MAX = 1 << 20 };

struct yaml_reader {
    struct settings *s;
    const char *name; /* of the file, for errors */
    yaml_parser_t parser;
    yaml_event_t ev;
    bool has_ev;
    struct map seen; /* knob name → line; the names are in the table of knobs */
    struct err *e;
};

/* Of the current event, from 1. */
static int line_of(const struct yaml_reader *r) { return (int)r->ev.start_mark.line + 1; }

/* Reads the next event into r->ev. */
static int next_event(struct yaml_reader *r)
{
    if (r->has_ev) yaml_event_delete(&r->ev);
    r->has_ev = false;
    if (!yaml_parser_parse(&r->parser, &r->ev)) {
        if (r->parser.error == YAML_MEMORY_ERROR) return err_nomem(r->e, r->name);
        return err_set(r->e, E_FORMAT, "%s:%d: %s", r->name, (int)r->parser.problem_mark.line + 1,
                       r->parser.problem ? r->parser.problem : "not YAML");
    }
    r->has_ev = true;
    if (r->ev.type == YAML_ALIAS_EVENT)
        return err_set(r->e, E_INVALID, "%s:%d: '*%.64s': references are not supported in settings",
                       r->name, line_of(r), (const char *)r->ev.data.alias.anchor);
    return OK;
}

/* Borrowed from the event; r->ev is a scalar. */
static struct str get_scalar(const struct yaml_reader *r)
{
    return str_of((const char *)r->ev.data.scalar.value, r->ev.data.scalar.length);
}

/* "key:" without a value, or null: treated as absent. */
static bool is_null(const struct yaml_reader *r)
{
    struct str v = get_scalar(r);
    return r->ev.data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (v.n == 0 || str_is(v, "~") || str_is(v, "null") || str_is(v, "Null") ||
            str_is(v, "NULL"));
}

/* Errors name file, line and key. */
static int set_knob(struct yaml_reader *r, const struct knob *k, struct str v)
{
    char where[300];

    snprintf(where, sizeof where, "%s:%d: %s", r->name, line_of(r), k->name);
    return knob_set(r->s, k, v, (struct knob_source){ FROM_FILE, where }, r->e);
}

/* found: "a list", "a mapping". */
static int refuse_shape(struct yaml_reader *r, const struct knob *k, const char *found)
{
    struct buf b = { 0 };
    int rc;

    knob_allowed(k, &b);
    rc = buf_check(&b, r->e);
    if (rc == OK)
        rc = err_set(r->e, E_INVALID, "%s:%d: %s is %s: it must be %s", r->name, line_of(r),
                     k->name, found, buf_cstr(&b));
    buf_release(&b);
    return rc;
}

/* ---- models ---- */

/* One entry of `models` while it is read. */
struct yaml_model {
    struct settings_model more;
    char *path, *alias; /* alias: the first one */
    int no;             /* place in the list, from 1 */
    int line;
    unsigned seen; /* bits of model_knobs, then path and alias */
};

enum { SEEN_PATH = 1u << MODEL_N_KEYS, SEEN_ALIAS = 2u << MODEL_N_KEYS };

static void release_model(struct yaml_model *m)
{
    settings_model_release(&m->more);
    mem_free(m->path);
    mem_free(m->alias);
}

/* "tern.yaml:7: model 2 'b.gguf': ctx"; the path only where it was read already. */
static void name_key(const struct yaml_reader *r, const struct yaml_model *m, const char *key,
                     char out[300])
{
    snprintf(out, 300, "%.120s:%d: model %d%s%.80s%s%s%s", r->name, line_of(r), m->no,
             m->path ? " '" : "", m->path ? m->path : "", m->path ? "'" : "", *key ? ": " : "",
             key);
}

static int refuse_key(struct yaml_reader *r, const struct yaml_model *m, struct str key)
{
    struct buf allowed = { 0 };
    char where[300];
    int rc;

    name_key(r, m, "", where);
    for (const struct knob *k = model_knobs; k->name; k++) buf_printf(&allowed, ", %s", k->name);
    rc = buf_check(&allowed, r->e);
    if (rc == OK)
        rc = err_set(r->e, E_INVALID, "%s: unknown key '%.*s': a model has path, alias%s", where,
                     STR_ARG(str_take(key, 60)), buf_cstr(&allowed));
    buf_release(&allowed);
    return rc;
}

/* A copy of the current scalar as path or alias. */
static int read_name(struct yaml_reader *r, const struct yaml_model *m, const char *key, char **out)
{
    struct str v = r->ev.type == YAML_SCALAR_EVENT ? get_scalar(r) : STR("");
    char where[300];

    name_key(r, m, key, where);
    if (r->ev.type != YAML_SCALAR_EVENT)
        return err_set(r->e, E_INVALID, "%s is %s: it must be a text that is not empty", where,
                       r->ev.type == YAML_SEQUENCE_START_EVENT ? "a list" : "a mapping");
    if (v.n == 0 || memchr(v.p, 0, v.n))
        return err_set(r->e, E_INVALID, "%s is '%.*s': it must be a text that is not empty", where,
                       STR_ARG(str_take(v, 80)));
    if (!(*out = mem_alloc(v.n + 1))) return err_nomem(r->e, "the settings");
    memcpy(*out, v.p, v.n);
    return OK;
}

static int add_model_alias(struct yaml_reader *r, struct yaml_model *m)
{
    char where[300], *copy;
    int rc;

    if (!m->alias) return read_name(r, m, "alias", &m->alias);
    name_key(r, m, "alias", where);
    if (m->more.n_aliases == REGISTRY_ALIASES - 1)
        return err_set(r->e, E_INVALID, "%s has more than %d names", where, REGISTRY_ALIASES);
    if ((rc = read_name(r, m, "alias", &copy)) == OK) m->more.aliases[m->more.n_aliases++] = copy;
    return rc;
}

/* One name, or a list of names. */
static int read_aliases(struct yaml_reader *r, struct yaml_model *m)
{
    int rc;

    if (r->ev.type != YAML_SEQUENCE_START_EVENT) return add_model_alias(r, m);
    while ((rc = next_event(r)) == OK && r->ev.type != YAML_SEQUENCE_END_EVENT)
        if ((rc = add_model_alias(r, m)) != OK) return rc;
    return rc;
}

static int set_model_knob(struct yaml_reader *r, struct yaml_model *m, const struct knob *k)
{
    struct buf allowed = { 0 };
    char where[300];
    int rc;

    name_key(r, m, k->name, where);
    if (r->ev.type == YAML_SCALAR_EVENT)
        return is_null(r) ? OK : knob_set_model(&m->more.opt, k, get_scalar(r), where, r->e);
    knob_allowed(k, &allowed);
    if ((rc = buf_check(&allowed, r->e)) == OK)
        rc = err_set(r->e, E_INVALID, "%s is %s: it must be %s", where,
                     r->ev.type == YAML_SEQUENCE_START_EVENT ? "a list" : "a mapping",
                     buf_cstr(&allowed));
    buf_release(&allowed);
    return rc;
}

/* A key of a model and its value. The event of the key was read. */
static int read_model_pair(struct yaml_reader *r, struct yaml_model *m)
{
    struct str key = get_scalar(r);
    bool is_path = str_is(key, "path"), is_alias = str_is(key, "alias") || str_is(key, "aliases");
    const struct knob *k = is_path || is_alias ? NULL : model_knob_find(key);
    unsigned bit = is_path ? SEEN_PATH : is_alias ? SEEN_ALIAS : 0;
    char where[300];
    int rc;

    if (!bit && !k) return refuse_key(r, m, key);
    if (k) bit = 1u << (k - model_knobs);
    name_key(r, m, k ? k->name : is_path ? "path" : "alias", where);
    if (m->seen & bit) return err_set(r->e, E_INVALID, "%s was given twice", where);
    m->seen |= bit;
    if ((rc = next_event(r)) != OK) return rc;
    if (k) return set_model_knob(r, m, k);
    return is_path ? read_name(r, m, "path", &m->path) : read_aliases(r, m);
}

/* Gives empty aliases to the n models before this one, which have none. */
static int pad_aliases(struct settings *s, int n, struct err *e)
{
    s->from[1] = FROM_FILE;
    for (; s->n_aliases < n; s->n_aliases++)
        if (!(s->aliases[s->n_aliases] = mem_strdup(""))) return err_nomem(e, "the settings");
    return OK;
}

/* Appends the model, unless flags or variables name models. Its settings are moved. */
static int add_model(struct yaml_reader *r, struct yaml_model *m)
{
    struct settings *s = r->s;
    char where[300];
    int rc;

    snprintf(where, sizeof where, "%s:%d", r->name, m->line);
    if (!(m->more.where = mem_strdup(where))) return err_nomem(r->e, "the settings");
    rc = set_knob(r, &settings_knobs[0], str_c(m->path));
    if (rc != OK || s->from[0] > FROM_FILE) return rc;
    s->more[s->n_models - 1] = m->more;
    m->more = (struct settings_model){ 0 };
    if (!m->alias || s->from[1] > FROM_FILE) return OK;
    rc = pad_aliases(s, s->n_models - 1, r->e);
    return rc == OK ? set_knob(r, &settings_knobs[1], str_c(m->alias)) : rc;
}

static int refuse_models(struct yaml_reader *r, const char *shape)
{
    return err_set(r->e, E_INVALID,
                   "%s:%d: models is %s: it must be a list, each entry a path or a mapping such as "
                   "`- path: a.gguf`",
                   r->name, line_of(r), shape);
}

/* An entry of `models`: a path, or a mapping whose start was read. no: from 1. */
static int read_model(struct yaml_reader *r, int no)
{
    struct yaml_model m = { .no = no, .line = line_of(r) };
    int rc = OK;

    if (r->ev.type == YAML_SCALAR_EVENT) {
        rc = read_name(r, &m, "path", &m.path);
    } else if (r->ev.type != YAML_MAPPING_START_EVENT) {
        rc = refuse_models(r, "a list of lists");
    } else {
        while ((rc = next_event(r)) == OK && r->ev.type == YAML_SCALAR_EVENT)
            if ((rc = read_model_pair(r, &m)) != OK) break;
        if (rc == OK && r->ev.type != YAML_MAPPING_END_EVENT)
            rc = err_set(r->e, E_INVALID, "%s:%d: model %d: a key is not a text", r->name,
                         line_of(r), no);
        if (rc == OK && !m.path)
            rc = err_set(r->e, E_INVALID,
                         "%s:%d: model %d has no path: expected `path: FILE-OR-FOLDER`", r->name,
                         m.line, no);
    }
    if (rc == OK) rc = add_model(r, &m);
    release_model(&m);
    return rc;
}

/* ---- the file ---- */

/* A list of scalars; the start of the sequence was read. */
static int read_list(struct yaml_reader *r, const struct knob *k)
{
    struct buf set_of = { 0 };
    int n = 0, rc;

    while ((rc = next_event(r)) == OK && r->ev.type != YAML_SEQUENCE_END_EVENT) {
        if (k == &settings_knobs[0]) rc = read_model(r, ++n);
        else if (r->ev.type != YAML_SCALAR_EVENT)
            rc = refuse_shape(r, k, "a list of something else");
        else if (k->kind == KNOB_LIST) rc = set_knob(r, k, get_scalar(r));
        else {
            if (set_of.n) buf_putc(&set_of, ',');
            buf_put_str(&set_of, get_scalar(r));
        }
        if (rc != OK) break;
    }
    if (rc == OK) rc = buf_check(&set_of, r->e);
    if (rc == OK && k->kind == KNOB_SET) rc = set_knob(r, k, buf_str(&set_of));
    buf_release(&set_of);
    return rc;
}

/* A key and its value. The event of the key was read. */
static int read_pair(struct yaml_reader *r)
{
    const struct knob *k;
    struct str key, as = { 0 };
    uint64_t before;
    int rc;

    if (r->ev.type != YAML_SCALAR_EVENT)
        return err_set(r->e, E_INVALID, "%s:%d: a key is not a text", r->name, line_of(r));
    key = str_take(get_scalar(r), 80);
    if (!(k = knob_find(key, false))) {
        knob_suggest(key, &as);
        return err_set(r->e, E_INVALID, "%s:%d: unknown key '%.*s'%s%.*s%s", r->name, line_of(r),
                       STR_ARG(key), as.n ? "; did you mean " : "", STR_ARG(as), as.n ? "?" : "");
    }
    if (strcmp(k->name, "config") == 0)
        return err_set(r->e, E_INVALID, "%s:%d: config is not allowed inside a config file",
                       r->name, line_of(r));
    if (map_get(&r->seen, str_c(k->name), &before))
        return err_set(r->e, E_INVALID, "%s:%d: %s was given in line %d already", r->name,
                       line_of(r), k->name, (int)before);
    if (map_put(&r->seen, str_c(k->name), (uint64_t)line_of(r)) < 0)
        return err_nomem(r->e, "the settings");
    if ((rc = next_event(r)) != OK) return rc;
    if (r->ev.type == YAML_SEQUENCE_START_EVENT && (k->kind == KNOB_LIST || k->kind == KNOB_SET))
        return read_list(r, k);
    if (r->ev.type == YAML_SEQUENCE_START_EVENT) return refuse_shape(r, k, "a list");
    if (r->ev.type != YAML_SCALAR_EVENT && k == &settings_knobs[0])
        return refuse_models(r, "a mapping");
    if (r->ev.type != YAML_SCALAR_EVENT) return refuse_shape(r, k, "a mapping");
    if (is_null(r)) return OK;
    return k == &settings_knobs[0] ? read_model(r, 1) : set_knob(r, k, get_scalar(r));
}

/* The rest of a document, after its start was read. */
static int read_document(struct yaml_reader *r)
{
    int rc;

    if ((rc = next_event(r)) != OK) return rc;
    if (r->ev.type == YAML_SCALAR_EVENT && is_null(r))
        return next_event(r); /* a file with comments only */
    if (r->ev.type != YAML_MAPPING_START_EVENT)
        return err_set(r->e, E_INVALID,
                       "%s:%d: settings are a mapping of names to values, such as `port: 8080`",
                       r->name, line_of(r));
    while ((rc = next_event(r)) == OK && r->ev.type != YAML_MAPPING_END_EVENT)
        if ((rc = read_pair(r)) != OK) return rc;
    return rc == OK ? next_event(r) : rc;
}

/* An empty file, or one with comments only, is valid. */
int settings_yaml(struct settings *s, struct str text, const char *name, struct err *e)
{
    struct yaml_reader r = { .s = s, .name = name, .e = e };
    bool had = false;
    int rc;

    if (!yaml_parser_initialize(&r.parser)) return err_nomem(e, name);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text.p, text.n);
    while ((rc = next_event(&r)) == OK && r.ev.type != YAML_STREAM_END_EVENT) {
        if (r.ev.type != YAML_DOCUMENT_START_EVENT) continue;
        if (had)
            rc = err_set(e, E_INVALID, "%s:%d: a second document: a settings file has only one",
                         name, line_of(&r));
        else rc = read_document(&r);
        had = true;
        if (rc != OK) break;
    }
    if (r.has_ev) yaml_event_delete(&r.ev);
    yaml_parser_delete(&r.parser);
    map_release(&r.seen);
    return rc;
}

int settings_yaml_file(struct settings *s, const char *path, struct err *e)
{
    struct buf text = { 0 };
    int rc = file_read(&text, path, FILE_MAX, e);

    if (rc == OK) rc = settings_yaml(s, buf_str(&text), path, e);
    buf_release(&text);
    return rc;
}
