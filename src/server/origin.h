/* origin.h - may a web page have sent this request, and may it?
 *
 * A browser sends requests for any page to any address, so a page of a stranger reaches a server on
 * loopback. Two headers that a page cannot forge tell them apart:
 *
 *   Host    the name in the URL. By DNS rebinding a page makes a name of its own point to 127.0.0.1;
 *           the browser then takes the server for the page's own origin and lets the page read its
 *           replies. Only names that cannot be rebound are accepted: localhost (which browsers
 *           resolve themselves), addresses, and the names that the operator lists.
 *   Origin, Sec-Fetch-Site
 *           the page that sends it. One of another origin may send nothing, unless --cors
 *           or --cors-origins allow it.
 *
 * Plain functions over texts; nothing is kept. */
#ifndef TERN_SERVER_ORIGIN_H
#define TERN_SERVER_ORIGIN_H

#include "base/err.h"
#include "base/str.h"

#include <stdbool.h>

/* "name", "name:port", "[address]:port" → name in its shortest form (no brackets, no final dot) and
 * port (-1: none). false: neither a name nor an address. */
bool origin_split(struct str text, struct str *name, int *port);

/* own: --host; allowed: --allowed-hosts, names with or without a port, separated by commas;
 * "*.name": every name below it; "*": any. */
bool origin_host_allowed(struct str host, const char *own, const char *allowed);
int origin_check_setting(const char *allowed, struct err *e); /* E_INVALID names the bad entry */

#define ORIGIN_BYTES 512 /* longer origins are never listed */
/* origin: the header; list: --cors-origins, "https://name:port" separated by commas; "*": any. */
bool origin_is_listed(struct str origin, const char *list);
int origin_check_list(const char *list, struct err *e); /* E_INVALID names the bad entry */

/* The request comes from a page of another origin than the one in host. origin, site: the headers
 * Origin and Sec-Fetch-Site; .p NULL: absent. */
bool origin_is_foreign(struct str host, struct str origin, struct str site);
#endif
