/* Any bytes, cut anywhere, as HTTP requests: limits hold, and where the cuts are makes no difference. */
#include "net/httpmsg.h"

#include <stdint.h>
#include <stdlib.h>

struct outcome {
    int state, status, n_headers;
    size_t used, n_body, n_path;
    uint64_t sum;
};

static struct outcome run(const char *p, size_t n, size_t piece, size_t max_head, size_t max_body)
{
    struct httpmsg m;
    struct outcome o = { 0 };

    httpmsg_init(&m, max_head, max_body);
    while (o.used < n && m.state != MSG_DONE && m.state != MSG_BAD) {
        size_t k = n - o.used < piece ? n - o.used : piece, took;
        char *copy = malloc(k);                          /* so that a look past the end is seen */
        memcpy(copy, p + o.used, k);
        took = httpmsg_feed(&m, copy, k);
        free(copy);
        if (took > k || (took < k && m.state != MSG_DONE && m.state != MSG_BAD)) abort();
        o.used += took;
    }
    if (m.body.n > max_body || m.head.n > max_head) abort();
    if (m.state == MSG_BAD && (m.status < 400 || !m.why)) abort();
    o.state = m.state, o.status = m.status, o.n_headers = m.n_headers;
    o.n_body = m.body.n, o.n_path = m.path.n;
    for (size_t i = 0; i < m.body.n; i++) o.sum = o.sum * 31 + (unsigned char)m.body.p[i];
    for (size_t i = 0; i < m.path.n; i++) o.sum = o.sum * 31 + (unsigned char)m.path.p[i];
    if (m.state == MSG_DONE) httpmsg_header(&m, "host");
    httpmsg_reset(&m);
    if (!httpmsg_is_empty(&m)) abort();
    httpmsg_release(&m);
    return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct outcome a, b;
    size_t head, body, piece;

    if (size < 3) return 0;
    head = 64 + (size_t)data[0] * 16;
    body = (size_t)data[1] * 8;
    piece = 1 + data[2];
    a = run((const char *)data + 3, size - 3, size, head, body);
    b = run((const char *)data + 3, size - 3, piece, head, body);
    if (a.state != b.state || a.status != b.status || a.used != b.used || a.n_body != b.n_body || a.n_path != b.n_path ||
        a.sum != b.sum || a.n_headers != b.n_headers)
        abort();
    return 0;
}
