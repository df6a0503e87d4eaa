/* jsonr.h - JSON to jansson's trees and back, which fails cleanly when memory runs out.
 *
 * jansson (2.14) does not check the growth of the buffer that its lexer collects a token in.
 * Without memory it drops bytes: the tree then has other strings and numbers than the text, or the
 * lexer runs past the end of the buffer. So jsonr_load never lets jansson see a failed allocation:
 * it leaves the parser at once and frees what the parser had allocated. Use it in place of
 * json_loadb. Its json_dumps leaves out a key whose text finds no memory: use jsonr_dump. Any
 * thread may call both. */
#ifndef TERN_BASE_JSONR_H
#define TERN_BASE_JSONR_H

#include "base/buf.h"

#include <jansson.h>
#include <stdatomic.h>

/* Like json_loadb; the tree is the caller's (json_decref). NULL: *je (if je is not NULL) says why,
 * with json_error_code(je) == json_error_out_of_memory where memory ran out. Integers that do not
 * fit into 64 bits are real numbers. */
json_t *jsonr_load(struct str text, size_t flags, json_error_t *je);
/* The same, but it returns NULL soon after *stop has become other than 0. */
json_t *jsonr_load_until(struct str text, size_t flags, const atomic_int *stop, json_error_t *je);
/* Appends the text of a value, with json_dumps' flags. A failed allocation sets out->failed. */
void jsonr_dump(struct buf *out, const json_t *v, size_t flags);
#endif
