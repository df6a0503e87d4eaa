/* startlog.h - the first lines of the log: where the server listens, its limits, each model. */
#ifndef TERN_SERVER_STARTLOG_H
#define TERN_SERVER_STARTLOG_H

struct pool_instance;
struct server;

void startlog_server(const struct server *v);
void startlog_model(const struct pool_instance *m);
/* Once a second: how far models are that have been loading for a while. */
void startlog_progress(struct server *v);
#endif
