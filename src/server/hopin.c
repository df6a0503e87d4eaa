#include "server/hopin.h"

#include "net/http.h"
#include "server/auth.h"
#include "server/server_impl.h"
#include "server/settings.h"
#include "server/visit.h"

#include <openssl/crypto.h>
#include <stdio.h>

bool hopin_is_hop(const struct visit *t) { return http_header(t->q, "X-Tern-Hop").p != NULL; }

static int check_trust(const struct visit *t, struct err *e)
{
    struct str key = http_header(t->q, "X-Tern-Cluster-Key"), own = str_c(t->v->s->cluster_key);

    if (own.n) {
        if (key.n == own.n && CRYPTO_memcmp(key.p, own.p, own.n) == 0) return OK;
        return err_set(e, E_DENIED,
                       key.n ? "the cluster key of the gateway is not this worker's"
                             : "this worker needs a gateway with the cluster key");
    }
    if (auth_is_open(t->v->auth)) return OK;
    return err_set(e, E_DENIED,
                   "this worker has API keys and no --cluster-key: it believes no gateway");
}

static int refuse_header(const char *name, struct str v, struct err *e)
{
    return err_set(e, E_INVALID, "the header %s of a gateway is '%.*s'", name,
                   STR_ARG(str_take(v, 60)));
}

/* An integer from lo to hi; *given: the header is there. */
static int read_number(const struct visit *t, const char *name, int64_t lo, int64_t hi,
                       int64_t *out, bool *given, struct err *e)
{
    struct str v = http_header(t->q, name);
    int64_t n;

    *given = v.p != NULL;
    if (!v.p) return OK;
    if (!str_to_i64(v, &n) || n < lo || n > hi) return refuse_header(name, v, e);
    *out = n;
    return OK;
}

/* Letters and digits: it becomes part of an id. */
static int read_call(struct visit *t, struct api_hop *h, struct err *e)
{
    struct str v = http_header(t->q, "X-Tern-Call");

    if (!v.p) return OK;
    for (size_t i = 0; i < v.n; i++)
        if (!((v.p[i] >= '0' && v.p[i] <= '9') || (v.p[i] >= 'a' && v.p[i] <= 'z') ||
              (v.p[i] >= 'A' && v.p[i] <= 'Z')))
            return refuse_header("X-Tern-Call", v, e);
    if (v.n == 0 || v.n >= sizeof h->call) return refuse_header("X-Tern-Call", v, e);
    memcpy(h->call, v.p, v.n);
    return OK;
}

static int read_hop(struct visit *t, struct err *e)
{
    struct api_hop *h = &t->who.hop;
    int64_t seed = 0, resume = 0, created = 0, events = 0;
    bool counted;
    int rc;

    if ((rc = read_call(t, h, e)) != OK) return rc;
    if ((rc = read_number(t, "X-Tern-Seed", 0, INT64_MAX, &seed, &h->has_seed, e)) != OK) return rc;
    if ((rc = read_number(t, "X-Tern-Created", 0, INT64_MAX, &created, &h->has_created, e)) != OK)
        return rc;
    if ((rc = read_number(t, "X-Tern-Resume", 0, INT32_MAX, &resume, &h->resumes, e)) != OK)
        return rc;
    if ((rc = read_number(t, "X-Tern-Events", 0, INT32_MAX, &events, &counted, e)) != OK) return rc;
    h->ids = http_header(t->q, "X-Tern-Ids").p != NULL;
    h->seed = (uint64_t)seed;
    h->created = created;
    h->n_resume = (int)resume;
    h->n_events = (int)events;
    return OK;
}

/* The gateway has checked the key and the limits of the tenant. */
static int read_tenant(struct visit *t, const struct tenant **out, struct err *e)
{
    struct server *v = t->v;
    struct str name = http_header(t->q, "X-Tern-Tenant");
    int64_t priority = 0;
    bool given;
    int rc;

    if (!name.p) name = STR("default");
    if ((rc = auth_gateway_tenant(v->auth, name, out, e)) != OK) return rc;
    rc = read_number(t, "X-Tern-Priority-Max", -100, 100, &priority, &given, e);
    if (rc != OK) return rc;
    t->who.name = auth_name(v->auth, (*out)->index);
    t->who.tenant = (*out)->index;
    t->who.keyed = !str_is(name, "default");
    t->who.admin = http_header(t->q, "X-Tern-Admin").p != NULL;
    t->who.priority_max = given ? (int)priority : (*out)->priority_max;
    return OK;
}

int hopin_read(struct visit *t, const struct tenant **out, struct err *e)
{
    int rc;

    if ((rc = check_trust(t, e)) != OK) return rc;
    if ((rc = read_tenant(t, out, e)) != OK) return rc;
    return read_hop(t, e);
}
