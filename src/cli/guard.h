/* guard.h - flags about the trust in a model's files, which the commands that read a model share: the
 * key of an encrypted model, and the check of its manifest.
 *
 * Values that no flag gives are taken from the environment, by the names of the server's settings:
 * TERN_MODEL_KEY_FILE, TERN_MODEL_KEY_COMMAND, TERN_VERIFY_MANIFEST. */
#ifndef TERN_CLI_GUARD_H
#define TERN_CLI_GUARD_H

#include "cli/args.h"

struct keyset;

struct guard {
    const char *key_file, *key_command; /* NULL: not given, as is the next */
    const char *manifest;               /* "off", "warn", "require" */
    struct keyset *keys;                /* in the ring of the process, until guard_release */
};

/* Rows of a flag table (args.h). */
/* clang-format off */
#define GUARD_KEY_ARGS(g)                                                                          \
    { "--model-key-file", NULL, ARG_STR, &(g)->key_file, "FILE",                                   \
      "file with the key of an encrypted model (see tern encrypt)" },                              \
    { "--model-key-command", NULL, ARG_STR, &(g)->key_command, "CMD",                              \
      "shell command that prints the key" }
#define GUARD_ARGS(g)                                                                              \
    GUARD_KEY_ARGS(g),                                                                             \
    { "--verify-manifest", NULL, ARG_STR, &(g)->manifest, "MODE",                                  \
      "check the files against the model's manifest first: off, warn, require (off)" }
/* clang-format on */

/* Reads the keys, for everything that is opened from now on. E_INVALID: wrong usage of the flags. */
int guard_join(struct guard *g, struct err *e);
/* guard_join, and the check of the manifest; before the model is opened, by its path. */
int guard_check(struct guard *g, const char *model, struct err *e);
void guard_release(struct guard *g); /* wipes the keys: the model is open */
#endif
