/* Fuzz target: arbitrary bytes as replies of an HTTP server, to the client of `tern load` and of the
 * operator's commands. The result does not depend on where the bytes are cut into pieces. */
#include "loadtest/load_http.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct outcome {
    int state, status, n_events;
    size_t used, n_body;
    uint64_t sum;
};

static void add_event(void *arg, struct str data)
{
    struct outcome *o = arg;

    o->n_events++;
    for (size_t i = 0; i < data.n; i++) o->sum = o->sum * 31 + (unsigned char)data.p[i];
}

/* Feeds the bytes in pieces of `piece`, then the end of the connection. */
static struct outcome parse_reply(const char *p, size_t n, size_t piece)
{
    struct outcome o = { 0 };
    struct load_http h = { .event = add_event, .arg = &o };

    while (o.used < n && h.state < HTTP_DONE) {
        size_t k = n - o.used < piece ? n - o.used : piece, took;
        char *copy = malloc(k); /* an exact copy: the sanitizer finds reads past it */
        memcpy(copy, p + o.used, k);
        took = load_http_feed(&h, copy, k);
        free(copy);
        if (took > k || (took < k && h.state < HTTP_DONE)) abort();
        o.used += took;
    }
    if (h.state == HTTP_BAD && !h.why) abort();
    if (load_http_eof(&h) != (h.state == HTTP_DONE)) abort();
    if (h.state == HTTP_DONE && (h.status < 200 || h.status > 999)) abort();
    if (strlen(h.request_id) >= sizeof h.request_id) abort();
    o.state = h.state, o.status = h.status, o.n_body = h.body.n;
    for (size_t i = 0; i < h.body.n; i++) o.sum = o.sum * 31 + (unsigned char)h.body.p[i];
    load_http_release(&h);
    return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *p = (const char *)data;
    struct outcome whole = parse_reply(p, size, size ? size : 1), bytes = parse_reply(p, size, 1),
                   sevens = parse_reply(p, size, 7);

    if (whole.state != bytes.state || whole.status != sevens.status) abort();
    if (whole.state != HTTP_BAD && (whole.sum != bytes.sum || whole.n_events != bytes.n_events))
        abort();
    return 0;
}
