/* sse.c - server-sent events (text/event-stream) over http_begin and http_write. */
#include "net/sse.h"

#include <string.h>

bool sse_begin(struct http_req *q)
{
    http_set_header(q, "Cache-Control", "no-cache");
    http_set_header(q, "X-Accel-Buffering", "no");
    return http_begin(q, 200, "text/event-stream; charset=utf-8");
}

void sse_open_data(struct buf *b) { buf_puts(b, "data: "); }

bool sse_send(struct http_req *q, struct buf *b)
{
    bool open;

    buf_puts(b, "\n\n");
    if (b->failed) http_drop_nomem(q);
    open = http_write(q, b->p, b->n);
    buf_clear(b);
    return open;
}

bool sse_event(struct http_req *q, const char *name, struct str json)
{
    struct buf b = { 0 };
    bool open;

    if (name) buf_printf(&b, "event: %s\n", name);
    sse_open_data(&b);
    buf_put_str(&b, json);
    open = sse_send(q, &b);
    buf_release(&b);
    return open;
}

bool sse_data(struct http_req *q, struct str json) { return sse_event(q, NULL, json); }

bool sse_ping(struct http_req *q) { return http_write(q, ": ping\n\n", 8); }

/* Takes a line without its end off *s; false: it has no end. */
static bool take_line(struct str *s, struct str *line)
{
    const char *end = s->n ? memchr(s->p, '\n', s->n) : NULL;

    if (!end) return false;
    *line = str_of(s->p, (size_t)(end - s->p));
    *s = str_skip(*s, line->n + 1);
    return true;
}

bool sse_is_idle(struct str s)
{
    bool in_ping = false,
         in_event = false; /* lines of an event were seen, the first: event: ping */
    struct str line;

    while (s.n) {
        if (!take_line(&s, &line)) return false;
        if (line.n == 0) {
            in_ping = in_event = false;
        } else if (line.p[0] != ':') {
            if (!in_event) in_ping = str_is(line, "event: ping");
            in_event = true;
            if (!in_ping) return false;
        }
    }
    return !in_event;
}
