/* toolrules.h - tool calls in the format of a model family, as rules of a grammar.
 *
 * The engine compiles grammars on a thread of its own and caches them by text (grammar.h). So a
 * request first writes the tools and the format as a text, and toolrules_build makes the rules when
 * that text is compiled. */
#ifndef TERN_TOOLCALL_TOOLRULES_H
#define TERN_TOOLCALL_TOOLRULES_H

#include "grammar/grammar.h"
#include "toolcall/toolformat.h"
#include "base/buf.h"
#include "grammar/rules.h"

struct toolrules_tool {
    struct str name;
    struct str parameters; /* a JSON schema; empty: any object */
};

/* Appends the text for n tools. At least one call must come, or with format->trigger none. */
void toolrules_write(struct buf *out, const struct toolrules_tool *tools, int n,
                     const struct toolformat *format);
/* A grammar_build_fn for such a text. */
int toolrules_build(struct rules *g, struct str text, struct err *e);
#endif
