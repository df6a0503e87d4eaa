/* jobcall.h - a request without a connection: a job on its way through the API.
 *
 * The API sees a struct http_req like any other, so a job takes the same way as a client's request:
 * parsing, admission, the engine's queue. The answer is collected, and done is called once at its
 * end, from inside the API: it only notes that, and the owner goes on later. */
#ifndef TERN_JOBS_JOBCALL_H
#define TERN_JOBS_JOBCALL_H

#include "base/buf.h"
#include "net/httpreq.h"

struct jobcall {
    struct http_req req; /* first */
    const char *peer;    /* a literal: "batch" */
    char path[64], id[48];
    char *body; /* owned: mem_free */
    size_t n_body;
    uint64_t start_ns;
    void (*gone)(void *arg);
    void *gone_arg;
    /* the answer */
    int status; /* 0: none yet */
    bool ended;
    struct buf reply;
    void (*done)(struct jobcall *c);
};

/* body: taken over. c is zeroed. */
void jobcall_init(struct jobcall *c, const char *peer, const char *path, const char *id, char *body,
                  size_t n_body, void (*done)(struct jobcall *c));
void jobcall_release(struct jobcall *c);
/* Will another try help? 429 and 503: no room now, the model is loading, the server stops. */
bool jobcall_is_temporary(const struct jobcall *c);
#endif
