/* tokscratch.h - memory one encoding works in, kept from text to text.
 *
 * A tokenizer keeps a few; each belongs to one thread at a time. All texts in it can be read 64
 * bytes past their end. */
#ifndef TERN_TOKEN_TOKSCRATCH_H
#define TERN_TOKEN_TOKSCRATCH_H

#include "base/buf.h"
#include "token/regex.h"
#include "token/tokenizer.h"

/* A stretch of the current text. */
struct piece {
    uint32_t at, n;
};
struct pieces {
    struct piece *p;
    size_t n, cap;
};

/* Words met before, with their ids. */
enum { WORD_BYTES = 32, WORD_IDS = 7, WORD_SLOTS = 1 << 15 };
struct word {
    uint64_t key[WORD_BYTES / 8]; /* filled up with zeros */
    int32_t ids[WORD_IDS];
    uint8_t n, n_ids; /* n 0: free */
    uint16_t mode;
};

struct scratch {
    struct buf text;      /* the text as it came, made valid */
    struct buf normal[2]; /* while it is normalized */
    struct buf split[2];  /* while it is split */
    struct buf tmp;
    struct pieces pieces[2];
    struct matcher *matcher;
    struct word *words;
    /* of one word while it is merged or searched */
    int32_t *ids, *next, *prev;
    uint32_t *ranks;
    size_t cap_symbols;
    uint64_t *heap;
    size_t n_heap, cap_heap;
    double *scores;
    size_t cap_scores;
};

struct scratch *scratch_open(void);
void scratch_close(struct scratch *s); /* NULL is fine */

void pieces_grow(struct pieces *v);
static inline void pieces_push(struct pieces *v, size_t at, size_t n)
{
    if (v->n == v->cap) pieces_grow(v);
    v->p[v->n++] = (struct piece){ (uint32_t)at, (uint32_t)n };
}

/* Room for n symbols in ids, next, prev, ranks; what was there may be lost. */
void scratch_symbols(struct scratch *s, size_t n);
void scratch_scores(struct scratch *s, size_t n);

/* A heap of numbers, the smallest on top. */
void heap_push(struct scratch *s, uint64_t v);
void heap_append(struct scratch *s, uint64_t v); /* in no order: heap_make afterwards */
void heap_make(struct scratch *s);
uint64_t heap_pop(struct scratch *s); /* n_heap > 0 */

/* Room for n more ids. */
#endif
