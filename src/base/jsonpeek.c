/* jsonpeek.c - one pass over the bytes: strings are skipped, brackets are counted. */
#include "base/jsonpeek.h"

#include <string.h>

enum { MOST_VALUE = 64 << 10 }; /* bytes; a longer value is not read */

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

/* ---- the pass ---- */

enum place {
    AT_START, /* of the text */
    AT_NAME,  /* or at the end of the object */
    IN_NAME,
    AT_COLON,
    AT_VALUE,
    IN_VALUE,
    AT_END
};

static void set_unknown(struct jsonpeek_scan *s)
{
    for (int i = 0; i < s->n; i++) s->m[i].found = JSONPEEK_UNKNOWN;
    s->place = AT_END;
}

/* Inside a string. true: p is behind its closing quote. */
static bool pass_string(struct jsonpeek_scan *s, const char **p, const char *stop)
{
    for (; *p < stop; ++*p) {
        if (s->skips) {
            s->skips = false;
        } else if (**p == '"') {
            ++*p;
            return true;
        } else if (**p == '\\') {
            s->skips = s->escaped = true;
        }
    }
    return false;
}

/* true: p is at the comma or bracket behind the value. */
static bool pass_value(struct jsonpeek_scan *s, const char **p, const char *stop)
{
    while (*p < stop) {
        char c = **p;
        if (s->in_string) {
            s->in_string = !pass_string(s, p, stop);
            continue;
        }
        if (c == '"') s->in_string = true;
        else if (c == '{' || c == '[') s->depth++;
        else if (c == ',' && s->depth == 0) return true;
        else if ((c == '}' || c == ']') && s->depth-- == 0) return true;
        ++*p;
    }
    return false;
}

static void note_value(struct jsonpeek_scan *s, const char *end)
{
    const char *value = s->json.p + s->value_at;
    struct str name = str_of(s->json.p + s->name_at, s->name_n);

    for (int i = 0; i < s->n; i++) {
        if (!str_is(name, s->m[i].key)) continue;
        if (end - value <= MOST_VALUE) read_value(&s->m[i], value, end);
        else s->m[i].found = JSONPEEK_UNKNOWN;
    }
}

/* p < stop, and not at white space unless it is in a name or a value. Returns where to go on. */
static const char *pass_part(struct jsonpeek_scan *s, const char *p, const char *stop)
{
    switch (s->place) {
    case AT_START:
        if (*p != '{') return set_unknown(s), p;
        s->place = AT_NAME;
        return p + 1;
    case AT_NAME:
        if (*p == '}') return s->place = AT_END, p;
        if (*p != '"') return set_unknown(s), p;
        s->name_at = (size_t)(p + 1 - s->json.p);
        s->escaped = s->skips = false;
        s->place = IN_NAME;
        return p + 1;
    case IN_NAME:
        if (!pass_string(s, &p, stop)) return p;
        s->name_n = (size_t)(p - 1 - s->json.p) - s->name_at;
        s->place = AT_COLON;
        return p;
    case AT_COLON:
        /* A name with escapes could be one that is looked for. */
        if (*p != ':' || s->escaped) return set_unknown(s), p;
        s->place = AT_VALUE;
        return p + 1;
    case AT_VALUE:
        s->value_at = (size_t)(p - s->json.p);
        s->depth = 0;
        s->in_string = s->skips = false;
        s->place = IN_VALUE;
        return p;
    case IN_VALUE:
        if (!pass_value(s, &p, stop)) return p;
        if (*p == ']') return set_unknown(s), p;
        note_value(s, p);
        s->place = *p == '}' ? AT_END : AT_NAME;
        return p + 1;
    default: return p;
    }
}

void jsonpeek_begin(struct jsonpeek_scan *s, struct str json, struct jsonpeek_member *m, int n)
{
    *s = (struct jsonpeek_scan){ .json = json, .m = m, .n = n, .place = AT_START };
    for (int i = 0; i < n; i++) m[i].found = JSONPEEK_ABSENT, m[i].value = (struct str){ 0 };
    if (json.n == 0) set_unknown(s);
}

bool jsonpeek_step(struct jsonpeek_scan *s, size_t most)
{
    struct str rest = str_take(str_skip(s->json, s->at), most);
    const char *p = rest.p, *stop = p + rest.n;

    while (p < stop && s->place != AT_END) {
        if (s->place != IN_NAME && s->place != IN_VALUE && (p = skip_space(p, stop)) == stop) break;
        p = pass_part(s, p, stop);
    }
    s->at += (size_t)(p - rest.p);
    if (s->at == s->json.n && s->place != AT_END) set_unknown(s); /* the text ends too early */
    return s->place == AT_END;
}

void jsonpeek_members(struct str json, struct jsonpeek_member *m, int n)
{
    struct jsonpeek_scan s;

    jsonpeek_begin(&s, json, m, n);
    while (!jsonpeek_step(&s, json.n)) continue;
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
