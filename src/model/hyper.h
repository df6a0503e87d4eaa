/* hyper.h - hyper-connections: several residual streams that every block reads and writes (hyper.c). */
#ifndef TERN_MODEL_HYPER_H
#define TERN_MODEL_HYPER_H

#include "model/pass.h"

void hyper_plan(struct scratch *s, const struct model *m, int n);
void hyper_begin(struct pass *d);               /* all streams are the embedding */
void hyper_attn(struct pass *d, int l);         /* the input of attention, into x */
void hyper_ffn(struct pass *d, int l);          /* its output to the streams, and the next input */
void hyper_write(struct pass *d, int l);        /* a block's output to the streams */
const struct tensor *hyper_end(struct pass *d); /* one stream again */
#endif
