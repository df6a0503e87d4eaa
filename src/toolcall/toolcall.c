#include "toolcall/toolcall.h"

#include "toolcall/toolcall_impl.h"

#include <ctype.h>

/* ---- JSON as text ---- */

size_t json_string_span(struct str s)
{
    for (size_t i = 1; i < s.n; i++) {
        if (s.p[i] == '\\') i++;
        else if (s.p[i] == '"') return i + 1;
    }
    return 0;
}

size_t json_span(struct str s)
{
    int depth = 0;

    for (size_t i = 0; i < s.n;) {
        size_t n = 1;
        if (s.p[i] == '"' && (n = json_string_span(str_skip(s, i))) == 0) return 0;
        if (s.p[i] == '{' || s.p[i] == '[') depth++;
        if ((s.p[i] == '}' || s.p[i] == ']') && --depth == 0) return i + 1;
        i += n;
    }
    return 0;
}

size_t json_value_span(struct str s)
{
    size_t n = 0;

    if (!s.n) return 0;
    if (s.p[0] == '"') return json_string_span(s);
    if (s.p[0] == '{' || s.p[0] == '[') return json_span(s);
    while (n < s.n && !strchr(",}] \t\r\n", s.p[n])) n++;
    return n;
}

/* The value of a member of an object that is known to be JSON, as it was written. */
static bool member(struct str obj, const char *key, struct str *out)
{
    struct str want = str_c(key);
    size_t at = spaces(obj, 1);

    while (at < obj.n && obj.p[at] == '"') {
        size_t n = json_string_span(str_skip(obj, at)), value, len;
        bool is = n == want.n + 2 && !memcmp(obj.p + at + 1, want.p, want.n);
        value = spaces(obj, spaces(obj, at + n) + 1); /* behind ':' */
        len = json_value_span(str_skip(obj, value));
        if (!n || !len) return false;
        if (is) return *out = str_of(obj.p + value, len), true;
        at = spaces(obj, value + len);
        if (at < obj.n && obj.p[at] == ',') at = spaces(obj, at + 1);
    }
    return false;
}

bool json_valid(struct str s)
{
    json_t *j = json_loadb(s.n ? s.p : "", s.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);

    json_decref(j);
    return j != NULL;
}

/* ---- {"name": ..., "arguments": ...} ---- */

static const char *const name_keys[] = { "name", "tool_name", "function" },
                         *const id_keys[] = { "id", "tool_call_id" },
                         *const args_keys[] = { "arguments", "parameters", "args" };

static bool first_member(struct str obj, const char *const *keys, size_t n, struct str *out)
{
    for (size_t i = 0; i < n; i++)
        if (member(obj, keys[i], out)) return true;
    return false;
}

static json_t *text_of(struct str raw)
{
    json_t *v = raw.n && raw.p[0] == '"'
                    ? json_loadb(raw.p, raw.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL)
                    : NULL;

    return v;
}

static struct str str_json(const json_t *v)
{
    return v ? str_of(json_string_value(v), json_string_length(v)) : STR("");
}

/* {"name": {...}}, with nothing else: the name is the key. */
static bool sole_member(struct str obj, json_t **name, struct str *args)
{
    json_t *j = json_loadb(obj.p, obj.n, JSON_ALLOW_NUL, NULL);
    void *at = json_object_iter(j);
    bool is = json_object_size(j) == 1 && json_is_object(json_object_iter_value(at));

    if (is) {
        *name = json_string(json_object_iter_key(at));
        is = member(obj, json_object_iter_key(at), args);
    }
    json_decref(j);
    return is;
}

static bool send_object(struct str obj, const struct tool_sink *sink)
{
    struct str raw, args = STR("{}"), id = STR("");
    json_t *name = NULL, *text = NULL, *id_text = NULL;
    bool sent = false;

    if (member(obj, "function", &raw) && raw.p[0] == '{') obj = raw;
    if (first_member(obj, name_keys, 3, &raw)) name = text_of(raw);
    if (name) first_member(obj, args_keys, 3, &args);
    else if (!sole_member(obj, &name, &args)) goto out;
    if (args.p[0] == '"') { /* arguments as a text that holds JSON */
        text = text_of(args);
        args = str_json(text);
    }
    if (str_is(args, "null") || !args.n) args = STR("{}");
    if (first_member(obj, id_keys, 2, &id)) id_text = text_of(id);
    if (!json_string_length(name) || !json_valid(args)) goto out;
    sink->call(sink->arg, &(struct tool_call){ str_json(name), args, str_json(id_text) });
    sent = true;
out:
    json_decref(name);
    json_decref(text);
    json_decref(id_text);
    return sent;
}

static bool is_callable(struct str obj)
{
    struct str raw;
    json_t *j;
    bool is;

    if (obj.n < 2 || obj.p[0] != '{') return false;
    if (first_member(obj, name_keys, 3, &raw)) return true;
    j = json_loadb(obj.p, obj.n, JSON_ALLOW_NUL, NULL);
    is = json_object_size(j) == 1 && json_is_object(json_object_iter_value(json_object_iter(j)));
    json_decref(j);
    return is;
}

/* Behind "```json", if that is there; not a byte further than is sure. */
static size_t skip_fence(struct str text, size_t at)
{
    static const char *const fences[] = { "```json", "```" };

    if (str_starts(str_c(fences[0]), str_skip(text, at))) return text.n;
    for (size_t i = 0; i < 2; i++)
        if (str_starts(str_skip(text, at), str_c(fences[i])))
            return spaces(text, at + strlen(fences[i]));
    return at;
}

/* An object or a list of them; all must be calls before the first is sent. */
static ptrdiff_t read_json(struct str text, const struct tool_sink *sink)
{
    size_t at = skip_fence(text, spaces(text, 0)), n, from;
    bool list;

    if (at >= text.n) return 0;
    if (text.p[at] != '{' && text.p[at] != '[') return -1;
    if (!(n = json_span(str_skip(text, at)))) return 0;
    if (!json_valid(str_of(text.p + at, n))) return -1;
    list = text.p[at] == '[';
    for (int send = 0; send < 2; send++) {
        for (from = at + list; from < at + n;) {
            struct str one;
            while (from < at + n && (isspace((unsigned char)text.p[from]) || text.p[from] == ','))
                from++;
            if (text.p[from] == ']') break;
            one = str_of(text.p + from, json_value_span(str_skip(text, from)));
            if (!one.n || (send ? !send_object(one, sink) && !list : !is_callable(one))) return -1;
            from += one.n;
        }
    }
    return (ptrdiff_t)(at + n);
}

ptrdiff_t toolcall_object(struct str text, const struct tool_sink *sink)
{
    size_t n = json_span(text);

    if (n) send_object(str_take(text, n), sink);
    return (ptrdiff_t)n;
}

/* ---- name, then arguments ---- */

bool toolcall_named(struct str name, struct str args, struct str id, const struct tool_sink *sink)
{
    name = str_trim(name);
    args = str_trim(args);
    if (!args.n) args = STR("{}");
    if (!name.n || !json_valid(args)) return false;
    sink->call(sink->arg, &(struct tool_call){ name, args, id });
    return true;
}

static ptrdiff_t read_mistral(struct str text, const struct tool_sink *sink)
{
    struct str rest, name, id = STR("");
    size_t at = spaces(text, 0), n = at;
    ptrdiff_t args;

    if (at >= text.n) return 0;
    if (text.p[at] == '[' || text.p[at] == '{') return read_json(text, sink);
    while (n < text.n && text.p[n] != '[' && text.p[n] != '{') n++;
    if (n - at > 256) return -1; /* no name is that long */
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
    at = spaces(rest, 0);
    if (at >= rest.n) return 0;
    if (rest.p[at] != '{') return -1;
    if (!(n = json_span(str_skip(rest, at)))) return 0;
    if (!toolcall_named(name, str_of(rest.p + at, n), id, sink)) return -1;
    return rest.p + at + n - text.p;
}

/* ---- all of them ---- */

/* An answer that is nothing but calls: JSON, or Python's way. */
static ptrdiff_t read_bare(struct str text, const struct tool_sink *sink)
{
    ptrdiff_t n = read_json(text, sink);
    size_t at = spaces(text, 0), span;

    if (n >= 0 || text.p[at] != '[' || !(span = json_span(str_skip(text, at)))) return n;
    return toolcall_python(str_of(text.p + at, span), sink) ? (ptrdiff_t)(at + span) : -1;
}

static bool send_body(const struct toolfamily *f, struct str body, const json_t *tools,
                      const struct tool_sink *sink)
{
    switch (f->payload) {
    case PAYLOAD_NAMED:
    case PAYLOAD_KIMI:
    case PAYLOAD_SOLAR: return toolcall_separated(f, body, sink);
    case PAYLOAD_PYTHON: return toolcall_python(body, sink) || read_json(body, sink) > 0;
    case PAYLOAD_GEMMA: return toolcall_gemma(body, f->sep, sink);
    default: return toolcall_tagged(f->tags, body, tools, sink);
    }
}

ptrdiff_t toolcall_read(const struct toolfamily *f, struct str text, bool over, const json_t *tools,
                        const struct tool_sink *sink)
{
    struct str rest = text;
    size_t at = 0;
    ptrdiff_t end;

    if (f->payload == PAYLOAD_JSON) return read_json(text, sink);
    if (f->payload == PAYLOAD_BARE) return read_bare(text, sink);
    if (f->payload == PAYLOAD_MISTRAL) return read_mistral(text, sink);
    while ((end = str_find(rest, str_c(f->close))) >= 0) {
        at += (size_t)end;
        if (!toolcall_inside_value(f, str_take(text, at), tools))
            return send_body(f, str_take(text, at), tools, sink)
                       ? (ptrdiff_t)(at + strlen(f->close))
                       : -1;
        at += strlen(f->close);
        rest = str_skip(text, at);
    }
    if (!over) return 0;
    return send_body(f, text, tools, sink) ? (ptrdiff_t)text.n : -1;
}
