/* anytools.h - tools for a model whose chat template has no place for them.
 *
 * The definitions are written into the system message, calls of the past and their results into texts,
 * in the form of <tool_call> tags that many models have seen. toolfamily.h reads the answer by the same
 * form, and a grammar holds calls to it. */
#ifndef TERN_API_ANYTOOLS_H
#define TERN_API_ANYTOOLS_H

#include "base/err.h"
#include "base/str.h"

#include <jansson.h>

/* A text with the signs of the form, for toolfamily_find. */
#define ANYTOOLS_SIGNS "<tool_call></tool_call>"

/* *out: the messages with the tools (NULL: none) written into them; the caller's to json_decref. */
int anytools_write(const json_t *messages, const json_t *tools, json_t **out, struct err *e);
#endif
