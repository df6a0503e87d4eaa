/* toolcall.h - one tool call out of the text a model wrote for it. */
#ifndef TERN_API_TOOLCALL_H
#define TERN_API_TOOLCALL_H

#include "api/tools.h"
#include "base/buf.h"

struct tool_call {
    struct str name, args,
        id; /* args: JSON; id: "" where the model wrote none. Borrowed for the time of the call */
};

struct tool_sink {
    void (*call)(void *arg, const struct tool_call *call);
    void *arg;
};

/* Length of the JSON object or list that text begins with; 0: it is not complete yet. */
size_t json_span(struct str text);
bool json_valid(struct str text);        /* any JSON value, and nothing else */

/* How much of text the call (or calls) behind `open` took, after they went to the sink; 0: it is not complete
 * yet; -1: this is no call. over: nothing more comes, what is there must do. tools (or NULL) say which
 * arguments are texts. */
ptrdiff_t toolcall_read(const struct tool_family *f, struct str text, bool over, const json_t *tools,
                        const struct tool_sink *sink);
#endif
