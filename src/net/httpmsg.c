#include "net/httpmsg.h"

#include "base/mem.h"

#include <strings.h>

enum {
    MAX_FIELDS = 128,
    MAX_BLANK = 2,        /* empty lines before a request */
    MAX_EXT = 256,        /* bytes of one chunk's extensions */
    KEEP_BYTES = 16 << 10 /* buffers up to here wait for the next request */
};

enum {
    CHUNK_SIZE,
    CHUNK_EXT,
    CHUNK_SIZE_LF,
    CHUNK_DATA,
    CHUNK_DATA_CR,
    CHUNK_DATA_LF,
    CHUNK_TRAILER
};

static void bad(struct httpmsg *m, int status, const char *why)
{
    m->state = HTTPMSG_BAD;
    m->status = status;
    m->why = why;
}

/* ---- characters ---- */

static bool is_control(unsigned char c) { return (c < 0x20 && c != '\t') || c == 0x7f; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_alpha(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

static bool is_one_of(char c, const char *set) { return c && strchr(set, c); }

static int hex_value(char c)
{
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

static bool is_token(struct str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (!is_digit(s.p[i]) && !is_alpha(s.p[i]) && !is_one_of(s.p[i], "!#$%&'*+-.^_`|~"))
            return false;
    return s.n > 0;
}

static bool is_name(struct str s, const char *name)
{
    return s.n == strlen(name) && strncasecmp(s.p, name, s.n) == 0;
}

/* Spaces and tabs only: other white space is no longer here. */
static struct str trim(struct str s)
{
    while (s.n && (s.p[0] == ' ' || s.p[0] == '\t')) s = str_skip(s, 1);
    while (s.n && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t')) s.n--;
    return s;
}

static struct httpmsg_span span_of(const struct httpmsg *m, struct str s)
{
    return (struct httpmsg_span){ (uint32_t)(s.p - m->head.p), (uint32_t)s.n };
}

static struct str text_of(const struct httpmsg *m, struct httpmsg_span s)
{
    return str_of(m->head.p + s.at, s.n);
}

/* ---- the request line ---- */

static enum http_method method_of(struct str s)
{
    static const struct {
        const char *name;
        enum http_method method;
    } known[] = { { "GET", HTTP_GET }, { "HEAD", HTTP_HEAD },     { "POST", HTTP_POST },
                  { "PUT", HTTP_PUT }, { "DELETE", HTTP_DELETE }, { "OPTIONS", HTTP_OPTIONS } };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (str_is(s, known[i].name)) return known[i].method;
    return HTTP_OTHER;
}

/* "http://host/path?query" to "/path?query"; false if it is not that. */
static bool skip_authority(struct str *target)
{
    size_t scheme = target->n >= 7 && strncasecmp(target->p, "http://", 7) == 0    ? 7
                    : target->n >= 8 && strncasecmp(target->p, "https://", 8) == 0 ? 8
                                                                                   : 0;
    size_t i = scheme;

    while (i < target->n && !is_one_of(target->p[i], "/?")) {
        if (target->p[i] == '@') return false; /* nobody logs in this way */
        i++;
    }
    *target = str_skip(*target, i);
    return scheme > 0 && i > scheme;
}

static bool decode_path(struct httpmsg *m, struct str s)
{
    buf_reserve(&m->path, s.n + 1);
    if (s.n == 0) buf_putc(&m->path, '/');
    for (size_t i = 0; i < s.n; i++) {
        int c = (unsigned char)s.p[i];
        if (c == '%') {
            int high = i + 2 < s.n ? hex_value(s.p[i + 1]) : -1;
            int low = i + 2 < s.n ? hex_value(s.p[i + 2]) : -1;
            if (high < 0 || low < 0) return false;
            c = high << 4 | low;
            if (c < 0x20 || c == 0x7f) return false;
            i += 2;
        }
        buf_putc(&m->path, (char)c);
    }
    return true;
}

static void parse_target(struct httpmsg *m, struct str s)
{
    const char *mark;

    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] <= ' ' || s.p[i] == '#' || (unsigned char)s.p[i] > 0x7e) {
            bad(m, 400, "the request target has bytes that must be percent-encoded");
            return;
        }
    if (str_is(s, "*") && m->method == HTTP_OPTIONS) {
        buf_putc(&m->path, '*');
        return;
    }
    if (s.n == 0 || (s.p[0] != '/' && !skip_authority(&s))) {
        bad(m, 400, "the request target is neither a path nor a URL");
        return;
    }
    mark = memchr(s.p, '?', s.n);
    if (mark) m->query = span_of(m, str_skip(s, (size_t)(mark - s.p) + 1));
    if (!decode_path(m, mark ? str_take(s, (size_t)(mark - s.p)) : s))
        bad(m, 400, "bad percent-encoding in the path");
}

static void parse_version(struct httpmsg *m, struct str s)
{
    if (s.n != 8 || !str_starts(s, STR("HTTP/")) || !is_digit(s.p[5]) || s.p[6] != '.' ||
        !is_digit(s.p[7]))
        bad(m, 400, "the request line does not end with an HTTP version");
    else if (s.p[5] != '1' || s.p[7] > '1')
        bad(m, 505, "only HTTP/1.1 and HTTP/1.0 are spoken here");
    else m->minor = s.p[7] - '0';
}

static void parse_request_line(struct httpmsg *m, struct str line)
{
    const char *end = line.p + line.n, *a = memchr(line.p, ' ', line.n), *b;
    struct str method = str_of(line.p, a ? (size_t)(a - line.p) : 0);

    if (!is_token(method)) {
        bad(m, 400, "the request line does not begin with a method");
        return;
    }
    b = memrchr(a, ' ', (size_t)(end - a));
    if (b == a) {
        bad(m, 400, "the request line is not 'METHOD target HTTP/1.1'");
        return;
    }
    m->method_name = span_of(m, method);
    m->method = method_of(method);
    m->has_line = true;
    parse_version(m, str_of(b + 1, (size_t)(end - b) - 1));
    if (m->state == HTTPMSG_BAD) return;
    if (str_is(method, "CONNECT")) bad(m, 501, "this is not a proxy");
    else parse_target(m, str_of(a + 1, (size_t)(b - a) - 1));
}

/* ---- headers ---- */

static void take_length(struct httpmsg *m, struct str v)
{
    uint64_t n = 0;

    for (size_t i = 0; i < v.n; i++) {
        if (!is_digit(v.p[i])) {
            v.n = 0;
            break;
        }
        n = n > (UINT64_MAX - 10) / 10 ? HTTPMSG_NO_LENGTH - 1 : n * 10 + (uint64_t)(v.p[i] - '0');
    }
    if (v.n == 0) bad(m, 400, "Content-Length is not a number");
    else if (m->length != HTTPMSG_NO_LENGTH && m->length != n)
        bad(m, 400, "Content-Length is given twice, with different values");
    else m->length = n;
}

static void take_host(struct httpmsg *m, struct str v)
{
    for (size_t i = 0; i < v.n; i++)
        if (!is_digit(v.p[i]) && !is_alpha(v.p[i]) && !is_one_of(v.p[i], "-._~%!$&'()*+,;=:[]")) {
            bad(m, 400, "Host is not a host name");
            return;
        }
    if (m->n_hosts++) bad(m, 400, "Host is given twice");
}

static void take_coding(struct httpmsg *m, struct str v)
{
    if (m->n_codings++ || v.n == 0) bad(m, 400, "Transfer-Encoding must be given once");
    else if (!is_name(v, "chunked"))
        bad(m, 501, "the only Transfer-Encoding taken here is chunked");
    else m->chunked = true;
}

static void take_connection(struct httpmsg *m, struct str v)
{
    while (v.n) {
        const char *comma = memchr(v.p, ',', v.n);
        size_t n = comma ? (size_t)(comma - v.p) : v.n;
        struct str word = trim(str_take(v, n));
        m->closes |= is_name(word, "close");
        m->keeps |= is_name(word, "keep-alive");
        v = str_skip(v, comma ? n + 1 : n);
    }
}

static void take_expect(struct httpmsg *m, struct str v)
{
    if (m->minor == 0) return;
    if (is_name(v, "100-continue")) m->expects_continue = true;
    else bad(m, 417, "the only Expect known here is 100-continue");
}

static void keep_field(struct httpmsg *m, struct str name, struct str value)
{
    if (m->n_fields == m->cap_fields) {
        m->cap_fields = m->cap_fields ? m->cap_fields * 2 : 16;
        m->fields = mem_grow(m->fields, (size_t)m->cap_fields * sizeof *m->fields);
    }
    m->fields[m->n_fields++] = (struct httpmsg_field){ span_of(m, name), span_of(m, value) };
}

static void parse_field(struct httpmsg *m, struct str line)
{
    const char *colon = memchr(line.p, ':', line.n);
    struct str name = str_take(line, colon ? (size_t)(colon - line.p) : 0);
    struct str value = trim(str_skip(line, name.n + 1));

    if (line.p[0] == ' ' || line.p[0] == '\t') bad(m, 400, "a header is folded over two lines");
    else if (!is_token(name)) bad(m, 400, "a header line is not 'Name: value'");
    else if (m->n_fields == MAX_FIELDS) bad(m, 431, "too many headers");
    else keep_field(m, name, value);
    if (m->state == HTTPMSG_BAD) return;
    if (is_name(name, "Content-Length")) take_length(m, value);
    if (is_name(name, "Host")) take_host(m, value);
    if (is_name(name, "Transfer-Encoding")) take_coding(m, value);
    if (is_name(name, "Connection")) take_connection(m, value);
    if (is_name(name, "Expect")) take_expect(m, value);
}

static void end_head(struct httpmsg *m)
{
    m->keep_alive = !m->closes && (m->minor == 1 || m->keeps);
    if (m->minor == 1 && m->n_hosts == 0) bad(m, 400, "the Host header is missing");
    else if (m->chunked && m->length != HTTPMSG_NO_LENGTH)
        bad(m, 400, "both Content-Length and Transfer-Encoding are given");
    else if (m->chunked && m->minor == 0) bad(m, 400, "HTTP/1.0 has no Transfer-Encoding");
    else if (m->length != HTTPMSG_NO_LENGTH && m->length > m->lim.body_bytes)
        bad(m, 413, "the body is larger than this server takes");
    if (m->state == HTTPMSG_BAD) return;
    m->left = m->chunked || m->length == HTTPMSG_NO_LENGTH ? 0 : m->length;
    m->state = m->chunked || m->left ? HTTPMSG_BODY : HTTPMSG_DONE;
    m->step = CHUNK_SIZE;
    m->taken = 0;
}

static void end_line(struct httpmsg *m)
{
    struct str line = str_of(m->head.p + m->line_at, m->head.n - m->line_at);

    if (!m->has_line && line.n == 0) {
        m->taken = 0;
        if (++m->n_blank > MAX_BLANK) bad(m, 400, "empty lines where a request should begin");
    } else if (!m->has_line) {
        parse_request_line(m, line);
    } else if (line.n == 0) {
        end_head(m);
    } else {
        parse_field(m, line);
    }
    m->line_at = m->head.n;
}

/* Counts one more byte of the head or of the trailers. */
static bool has_room(struct httpmsg *m)
{
    bool in_line = m->state == HTTPMSG_HEAD && !m->has_line;

    if (m->taken >= (in_line ? m->lim.line_bytes : m->lim.head_bytes)) {
        if (in_line) bad(m, 414, "the request line is too long");
        else bad(m, 431, "the headers are too long");
        return false;
    }
    m->taken++;
    return true;
}

/* Line ends and control bytes are the same for headers and trailers. True: a byte of text. */
static bool is_text(struct httpmsg *m, unsigned char c, bool *ended)
{
    *ended = false;
    if (!has_room(m)) return false;
    if (m->after_cr) {
        m->after_cr = false;
        *ended = c == '\n';
        if (c != '\n') bad(m, 400, "a carriage return without a line feed");
        return false;
    }
    m->after_cr = c == '\r';
    if (m->after_cr) return false;
    if (c == '\n') bad(m, 400, "a line feed without a carriage return");
    else if (is_control(c)) bad(m, 400, "control bytes in the head of the request");
    return m->state != HTTPMSG_BAD;
}

static size_t feed_head(struct httpmsg *m, const char *p, size_t n)
{
    size_t i = 0;
    bool ended;

    buf_reserve(&m->head, n < 1024 ? n : 1024);
    while (i < n && m->state == HTTPMSG_HEAD) {
        char c = p[i++];
        if (is_text(m, (unsigned char)c, &ended)) {
            if (m->head.n == m->head.cap) buf_reserve(&m->head, 1);
            m->head.p[m->head.n++] = c;
        }
        if (ended) end_line(m);
    }
    return i;
}

/* ---- the body ---- */

static size_t feed_data(struct httpmsg *m, const char *p, size_t n)
{
    size_t take = n < m->left ? n : (size_t)m->left;

    buf_add(&m->body, p, take);
    m->left -= take;
    return take;
}

static void chunk_size(struct httpmsg *m, char c)
{
    int d = hex_value(c);

    if (d >= 0 && m->n_digits < 16) {
        m->n_digits++;
        m->left = m->left << 4 | (uint64_t)d;
    } else if (m->n_digits == 0 || (c != ';' && c != '\r')) {
        bad(m, 400, "a chunk does not begin with its size");
    } else {
        m->step = c == ';' ? CHUNK_EXT : CHUNK_SIZE_LF;
        m->n_digits = 0;
        m->ext_bytes = 0;
        if (m->left > m->lim.body_bytes - m->body.n)
            bad(m, 413, "the body is larger than this server takes");
    }
}

static void chunk_ext(struct httpmsg *m, char c)
{
    if (c == '\r') m->step = CHUNK_SIZE_LF;
    else if (is_control((unsigned char)c)) bad(m, 400, "control bytes in a chunk's extensions");
    else if (++m->ext_bytes > MAX_EXT || ++m->all_ext_bytes > m->lim.head_bytes)
        bad(m, 400, "a chunk's extensions are too long");
}

static void chunk_trailer(struct httpmsg *m, char c)
{
    bool ended;

    if (is_text(m, (unsigned char)c, &ended)) {
        if (m->ext_bytes == 0 && !is_token(str_of(&c, 1)))
            bad(m, 400, "a trailer line is not 'Name: value'");
        m->ext_bytes++; /* of this line */
    }
    if (!ended) return;
    if (m->ext_bytes == 0) m->state = HTTPMSG_DONE;
    m->ext_bytes = 0;
}

static void chunk_byte(struct httpmsg *m, char c)
{
    switch (m->step) {
    case CHUNK_SIZE: chunk_size(m, c); break;
    case CHUNK_EXT: chunk_ext(m, c); break;
    case CHUNK_SIZE_LF:
        m->step = m->left ? CHUNK_DATA : CHUNK_TRAILER;
        m->ext_bytes = 0;
        if (c != '\n') bad(m, 400, "the line of a chunk's size does not end with CR LF");
        break;
    case CHUNK_DATA_CR:
    case CHUNK_DATA_LF:
        if (c != (m->step == CHUNK_DATA_CR ? '\r' : '\n'))
            bad(m, 400, "a chunk is longer than its size says");
        m->step = m->step == CHUNK_DATA_CR ? CHUNK_DATA_LF : CHUNK_SIZE;
        break;
    default: chunk_trailer(m, c); break;
    }
}

static size_t feed_body(struct httpmsg *m, const char *p, size_t n)
{
    size_t i = 0;

    while (i < n && m->state == HTTPMSG_BODY) {
        if (!m->chunked) {
            i += feed_data(m, p + i, n - i);
            if (m->left == 0) m->state = HTTPMSG_DONE;
        } else if (m->step == CHUNK_DATA) {
            i += feed_data(m, p + i, n - i);
            if (m->left == 0) m->step = CHUNK_DATA_CR;
        } else {
            chunk_byte(m, p[i++]);
        }
    }
    return i;
}

size_t httpmsg_feed(struct httpmsg *m, const void *p, size_t n)
{
    size_t used = 0;

    if (n == 0) return 0;
    if (m->state == HTTPMSG_HEAD) used = feed_head(m, p, n);
    return used + feed_body(m, (const char *)p + used, n - used);
}

/* ---- life ---- */

static void trim_buf(struct buf *b)
{
    if (b->cap > KEEP_BYTES) buf_release(b);
    buf_clear(b);
}

void httpmsg_init(struct httpmsg *m, struct httpmsg_limits lim)
{
    *m = (struct httpmsg){
        .lim = lim, .length = HTTPMSG_NO_LENGTH, .method = HTTP_OTHER, .minor = 1
    };
    if (m->lim.head_bytes > 1u << 30) m->lim.head_bytes = 1u << 30; /* spans are 32 bits */
    if (m->lim.line_bytes > m->lim.head_bytes) m->lim.line_bytes = m->lim.head_bytes;
}

void httpmsg_reset(struct httpmsg *m)
{
    struct httpmsg old = *m;

    trim_buf(&old.head);
    trim_buf(&old.body);
    trim_buf(&old.path);
    httpmsg_init(m, old.lim);
    m->head = old.head;
    m->body = old.body;
    m->path = old.path;
    m->fields = old.fields;
    m->cap_fields = old.cap_fields;
}

void httpmsg_release(struct httpmsg *m)
{
    buf_release(&m->head);
    buf_release(&m->body);
    buf_release(&m->path);
    mem_free(m->fields);
    *m = (struct httpmsg){ 0 };
}

bool httpmsg_begun(const struct httpmsg *m) { return m->has_line || m->head.n > 0; }

struct str httpmsg_method_name(const struct httpmsg *m) { return text_of(m, m->method_name); }
struct str httpmsg_path(const struct httpmsg *m) { return buf_str(&m->path); }
struct str httpmsg_query(const struct httpmsg *m) { return text_of(m, m->query); }

struct str httpmsg_header(const struct httpmsg *m, const char *name)
{
    for (int i = 0; i < m->n_fields; i++)
        if (is_name(text_of(m, m->fields[i].name), name)) return text_of(m, m->fields[i].value);
    return str_of(NULL, 0);
}
