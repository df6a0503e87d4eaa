/* member.h - membership of a cluster over NATS: workers register with a lease, gateways list them.
 *
 * A worker is an entry of the bucket NATS_BUCKET, rewritten each second and gone NATS_LEASE_MS after the
 * last time (docs/protocol.md). Both sides have a thread of their own, since libnats blocks; they meet
 * the loop under a lock. A NATS server that is away is no error: the thread goes on trying, and the log
 * says so once. */
#ifndef TERN_MEMBER_MEMBER_H
#define TERN_MEMBER_MEMBER_H

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

struct member { /* texts are borrowed, or owned by the record (member_read) */
    char url[256];
    char instance[40];
    bool draining;
    double weight;
    int running, waiting;
};

void member_write(const struct member *m, struct buf *out); /* JSON */
/* E_FORMAT names the member that is wrong. */
int member_read(struct member *out, struct str json, struct err *e);
/* The key of a worker: a hash of its URL, in letters. */
void member_key(const char *url, char out[40]);

/* ---- the worker's side ---- */
struct registrar;
/* E_UNSUPPORTED: tern-nats.so is missing. Nothing is registered before registrar_set. */
int registrar_open(struct registrar **out, const char *nats_url, struct err *e);
void registrar_set(struct registrar *r, const struct member *m); /* NULL r is allowed */
bool registrar_is_connected(struct registrar *r);
void registrar_close(struct registrar *r); /* leaves the bucket; NULL is allowed */

/* ---- the gateway's side ---- */
struct roster;
/* changed: called on the roster's thread after each successful listing. */
int roster_open(struct roster **out, const char *nats_url, void (*changed)(void *arg), void *arg,
                struct err *e);
/* Copies at most max members of the last listing; returns how many. -1: there was none since the
 * last call. */
int roster_take(struct roster *r, struct member *out, int max);
bool roster_is_connected(struct roster *r);
void roster_close(struct roster *r); /* NULL is allowed */
#endif
