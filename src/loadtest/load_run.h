/* load_run.h - carries a load plan out: starts requests, reads their streams, keeps count. */
#ifndef TERN_LOADTEST_LOAD_RUN_H
#define TERN_LOADTEST_LOAD_RUN_H

#include "loadtest/load_client.h"
#include "loadtest/load_plan.h"

/* Asks the server for its first model if the plan names none, and how many tokens a word has.
 * Fails if there is no server, or it wants another key. */
int load_probe(struct load_target *t, struct load_plan *p, struct err *e);

/* Until all is done, the duration has passed or SIGINT came. progress: a line on stderr that lives.
 */
int load_run(struct load_target *t, const struct load_plan *p, bool progress,
             struct load_stats *out, struct err *e);
#endif
