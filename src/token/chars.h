/* chars.h - classes of characters, and bytes written as characters.
 *
 * The lowest module of the tokenizer: the normalizer, the pre-tokenizer and the decoder all use it.
 * General categories come from utf8proc, so they are those of its Unicode version. Every `cp` is a
 * code point, never negative.
 *
 * Functions that append to a struct buf report a failed allocation through the buf (buf.h). */
#ifndef TERN_TOKEN_CHARS_H
#define TERN_TOKEN_CHARS_H

#include "base/buf.h"

#include <stdbool.h>
#include <stdint.h>

#define SPACE_MARK "\xe2\x96\x81" /* U+2581, which SentencePiece writes for a space */

bool char_is_space(int32_t cp);      /* the Unicode property White_Space */
bool char_is_digit(int32_t cp);      /* Nd, Nl, No */
bool char_is_punct(int32_t cp);      /* P*, and all ASCII punctuation, also `$+<=>^|~ (S*) */
bool char_is_word(int32_t cp);       /* letters, marks, digits, connectors, joiners */
bool char_is_mark(int32_t cp);       /* Mn, Mc, Me */
bool char_is_nonspacing(int32_t cp); /* Mn */
bool char_is_other(int32_t cp);      /* Cc, Cf, Co */
bool char_is_cjk(int32_t cp);        /* the ideographs that BERT surrounds with spaces */

typedef bool char_class(int32_t cp);

void char_put(struct buf *out, int32_t cp); /* appends cp as UTF-8 */
/* Appends the lower case of cp: one character, except for U+0130, which becomes two. */
void char_put_lower(struct buf *out, int32_t cp);

/* Appends s with each maximal ill-formed sequence replaced by one U+FFFD, as Unicode recommends and
 * Python and Rust do. Reserves 64 bytes more than it writes. */
void text_put_valid(struct buf *out, struct str s);

/* The byte-level alphabet of GPT-2: each byte value has one printable character. Printable Latin-1
 * bytes stand for themselves, the other 68 are U+0100 to U+0143. A space is U+0120 'Ġ'. */
int32_t byte_char(unsigned char b);
int char_byte(int32_t cp);                          /* the byte, or -1: not in the alphabet */
void text_put_bytes(struct buf *out, struct str s); /* appends the character of each byte */
#endif
