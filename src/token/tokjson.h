/* tokjson.h - reading tokenizer.json: what its two halves share. */
#ifndef TERN_TOKEN_TOKJSON_H
#define TERN_TOKEN_TOKJSON_H

#include "token/parts.h"

#include <jansson.h>

/* A value and where it stands: "pre_tokenizer.pretokenizers[1]". Paths longer than they may be are
 * cut. */
struct place {
    const char *file;
    char path[160];
};

struct place place_in(const struct place *p, const char *key);
struct place place_at(const struct place *p, size_t i);
int place_fail(const struct place *p, struct err *e, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Fields of an object; a missing one or null gives the default, one of another kind is an error. */
int field_bool(json_t *o, const char *key, bool def, bool *out, const struct place *p,
               struct err *e);
int field_int(json_t *o, const char *key, int64_t def, int64_t *out, const struct place *p,
              struct err *e);
int field_str(json_t *o, const char *key, const char *def, struct str *out, const struct place *p,
              struct err *e);
struct str json_text(json_t *s); /* of a string; borrowed */

int tokjson_normalizer(struct tokenizer *t, json_t *o, const struct place *p, int depth,
                       struct err *e);
int tokjson_splitter(struct tokenizer *t, json_t *o, const struct place *p, int depth,
                     struct err *e);
int tokjson_post(struct tokenizer *t, json_t *o, const struct place *p, int depth, struct err *e);
int tokjson_decoder(struct tokenizer *t, json_t *o, const struct place *p, int depth,
                    struct err *e);
struct tokbig;
int tokjson_model(struct tokenizer *t, json_t *o, const struct tokbig *big, const struct place *p,
                  struct err *e);
#endif
