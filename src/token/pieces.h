/* pieces.h - the bytes a token stands for inside a text, half characters included. */
#ifndef TERN_TOKEN_PIECES_H
#define TERN_TOKEN_PIECES_H

#include "token/detok.h"

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
