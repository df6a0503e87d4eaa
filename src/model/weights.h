/* weights.h - fills a model's struct layer from the tensors of its weight list.
 *
 * Matrices stay where the file has them (packed ones are sliced by rows) unless the backend cannot
 * read their type, alignment or order: then a converted copy is made. Vectors become F32 in one
 * block of the backend's memory. */
#ifndef TERN_MODEL_WEIGHTS_H
#define TERN_MODEL_WEIGHTS_H

#include "model/model.h"
#include "model/weightlist.h"

int weights_load(struct model *m, const struct model_input *in, struct err *e);
void weights_drop(struct model *m); /* whatever was loaded, also after a failure */
#endif
