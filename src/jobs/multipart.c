/* multipart.c - states of the parser:
 *
 *     PREAMBLE ──delimiter──► AFTER ──CR LF──► HEAD ──empty line──► DATA ──delimiter──► AFTER
 *                               └──"--"──► EPILOGUE
 *
 * A delimiter is CR LF "--" boundary; the first one needs no CR LF, so the parser begins as if CR LF
 * had come. Matching restarts with the byte that broke it: CR occurs in a delimiter only as its first
 * byte, since a boundary has none. */
#include "jobs/multipart.h"

#include <stdio.h>
#include <strings.h>

enum { PREAMBLE, AFTER, AFTER_CR, AFTER_DASH, HEAD, DATA, EPILOGUE };

static int refuse(struct multipart *m, struct err *e, const char *why)
{
    return m->rc = err_set(e, E_INVALID, "the multipart body is malformed: %s", why);
}

/* ---- parameters of a header: ; name="value" or name=value ---- */

static bool is_space(char c) { return c == ' ' || c == '\t'; }

static struct str skip_space(struct str s)
{
    while (s.n && is_space(s.p[0])) s = str_skip(s, 1);
    return s;
}

/* Reads one parameter. false: the rest is malformed. A backslash escapes a quote; others are kept, as
 * browsers send paths of Windows. */
static bool next_param(struct str *rest, struct str *name, char *value, size_t cap, bool *fits)
{
    size_t n = 0;
    struct str s = skip_space(*rest);

    *fits = true;
    if (!s.n || s.p[0] != ';') return false;
    s = skip_space(str_skip(s, 1));
    while (n < s.n && s.p[n] != '=' && s.p[n] != ';' && !is_space(s.p[n])) n++;
    *name = str_take(s, n);
    s = str_skip(s, n);
    if (!name->n || !s.n || s.p[0] != '=') return false;
    s = str_skip(s, 1);
    n = 0;
    if (s.n && s.p[0] == '"') {
        for (s = str_skip(s, 1); s.n && s.p[0] != '"'; s = str_skip(s, 1)) {
            if (s.p[0] == '\\' && s.n > 1 && s.p[1] == '"') s = str_skip(s, 1);
            if (n + 1 < cap) value[n++] = s.p[0];
            else *fits = false;
        }
        if (!s.n) return false;
        s = str_skip(s, 1);
    } else {
        for (; s.n && s.p[0] != ';' && !is_space(s.p[0]); s = str_skip(s, 1)) {
            if (n + 1 < cap) value[n++] = s.p[0];
            else *fits = false;
        }
    }
    value[n] = 0;
    *rest = s;
    return true;
}

static bool is_word(struct str s, const char *word)
{
    return s.n == strlen(word) && strncasecmp(s.p, word, s.n) == 0;
}

/* The part of a header value before its first parameter. */
static struct str value_head(struct str v)
{
    ptrdiff_t semi = str_find(v, STR(";"));
    return str_trim(semi < 0 ? v : str_take(v, (size_t)semi));
}

static struct str value_params(struct str v)
{
    ptrdiff_t semi = str_find(v, STR(";"));
    return semi < 0 ? STR("") : str_skip(v, (size_t)semi);
}

int multipart_init(struct multipart *m, struct str type, const struct multipart_out *out,
                   struct err *e)
{
    char value[MULTIPART_BOUNDARY + 1], boundary[MULTIPART_BOUNDARY + 1] = "";
    struct str rest = value_params(type), name;
    bool fits;

    *m = (struct multipart){ .out = *out };
    if (!is_word(value_head(type), "multipart/form-data"))
        return m->rc = err_set(e, E_INVALID,
                               "the Content-Type is \"%.*s\", but it must be multipart/form-data",
                               STR_ARG(str_take(type, 60)));
    while (str_trim(rest).n && next_param(&rest, &name, value, sizeof value, &fits))
        if (is_word(name, "boundary") && fits) memcpy(boundary, value, sizeof boundary);
    if (!*boundary || strpbrk(boundary, "\r\n"))
        return m->rc = err_set(e, E_INVALID,
                               "the Content-Type multipart/form-data needs a boundary of 1 to %d "
                               "bytes",
                               MULTIPART_BOUNDARY);
    m->n_delimiter = (size_t)snprintf(m->delimiter, sizeof m->delimiter, "\r\n--%s", boundary);
    m->matched = 2; /* the first delimiter may stand at the very beginning */
    return OK;
}

/* ---- headers of a part ---- */

static int read_disposition(struct multipart *m, struct str v, struct err *e)
{
    char value[MULTIPART_NAME];
    struct str rest = value_params(v), name;
    bool fits;

    if (!is_word(value_head(v), "form-data"))
        return refuse(m, e, "the Content-Disposition of a part is not form-data");
    if (m->part.name[0]) return refuse(m, e, "a part has two Content-Dispositions");
    while (str_trim(rest).n) {
        if (!next_param(&rest, &name, value, sizeof value, &fits))
            return refuse(m, e, "a Content-Disposition cannot be read");
        if (!fits) return refuse(m, e, "the name of a part or a file is too long");
        if (is_word(name, "name")) memcpy(m->part.name, value, sizeof value);
        if (!is_word(name, "filename")) continue;
        memcpy(m->part.filename, value, sizeof value);
        m->part.has_filename = true;
    }
    return OK;
}

/* m->head has all lines, each with its CR LF. */
static int read_head(struct multipart *m, struct err *e)
{
    struct str rest = str_of(m->head, m->n_head);
    int rc = OK;

    m->part = (struct multipart_part){ 0 };
    while (rc == OK && rest.n) {
        ptrdiff_t end = str_find(rest, STR("\r\n")), colon;
        struct str line = str_take(rest, end < 0 ? rest.n : (size_t)end);
        rest = str_skip(rest, line.n + 2);
        if (!line.n) continue;
        if ((colon = str_find(line, STR(":"))) <= 0)
            return refuse(m, e, "a header of a part is not 'Name: value'");
        if (is_word(str_take(line, (size_t)colon), "Content-Disposition"))
            rc = read_disposition(m, str_trim(str_skip(line, (size_t)colon + 1)), e);
    }
    if (rc != OK) return rc;
    if (!m->part.name[0]) return refuse(m, e, "a part has no Content-Disposition with a name");
    if (++m->n_parts > MULTIPART_PARTS) return refuse(m, e, "it has too many parts");
    m->state = DATA;
    m->matched = 0;
    return m->rc = m->out.begin(m->out.arg, &m->part, e);
}

static int feed_head(struct multipart *m, char c, struct err *e)
{
    if (!c) return refuse(m, e, "a header of a part has a NUL byte");
    if (m->n_head == sizeof m->head) return refuse(m, e, "the headers of a part are too long");
    m->head[m->n_head++] = c;
    if (c != '\n') return OK;
    if (m->n_head < 2 || m->head[m->n_head - 2] != '\r')
        return refuse(m, e, "a line feed without a carriage return");
    if (m->n_head == 2 || (m->n_head >= 4 && memcmp(m->head + m->n_head - 4, "\r\n\r\n", 4) == 0))
        return read_head(m, e);
    return OK;
}

/* ---- data ---- */

static int pass_on(struct multipart *m, const char *p, size_t n, struct err *e)
{
    if (n == 0 || m->state != DATA) return OK;
    return m->rc = m->out.data(m->out.arg, p, n, e);
}

/* The delimiter is complete: the part ends. */
static int end_part(struct multipart *m, struct err *e)
{
    bool in_part = m->state == DATA;

    m->state = AFTER;
    m->matched = 0;
    return in_part ? (m->rc = m->out.end(m->out.arg, e)) : OK;
}

/* Data up to the next byte that may begin a delimiter; *used: bytes consumed. */
static int feed_data(struct multipart *m, const char *p, size_t n, size_t *used, struct err *e)
{
    if (m->matched == 0) {
        const char *cr = memchr(p, '\r', n);
        *used = cr ? (size_t)(cr - p) : n;
        if (*used) return pass_on(m, p, *used, e);
    }
    *used = 1;
    if (*p == m->delimiter[m->matched]) {
        return ++m->matched == m->n_delimiter ? end_part(m, e) : OK;
    }
    n = m->matched;
    m->matched = 0;
    *used = 0; /* the byte is looked at again */
    return pass_on(m, m->delimiter, n, e);
}

static int feed_after(struct multipart *m, char c, struct err *e)
{
    int state = m->state;

    if (state == AFTER && is_space(c)) return OK; /* padding */
    if (state == AFTER && c == '-') m->state = AFTER_DASH;
    else if (state == AFTER && c == '\r') m->state = AFTER_CR;
    else if (state == AFTER_DASH && c == '-') m->state = EPILOGUE;
    else if (state == AFTER_CR && c == '\n') m->state = HEAD, m->n_head = 0;
    else return refuse(m, e, "a delimiter is not followed by CR LF or --");
    return OK;
}

int multipart_feed(struct multipart *m, const char *p, size_t n, struct err *e)
{
    size_t used;
    int rc = OK;

    if (m->rc != OK) return err_set(e, m->rc, "the multipart body was refused before");
    for (; n && rc == OK; p += used, n -= used) {
        used = 1;
        switch (m->state) {
        case PREAMBLE:
        case DATA: rc = feed_data(m, p, n, &used, e); break;
        case HEAD: rc = feed_head(m, *p, e); break;
        case EPILOGUE:
            if (*p != '\r' && *p != '\n' && !is_space(*p))
                rc = refuse(m, e, "bytes follow the last delimiter");
            break;
        default: rc = feed_after(m, *p, e); break;
        }
    }
    return rc;
}

int multipart_end(struct multipart *m, struct err *e)
{
    if (m->rc != OK) return err_set(e, m->rc, "the multipart body was refused before");
    if (m->state == EPILOGUE && m->n_parts) return OK;
    return refuse(m, e, m->n_parts ? "it ends before its last delimiter" : "it has no parts");
}
