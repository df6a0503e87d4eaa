/* query.h - parameters of a URL's query, "a=1&b=two%20words". */
#ifndef TERN_NET_QUERY_H
#define TERN_NET_QUERY_H

#include "base/str.h"

/* The value of the first parameter of that name, still percent-encoded; false: there is none. */
bool query_find(struct str query, const char *name, struct str *out);
/* The next parameter of that name: *query is the rest of the query behind the one found before. */
bool query_next(struct str *query, const char *name, struct str *out);
bool query_is(struct str value, const char *text); /* is a value, percent-encoded, this text? */
/* Copies a decoded value into out, NUL-terminated. false: it is longer, or contains NUL. */
bool query_decode(struct str value, char *out, size_t cap);
#endif
