/* flagwalk.h - the flags of a command as data, for the manual page and the completions of shells.
 *
 * The rows come from the tables that parse the flags: those of args.h, which are listened to while
 * the command runs without doing anything, and for `serve` that of server/settings_knobs.c. */
#ifndef TERN_CLI_FLAGWALK_H
#define TERN_CLI_FLAGWALK_H

#include "cli/cmd.h"

struct flag_row {
    const char *name;    /* "--ctx" */
    const char *alt;     /* "-c|--ctx-size"; NULL: none */
    const char *meta;    /* "N"; NULL: a switch */
    const char *help;    /* one line */
    const char *choices; /* "md|json"; NULL: any value */
    const char *env;     /* "TERN_CTX"; NULL: none */
    const char *dflt;    /* default of a setting of the server; NULL: see help */
    const char *group;   /* heading before it; NULL: none */
};

struct flag_visitor {
    /* Before the flags. about: a few lines, with examples. */
    void (*begin)(void *arg, const struct cmd_entry *c, const char *usage, const char *about);
    void (*flag)(void *arg, const struct flag_row *f);
    void *arg;
};

/* begin may be NULL. Rows are valid during the call only. */
void flagwalk(const struct cmd_entry *c, const struct flag_visitor *v);
/* Is a value of the flag the path of a file or folder? */
bool flagwalk_is_path(const struct flag_row *f);
/* The words that the first argument of a command can be, "show|check"; NULL: anything, or none. */
const char *flagwalk_words(const char *command);
#endif
