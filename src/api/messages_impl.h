/* messages_impl.h - what a call of /v1/messages keeps between its body and its answer. Private to
 * messages*.c. */
#ifndef TERN_API_MESSAGES_IMPL_H
#define TERN_API_MESSAGES_IMPL_H

#include "api/call.h"

struct messages {
    int n_stops;
    struct str stops[STOPS_MAX]; /* copies: the body is freed before the answer */
};

static inline const struct messages *messages_state(const struct call *c) { return c->state; }

/* messages_body.c: dialect.translate */
int messages_translate(struct call *c, json_t **out, struct err *e);
#endif
