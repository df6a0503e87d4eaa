/* toolcall_head.c - the beginning of a call: which tool is called, and where its arguments begin.
 *
 * The name of a call is known long before the call is complete. Once it is a known tool and its
 * arguments follow as a JSON object, they can be streamed. All functions return 1: found; 0: more
 * text is needed; -1: the text is not such a beginning, and the call is read as a whole. */
#include "toolcall/toolcall_impl.h"

/* tools: as in a chat request, [{"function": {"name": ...}}, ...]. */
bool toolcall_is_known(const json_t *tools, struct str name)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *is =
            json_object_get(json_object_get(json_array_get(tools, i), "function"), "name");
        if (json_is_string(is) &&
            str_eq(str_of(json_string_value(is), json_string_length(is)), name))
            return true;
    }
    return false;
}

/* names ends with NULL. */
static bool is_in(struct str s, const char *const *names)
{
    for (; *names; names++)
        if (str_is(s, *names)) return true;
    return false;
}

/* The arguments begin with a '{' after white space. */
static int find_args(struct str text, size_t at, struct toolcall_head *h)
{
    h->args = skip_spaces(text, at);
    if (h->args >= text.n) return 0;
    return text.p[h->args] == '{' ? 1 : -1;
}

/* ---- {"name": ..., "arguments": { ---- */

/* Reads a string without escapes at *at and moves after it. */
static int read_plain_string(struct str text, size_t *at, struct str *out)
{
    size_t n;

    if (*at >= text.n) return 0;
    if (text.p[*at] != '"') return -1;
    if (!(n = toolcall_string_span(str_skip(text, *at)))) return 0;
    *out = str_of(text.p + *at + 1, n - 2);
    *at += n;
    return memchr(out->p, '\\', out->n) ? -1 : 1;
}

/* Moves *at after a value that is neither name nor arguments. */
static int skip_value(struct str text, size_t *at)
{
    size_t n = toolcall_value_span(str_skip(text, *at));

    if (!n || *at + n >= text.n) return 0; /* a number may have more digits */
    *at += n;
    return 1;
}

/* Reads the value of a member at *at. 1: the arguments begin here; 2: continue with the next
 * member. */
static int read_member(struct str text, size_t *at, struct str key, const json_t *tools,
                       struct toolcall_head *h)
{
    bool is_string = text.p[*at] == '"', is_args = is_in(key, toolcall_args_keys);
    int rc;

    if (is_in(key, toolcall_name_keys) && is_string) {
        if ((rc = read_plain_string(text, at, &h->name)) <= 0) return rc;
        return toolcall_is_known(tools, h->name) ? 2 : -1;
    }
    if (is_in(key, toolcall_id_keys) && is_string)
        return (rc = read_plain_string(text, at, &h->id)) > 0 ? 2 : rc;
    if (is_in(key, toolcall_name_keys) || text.p[*at] == '[') return -1;
    if (text.p[*at] != '{') return is_args ? -1 : skip_value(text, at) ? 2 : 0;
    if (!h->name.n && !is_args && toolcall_is_known(tools, key)) h->name = key; /* {"f": {...}} */
    else if (!h->name.n || !is_args) return -1;
    h->args = *at;
    return 1;
}

/* The members before the arguments, whatever their order. */
static int read_object(struct str text, size_t at, const json_t *tools, struct toolcall_head *h)
{
    struct str key;
    int rc;

    for (at = skip_spaces(text, at + 1);; at = skip_spaces(text, at)) {
        if (at < text.n && text.p[at] == ',') at = skip_spaces(text, at + 1);
        if ((rc = read_plain_string(text, &at, &key)) <= 0) return rc;
        at = skip_spaces(text, at);
        if (at >= text.n) return 0;
        if (text.p[at] != ':') return -1;
        at = skip_spaces(text, at + 1);
        if (at >= text.n) return 0;
        if ((rc = read_member(text, &at, key, tools, h)) != 2) return rc;
    }
}

/* An object, or the first object of an array, perhaps inside of a ``` block. */
static int read_json(struct str text, bool in_list, const json_t *tools, struct toolcall_head *h)
{
    size_t at = skip_spaces(text, 0);

    h->tail = TAIL_OBJECT;
    h->list = in_list;
    if (!in_list) at = toolcall_skip_fence(text, at);
    if (at < text.n && text.p[at] == '[' && !in_list) {
        h->list = true;
        at = skip_spaces(text, at + 1);
    }
    if (at >= text.n) return 0;
    return text.p[at] == '{' ? read_object(text, at, tools, h) : -1;
}

/* ---- a name and a mark after it ---- */

/* Texts before the arguments are bounded: without its mark a text of TOOLCALL_MAX_NAME bytes is no
 * head, and nothing is held back for longer than that. */

/* The same as JSON, or name[CALL_ID]id[ARGS]{, of which the marks may be missing. */
static int read_mistral(struct str text, bool in_list, const json_t *tools, struct toolcall_head *h)
{
    size_t at = skip_spaces(text, 0), n = at;
    struct str rest;
    ptrdiff_t end;

    if (at >= text.n) return 0;
    if (in_list || text.p[at] == '[' || text.p[at] == '{')
        return read_json(text, in_list, tools, h);
    while (n < text.n && text.p[n] != '[' && text.p[n] != '{') n++;
    if (n - at > TOOLCALL_MAX_NAME) return -1;
    if (n >= text.n) return 0;
    h->name = str_trim(str_of(text.p + at, n - at));
    if (!toolcall_is_known(tools, h->name)) return -1;
    rest = str_skip(text, n);
    if (str_starts(rest, STR("[CALL_ID]"))) {
        if ((end = str_find(rest, STR("[ARGS]"))) < 0) return rest.n > TOOLCALL_MAX_NAME ? -1 : 0;
        h->id = str_trim(str_of(rest.p + 9, (size_t)end - 9));
        return find_args(text, n + (size_t)end + 6, h);
    }
    if (text.p[n] == '[') {
        if (rest.n < 9 && (str_starts(STR("[ARGS]"), rest) || str_starts(STR("[CALL_ID]"), rest)))
            return 0;
        if (!str_starts(rest, STR("[ARGS]"))) return -1;
        n += 6;
    }
    return find_args(text, n, h);
}

/* name SEP {, or type SEP name \n ```json {. left: the text before SEP; at: the position after it. */
static int read_named(struct str left, struct str text, size_t at, const json_t *tools,
                      struct toolcall_head *h)
{
    static const char *const fences[] = { "```json", "```" };
    struct str right = str_skip(text, at), rest;
    ptrdiff_t line;
    int rc = find_args(text, at, h);

    if (rc >= 0) {
        h->name = str_trim(left);
        return rc && toolcall_is_known(tools, h->name) ? 1 : rc ? -1 : 0;
    }
    if ((line = str_find(right, STR("\n"))) < 0) return right.n > TOOLCALL_MAX_NAME ? -1 : 0;
    h->name = str_trim(str_take(right, (size_t)line));
    h->tail = TAIL_FENCE;
    if (!toolcall_is_known(tools, h->name)) return -1;
    at = skip_spaces(text, at + (size_t)line);
    rest = str_skip(text, at);
    if (rest.n < 7 && str_starts(str_c(fences[0]), rest)) return 0;
    for (int i = 0; i < 2; i++)
        if (str_starts(rest, str_c(fences[i]))) return find_args(text, at + strlen(fences[i]), h);
    return -1;
}

/* Everything before the separator is the name, an id, or both. */
static int read_separated(const struct toolfamily *f, struct str text, const json_t *tools,
                          struct toolcall_head *h)
{
    ptrdiff_t sep = str_find(text, str_c(f->sep)), at;
    struct str left;
    size_t after;

    if (sep < 0) return text.n > 2 * TOOLCALL_MAX_NAME ? -1 : 0;
    left = str_take(text, (size_t)sep);
    after = (size_t)sep + strlen(f->sep);
    if (f->payload == PAYLOAD_NAMED) return read_named(left, text, after, tools, h);
    if (f->payload == PAYLOAD_SOLAR) {
        if ((at = str_find(left, STR(TOOLCALL_SOLAR_NAME))) < 0) return -1;
        h->id = str_trim(str_take(left, (size_t)at));
        h->name = str_trim(str_skip(left, (size_t)at + strlen(TOOLCALL_SOLAR_NAME)));
    } else {
        h->id = str_trim(left);
        h->name = toolcall_kimi_name(h->id);
    }
    return toolcall_is_known(tools, h->name) ? find_args(text, after, h) : -1;
}

/* Arguments that are a JSON object in place of tags. */
static int read_tagged(const struct toolfamily_tags *g, struct str text, const json_t *tools,
                       struct toolcall_head *h)
{
    ptrdiff_t at = g->name_end ? str_find(text, str_c(g->name_end)) : -1, skip = 0;
    size_t after;

    if (!g->name_end) return -1;
    if (at < 0) return text.n > TOOLCALL_MAX_NAME ? -1 : 0;
    h->name = str_trim(str_take(text, (size_t)at));
    if (!toolcall_is_known(tools, h->name)) return -1;
    after = (size_t)at + strlen(g->name_end);
    if (g->name_skip) {
        if ((skip = str_find(str_skip(text, after), str_c(g->name_skip))) < 0)
            return text.n > 2 * TOOLCALL_MAX_NAME ? -1 : 0;
        after += (size_t)skip + strlen(g->name_skip);
    }
    return find_args(text, after, h);
}

int toolcall_read_head(const struct toolfamily *f, struct str text, bool in_list,
                       const json_t *tools, struct toolcall_head *out)
{
    *out = (struct toolcall_head){ .name = STR(""), .id = STR("") };
    switch (f->payload) {
    case PAYLOAD_JSON:
    case PAYLOAD_BARE: return read_json(text, in_list, tools, out);
    case PAYLOAD_MISTRAL: return read_mistral(text, in_list, tools, out);
    case PAYLOAD_NAMED:
    case PAYLOAD_KIMI:
    case PAYLOAD_SOLAR: return read_separated(f, text, tools, out);
    case PAYLOAD_TAGS: return read_tagged(f->tags, text, tools, out);
    default: return -1;
    }
}
