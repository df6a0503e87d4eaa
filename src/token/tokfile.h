/* tokfile.h - reading tokenizer.json: what its two halves share. */
#ifndef TERN_TOKEN_TOKFILE_H
#define TERN_TOKEN_TOKFILE_H

#include "base/jsonw.h"
#include "token/tokenizer_impl.h"
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

/* tokbig.h - the two large members of a tokenizer.json, vocabulary and merges, read straight from
 * its text: building a tree of a million values takes longer than all the rest. */
struct tokbig {
    struct str vocab;  /* {"piece": id, ...}; empty: there is none, or it is something else */
    struct str merges; /* [...]; empty likewise */
};

/* Finds them, and appends json without them (null stands in their place) to rest. */
void tokbig_cut(struct str json, struct tokbig *out, struct buf *rest);

/* Into t->vocab, and with t->bpe's prefix set, into t->bpe. */
int tokbig_vocab(struct tokenizer *t, const struct tokbig *b, const struct place *p, struct err *e);
int tokbig_merges(struct tokenizer *t, const struct tokbig *b, const struct place *p,
                  struct err *e);

/* tokwrite_impl.h - between the files that say a tokenizer as tokenizer.json. */
#define TOKWRITE_MARK "\xe2\x96\x81"

struct tokwriter {
    const struct tokenizer *t;
    struct token_export x;
    struct jsonw w;
    struct arena arena;
};

static inline void key_str(struct jsonw *w, const char *key, const char *v)
{
    jsonw_key(w, key), jsonw_str(w, str_c(v));
}
static inline void key_bool(struct jsonw *w, const char *key, bool v)
{
    jsonw_key(w, key), jsonw_bool(w, v);
}
static inline void key_null(struct jsonw *w, const char *key) { jsonw_key(w, key), jsonw_null(w); }
/* Begins an object of that type. */
static inline void tokwrite_type(struct jsonw *w, const char *name)
{
    jsonw_obj(w);
    key_str(w, "type", name);
}

/* Steps that several kinds have: parts of normalizers, the post-processor, sentencepiece's decoder.
 */
void tokwrite_replace(struct jsonw *w, const char *kind, const char *from, const char *to);
void tokwrite_prepend(struct jsonw *w);
void tokwrite_post(struct tokwriter *o);
void tokwrite_decoder(struct tokwriter *o, bool bytes);

/* The other kinds, from the normalizer to the model. */
void tokwrite_wordpiece(struct tokwriter *o);
void tokwrite_unigram(struct tokwriter *o);
#endif
