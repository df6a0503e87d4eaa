/* cors.c - headers of replies to pages of other origins. See cors.h. */
#include "server/cors.h"

#include "net/http.h"
#include "server/origin.h"
#include "server/settings.h"

#include <stdio.h>

bool cors_allows(const struct settings *s, const struct http_req *q)
{
    struct str origin = http_header(q, "Origin");

    return s->cors || (origin.n && origin_is_listed(origin, s->cors_origins));
}

void cors_set_headers(const struct settings *s, struct http_req *q)
{
    struct str origin = http_header(q, "Origin");
    bool any = s->cors || origin_is_listed(STR("null"), s->cors_origins); /* the list has "*" */
    char text[ORIGIN_BYTES];

    if (!any && *s->cors_origins) http_set_header(q, "Vary", "Origin");
    if (!any && (!cors_allows(s, q) || origin.n >= sizeof text)) return;
    snprintf(text, sizeof text, "%.*s", STR_ARG(origin));
    http_set_header(q, "Access-Control-Allow-Origin", any ? "*" : text);
    http_set_header(q, "Access-Control-Expose-Headers",
                    "X-Correlation-Id, x-request-id, Retry-After");
}

/* All headers it asks for are allowed: keys decide, not headers. A page of the internet asks besides
 * whether it may reach an address of this machine or its network. */
void cors_set_preflight(struct http_req *q, struct str methods)
{
    struct str asked = http_header(q, "Access-Control-Request-Headers");
    char text[1024];

    snprintf(text, sizeof text, "%.*s", STR_ARG(str_take(methods, 1000)));
    http_set_header(q, "Access-Control-Allow-Methods", text);
    if (!asked.n) asked = STR("Authorization, Content-Type");
    snprintf(text, sizeof text, "%.*s", STR_ARG(str_take(asked, 1000)));
    http_set_header(q, "Access-Control-Allow-Headers", text);
    http_set_header(q, "Access-Control-Max-Age", "86400");
    if (str_is(http_header(q, "Access-Control-Request-Private-Network"), "true"))
        http_set_header(q, "Access-Control-Allow-Private-Network", "true");
}
