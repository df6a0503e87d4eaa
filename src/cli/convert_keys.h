/* convert_keys.h - what goes along with the weights: tokenizer, chat template, sampling settings. */
#ifndef TERN_CLI_CONVERT_KEYS_H
#define TERN_CLI_CONVERT_KEYS_H

#include "base/dtype.h"
#include "base/err.h"
#include "format/ggufw.h"
#include "format/source.h"

/* general.*, tokenizer.* and general.sampling.* keys. A folder without a tokenizer is fine. */
int convert_keys(struct ggufw *w, const struct source *src, enum dtype type, struct err *e);
#endif
