/* routes.h - the table of routes: method, path, handler, and who may use it. */
#ifndef TERN_SERVER_ROUTES_H
#define TERN_SERVER_ROUTES_H

#include <stdbool.h>

struct buf;
struct http_req;

enum http_admission routes_admit(void *arg, struct http_req *q); /* http_admit_fn */
void routes_handle(void *arg, struct http_req *q);               /* http_fn */
void routes_fail(void *arg, struct http_req *q, int status, const char *code, const char *msg,
                 struct buf *out); /* http_fail_fn */

/* http_opt.vital: health checks. */
bool routes_is_vital(void *arg, const struct http_req *q);

/* A request of the server itself, a job, to the handler of the API that has this path. false: there is
 * none, and q was answered. */
struct api_who;
struct server;
bool routes_submit(struct server *v, const char *path, struct http_req *q,
                   const struct api_who *who);

/* By index; a route has the same index for the life of the program. */
const char *routes_name(int i);   /* "/v1/chat/completions"; NULL: no more routes */
const char *routes_method(int i); /* "GET", "POST", "DELETE"; "": no such route */
bool routes_is_limited(int i);    /* limit_take counts it */
#endif
