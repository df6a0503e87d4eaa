/* togguf_keys.h - GGUF keys besides the hyper-parameters: tokenizer, chat template, sampling
 * settings, and copies of the folder's JSON files.
 *
 * Used by togguf and by quantize, which both write a GGUF file from a Hugging Face folder. */
#ifndef TERN_CONVERT_TOGGUF_KEYS_H
#define TERN_CONVERT_TOGGUF_KEYS_H

#include "base/dtype.h"
#include "base/err.h"
#include "format/ggufw.h"
#include "format/source.h"

/* general.* (file_type: GGUF's number, or -1 when the caller writes it), tokenizer.* and
 * general.sampling.* keys; unless `bare` also those of hfkeys.h. A folder without a tokenizer is
 * allowed. */
int togguf_write_keys(struct ggufw *w, const struct source *src, int file_type, bool bare,
                      struct err *e);

/* Keeps the F32 values of t in a key (HFKEY_EXACT) if subtracting `add` again (add 0: log(-y) after
 * y = -exp(x)) does not restore every one of them. */
int togguf_write_exact(struct ggufw *w, const struct source_tensor *t, float add, struct err *e);
#endif
