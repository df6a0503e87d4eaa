/* args.c - no getopt: one table per command gives parsing, checking and help, and flags may be
 * written behind positional arguments. */
#include "cli/args.h"

#include "base/str.h"
#include "cli/flagnames.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>

static args_listen_fn *listener;
static void *listener_arg;

void args_listen(args_listen_fn *fn, void *arg)
{
    listener = fn;
    listener_arg = arg;
}

/* By one of the names in the table, else by a name that other programs have for the flag. */
static const struct arg *find_arg(const struct arg *table, struct str name)
{
    struct str ours;

    for (const struct arg *a = table; a->name; a++)
        if (str_is(name, a->name) || (a->alt && str_is(name, a->alt))) return a;
    if (!flagnames_find(name, &ours)) return NULL;
    for (const struct arg *a = table; a->name; a++)
        if (str_is(ours, a->name + 2)) return a;
    return NULL;
}

/* The most similar name of a flag that the command has. */
struct suggestion {
    const struct arg *table;
    struct str word, near;
    int least;
};

static void consider_name(void *arg, struct str other, struct str ours)
{
    struct suggestion *s = arg;

    for (const struct arg *a = s->table; a->name; a++)
        if (str_is(ours, a->name + 2) && str_is_nearer(s->word, other, &s->least)) s->near = other;
}

static int refuse_unknown(const struct arg *table, struct str name, struct err *e)
{
    struct suggestion s = { .table = table, .word = name, .least = 4 };

    if (str_starts(name, STR("--"))) s.word = str_skip(name, 2);
    for (const struct arg *a = table; a->name; a++)
        consider_name(&s, str_c(a->name + 2), str_c(a->name + 2));
    flagnames_each(consider_name, &s);
    if (s.near.n)
        return err_set(e, E_INVALID, "unknown flag '%.*s'; did you mean --%.*s?", STR_ARG(name),
                       STR_ARG(s.near));
    return err_set(e, E_INVALID, "unknown flag '%.*s'", STR_ARG(name));
}

/* Decimal, 0x hexadecimal or 0 octal; strtoull would accept a sign. */
static bool parse_u64(const char *s, uint64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoull(s, &end, 0);
    return !errno && *end == 0 && end != s && *s != '-';
}

/* Checks the value's kind and stores it. */
static int store_value(const struct arg *a, const char *value, struct err *e)
{
    struct arg_list *list;
    int64_t i;
    double f;

    switch (a->kind) {
    case ARG_FLAG: *(bool *)a->to = true; return OK;
    case ARG_STR: *(const char **)a->to = value; return OK;
    case ARG_INT:
        if (!str_to_i64(str_c(value), &i) || i < INT_MIN || i > INT_MAX)
            return err_set(e, E_INVALID, "%s %s: must be an integer", a->name, value);
        *(int *)a->to = (int)i;
        return OK;
    case ARG_U64:
        if (!parse_u64(value, a->to))
            return err_set(e, E_INVALID, "%s %s: must be an integer of 0 or more", a->name, value);
        return OK;
    case ARG_FLOAT:
        if (!str_to_f64(str_c(value), &f))
            return err_set(e, E_INVALID, "%s %s: must be a number", a->name, value);
        *(float *)a->to = (float)f;
        return OK;
    case ARG_LIST:
        list = a->to;
        if (list->n == ARG_LIST_MAX)
            return err_set(e, E_INVALID, "%s may be given at most %d times", a->name, ARG_LIST_MAX);
        list->at[list->n++] = value;
        return OK;
    }
    return err_set(e, E_INTERNAL, "%s has no kind in its table", a->name);
}

/* Parses the flag at argv[*i]; moves *i to the value if that is a separate word. */
static int parse_flag(const struct arg *table, int argc, char **argv, int *i, struct err *e)
{
    struct str word = str_c(argv[*i]), name = word;
    ptrdiff_t eq = str_starts(word, STR("--")) ? str_find(word, STR("=")) : -1;
    const char *value = NULL;
    const struct arg *a;

    if (eq >= 0) name = str_take(word, (size_t)eq), value = word.p + eq + 1;
    a = find_arg(table, name);
    if (!a) return refuse_unknown(table, name, e);
    if (a->kind == ARG_FLAG && value) return err_set(e, E_INVALID, "%s takes no value", a->name);
    if (a->kind != ARG_FLAG && !value) {
        if (*i + 1 >= argc) return err_set(e, E_INVALID, "%s needs a value (%s)", a->name, a->meta);
        value = argv[++*i];
    }
    return store_value(a, value, e);
}

int args_parse(const struct verb *v, const struct arg *table, int argc, char **argv,
               const char **pos, int max_pos, int *n_pos, bool *helped, struct err *e)
{
    bool flags = true;
    int rc;

    *n_pos = 0;
    *helped = listener != NULL;
    if (listener) {
        listener(listener_arg, v, table);
        return OK;
    }
    for (int i = 1; i < argc; i++) {
        const char *w = argv[i];
        if (flags && (str_is(str_c(w), "-h") || str_is(str_c(w), "--help"))) {
            args_help(stdout, v, table);
            *helped = true;
            return OK;
        }
        if (flags && str_is(str_c(w), "--")) {
            flags = false;
        } else if (flags && w[0] == '-' && w[1]) {
            if ((rc = parse_flag(table, argc, argv, &i, e)) != OK) return rc;
        } else {
            if (*n_pos == max_pos) return err_set(e, E_INVALID, "unexpected argument '%s'", w);
            pos[(*n_pos)++] = w;
        }
    }
    return OK;
}

void args_help(FILE *f, const struct verb *v, const struct arg *table)
{
    fprintf(f, "usage: %s\n\n%s\n", v->usage, v->about);
    if (table->name) fprintf(f, "\nflags:\n");
    for (const struct arg *a = table; a->name; a++) {
        char left[64];
        snprintf(left, sizeof left, "%s%s%s%s%s", a->alt ? a->alt : "", a->alt ? ", " : "", a->name,
                 a->meta ? " " : "", a->meta ? a->meta : "");
        fprintf(f, "  %-26s %s\n", left, a->help);
    }
}
