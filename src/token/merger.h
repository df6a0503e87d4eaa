/* merger.h - filling a bpe with merges that are given as text, many lookups under way at once. */
#ifndef TERN_TOKEN_MERGER_H
#define TERN_TOKEN_MERGER_H

#include "token/bpe.h"

enum { MERGER_BATCH = 32 };

struct merger {
    struct bpe *bpe; /* initialized, its prefix set */
    bool note_cuts;
    /* its own: */
    struct merger_pair {
        struct str part[2];
        uint64_t hash[2];
        int32_t ids[2], whole;
    } pairs[MERGER_BATCH];
    size_t n;
    uint32_t rank; /* of pairs[0] */
    int32_t last;  /* what the last pair became */
    char why[160]; /* it failed */
};

/* The next pair, by rank. Its text must live until merger_flush. false: a pair names, or makes, a
 * piece that is not in the vocabulary; m->why says which. */
bool merger_add(struct merger *m, struct str left, struct str right);
bool merger_flush(struct merger *m);
#endif
