/* tokdecode.h - the decoder: from the pieces of token ids back to text.
 *
 * A decoder is a list of steps. Each step rewrites a list of texts, which starts as one text per
 * token; in the end the texts are concatenated. The streaming detokenizer (struct detok in
 * tokenizer.h, tokdecode_stream.c) runs the same steps over a small window of ids. Steps are added
 * while the tokenizer is opened; afterwards any number of threads may apply them. */
#ifndef TERN_TOKEN_TOKDECODE_H
#define TERN_TOKEN_TOKDECODE_H

#include "base/buf.h"
#include "token/normalizer.h"

enum decode_kind {
    DECODE_BYTES,     /* characters of the byte-level alphabet to bytes; joins all texts */
    DECODE_METASPACE, /* marks to spaces */
    DECODE_WORDPIECE, /* spaces before texts that do not have the prefix ("##") */
    DECODE_FALLBACK,  /* "<0x0A>" to the byte */
    DECODE_FUSE,      /* joins all texts */
    DECODE_STRIP,     /* removes a character at the ends of each text */
    DECODE_REPLACE,
    DECODE_SUFFIX, /* the suffix of a word ("</w>") to a space */
    DECODE_JOIN    /* spaces between texts; for a model that has no decoder */
};

/* What a step points to belongs to it. */
struct decode_step {
    enum decode_kind kind;
    struct normalizer_step replace; /* REPLACE */
    char *text;                     /* METASPACE, STRIP, SUFFIX: what to find; WORDPIECE: prefix */
    size_t n_text;
    int start, stop; /* STRIP: how often at most, at the start and at the end */
    bool keep_first; /* METASPACE: marks of the first text become spaces, too, and do not vanish */
    bool cleanup;    /* WORDPIECE: remove spaces before punctuation and contractions */
};

struct decoder {
    struct decode_step *steps;
    int n_steps;
};

/* Appends a step and takes over what it points to; on E_NOMEM that is released. */
int decoder_add_step(struct decoder *d, struct decode_step s, struct err *e);
void decode_step_release(struct decode_step *s);
void decoder_release(struct decoder *d); /* a zeroed decoder is allowed */

/* Texts, concatenated. A zeroed list is valid and empty. A failed allocation sets text.failed: then
 * additions do nothing. */
struct text_list {
    struct buf text;
    size_t *ends; /* [n] where each text ends in `text` */
    size_t n, cap;
};
void text_list_add(struct text_list *l, struct str s);
void text_list_release(struct text_list *l);

/* Decodes the texts of l in place: the result is l->text. stream: bytes that are not (or not yet)
 * UTF-8 stay as they are; otherwise they become U+FFFD as in the model's own decoder. A failed
 * allocation sets l->text.failed. */
void decoder_apply(const struct decoder *d, struct text_list *l, bool stream);

/* Appends the bytes of a byte-level piece. A piece with a character outside the alphabet is plain
 * text, and is appended unchanged. */
void decode_put_bytes(struct buf *out, struct str piece);
#endif
