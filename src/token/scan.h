/* scan.h - the patterns most models split with, followed by hand over plain ASCII.
 *
 * PCRE2 defines what a pattern matches; this only knows the few whose matches inside ASCII are
 * simple, and says "undecided" wherever another byte could have a say. */
#ifndef TERN_TOKEN_SCAN_H
#define TERN_TOKEN_SCAN_H

#include "base/str.h"

enum scan_style { SCAN_GPT2, SCAN_CL100K, SCAN_O200K };

struct scan {
    bool known;
    enum scan_style style;
    int max_digits;    /* in one match */
    bool slash;        /* O200K: '/' may follow punctuation as line ends may */
    bool contractions; /* O200K: words take 's with them */
};

extern const char scan_gpt2_pattern[];

/* The scan for a pattern (as tokenizer.json writes it); not known for most. */
struct scan scan_for(struct str pattern);

/* Length of the match at p[0], n > 0 bytes before the end of the text; 0: ask PCRE2. */
size_t scan_next(const struct scan *s, const unsigned char *p, size_t n);
#endif
