/* flagnames.h - one vocabulary for the flags of all commands.
 *
 * A flag has one name in tern, whatever the command. The names that llama.cpp, vLLM and Ollama have
 * for the same thing work in every command that has the flag. */
#ifndef TERN_CLI_FLAGNAMES_H
#define TERN_CLI_FLAGNAMES_H

#include "base/str.h"

/* tern's name, without dashes, of a flag that is written by another name: "-ngl" → "gpu-layers".
 * false: no such name is known. */
bool flagnames_find(struct str name, struct str *ours);
/* Calls fn for every long name of another program: "ctx-size" for "ctx", both without dashes. */
void flagnames_each(void (*fn)(void *arg, struct str other, struct str ours), void *arg);
#endif
