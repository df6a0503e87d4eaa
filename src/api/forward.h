/* forward.h - calls for a model that runs in another process.
 *
 * The API opens such a call as any other and finds its model; the instance has no engine. It then
 * passes the HTTP request on through api_opt.forward, whose owner sends it to the process and calls
 * the functions below with what comes back. The answer is not parsed. A call whose process dies
 * before anything of the answer was sent, be it that a stream has its head and pings, is forwarded once
 * more, when the model is there again; the client of such a stream sees one head. After that it ends
 * with E_WORKER: 503 "worker_lost", or an error event in a stream that has begun.
 * Everything here belongs to the loop's thread. */
#ifndef TERN_API_FORWARD_H
#define TERN_API_FORWARD_H

#include "api/api.h"

struct http_req;
struct pool_instance;

enum forward_why { FORWARD_GONE, FORWARD_ASKED, FORWARD_SHUTDOWN };

/* One call on its way to another process; embedded in struct call. */
struct forward {        /* for the owner of the operations: read only but for relay */
    struct http_req *q; /* its method, query, headers and body; the answer goes through this file */
    const struct api_who *who;
    const char *path; /* of the API: "/v1/chat/completions" */
    /* The path with its id and query, as the client sent it; NULL: `path` is all there is. */
    const char *target, *query;
    const char *id; /* of the call: "chatcmpl-..." */
    struct pool_instance *model;
    uint64_t start_ns;
    int n_before; /* processes that had it before */
    void *relay;  /* the owner's; not NULL from begin until forward_ended or forward_lost */
    /* the API's */
    bool on;    /* the call is forwarded */
    bool lost;  /* it waits until its model is there again */
    bool begun; /* the process that has it now has begun a stream */
    bool told;  /* bytes of the answer went to the client: it cannot be repeated */
    uint64_t lost_ns;
    const struct api_end *end;
};

struct forward_ops {
    /* Sends the request to the process of f->model. E_WORKER: it is not there any more. */
    int (*begin)(struct forward *f, struct err *e);
    /* The call should end. forward_ended, or forward_lost, still follows. */
    void (*cancel)(struct forward *f, enum forward_why why);
    void (*drop)(struct forward *f); /* forgets it: nothing follows */
};

/* ---- for the owner of the operations ---- */
/* Was the head of a stream sent, perhaps that of a process that died? Headers cannot be set then. */
bool forward_has_head(const struct forward *f);
/* A streamed answer begins. false: it cannot; cancel follows. */
bool forward_begin(struct forward *f, int status, const char *type);
bool forward_write(struct forward *f, const void *p, size_t n); /* false: the client is gone */
/* The whole answer. */
void forward_answer(struct forward *f, int status, const char *type, const void *p, size_t n);
/* The process has ended the call. f may be invalid afterwards. */
void forward_ended(struct forward *f, const struct api_end *end);
/* The process is gone, as e says. f may be invalid afterwards. */
void forward_lost(struct forward *f, const struct err *e);
#endif
