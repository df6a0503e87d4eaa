/* cors.h - pages of other origins that may use the API (CORS), and what their browser is told.
 *
 * --cors: every page may; replies have "Access-Control-Allow-Origin: *". --cors-origins: pages of the
 * listed origins may; replies to them name their origin, and "Vary: Origin" keeps caches from giving
 * one page the reply of another. Cookies are never allowed: a page sends the key in a header.
 *
 * For tern serve and tern gateway; the loop's thread. */
#ifndef TERN_SERVER_CORS_H
#define TERN_SERVER_CORS_H

#include "base/str.h"

#include <stdbool.h>

struct http_req;
struct settings;

/* May the page that sent q use the API? */
bool cors_allows(const struct settings *s, const struct http_req *q);
void cors_set_headers(const struct settings *s, struct http_req *q); /* of any reply */
/* Headers of the reply to a preflight, which the browser sends before a request. methods: of the path. */
void cors_set_preflight(struct http_req *q, struct str methods);
#endif
