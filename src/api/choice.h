/* choice.h - one choice of an answer: an engine request, and what was read from it so far.
 *
 * Engines hold the address of a choice in request.owner, and may notify a moment after the last
 * event was read. Choices are therefore never freed before the API closes, only reused, and a
 * notification for a request that the choice no longer carries is ignored. */
#ifndef TERN_API_CHOICE_H
#define TERN_API_CHOICE_H

#include "api/answer.h"
#include "api/reply.h"
#include "engine/request.h"
#include "toolcall/toolparse.h"

struct api;
struct call;

struct choice {
    struct api *api;     /* set once: engines read it */
    struct choice *next; /* of all choices; set once */
    struct choice *next_free;
    struct call *call;
    struct request *r;      /* NULL: not submitted, or its last event was read */
    int index, prompt;      /* of the choice in the answer; of its prompt in the request */
    bool begun;             /* its first event was processed */
    struct toolparse parse; /* splits the text, with call.parsing.on */
    bool skip_call;       /* parallel_tool_calls is false, and the call being parsed is a second */
    int n_calls;          /* tool calls found */
    struct logprobs lp;   /* rendered and not sent yet, or all: by the dialect */
    size_t lp_sent;       /* bytes of its first list that were sent */
    struct answer answer; /* of a stream only the part that is open, unless the dialect keeps all */
    bool part_open;       /* its last part may get more */

    size_t n_chars;  /* characters of text read */
    int n_read;      /* tokens read */
    int n_reasoning; /* of them, tokens of reasoning */
    /* copied from the request at its end: */
    enum finish finish;
    int stop_hit; /* index of the stop string that ended it; -1: none */
    float *vec;   /* embedding or class scores; from mem_alloc */
    int n_out, n_cached;
    double queue_ms, prefill_ms, decode_ms;
    bool has_phases; /* the four below, as in struct api_end */
    double admission_ms, scheduling_ms, dispatch_ms, compute_ms;
};

/* respond.c: reads the events that are there and advances the call, which may end. */
void choice_read_events(struct choice *ch);
/* respond.c: prepares the parser, before the request is submitted. */
void choice_start_parser(struct choice *ch);
/* E_NOMEM if text of the choice was lost for want of memory. */
int choice_check(const struct choice *ch, struct err *e);
/* respond.c: "stop", "length" or "tool_calls", after the end. */
const char *choice_finish_reason(const struct choice *ch);
#endif
