/* fail.h - struct err → status, type and code of the error envelope. */
#ifndef TERN_API_FAIL_H
#define TERN_API_FAIL_H

#include "base/err.h"
#include "net/http.h"

struct fail {
    int status;
    const char *type; /* as OpenAI names it */
    const char *code; /* stable */
};

struct fail fail_of(int err_code);
/* X-Correlation-Id and x-request-id: every reply has both. */
void fail_set_ids(struct http_req *q, const char *correlation);
#endif
