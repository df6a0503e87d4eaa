/* schema_string.c - strings of a schema: lengths, patterns, formats. */
#include "grammar/schema_impl.h"

#include <stdio.h>

enum { PATTERN_LENGTH = 1000 }; /* characters at most where a length and a pattern meet */

#define DAY31 "(0[1-9]|[12][0-9]|3[01])"
#define DAY30 "(0[1-9]|[12][0-9]|30)"
#define DATE \
    "[12][0-9]{3}-((0[13578]|1[02])-" DAY31 "|(0[469]|11)-" DAY30 "|02-(0[1-9]|1[0-9]|2[0-8]))"
#define TIME                                                                                       \
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]" \
    ")"
#define OCTET "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define LABEL "[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?"
#define HOST LABEL "(\\." LABEL "){0,3}\\.[a-z]{2,8}"
#define PATH "(/[A-Za-z0-9._~-]{1,30}){0,6}"
#define URI_TAIL PATH "/?(\\?[A-Za-z0-9_=&.-]{1,40})?(#[A-Za-z0-9_-]{1,20})?"
#define URI "(https?|ftp)://" HOST "(:[1-9][0-9]{1,3})?" URI_TAIL
#define HEX4 "[0-9a-f]{1,4}"

struct gnode *schema_format(struct schema *x, const char *path, struct str name)
{
    static const struct {
        const char *name, *pattern;
    } known[] = {
        { "date", DATE },
        { "time", TIME },
        { "date-time", DATE "T" TIME },
        { "duration", "P([1-9][0-9]{0,2}W|([1-9][0-9]{0,2}Y)?([1-9][0-9]{0,2}M)?[1-9][0-9]{0,2}D"
                      "(T([1-9][0-9]{0,2}H)?([1-9][0-9]{0,2}M)?[1-9][0-9]{0,2}S)?|"
                      "T([1-9][0-9]{0,2}H)?([1-9][0-9]{0,2}M)?[1-9][0-9]{0,2}S)" },
        { "uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}" },
        { "email", "[A-Za-z0-9]{1,20}([._+-][A-Za-z0-9]{1,20}){0,3}@" HOST },
        { "idn-email", "[A-Za-z0-9]{1,20}([._+-][A-Za-z0-9]{1,20}){0,3}@" HOST },
        { "hostname", HOST },
        { "idn-hostname", HOST },
        { "ipv4", OCTET "(\\." OCTET "){3}" },
        { "ipv6", HEX4 "(:" HEX4 "){7}|::1|::|" HEX4 "(:" HEX4 "){0,5}::(" HEX4 ")?" },
        { "uri", URI },
        { "iri", URI },
        { "url", URI },
        { "uri-reference", URI "|(/[A-Za-z0-9._~-]{1,30}){1,6}" },
        { "iri-reference", URI "|(/[A-Za-z0-9._~-]{1,30}){1,6}" },
        { "uri-template", URI "|(/([A-Za-z0-9._~-]{1,30}|\\{[a-z]{1,20}\\})){1,6}" },
        { "json-pointer", "(/[A-Za-z0-9_.-]{0,30}){0,8}" },
        { "relative-json-pointer", "(0|[1-9][0-9]{0,2})(#|(/[A-Za-z0-9_.-]{0,30}){0,8})" },
        { "regex", "\\^?([a-z]|\\[[a-z]-?\\][*+?]?){0,20}\\$?" },
        { "byte", "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?" },
    };
    static const char *const nothing[] = { "password", "int32",  "int64",
                                           "float",    "double", "textarea" };
    struct gnode *n = NULL;

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (str_is(name, known[i].name)) {
            struct err e = { 0 };
            if (pattern_parse(&n, x->g, str_c(known[i].pattern), x->as, true, &e) != OK)
                schema_bad(x, path, "%s", e.msg);
            return n;
        }
    for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++)
        if (str_is(name, nothing[i])) return NULL;
    schema_bad(x, path, "the format '%.*s' is not supported", STR_ARG(str_take(name, 40)));
    return NULL;
}

/* What pattern and format of a part ask of the inside of the string. At most two. */
static int conditions(struct schema *x, const struct part *p, struct gnode *out[2])
{
    const json_t *pattern = json_object_get(p->s, "pattern"),
                 *format = json_object_get(p->s, "format");
    struct err e = { 0 };
    int n = 0;

    if (pattern && !json_is_string(pattern)) schema_bad(x, p->path, "'pattern' must be a string");
    else if (pattern) {
        struct str text = str_of(json_string_value(pattern), json_string_length(pattern));
        if (pattern_parse(&out[n], x->g, text, x->as, false, &e) == OK) n++;
        else schema_bad(x, p->path, "'pattern': %s", e.msg);
    }
    if (format && !json_is_string(format)) schema_bad(x, p->path, "'format' must be a string");
    else if (format && (out[n] = schema_format(x, p->path, str_c(json_string_value(format))))) n++;
    return n;
}

struct bounds {
    int min, max;
};

static struct bounds lengths(struct schema *x, const struct parts *p)
{
    struct bounds b = { 0, GNODE_MANY };

    for (int i = 0; i < p->n; i++) {
        int min = schema_count(x, &p->p[i], "minLength", 0),
            max = schema_count(x, &p->p[i], "maxLength", GNODE_MANY);
        if (min > b.min) b.min = min;
        if (max != GNODE_MANY && (b.max == GNODE_MANY || max < b.max)) b.max = max;
    }
    return b;
}

static struct gnode *all_conditions(struct schema *x, const struct parts *p, struct gnode **list,
                                    int *n)
{
    struct gnode *two[2];

    *n = 0;
    for (int i = 0; i < p->n; i++) {
        int k = conditions(x, &p->p[i], two);
        for (int j = 0; j < k && *n < 2 * PARTS_MAX; j++) list[(*n)++] = two[j];
    }
    return *n ? list[0] : NULL;
}

/* Every character in the one way that patterns write it. */
static struct gnode *any_char(struct schema *x)
{
    struct cpset all = { 0 };

    cpset_add(&all, &x->g->arena, 0, CP_LAST);
    return pattern_char(x->g, all, x->as);
}

/* So many characters; with a pattern beside them, no more than a machine can count. */
static struct gnode *so_many(struct schema *x, struct bounds b, const char *path)
{
    if (b.max == GNODE_MANY || b.max > PATTERN_LENGTH) {
        if (b.min > PATTERN_LENGTH)
            schema_bad(x, path, "'minLength' above %d beside a pattern or format is not supported",
                       PATTERN_LENGTH);
        else if (b.max != GNODE_MANY) b.max = PATTERN_LENGTH;
    }
    return gnode_rep(x->g, any_char(x), b.min, b.max);
}

static bool join(struct schema *x, struct fsm *io, const struct gnode *with, const char *path)
{
    struct fsm y = { 0 }, both = { 0 };
    struct err e = { 0 };
    bool ok = schema_fsm(x, with, path, &y);

    if (ok && fsm_product(&both, io, &y, FSM_AND, &x->env, &e) != OK) {
        schema_bad(x, path, "%s", e.msg);
        ok = false;
    }
    fsm_release(&y);
    if (!ok) return false;
    fsm_release(io);
    *io = both;
    fsm_trim(io); /* what is left may be nothing */
    return true;
}

bool schema_string_fsm(struct schema *x, const struct parts *p, struct fsm *out)
{
    struct gnode *list[2 * PARTS_MAX], *first;
    const char *path = p->n ? p->p[0].path : "#";
    struct bounds b = lengths(x, p);
    bool bounded = b.min > 0 || b.max != GNODE_MANY;
    int n;

    *out = (struct fsm){ 0 };
    first = all_conditions(x, p, list, &n);
    if (!first && !bounded) return false;
    if (!first) first = so_many(x, b, path);
    if (!schema_fsm(x, first, path, out)) return false;
    for (int i = 1; i < n && x->rc == OK; i++) join(x, out, list[i], path);
    if (n > 0 && b.max != GNODE_MANY && x->rc == OK) { /* what is short anyway is not counted */
        fsm_trim(out);
        if (fsm_longest(out) >= 0 && fsm_longest(out) <= b.max) b.max = GNODE_MANY;
        bounded = b.min > 0 || b.max != GNODE_MANY;
    }
    if (n > 0 && bounded && x->rc == OK) join(x, out, so_many(x, b, path), path);
    if (x->rc == OK) return true;
    fsm_release(out);
    return false;
}

/* Strings of some length: a rule for all that have the same bounds. */
static struct gnode *bounded_string(struct schema *x, struct bounds b)
{
    struct grules *g = x->g;
    char name[48];
    uint64_t known;
    int rule;

    snprintf(name, sizeof name, "%d %d", b.min, b.max);
    if (map_get(&x->strings, str_c(name), &known)) return gnode_ref(g, (int)known);
    rule = grules_new(g);
    g->rules[rule].name = arena_str(&g->arena, str_c(name));
    g->rules[rule].keep = true;
    g->rules[rule].body =
        GSEQ(g, gnode_c(g, "\""), gnode_rep(g, schema_chars(x), b.min, b.max), gnode_c(g, "\""));
    map_put(&x->strings, g->rules[rule].name, (uint64_t)rule);
    return gnode_ref(g, rule);
}

struct gnode *schema_string(struct schema *x, const struct parts *p)
{
    struct grules *g = x->g;
    struct gnode *list[2 * PARTS_MAX], *inside;
    struct bounds b = lengths(x, p);
    struct fsm f = { 0 };
    int n;

    if (b.max != GNODE_MANY && b.max < b.min) return gnode_new(g, GN_NEVER);
    inside = all_conditions(x, p, list, &n);
    if (x->rc != OK) return gnode_new(g, GN_NEVER);
    if (n == 0 && b.min == 0 && b.max == GNODE_MANY) return schema_any_string(x);
    if (n == 0) return bounded_string(x, b);
    if (n > 1 || b.min > 0 || b.max != GNODE_MANY) {
        if (!schema_string_fsm(x, p, &f)) return gnode_new(g, GN_NEVER);
        inside = gnode_fsm(g, &f);
        fsm_release(&f);
    }
    return GSEQ(g, gnode_c(g, "\""), inside, gnode_c(g, "\""));
}
