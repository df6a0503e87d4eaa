/* Fuzz target: arbitrary bytes as HTTP requests on one connection. Limits hold, and the result
 * does not depend on where the bytes are cut into pieces. */
#include "net/httpmsg.h"
#include "net/query.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct outcome {
    int state, status, n_fields, method;
    bool keep_alive;
    size_t used, n_body, n_path;
    uint64_t sum;
};

static uint64_t add_to_sum(uint64_t sum, struct str s)
{
    for (size_t i = 0; i < s.n; i++) sum = sum * 31 + (unsigned char)s.p[i];
    return sum * 31 + s.n;
}

/* Parameters are inside the query; a decoded one is a C string of at most that many bytes. */
static void read_query(struct str query)
{
    char text[64];
    struct str v;

    for (struct str rest = query; query_next(&rest, "a", &v);) {
        bool fits = query_decode(v, text, sizeof text);
        if (v.p < query.p || v.p + v.n > query.p + query.n) abort();
        if (strlen(text) > v.n || (fits && !query_is(v, text))) abort();
    }
}

/* Parses one request in pieces of `piece` bytes; used: where the next request begins. */
static struct outcome parse_request(struct httpmsg *m, const char *p, size_t n, size_t piece)
{
    struct outcome o = { 0 };

    while (o.used < n && m->state != HTTPMSG_DONE && m->state != HTTPMSG_BAD) {
        size_t k = n - o.used < piece ? n - o.used : piece, took;
        char *copy = malloc(k); /* an exact copy: the sanitizer finds reads past it */
        memcpy(copy, p + o.used, k);
        took = httpmsg_feed(m, copy, k);
        free(copy);
        if (took > k || (took < k && m->state != HTTPMSG_DONE && m->state != HTTPMSG_BAD)) abort();
        o.used += took;
    }
    if (m->body.n > m->lim.body_bytes || m->head.n > m->lim.head_bytes) abort();
    if (m->state == HTTPMSG_BAD && (m->status < 400 || !m->why)) abort();
    o.state = m->state, o.status = m->status, o.n_fields = m->n_fields, o.method = m->method;
    o.keep_alive = m->keep_alive, o.n_body = m->body.n, o.n_path = m->path.n;
    o.sum = add_to_sum(add_to_sum(0, buf_str(&m->body)), httpmsg_path(m));
    if (m->state == HTTPMSG_DONE || m->state == HTTPMSG_BODY) {
        struct str host = httpmsg_header(m, "host");
        if (m->minor == 1 && !host.p) abort();
        read_query(httpmsg_query(m));
        if (m->path.n == 0 || httpmsg_method_name(m).n == 0) abort();
        o.sum = add_to_sum(add_to_sum(add_to_sum(o.sum, host), httpmsg_query(m)),
                           httpmsg_method_name(m));
    }
    httpmsg_reset(m);
    if (httpmsg_begun(m)) abort();
    return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct httpmsg a = { 0 }, b = { 0 };
    struct httpmsg_limits lim;
    const char *p = (const char *)data + 3;
    size_t piece;

    if (size < 3) return 0;
    lim = (struct httpmsg_limits){ .line_bytes = 64 + (size_t)data[0] * 4,
                                   .head_bytes = 64 + (size_t)data[0] * 16,
                                   .body_bytes = (size_t)data[1] * 8 };
    piece = 1 + data[2];
    httpmsg_init(&a, lim);
    httpmsg_init(&b, lim);
    for (size_t n = size - 3; n > 0;) { /* requests follow each other on a connection */
        struct outcome x = parse_request(&a, p, n, n), y = parse_request(&b, p, n, piece);
        if (x.state != y.state || x.status != y.status || x.used != y.used ||
            x.n_body != y.n_body || x.sum != y.sum || x.n_path != y.n_path ||
            x.n_fields != y.n_fields || x.method != y.method || x.keep_alive != y.keep_alive)
            abort();
        if (x.state != HTTPMSG_DONE || x.used == 0) break;
        p += x.used, n -= x.used;
    }
    httpmsg_release(&a);
    httpmsg_release(&b);
    return 0;
}
