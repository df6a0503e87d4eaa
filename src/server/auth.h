/* auth.h - API keys: key → tenant.
 *
 * Keys come from --api-key and from a file, one per line:
 *
 *     KEY [name=N] [rate=N/min] [concurrency=N] [priority=N] [admin]
 *
 * Only the SHA-256 of a key is kept. A lookup compares with every key in constant time, so that its
 * duration tells nothing. Without any key every request belongs to the tenant "default". Keys with
 * the same name are one tenant, whose index stays the same over reloads. One thread uses it. */
#ifndef TERN_SERVER_AUTH_H
#define TERN_SERVER_AUTH_H

#include "base/err.h"
#include "base/str.h"

struct auth;

struct tenant {
    char name[64];
    uint32_t index;                /* 0: the default one */
    int rate_per_min, concurrency; /* limits; 0: none; -1: the server's setting */
    int priority_max;
    bool admin; /* may read /status and /metrics and cancel requests of other tenants */
};

/* key: one or several separated by commas, each with the rights of an admin. key and file may be
 * NULL or empty. A file without any key is E_INVALID. */
int auth_open(struct auth **out, const char *key, const char *file, struct err *e);
int auth_reload(struct auth *a, struct err *e); /* on an error the old keys stay */
void auth_close(struct auth *a);                /* NULL is allowed */
bool auth_is_open(const struct auth *a);        /* there are no keys */
bool auth_has_admin(const struct auth *a);      /* some key has the rights of an admin */
int auth_n_keys(const struct auth *a);
/* The values of the headers Authorization ("Bearer K") and x-api-key (K); either may be empty.
 * E_DENIED. *out is valid until the next reload. */
int auth_check(const struct auth *a, struct str authorization, struct str x_api_key,
               const struct tenant **out, struct err *e);
/* A tenant that a gateway names, whose limits the gateway has checked. E_INVALID: not a name; E_MEMORY:
 * too many of them. *out is valid until the next call. */
int auth_gateway_tenant(struct auth *a, struct str name, const struct tenant **out, struct err *e);
/* The tenant of this name; NULL: no key has it any more. Valid until the next reload. */
const struct tenant *auth_find(const struct auth *a, const char *name);
/* Valid as long as a; NULL: no such tenant. */
const char *auth_name(const struct auth *a, uint32_t index);
#endif
