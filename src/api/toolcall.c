#include "api/toolcall.h"

#include "base/jsonw.h"

#include <ctype.h>
#include <stdio.h>

/* ---- JSON as text ---- */

static size_t string_span(struct str s)                  /* s begins with '"' */
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
        if (s.p[i] == '"' && (n = string_span(str_skip(s, i))) == 0) return 0;
        if (s.p[i] == '{' || s.p[i] == '[') depth++;
        if ((s.p[i] == '}' || s.p[i] == ']') && --depth == 0) return i + 1;
        i += n;
    }
    return 0;
}

static size_t value_span(struct str s)
{
    size_t n = 0;

    if (!s.n) return 0;
    if (s.p[0] == '"') return string_span(s);
    if (s.p[0] == '{' || s.p[0] == '[') return json_span(s);
    while (n < s.n && !strchr(",}] \t\r\n", s.p[n])) n++;
    return n;
}

static size_t spaces(struct str s, size_t at)
{
    while (at < s.n && isspace((unsigned char)s.p[at])) at++;
    return at;
}

/* The value of a member of an object that is known to be JSON, as it was written. */
static bool member(struct str obj, const char *key, struct str *out)
{
    struct str want = str_c(key);
    size_t at = spaces(obj, 1);

    while (at < obj.n && obj.p[at] == '"') {
        size_t n = string_span(str_skip(obj, at)), value, len;
        bool is = n == want.n + 2 && !memcmp(obj.p + at + 1, want.p, want.n);
        value = spaces(obj, spaces(obj, at + n) + 1);    /* behind ':' */
        len = value_span(str_skip(obj, value));
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

static const char *const name_keys[] = { "name", "tool_name", "function" }, *const id_keys[] = { "id", "tool_call_id" },
                  *const args_keys[] = { "arguments", "parameters", "args" };

static bool first_member(struct str obj, const char *const *keys, size_t n, struct str *out)
{
    for (size_t i = 0; i < n; i++)
        if (member(obj, keys[i], out)) return true;
    return false;
}

static json_t *text_of(struct str raw)
{
    json_t *v = raw.n && raw.p[0] == '"' ? json_loadb(raw.p, raw.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL) : NULL;

    return v;
}

static struct str str_json(const json_t *v) { return v ? str_of(json_string_value(v), json_string_length(v)) : STR(""); }

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
    if (args.p[0] == '"') {                              /* arguments as a text that holds JSON */
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

/* An object or a list of them; all must be calls before the first is sent. */
static ptrdiff_t read_json(struct str text, const struct tool_sink *sink)
{
    size_t at = spaces(text, 0), n, from;
    bool list;

    if (at >= text.n) return 0;
    if (text.p[at] != '{' && text.p[at] != '[') return -1;
    if (!(n = json_span(str_skip(text, at)))) return 0;
    if (!json_valid(str_of(text.p + at, n))) return -1;
    list = text.p[at] == '[';
    for (int send = 0; send < 2; send++) {
        for (from = at + list; from < at + n;) {
            struct str one;
            while (from < at + n && (isspace((unsigned char)text.p[from]) || text.p[from] == ',')) from++;
            if (text.p[from] == ']') break;
            one = str_of(text.p + from, value_span(str_skip(text, from)));
            if (!one.n || (send ? !send_object(one, sink) && !list : !is_callable(one))) return -1;
            from += one.n;
        }
    }
    return (ptrdiff_t)(at + n);
}

/* ---- name, then arguments ---- */

static bool send_named(struct str name, struct str args, struct str id, const struct tool_sink *sink)
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
    if (n >= text.n) return n - at > 256 ? -1 : 0;
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
    if (!send_named(name, str_of(rest.p + at, n), id, sink)) return -1;
    return rest.p + at + n - text.p;
}

/* Inside ```json ... ```, or as it is. */
static struct str unfenced(struct str s)
{
    ptrdiff_t end;

    s = str_trim(s);
    if (!str_starts(s, STR("```"))) return s;
    s = str_skip(s, 3);
    if (str_starts(s, STR("json"))) s = str_skip(s, 4);
    end = str_find(s, STR("```"));
    return str_trim(end < 0 ? s : str_take(s, (size_t)end));
}

static bool send_deepseek(struct str body, const char *sep, const struct tool_sink *sink)
{
    ptrdiff_t at = str_find(body, str_c(sep)), line;
    struct str left, right;

    if (at < 0) return false;
    left = str_take(body, (size_t)at);
    right = str_skip(body, (size_t)at + strlen(sep));
    if (str_find(right, STR("```")) >= 0 && (line = str_find(right, STR("\n"))) >= 0)
        return send_named(str_take(right, (size_t)line), unfenced(str_skip(right, (size_t)line)), STR(""), sink);
    return send_named(left, right, STR(""), sink);
}

static bool send_kimi(struct str body, const char *sep, const struct tool_sink *sink)
{
    ptrdiff_t at = str_find(body, str_c(sep));
    struct str id, name;

    if (at < 0) return false;
    name = id = str_trim(str_take(body, (size_t)at));
    if (str_starts(name, STR("functions."))) name = str_skip(name, 10);
    for (size_t i = name.n; i-- > 0;)
        if (name.p[i] == ':') {
            name.n = i;
            break;
        }
    return send_named(name, str_skip(body, (size_t)at + strlen(sep)), id, sink);
}

/* ---- arguments as tags ---- */

static const json_t *schema_of(const json_t *tools, struct str name, struct str key)
{
    json_t *tool;
    size_t i;

    json_array_foreach((json_t *)tools, i, tool) {
        const json_t *fn = json_object_get(tool, "function");
        const char *is = json_string_value(json_object_get(fn, "name"));
        if (!is || !str_is(name, is)) continue;
        return json_object_getn(json_object_get(json_object_get(fn, "parameters"), "properties"), key.p, key.n);
    }
    return NULL;
}

static bool wants_text(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");

    if (json_is_string(type)) return !strcmp(json_string_value(type), "string");
    for (size_t i = 0; i < json_array_size(type); i++) {
        const char *one = json_string_value(json_array_get(type, i));
        if (one && !strcmp(one, "string")) return true;
    }
    return false;
}

struct tagged {                  /* an object of arguments on its way */
    struct buf json;
    struct jsonw w;
    const json_t *tools;
    struct str name;
};

/* A text where the tool says so or it is nothing else; JSON where it is JSON. */
static void put_arg(struct tagged *t, struct str key, struct str value)
{
    const json_t *schema = schema_of(t->tools, t->name, key);
    struct str trimmed = str_trim(value);
    char name[256];

    snprintf(name, sizeof name, "%.*s", STR_ARG(str_take(key, sizeof name - 1)));
    jsonw_key(&t->w, name);
    if (!wants_text(schema) && trimmed.n && json_valid(trimmed)) {
        buf_put_str(&t->json, trimmed);
        t->w.comma = true;
        t->w.key = false;
    } else {
        jsonw_str(&t->w, value);
    }
}

/* What stands between two marks; *rest goes on behind the second. */
static bool between(struct str *rest, const char *open, const char *close, struct str *out)
{
    ptrdiff_t from = str_find(*rest, str_c(open)), to;
    struct str inside;

    if (from < 0) return false;
    inside = str_skip(*rest, (size_t)from + strlen(open));
    if ((to = str_find(inside, str_c(close))) < 0) return false;
    *out = str_take(inside, (size_t)to);
    *rest = str_skip(inside, (size_t)to + strlen(close));
    return true;
}

/* One newline off each end: they belong to the tags. */
static struct str without_newlines(struct str s)
{
    if (s.n && s.p[0] == '\n') s = str_skip(s, 1);
    if (s.n && s.p[s.n - 1] == '\n') s.n--;
    return s;
}

static void put_parameters(struct tagged *t, enum payload kind, struct str rest)
{
    struct str key, value;

    if (kind == PAYLOAD_GLM) {
        while (between(&rest, "<arg_key>", "</arg_key>", &key) && between(&rest, "<arg_value>", "</arg_value>", &value))
            put_arg(t, str_trim(key), value);
        return;
    }
    while (between(&rest, kind == PAYLOAD_INVOKE ? "<parameter name=\"" : "<parameter=", kind == PAYLOAD_INVOKE ? "\">" : ">", &key)) {
        ptrdiff_t end = str_find(rest, STR("</parameter>"));
        value = end < 0 ? rest : str_take(rest, (size_t)end);
        put_arg(t, str_trim(key), without_newlines(value));
        rest = end < 0 ? STR("") : str_skip(rest, (size_t)end + 12);
    }
}

static bool send_tagged(enum payload kind, struct str body, const json_t *tools, const struct tool_sink *sink)
{
    struct tagged t = { .tools = tools };
    const char *name_end = kind == PAYLOAD_GLM ? "<arg_key>" : kind == PAYLOAD_INVOKE ? "\">" : ">";
    ptrdiff_t at = str_find(body, str_c(name_end));
    struct str rest;
    bool sent;

    if (at < 0 && kind != PAYLOAD_GLM) return false;
    t.name = str_trim(at < 0 ? body : str_take(body, (size_t)at));
    rest = at < 0 ? STR("") : str_skip(body, (size_t)at + (kind == PAYLOAD_GLM ? 0 : strlen(name_end)));
    if (!t.name.n || str_find(t.name, STR("\n")) >= 0) return false;
    if (str_trim(rest).n && str_trim(rest).p[0] == '{') return send_named(t.name, rest, STR(""), sink);
    t.w.out = &t.json;
    jsonw_obj(&t.w);
    put_parameters(&t, kind, rest);
    jsonw_end(&t.w);
    sent = send_named(t.name, buf_str(&t.json), STR(""), sink);
    buf_release(&t.json);
    return sent;
}

/* A value may hold the mark that ends the call: then the call goes on. */
static bool inside_value(enum payload kind, struct str body)
{
    const char *open = kind == PAYLOAD_GLM ? "<arg_value>" : "<parameter", *close = kind == PAYLOAD_GLM ? "</arg_value>" : "</parameter>";
    ptrdiff_t from;

    if (kind != PAYLOAD_GLM && kind != PAYLOAD_FUNCTION && kind != PAYLOAD_INVOKE) return false;
    while ((from = str_find(body, str_c(open))) >= 0) {
        ptrdiff_t to = str_find(str_skip(body, (size_t)from), str_c(close));
        if (to < 0) return true;
        body = str_skip(body, (size_t)(from + to));
        body = str_skip(body, strlen(close));
    }
    return false;
}

/* ---- [name(k="v")] ---- */

/* One Python literal as JSON; how much of s it takes, 0: it is none. */
static size_t python_value(struct str s, struct buf *out, int depth)
{
    static const struct {
        const char *from, *to;
    } words[] = { { "True", "true" }, { "False", "false" }, { "None", "null" } };
    struct jsonw w = { .out = out };
    size_t at;

    if (!s.n || depth > 32) return 0;
    if (s.p[0] == '"' || s.p[0] == '\'') {
        struct buf text = { 0 };
        for (at = 1; at < s.n && s.p[at] != s.p[0]; at++) {
            if (s.p[at] != '\\' || at + 1 == s.n) buf_putc(&text, s.p[at]);
            else at++, buf_putc(&text, s.p[at] == 'n' ? '\n' : s.p[at] == 't' ? '\t' : s.p[at] == 'r' ? '\r' : s.p[at]);
        }
        if (at < s.n) jsonw_str(&w, buf_str(&text));
        buf_release(&text);
        return at < s.n ? at + 1 : 0;
    }
    for (size_t i = 0; i < 3; i++)
        if (str_starts(s, str_c(words[i].from))) return buf_puts(out, words[i].to), strlen(words[i].from);
    if (s.p[0] == '[' || s.p[0] == '{') {
        char close = s.p[0] == '[' ? ']' : '}';
        buf_putc(out, s.p[0]);
        for (at = spaces(s, 1); at < s.n && s.p[at] != close; at = spaces(s, at)) {
            size_t n;
            if (s.p[at] == ',' || s.p[at] == ':') {
                buf_putc(out, s.p[at++]);
                continue;
            }
            if (!(n = python_value(str_skip(s, at), out, depth + 1))) return 0;
            at += n;
        }
        buf_putc(out, close);
        return at < s.n ? at + 1 : 0;
    }
    at = value_span(str_of(s.p, s.n));
    while (at > 0 && s.p[at - 1] == ')') at--;
    if (!at || !json_valid(str_take(s, at))) return 0;
    buf_put_str(out, str_take(s, at));
    return at;
}

static size_t name_span(struct str s)
{
    size_t n = 0;

    while (n < s.n && (isalnum((unsigned char)s.p[n]) || (s.p[n] && strchr("_-.", s.p[n])))) n++;
    return n;
}

static size_t send_python_one(struct str s, const struct tool_sink *sink)
{
    struct buf json = { 0 };
    struct jsonw w = { .out = &json };
    size_t n = name_span(s), at = n + 1, value, key;
    bool sent = false;

    if (!n || n >= s.n || s.p[n] != '(') return 0;
    buf_putc(&json, '{');
    for (at = spaces(s, at); at < s.n && s.p[at] != ')'; at = spaces(s, at)) {
        if (s.p[at] == ',') {
            at++;
            continue;
        }
        key = name_span(str_skip(s, at));
        if (!key || at + key >= s.n || s.p[at + key] != '=') goto out;
        if (json.n > 1) buf_putc(&json, ',');
        w.comma = false;
        jsonw_str(&w, str_of(s.p + at, key));
        buf_putc(&json, ':');
        at = spaces(s, at + key + 1);
        if (!(value = python_value(str_skip(s, at), &json, 0))) goto out;
        at += value;
    }
    buf_putc(&json, '}');
    if (at < s.n) sent = send_named(str_take(s, n), buf_str(&json), STR(""), sink);
out:
    buf_release(&json);
    return sent ? at + 1 : 0;
}

static bool send_python(struct str body, const struct tool_sink *sink)
{
    bool any = false;

    body = str_trim(body);
    if (body.n > 1 && body.p[0] == '[' && body.p[body.n - 1] == ']') body = str_of(body.p + 1, body.n - 2);
    while ((body = str_trim(body)).n) {
        size_t n;
        if (body.p[0] == ',') {
            body = str_skip(body, 1);
            continue;
        }
        if (!(n = send_python_one(body, sink))) return any;
        any = true;
        body = str_skip(body, n);
    }
    return any;
}

/* ---- all of them ---- */

static bool send_body(const struct tool_family *f, struct str body, const json_t *tools, const struct tool_sink *sink)
{
    switch (f->payload) {
    case PAYLOAD_NAMED: return send_deepseek(body, f->sep, sink);
    case PAYLOAD_KIMI: return send_kimi(body, f->sep, sink);
    case PAYLOAD_PYTHON: return send_python(body, sink) || read_json(body, sink) > 0;
    default: return send_tagged(f->payload, body, tools, sink);
    }
}

ptrdiff_t toolcall_read(const struct tool_family *f, struct str text, bool over, const json_t *tools,
                        const struct tool_sink *sink)
{
    struct str rest = text;
    size_t at = 0;
    ptrdiff_t end;

    if (f->payload == PAYLOAD_JSON || f->payload == PAYLOAD_BARE) return read_json(text, sink);
    if (f->payload == PAYLOAD_MISTRAL) return read_mistral(text, sink);
    while ((end = str_find(rest, str_c(f->close))) >= 0) {
        at += (size_t)end;
        if (!inside_value(f->payload, str_take(text, at)))
            return send_body(f, str_take(text, at), tools, sink) ? (ptrdiff_t)(at + strlen(f->close)) : -1;
        at += strlen(f->close);
        rest = str_skip(text, at);
    }
    if (!over) return 0;
    return send_body(f, text, tools, sink) ? (ptrdiff_t)text.n : -1;
}
