/* load_http.c - one state per kind of byte (enum load_http_state). Lines of the head and of chunk
 * sizes are collected in `head`; body bytes go to `body`, or for an event stream to `line` and
 * `data`. Limits bound the memory that a broken server can take. */
#include "loadtest/load_http.h"

#include <strings.h>

#define MAX_LINE (64 << 10)
#define MAX_EVENT (16 << 20)
#define MAX_BODY (64 << 20)

static void fail_reply(struct load_http *h, const char *why)
{
    h->state = HTTP_BAD;
    h->why = why;
}

/* ---- event streams ---- */

static void end_event(struct load_http *h)
{
    if (h->data.failed) fail_reply(h, "out of memory");
    else if (h->has_data && h->event) h->event(h->arg, buf_str(&h->data));
    buf_clear(&h->data);
    h->has_data = false;
}

/* Comments, event names and ids are ignored: the OpenAI API sends data lines only. */
static void parse_event_line(struct load_http *h, struct str s)
{
    if (!s.n) {
        end_event(h);
    } else if (str_starts(s, STR("data:"))) {
        s = str_skip(s, str_starts(s, STR("data: ")) ? 6 : 5);
        if (h->has_data) buf_putc(&h->data, '\n');
        buf_put_str(&h->data, s);
        h->has_data = true;
        if (h->data.n > MAX_EVENT) fail_reply(h, "an event is too large");
    }
}

/* Lines end with LF, CR or CRLF (WHATWG HTML, server-sent events). */
static size_t feed_events(struct load_http *h, const char *p, size_t n)
{
    size_t i = 0;

    while (i < n && !h->stop && h->state != HTTP_BAD) {
        char c = p[i++];
        bool after_cr = h->cr;
        h->cr = c == '\r';
        if (c == '\n' && after_cr) continue;
        if (c != '\n' && c != '\r') {
            const char *cr = memchr(p + i, '\r', n - i), *lf;
            size_t m = cr ? (size_t)(cr - (p + i)) : n - i;
            if ((lf = memchr(p + i, '\n', m)) != NULL) m = (size_t)(lf - (p + i));
            buf_add(&h->line, p + i - 1, m + 1);
            i += m;
            if (h->line.n > MAX_EVENT) fail_reply(h, "an event is too large");
            if (h->line.failed) fail_reply(h, "out of memory");
            continue;
        }
        parse_event_line(h, buf_str(&h->line));
        buf_clear(&h->line);
    }
    return i;
}

/* Returns the bytes consumed: fewer than n only after `stop`. */
static size_t feed_body(struct load_http *h, const char *p, size_t n)
{
    if (h->raw) {
        h->raw(h->arg, str_of(p, n));
        return n;
    }
    if (h->sse) return feed_events(h, p, n);
    if (h->body.n + n > MAX_BODY) fail_reply(h, "the reply is too large");
    else buf_add(&h->body, p, n);
    if (h->body.failed) fail_reply(h, "out of memory");
    return n;
}

/* ---- header and chunk size lines ---- */

/* "HTTP/1.1 200 OK"; HTTP/1.0 closes the connection by default. */
static void parse_status_line(struct load_http *h, struct str s)
{
    int64_t code;

    if (s.n < 12 || !str_starts(s, STR("HTTP/1.")) || s.p[8] != ' ' ||
        !str_to_i64(str_of(s.p + 9, 3), &code) || code < 100 || (s.n > 12 && s.p[12] != ' ')) {
        fail_reply(h, "the reply is not HTTP/1");
        return;
    }
    h->status = (int)code;
    h->keep_alive = s.p[7] == '1';
    h->left = -1;
    h->retry_after_s = -1;
    h->state = HTTP_HEADERS;
}

static bool is_word(struct str a, const char *b)
{
    return a.n == strlen(b) && strncasecmp(a.p, b, a.n) == 0;
}

/* Headers that matter to a load test; all others are ignored. */
static void parse_header(struct load_http *h, struct str s)
{
    ptrdiff_t colon = str_find(s, STR(":"));
    struct str name, value;
    int64_t v;

    if (colon <= 0) {
        fail_reply(h, "a header line has no name");
        return;
    }
    name = str_take(s, (size_t)colon);
    value = str_trim(str_skip(s, (size_t)colon + 1));
    if (h->header && h->status >= 200) h->header(h->arg, name, value);
    if (is_word(name, "content-length")) {
        if (str_to_i64(value, &v) && v >= 0) h->left = v;
        else fail_reply(h, "Content-Length is not a number");
    } else if (is_word(name, "transfer-encoding")) {
        if (is_word(value, "chunked")) h->chunked = true;
        else fail_reply(h, "an unknown Transfer-Encoding");
    } else if (is_word(name, "connection")) {
        h->keep_alive = is_word(value, "keep-alive") || (h->keep_alive && !is_word(value, "close"));
    } else if (is_word(name, "content-type")) {
        h->sse = str_starts(value, STR("text/event-stream"));
    } else if (is_word(name, "x-request-id")) {
        size_t n = value.n < sizeof h->request_id - 1 ? value.n : sizeof h->request_id - 1;
        memcpy(h->request_id, value.p, n);
        h->request_id[n] = 0;
    } else if (is_word(name, "retry-after") && str_to_i64(value, &v) && v >= 0 && v < 1000000) {
        h->retry_after_s = (int)v;
    }
}

/* Decides by the headers how the body is delimited. */
static void end_headers(struct load_http *h)
{
    if (h->status < 200) h->state = HTTP_STATUS; /* 100 Continue: the reply follows */
    else if (h->status == 204 || h->status == 304) h->state = HTTP_DONE;
    else if (h->chunked) h->state = HTTP_SIZE;
    else if (h->left < 0) h->state = HTTP_CLOSE, h->keep_alive = false;
    else h->state = h->left ? HTTP_LENGTH : HTTP_DONE;
}

/* Hex digits, then nothing, a space or an extension. At most 12 digits: no overflow. */
static void parse_chunk_size(struct load_http *h, struct str s)
{
    int64_t v = 0;
    size_t i = 0;

    for (; i < s.n && i < 12; i++) {
        int c = s.p[i] | 0x20;
        if (c >= '0' && c <= '9') v = v * 16 + c - '0';
        else if (c >= 'a' && c <= 'f') v = v * 16 + c - 'a' + 10;
        else break;
    }
    if (i == 0 || (i < s.n && s.p[i] != ';' && s.p[i] != ' ')) {
        fail_reply(h, "a chunk has no size");
        return;
    }
    h->left = v;
    h->state = v ? HTTP_CHUNK : HTTP_TRAILERS;
}

static void parse_line(struct load_http *h, struct str s)
{
    switch (h->state) {
    case HTTP_STATUS: parse_status_line(h, s); break;
    case HTTP_HEADERS:
        if (s.n) parse_header(h, s);
        else end_headers(h);
        break;
    case HTTP_SIZE: parse_chunk_size(h, s); break;
    case HTTP_CHUNK_END:
        if (s.n) fail_reply(h, "a chunk is longer than its size");
        else h->state = HTTP_SIZE;
        break;
    default:
        if (!s.n) h->state = HTTP_DONE; /* trailers are ignored */
    }
}

/* Consumes up to the end of a header or chunk size line. */
static size_t feed_line(struct load_http *h, const char *p, size_t n)
{
    const char *lf = memchr(p, '\n', n);
    size_t m = lf ? (size_t)(lf - p) + 1 : n;
    struct str s;

    buf_add(&h->head, p, m);
    if (h->head.n > MAX_LINE) fail_reply(h, "a header line is too long");
    if (h->head.failed) fail_reply(h, "out of memory");
    if (!lf || h->state == HTTP_BAD) return m;
    s = str_of(h->head.p, h->head.n - 1);
    if (s.n && s.p[s.n - 1] == '\r') s.n--;
    parse_line(h, s);
    buf_clear(&h->head);
    return m;
}

/* Each pass of the loop consumes what belongs to one state. */
size_t load_http_feed(struct load_http *h, const char *p, size_t n)
{
    size_t i = 0, m;

    if (n) h->any = true;
    while (i < n && !h->stop && h->state < HTTP_DONE) {
        switch (h->state) {
        case HTTP_LENGTH:
        case HTTP_CHUNK:
            m = n - i < (size_t)h->left ? n - i : (size_t)h->left;
            m = feed_body(h, p + i, m);
            h->left -= (int64_t)m;
            if (h->left == 0 && h->state == HTTP_CHUNK) h->state = HTTP_CHUNK_END;
            else if (h->left == 0 && h->state == HTTP_LENGTH) h->state = HTTP_DONE;
            break;
        case HTTP_CLOSE: m = feed_body(h, p + i, n - i); break;
        default: m = feed_line(h, p + i, n - i);
        }
        i += m;
    }
    return i;
}

bool load_http_eof(struct load_http *h)
{
    if (h->state == HTTP_CLOSE) h->state = HTTP_DONE;
    return h->state == HTTP_DONE;
}

void load_http_reset(struct load_http *h)
{
    struct load_http old = *h;

    *h = (struct load_http){ .event = old.event,
                             .raw = old.raw,
                             .header = old.header,
                             .arg = old.arg,
                             .head = old.head,
                             .line = old.line,
                             .body = old.body,
                             .data = old.data };
    buf_clear(&h->head);
    buf_clear(&h->line);
    buf_clear(&h->body);
    buf_clear(&h->data);
}

void load_http_release(struct load_http *h)
{
    buf_release(&h->head);
    buf_release(&h->line);
    buf_release(&h->body);
    buf_release(&h->data);
}
