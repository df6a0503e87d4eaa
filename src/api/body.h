/* body.h - the bytes of a request as a JSON object, and its values as checked numbers.
 *
 * A few bytes of text become a hundred of tree, so the parts are counted before. Whatever is wrong
 * with a value is said with the field's name, as one would write it: "messages[2].content". */
#ifndef TERN_API_BODY_H
#define TERN_API_BODY_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

#include <jansson.h>

#define BODY_PARTS (1 << 20) /* of JSON at most: some 100 MB of tree */
#define PARAM_MAX 96         /* a field's name with its path */

/* Text that is no JSON object is E_INVALID with line, column and byte. *out is the caller's to
 * json_decref. */
int body_parse(json_t **out, struct str text, struct err *e);

/* Where values are read to, and what to say when they are not as they should be. */
struct reader {
    struct arena *arena;
    struct err *err;
    char *param; /* [PARAM_MAX] the field at fault */
};

/* "field: sentence"; keeps the field's name. Returns E_INVALID. */
int reader_bad(struct reader *r, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
const char *body_type(const json_t *v); /* in words: "a string", "an empty list" */

/* A whole number, also written as 3.0; false: it is none. */
struct str body_str(const json_t *v); /* borrowed; v is a string */
int body_read_bool(struct reader *r, const char *param, const json_t *v, bool *out);
int body_read_int(struct reader *r, const char *param, const json_t *v, int64_t least, int64_t most,
                  int64_t *out);
/* A list of token ids, in the arena. */
int body_read_ids(struct reader *r, const char *param, const json_t *v, int32_t **ids, size_t *n);
#endif
