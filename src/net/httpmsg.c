#include "net/httpmsg.h"

#include <strings.h>

enum { CHUNK_SIZE, CHUNK_EXT, CHUNK_SIZE_LF, CHUNK_DATA, CHUNK_DATA_CR, CHUNK_DATA_LF, TRAILER, TRAILER_LF };
enum { MAX_CHUNK_LINE = 256, MAX_TRAILERS = 8192 };

void httpmsg_init(struct httpmsg *m, size_t max_head, size_t max_body)
{
    *m = (struct httpmsg){ .max_head = max_head, .max_body = max_body };
}

void httpmsg_reset(struct httpmsg *m)
{
    struct buf head = m->head, body = m->body, path = m->path;

    if (body.cap > 1 << 20) buf_release(&body);          /* a large one is not kept for the next */
    httpmsg_init(m, m->max_head, m->max_body);
    m->head = head, m->body = body, m->path = path;
    buf_clear(&m->head), buf_clear(&m->body), buf_clear(&m->path);
}

void httpmsg_release(struct httpmsg *m)
{
    buf_release(&m->head);
    buf_release(&m->body);
    buf_release(&m->path);
}

bool httpmsg_is_empty(const struct httpmsg *m) { return m->state == MSG_HEAD && m->head.n == 0; }

static bool bad(struct httpmsg *m, int status, const char *why)
{
    m->state = MSG_BAD;
    m->status = status;
    m->why = why;
    m->keep_alive = false;
    return false;
}

struct str httpmsg_header(const struct httpmsg *m, const char *name)
{
    size_t n = strlen(name);

    for (int i = 0; i < m->n_headers; i++)
        if (m->headers[i].name.n == n && strncasecmp(m->headers[i].name.p, name, n) == 0)
            return m->headers[i].value;
    return (struct str){ 0 };
}

static bool is_token(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool all_token(struct str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (!is_token(s.p[i])) return false;
    return s.n > 0;
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool decode_path(struct httpmsg *m, struct str path)
{
    for (size_t i = 0; i < path.n; i++) {
        int c = (unsigned char)path.p[i];
        if (c == '%') {
            int a = i + 2 < path.n ? hex(path.p[i + 1]) : -1, b = a >= 0 ? hex(path.p[i + 2]) : -1;
            if (a < 0 || b < 0) return bad(m, 400, "a bad percent escape in the path");
            c = a * 16 + b;
            if (c == 0) return bad(m, 400, "a NUL in the path");
            i += 2;
        }
        buf_putc(&m->path, (char)c);
    }
    return true;
}

/* origin-form, absolute-form (its host does not matter here), or "*". */
static bool parse_target(struct httpmsg *m, struct str t)
{
    ptrdiff_t at;

    m->target = t;
    for (size_t i = 0; i < t.n; i++)
        if ((unsigned char)t.p[i] <= ' ' || t.p[i] == 0x7f) return bad(m, 400, "a control byte in the request target");
    if (str_starts(t, STR("http://")) || str_starts(t, STR("https://"))) {
        t = str_skip(t, t.p[4] == 's' ? 8 : 7);
        at = str_find(t, STR("/"));
        t = at < 0 ? STR("/") : str_skip(t, (size_t)at);
    }
    if (!str_is(t, "*") && (t.n == 0 || t.p[0] != '/')) return bad(m, 400, "the request target must begin with '/'");
    at = str_find(t, STR("?"));
    m->query = at < 0 ? (struct str){ t.p + t.n, 0 } : str_skip(t, (size_t)at + 1);
    return decode_path(m, at < 0 ? t : str_take(t, (size_t)at));
}

static bool parse_line(struct httpmsg *m, struct str line)
{
    ptrdiff_t a = str_find(line, STR(" ")), b;
    struct str rest;

    if (a <= 0) return bad(m, 400, "the request line is not METHOD TARGET HTTP/1.1");
    m->method = str_take(line, (size_t)a);
    rest = str_skip(line, (size_t)a + 1);
    b = str_find(rest, STR(" "));
    if (!all_token(m->method) || b <= 0) return bad(m, 400, "the request line is not METHOD TARGET HTTP/1.1");
    line = str_skip(rest, (size_t)b + 1);
    if (str_is(line, "HTTP/1.1")) m->minor = 1;
    else if (str_is(line, "HTTP/1.0")) m->minor = 0;
    else if (str_starts(line, STR("HTTP/"))) return bad(m, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
    else return bad(m, 400, "the request line does not end with the HTTP version");
    return parse_target(m, str_take(rest, (size_t)b));
}

static bool parse_header(struct httpmsg *m, struct str line)
{
    ptrdiff_t colon = str_find(line, STR(":"));
    struct str value;

    if (line.n && (line.p[0] == ' ' || line.p[0] == '\t')) return bad(m, 400, "a folded header line");
    if (colon <= 0 || !all_token(str_take(line, (size_t)colon))) return bad(m, 400, "a malformed header name");
    value = str_trim(str_skip(line, (size_t)colon + 1));
    for (size_t i = 0; i < value.n; i++)
        if (((unsigned char)value.p[i] < ' ' && value.p[i] != '\t') || value.p[i] == 0x7f)
            return bad(m, 400, "a control byte in a header");
    if (m->n_headers == HTTPMSG_HEADERS) return bad(m, 431, "too many headers");
    m->headers[m->n_headers].name = str_take(line, (size_t)colon);
    m->headers[m->n_headers++].value = value;
    return true;
}

static bool has_word(struct str list, const char *word)
{
    size_t n = strlen(word);

    while (list.n) {
        ptrdiff_t comma = str_find(list, STR(","));
        struct str item = str_trim(comma < 0 ? list : str_take(list, (size_t)comma));
        if (item.n == n && strncasecmp(item.p, word, n) == 0) return true;
        list = comma < 0 ? (struct str){ 0 } : str_skip(list, (size_t)comma + 1);
    }
    return false;
}

static bool parse_length(struct httpmsg *m, struct str v)
{
    size_t n = 0;

    if (v.n == 0) return bad(m, 400, "an empty Content-Length");
    for (size_t i = 0; i < v.n; i++) {
        if (v.p[i] < '0' || v.p[i] > '9') return bad(m, 400, "Content-Length is not a number");
        if (n > m->max_body) continue;                   /* too long anyway; no overflow */
        n = n * 10 + (size_t)(v.p[i] - '0');
    }
    m->left = n;
    return true;
}

/* How long the body is, and how it comes. */
static bool parse_framing(struct httpmsg *m)
{
    struct str length = { 0 }, coding = { 0 };

    for (int i = 0; i < m->n_headers; i++) {
        struct str name = m->headers[i].name, value = m->headers[i].value;
        if (name.n == 14 && strncasecmp(name.p, "content-length", 14) == 0) {
            if (length.p && !str_eq(length, value)) return bad(m, 400, "two lengths that differ");
            length = value;
        } else if (name.n == 17 && strncasecmp(name.p, "transfer-encoding", 17) == 0) {
            if (coding.p) return bad(m, 400, "Transfer-Encoding twice");
            coding = value;
        }
    }
    if (coding.p && length.p) return bad(m, 400, "both Content-Length and Transfer-Encoding");
    if (coding.p && m->minor == 0) return bad(m, 400, "Transfer-Encoding in HTTP/1.0");
    if (coding.p && !(coding.n == 7 && strncasecmp(coding.p, "chunked", 7) == 0))
        return bad(m, 501, "no transfer coding but chunked is known here");
    m->chunked = coding.p != NULL;
    if (length.p && !parse_length(m, length)) return false;
    if (m->left > m->max_body) return bad(m, 413, "the body is longer than the server takes");
    return true;
}

static bool parse_rest(struct httpmsg *m)
{
    struct str connection = httpmsg_header(m, "connection"), expect = httpmsg_header(m, "expect");

    if (m->minor == 1 && !httpmsg_header(m, "host").p) return bad(m, 400, "HTTP/1.1 needs a Host header");
    if (!parse_framing(m)) return false;
    m->keep_alive = m->minor == 1 ? !has_word(connection, "close") : has_word(connection, "keep-alive");
    if (expect.p && m->minor == 1) {
        if (!has_word(expect, "100-continue")) return bad(m, 417, "only 100-continue can be expected");
        m->wants_continue = m->chunked || m->left > 0;
    }
    return true;
}

static void parse_head(struct httpmsg *m)
{
    struct str rest = buf_str(&m->head);
    bool first = true;

    rest.n -= 2;                                         /* the empty line */
    while (rest.n) {
        ptrdiff_t end = str_find(rest, STR("\r\n"));
        struct str line = str_take(rest, (size_t)end);
        if (memchr(line.p, '\n', line.n) || memchr(line.p, '\r', line.n) || memchr(line.p, 0, line.n)) {
            bad(m, 400, "a stray line end or NUL in the head");
            return;
        }
        if (!(first ? parse_line(m, line) : parse_header(m, line))) return;
        first = false;
        rest = str_skip(rest, (size_t)end + 2);
    }
    if (!parse_rest(m)) return;
    m->state = m->chunked || m->left > 0 ? MSG_BODY : MSG_DONE;
}

static size_t feed_head(struct httpmsg *m, const char *p, size_t n)
{
    size_t used = 0;

    if (m->head.n == 0)                                  /* an empty line or two may stand in front */
        while (used < n && (p[used] == '\r' || p[used] == '\n') && m->n_line < 4) used++, m->n_line++;
    for (; used < n; used++) {
        if (m->head.n >= m->max_head) {
            bool in_line = !memchr(m->head.p, '\n', m->head.n);
            bad(m, in_line ? 414 : 431, in_line ? "the request line is too long" : "the headers are too long");
            return used;
        }
        buf_putc(&m->head, p[used]);
        if (p[used] != '\n' || m->head.n < 4 || memcmp(m->head.p + m->head.n - 4, "\r\n\r\n", 4) != 0) continue;
        parse_head(m);
        return used + 1;
    }
    return used;
}

static size_t take_body(struct httpmsg *m, const char *p, size_t n)
{
    if (n > m->left) n = m->left;
    buf_add(&m->body, p, n);
    m->left -= n;
    return n;
}

static bool chunk_digit(struct httpmsg *m, char c)
{
    int v = hex(c);

    if (v < 0) return false;
    m->left = m->left * 16 + (size_t)v;
    if (m->left > m->max_body - m->body.n) {
        bad(m, 413, "the body is longer than the server takes");
        return true;
    }
    m->n_line++;
    return true;
}

/* One byte of a chunk's frame. */
static void chunk_byte(struct httpmsg *m, char c)
{
    switch (m->chunk) {
    case CHUNK_SIZE:
        if (chunk_digit(m, c)) return;
        if (m->n_line == 0) break;
        if (c == '\r') m->chunk = CHUNK_SIZE_LF;
        else if (c == ';' || c == ' ' || c == '\t') m->chunk = CHUNK_EXT;
        else break;
        return;
    case CHUNK_EXT:
        if (++m->n_line > MAX_CHUNK_LINE) break;
        if (c == '\r') m->chunk = CHUNK_SIZE_LF;
        else if ((unsigned char)c < ' ' && c != '\t') break;
        return;
    case CHUNK_SIZE_LF:
        if (c != '\n') break;
        m->n_line = 0;
        m->chunk = m->left ? CHUNK_DATA : TRAILER;
        return;
    case CHUNK_DATA_CR:
        if (c != '\r') break;
        m->chunk = CHUNK_DATA_LF;
        return;
    case CHUNK_DATA_LF:
        if (c != '\n') break;
        m->chunk = CHUNK_SIZE;
        m->n_line = 0;
        return;
    case TRAILER:                                        /* dropped; n_line: bytes of this line */
        if (c == '\r') m->chunk = TRAILER_LF;
        else if (++m->n_seen > MAX_TRAILERS || ((unsigned char)c < ' ' && c != '\t')) break;
        else m->n_line++;
        return;
    case TRAILER_LF:
        if (c != '\n') break;
        if (m->n_line == 0) m->state = MSG_DONE;
        m->n_line = 0;
        m->chunk = TRAILER;
        return;
    default: break;
    }
    bad(m, 400, "a malformed chunk");
}

static size_t feed_chunked(struct httpmsg *m, const char *p, size_t n)
{
    size_t used = 0;

    while (used < n && m->state == MSG_BODY) {
        if (m->chunk != CHUNK_DATA) {
            chunk_byte(m, p[used++]);
            continue;
        }
        used += take_body(m, p + used, n - used);
        if (m->left == 0) m->chunk = CHUNK_DATA_CR;
    }
    return used;
}

size_t httpmsg_feed(struct httpmsg *m, const char *p, size_t n)
{
    size_t used = 0;

    if (m->state == MSG_HEAD) used = feed_head(m, p, n);
    if (m->state != MSG_BODY) return used;
    if (m->n_seen == 0) m->n_line = 0, m->n_seen = 1;    /* the body begins */
    if (m->chunked) return used + feed_chunked(m, p + used, n - used);
    used += take_body(m, p + used, n - used);
    if (m->left == 0) m->state = MSG_DONE;
    return used;
}
