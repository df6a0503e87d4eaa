/* toolcall.h - tool calls in the text that a model wrote, read one at a time.
 *
 * The functions get the text after the `open` mark of a family. They keep no state: a call that is
 * not complete yet is asked for again when there is more text. toolparse.h drives them. */
#ifndef TERN_TOOLCALL_TOOLCALL_H
#define TERN_TOOLCALL_TOOLCALL_H

#include "base/buf.h"
#include "toolcall/toolfamily.h"

/* Borrowed, for the time of the callback. */
struct toolcall {
    struct str name;
    struct str args; /* JSON */
    struct str id;   /* "": the model wrote none */
};

/* Receives complete calls. `failed` is set when memory ran out: calls may be missing, and results
 * of the functions below mean nothing. */
struct toolcall_sink {
    void (*call)(void *arg, const struct toolcall *call);
    void *arg;
    bool failed;
};

/* The length of the JSON object or array that text begins with; 0: it is not complete. */
size_t toolcall_json_span(struct str text);
/* Is it one JSON value and nothing else? Sets *failed if memory ran out. */
bool toolcall_is_json(struct str text, bool *failed);

/* How a call goes on after the JSON object of its arguments. */
enum toolcall_tail {
    TAIL_NONE,   /* it is over */
    TAIL_OBJECT, /* with the rest of the object around the arguments */
    TAIL_FENCE,  /* with the end of a ``` block */
    TAIL_BODY    /* with the rest of a harmony message */
};

/* The beginning of a call, up to its arguments, which can then be passed on as they arrive. */
struct toolcall_head {
    struct str name, id; /* borrowed from the text */
    size_t args;         /* where the arguments begin, with a '{' */
    bool list;           /* the call is in an array */
    enum toolcall_tail tail;
};

/* 1: text begins with the head of a call of one of the tools; 0: it may, with more text; -1: it
 * does not. in_list: the call is a later one of an array, and text begins with its '{'. */
int toolcall_read_head(const struct toolfamily *f, struct str text, bool in_list,
                       const json_t *tools, struct toolcall_head *out);
bool toolcall_is_known(const json_t *tools, struct str name);

/* Reads the call (or calls) with which text begins. Returns how many bytes they take, after they
 * went to the sink; 0: not complete; -1: this is no call. at_end: no more text comes. tools (or
 * NULL): their schemas say which arguments between tags are strings. */
ptrdiff_t toolcall_read(const struct toolfamily *f, struct str text, bool at_end,
                        const json_t *tools, struct toolcall_sink *sink);
/* The same for one object of an array. An object that is no call is skipped. */
ptrdiff_t toolcall_read_object(struct str text, struct toolcall_sink *sink);
#endif
