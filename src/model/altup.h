/* altup.h - models with several residual streams, of which each layer computes one (altup.c). */
#ifndef TERN_MODEL_ALTUP_H
#define TERN_MODEL_ALTUP_H

#include "model/pass.h"

void altup_plan(struct scratch *s, const struct model *m, int n);
void altup_begin(struct pass *d);          /* the streams of the embeddings */
void altup_predict(struct pass *d, int l); /* the layer's input, into x */
void altup_laurel(struct pass *d, int l, const struct tensor *h); /* the low-rank residual of h */
void altup_join(struct pass *d);                        /* adds it to x, behind attention */
void altup_correct(struct pass *d, int l);              /* all streams, by the layer's result x */
void altup_add(struct pass *d, const struct tensor *y); /* to all streams but the first */
const struct tensor *altup_end(struct pass *d);         /* one stream again */
#endif
