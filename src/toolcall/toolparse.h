/* toolparse.h - an answer as it streams, taken apart: text, reasoning, tool calls.
 *
 * Text may come cut anywhere; what may be the beginning of a mark is held back until it cannot be
 * one any more. A call of a tool that is known is told of as soon as its name is, and its arguments
 * as they come, where the model writes them as JSON and behind the name; others are told of once
 * they are whole. What looked like a call and was none comes out as text, as the model wrote it.
 * White space around calls and between reasoning and answer is left out. */
#ifndef TERN_TOOLCALL_TOOLPARSE_H
#define TERN_TOOLCALL_TOOLPARSE_H

#include "toolcall/toolcall.h"

enum toolparse_state {
    PARSE_TEXT,
    PARSE_THINK,
    PARSE_CALL,
    PARSE_HEADER,
    PARSE_BODY,
    PARSE_ARGS,
    PARSE_TAIL,
    PARSE_LIST
};

struct toolparse_out {
    void (*text)(void *arg, struct str text);
    void (*think)(void *arg, struct str text);
    void (*call)(void *arg, struct str name,
                 struct str id); /* one begins; id "": the model wrote none */
    void (*args)(void *arg,
                 struct str piece); /* of the call that was begun last; all of them are JSON */
    void *arg;
};

struct toolparse {
    const struct toolfamily *calls;       /* NULL: none are looked for */
    const struct reasoning_format *think; /* NULL: no reasoning is */
    const json_t *tools;                  /* borrowed */
    struct toolparse_out out;
    enum toolparse_state state;
    struct buf held;                   /* not decided yet */
    struct buf space;                  /* white space that may be the last of its part */
    struct buf body;                   /* harmony: of a call */
    char to[72];                       /* harmony: whom the message is for; "" the user */
    bool is_think;                     /* harmony: the message is reasoning */
    bool marked;                       /* the call began with its mark, not bare */
    bool some_text, some_think, after; /* after: reasoning or a call came before the text */
    int n_calls;
    struct tool_head head; /* of the call that is under way; its texts are not */
    struct json_at {       /* how far its arguments are */
        int depth;
        bool in_text, escaped;
    } json;
    bool told; /* harmony: the call of this message was */
    bool cut;  /* at the end: the last call is not whole */
};

/* prompt: the end of what the model answers to; it may have begun its reasoning there. */
void toolparse_init(struct toolparse *p, const struct toolfamily *calls,
                    const struct reasoning_format *think, const json_t *tools, struct str prompt,
                    const struct toolparse_out *out);
void toolparse_push(struct toolparse *p, struct str text);
void toolparse_end(struct toolparse *p);
void toolparse_release(struct toolparse *p); /* a zeroed one is fine */
#endif
