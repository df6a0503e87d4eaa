/* tokwrite_impl.h - between the files that say a tokenizer as tokenizer.json. */
#ifndef TERN_TOKEN_TOKWRITE_IMPL_H
#define TERN_TOKEN_TOKWRITE_IMPL_H

#include "base/jsonw.h"
#include "token/parts.h"

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
