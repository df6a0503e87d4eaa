/* pieces.h - into how many pieces a decode step is cut for a pipeline, by the times of earlier steps.
 *
 * While a stage works on one piece, the stage before it works on the next. But every stage reads its
 * weights once for each piece, so pieces pay only where a step of half the sequences takes clearly
 * less time. That depends on the model, the devices and the number of sequences: steps are tried
 * whole, in a piece for each stage and in two, and the fastest is kept. Sizes of steps are taken
 * together by powers of two; every so often another way is tried again.
 *
 * Depends on nothing but the times it is told. */
#ifndef TERN_MODEL_PIECES_H
#define TERN_MODEL_PIECES_H

#include <stdint.h>

enum {
    PIECES_WAYS = 3,   /* whole, one piece for each stage, two for each */
    PIECES_SIZES = 12, /* steps of 2^i sequences and more */
    PIECES_LEAST = 2,  /* sequences of a piece */
    PIECES_TRIALS = 3, /* of each way at first; the first of all warms up */
    PIECES_AGAIN = 256 /* steps until the other ways are tried again, in turn */
};

struct pieces {
    int stages;
    struct pieces_size {
        double ns[PIECES_WAYS]; /* of a step's token, averaged over the last steps; 0: not tried */
        uint32_t n_tried[PIECES_WAYS];
        uint32_t n_steps;
    } sizes[PIECES_SIZES];
};

/* Tokens of a piece of the next step with n tokens, one of each sequence; n: it stays whole. */
int pieces_tokens(const struct pieces *p, int n);
/* Such a step took so long. */
void pieces_note(struct pieces *p, int n, int piece, uint64_t ns);
#endif
