/* jsonpeek.c - one pass over the bytes: strings are skipped, brackets are counted. */
#include "base/jsonpeek.h"

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

enum jsonpeek jsonpeek_text(struct str json, const char *key, struct buf *out)
{
    const char *end = json.p + json.n, *p = skip_space(json.p, end), *name, *close;
    enum jsonpeek found = JSONPEEK_ABSENT;
    size_t begin = out->n;
    bool escaped;

    if (p == end || *p++ != '{') return JSONPEEK_UNKNOWN;
    for (;;) {
        p = skip_space(p, end);
        if (p < end && *p == '}') return found;
        if (p == end || *p != '"') return JSONPEEK_UNKNOWN;
        name = p + 1;
        if (!(close = find_quote(name, end, &escaped))) return JSONPEEK_UNKNOWN;
        p = skip_space(close + 1, end);
        if (p == end || *p++ != ':') return JSONPEEK_UNKNOWN;
        if (escaped) return JSONPEEK_UNKNOWN; /* the name could be the one that is looked for */
        p = skip_space(p, end);
        if (str_is(str_of(name, (size_t)(close - name)), key)) {
            out->n = begin;
            found = JSONPEEK_ABSENT;
            if (p < end && *p == '"') {
                close = find_quote(p + 1, end, &escaped);
                if (!close || escaped) return JSONPEEK_UNKNOWN;
                buf_add(out, p + 1, (size_t)(close - p - 1));
                found = JSONPEEK_FOUND;
            }
        }
        if (!(p = skip_value(p, end))) return JSONPEEK_UNKNOWN;
        if (*p == '}') return found;
        if (*p++ != ',') return JSONPEEK_UNKNOWN;
    }
}
