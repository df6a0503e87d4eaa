/* jsonw.h - write JSON into a buf. The writer places commas and quotes; the caller nests correctly.
 *
 * Nothing here reports a failure: the buf remembers it. Before the text is used or passed on,
 * buf_check(&buf, e) is the check. The deepest nesting is 64; deeper is a bug of the caller.
 *
 *     struct jsonw w = { .out = &buf };
 *     jsonw_obj(&w);
 *     jsonw_key(&w, "ppl"), jsonw_num(&w, 3.63);
 *     jsonw_end(&w);                                                                       */
#ifndef TERN_BASE_JSONW_H
#define TERN_BASE_JSONW_H

#include "base/buf.h"

struct jsonw {
    struct buf *out; /* borrowed; text is appended */
    int depth;       /* open objects and arrays */
    bool comma;      /* the next value or key needs a comma before it */
    bool key;        /* a key was written; its value follows */
    char close[64];  /* [depth] the closing bracket of each level */
};

void jsonw_obj(struct jsonw *w);
void jsonw_arr(struct jsonw *w);
void jsonw_end(struct jsonw *w); /* closes the innermost object or array */
void jsonw_key(struct jsonw *w, const char *key);
void jsonw_str(struct jsonw *w, struct str s); /* invalid UTF-8 becomes U+FFFD */
void jsonw_int(struct jsonw *w, int64_t v);
void jsonw_num(struct jsonw *w, double v); /* shortest text that parses to v; NaN, Inf: null */
void jsonw_bool(struct jsonw *w, bool v);
void jsonw_null(struct jsonw *w);
void jsonw_raw(struct jsonw *w, struct str json); /* a complete JSON value as text */
#endif
