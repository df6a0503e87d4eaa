/* args.h - flags as a table: name, kind, where it goes, help line.
 *
 * "--name value", "--name=value", "-n value"; "--" ends flags; anything else is positional.
 * Unknown flags, missing values and values out of kind are E_INVALID and name the flag. */
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
    ARG_LIST   /* struct arg_list *: a text each time it is given */
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
    const char *meta; /* what stands for the value in help: "N"; NULL for flags */
    const char *help; /* one line, with the default */
};

struct verb {
    const char *name;  /* "tokenize" */
    const char *usage; /* "tern tokenize -m MODEL [--file F]" */
    const char *about; /* a few lines that teach, with an example */
};

/* Fills what the table points to; positional arguments go to pos[0..max_pos). -h and --help print
 * help on stdout and set *helped. */
int args_parse(const struct verb *v, const struct arg *table, int argc, char **argv,
               const char **pos, int max_pos, int *n_pos, bool *helped, struct err *e);
void args_help(FILE *f, const struct verb *v, const struct arg *table);
#endif
