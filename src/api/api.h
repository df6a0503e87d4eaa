/* api.h - request bodies in, reply bodies out: OpenAI's API over the engines of a pool.
 *
 * Runs on the server's loop. A call is one HTTP request on its way: parsed, submitted as one engine
 * request a choice, answered whole or event by event, and logged once at its end. Engines tell the
 * API of news through a channel and a wake-up of the loop; api_wake takes them up. */
#ifndef TERN_API_API_H
#define TERN_API_API_H

#include "net/http.h"
#include "pool/pool.h"

struct api;
struct call;

/* Who asks: found by the server before a handler is called. */
struct api_who {
    const char *name; /* "default" where there are no keys */
    uint32_t tenant;
    bool admin;           /* may cancel others' requests */
    int priority_max;     /* higher ones are lowered to it */
    char correlation[72]; /* accepted or made */
};

struct api_end {
    const struct api_who *who;
    const char *route;  /* "/v1/chat/completions" */
    const char *model;  /* "" if it was not found */
    int status;         /* sent; 499: the client was gone before */
    const char *code;   /* of the error sent, "" if none */
    const char *finish; /* of the first choice; "" if none */
    const char *gone;   /* why the client left: "closed", "slow reader", "" */
    bool stream;
    int n_choices, prompt_tokens, cached_tokens, output_tokens;
    double total_ms, queue_ms, prefill_ms, decode_ms, first_ms;
    const char *peer;
    struct str prompt; /* with log_prompts: the beginning of it */
};

struct api_opt {
    struct loop *loop;
    struct pool *pool;
    int max_tokens_default; /* 0: what the context leaves */
    int max_choices;        /* n at most; 0: 16 */
    int deadline_ms;        /* of requests that bring none; 0: none */
    int ping_ms;            /* a comment into silent streams; 0: 15000 */
    int max_calls;          /* at once; room of the channel; 0: 4096 */
    bool salt_by_tenant;    /* prefixes are shared within a tenant only */
    bool log_prompts;
    /* A call ended: for limits, metrics and the access line. Once for every handler called, after
     * its HTTP request was answered and its engine requests were over. All borrowed for the time of
     * the call. */
    void (*ended)(void *arg, const struct api_end *end);
    void *arg;
};

int api_open(struct api **out, const struct api_opt *opt, struct err *e);
/* After the pool was closed (engines tell of ends until then), before HTTP is; what was not
 * answered yet is now. NULL is fine. */
void api_close(struct api *a);
void api_wake(struct api *a); /* on the loop: news from engines */
int api_n_calls(const struct api *a);
void api_status(struct api *a, struct buf *out); /* the calls in flight as a JSON array */

/* Handlers: each answers q in the end. */
void api_chat(struct api *a, struct http_req *q, const struct api_who *who);
void api_completions(struct api *a, struct http_req *q, const struct api_who *who);
void api_embeddings(struct api *a, struct http_req *q, const struct api_who *who);
void api_classify(struct api *a, struct http_req *q, const struct api_who *who);
void api_models(struct api *a, struct http_req *q, const struct api_who *who); /* list */
void api_model(struct api *a, struct http_req *q, const struct api_who *who);  /* /v1/models/{id} */
void api_tokenize(struct api *a, struct http_req *q, const struct api_who *who);
void api_detokenize(struct api *a, struct http_req *q, const struct api_who *who);
/* /v1/requests/{id}/cancel, /cancel */
void api_cancel(struct api *a, struct http_req *q, const struct api_who *who);

/* Any error as the envelope with its status, Retry-After and x-request-id. param: the field, or
 * NULL. Ends q. */
void api_fail(struct http_req *q, const struct err *e, const char *param, const char *correlation);
/* The same for what has a status but no code of ours: 404 path, 405, 413. `code` as in the
 * contract. */
void api_fail_status(struct http_req *q, int status, const char *code, const char *msg,
                     const char *correlation);
/* Only the body. */
void api_fail_body(struct buf *out, const char *type, const char *code, const char *msg,
                   const char *param, const char *correlation);
#endif
