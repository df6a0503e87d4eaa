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

/* By index; a route has the same index for the life of the program. */
const char *routes_name(int i);   /* "/v1/chat/completions"; NULL: no more routes */
const char *routes_method(int i); /* "GET", "POST"; "": no such route */
bool routes_is_limited(int i);    /* limit_take counts it */
#endif
