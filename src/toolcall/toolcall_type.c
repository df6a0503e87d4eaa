/* toolcall_type.c - the type of an argument that a model wrote without quotes.
 *
 * Templates write such values in the notations of JSON and of Python, and models follow them: a
 * boolean comes as true or as True, a list as ["a"] or as ['a']. The schema of the argument decides
 * which of them is a string. */
#include "base/jsonw.h"
#include "toolcall/toolcall_impl.h"

/* Types that a schema allows; 0: it says nothing. */
enum {
    TYPE_STRING = 1,
    TYPE_NUMBER = 2,
    TYPE_BOOLEAN = 4,
    TYPE_NULL = 8,
    TYPE_ARRAY = 16,
    TYPE_OBJECT = 32,
    TYPE_ANY = 63
};

enum { MAX_REFS = 8 }; /* steps through $ref and anyOf */

const json_t *toolcall_find_schema(const json_t *tools, struct str name)
{
    json_t *tool;
    size_t i;

    json_array_foreach ((json_t *)tools, i, tool) {
        const json_t *fn = json_object_get(tool, "function");
        const char *is = json_string_value(json_object_get(fn, "name"));
        if (is && str_is(name, is)) return json_object_get(fn, "parameters");
    }
    return NULL;
}

/* One step of a path such as #/$defs/Point. */
static const json_t *follow_path(const json_t *at, struct str path)
{
    while (path.n) {
        ptrdiff_t slash = str_find(path, STR("/"));
        struct str step = slash < 0 ? path : str_take(path, (size_t)slash);
        at = json_object_getn(at, step.p, step.n);
        path = slash < 0 ? STR("") : str_skip(path, (size_t)slash + 1);
    }
    return at;
}

const json_t *toolcall_resolve_schema(const json_t *schema, const json_t *root)
{
    for (int i = 0; i < MAX_REFS; i++) {
        const char *ref = json_string_value(json_object_get(schema, "$ref"));
        if (!ref || strncmp(ref, "#/", 2)) break;
        schema = follow_path(root, str_c(ref + 2));
    }
    return schema;
}

static int type_of_name(const char *name)
{
    static const struct {
        const char *name;
        int type;
    } types[] = { { "string", TYPE_STRING }, { "integer", TYPE_NUMBER },
                  { "number", TYPE_NUMBER }, { "boolean", TYPE_BOOLEAN },
                  { "null", TYPE_NULL },     { "array", TYPE_ARRAY },
                  { "object", TYPE_OBJECT } };

    for (size_t i = 0; name && i < sizeof types / sizeof *types; i++)
        if (!strcmp(name, types[i].name)) return types[i].type;
    return 0;
}

static int type_of_value(const json_t *v)
{
    if (json_is_string(v)) return TYPE_STRING;
    if (json_is_number(v)) return TYPE_NUMBER;
    if (json_is_boolean(v)) return TYPE_BOOLEAN;
    if (json_is_null(v)) return TYPE_NULL;
    return json_is_array(v) ? TYPE_ARRAY : TYPE_OBJECT;
}

/* Of the keyword "type", a name or a list of names. */
static int types_of_keyword(const json_t *type)
{
    int types = type_of_name(json_string_value(type));

    for (size_t i = 0; i < json_array_size(type); i++)
        types |= type_of_name(json_string_value(json_array_get(type, i)));
    return types;
}

static int find_types(const json_t *schema, const json_t *root, int depth)
{
    static const char *const choices[] = { "anyOf", "oneOf" };
    const json_t *list = json_object_get(schema, "enum"), *one = json_object_get(schema, "const");
    int types = types_of_keyword(json_object_get(schema, "type"));

    if (types || depth > MAX_REFS) return types;
    schema = toolcall_resolve_schema(schema, root);
    if ((types = types_of_keyword(json_object_get(schema, "type")))) return types;
    if (one) return type_of_value(one);
    for (size_t i = 0; i < json_array_size(list); i++)
        types |= type_of_value(json_array_get(list, i));
    for (size_t k = 0; k < 2 && !types; k++) {
        const json_t *of = json_object_get(schema, choices[k]);
        for (size_t i = 0; i < json_array_size(of); i++) {
            int its = find_types(json_array_get(of, i), root, depth + 1);
            types |= its ? its : TYPE_ANY;
        }
    }
    return types;
}

bool toolcall_is_text_schema(const json_t *schema)
{
    return types_of_keyword(json_object_get(schema, "type")) & TYPE_STRING;
}

bool toolcall_excludes_text(const json_t *schema, const json_t *root)
{
    int types = find_types(schema, root, 0);

    return types && !(types & TYPE_STRING);
}

/* The type of a JSON text by its first byte. */
static int type_of_text(struct str json)
{
    switch (json.p[0]) {
    case '"': return TYPE_STRING;
    case '[': return TYPE_ARRAY;
    case '{': return TYPE_OBJECT;
    case 't':
    case 'f': return TYPE_BOOLEAN;
    case 'n': return TYPE_NULL;
    default: return TYPE_NUMBER;
    }
}

/* Writes the value if it is JSON or a Python literal of one of the types. */
static bool write_literal(struct str s, int types, struct buf *out, bool *failed)
{
    struct buf json = { 0 };
    bool is = s.n && toolcall_is_json(s, failed);

    if (is) buf_put_str(&json, s);
    else is = types != TYPE_ANY && toolcall_convert_literal(s, &json, failed);
    is = is && json.n && (type_of_text(buf_str(&json)) & types);
    if (is) buf_put_str(out, buf_str(&json));
    if (json.failed) *failed = true;
    buf_release(&json);
    return is;
}

void toolcall_write_typed(struct str value, const json_t *schema, const json_t *root,
                          struct buf *out, bool *failed)
{
    struct str s = str_trim(value);
    int types = find_types(schema, root, 0);
    struct jsonw w = { .out = out };
    bool text = toolcall_is_text_schema(schema);

    if (text) /* of a nullable string only null is no string */
        types = json_object_get(schema, "enum") || json_object_get(schema, "const")
                    ? 0
                    : types & TYPE_NULL;
    else if (!(types & TYPE_STRING)) {
        if (types && write_literal(s, types, out, failed)) return;
        types = TYPE_ANY; /* JSON of a wrong type is more useful than text */
    }
    if (types && write_literal(s, types, out, failed)) return;
    jsonw_str(&w, value);
}
