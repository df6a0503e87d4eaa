/* jinja.h - an interpreter for Jinja2, the language of chat templates.
 *
 * A template is parsed once and immutable afterwards: any number of threads may render it at the
 * same time. Its meaning is that of Python's jinja2 with the environment that transformers'
 * apply_chat_template sets up:
 *   - ImmutableSandboxedEnvironment: no attribute with a double underscore, no method that changes
 *     a list or a dict, range() up to 100000 items;
 *   - trim_blocks and lstrip_blocks, loop controls (break, continue), {% generation %};
 *   - tojson is json.dumps(ensure_ascii=False) without HTML escaping;
 *   - raise_exception(message) and strftime_now(format) are global functions.
 * Tags that load other templates (include, import, extends) are refused, and integers have 64 bits.
 * The text is byte for byte what jinja2 renders; tests/golden/jinja holds the cases.
 *
 * Templates come with model files, so they are foreign input: a rendering is limited in steps,
 * memory, nesting and output, and past a limit it fails like any other error. Error messages name
 * line and column of the source. */
#ifndef TERN_JINJA_JINJA_H
#define TERN_JINJA_JINJA_H

#include "base/buf.h"
#include "base/err.h"

#include <jansson.h>
#include <stdatomic.h>

#define JINJA_MAX_SOURCE (1u << 20) /* bytes of a template */

struct jinja;

struct jinja_limits {   /* 0: the default */
    uint64_t max_steps; /* 20 million; a step is about one evaluated node or one loop item */
    size_t max_bytes;   /* 256 MiB of values while rendering */
    size_t max_output;  /* 64 MiB of text */
    const atomic_bool *cancelled; /* set by any thread: the rendering ends; NULL: never */
    const atomic_int *stop;       /* the same: not 0 */
    uint64_t deadline_ns;         /* of clock_ns: the rendering ends; 0: never */
    bool
        change_lists; /* lists have append() and pop(), which the sandbox of transformers refuses */
};

/* `name` stands before line and column in error messages; NULL: "template". The source is copied.
 * E_FORMAT: not a valid template. E_UNSUPPORTED: a tag of jinja2 that chat templates cannot use.
 * E_INVALID: reading it takes more than the limits. */
int jinja_open(struct jinja **out, struct str source, const char *name, struct err *e);
void jinja_close(struct jinja *t); /* NULL is allowed */

/* Appends the text to out. On an error out keeps its old bytes.
 *
 * vars is an object with the variables. A string "YYYY-MM-DD HH:MM:SS" in the variable strftime_now
 * fixes the time that strftime_now() formats; otherwise it is the local time. limits may be NULL.
 *
 * E_INVALID: the template called raise_exception(), and the message is the template's; or it takes
 * more than a limit, which the message names. E_CANCELLED: it was cancelled. E_DEADLINE: its
 * deadline passed. E_FORMAT: the rendering failed in another way. E_NOMEM: out of memory. */
int jinja_render(const struct jinja *t, const json_t *vars, const struct jinja_limits *limits,
                 struct buf *out, struct err *e);

/* Whether the template reads a variable of that name that it does not set itself. */
bool jinja_mentions(const struct jinja *t, const char *name);
#endif
