/* toolcall_impl.h - shared by the files that read tool calls. */
#ifndef TERN_TOOLCALL_TOOLCALL_IMPL_H
#define TERN_TOOLCALL_TOOLCALL_IMPL_H

#include "toolcall/toolcall.h"

#include <ctype.h>

enum { TOOLCALL_MAX_NAME = 256 }; /* bytes; a longer text before the arguments is no name */

/* The mark between id and name of PAYLOAD_SOLAR. */
#define TOOLCALL_SOLAR_NAME "<|tool_call:name|>"

/* Keys of {"name": ..., "id": ..., "arguments": ...} in all families; each ends with NULL. */
extern const char *const toolcall_name_keys[], *const toolcall_id_keys[],
                                                   *const toolcall_args_keys[];

/* The position after the white space at `at`. */
static inline size_t skip_spaces(struct str s, size_t at)
{
    while (at < s.n && isspace((unsigned char)s.p[at])) at++;
    return at;
}

/* The position after "```json" or "```" and white space at `at`; `at` if there is none; s.n if it
 * may become one with more text. */
size_t toolcall_skip_fence(struct str s, size_t at);

/* The length of the string, or of any JSON value, that s begins with; 0: it is not complete. */
size_t toolcall_string_span(struct str s);
size_t toolcall_value_span(struct str s);

/* The name in functions.NAME:0. */
struct str toolcall_kimi_name(struct str id);

/* Sends a call if the name is not empty and the arguments are JSON or empty. false: they are not. */
bool toolcall_send(struct str name, struct str args, struct str id, struct toolcall_sink *sink);

/* These read the whole text between the marks of a call and send it. false: it is no call. */
bool toolcall_send_separated(const struct toolfamily *f, struct str body,
                             struct toolcall_sink *sink);
bool toolcall_send_tagged(const struct toolfamily_tags *g, struct str body, const json_t *tools,
                          struct toolcall_sink *sink);
bool toolcall_send_python(struct str body, struct toolcall_sink *sink);
bool toolcall_send_gemma(struct str body, const char *quote, const json_t *tools,
                         struct toolcall_sink *sink);
/* Appends a Python literal as JSON. false: the text is not one literal and nothing else; out may
 * then have bytes of it. */
bool toolcall_convert_literal(struct str s, struct buf *out, bool *failed);

/* The schema of the arguments of a tool; NULL: there is none. */
const json_t *toolcall_find_schema(const json_t *tools, struct str name);
/* The schema that a $ref names, in the schema `root`; without one the schema itself. */
const json_t *toolcall_resolve_schema(const json_t *schema, const json_t *root);
/* Does the schema have the type "string", alone or among others? */
bool toolcall_is_text_schema(const json_t *schema);
/* Does the schema say which types it allows, and is string none of them? */
bool toolcall_excludes_text(const json_t *schema, const json_t *root);
/* Appends a value without quotes as JSON, by its schema (NULL: by what it looks like). */
void toolcall_write_typed(struct str value, const json_t *schema, const json_t *root,
                          struct buf *out, bool *failed);
/* Does the text end inside of an argument, so that a closing mark after it is part of that? */
bool toolcall_ends_inside_value(const struct toolfamily *f, struct str body, const json_t *tools);
#endif
