/* toolcall.h - one tool call out of the text a model wrote for it. */
#ifndef TERN_TOOLCALL_TOOLCALL_H
#define TERN_TOOLCALL_TOOLCALL_H

#include "toolcall/toolfamily.h"
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
bool json_valid(struct str text); /* any JSON value, and nothing else */

/* The beginning of a call whose arguments can be given on as they come. */
struct tool_head {
    struct str name, id; /* borrowed from the text */
    size_t args;         /* where the arguments begin, with a '{' */
    bool list;           /* it is one of a list */
    enum tool_tail {
        TAIL_NONE,
        TAIL_OBJECT,
        TAIL_FENCE,
        TAIL_BODY
    } tail; /* behind the arguments */
};

/* 1: text (behind `open`) begins with the head of a call of one of the tools; 0: it may still; -1:
 * it does not. in_list: it is a later one of a list, and begins with its '{'. */
int toolcall_head(const struct toolfamily *f, struct str text, bool in_list, const json_t *tools,
                  struct tool_head *out);
bool toolcall_is_known(const json_t *tools, struct str name);
/* One object of a list, whole: as toolcall_read. What is no call is skipped. */
ptrdiff_t toolcall_object(struct str text, const struct tool_sink *sink);

/* How much of text the call (or calls) behind `open` took, after they went to the sink; 0: it is
 * not complete yet; -1: this is no call. over: nothing more comes, what is there must do. tools (or
 * NULL) say which arguments are texts. */
ptrdiff_t toolcall_read(const struct toolfamily *f, struct str text, bool over, const json_t *tools,
                        const struct tool_sink *sink);
#endif
