/* unicode.h - the character properties that Python's str methods use.
 *
 * Built on utf8proc, with the exceptions where CPython 3.11 (Unicode 14) differs from its tables.
 * No function allocates. */
#ifndef TERN_JINJA_UNICODE_H
#define TERN_JINJA_UNICODE_H

#include <stdbool.h>
#include <stdint.h>

bool uni_space(int32_t cp);    /* str.isspace() */
bool uni_line_end(int32_t cp); /* where splitlines() splits; the caller joins "\r\n" */
bool uni_printable(int32_t cp);
bool uni_alpha(int32_t cp);
bool uni_decimal(int32_t cp);
bool uni_digit(int32_t cp);
bool uni_numeric(int32_t cp);
bool uni_upper(int32_t cp);
bool uni_lower(int32_t cp);
bool uni_title(int32_t cp);
bool uni_cased(int32_t cp);
bool uni_case_ignorable(int32_t cp); /* skipped when looking for the end of a word */
bool uni_word(int32_t cp);           /* \w of Python's re */

/* Full case mappings: write 1 to 3 code points and return how many. */
int uni_to_upper(int32_t cp, int32_t out[3]);
int uni_to_lower(int32_t cp, int32_t out[3]);
int uni_to_title(int32_t cp, int32_t out[3]);
int uni_to_fold(int32_t cp, int32_t out[3]); /* str.casefold() */
#endif
