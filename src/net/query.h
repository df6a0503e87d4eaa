/* query.h - parameters of a URL's query, "a=1&b=two%20words". */
#ifndef TERN_NET_QUERY_H
#define TERN_NET_QUERY_H

#include "base/str.h"

/* The value of the first parameter of that name, still percent-encoded; false: there is none. */
bool query_find(struct str query, const char *name, struct str *out);
/* Is a value, percent-encoded, this text? */
bool query_is(struct str value, const char *text);
#endif
