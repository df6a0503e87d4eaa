/* pulls.h - POST /api/pull: models that are downloaded while the server runs.
 *
 * A pull is one child process (pullchild.h). Clients that ask for the same model share it; it is stopped
 * when the last of them has left. A model that has come is found by its name from then on, until the
 * server ends. All functions are for the loop's thread. */
#ifndef TERN_SERVER_PULLS_H
#define TERN_SERVER_PULLS_H

struct server;
struct visit;

void pulls_post(struct visit *t);
void pulls_drain(struct server *v); /* stops them: the server ends */
void pulls_close(struct server *v); /* ends what is left */
#endif
