/* pretok.h - the names GGUF has for ways of splitting text (tokenizer.ggml.pre), and their
 * patterns. */
#ifndef TERN_TOKEN_PRETOK_H
#define TERN_TOKEN_PRETOK_H

#include "base/err.h"
#include "token/split.h"

/* Adds the steps for a name. One that is not known: a warning, and the default's. *ignore_merges: a
 * word that is in the vocabulary is taken whole. */
int pretok_add(struct split *s, struct str name, bool *ignore_merges, struct err *e);

/* Do models of this name compose text (NFC) before they look at it? */
bool pretok_composes(struct str name);
/* GGUF's name for a byte-level chain, or NULL if it has none. */
const char *pretok_name(const struct split *s, bool ignore_merges);
#endif
