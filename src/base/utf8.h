/* utf8.h - code points in and out. */
#ifndef TERN_BASE_UTF8_H
#define TERN_BASE_UTF8_H

#include "base/str.h"

/* Decodes one code point of s (s.n > 0); returns its length in bytes. Bytes that are
 * not UTF-8 (overlong, surrogate, cut short, above 10FFFF) give *cp = -1 and length 1. */
int utf8_next(struct str s, int32_t *cp);

/* Writes cp as 1 to 4 bytes; returns how many. */
int utf8_put(char out[4], int32_t cp);

/* Offset of the first byte that is not UTF-8, or -1 if all of it is. */
ptrdiff_t utf8_bad(struct str s);

/* How many bytes at the end of s begin a character that is not complete yet: 0 to 3. */
int utf8_partial(struct str s);
#endif
