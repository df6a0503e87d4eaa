/* batchobject.h - a batch as clients see it: OpenAI's batch object. */
#ifndef TERN_JOBS_BATCHOBJECT_H
#define TERN_JOBS_BATCHOBJECT_H

#include "jobs/jobstore.h"

struct jsonw;

/* Texts with p NULL, and times that are 0, are null. */
struct batch_object {
    struct str id, endpoint, input, window, output, error;
    struct str metadata; /* JSON */
    struct str errors;   /* JSON, an array; n 0: none */
    int status;          /* enum batch_status */
    int64_t created, in_progress, expires, finalizing, cancelling, ended;
    int64_t total, completed, failed; /* lines */
};
void batch_object_write(const struct batch_object *o, struct jsonw *w);
#endif
