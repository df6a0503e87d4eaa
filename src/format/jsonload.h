/* jsonload.h - JSON from a file, with a bound on the memory its tree takes.
 *
 * A few bytes of text become a hundred of tree, so the parts are counted before. Flags are
 * jansson's. The tree is the caller's, to be ended with json_decref. */
#ifndef TERN_FORMAT_JSONLOAD_H
#define TERN_FORMAT_JSONLOAD_H

#include "base/err.h"
#include "base/str.h"

#include <jansson.h>

int jsonload(json_t **out, struct str text, size_t flags, const char *name, struct err *e);
#endif
