/* decode.h - decoders: the pieces of ids to text.
 *
 * A chain of steps, each of which rewrites the list of pieces; at the end they are put together. */
#ifndef TERN_TOKEN_TOKDECODE_H
#define TERN_TOKEN_TOKDECODE_H

#include "base/buf.h"
#include "token/normalizer.h"

enum decode_kind {
    DECODE_BYTES, /* byte-level characters to bytes, all in one */
    DECODE_METASPACE,
    DECODE_WORDPIECE,
    DECODE_FALLBACK, /* <0x0A> to the byte */
    DECODE_FUSE,
    DECODE_STRIP,
    DECODE_REPLACE,
    DECODE_SUFFIX, /* the end of a word to a space */
    DECODE_JOIN    /* spaces between pieces: when a model names no decoder */
};

struct decode_step {
    enum decode_kind kind;
    struct normal_step replace; /* REPLACE */
    char *text;                 /* METASPACE, WORDPIECE, STRIP, SUFFIX */
    size_t n_text;
    int start, stop; /* STRIP: characters at most */
    bool keep_first; /* METASPACE: spaces of the first piece stay */
    bool cleanup;    /* WORDPIECE: no space before punctuation */
};

struct decode {
    struct decode_step *steps;
    int n_steps;
};

void decode_add(struct decode *d, struct decode_step s); /* what it points to is handed over */
void decode_release(struct decode *d);

/* A list of texts, one behind the other. A zeroed one is empty. */
struct texts {
    struct buf text;
    size_t *ends;
    size_t n, cap;
};
void texts_push(struct texts *l, struct str s);
void texts_release(struct texts *l);

/* Turns pieces into text, in place: the list is left with it in l->text. stream: bytes that are not
 * (yet) UTF-8 come out as they are; otherwise as the model's own decoder shows them. */
void decode_run(const struct decode *d, struct texts *l, bool stream);
#endif
