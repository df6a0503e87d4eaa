#include "server/registration.h"

#include "engine/stats.h"
#include "member/member.h"
#include "net/http.h"
#include "pool/pool.h"
#include "server/server_impl.h"
#include "server/settings.h"

#include <stdio.h>
#include <string.h>

void server_instance(const struct server *v, char out[40])
{
    snprintf(out, 40, "%lld-%llx", (long long)v->start_ms, (unsigned long long)v->start_ns);
}

static bool is_wildcard(const char *host)
{
    return !*host || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0 ||
           strcmp(host, "[::]") == 0;
}

int registration_open(struct server *v, struct err *e)
{
    const struct settings *s = v->s;

    if (!*s->nats) return OK;
    if (!*s->advertise && is_wildcard(s->host))
        return err_set(e, E_INVALID,
                       "nats is set and host is '%s': --advertise must name the URL under which "
                       "gateways reach this worker",
                       s->host);
    return registrar_open(&v->registrar, s->nats, e);
}

static void write_url(const struct server *v, char *out, size_t cap)
{
    const struct settings *s = v->s;
    bool v6 = strchr(s->host, ':') && s->host[0] != '[';

    if (*s->advertise) snprintf(out, cap, "%s", s->advertise);
    else
        snprintf(out, cap, "http%s://%s%s%s:%d", *s->tls_cert ? "s" : "", v6 ? "[" : "", s->host,
                 v6 ? "]" : "", http_port(v->http));
}

void registration_update(struct server *v)
{
    struct member m = { .draining = v->life != LIFE_RUN, .weight = 1 };

    if (!v->registrar) return;
    write_url(v, m.url, sizeof m.url);
    server_instance(v, m.instance);
    for (int i = 0; i < pool_n(v->pool); i++) {
        const struct engine_stats *s = server_stats(v, i);
        m.running += s ? (int)gauge_get(&s->running) : 0;
        m.waiting += s ? (int)gauge_get(&s->waiting) : 0;
    }
    registrar_set(v->registrar, &m);
}
