/* jsonpeek.h - one member of a JSON object, found without parsing the rest.
 *
 * For code that must know a name before it decides who parses the text. The text may be anything: a
 * text that is not JSON gives some answer or none, and whoever parses it reports the error. No
 * allocation but that of the result. Any thread may call. */
#ifndef TERN_BASE_JSONPEEK_H
#define TERN_BASE_JSONPEEK_H

#include "base/buf.h"

enum jsonpeek {
    JSONPEEK_FOUND,  /* a string */
    JSONPEEK_ABSENT, /* the object has no such member, or it is not a string */
    JSONPEEK_UNKNOWN /* the text is not a JSON object, or the value has escapes */
};

/* Appends the value of the member `key` of the outermost object to out; of several the last. key:
 * without characters that JSON escapes. */
enum jsonpeek jsonpeek_text(struct str json, const char *key, struct buf *out);
#endif
