/* indexer.h - the indexer of a layer with sparse attention: it selects the keys that each token
 * attends to, or blocks of them, by small queries and keys of its own (kernel/cpu/index.c).
 *
 * Index keys are in the KV cache. A layer may use the selection of the layer before it. */
#ifndef TERN_MODEL_INDEXER_H
#define TERN_MODEL_INDEXER_H

#include "kernel/backend.h"

struct model;
struct scratch;
struct layer_step;
struct mix;

/* Hyper-parameters; n_heads 0: attention is not sparse. */
struct index_hp {
    int n_heads, head_dim;
    int top;   /* keys or blocks that a token keeps */
    int block; /* keys of a block; 0: single keys */
    int local; /* blocks that are always kept: the token's own and those before it */
    int rate;  /* keys are entries of so many positions (compressed attention); 0: they are not */
    bool weighed; /* heads score together, with weights of the token; else each selects by itself */
    bool shared;  /* the selection of the layer before is used */
    enum rope_style rope_style;
};

struct index_weights {
    struct weight q, k, w; /* q reads the latent of queries, where there is one */
    float *q_norm, *k_norm, *k_norm_b;
};

/* Arguments of a layer's calls. */
struct index_step {
    struct tensor q, k, w;
    struct linear to_q, to_k, to_w;
    struct key_choice choice;
    struct index_opt opt;
};

void indexer_plan(struct layer_step *p, const struct scratch *s, const struct model *m, int l,
                  int n);
/* Stores the index keys and sets p->attend.keys. in: the layer's normalized input; q_in: what index
 * queries are projected from. wanted false: only the cache is written. */
void indexer_run(const struct mix *x, const struct tensor *in, const struct tensor *q_in,
                 bool wanted);
#endif
