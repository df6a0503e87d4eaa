/* jsonw.h - write JSON into a buf. Commas and quoting are taken care of; nesting is the caller's.
 *
 *     struct jsonw w = { .out = &buf };
 *     jsonw_obj(&w);
 *     jsonw_key(&w, "ppl"), jsonw_num(&w, 3.63);
 *     jsonw_end(&w);                                                                       */
#ifndef TERN_BASE_JSONW_H
#define TERN_BASE_JSONW_H

#include "base/buf.h"

struct jsonw {
    struct buf *out;
    int depth;
    bool comma, key;
    char close[64];
};

void jsonw_obj(struct jsonw *w);
void jsonw_arr(struct jsonw *w);
void jsonw_end(struct jsonw *w); /* of the innermost object or array */
void jsonw_key(struct jsonw *w, const char *key);
void jsonw_str(struct jsonw *w, struct str s); /* bytes that are not UTF-8 become U+FFFD */
void jsonw_int(struct jsonw *w, int64_t v);
void jsonw_num(struct jsonw *w, double v); /* shortest text that reads back; NaN, Inf: null */
void jsonw_bool(struct jsonw *w, bool v);
void jsonw_null(struct jsonw *w);
void jsonw_raw(struct jsonw *w, struct str json); /* a value that is written already */
#endif
