/* unicode.h - what Python's str knows about characters: white space, classes, cases. */
#ifndef TERN_JINJA_UNICODE_H
#define TERN_JINJA_UNICODE_H

#include <stdbool.h>
#include <stdint.h>

bool uni_space(int32_t cp);
bool uni_line_end(int32_t cp); /* where splitlines() splits; "\r\n" is one */
bool uni_printable(int32_t cp);
bool uni_alpha(int32_t cp);
bool uni_decimal(int32_t cp);
bool uni_digit(int32_t cp);
bool uni_numeric(int32_t cp);
bool uni_upper(int32_t cp);
bool uni_lower(int32_t cp);
bool uni_title(int32_t cp);
bool uni_cased(int32_t cp);
bool uni_case_ignorable(int32_t cp);
bool uni_word(int32_t cp); /* \w of Python's re */

/* Full case mappings: 1 to 3 code points; how many. */
int uni_to_upper(int32_t cp, int32_t out[3]);
int uni_to_lower(int32_t cp, int32_t out[3]);
int uni_to_title(int32_t cp, int32_t out[3]);
int uni_to_fold(int32_t cp, int32_t out[3]);
#endif
