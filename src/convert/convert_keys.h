/* convert_keys.h - what goes along with the weights: tokenizer, chat template, sampling settings.
 */
#ifndef TERN_CONVERT_CONVERT_KEYS_H
#define TERN_CONVERT_CONVERT_KEYS_H

#include "base/dtype.h"
#include "base/err.h"
#include "format/ggufw.h"
#include "format/source.h"

/* F32 numbers that do not come back from `+ add` (0: from -e^x), kept in a key. */
void convert_keep_exact(struct ggufw *w, const struct source_tensor *t, float add);

/* general.* (file_type: GGUF's number; -1: the caller writes it), tokenizer.* and
 * general.sampling.* keys; unless `bare`, the texts of the folder's files too. A folder without a
 * tokenizer is fine. */
int convert_keys(struct ggufw *w, const struct source *src, int file_type, bool bare,
                 struct err *e);
#endif
