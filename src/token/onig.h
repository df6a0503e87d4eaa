/* onig.h - patterns as tokenizer.json writes them, in the words of PCRE2.
 *
 * The dialect is Oniguruma's with Ruby's syntax. What differs and is translated: \s \d \w \h and
 * their opposites, names of properties and scripts, \u, classes inside classes and &&, {n,m}+ (a
 * repeat of a repeat there, not possessive), {,m}, (?m). */
#ifndef TERN_TOKEN_ONIG_H
#define TERN_TOKEN_ONIG_H

#include "base/buf.h"
#include "base/err.h"

/* Appends the translation of pattern (UTF-8) to out. */
int onig_translate(struct buf *out, struct str pattern, struct err *e);
#endif
