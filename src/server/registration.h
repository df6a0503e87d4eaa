/* registration.h - a worker's entry in the membership of a cluster (member/member.h), with --nats. */
#ifndef TERN_SERVER_REGISTRATION_H
#define TERN_SERVER_REGISTRATION_H

#include "base/err.h"

struct server;

int registration_open(struct server *v, struct err *e); /* nothing without --nats */
void registration_update(struct server *v); /* once a second, and when the server drains */
/* Changes with every start of the process. */
void server_instance(const struct server *v, char out[40]);
#endif
