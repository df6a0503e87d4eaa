/* jinja.h - chat templates: the language they are written in.
 *
 * A template is parsed once and never changes afterwards: any number of threads may render it at
 * the same time. What it means is what Python's jinja2 means by it, set up as transformers does:
 * sandboxed and immutable, trim_blocks, lstrip_blocks, loop controls, {% generation %}, tojson
 * that keeps Unicode, raise_exception() and strftime_now().
 *
 * A rendering is bounded in steps, memory, depth and output; past a bound it fails like any other
 * error. Errors name line and column. */
#ifndef TERN_JINJA_JINJA_H
#define TERN_JINJA_JINJA_H

#include "base/buf.h"
#include "base/err.h"

#include <jansson.h>

#define JINJA_MAX_SOURCE (1u << 20) /* bytes of a template */

struct jinja;

struct jinja_limits { /* 0: as in jinja_limits_default */
    uint64_t max_steps;
    size_t max_bytes; /* of memory while it renders */
    size_t max_output;
};

/* `name` stands before line and column in errors; NULL is fine. The source is copied. */
int jinja_open(struct jinja **out, struct str source, const char *name, struct err *e);
void jinja_close(struct jinja *t); /* NULL is fine */

/* Adds the text to out. vars is an object; a text "YYYY-MM-DD HH:MM:SS" under "strftime_now" is
 * what strftime_now() takes as the time, else it is the local time. On an error out is as before.
 * E_INVALID: the template itself refused by raise_exception(), whose sentence the error has. */
int jinja_render(const struct jinja *t, const json_t *vars, const struct jinja_limits *limits,
                 struct buf *out, struct err *e);

/* Whether the template reads a variable of that name that it did not set itself. */
bool jinja_mentions(const struct jinja *t, const char *name);
#endif
