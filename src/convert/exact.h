/* exact.h - quantized layers of folders as GGUF blocks that hold the very same numbers.
 *
 * A layer fits where its groups are multiples of 32 columns in the order of the file, its scales
 * are F16 numbers and its integers fit the block: symmetric 4 bits are Q4_0, 4 bits with zero
 * points Q5_0, 8 bits Q8_0, MXFP4, NVFP4 and ternary layers have types of their own. */
#ifndef TERN_CONVERT_EXACT_H
#define TERN_CONVERT_EXACT_H

#include "model/naming.h"

/* The smallest type that holds the item exactly; reads its scales. DT_NONE: there is none, or it is
 * no quantized layer. E_NOMEM. */
int exact_type(enum dtype *out, const struct gguf_item *it, struct err *e);
/* The scales of an item that is NVFP4, one for each of its *n matrices, allocated from a. */
int exact_scales(const float **out, int *n, const struct gguf_item *it, struct arena *a,
                 struct err *e);
/* Row r as that type. tmp: exact_room floats. */
void exact_row(const struct gguf_item *it, int64_t r, enum dtype to, void *dst, float *tmp);
size_t exact_room(const struct gguf_item *it);
#endif
