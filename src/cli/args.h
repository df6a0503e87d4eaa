/* args.h - command-line flags as a table: name, kind, destination, help line.
 *
 * Accepted forms: "--name value", "--name=value", "-n value". "--" ends the flags; every other word
 * is a positional argument. A flag may also be written by a name that another program has for it
 * (flagnames.h). Unknown flags, missing values and values of another kind are E_INVALID, and the
 * message names the flag, and for an unknown one the most similar that there is. Texts are borrowed
 * from argv.
 *
 * The tables are the source of the help, the manual page and the completions of shells: args_listen
 * gives them to the generator. */
#ifndef TERN_CLI_ARGS_H
#define TERN_CLI_ARGS_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum arg_kind {
    ARG_FLAG,  /* bool *: true when given */
    ARG_INT,   /* int * */
    ARG_U64,   /* uint64_t * */
    ARG_FLOAT, /* float * */
    ARG_STR,   /* const char ** */
    ARG_LIST   /* struct arg_list *: one text for each time it is given */
};

#define ARG_LIST_MAX 64

struct arg_list {
    const char *at[ARG_LIST_MAX];
    int n;
};

struct arg {
    const char *name; /* "--temp"; NULL ends the table */
    const char *alt;  /* "-t" or another long form, or NULL */
    enum arg_kind kind;
    void *to;
    const char *meta; /* the value's placeholder in the help: "N"; NULL for flags */
    const char *help; /* one line, with the default in parentheses */
};

struct verb {
    const char *name;  /* "tokenize" */
    const char *usage; /* "tern tokenize -m MODEL [--file F]" */
    const char *about; /* a few lines of description, with examples */
};

/* Stores the values where the table points, positional arguments in pos[0..max_pos). -h and --help
 * print the help on stdout and set *helped. */
int args_parse(const struct verb *v, const struct arg *table, int argc, char **argv,
               const char **pos, int max_pos, int *n_pos, bool *helped, struct err *e);
void args_help(FILE *f, const struct verb *v, const struct arg *table);

/* While a listener is set, args_parse parses nothing: it passes verb and table on, and reports that
 * help was printed, so that the command returns at once. NULL: none. Process-wide. */
typedef void args_listen_fn(void *arg, const struct verb *v, const struct arg *table);
void args_listen(args_listen_fn *fn, void *arg);
#endif
