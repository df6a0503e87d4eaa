/* conn_id.c - the correlation id of a request: the client's, or a random one.
 *
 * It is chosen when it is first asked for, which is at the latest when a reply is sent: a request
 * that is refused before its headers are complete has the client's id if that header came before. */
#include "net/conn.h"

#include "base/clock.h"

#include <stdio.h>
#include <sys/random.h>

/* Safe in headers and logs. */
static bool is_safe(struct str s)
{
    if (s.n == 0 || s.n > ID_BYTES) return false;
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              memchr("._:-", c, 4)))
            return false;
    }
    return true;
}

/* 96 random bits. */
static void make_id(char *out)
{
    unsigned char raw[12] = { 0 };

    if (getrandom(raw, sizeof raw, 0) != (ssize_t)sizeof raw) {
        uint64_t now = clock_ns();
        memcpy(raw, &now, sizeof now);
    }
    memcpy(out, "req-", 5);
    for (size_t i = 0; i < sizeof raw; i++) snprintf(out + 4 + 2 * i, 3, "%02x", raw[i]);
}

const char *conn_id(struct conn *c)
{
    static const char *const names[] = { "X-Correlation-Id", "X-Request-Id" };

    for (size_t i = 0; i < sizeof names / sizeof *names && !c->id[0]; i++) {
        struct str v = httpmsg_header(&c->msg, names[i]);
        if (!is_safe(v)) continue;
        memcpy(c->id, v.p, v.n);
        c->id[v.n] = 0;
    }
    if (!c->id[0]) make_id(c->id);
    return c->id;
}
