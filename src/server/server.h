/* server.h - start, accept, drain, stop: wiring of loop, HTTP, API, pool. */
#ifndef TERN_SERVER_SERVER_H
#define TERN_SERVER_SERVER_H

#include "server/settings.h"

/* Runs until SIGTERM or SIGINT has been carried out. Returns OK after a clean end. */
int server_run(struct settings *s, struct err *e);
#endif
