/* vechead.h - what comes between the pooled vector of a text and the result: the dense layers of a
 * sentence encoder (2_Dense, 3_Dense of sentence-transformers) or the head of a classifier or
 * reranker (BertForSequenceClassification and its relatives).
 *
 * A head is a few small matrices in host memory, applied to one vector per text: it costs nothing
 * beside the encoder, and so it runs on the host, in double precision. Constant after reading; its
 * memory is the caller's arena. */
#ifndef TERN_MODEL_VECHEAD_H
#define TERN_MODEL_VECHEAD_H

#include "base/arena.h"
#include "base/err.h"
#include "format/source.h"

enum vec_act { VEC_ACT_NONE, VEC_ACT_TANH, VEC_ACT_GELU, VEC_ACT_SILU, VEC_ACT_RELU };
const char *vec_act_name(enum vec_act act); /* "tanh", as vechead_read takes it */

/* y = norm(act(W x + b)) */
struct vec_layer {
    int in, out;
    const float *w, *b; /* [out][in]; [out] or NULL */
    enum vec_act act;
    const float *norm, *norm_b; /* LayerNorm [out]; NULL: none */
    double eps;
};

enum { VEC_LAYERS = 8 };

struct vec_head {
    struct vec_layer layers[VEC_LAYERS];
    int n;
    bool classifies;          /* the result is scores of classes */
    bool mean, cls;           /* the head's own pooling; neither: the model's */
    const struct str *labels; /* [n_labels] names of the classes */
    int n_labels;
};

/* Is the model a classifier or reranker? A folder says so by its architecture, a GGUF file by
 * pooling_type 4. */
bool vechead_is_classifier(const struct source *src);
/* Is the tensor part of a classifier's head? For folders. */
bool vechead_has(const struct source *src, struct str tensor);
/* Reads the head of a model whose encoder has vectors of `width` numbers. *out is NULL if there is
 * none. E_FORMAT, E_UNSUPPORTED: a matrix of another shape, an activation that tern does not know. */
int vechead_read(const struct vec_head **out, struct arena *a, const struct source *src, int width,
                 struct err *e);
/* Numbers of the result, and the largest width on the way. */
int vechead_out(const struct vec_head *h);
int vechead_wide(const struct vec_head *h);
/* x [vechead_wide] in place; tmp [vechead_wide]. */
void vechead_run(const struct vec_head *h, double *x, double *tmp);
#endif
