/* toolforce.h - the grammar of an answer to a chat request with tools: calls that must come, or
 * that must keep to their schemas if they come (lazy).
 *
 * Calls are generated in the format of the model's own family, and toolparse.h reads them back.
 * Reasoning is left alone: a model that reasons before it answers, or whose prompt has opened the
 * reasoning, does so first. */
#ifndef TERN_TOOLCALL_TOOLFORCE_H
#define TERN_TOOLCALL_TOOLFORCE_H

#include "grammar/grammar.h"
#include "toolcall/toolfamily.h"
#include "base/buf.h"

struct toolforce {
    const struct toolfamily *calls;       /* not NULL */
    const struct reasoning_format *think; /* NULL: the model does not reason */
    struct str template;                  /* the chat template */
    struct str prompt;                    /* the end of the prompt */
    const json_t *tools;                  /* an array of the tools that may be called */
    int max;                              /* calls; 0: any number */
    bool lazy; /* no call must come, but calls of strict tools keep to their schemas */
};

/* Fills *spec and appends its text to `out`, which must outlive it. E_UNSUPPORTED: lazy, and calls
 * of this family cannot be distinguished from text. */
int toolforce_make_spec(const struct toolforce *f, struct buf *out, struct grammar_spec *spec,
                        struct err *e);
/* Adds to a spec of another grammar what the model writes before its answer: reasoning that the
 * prompt has opened, or the channel of final answers. */
void toolforce_add_lead(const struct toolfamily *calls, const struct reasoning_format *think,
                        struct str prompt, struct grammar_spec *io);
/* The family for forced calls of a model whose template has no known format: plain JSON. */
const struct toolfamily *toolforce_plain(void);
#endif
