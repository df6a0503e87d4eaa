/* params_grammar.c - the fields that constrain the text of an answer: response_format, and the
 * names that llama.cpp, vLLM and SGLang use for the same.
 *
 * One request has at most one constraint; a second one is refused with both names. The grammar
 * itself is compiled later, by the engine. */
#include "api/params_impl.h"

#include "base/jsonr.h"

#include <stdio.h>

/* text is in the arena. */
static int set_grammar(struct params *p, struct body_reader *r, const char *param,
                       enum grammar_kind kind, struct str text)
{
    if (p->grammar_field)
        return body_refuse(r, param, "and %.60s both constrain the answer: give only one of them",
                           p->grammar_field);
    if (!(p->grammar_field = arena_cstr(r->arena, str_c(param))))
        return err_nomem(r->err, "the grammar of the request");
    p->grammar = (struct grammar_spec){ .kind = kind, .text = text };
    return OK;
}

/* The grammar compiler reads JSON text, so the value is written out again. */
static int set_json_grammar(struct params *p, struct body_reader *r, const char *param,
                            enum grammar_kind kind, const json_t *v)
{
    struct buf text = { 0 };
    struct str copy;

    jsonr_dump(&text, v, JSON_COMPACT | JSON_ENCODE_ANY);
    copy = text.failed ? (struct str){ 0 } : arena_str(r->arena, buf_str(&text));
    buf_release(&text);
    if (!copy.p) return err_nomem(r->err, "the grammar of the request");
    return set_grammar(p, r, param, kind, copy);
}

/* An empty string asks for nothing. */
static int read_text_grammar(struct params *p, struct body_reader *r, const char *param,
                             enum grammar_kind kind, const json_t *v)
{
    struct str copy;

    if (!json_is_string(v))
        return body_refuse(r, param, "must be a string, but it is %s", body_type(v));
    if (json_string_length(v) == 0) return OK;
    copy = arena_str(r->arena, body_str(v)); /* the body is freed before it is compiled */
    if (!copy.p) return err_nomem(r->err, "the grammar of the request");
    return set_grammar(p, r, param, kind, copy);
}

/* A JSON schema: an object, true or false, or the text of one. */
static int read_schema(struct params *p, struct body_reader *r, const char *param, const json_t *v)
{
    if (json_is_string(v)) return read_text_grammar(p, r, param, GRAMMAR_SCHEMA, v);
    if (!json_is_object(v) && !json_is_boolean(v))
        return body_refuse(r, param, "must be a JSON schema, but it is %s", body_type(v));
    return set_json_grammar(p, r, param, GRAMMAR_SCHEMA, v);
}

static int read_choice_grammar(struct params *p, struct body_reader *r, const char *param,
                               const json_t *v)
{
    if (!json_is_array(v) || json_array_size(v) == 0)
        return body_refuse(r, param, "must be a list of strings, but it is %s", body_type(v));
    return set_json_grammar(p, r, param, GRAMMAR_CHOICE, v);
}

/* The schema is accepted in the places where OpenAI, llama.cpp and Together put it. */
int params_read_response_format(struct params *p, struct body_reader *r, const char *param,
                                const json_t *v)
{
    const json_t *type = json_object_get(v, "type"), *outer, *schema;

    if (!json_is_object(v))
        return body_refuse(r, param, "must be an object, but it is %s", body_type(v));
    if (!json_is_string(type)) return body_refuse(r, "response_format.type", "must be a string");
    if (str_is(body_str(type), "text")) return OK;
    if (str_is(body_str(type), "json_object")) {
        if ((schema = json_object_get(v, "schema")))
            return read_schema(p, r, "response_format.schema", schema);
        return set_grammar(p, r, param, GRAMMAR_OBJECT, STR(""));
    }
    if (!str_is(body_str(type), "json_schema"))
        return body_refuse(r, "response_format.type",
                           "is \"%.40s\", but must be text, json_object or json_schema",
                           json_string_value(type));
    outer = json_object_get(v, "json_schema");
    schema = json_object_get(outer, "schema");
    if (schema) return read_schema(p, r, "response_format.json_schema.schema", schema);
    if ((schema = json_object_get(v, "schema")))
        return read_schema(p, r, "response_format.schema", schema);
    return body_refuse(r, "response_format.json_schema.schema", "is required");
}

/* vLLM's structured_outputs: {"json": …}, {"regex": …} and others. */
int params_read_structured(struct params *p, struct body_reader *r, const char *param,
                           const json_t *v)
{
    const char *key;
    char at[PARAM_MAX];
    json_t *x;
    int rc = OK;

    if (!json_is_object(v))
        return body_refuse(r, param, "must be an object, but it is %s", body_type(v));
    json_object_foreach ((json_t *)v, key, x) {
        snprintf(at, sizeof at, "%s.%.40s", param, key);
        if (rc != OK || json_is_null(x) || json_is_false(x)) continue;
        if (!strcmp(key, "json")) rc = read_schema(p, r, at, x);
        else if (!strcmp(key, "regex")) rc = read_text_grammar(p, r, at, GRAMMAR_REGEX, x);
        else if (!strcmp(key, "choice")) rc = read_choice_grammar(p, r, at, x);
        else if (!strcmp(key, "grammar")) rc = read_text_grammar(p, r, at, GRAMMAR_GBNF, x);
        else if (!strcmp(key, "json_object")) rc = set_grammar(p, r, at, GRAMMAR_OBJECT, STR(""));
        else if (strcmp(key, "_backend") && strcmp(key, "whitespace_pattern"))
            rc = body_refuse(r, at, "is not supported by this server: leave it out");
    }
    return rc;
}

/* The kind of constraint follows from the name of the field. */
int params_read_grammar(struct params *p, struct body_reader *r, const char *param, const json_t *v)
{
    if (strstr(param, "json")) return read_schema(p, r, param, v);
    if (strstr(param, "choice")) return read_choice_grammar(p, r, param, v);
    return read_text_grammar(p, r, param, strstr(param, "regex") ? GRAMMAR_REGEX : GRAMMAR_GBNF, v);
}
