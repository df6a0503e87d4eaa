/* charsmap.h - sentencepiece's precompiled map of replacements: a double-array trie and its texts.
 */
#ifndef TERN_TOKEN_CHARSMAP_H
#define TERN_TOKEN_CHARSMAP_H

#include "base/buf.h"
#include "base/err.h"

int charsmap_check(struct str map, struct err *e);
/* longest: the longest key at each place is replaced, as sentencepiece does; otherwise grapheme by
 * grapheme, then character by character, each by its shortest key, as Hugging Face does. */
void charsmap_put(struct str map, bool longest, struct str text, struct buf *out);
#endif
