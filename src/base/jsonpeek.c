/* jsonpeek.c - one pass over the bytes: strings are skipped, brackets are counted. */
#include "base/jsonpeek.h"

#include <string.h>

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static const char *skip_space(const char *p, const char *end)
{
    while (p < end && is_space(*p)) p++;
    return p;
}

/* p is behind the opening quote; the result is at the closing one, or NULL. */
static const char *find_quote(const char *p, const char *end, bool *escaped)
{
    *escaped = false;
    for (; p < end; p++) {
        if (*p == '"') return p;
        if (*p != '\\') continue;
        *escaped = true;
        p++;
    }
    return NULL;
}

/* From a value to the comma or bracket behind it; NULL: the text ends before. */
static const char *skip_value(const char *p, const char *end)
{
    bool escaped;

    for (int depth = 0; p < end; p++) {
        if (*p == '"') {
            if (!(p = find_quote(p + 1, end, &escaped))) return NULL;
        } else if (*p == '{' || *p == '[') {
            depth++;
        } else if (*p == '}' || *p == ']') {
            if (depth-- == 0) return p;
        } else if (*p == ',' && depth == 0) {
            return p;
        }
    }
    return NULL;
}

/* The characters of a number; more is not looked at, the parser does that. */
static struct str number_at(const char *p, const char *end)
{
    const char *begin = p;

    while (p < end && ((*p >= '0' && *p <= '9') || (*p && strchr("+-.eE", *p)))) p++;
    return str_of(begin, (size_t)(p - begin));
}

static struct str literal_at(const char *p, const char *end)
{
    struct str s = str_of(p, (size_t)(end - p));

    if (str_starts(s, STR("true"))) return str_take(s, 4);
    return str_starts(s, STR("false")) ? str_take(s, 5) : STR("");
}

/* p is at a value. */
static void read_value(struct jsonpeek_member *m, const char *p, const char *end)
{
    const char *close;
    bool escaped;

    m->found = JSONPEEK_ABSENT;
    m->is_text = p < end && *p == '"';
    if (m->is_text) {
        close = find_quote(p + 1, end, &escaped);
        m->found = close && !escaped ? JSONPEEK_FOUND : JSONPEEK_UNKNOWN;
        if (m->found == JSONPEEK_FOUND) m->value = str_of(p + 1, (size_t)(close - p - 1));
    } else if ((m->value = literal_at(p, end)).n || (m->value = number_at(p, end)).n) {
        m->found = JSONPEEK_FOUND;
    }
}

/* p is behind the opening bracket. false: the rest is not as it should be. */
static bool read_members(const char *p, const char *end, struct jsonpeek_member *m, int n)
{
    const char *name, *close;
    bool escaped;

    for (;;) {
        p = skip_space(p, end);
        if (p < end && *p == '}') return true;
        if (p == end || *p != '"') return false;
        name = p + 1;
        if (!(close = find_quote(name, end, &escaped))) return false;
        p = skip_space(close + 1, end);
        if (p == end || *p++ != ':') return false;
        if (escaped) return false; /* the name could be one that is looked for */
        p = skip_space(p, end);
        for (int i = 0; i < n; i++)
            if (str_is(str_of(name, (size_t)(close - name)), m[i].key)) read_value(&m[i], p, end);
        if (!(p = skip_value(p, end))) return false;
        if (*p == '}') return true;
        if (*p++ != ',') return false;
    }
}

void jsonpeek_members(struct str json, struct jsonpeek_member *m, int n)
{
    const char *end = json.p + json.n, *p = skip_space(json.p, end);

    for (int i = 0; i < n; i++) m[i].found = JSONPEEK_ABSENT, m[i].value = (struct str){ 0 };
    if (p < end && *p == '{' && read_members(p + 1, end, m, n)) return;
    for (int i = 0; i < n; i++) m[i].found = JSONPEEK_UNKNOWN;
}

enum jsonpeek jsonpeek_text(struct str json, const char *key, struct buf *out)
{
    struct jsonpeek_member m = { .key = key };

    jsonpeek_members(json, &m, 1);
    if (m.found != JSONPEEK_FOUND) return m.found;
    if (!m.is_text) return JSONPEEK_ABSENT;
    buf_put_str(out, m.value);
    return JSONPEEK_FOUND;
}
