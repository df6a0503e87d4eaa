/* weights.h - tensor names → struct layer, by the architecture's table.
 *
 * Matrices stay where the file has them (packed ones are sliced by rows) unless the backend
 * cannot read their type or their place; vectors become F32 in the backend's memory. */
#ifndef TERN_MODEL_WEIGHTS_H
#define TERN_MODEL_WEIGHTS_H

#include "model/model.h"

int weights_load(struct model *m, const struct source *src, struct err *e);
void weights_drop(struct model *m); /* whatever was loaded, also half of it */
#endif
