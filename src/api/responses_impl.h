/* responses_impl.h - what a call of /v1/responses keeps between its body and its answer. Private to
 * responses*.c. All texts are in the call's arena. */
#ifndef TERN_API_RESPONSES_IMPL_H
#define TERN_API_RESPONSES_IMPL_H

#include "api/call.h"
#include "api/convo.h"

struct responses {
    bool store;
    bool summary;        /* reasoning is shown as a summary; false: as its text */
    bool encrypted;      /* include has reasoning.encrypted_content */
    struct str given;    /* members of the response object that repeat the request's */
    struct str items;    /* the input: an array of items */
    struct str messages; /* the conversation without instructions: an array of messages */
};

/* responses_body.c: dialect.translate */
int responses_translate(struct call *c, json_t **out, struct err *e);
/* encrypted_content of a reasoning item: this prefix and the text of the reasoning, which the client has
 * anyway. */
#define RESPONSES_SEALED "tern1:"
#endif
