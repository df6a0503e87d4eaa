/* tools.h - how models write tool calls and reasoning, and which way a model does it.
 *
 * A family is known by marks in the chat template; nothing has to be said on the command line. */
#ifndef TERN_API_TOOLS_H
#define TERN_API_TOOLS_H

#include "base/str.h"

#include <jansson.h>

enum payload {                   /* what stands behind `open` */
    PAYLOAD_JSON,                /* {"name": ..., "arguments": {...}}, or a list of them */
    PAYLOAD_BARE,                /* the same, and an answer that begins with '{' or '[' is one */
    PAYLOAD_MISTRAL,             /* a list of them, or name[ARGS]{...} */
    PAYLOAD_NAMED,               /* name SEP {...}, or type SEP name ```json {...} ``` */
    PAYLOAD_KIMI,                /* functions.name:0 SEP {...} */
    PAYLOAD_SOLAR,               /* id MARK name SEP {...} */
    PAYLOAD_GLM,                 /* name <arg_key>k</arg_key> <arg_value>v</arg_value> ... */
    PAYLOAD_FUNCTION,            /* name> <parameter=k> v </parameter> ..., or name>{...} */
    PAYLOAD_INVOKE,              /* name"> <parameter name="k">v</parameter> ... */
    PAYLOAD_PYTHON,              /* [name(k="v", ...), ...] */
    PAYLOAD_GEMMA,               /* call:name{key:SEPtextSEP, ...} */
    PAYLOAD_HARMONY              /* channels: the whole answer is made of them */
};

struct tool_family {
    const char *name;
    const char *signs[2];        /* in the template: all of them */
    enum payload payload;
    const char *open, *close;    /* close NULL: the payload ends itself */
    const char *sep;
    const char *drop[3];         /* around calls, and no text */
};

struct think_family {
    const char *sign;            /* in the template */
    const char *open, *close;
};

/* NULL: the template has no way that is known. */
const struct tool_family *tools_family(struct str template);
const struct think_family *tools_think(struct str template);

/* Texts that must be seen although they may be special tokens of the vocabulary: ends with NULL. */
#define TOOLS_MARKS 12
void tools_marks(const struct tool_family *f, const struct think_family *t, const char *out[TOOLS_MARKS]);
#endif
