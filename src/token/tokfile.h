/* tokfile.h - tokenizers in files: reading tokenizer.json and GGUF keys, and writing both.
 *
 * A reader fills a zeroed struct tokenizer (ids are -1). It calls tokenizer_finish at its end.
 * After an error the tokenizer is only good for tokenizer_close.
 *
 *     tokfile_json.c         tokenizer.json: the whole, added tokens, tokenizer_config.json
 *     tokfile_json_steps.c   its normalizers, pre-tokenizers and decoders
 *     tokfile_json_post.c    its post-processors
 *     tokfile_json_model.c   its model
 *     tokfile_json_tables.c  its vocabulary and merges, without a JSON tree
 *     tokfile_gguf.c         the tokenizer.* keys of a GGUF file
 *     tokfile_export.c       a tokenizer as GGUF keys
 *     tokfile_write*.c       a tokenizer as tokenizer.json */
#ifndef TERN_TOKEN_TOKFILE_H
#define TERN_TOKEN_TOKFILE_H

#include "base/jsonw.h"
#include "token/tokenizer_impl.h"

#include <jansson.h>

/* tokenizer.ggml.token_type */
enum gguf_token_type {
    TYPE_NORMAL = 1,
    TYPE_UNKNOWN = 2,
    TYPE_CONTROL = 3,
    TYPE_USER = 4,
    TYPE_UNUSED = 5,
    TYPE_BYTE = 6
};

/* json: the bytes of a tokenizer.json; config: of a tokenizer_config.json, or empty. */
int tokfile_read_json(struct tokenizer *t, struct str json, struct str config, const char *name,
                      struct err *e);
int tokfile_read_gguf(struct tokenizer *t, const struct source *src, struct err *e);

/* ---- reading JSON ---- */

/* Where a value is in a file, for messages: "pre_tokenizer.pretokenizers[1]". A long path is cut. */
struct location {
    const char *file;
    char path[160];
};

struct location location_member(const struct location *at, const char *key);
struct location location_item(const struct location *at, size_t i);
/* Writes "FILE: PATH: message" and returns E_FORMAT. */
int location_fail(const struct location *at, struct err *e, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Members of an object: a missing one or null gives the default, another type is an error. */
int field_bool(json_t *o, const char *key, bool def, bool *out, const struct location *at,
               struct err *e);
int field_int(json_t *o, const char *key, int64_t def, int64_t *out, const struct location *at,
              struct err *e);
int field_str(json_t *o, const char *key, const char *def, struct str *out,
              const struct location *at, struct err *e);
struct str json_text(json_t *s);      /* of a string; borrowed */
struct str json_type_name(json_t *o); /* the member "type", or empty; borrowed */

/* Reads one part of tokenizer.json and adds it to t. Sequences nest, depth counts them. */
typedef int json_part_reader(struct tokenizer *t, json_t *o, const struct location *at, int depth,
                             struct err *e);
json_part_reader tokfile_read_normalizer, tokfile_read_pretok, tokfile_read_post,
    tokfile_read_decoder;
/* Reads the parts in the list o[key] with `read`. */
int tokfile_read_sequence(struct tokenizer *t, json_t *o, const char *key,
                          const struct location *at, int depth, json_part_reader *read,
                          struct err *e);

/* The two large members of a model, as text. */
struct json_tables {
    struct str vocab;  /* {"piece": id, ...}; empty: missing, or not an object */
    struct str merges; /* [...]; empty: missing, or not a list */
};

/* Finds them in json, and appends json without them (null in their place) to rest. */
void tokfile_cut_tables(struct str json, struct json_tables *out, struct buf *rest);
int tokfile_read_vocab(struct tokenizer *t, const struct json_tables *tables,
                       const struct location *at, struct err *e);
/* t->vocab and the prefix of t->bpe are set. */
int tokfile_read_merges(struct tokenizer *t, const struct json_tables *tables,
                        const struct location *at, struct err *e);
int tokfile_read_model(struct tokenizer *t, json_t *o, const struct json_tables *tables,
                       const struct location *at, struct err *e);

/* ---- writing JSON ---- */

/* A tokenizer.json being written. Failures are collected in the buf of w and in the arena. */
struct tokwriter {
    const struct tokenizer *t;
    struct token_export x;
    struct jsonw w;
    struct arena arena; /* pieces as C strings */
};

/* Members: the key and its value. */
static inline void put_str_member(struct jsonw *w, const char *key, const char *v)
{
    jsonw_key(w, key), jsonw_str(w, str_c(v));
}
static inline void put_bool_member(struct jsonw *w, const char *key, bool v)
{
    jsonw_key(w, key), jsonw_bool(w, v);
}
static inline void put_null_member(struct jsonw *w, const char *key)
{
    jsonw_key(w, key), jsonw_null(w);
}
/* Opens an object with "type": name; the caller ends it. */
static inline void tokwrite_open_type(struct jsonw *w, const char *name)
{
    jsonw_obj(w);
    put_str_member(w, "type", name);
}

/* A piece as a C string; "" and a failed arena without memory. */
const char *tokwrite_piece(struct tokwriter *o, int32_t id);

/* Parts that several kinds of models share. kind: "String" or "Regex". */
void tokwrite_replace(struct jsonw *w, const char *kind, const char *from, const char *to);
void tokwrite_prepend(struct jsonw *w);
void tokwrite_post(struct tokwriter *o);                    /* the post-processor */
void tokwrite_spm_decoder(struct tokwriter *o, bool bytes); /* bytes: with byte fallback */

/* All members from the normalizer to the model, by kind of model. */
void tokwrite_wordpiece(struct tokwriter *o);
void tokwrite_unigram(struct tokwriter *o);
#endif
