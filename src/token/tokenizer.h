/* tokenizer.h - text ↔ token ids, exactly as the model was trained with.
 *
 * This is the one public header of src/token. The path of a text, and the modules on it:
 *
 *     text
 *      │  added tokens      vocab.h       special tokens found in the text itself
 *      ▼
 *     normalizer            normalizer.h  Unicode forms, lower case, replacements, charsmap
 *      ▼
 *     pre-tokenizer         pretok.h      splits into words: patterns, spaces, scripts
 *      ▼
 *     model                 tokmodel.h    BPE, SentencePiece (unigram, BPE), WordPiece, word level
 *      ▼
 *     ids                   tokenizer_encode.c adds BOS and EOS as the post-processor says
 *      ▼
 *     decoder               tokdecode.h   pieces to text; the streaming detokenizer
 *      ▼
 *     text
 *
 *     vocab.h         pieces and their ids, the trie, added tokens
 *     regex.h         PCRE2 for patterns in Oniguruma's dialect; fast scanners for known patterns
 *     chars.h         character classes, the byte-level alphabet
 *     tokfile.h       reads tokenizer.json and GGUF keys; writes both
 *     tokenizer_impl.h  struct tokenizer itself
 *
 * A tokenizer is immutable once it is open: any number of threads may encode and decode with it at
 * once. Encoding takes time linear in the text, whatever the text is. A text may be any bytes;
 * those that are not UTF-8 are replaced by U+FFFD, as the reference libraries do.
 *
 * No call ends the process: each one that needs memory returns E_NOMEM, or marks the struct buf or
 * struct ids it appends to as failed. */
#ifndef TERN_TOKEN_TOKENIZER_H
#define TERN_TOKEN_TOKENIZER_H

#include "base/buf.h"
#include "base/err.h"
#include "base/ids.h"
#include "format/source.h"

struct tokenizer;

/* path: a tokenizer.json, a tokenizer.json.gz, a Hugging Face folder or a GGUF file. */
int tokenizer_open(struct tokenizer **out, const char *path, struct err *e);
/* Pieces are borrowed from src where it is a GGUF file: then src must outlive the tokenizer. */
int tokenizer_from_source(struct tokenizer **out, const struct source *src, struct err *e);
/* json: the bytes of a tokenizer.json. config: those of a tokenizer_config.json, or empty. name is
 * used in error messages. */
int tokenizer_from_json(struct tokenizer **out, struct str json, struct str config,
                        const char *name, struct err *e);
void tokenizer_close(struct tokenizer *t); /* NULL is allowed */

enum {
    ENCODE_SPECIAL = 1, /* add BOS and EOS as the model's post-processor does */
    ENCODE_PLAIN = 2    /* special tokens that are written in the text are plain text */
};

/* Appends the ids of text to out. On an error out is as it was before the call. */
int tokenizer_encode(const struct tokenizer *t, struct str text, unsigned flags, struct ids *out,
                     struct err *e);
/* Appends a pair of texts as encoder models read it: "[CLS] a [SEP] b [SEP]". *second: the
 * position, counted from the first appended id, where token type 1 starts; 0: the model has one
 * type. On an error out is as it was. */
int tokenizer_encode_pair(const struct tokenizer *t, struct str a, struct str b, struct ids *out,
                          int *second, struct err *e);
/* Appends the text of ids to out, as the model's decoder writes it. skip_special: without special
 * tokens. A failed allocation sets out->failed. */
void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                      struct buf *out);

int tokenizer_n(const struct tokenizer *t); /* one more than the largest id */
/* The piece as it is stored ("Ġthe", "▁the"); empty for an id that has none. */
struct str tokenizer_piece(const struct tokenizer *t, int32_t id);
int32_t tokenizer_find(const struct tokenizer *t, struct str piece); /* its id, or -1 */
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);
/* Ids of the model's special tokens; -1: it has none. */
int32_t tokenizer_bos(const struct tokenizer *t);
int32_t tokenizer_eos(const struct tokenizer *t);
int32_t tokenizer_unk(const struct tokenizer *t);
int32_t tokenizer_pad(const struct tokenizer *t);
bool tokenizer_adds_bos(const struct tokenizer *t); /* does ENCODE_SPECIAL put BOS first? */
/* Is every character of a piece one byte of text (GPT-2's alphabet), whatever stands before it? */
bool tokenizer_is_byte_level(const struct tokenizer *t);

/* The chat template of the model; empty: it has none. */
struct str tokenizer_chat_template(const struct tokenizer *t);
/* The template for conversations with tools ("tool_use"), where the model has a separate one. */
struct str tokenizer_tool_template(const struct tokenizer *t);
/* The prompt of a generative reranker with places for {query} and {document}; empty: it has none. */
struct str tokenizer_rank_template(const struct tokenizer *t);

/* ---- streaming detokenizer ---- */

/* Turns ids into text as they are generated: always whole characters, and the same text as
 * tokenizer_decode gives for all ids at once, except that bytes which cannot become a character any
 * more are U+FFFD. It belongs to one thread at a time. The fields are internal. */
struct detok {
    const struct tokenizer *t;
    bool skip_special;
    struct ids ids; /* the window: ids whose text may still change */
    size_t given;   /* bytes of the window's text that were given out already */
    struct buf text;
};

void detok_init(struct detok *d, const struct tokenizer *t, bool skip_special);
/* Starts after these ids, whose text is out already: they are context for the next piece. */
void detok_prime(struct detok *d, const int32_t *ids, size_t n);
/* Both append text to out; a failed allocation sets out->failed. */
void detok_push(struct detok *d, int32_t id, struct buf *out); /* the new whole characters */
void detok_flush(struct detok *d, struct buf *out);            /* the rest, at the end */
void detok_release(struct detok *d);

/* ---- bytes of single tokens ---- */

/* The bytes that a token contributes in the middle of a text, parts of characters included. It
 * belongs to one thread at a time. */
struct pieces {
    struct detok detok;
    int32_t anchor; /* the token that stands before each piece while it is decoded; -1: none */
    size_t anchor_bytes;
    bool bytes;  /* byte-level pieces: no anchor is needed */
    bool failed; /* a call found no memory; it and all later ones give empty texts */
};

void pieces_init(struct pieces *p, const struct tokenizer *t);
void pieces_release(struct pieces *p);              /* a zeroed one is allowed */
struct str pieces_of(struct pieces *p, int32_t id); /* valid until the next call */

/* ---- export ---- */

/* The tokenizer as the keys of a GGUF file: what format/ggufw needs to write them. Borrowed from
 * the tokenizer. */
struct token_export {
    const char *model; /* tokenizer.ggml.model: "gpt2", "llama", "bert", "t5" */
    const char *pre;   /* tokenizer.ggml.pre, or NULL */
    int n;
    const struct str *pieces; /* [n] */
    const float *scores;      /* [n] or NULL */
    const int32_t *types; /* [n] GGUF's: 1 normal, 2 unknown, 3 control, 4 user, 5 unused, 6 byte */
    const struct str *merges; /* [n_merges] "left right" by rank, or NULL */
    int n_merges;
    int32_t bos, eos, unk, pad; /* -1: none */
    int32_t first, last;        /* tokens before and after every text; -1: none */
    bool add_bos, add_eos, add_space_prefix;
    struct str charsmap; /* unigram: SentencePiece's precompiled charsmap, or empty */
    bool squeeze;        /* unigram: runs of spaces become one, at the ends none */
    bool nfc;            /* text is normalized to NFC */
    bool lower, accents; /* WordPiece: lower case, remove accents */
};
/* The tables are made at the first call; only one thread may export at a time. E_UNSUPPORTED: GGUF
 * cannot express this tokenizer. */
int tokenizer_export(const struct tokenizer *t, struct token_export *out, struct err *e);
/* Appends the tokenizer as the text of a tokenizer.json. E_UNSUPPORTED as for tokenizer_export. */
int tokenizer_to_json(const struct tokenizer *t, struct buf *out, struct err *e);
#endif
