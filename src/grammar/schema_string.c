/* schema_string.c - strings of a schema: read_lengths, patterns, formats.
 *
 * A length alone is a counted repetition. Where patterns and formats have to hold together, or a
 * length with one of them, their DFAs are intersected. A format is a pattern that generates common
 * values of the format, not all of them. */
#include "grammar/schema_impl.h"

#include <stdio.h>

enum { MAX_PATTERN_LENGTH = 1000 }; /* characters, where a length is combined with a pattern */

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

/* The patterns of formats are narrower than the standards: what is generated is accepted by every
 * validator, and short. February has 28 days here.
 *
 * NULL: the format constrains nothing, or x has the error. */
static struct rule_node *make_format(struct schema_build *x, const char *path, struct str name)
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
    static const char *const unconstrained[] = { "password", "int32",  "int64",
                                                 "float",    "double", "textarea" };
    struct rule_node *n = NULL;

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (str_is(name, known[i].name)) {
            struct err e = { 0 };
            if (pattern_parse(&n, x->g, str_c(known[i].pattern), x->as, true, &e) != OK)
                schema_fail_with(x, path, "", &e);
            return n;
        }
    for (size_t i = 0; i < sizeof unconstrained / sizeof *unconstrained; i++)
        if (str_is(name, unconstrained[i])) return NULL;
    schema_fail(x, path, "the format '%.*s' is not supported", STR_ARG(str_take(name, 40)));
    return NULL;
}

/* The pattern and the format of a part, for the inside of the string. Returns how many there are. */
static int read_conditions(struct schema_build *x, const struct subschema *p,
                           struct rule_node *out[2])
{
    const json_t *pattern = json_object_get(p->s, "pattern"),
                 *format = json_object_get(p->s, "format");
    struct err e = { 0 };
    int n = 0;

    if (pattern && !json_is_string(pattern)) schema_fail(x, p->path, "'pattern' must be a string");
    else if (pattern) {
        struct str text = str_of(json_string_value(pattern), json_string_length(pattern));
        if (pattern_parse(&out[n], x->g, text, x->as, false, &e) == OK) n++;
        else schema_fail_with(x, p->path, "'pattern': ", &e);
    }
    if (format && !json_is_string(format)) schema_fail(x, p->path, "'format' must be a string");
    else if (format && (out[n] = make_format(x, p->path, str_c(json_string_value(format))))) n++;
    return n;
}

/* The lengths that all parts allow, in characters. */
static struct count_bounds read_lengths(struct schema_build *x, const struct conjunction *p)
{
    return schema_read_bounds(x, p, "minLength", "maxLength", 0);
}

/* The conditions of all parts. Returns the first, or NULL. */
static struct rule_node *list_conditions(struct schema_build *x, const struct conjunction *p,
                                         struct rule_node **list, int *n)
{
    struct rule_node *two[2];

    *n = 0;
    for (int i = 0; i < p->n; i++) {
        int k = read_conditions(x, &p->p[i], two);
        for (int j = 0; j < k && *n < 2 * CONJUNCTION_MAX; j++) list[(*n)++] = two[j];
    }
    return *n ? list[0] : NULL;
}

/* Any character, with the same escapes as in patterns: other spellings are not in the DFAs. */
static struct rule_node *make_any_char(struct schema_build *x)
{
    struct charset all = { 0 };

    charset_add(&all, &x->g->arena, 0, CHARSET_LAST);
    return pattern_make_char(x->g, all, x->as);
}

/* Strings of these lengths, limited to what an unrolled repetition can count. */
static struct rule_node *make_any_of_length(struct schema_build *x, struct count_bounds b,
                                            const char *path)
{
    if (b.max == RULES_UNBOUNDED || b.max > MAX_PATTERN_LENGTH) {
        if (b.min > MAX_PATTERN_LENGTH)
            schema_fail(x, path,
                        "'minLength' above %d together with a pattern or format is not supported",
                        MAX_PATTERN_LENGTH);
        else if (b.max != RULES_UNBOUNDED) b.max = MAX_PATTERN_LENGTH;
    }
    return rules_repeat(x->g, make_any_char(x), b.min, b.max);
}

/* The conditions are intersected one after the other, the lengths last. */
bool schema_build_string_dfa(struct schema_build *x, const struct conjunction *p, struct dfa *out)
{
    struct rule_node *list[2 * CONJUNCTION_MAX], *first;
    const char *path = p->n ? p->p[0].path : "#";
    struct count_bounds b = read_lengths(x, p);
    bool bounded = b.min > 0 || b.max != RULES_UNBOUNDED;
    int n;

    *out = (struct dfa){ 0 };
    first = list_conditions(x, p, list, &n);
    if (!first && !bounded) return false;
    if (!first) first = make_any_of_length(x, b, path);
    if (!schema_build_dfa(x, first, path, out)) return false;
    for (int i = 1; i < n && x->rc == OK; i++) schema_intersect_dfa(x, out, list[i], path);
    if (n > 0 && b.max != RULES_UNBOUNDED && x->rc == OK) {
        /* a maximum that the patterns keep anyway needs no counting; bytes bound characters */
        dfa_trim(out);
        if (dfa_longest(out) >= 0 && dfa_longest(out) <= b.max) b.max = RULES_UNBOUNDED;
        bounded = b.min > 0 || b.max != RULES_UNBOUNDED;
    }
    if (n > 0 && bounded && x->rc == OK)
        schema_intersect_dfa(x, out, make_any_of_length(x, b, path), path);
    if (x->rc == OK) return true;
    dfa_release(out);
    return false;
}

/* Strings with these lengths and nothing else: one rule for all with the same bounds. */
static struct rule_node *make_bounded_string(struct schema_build *x, struct count_bounds b)
{
    struct rules *g = x->g;
    char name[48];
    uint64_t known;
    struct str key;
    int rule;

    snprintf(name, sizeof name, "%d %d", b.min, b.max);
    if (map_get(&x->strings, str_c(name), &known)) return rules_ref(g, (int)known);
    key = arena_str(&g->arena, str_c(name));
    rule = rules_add_shared(g, key,
                            RULES_SEQ(g, rules_text(g, "\""),
                                      rules_repeat(g, schema_make_char(x), b.min, b.max),
                                      rules_text(g, "\"")));
    if (rule < 0 || budget_map_put(g->budget, &x->strings, key, (uint64_t)rule) == E_NOMEM)
        schema_nomem(x);
    return rules_ref(g, rule);
}

/* Without a pattern or format the shared rules are used, whose masks are computed once for all. One
 * pattern alone needs no DFA of its own. */
struct rule_node *schema_make_string(struct schema_build *x, const struct conjunction *p)
{
    struct rules *g = x->g;
    struct rule_node *list[2 * CONJUNCTION_MAX], *inside;
    struct count_bounds b = read_lengths(x, p);
    struct dfa f = { 0 };
    int n;

    if (schema_bounds_empty(&b)) return rules_node(g, NODE_NEVER);
    inside = list_conditions(x, p, list, &n);
    if (x->rc != OK) return rules_node(g, NODE_NEVER);
    if (n == 0 && b.min == 0 && b.max == RULES_UNBOUNDED) return schema_make_any_string(x);
    if (n == 0) return make_bounded_string(x, b);
    if (n > 1 || b.min > 0 || b.max != RULES_UNBOUNDED) {
        if (!schema_build_string_dfa(x, p, &f)) return rules_node(g, NODE_NEVER);
        inside = dfa_node(g, &f);
        dfa_release(&f);
    }
    return RULES_SEQ(g, rules_text(g, "\""), inside, rules_text(g, "\""));
}
