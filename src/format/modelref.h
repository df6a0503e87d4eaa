/* modelref.h - how people name a model: a path, file:PATH, or hf:ORG/NAME[@REV][:FILE].
 *
 * hf: names are looked up in the local cache that Hugging Face's tools keep (HF_HUB_CACHE,
 * HF_HOME/hub, XDG_CACHE_HOME or ~/.cache/huggingface/hub); nothing is fetched. REV is a branch
 * or tag ("main" when it is not said) or a commit, whole or at least its first seven digits. */
#ifndef TERN_FORMAT_MODELREF_H
#define TERN_FORMAT_MODELREF_H

#include "base/err.h"
#include "base/str.h"

/* *path is a folder or file, from mem_alloc; it need not exist when ref is a path. A name that
 * would leave the cache, or holds a NUL, is E_INVALID; one that is not there is E_NOTFOUND and says
 * how to get it.
 */
int modelref_resolve(char **path, struct str ref, struct err *e);
bool modelref_is(struct str ref); /* begins with hf: or file: */
#endif
