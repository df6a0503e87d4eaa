/* front.h - requests that come over a link, as struct http_req: the worker's side of a relayed call.
 *
 *     REQUEST, BODY… ──► struct front_req ──► handler of the API ──► REPLY, DATA…, END
 *
 * A request lives until its handler has ended it, the API has reported its end (front_ended), and
 * all bytes of its reply were taken by the link; END is sent then, and it is freed. Bytes for which
 * the server has granted no credit wait here; a client that is too far behind is given up as a slow
 * reader, as over a connection. CANCEL tells the API that the client is gone, or what else ended the
 * call. Everything belongs to the loop's thread. */
#ifndef TERN_WORKER_FRONT_H
#define TERN_WORKER_FRONT_H

#include "api/api.h"
#include "worker/link.h"

struct front;

struct front_opt {
    struct api *api;         /* set by front_set_api before the first request */
    size_t max_body_bytes;   /* of one request; 0: 16 MiB */
    size_t max_unread_bytes; /* of a reply that waits for credit; 0: 1 MiB */
    /* The last request has ended. NULL: not called. */
    void (*idle)(void *arg);
    void *arg;
};

struct front *front_open(const struct front_opt *opt); /* NULL: no memory */
/* The link is closed: requests lose their stream. Those that the API still has stay allocated. */
void front_cut_off(struct front *f);
void front_close(struct front *f); /* after api_close; NULL is allowed */
void front_set_api(struct front *f, struct api *a);
int front_n(const struct front *f); /* requests that have not ended */

/* link_opt.frame for frames of a stream, and link_opt.writable. */
void front_frame(struct front *f, struct link_stream *s, const struct frame *fr);
void front_writable(struct link_stream *s);
/* api_opt.ended: end->who->user is the request. */
void front_ended(void *arg, const struct api_end *end);
#endif
