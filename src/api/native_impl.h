/* native_impl.h - what a call of llama-server's own /completion or /infill keeps between its body and its
 * answer. Private to native*.c. All texts are in the call's arena. */
#ifndef TERN_API_NATIVE_IMPL_H
#define TERN_API_NATIVE_IMPL_H

#include "api/call.h"

enum { NATIVE_FIELDS_MAX = 64 };

struct native {
    bool return_tokens;
    struct str stops[STOPS_MAX]; /* of the request, as they were given */
    int n_stops;
    struct str fields[NATIVE_FIELDS_MAX]; /* response_fields: paths such as "timings/prompt_n" */
    int n_fields;                         /* 0: the whole answer */
};

/* native_body.c: dialect.translate */
int native_translate_completion(struct call *c, json_t **out, struct err *e);
int native_translate_infill(struct call *c, json_t **out, struct err *e);
#endif
