/* pooler.h - hidden rows of a text → one vector: an embedding, or scores of classes.
 *
 * Pure functions over a rule that the model's files give. The caller sums the wanted rows of a text
 * in double precision, over as many batches as it takes, and finishes the sum once. */
#ifndef TERN_MODEL_POOLER_H
#define TERN_MODEL_POOLER_H

#include <stdbool.h>

/* Which hidden rows make up the vector: the last token's, all, the first token's. */
enum pooling { POOL_LAST, POOL_MEAN, POOL_CLS };

/* What becomes of their sum. */
enum vec_form {
    VEC_UNIT,    /* scaled to length 1 */
    VEC_MEAN,    /* divided by the number of rows */
    VEC_SOFTMAX, /* scores of classes that exclude each other */
    VEC_SIGMOID, /* scores of independent classes */
    VEC_RAW      /* as it is */
};

struct vec_head;

struct pooler {
    enum pooling pooling;
    enum vec_form form;
    int width;                   /* numbers of a row, and of the vector without a head */
    const struct vec_head *head; /* applied to the pooled row; NULL: none */
};

int pooler_out(const struct pooler *p);  /* numbers of the vector */
int pooler_room(const struct pooler *p); /* of the sum, with memory for the head */

/* Is the hidden row of the token at position pos of a text of n tokens wanted? */
bool pooler_wants(const struct pooler *p, int pos, int n);
/* Rows that a batch of so many tokens and sequences can want at most. */
int pooler_max_rows(const struct pooler *p, int max_tokens, int max_seqs);
/* sum += row; both [width], the sum with room for pooler_room numbers. */
void pooler_add(const struct pooler *p, double *sum, const float *row);
/* The vector of a text of n tokens whose wanted rows were all added. Overwrites the sum. */
void pooler_finish(const struct pooler *p, double *sum, int n, float *out);
#endif
