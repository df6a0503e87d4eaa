/* modelref.h - the names people give to models: a path, file:PATH, or hf:ORG/NAME[@REV][:FILE], which
 * is also hf.co/ORG/NAME and huggingface.co/ORG/NAME.
 *
 * hf: names are looked up in the local cache of Hugging Face's tools (hubcache.h); nothing is
 * downloaded. REV is a branch or tag (default "main") or a commit: all of its hash, or at least the
 * first seven digits. FILE is a path in the repository, or a word in the name of one of its GGUF
 * files such as Q4_K_M. Names come from users and from files: every part is checked before it becomes
 * part of a path. Functions without state: any thread. */
#ifndef TERN_FORMAT_MODELREF_H
#define TERN_FORMAT_MODELREF_H

#include "base/err.h"
#include "base/str.h"

/* The parts of a name, borrowed from it. */
struct hf_ref {
    struct str org, name; /* org: empty for old models without one */
    struct str rev;       /* "main" unless one is named */
    struct str file;      /* p is NULL unless one is named */
};

/* ref: with or without "hf:". E_INVALID: it is not ORG/NAME[@REV][:FILE], or would leave the cache. */
int modelref_parse(struct hf_ref *r, struct str ref, struct err *e);

/* *path is a folder or file, freed with mem_free. A ref that is a path itself is not checked for
 * existence. E_INVALID: the name would leave the cache, has a NUL byte or is not of these forms.
 * E_NOTFOUND: it is not in the cache; the message says where it was looked for and how to download
 * it. */
int modelref_resolve(char **path, struct str ref, struct err *e);
/* Resolves a name that a person typed: a path must exist, and what is none may also be ORG/NAME or
 * NAME of a model in the cache. */
int modelref_find(char **path, struct str ref, struct err *e);
/* *full: "ORG/NAME[@REV][:FILE]" of a model in the cache, from such a name or one without ORG; freed
 * with mem_free. E_NOTFOUND; E_INVALID: several models have this name. */
int modelref_complete(char **full, struct str ref, struct err *e);
bool modelref_is(struct str ref);     /* modelref_is_hub, or does it begin with file:? */
bool modelref_is_hub(struct str ref); /* does it begin with hf:, hf.co/ or huggingface.co/? */
/* Could it be meant as the name of a model: one word of the characters that such names have? */
bool modelref_is_word(struct str ref);
#endif
