/* seats.h - the members of a model's gang as JSON: in READY of the process that leads them, and in
 * GET /status of the server. */
#ifndef TERN_WORKER_SEATS_H
#define TERN_WORKER_SEATS_H

#include "base/arena.h"
#include "base/jsonw.h"
#include "engine/info.h"

#include <jansson.h>

/* An object with tp, pp, transport and members[]; comm_share < 0: it is left out. */
void seats_write(struct jsonw *w, const struct engine_info *i, double comm_share);
/* Reads it into the arena; what makes no sense is left out. NULL is allowed: there is no gang. */
void seats_read(const json_t *v, struct arena *a, struct engine_info *out);
/* The part of the model's weights that member k has. */
double seats_share(const struct engine_info *i, int k);
#endif
