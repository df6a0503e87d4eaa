/* front_impl.h - one relayed request in the worker. Private to front.c and front_req.c. */
#ifndef TERN_WORKER_FRONT_IMPL_H
#define TERN_WORKER_FRONT_IMPL_H

#include "base/arena.h"
#include "base/buf.h"
#include "net/httpreq.h"
#include "worker/front.h"
#include "worker/message.h"

/* The id of the call as its client sees it: a header of the REQUEST that is not the client's. */
#define FRONT_CALL_ID "tern-call-id"
#define FRONT_HOP "tern-hop" /* struct api_hop but for its call: numbers, see relay.c */

struct front_req {
    struct http_req req; /* first */
    struct front *front;
    struct front_req *prev, *next;
    struct link_stream *s; /* NULL: the link is closed, or END was sent */
    struct arena arena;
    struct msg_request head;
    struct buf body;
    uint64_t start_ns;
    bool bad;
    bool handled;  /* a handler was called */
    bool answered; /* the handler has ended req */
    bool ended;    /* the API has reported its end: `end` is complete */

    struct msg_reply reply; /* headers that were set */
    bool begun;             /* REPLY of a streamed reply was sent */
    int status;
    struct buf out; /* bytes of the reply that wait for credit, from out_at on */
    size_t out_at;
    struct buf end; /* payload of END */
    const char *gone_reason;
    void (*gone)(void *arg);
    void *gone_arg;
};

struct front {
    struct front_opt opt;
    struct front_req *reqs;
    int n;
};

extern const struct http_ops front_ops;

void front_flush(struct front_req *r);
void front_end_if_done(struct front_req *r); /* r may be freed here */
#endif
