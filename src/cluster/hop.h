/* hop.h - requests from the gateway to one worker, over kept HTTP/1.1 connections.
 *
 * A lane is the way to one worker: its address and its idle connections, at most HOP_KEPT of them
 * for HOP_IDLE_MS each. A hop is one request on the way; it ends exactly once, by `end` or by
 * hop_cancel, and is invalid from then on. A kept connection that the worker closed meanwhile is
 * replaced once without a word. Bytes of the reply's body are passed on as they come. Everything runs
 * on the loop's thread. */
#ifndef TERN_CLUSTER_HOP_H
#define TERN_CLUSTER_HOP_H

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

#include <stdint.h>

struct event_base;
struct hop;
struct lane;

enum { HOP_KEPT = 10, HOP_IDLE_MS = 60000 };

enum hop_end {
    HOP_DONE,    /* the reply is complete */
    HOP_CONNECT, /* no connection: the worker did not get the request */
    HOP_CUT,     /* the connection closed before the reply was complete */
    HOP_BAD,     /* the bytes are not HTTP */
    HOP_TIMEOUT, /* no connection, or no byte of the head, within head_ms */
    HOP_NOMEM
};
const char *hop_end_name(enum hop_end end); /* "cut", for logs and metrics */

struct hop_ops {
    void (*header)(void *arg, struct str name, struct str value);
    /* The head is complete. sse: an event stream follows. May cancel the hop. */
    void (*head)(void *arg, int status, bool sse);
    void (*data)(void *arg, struct str bytes); /* may cancel the hop */
    void (*end)(void *arg, enum hop_end end);
};

struct hop_request {
    const char *method, *path; /* path: with the query */
    struct str headers;        /* lines with CR LF; copied */
    struct str first;          /* bytes before the body, copied */
    struct str body;           /* borrowed until the hop ends */
    bool has_body;
    bool fresh;  /* on a new connection: the request is never sent twice */
    int head_ms; /* 0: no limit */
};

struct lane_stats {
    uint64_t opened, reused; /* requests on new and on kept connections */
    int idle, busy;          /* connections now */
};

/* url: http://host:port, https://host or unix:/path. E_INVALID, E_IO: the name is not known. */
int lane_open(struct lane **out, struct event_base *base, const char *url, const char *ca_file,
              struct err *e);
void lane_close(struct lane *l); /* no hop may be left; NULL is allowed */
void lane_drop_idle(struct lane *l);
void lane_stats(const struct lane *l, struct lane_stats *out);

/* hop_request.path of a path that was decoded: percent-encoded where it must be. */
void hop_write_target(struct buf *out, struct str path, struct str query);

/* NULL: no memory. The callbacks come later, never from inside this function. */
struct hop *hop_start(struct lane *l, const struct hop_request *rq, const struct hop_ops *ops,
                      void *arg);
void hop_cancel(struct hop *h); /* closes the connection, so that the worker stops; no callback */
/* Stops and continues reading of the reply, for a client that reads slowly. */
void hop_pause(struct hop *h, bool paused);
#endif
