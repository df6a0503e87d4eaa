/* gangmeet.h - the leader meets the members, before anything is loaded: their cards are compared, and
 * by these the parts of the model are chosen. */
#ifndef TERN_MODEL_GANGMEET_H
#define TERN_MODEL_GANGMEET_H

#include "comm/comm.h"
#include "model/loadplan.h"

/* Sends orders from number *number on, and counts it up. The shape of the plan's gang has then the parts
 * of all members. *uneven: they are not those that the plan was made with. E_UNSUPPORTED, E_INVALID:
 * these members cannot work together, or the model does not fit. */
int gangmeet(struct loadplan *p, struct comm *all, uint64_t *number, bool *uneven, struct err *e);

/* The order and its body to every member. */
int gangmeet_send(struct comm *all, uint32_t kind, uint64_t number, const void *body, size_t n,
                  struct err *e);
#endif
