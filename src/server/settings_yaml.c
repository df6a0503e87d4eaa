/* settings_yaml.c - settings from a YAML file: one flat mapping, read event by event.
 *
 * `models` may be a list of paths or of {path, alias}; everything else is a scalar (or, for lists
 * and sets, a list of scalars). Anchors are not followed, so a file costs what it is long. */
#include "base/file.h"
#include "base/map.h"
#include "base/mem.h"
#include "server/settings_impl.h"

#include <yaml.h>

enum { FILE_MAX = 1 << 20 };

struct reader {
    struct settings *s;
    const char *name; /* of the file */
    yaml_parser_t parser;
    yaml_event_t ev;
    bool has_ev;
    struct map seen; /* keys → line; the bytes are in the table of knobs */
    struct err *e;
};

static int line_of(const struct reader *r) { return (int)r->ev.start_mark.line + 1; }

/* The next event into r->ev. */
static int next(struct reader *r)
{
    if (r->has_ev) yaml_event_delete(&r->ev);
    r->has_ev = false;
    if (!yaml_parser_parse(&r->parser, &r->ev))
        return err_set(r->e, E_FORMAT, "%s:%d: %s", r->name, (int)r->parser.problem_mark.line + 1,
                       r->parser.problem ? r->parser.problem : "not YAML");
    r->has_ev = true;
    if (r->ev.type == YAML_ALIAS_EVENT)
        return err_set(r->e, E_INVALID, "%s:%d: '*%.64s': references are not followed here",
                       r->name, line_of(r), (const char *)r->ev.data.alias.anchor);
    return OK;
}

static struct str scalar(const struct reader *r)
{
    return str_of((const char *)r->ev.data.scalar.value, r->ev.data.scalar.length);
}

/* "key:" with nothing behind it, or null: as if it were not there. */
static bool is_null(const struct reader *r)
{
    struct str v = scalar(r);
    return r->ev.data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (v.n == 0 || str_is(v, "~") || str_is(v, "null") || str_is(v, "Null") ||
            str_is(v, "NULL"));
}

static int set(struct reader *r, const struct knob *k, struct str v)
{
    char where[300];

    snprintf(where, sizeof where, "%s:%d: %s", r->name, line_of(r), k->name);
    return knob_set(r->s, k, v, (struct knob_source){ FROM_FILE, where }, r->e);
}

static int wrong_shape(struct reader *r, const struct knob *k, const char *found)
{
    struct buf b = { 0 };
    int rc;

    knob_allowed(k, &b);
    rc = err_set(r->e, E_INVALID, "%s:%d: %s is %s: it takes %s", r->name, line_of(r), k->name,
                 found, buf_cstr(&b));
    buf_release(&b);
    return rc;
}

/* Models before this one have no alias: their places stay empty. */
static void pad_aliases(struct settings *s, int n)
{
    if (s->from[0] > FROM_FILE || s->from[1] > FROM_FILE) return;
    s->from[1] = FROM_FILE;
    while (s->n_aliases < n) s->aliases[s->n_aliases++] = mem_strdup("");
}

/* {path: P, alias: A} in `models`; the mapping's start was read. */
static int read_model(struct reader *r)
{
    const struct knob *model = &settings_knobs[0], *alias = &settings_knobs[1];
    bool have_path = false;
    int line = line_of(r), before = r->s->n_models, rc;

    while ((rc = next(r)) == OK && r->ev.type == YAML_SCALAR_EVENT) {
        bool is_path = str_is(scalar(r), "path"), is_alias = str_is(scalar(r), "alias");
        if (!is_path && !is_alias)
            return err_set(r->e, E_INVALID, "%s:%d: '%.*s' of a model: it has path and alias",
                           r->name, line_of(r), STR_ARG(str_take(scalar(r), 80)));
        if ((rc = next(r)) != OK) return rc;
        if (r->ev.type != YAML_SCALAR_EVENT)
            return wrong_shape(r, is_path ? model : alias, "not a text");
        if (is_alias) {
            pad_aliases(r->s, before);
            if (r->s->from[0] <= FROM_FILE) rc = set(r, alias, scalar(r));
        } else {
            have_path = true;
            rc = set(r, model, scalar(r));
        }
        if (rc != OK) return rc;
    }
    if (rc == OK && !have_path)
        rc = err_set(r->e, E_INVALID, "%s:%d: a model without path", r->name, line);
    return rc;
}

/* A list of scalars; the sequence's start was read. */
static int read_list(struct reader *r, const struct knob *k)
{
    struct buf set_of = { 0 };
    int rc;

    while ((rc = next(r)) == OK && r->ev.type != YAML_SEQUENCE_END_EVENT) {
        if (r->ev.type == YAML_MAPPING_START_EVENT && k == &settings_knobs[0]) rc = read_model(r);
        else if (r->ev.type != YAML_SCALAR_EVENT)
            rc = wrong_shape(r, k, "a list of something else");
        else if (k->kind == KNOB_LIST) rc = set(r, k, scalar(r));
        else {
            if (set_of.n) buf_putc(&set_of, ',');
            buf_put_str(&set_of, scalar(r));
        }
        if (rc != OK) break;
    }
    if (rc == OK && k->kind == KNOB_SET) rc = set(r, k, buf_str(&set_of));
    buf_release(&set_of);
    return rc;
}

static int read_pair(struct reader *r)
{
    const struct knob *k, *near;
    struct str key;
    uint64_t before;
    int rc;

    if (r->ev.type != YAML_SCALAR_EVENT)
        return err_set(r->e, E_INVALID, "%s:%d: a key is not a text", r->name, line_of(r));
    key = str_take(scalar(r), 80);
    if (!(k = knob_find(key, false))) {
        near = knob_near(key);
        return err_set(r->e, E_INVALID, "%s:%d: unknown key '%.*s'%s%s%s", r->name, line_of(r),
                       STR_ARG(key), near ? "; did you mean " : "", near ? near->name : "",
                       near ? "?" : "");
    }
    if (strcmp(k->name, "config") == 0)
        return err_set(r->e, E_INVALID, "%s:%d: config inside a config file", r->name, line_of(r));
    if (map_get(&r->seen, str_c(k->name), &before))
        return err_set(r->e, E_INVALID, "%s:%d: %s was given in line %d already", r->name,
                       line_of(r), k->name, (int)before);
    map_put(&r->seen, str_c(k->name), (uint64_t)line_of(r));
    if ((rc = next(r)) != OK) return rc;
    if (r->ev.type == YAML_SEQUENCE_START_EVENT && (k->kind == KNOB_LIST || k->kind == KNOB_SET))
        return read_list(r, k);
    if (r->ev.type == YAML_SEQUENCE_START_EVENT) return wrong_shape(r, k, "a list");
    if (r->ev.type != YAML_SCALAR_EVENT) return wrong_shape(r, k, "a mapping");
    return is_null(r) ? OK : set(r, k, scalar(r));
}

/* From behind the document's start to behind its end. */
static int read_document(struct reader *r)
{
    int rc;

    if ((rc = next(r)) != OK) return rc;
    if (r->ev.type == YAML_SCALAR_EVENT && is_null(r)) return next(r); /* only comments */
    if (r->ev.type != YAML_MAPPING_START_EVENT)
        return err_set(r->e, E_INVALID, "%s:%d: settings are a mapping: `port: 8080`", r->name,
                       line_of(r));
    while ((rc = next(r)) == OK && r->ev.type != YAML_MAPPING_END_EVENT)
        if ((rc = read_pair(r)) != OK) return rc;
    return rc == OK ? next(r) : rc;
}

int settings_yaml(struct settings *s, struct str text, const char *name, struct err *e)
{
    struct reader r = { .s = s, .name = name, .e = e };
    bool had = false;
    int rc;

    if (!yaml_parser_initialize(&r.parser))
        return err_set(e, E_NOMEM, "%s: no memory to read it", name);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text.p, text.n);
    while ((rc = next(&r)) == OK && r.ev.type != YAML_STREAM_END_EVENT) {
        if (r.ev.type != YAML_DOCUMENT_START_EVENT) continue;
        if (had) rc = err_set(e, E_INVALID, "%s:%d: a second document", name, line_of(&r));
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
