/* modelref.h - the names people give to models: a path, file:PATH, or hf:ORG/NAME[@REV][:FILE].
 *
 * hf: names are looked up in the local cache of Hugging Face's tools (HF_HUB_CACHE, HF_HOME/hub,
 * XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub); nothing is downloaded. REV is a
 * branch or tag (default "main") or a commit: all of its hash, or at least the first seven digits. */
#ifndef TERN_FORMAT_MODELREF_H
#define TERN_FORMAT_MODELREF_H

#include "base/err.h"
#include "base/str.h"

/* *path is a folder or file, freed with mem_free. A ref that is a path itself is not checked for
 * existence. E_INVALID: the name would leave the cache, has a NUL byte or is not of these forms.
 * E_NOTFOUND: it is not in the cache; the message says how to download it. */
int modelref_resolve(char **path, struct str ref, struct err *e);
bool modelref_is(struct str ref); /* does it begin with hf: or file:? */
#endif
