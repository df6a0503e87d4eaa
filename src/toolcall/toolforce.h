/* toolforce.h - tool calls that must come: the grammar of a family's own way to write them.
 *
 * What is made here is read back by toolparse.h. Reasoning stays where it was: a prompt that has
 * begun it, or a model that may, thinks first, and only then must call. */
#ifndef TERN_TOOLCALL_TOOLFORCE_H
#define TERN_TOOLCALL_TOOLFORCE_H

#include "toolcall/tools.h"
#include "grammar/grammar.h"

struct toolforce {
    const struct tool_family *calls;  /* not NULL */
    const struct think_family *think; /* NULL: none */
    struct str template, prompt;      /* prompt: the end of it */
    const json_t *tools;              /* those that may be called */
    int max;                          /* calls; 0: any number */
    bool lazy; /* no call must come, but those that do keep to schemas of strict tools */
};

/* Writes a GRAMMAR_CALLS: its text into `out`, which must stay. false: such calls cannot be told
 * from text (lazy ones of some families). */
bool toolforce_put(const struct toolforce *f, struct buf *out, struct grammar_spec *spec);
/* What a text held to another grammar has before it: reasoning that was begun, the channel of
 * answers. */
void toolforce_lead(const struct tool_family *calls, const struct think_family *think,
                    struct str prompt, struct grammar_spec *io);
/* The way calls are written where the template shows none. */
const struct tool_family *toolforce_plain(void);
#endif
