/* jsonload.h - parses JSON from a file, with a bound on the memory of its tree.
 *
 * A few bytes of text become a hundred bytes of tree, so a hostile file of a hundred megabytes
 * could take all memory. The values are counted before parsing, and too many are refused. */
#ifndef TERN_FORMAT_JSONLOAD_H
#define TERN_FORMAT_JSONLOAD_H

#include "base/err.h"
#include "base/str.h"

#include <jansson.h>

/* *out belongs to the caller (json_decref), and is NULL after an error. flags are jansson's; name
 * is used in messages. E_FORMAT: not JSON; E_UNSUPPORTED: too many values; E_NOMEM. */
int jsonload(json_t **out, struct str text, size_t flags, const char *name, struct err *e);
#endif
