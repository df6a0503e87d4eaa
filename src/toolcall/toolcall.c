/* toolcall.c - JSON calls in all their spellings, and the choice between the notations.
 *
 * Models write keys in any order, nest the call in "function", write arguments as a string that
 * contains JSON, or use the name as the only key. All of that is accepted. What is sent on is
 * always a name and valid JSON. */
#include "toolcall/toolcall.h"

#include "base/jsonr.h"
#include "toolcall/toolcall_impl.h"

const char *const toolcall_name_keys[] = { "name", "tool_name", "function", NULL },
                  *const toolcall_id_keys[] = { "id", "tool_call_id", NULL },
                  *const toolcall_args_keys[] = { "arguments", "parameters", "args", NULL };

/* ---- JSON as text ---- */

/* These find the ends of values in text that may be cut anywhere. They do not check it. */
size_t toolcall_string_span(struct str s)
{
    for (size_t i = 1; i < s.n; i++) {
        if (s.p[i] == '\\') i++;
        else if (s.p[i] == '"') return i + 1;
    }
    return 0;
}

size_t toolcall_json_span(struct str s)
{
    int depth = 0;

    for (size_t i = 0; i < s.n;) {
        size_t n = 1;
        if (s.p[i] == '"' && (n = toolcall_string_span(str_skip(s, i))) == 0) return 0;
        if (s.p[i] == '{' || s.p[i] == '[') depth++;
        if ((s.p[i] == '}' || s.p[i] == ']') && --depth == 0) return i + 1;
        i += n;
    }
    return 0;
}

size_t toolcall_value_span(struct str s)
{
    size_t n = 0;

    if (!s.n) return 0;
    if (s.p[0] == '"') return toolcall_string_span(s);
    if (s.p[0] == '{' || s.p[0] == '[') return toolcall_json_span(s);
    while (n < s.n && !strchr(",}] \t\r\n", s.p[n])) n++;
    return n;
}

size_t toolcall_skip_fence(struct str s, size_t at)
{
    static const char *const fences[] = { "```json", "```" };

    if (str_starts(str_c(fences[0]), str_skip(s, at))) return s.n;
    for (size_t i = 0; i < 2; i++)
        if (str_starts(str_skip(s, at), str_c(fences[i])))
            return skip_spaces(s, at + strlen(fences[i]));
    return at;
}

/* NULL: it is not JSON, or memory ran out (*failed). */
static json_t *parse_json(struct str s, bool *failed)
{
    json_error_t je;
    json_t *v = jsonr_load(s, JSON_DECODE_ANY | JSON_ALLOW_NUL, &je);

    if (!v && json_error_code(&je) == json_error_out_of_memory) *failed = true;
    return v;
}

bool toolcall_is_json(struct str s, bool *failed)
{
    json_t *v = parse_json(s, failed);

    json_decref(v);
    return v != NULL;
}

/* The value of a member, as it is written, of an object that is known to be JSON. */
static bool find_member(struct str obj, struct str key, struct str *out)
{
    size_t at = skip_spaces(obj, 1);

    while (at < obj.n && obj.p[at] == '"') {
        size_t n = toolcall_string_span(str_skip(obj, at)), value, len;
        bool is = n == key.n + 2 && !memcmp(obj.p + at + 1, key.p, key.n);
        value = skip_spaces(obj, skip_spaces(obj, at + n) + 1); /* after ':' */
        len = toolcall_value_span(str_skip(obj, value));
        if (!n || !len) return false;
        if (is) return *out = str_of(obj.p + value, len), true;
        at = skip_spaces(obj, value + len);
        if (at < obj.n && obj.p[at] == ',') at = skip_spaces(obj, at + 1);
    }
    return false;
}

/* The first of the keys that the object has; keys ends with NULL. */
static bool find_any_member(struct str obj, const char *const *keys, struct str *out)
{
    for (; *keys; keys++)
        if (find_member(obj, str_c(*keys), out)) return true;
    return false;
}

/* ---- {"name": ..., "arguments": ...} ---- */

/* The value of a JSON string. NULL: it is none, or memory ran out (*failed). */
static json_t *parse_string(struct str raw, bool *failed)
{
    return raw.n && raw.p[0] == '"' ? parse_json(raw, failed) : NULL;
}

/* "" for NULL. */
static struct str string_of(const json_t *v)
{
    return v ? str_of(json_string_value(v), json_string_length(v)) : STR("");
}

/* The only key of {"name": {...}}, with its quotes; false: the object is not such. */
static bool find_sole_key(struct str obj, struct str *key)
{
    size_t at = skip_spaces(obj, 1), value, n;

    if (at >= obj.n || obj.p[at] != '"' || !(n = toolcall_string_span(str_skip(obj, at))))
        return false;
    *key = str_of(obj.p + at, n);
    at = skip_spaces(obj, at + n);
    if (at >= obj.n || obj.p[at] != ':') return false;
    value = skip_spaces(obj, at + 1);
    if (value >= obj.n || obj.p[value] != '{') return false;
    n = toolcall_json_span(str_skip(obj, value));
    return n && skip_spaces(obj, value + n) + 1 == obj.n;
}

/* The parts of a call in an object. The strings are owned. */
struct object_call {
    json_t *name, *args_text, *id;
    struct str args; /* of the object's text, or of args_text */
};

/* A zeroed one is allowed. */
static void object_call_release(struct object_call *o)
{
    json_decref(o->name);
    json_decref(o->args_text);
    json_decref(o->id);
}

/* false: the object is no call, or memory ran out. */
static bool parse_object(struct str obj, struct object_call *o, bool *failed)
{
    struct str raw;

    o->args = STR("{}");
    if (find_member(obj, STR("function"), &raw) && raw.p[0] == '{') obj = raw;
    if (find_any_member(obj, toolcall_name_keys, &raw)) o->name = parse_string(raw, failed);
    if (o->name) find_any_member(obj, toolcall_args_keys, &o->args);
    else if (find_sole_key(obj, &raw) && !memchr(raw.p, '\\', raw.n) &&
             (o->name = parse_string(raw, failed)))
        find_member(obj, str_of(raw.p + 1, raw.n - 2), &o->args);
    if (!json_string_length(o->name)) return false;
    if (o->args.p[0] == '"') { /* a string that contains the JSON of the arguments */
        o->args_text = parse_string(o->args, failed);
        o->args = string_of(o->args_text);
    }
    if (str_is(o->args, "null") || !o->args.n) o->args = STR("{}");
    if (find_any_member(obj, toolcall_id_keys, &raw)) o->id = parse_string(raw, failed);
    return toolcall_is_json(o->args, failed) && !*failed;
}

/* Sends the call of one object. false: it is none, or memory ran out. */
static bool send_object(struct str obj, struct toolcall_sink *sink)
{
    struct object_call o = { 0 };
    bool is = parse_object(obj, &o, &sink->failed);

    if (is) sink->call(sink->arg, &(struct toolcall){ string_of(o.name), o.args, string_of(o.id) });
    object_call_release(&o);
    return is;
}

/* May the object be a call? Cheaper than parse_object, and true for all that it accepts. */
static bool looks_callable(struct str obj)
{
    struct str raw;

    if (obj.n < 2 || obj.p[0] != '{') return false;
    return find_any_member(obj, toolcall_name_keys, &raw) || find_sole_key(obj, &raw);
}

/* One pass over the values of an array, or over one object. check: nothing is sent. false: one of
 * them is no call. */
static bool read_values(struct str text, size_t from, size_t end, bool list, bool check,
                        struct toolcall_sink *sink)
{
    while (from < end) {
        struct str one;
        while (from < end && (isspace((unsigned char)text.p[from]) || text.p[from] == ',')) from++;
        if (text.p[from] == ']') break;
        one = str_of(text.p + from, toolcall_value_span(str_skip(text, from)));
        if (!one.n) return false;
        if (check ? !looks_callable(one) : !send_object(one, sink) && !list) return false;
        from += one.n;
    }
    return true;
}

/* An object or an array of objects. All must look like calls before the first is sent. */
static ptrdiff_t read_json(struct str text, struct toolcall_sink *sink)
{
    size_t at = toolcall_skip_fence(text, skip_spaces(text, 0)), n;
    bool list;

    if (at >= text.n) return 0;
    if (text.p[at] != '{' && text.p[at] != '[') return -1;
    if (!(n = toolcall_json_span(str_skip(text, at)))) return 0;
    if (!toolcall_is_json(str_of(text.p + at, n), &sink->failed)) return -1;
    list = text.p[at] == '[';
    for (int pass = 0; pass < 2; pass++)
        if (!read_values(text, at + list, at + n, list, pass == 0, sink)) return -1;
    return (ptrdiff_t)(at + n);
}

ptrdiff_t toolcall_read_object(struct str text, struct toolcall_sink *sink)
{
    size_t n = toolcall_json_span(text);

    if (n) send_object(str_take(text, n), sink);
    return (ptrdiff_t)n;
}

/* ---- a name, then arguments ---- */

bool toolcall_send(struct str name, struct str args, struct str id, struct toolcall_sink *sink)
{
    name = str_trim(name);
    args = str_trim(args);
    if (!args.n) args = STR("{}");
    if (!name.n || !toolcall_is_json(args, &sink->failed)) return false;
    sink->call(sink->arg, &(struct toolcall){ name, args, id });
    return true;
}

/* An array of objects, or name[CALL_ID]id[ARGS]{...}, of which the marks may be missing. */
static ptrdiff_t read_mistral(struct str text, struct toolcall_sink *sink)
{
    struct str rest, name, id = STR("");
    size_t at = skip_spaces(text, 0), n = at;
    ptrdiff_t args;

    if (at >= text.n) return 0;
    if (text.p[at] == '[' || text.p[at] == '{') return read_json(text, sink);
    while (n < text.n && text.p[n] != '[' && text.p[n] != '{') n++;
    if (n - at > TOOLCALL_MAX_NAME) return -1;
    if (n >= text.n) return 0;
    name = str_of(text.p + at, n - at);
    rest = str_skip(text, n);
    if (str_starts(rest, STR("[CALL_ID]"))) {
        if ((args = str_find(rest, STR("[ARGS]"))) < 0) return 0;
        id = str_trim(str_of(rest.p + 9, (size_t)args - 9));
        rest = str_skip(rest, (size_t)args);
    }
    if (rest.p[0] == '[') {
        if (!str_starts(rest, STR("[ARGS]"))) return rest.n >= 9 ? -1 : 0;
        rest = str_skip(rest, 6);
    }
    at = skip_spaces(rest, 0);
    if (at >= rest.n) return 0;
    if (rest.p[at] != '{') return -1;
    if (!(n = toolcall_json_span(str_skip(rest, at)))) return 0;
    if (!toolcall_send(name, str_of(rest.p + at, n), id, sink)) return -1;
    return rest.p + at + n - text.p;
}

/* ---- all families ---- */

/* An answer that is nothing but calls: JSON, or Python's notation. An empty array is an answer, and
 * no call. */
static ptrdiff_t read_bare(struct str text, struct toolcall_sink *sink)
{
    size_t at = skip_spaces(text, 0), span = skip_spaces(text, at + 1);
    ptrdiff_t n;

    if (span < text.n && text.p[at] == '[' && text.p[span] == ']') return -1;
    n = read_json(text, sink);
    if (n >= 0 || text.p[at] != '[' || !(span = toolcall_json_span(str_skip(text, at)))) return n;
    return toolcall_send_python(str_of(text.p + at, span), sink) ? (ptrdiff_t)(at + span) : -1;
}

/* A call between the marks of its family. */
static bool send_body(const struct toolfamily *f, struct str body, const json_t *tools,
                      struct toolcall_sink *sink)
{
    switch (f->payload) {
    case PAYLOAD_NAMED:
    case PAYLOAD_KIMI:
    case PAYLOAD_SOLAR: return toolcall_send_separated(f, body, sink);
    case PAYLOAD_PYTHON: return toolcall_send_python(body, sink) || read_json(body, sink) > 0;
    case PAYLOAD_GEMMA: return toolcall_send_gemma(body, f->sep, tools, sink);
    default: return toolcall_send_tagged(f->tags, body, tools, sink);
    }
}

/* Notations that show their own end are read at once. Of the others the closing mark is looked for,
 * which may also be inside of an argument. */
ptrdiff_t toolcall_read(const struct toolfamily *f, struct str text, bool at_end,
                        const json_t *tools, struct toolcall_sink *sink)
{
    struct str rest = text;
    size_t at = 0;
    ptrdiff_t end;

    if (f->payload == PAYLOAD_JSON) return read_json(text, sink);
    if (f->payload == PAYLOAD_BARE) return read_bare(text, sink);
    if (f->payload == PAYLOAD_MISTRAL) return read_mistral(text, sink);
    while ((end = str_find(rest, str_c(f->close))) >= 0) {
        at += (size_t)end;
        if (!toolcall_ends_inside_value(f, str_take(text, at), tools))
            return send_body(f, str_take(text, at), tools, sink)
                       ? (ptrdiff_t)(at + strlen(f->close))
                       : -1;
        at += strlen(f->close);
        rest = str_skip(text, at);
    }
    if (!at_end) return 0;
    return send_body(f, text, tools, sink) ? (ptrdiff_t)text.n : -1;
}
