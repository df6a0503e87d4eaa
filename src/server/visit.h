/* visit.h - one request as the server sees it, until it is answered or passed to the API; and the
 * access log.
 *
 * Every reply carries X-Correlation-Id, is counted by route and class of status, and is logged. */
#ifndef TERN_SERVER_VISIT_H
#define TERN_SERVER_VISIT_H

#include "api/api.h"
#include "base/str.h"

struct buf;
struct http_req;
struct server;

struct visit {
    struct server *v;
    struct http_req *q;
    struct api_who who;
    int route;   /* index in the table of routes; -1: none */
    bool quiet;  /* successful ones are logged at level debug */
    bool headed; /* the headers that all replies have are set */
    char peer[96], path[160], method[16];
    uint64_t start_ns;
};

void visit_begin(struct visit *t, struct server *v, struct http_req *q);
/* Each of these answers and ends the visit. */
void visit_reply(struct visit *t, int status, const char *type, struct str body);
void visit_reply_buf(struct visit *t, int status, const char *type, const struct buf *body);
void visit_fail(struct visit *t, const struct err *e);
void visit_fail_status(struct visit *t, int status, const char *code, const char *msg);
/* Writes the body of an error that net/ answers with. */
void visit_refuse(struct visit *t, int status, const char *code, const char *msg, struct buf *out);
/* A streamed reply. false: no memory, and nothing was sent. The caller sends and ends it, then the visit. */
bool visit_begin_stream(struct visit *t, int status, const char *type);
void visit_end_stream(struct visit *t, int status);
/* Before the API's handler is called: sets the headers that the API does not know of. */
void visit_hand_over(struct visit *t);
/* The API gives it back unanswered: the visit begins again. */
void visit_take_back(struct visit *t, struct server *v, struct http_req *q,
                     const struct api_who *who);

/* Handlers of the server's own routes (metrics.c, status.c; health.h has two more). */
void metrics_get(struct visit *t);
void status_get(struct visit *t);

/* access.c */
void access_ended(void *arg, const struct api_end *end); /* api_opt.ended */
void access_failed(void *arg, int status, const char *code, bool ran);
void access_release(struct server *v);
#endif
