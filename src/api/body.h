/* body.h - a request body as a JSON object, and its values as checked C types.
 *
 * A few bytes of JSON text become a hundred bytes of tree, so the values are counted before parsing
 * and the body is refused above BODY_PARTS. An error about a value names its field as a person
 * would write it: "messages[2].content". */
#ifndef TERN_API_BODY_H
#define TERN_API_BODY_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

#include <jansson.h>
#include <stdatomic.h>

#define BODY_PARTS (1 << 20) /* JSON values of a body at most: about 100 MB of tree */
#define PARAM_MAX 96         /* bytes of a field's path, with the NUL */

/* *out is the caller's to json_decref. Text that is not a JSON object is E_INVALID with line,
 * column and byte. stop NULL, or: *stop other than 0 ends it with E_CANCELLED. */
int body_parse(json_t **out, struct str text, const atomic_int *stop, struct err *e);

/* Where values are copied to, and where errors about them are written. */
struct body_reader {
    struct str text; /* of the body */
    struct arena *arena;
    struct err *err;
    char *param; /* [PARAM_MAX] receives the path of the field that was refused */
};

/* Writes "PARAM TEXT" and the path of the field. Returns E_INVALID. */
int body_refuse(struct body_reader *r, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
const char *body_type(const json_t *v); /* for messages: "a string"; NULL: "not there" */

struct str body_str(const json_t *v); /* borrowed; v is a string, or NULL: empty */
int body_read_bool(struct body_reader *r, const char *param, const json_t *v, bool *out);
/* An integer from least to most. 3.0 is accepted as 3. */
int body_read_int(struct body_reader *r, const char *param, const json_t *v, int64_t least,
                  int64_t most, int64_t *out);
/* An integer from -2^63 to 2^64 - 1, modulo 2^64. Above 2^63 the digits of the body count: a real
 * number has not all of them. param: a field of the body itself. */
int body_read_u64(struct body_reader *r, const char *param, const json_t *v, uint64_t *out);
/* A list of token ids, allocated in the arena. */
int body_read_ids(struct body_reader *r, const char *param, const json_t *v, int32_t **ids,
                  size_t *n);
#endif
