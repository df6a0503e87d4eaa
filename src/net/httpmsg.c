/* httpmsg.c - the request parser (RFC 9112): a byte-wise state machine for the head, chunk framing
 * and trailers; body data is copied in blocks.
 *
 * Lines of the head are collected in one buffer without their ends, and each is parsed when its CR
 * LF arrives. Names, values and the query are kept as offsets into that buffer, which may move
 * while it grows. The first error makes the message bad, with the status and the text to answer;
 * nothing is parsed after it.
 *
 * Limits are counted in bytes as they arrive, so a request is refused before it is stored. Memory
 * is bounded by head_bytes, body_bytes and MAX_FIELDS. */
#include "net/httpmsg.h"

#include "base/mem.h"

#include <strings.h>

enum {
    MAX_FIELDS = 128,     /* headers */
    MAX_BLANK = 2,        /* empty lines before a request */
    MAX_EXT = 256,        /* bytes of one chunk's extensions */
    KEEP_BYTES = 16 << 10 /* larger buffers are freed between requests */
};

/* httpmsg.step: what the next byte of a chunked body belongs to. */
enum {
    CHUNK_SIZE,
    CHUNK_EXT,
    CHUNK_SIZE_LF,
    CHUNK_DATA,
    CHUNK_DATA_CR,
    CHUNK_DATA_LF,
    CHUNK_TRAILER
};

static void set_bad(struct httpmsg *m, int status, const char *why)
{
    m->state = HTTPMSG_BAD;
    m->status = status;
    m->why = why;
}

static void set_nomem(struct httpmsg *m)
{
    set_bad(m, 503, "out of memory: no room for the request");
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

/* RFC 9110 token: the characters allowed in methods and header names. */
static bool is_token(struct str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (!is_digit(s.p[i]) && !is_alpha(s.p[i]) && !is_one_of(s.p[i], "!#$%&'*+-.^_`|~"))
            return false;
    return s.n > 0;
}

/* Header names are case-insensitive. */
static bool is_header(struct str s, const char *name)
{
    return s.n == strlen(name) && strncasecmp(s.p, name, s.n) == 0;
}

/* Spaces and tabs only: other white space was refused as a control byte. */
static struct str trim_blanks(struct str s)
{
    while (s.n && (s.p[0] == ' ' || s.p[0] == '\t')) s = str_skip(s, 1);
    while (s.n && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t')) s.n--;
    return s;
}

/* s lies inside m->head. */
static struct httpmsg_span span_of(const struct httpmsg *m, struct str s)
{
    return (struct httpmsg_span){ (uint32_t)(s.p - m->head.p), (uint32_t)s.n };
}

static struct str text_of(const struct httpmsg *m, struct httpmsg_span s)
{
    return str_of(m->head.p + s.at, s.n);
}

/* ---- the request line ---- */

/* Methods are case-sensitive. Others are valid requests of HTTP_OTHER. */
static enum http_method find_method(struct str s)
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

/* Turns "http://host/path?query" into "/path?query"; false: not an absolute URL. */
static bool skip_authority(struct str *target)
{
    size_t scheme = target->n >= 7 && strncasecmp(target->p, "http://", 7) == 0    ? 7
                    : target->n >= 8 && strncasecmp(target->p, "https://", 8) == 0 ? 8
                                                                                   : 0;
    size_t i = scheme;

    while (i < target->n && !is_one_of(target->p[i], "/?")) {
        if (target->p[i] == '@') return false; /* user information is not supported */
        i++;
    }
    *target = str_skip(*target, i);
    return scheme > 0 && i > scheme;
}

/* Percent-decodes into m->path; false: bad encoding. */
static bool decode_path(struct httpmsg *m, struct str s)
{
    if (!buf_reserve(&m->path, s.n + 1)) return set_nomem(m), true;
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

/* Origin form ("/path?query"), absolute form ("http://host/path"), and "*" for OPTIONS. */
static void parse_target(struct httpmsg *m, struct str s)
{
    const char *mark;

    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] <= ' ' || s.p[i] == '#' || (unsigned char)s.p[i] > 0x7e) {
            set_bad(m, 400, "the request target contains bytes that must be percent-encoded");
            return;
        }
    if (str_is(s, "*") && m->method == HTTP_OPTIONS) {
        buf_putc(&m->path, '*');
        if (m->path.failed) set_nomem(m);
        return;
    }
    if (s.n == 0 || (s.p[0] != '/' && !skip_authority(&s))) {
        set_bad(m, 400, "the request target is neither a path nor a URL");
        return;
    }
    mark = memchr(s.p, '?', s.n);
    if (mark) m->query = span_of(m, str_skip(s, (size_t)(mark - s.p) + 1));
    if (!decode_path(m, mark ? str_take(s, (size_t)(mark - s.p)) : s))
        set_bad(m, 400, "the path contains an invalid percent-encoding");
}

/* Single digits, as RFC 9112 has it. HTTP/1.2 and later are not defined. */
static void parse_version(struct httpmsg *m, struct str s)
{
    if (s.n != 8 || !str_starts(s, STR("HTTP/")) || !is_digit(s.p[5]) || s.p[6] != '.' ||
        !is_digit(s.p[7]))
        set_bad(m, 400, "the request line does not end with an HTTP version");
    else if (s.p[5] != '1' || s.p[7] > '1')
        set_bad(m, 505, "unsupported HTTP version: use HTTP/1.1 or HTTP/1.0");
    else m->minor = s.p[7] - '0';
}

/* METHOD SP target SP version. The target ends at the last space; parse_target refuses further
 * spaces. */
static void parse_request_line(struct httpmsg *m, struct str line)
{
    const char *end = line.p + line.n, *a = memchr(line.p, ' ', line.n), *b;
    struct str method = str_of(line.p, a ? (size_t)(a - line.p) : 0);

    if (!is_token(method)) {
        set_bad(m, 400, "the request line does not begin with a method");
        return;
    }
    b = memrchr(a, ' ', (size_t)(end - a));
    if (b == a) {
        set_bad(m, 400, "the request line is not 'METHOD target HTTP/1.1'");
        return;
    }
    m->method_name = span_of(m, method);
    m->method = find_method(method);
    m->has_line = true;
    parse_version(m, str_of(b + 1, (size_t)(end - b) - 1));
    if (m->state == HTTPMSG_BAD) return;
    if (str_is(method, "CONNECT"))
        set_bad(m, 501, "the method CONNECT is not supported: this server is not a proxy");
    else parse_target(m, str_of(a + 1, (size_t)(b - a) - 1));
}

/* ---- headers ---- */

/* Two equal Content-Length headers are accepted, as RFC 9110 allows; a list of values is not. */
static void read_length(struct httpmsg *m, struct str v)
{
    uint64_t n = 0;

    for (size_t i = 0; i < v.n; i++) {
        if (!is_digit(v.p[i])) {
            v.n = 0;
            break;
        }
        n = n > (UINT64_MAX - 10) / 10 ? HTTPMSG_NO_LENGTH - 1 : n * 10 + (uint64_t)(v.p[i] - '0');
    }
    if (v.n == 0) set_bad(m, 400, "Content-Length is not a number");
    else if (m->length != HTTPMSG_NO_LENGTH && m->length != n)
        set_bad(m, 400, "two Content-Length headers have different values");
    else m->length = n;
}

/* The value is not used, only checked: proxies route by it, so an odd one is suspicious. */
static void read_host(struct httpmsg *m, struct str v)
{
    for (size_t i = 0; i < v.n; i++)
        if (!is_digit(v.p[i]) && !is_alpha(v.p[i]) && !is_one_of(v.p[i], "-._~%!$&'()*+,;=:[]")) {
            set_bad(m, 400, "the Host header contains characters that no host name has");
            return;
        }
    if (m->n_hosts++) set_bad(m, 400, "more than one Host header");
}

/* "chunked" alone. A list of codings, or two headers, could be read differently by a proxy. */
static void read_coding(struct httpmsg *m, struct str v)
{
    if (m->n_codings++ || v.n == 0)
        set_bad(m, 400, "Transfer-Encoding must be given exactly once and not be empty");
    else if (!is_header(v, "chunked"))
        set_bad(m, 501, "unsupported Transfer-Encoding: only chunked is supported");
    else m->chunked = true;
}

/* A list of options; unknown ones are ignored. */
static void read_connection(struct httpmsg *m, struct str v)
{
    while (v.n) {
        const char *comma = memchr(v.p, ',', v.n);
        size_t n = comma ? (size_t)(comma - v.p) : v.n;
        struct str word = trim_blanks(str_take(v, n));
        m->closes |= is_header(word, "close");
        m->keeps |= is_header(word, "keep-alive");
        v = str_skip(v, comma ? n + 1 : n);
    }
}

/* HTTP/1.0 has no 100 Continue: the header is ignored there. */
static void read_expect(struct httpmsg *m, struct str v)
{
    if (m->minor == 0) return;
    if (is_header(v, "100-continue")) m->expects_continue = true;
    else set_bad(m, 417, "unsupported Expect header: only 100-continue is supported");
}

/* The spans stay valid while head grows. */
static void add_field(struct httpmsg *m, struct str name, struct str value)
{
    if (!mem_ensure(m->fields, m->cap_fields, m->n_fields + 1)) {
        set_nomem(m);
        return;
    }
    m->fields[m->n_fields++] = (struct httpmsg_field){ span_of(m, name), span_of(m, value) };
}

/* "Name: value". White space before the colon is refused, since proxies differ on it. */
static void parse_field(struct httpmsg *m, struct str line)
{
    const char *colon = memchr(line.p, ':', line.n);
    struct str name = str_take(line, colon ? (size_t)(colon - line.p) : 0);
    struct str value = trim_blanks(str_skip(line, name.n + 1));

    if (line.p[0] == ' ' || line.p[0] == '\t')
        set_bad(m, 400, "a header continues on a second line, which HTTP/1.1 no longer allows");
    else if (!is_token(name)) set_bad(m, 400, "a header line is not 'Name: value'");
    else if (m->n_fields == MAX_FIELDS) set_bad(m, 431, "more than 128 headers");
    else add_field(m, name, value);
    if (m->state == HTTPMSG_BAD) return;
    if (is_header(name, "Content-Length")) read_length(m, value);
    if (is_header(name, "Host")) read_host(m, value);
    if (is_header(name, "Transfer-Encoding")) read_coding(m, value);
    if (is_header(name, "Connection")) read_connection(m, value);
    if (is_header(name, "Expect")) read_expect(m, value);
}

static uint64_t max_body(const struct httpmsg *m)
{
    return m->streamed ? m->lim.stream_bytes : m->lim.body_bytes;
}

/* The empty line: checks that need all headers, and the length of the body. */
static void end_head(struct httpmsg *m)
{
    m->streamed = m->lim.streams && m->lim.streams(m->lim.arg);
    m->keep_alive = !m->closes && (m->minor == 1 || m->keeps);
    if (m->minor == 1 && m->n_hosts == 0) set_bad(m, 400, "the Host header is missing");
    else if (m->chunked && m->length != HTTPMSG_NO_LENGTH)
        set_bad(m, 400, "Content-Length and Transfer-Encoding must not both be given");
    else if (m->chunked && m->minor == 0)
        set_bad(m, 400, "Transfer-Encoding is not allowed in HTTP/1.0");
    else if (m->length != HTTPMSG_NO_LENGTH && m->length > max_body(m))
        set_bad(m, 413, "the request body is larger than the server accepts");
    if (m->state == HTTPMSG_BAD) return;
    m->left = m->chunked || m->length == HTTPMSG_NO_LENGTH ? 0 : m->length;
    m->state = m->chunked || m->left ? HTTPMSG_BODY : HTTPMSG_DONE;
    m->step = CHUNK_SIZE;
    m->taken = 0;
}

/* The current line is complete, without CR LF. */
static void end_line(struct httpmsg *m)
{
    struct str line = str_of(m->head.p + m->line_at, m->head.n - m->line_at);

    if (!m->has_line && line.n == 0) {
        m->taken = 0;
        if (++m->n_blank > MAX_BLANK) set_bad(m, 400, "more than two empty lines before a request");
    } else if (!m->has_line) {
        parse_request_line(m, line);
    } else if (line.n == 0) {
        end_head(m);
    } else {
        parse_field(m, line);
    }
    m->line_at = m->head.n;
}

/* Counts one more byte of the head or of the trailers against its limit. */
static bool count_byte(struct httpmsg *m)
{
    bool in_line = m->state == HTTPMSG_HEAD && !m->has_line;

    if (m->taken >= (in_line ? m->lim.line_bytes : m->lim.head_bytes)) {
        if (in_line) set_bad(m, 414, "the request line is too long");
        else set_bad(m, 431, "the request headers are too long");
        return false;
    }
    m->taken++;
    return true;
}

/* One byte of a header or trailer line. true: it is text; *ended: it completes the line. */
static bool is_text(struct httpmsg *m, unsigned char c, bool *ended)
{
    *ended = false;
    if (!count_byte(m)) return false;
    if (m->after_cr) {
        m->after_cr = false;
        *ended = c == '\n';
        if (c != '\n') set_bad(m, 400, "a carriage return without a line feed");
        return false;
    }
    m->after_cr = c == '\r';
    if (m->after_cr) return false;
    if (c == '\n') set_bad(m, 400, "a line feed without a carriage return");
    else if (is_control(c)) set_bad(m, 400, "a control byte in the request line or headers");
    return m->state != HTTPMSG_BAD;
}

/* Consumes bytes until the head is complete or bad. */
static size_t feed_head(struct httpmsg *m, const char *p, size_t n)
{
    size_t i = 0;
    bool ended;

    /* Appended byte by byte below, without a call: most of the time of parsing is spent here. */
    if (!buf_reserve(&m->head, n < 1024 ? n : 1024)) set_nomem(m);
    while (i < n && m->state == HTTPMSG_HEAD) {
        char c = p[i++];
        if (is_text(m, (unsigned char)c, &ended)) {
            if (m->head.n == m->head.cap && !buf_reserve(&m->head, 1)) {
                set_nomem(m);
                break;
            }
            m->head.p[m->head.n++] = c;
        }
        if (ended) end_line(m);
    }
    return i;
}

/* ---- the body ---- */

/* Body data of a chunk, or of a body with Content-Length. */
static size_t add_body(struct httpmsg *m, const char *p, size_t n)
{
    size_t take = n < m->left ? n : (size_t)m->left;

    if (m->sink) m->sink(m->sink_arg, p, take);
    else buf_add(&m->body, p, take);
    if (m->body.failed) set_nomem(m);
    m->n_body += take;
    m->left -= take;
    return take;
}

/* Up to 16 hexadecimal digits. The sum of all chunks is limited by body_bytes. */
static void feed_chunk_size(struct httpmsg *m, char c)
{
    int d = hex_value(c);

    if (d >= 0 && m->n_digits < 16) {
        m->n_digits++;
        m->left = m->left << 4 | (uint64_t)d;
    } else if (m->n_digits == 0 || (c != ';' && c != '\r')) {
        set_bad(m, 400, "a chunk does not begin with its size in hexadecimal");
    } else {
        m->step = c == ';' ? CHUNK_EXT : CHUNK_SIZE_LF;
        m->n_digits = 0;
        m->ext_bytes = 0;
        if (m->left > max_body(m) - m->n_body)
            set_bad(m, 413, "the request body is larger than the server accepts");
    }
}

/* Extensions are skipped, but bounded: for one chunk, and for all together. */
static void feed_chunk_ext(struct httpmsg *m, char c)
{
    if (c == '\r') m->step = CHUNK_SIZE_LF;
    else if (is_control((unsigned char)c))
        set_bad(m, 400, "a control byte in the extensions of a chunk");
    else if (++m->ext_bytes > MAX_EXT || ++m->all_ext_bytes > m->lim.head_bytes)
        set_bad(m, 400, "the extensions of chunks are too long");
}

/* Trailer fields are checked for form and dropped. ext_bytes counts the bytes of this line. */
static void feed_trailer(struct httpmsg *m, char c)
{
    bool ended;

    if (is_text(m, (unsigned char)c, &ended)) {
        if (m->ext_bytes == 0 && !is_token(str_of(&c, 1)))
            set_bad(m, 400, "a trailer line is not 'Name: value'");
        m->ext_bytes++;
    }
    if (!ended) return;
    if (m->ext_bytes == 0) m->state = HTTPMSG_DONE;
    m->ext_bytes = 0;
}

/* A byte of chunk framing, outside of chunk data. */
static void feed_framing(struct httpmsg *m, char c)
{
    switch (m->step) {
    case CHUNK_SIZE: feed_chunk_size(m, c); break;
    case CHUNK_EXT: feed_chunk_ext(m, c); break;
    case CHUNK_SIZE_LF:
        m->step = m->left ? CHUNK_DATA : CHUNK_TRAILER;
        m->ext_bytes = 0;
        if (c != '\n') set_bad(m, 400, "the size of a chunk is not followed by CR LF");
        break;
    case CHUNK_DATA_CR:
    case CHUNK_DATA_LF:
        if (c != (m->step == CHUNK_DATA_CR ? '\r' : '\n'))
            set_bad(m, 400, "a chunk is not followed by CR LF where its size says it ends");
        m->step = m->step == CHUNK_DATA_CR ? CHUNK_DATA_LF : CHUNK_SIZE;
        break;
    default: feed_trailer(m, c); break;
    }
}

/* Consumes bytes until the body is complete or bad. */
static size_t feed_body(struct httpmsg *m, const char *p, size_t n)
{
    size_t i = 0;

    while (i < n && m->state == HTTPMSG_BODY) {
        if (!m->chunked) {
            i += add_body(m, p + i, n - i);
            if (m->left == 0 && m->state == HTTPMSG_BODY) m->state = HTTPMSG_DONE;
        } else if (m->step == CHUNK_DATA) {
            i += add_body(m, p + i, n - i);
            if (m->left == 0) m->step = CHUNK_DATA_CR;
        } else {
            feed_framing(m, p[i++]);
        }
    }
    return i;
}

size_t httpmsg_feed(struct httpmsg *m, const void *p, size_t n)
{
    size_t used = 0;

    if (n == 0) return 0;
    if (m->state == HTTPMSG_HEAD) {
        used = feed_head(m, p, n);
        if (m->streamed && m->state == HTTPMSG_BODY) return used;
    }
    return used + feed_body(m, (const char *)p + used, n - used);
}

/* ---- life ---- */

/* A connection that once sent a large request does not keep its memory. */
static void shrink_buf(struct buf *b)
{
    if (b->cap > KEEP_BYTES) buf_release(b);
    buf_clear(b);
}

/* A request without Content-Length and Transfer-Encoding has no body (RFC 9112, 6.3). */
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

    shrink_buf(&old.head);
    shrink_buf(&old.body);
    shrink_buf(&old.path);
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
        if (is_header(text_of(m, m->fields[i].name), name)) return text_of(m, m->fields[i].value);
    return str_of(NULL, 0);
}
