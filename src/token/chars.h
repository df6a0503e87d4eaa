/* chars.h - what kind of character is this: the few classes tokenizers ask for.
 *
 * Categories come from utf8proc. cp is a code point, never negative. */
#ifndef TERN_TOKEN_CHARS_H
#define TERN_TOKEN_CHARS_H

#include "base/buf.h"

#include <stdbool.h>
#include <stdint.h>

bool char_is_space(int32_t cp);      /* Unicode's White_Space */
bool char_is_digit(int32_t cp);      /* Nd, Nl, No */
bool char_is_punct(int32_t cp);      /* P*, and all of ASCII's punctuation */
bool char_is_word(int32_t cp);       /* letters, marks, digits, connectors, joiners */
bool char_is_mark(int32_t cp);       /* Mn, Mc, Me */
bool char_is_nonspacing(int32_t cp); /* Mn */
bool char_is_other(int32_t cp);      /* Cc, Cf, Co */
bool char_is_cjk(int32_t cp);        /* what BERT puts spaces around */

typedef bool char_class(int32_t cp);

void char_put(struct buf *out, int32_t cp);
/* Lower case, which for one character is two. */
void char_put_lower(struct buf *out, int32_t cp);

/* Appends s with every part that is not UTF-8 replaced by U+FFFD (one for each longest broken
 * part). */
void text_put_valid(struct buf *out, struct str s);

/* Byte-level alphabet: the character that stands for a byte, and back (-1: none). */
int32_t byte_char(unsigned char b);
int char_byte(int32_t cp);
void text_put_bytes(struct buf *out, struct str s); /* each byte as its character */
#endif
