/* toolcall_impl.h - between the files that read tool calls. */
#ifndef TERN_TOOLCALL_TOOLCALL_IMPL_H
#define TERN_TOOLCALL_TOOLCALL_IMPL_H

#include "toolcall/toolcall.h"

#include <ctype.h>

/* Where the white space that begins at `at` is over. */
static inline size_t spaces(struct str s, size_t at)
{
    while (at < s.n && isspace((unsigned char)s.p[at])) at++;
    return at;
}

size_t json_string_span(struct str s); /* of the string that s begins with; 0: not complete */
size_t json_value_span(struct str s);  /* of any value that s begins with; 0: not complete */

/* Sends a call whose arguments are JSON (or empty); false: they are not, or there is no name. */
bool toolcall_named(struct str name, struct str args, struct str id, const struct tool_sink *sink);

/* Whole bodies, between the marks of a call; false: it is none. */
bool toolcall_separated(const struct toolfamily *f, struct str body, const struct tool_sink *sink);
bool toolcall_tagged(const struct toolfamily_tags *g, struct str body, const json_t *tools,
                     const struct tool_sink *sink);
bool toolcall_python(struct str body, const struct tool_sink *sink);
bool toolcall_gemma(struct str body, const char *quote, const struct tool_sink *sink);
/* The body ends within an argument, so the mark behind it is part of that. */
bool toolcall_inside_value(const struct toolfamily *f, struct str body, const json_t *tools);
#endif
