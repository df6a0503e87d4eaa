/* utf8.h - UTF-8 decoding, encoding and validation. */
#ifndef TERN_BASE_UTF8_H
#define TERN_BASE_UTF8_H

#include "base/str.h"

/* Decodes the first code point of s, which must not be empty, and returns its length in bytes. For
 * invalid UTF-8 (overlong, surrogate, incomplete, above U+10FFFF) *cp is -1 and the length 1. */
int utf8_next(struct str s, int32_t *cp);

/* Encodes cp (0 to 0x10FFFF) as 1 to 4 bytes and returns how many. */
int utf8_put(char out[4], int32_t cp);

/* Offset of the first byte that is not valid UTF-8; -1: all of s is valid. */
ptrdiff_t utf8_bad(struct str s);

/* Number of bytes (0 to 3) at the end of s that are the start of an incomplete code point. A stream
 * keeps them back until the rest arrives. Bytes that cannot become valid do not count. */
int utf8_partial(struct str s);
#endif
