/* jsonpeek.h - a few members of a JSON object, found without parsing the rest.
 *
 * For code that must know a name before it decides who parses the text. The text may be anything: a
 * text that is not JSON gives some answer or none, and whoever parses it reports the error. No
 * allocation but that of the result. Any thread may call. */
#ifndef TERN_BASE_JSONPEEK_H
#define TERN_BASE_JSONPEEK_H

#include "base/buf.h"

enum jsonpeek {
    JSONPEEK_FOUND,
    JSONPEEK_ABSENT, /* the object has no such member, or it is of another type */
    JSONPEEK_UNKNOWN /* the text is not a JSON object, or the value has escapes or is very long */
};

struct jsonpeek_member {
    const char *key; /* without characters that JSON escapes */
    /* the result */
    enum jsonpeek found;
    bool is_text;     /* FOUND: a string, else a number, true or false */
    struct str value; /* FOUND: a part of the text; of a string without the quotes */
};
/* Members of the outermost object that are strings, numbers, true or false, all in one pass; of
 * several with one name the last. If the text is no object, or a name has escapes, all are UNKNOWN. */
void jsonpeek_members(struct str json, struct jsonpeek_member *m, int n);

/* jsonpeek_members in pieces, for a thread that must not be held by a long text: json and m must be
 * valid until the last piece. */
struct jsonpeek_scan {
    struct str json;
    struct jsonpeek_member *m;
    int n;
    /* private */
    int place;
    size_t at; /* the next byte */
    size_t name_at, name_n, value_at;
    int depth;
    bool in_string, escaped, skips;
};
void jsonpeek_begin(struct jsonpeek_scan *s, struct str json, struct jsonpeek_member *m, int n);
/* Looks at so many bytes more, 1 at least. true: all is done, m has the results. */
bool jsonpeek_step(struct jsonpeek_scan *s, size_t most);

/* Appends the value of the member `key` of the outermost object to out; of several the last. key:
 * without characters that JSON escapes. */
enum jsonpeek jsonpeek_text(struct str json, const char *key, struct buf *out);
#endif
