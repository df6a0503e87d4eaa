/* plugin.h - opens a part of tern that stands on a library of its own: tern-nats.so, tern-lua.so.
 *
 * Such a part is looked for in the file that the environment names (TERN_NATS_LIB), beside the program,
 * and in ../lib/tern. The program starts without it; whoever needs it says what is missing. */
#ifndef TERN_MEMBER_PLUGIN_H
#define TERN_MEMBER_PLUGIN_H

#include "base/err.h"

/* *out: the symbol. E_UNSUPPORTED says where it was looked for and which package it needs. */
int plugin_open(void **out, const char *file, const char *env, const char *symbol,
                const char *package, struct err *e);
#endif
