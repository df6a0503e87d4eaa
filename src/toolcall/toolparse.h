/* toolparse.h - an answer that streams, split into text, reasoning and tool calls.
 *
 * Text may arrive cut anywhere. Bytes that may be the beginning of a mark are held back until that
 * is decided. A call of a known tool is reported as soon as its name is there, and its arguments
 * as they arrive, if the model writes them as JSON after the name; other calls are reported when
 * they are complete. Text that looked like a call and is none is reported as text, unchanged. White
 * space around calls and between reasoning and answer is removed.
 *
 * A parser belongs to one answer and one thread. It remembers running out of memory: from then on
 * it reports nothing, and toolparse_check tells. */
#ifndef TERN_TOOLCALL_TOOLPARSE_H
#define TERN_TOOLCALL_TOOLPARSE_H

#include "toolcall/toolcall.h"

enum toolparse_state {
    PARSE_TEXT,
    PARSE_REASONING,
    PARSE_CALL,   /* after the mark of a call */
    PARSE_ARGS,   /* inside of arguments that are passed on */
    PARSE_TAIL,   /* after those arguments: enum toolcall_tail */
    PARSE_LIST,   /* after a call of an array */
    PARSE_HEADER, /* harmony: before <|message|> */
    PARSE_BODY    /* harmony: after it */
};

/* Where the parts of the answer go. All texts are borrowed. */
struct toolparse_out {
    void (*text)(void *arg, struct str text);
    void (*think)(void *arg, struct str text);
    /* A call begins. id "": the model wrote none. */
    void (*call)(void *arg, struct str name, struct str id);
    /* The next bytes of its arguments; all of them together are JSON. */
    void (*args)(void *arg, struct str piece);
    void *arg;
};

struct toolparse {
    const struct toolfamily *calls;       /* NULL: calls are not looked for */
    const struct reasoning_format *think; /* NULL: reasoning is not looked for */
    const json_t *tools;                  /* borrowed; NULL: none are known */
    struct toolparse_out out;
    enum toolparse_state state;
    struct buf held;            /* bytes that are not decided yet */
    struct buf space;           /* white space that is reported only if more text follows */
    struct buf body;            /* harmony: arguments of a call that are collected */
    char to[72];                /* harmony: the recipient of the message; "": the user */
    bool is_think;              /* harmony: the message is reasoning */
    bool reported;              /* harmony: the call of this message was reported */
    bool marked;                /* the call began with the mark of its family, it is not bare */
    bool some_text, some_think; /* was reported */
    bool at_drop;               /* a mark that is dropped came last: a bare call may follow it */
    bool after;                 /* reasoning or a call came before the text */
    int n_calls;
    struct toolcall_head head; /* of the current call; its name and id are empty */
    struct toolparse_json {    /* the position inside of its arguments */
        int depth;
        bool in_string, escaped;
    } json;
    bool cut;    /* after toolparse_end: the last call is not complete */
    bool failed; /* out of memory */
};

/* prompt: the end of the prompt, in which the reasoning may have been opened. */
void toolparse_init(struct toolparse *p, const struct toolfamily *calls,
                    const struct reasoning_format *think, const json_t *tools, struct str prompt,
                    const struct toolparse_out *out);
void toolparse_push(struct toolparse *p, struct str text);
void toolparse_end(struct toolparse *p);                       /* no more text comes */
int toolparse_check(const struct toolparse *p, struct err *e); /* OK, or E_NOMEM */
void toolparse_release(struct toolparse *p);                   /* a zeroed one is allowed */
/* The text that was pushed last ends inside of reasoning. */
static inline bool toolparse_is_reasoning(const struct toolparse *p)
{
    return p->state == PARSE_REASONING || (p->state == PARSE_BODY && p->is_think);
}
#endif
