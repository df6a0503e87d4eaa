/* tokenizer.h - text ↔ ids, exactly as the model was trained with.
 *
 * Made from tokenizer.json (also .gz) or from GGUF's tokenizer.* keys. Immutable once open: any
 * number of threads may encode and decode with it at once. Time is linear in the text, whatever
 * the text. Text may hold any bytes; what is not UTF-8 is treated as the model's own library does.
 */
#ifndef TERN_TOKEN_TOKENIZER_H
#define TERN_TOKEN_TOKENIZER_H

#include "base/buf.h"
#include "base/err.h"
#include "base/ids.h"
#include "format/source.h"

struct tokenizer;

/* path: a tokenizer.json, tokenizer.json.gz, a Hugging Face folder, or a GGUF file. */
int tokenizer_open(struct tokenizer **out, const char *path, struct err *e);
/* Pieces are borrowed: a GGUF source must outlive the tokenizer. */
int tokenizer_from_source(struct tokenizer **out, const struct source *src, struct err *e);
/* From the bytes of a tokenizer.json; config may be empty or a tokenizer_config.json. name is for
 * errors. */
int tokenizer_from_json(struct tokenizer **out, struct str json, struct str config,
                        const char *name, struct err *e);
void tokenizer_close(struct tokenizer *t); /* NULL is fine */

enum {
    ENCODE_SPECIAL = 1, /* add BOS/EOS as the model's own post-processor does */
    ENCODE_PLAIN = 2    /* special tokens written in the text are text */
};

/* Appends to out. */
int tokenizer_encode(const struct tokenizer *t, struct str text, unsigned flags, struct ids *out,
                     struct err *e);
/* Two texts as the model reads them, "[CLS] a [SEP] b [SEP]"; *second is where tokens of the second
 * type begin, 0 if the model does not tell them apart. */
int tokenizer_encode_pair(const struct tokenizer *t, struct str a, struct str b, struct ids *out,
                          int *second, struct err *e);
/* Appends the text of ids to out, as the model's decoder writes it; skip_special leaves special
 * tokens out. */
void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                      struct buf *out);

int tokenizer_n(const struct tokenizer *t); /* one more than the largest id */
/* The stored piece ("Ġthe", "▁the"); empty for an id that has none. */
struct str tokenizer_piece(const struct tokenizer *t, int32_t id);
int32_t tokenizer_find(const struct tokenizer *t, struct str piece); /* -1: no such piece */
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);
int32_t tokenizer_bos(const struct tokenizer *t); /* -1: none */
int32_t tokenizer_eos(const struct tokenizer *t); /* -1: none */
bool tokenizer_is_byte_level(
    const struct tokenizer *t); /* each character of a piece is a byte of its text */
bool tokenizer_adds_bos(const struct tokenizer *t); /* does ENCODE_SPECIAL put one in front? */

int32_t tokenizer_unk(const struct tokenizer *t); /* -1: none */
int32_t tokenizer_pad(const struct tokenizer *t); /* -1: none */

/* Chat template as the model carries it; empty if it has none. */
struct str tokenizer_chat_template(const struct tokenizer *t);
/* The one for talks with tools ("tool_use"), where it carries several; else empty. */
struct str tokenizer_tool_template(const struct tokenizer *t);

/* What a GGUF file says of this tokenizer: enough for format/ggufw to carry it over. Borrowed. */
struct token_export {
    const char *model; /* tokenizer.ggml.model: "gpt2", "llama", "bert", "t5" */
    const char *pre;   /* tokenizer.ggml.pre, or NULL */
    int n;
    const struct str *pieces; /* [n] */
    const float *scores;      /* [n] or NULL */
    const int32_t *types; /* [n] GGUF's: 1 normal, 2 unknown, 3 control, 4 user, 5 unused, 6 byte */
    const struct str *merges; /* [n_merges] "a b", or NULL */
    int n_merges;
    int32_t bos, eos, unk, pad; /* -1: none */
    int32_t first, last;        /* what stands before and behind every text; -1: nothing */
    bool add_bos, add_eos, add_space_prefix;
    struct str charsmap; /* unigram: sentencepiece's map of replacements, or empty */
    bool squeeze;        /* unigram: of several spaces one stays, at the ends none */
    bool nfc;            /* text is composed first */
    bool lower, accents; /* WordPiece: letters become small, their accents go */
};
int tokenizer_export(const struct tokenizer *t, struct token_export *out, struct err *e);
/* The same as the text of a tokenizer.json. E_UNSUPPORTED where tokenizer_export is. */
int tokenizer_to_json(const struct tokenizer *t, struct buf *out, struct err *e);

/* detok.h - ids → text as it streams: never half a character, never a space too many.
 *
 * Feeding ids one by one gives, put together, exactly what tokenizer_decode gives for all of
 * them, except that bytes which can not become a character any more come out as U+FFFD. */
struct detok {
    const struct tokenizer *t;
    bool skip_special;
    struct ids ids; /* those whose text is not settled */
    size_t given;   /* bytes of their text that are out already */
    struct buf text;
};

void detok_init(struct detok *d, const struct tokenizer *t, bool skip_special);
/* After these ids text was written already: context for the first piece. */
void detok_prime(struct detok *d, const int32_t *ids, size_t n);
void detok_push(struct detok *d, int32_t id, struct buf *out); /* appends whole characters */
void detok_flush(struct detok *d, struct buf *out);            /* what is held back, at the end */
void detok_release(struct detok *d);

/* pieces.h - the bytes a token stands for inside a text, half characters included. */
struct pieces {
    struct detok detok;
    int32_t anchor; /* stands before: the first of a text may lose its space; -1: none */
    size_t anchor_bytes;
    bool bytes; /* a character of a piece is a byte, whatever stands before it */
};

void pieces_init(struct pieces *p, const struct tokenizer *t);
void pieces_release(struct pieces *p);              /* a zeroed one is fine */
struct str pieces_of(struct pieces *p, int32_t id); /* lives until the next call */
#endif
