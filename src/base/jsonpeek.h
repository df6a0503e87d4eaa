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
    JSONPEEK_UNKNOWN /* the text is not a JSON object, or the value has escapes */
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

/* Appends the value of the member `key` of the outermost object to out; of several the last. key:
 * without characters that JSON escapes. */
enum jsonpeek jsonpeek_text(struct str json, const char *key, struct buf *out);
#endif
