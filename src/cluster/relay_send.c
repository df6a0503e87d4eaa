/* relay_send.c - the request that the gateway sends to a worker for a client's: headers of the hop
 * (docs/protocol.md), and the ids of tokens that the client has. */
#include "base/clock.h"
#include "cluster/relay_impl.h"
#include "server/settings.h"

#include <time.h>

static void add_header(struct relay *r, struct buf *b, const char *name)
{
    struct str v = http_header(r->q, name);

    if (v.p) buf_printf(b, "%s: %.*s\r\n", name, STR_ARG(v));
}

int64_t relay_epoch_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Deadlines go on as points in time: what the first worker used up is not given to the second. */
static void add_deadline(struct relay *r, struct buf *b)
{
    uint64_t now = clock_ns();
    int64_t left = r->deadline_ns > now ? (int64_t)((r->deadline_ns - now) / MS) : 0;

    if (r->deadline_ns) buf_printf(b, "X-Deadline: %lld\r\n", (long long)(relay_epoch_ms() + left));
    else add_header(r, b, "X-Deadline");
}

static void write_headers(struct relay *r, struct buf *b)
{
    const char *key = r->g->s->cluster_key;

    buf_puts(b, "X-Tern-Hop: 1\r\n");
    if (*key) {
        buf_printf(b, "X-Tern-Cluster-Key: %s\r\n", key);
    } else {
        add_header(r, b, "Authorization");
        add_header(r, b, "x-api-key");
    }
    buf_printf(b, "X-Correlation-Id: %s\r\nX-Tern-Tenant: %s\r\nX-Tern-Priority-Max: %d\r\n",
               r->correlation, r->name, r->who.priority_max);
    if (r->who.admin) buf_puts(b, "X-Tern-Admin: 1\r\n");
    add_header(r, b, "Content-Type");
    add_header(r, b, "Accept");
    add_header(r, b, "X-Priority");
    add_header(r, b, "X-Tern-Hint");
    add_header(r, b, "Idempotency-Key");
    add_header(r, b, "anthropic-version");
    add_deadline(r, b);
    buf_printf(b, "traceparent: %s\r\n", r->trace);
    if (r->kind == RELAY_COMPUTE) buf_printf(b, "X-Tern-Call: %s\r\n", r->call);
    if (r->kind != RELAY_GENERATE) return;
    buf_printf(b,
               "X-Tern-Call: %s\r\nX-Tern-Created: %lld\r\nX-Tern-Seed: %llu\r\nX-Tern-Ids: 1\r\n",
               r->call, (long long)r->created, (unsigned long long)r->seed);
    if (!r->units.begun) return;
    buf_printf(b, "X-Tern-Resume: %zu\r\n", r->units.ids.n);
    if (r->units.n_events) buf_printf(b, "X-Tern-Events: %d\r\n", r->units.n_events);
}

/* The body begins with the ids that the client has; the rest of it is the client's own. */
static void write_resume(struct relay *r, struct buf *first, struct str *rest)
{
    struct str s = r->body, after;
    ptrdiff_t open = str_find(s, STR("{"));

    if (!r->units.begun || open < 0) return;
    after = str_skip(s, (size_t)open + 1);
    buf_puts(first, "{\"tern_resume\":[");
    for (size_t i = 0; i < r->units.ids.n; i++)
        buf_printf(first, "%s%d", i ? "," : "", r->units.ids.p[i]);
    buf_puts(first, str_starts(str_trim(after), STR("}")) ? "]" : "],");
    *rest = after;
}

bool relay_send(struct relay *r, const struct hop_ops *ops)
{
    struct buf headers = { 0 }, first = { 0 };
    struct hop_request rq = { .method = r->method,
                              .path = buf_cstr(&r->target),
                              .has_body =
                                  strcmp(r->method, "GET") != 0 && strcmp(r->method, "HEAD") != 0 };

    rq.fresh = relay_is_once(r) || r->kind == RELAY_JOB;
    r->attempts++;
    if (r->begun) {
        r->n_replays++;
        counter_add(&r->g->n.replays, 1);
        r->w->n.replayed++;
    }
    r->type[0] = 0;
    r->streams = false;
    rq.body = rq.has_body ? r->body : STR("");
    write_headers(r, &headers);
    write_resume(r, &first, &rq.body);
    rq.headers = buf_str(&headers);
    rq.first = buf_str(&first);
    r->has_ids = r->begun && r->has_ids;
    if (!headers.failed && !first.failed && !r->target.failed)
        r->hop = hop_start(r->w->lane, &rq, ops, r);
    buf_release(&headers);
    buf_release(&first);
    return r->hop != NULL;
}
