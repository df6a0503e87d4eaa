/* auth.h - key → tenant.
 *
 * Keys come from --api-key and a file, one a line:
 *
 *     KEY [name=N] [rate=N/min] [concurrency=N] [priority=N] [admin]
 *
 * Only their SHA-256 is kept; comparison takes the same time whichever byte differs, and all keys
 * are looked at. Without any key everybody is the tenant "default". Keys with the same name are the
 * same tenant, with the same index also after a reload. One thread asks and reloads. */
#ifndef TERN_SERVER_AUTH_H
#define TERN_SERVER_AUTH_H

#include "base/err.h"
#include "base/str.h"

struct auth;

struct tenant {
    char name[64];
    uint32_t index;                /* 0: the default one */
    int rate_per_min, concurrency; /* 0: none; -1: the server's setting */
    int priority_max;
    bool admin; /* may see /status and /metrics, cancel others' requests */
};

/* key: one or several with commas between, each an admin's; both may be NULL or empty. A file
 * without any key is refused. */
int auth_open(struct auth **out, const char *key, const char *file, struct err *e);
int auth_reload(struct auth *a, struct err *e); /* the old ones stay if the file is bad */
void auth_close(struct auth *a);                /* NULL is fine */
bool auth_is_open(const struct auth *a);        /* no keys */
bool auth_has_admin(const struct auth *a);      /* some key is an admin's */
int auth_n_keys(const struct auth *a);
/* header: of Authorization ("Bearer K") or of x-api-key (K); either may be empty. E_DENIED. *out
 * lives until the next reload. */
int auth_check(const struct auth *a, struct str authorization, struct str x_api_key,
               const struct tenant **out, struct err *e);
/* Lives as long as the auth; NULL: no such tenant. */
const char *auth_name(const struct auth *a, uint32_t index);
#endif
