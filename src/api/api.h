/* api.h - OpenAI's HTTP API over the engines of a pool.
 *
 * A call is one HTTP request on its way: request threads parse its body and make the prompt
 * (prepare.c), each choice is submitted as one engine request, the answer is sent whole or event by
 * event, and opt.ended reports the end once. Request threads and engines wake the loop, which calls
 * api_process_events. All functions here are for the loop's thread.
 *
 * A failed allocation ends its own request: 503 with code "memory_admission", or an error event in
 * a stream that has begun. */
#ifndef TERN_API_API_H
#define TERN_API_API_H

#include "base/err.h"
#include "base/str.h"

#include <jansson.h>

struct api;
struct buf;
struct forward_ops;
struct http_req;
struct loop;
struct pool;

/* Facts that a gateway adds to a request (docs/protocol.md). Zeroed: no gateway, or it says
 * nothing. */
struct api_hop {
    bool ids;     /* streams carry the ids of their tokens in comments */
    bool resumes; /* the client has the beginning of the stream: n_resume tokens */
    int n_resume; /* length of `tern_resume` in the body */
    int n_events; /* numbered events that the client has */
    bool has_created, has_seed;
    int64_t created; /* of the answer */
    uint64_t seed;   /* for a request that gives none */
    char call[32];   /* end of the completion's id; "": a random one */
};

/* Who sends the request: determined by the server before a handler is called. */
struct api_who {
    const char *name;     /* tenant; "default" where there are no keys */
    uint32_t tenant;      /* its index */
    bool keyed;           /* by a key: there may be other tenants, and it has a share only */
    bool admin;           /* may cancel requests of other tenants */
    bool may_keep;        /* "durable": true in the body makes it a job: opt.keep */
    int priority_max;     /* higher priorities are lowered to it */
    int route;            /* of the server's table; the API only passes it on to opt.ended */
    char correlation[72]; /* id for logs and error bodies: http_id */
    const char *id;       /* of the call, as clients see it; NULL: a random one */
    struct api_hop hop;
    void *user; /* the caller's: the API only passes it on, to opt.ended */
};

/* A call that ended. All pointers are valid during opt.ended only. */
struct api_end {
    const struct api_who *who;
    const char *route;  /* "/v1/chat/completions" */
    const char *model;  /* "": not found */
    int status;         /* sent; 499: the client was gone before */
    const char *code;   /* of the error that was sent; "": none */
    const char *finish; /* of the first choice; "": none */
    const char *gone; /* why the connection closed: "closed", "slow reader", ...; "": it did not */
    bool stream;
    int n_choices, prompt_tokens, cached_tokens, output_tokens;
    double total_ms, queue_ms, prefill_ms, decode_ms, first_ms; /* first_ms: to the first byte */
    /* The way to the first token of the first choice: the request was read ─admission─► accepted by
     * the engine ─scheduling─► planned ─dispatch─► on the device ─compute─► token. */
    bool has_phases; /* there was a token */
    double admission_ms, scheduling_ms, dispatch_ms, compute_ms;
    const char *peer;
    struct str prompt; /* with opt.log_prompts: its beginning */
};

struct api_opt {
    struct loop *loop;
    struct pool *pool;
    int max_tokens_default; /* of requests that give no limit; 0: the rest of the context */
    int max_choices;        /* largest n; 0: 16 */
    int deadline_ms;        /* of requests that give none; 0: none */
    int ping_ms;            /* a comment is sent into streams silent for so long; 0: 15000 */
    int max_calls;          /* choices in engines at once: capacity of the channel; 0: 4096 */
    int request_threads;    /* parse bodies and make prompts; 0: 2 */
    int request_queue; /* calls that wait for one, half of them of one tenant; then 429; 0: 4096 */
    int max_watchers;  /* clients of /models/sse, of a keyed tenant half of them; 0: 64 */
    size_t response_bytes; /* of stored answers of /v1/responses; 0: none is stored */
    size_t max_body_bytes; /* of a request, and of the stored items it refers to; 0: 16 MiB */
    bool salt_by_tenant;   /* the prefix cache is shared within a tenant only */
    bool log_prompts;
    bool one_model; /* the pool has one model, which answers whatever name a request gives */
    const struct forward_ops *forward; /* for models in other processes; NULL: there are none */
    /* Called when an error is sent as the whole answer. ran: a part of the request was accepted by
     * an engine before. */
    void (*failed)(void *arg, int status, const char *code, bool ran);
    /* Takes over a request whose body says "durable": true, of a who.may_keep: it ends q, now or later,
     * and frees body (mem_free). opt.ended is not called. who: valid during the call only. */
    void (*keep)(void *arg, struct http_req *q, const struct api_who *who, char *body, size_t n);
    /* Called once for every other handler call, after its HTTP request was answered and its engine
     * requests ended. For limits, metrics and the access log. */
    void (*ended)(void *arg, const struct api_end *end);
    void *arg;
};

int api_open(struct api **out, const struct api_opt *opt, struct err *e);
/* Ends the request threads. Calls that they had are answered with an error, as are later ones. NULL
 * is allowed. api_close does it, too. */
void api_stop(struct api *a);
void api_abort(struct api *a); /* the same for the calls that they have now; the threads go on */
/* After pool_stop (engines report events until then), before pool_close (calls hold models) and
 * http_close. Calls that are not answered yet get an error. NULL is allowed. */
void api_close(struct api *a);
/* Cancels the call with that who.user, or ends it since the server shuts down. */
void api_stop_call(struct api *a, const void *user, bool shutdown);
void api_process_events(struct api *a);  /* after a wake-up of the loop */
void api_models_changed(struct api *a);  /* tells those who watch the models */
void api_end_watchers(struct api *a);    /* no more of that: the server drains */
int api_n_calls(const struct api *a);    /* in flight */
int api_n_watchers(const struct api *a); /* of /models/sse */
struct jsonw;
void api_write_model(struct api *a, struct jsonw *w, int i); /* as GET /v1/models lists model i */
/* Calls of clients, without those that have who.user; waiting: those that have waited for more than
 * wait_ms for a place in an engine or for their model. */
void api_count_live(const struct api *a, int wait_ms, int *running, int *waiting);
void api_status(struct api *a, struct buf *out); /* the calls in flight as a JSON array */

/* Handlers. Each ends q, now or later. */
void api_chat(struct api *a, struct http_req *q, const struct api_who *who);
void api_completions(struct api *a, struct http_req *q, const struct api_who *who);
void api_responses(struct api *a, struct http_req *q, const struct api_who *who);
/* /v1/responses/{id}, …/cancel, …/input_items */
void api_get_response(struct api *a, struct http_req *q, const struct api_who *who);
void api_delete_response(struct api *a, struct http_req *q, const struct api_who *who);
void api_cancel_response(struct api *a, struct http_req *q, const struct api_who *who);
void api_response_items(struct api *a, struct http_req *q, const struct api_who *who);
void api_messages(struct api *a, struct http_req *q, const struct api_who *who);
void api_count_tokens(struct api *a, struct http_req *q, const struct api_who *who);
/* Ollama's /api/... */
void api_ollama_chat(struct api *a, struct http_req *q, const struct api_who *who);
void api_ollama_generate(struct api *a, struct http_req *q, const struct api_who *who);
void api_ollama_embed(struct api *a, struct http_req *q, const struct api_who *who);
void api_ollama_tags(struct api *a, struct http_req *q, const struct api_who *who);
void api_ollama_ps(struct api *a, struct http_req *q, const struct api_who *who);
void api_ollama_show(struct api *a, struct http_req *q, const struct api_who *who);
void api_ollama_version(struct api *a, struct http_req *q, const struct api_who *who);
/* The body of /api/pull, which is the server's: name is borrowed from it. */
int api_read_pull(const json_t *body, struct str *name, bool *stream, struct err *e);
void api_ollama_delete(struct api *a, struct http_req *q, const struct api_who *who);
void api_ollama_copy(struct api *a, struct http_req *q, const struct api_who *who);
/* llama-server's own */
void api_native_completion(struct api *a, struct http_req *q, const struct api_who *who);
void api_infill(struct api *a, struct http_req *q, const struct api_who *who);
void api_count_chat(struct api *a, struct http_req *q, const struct api_who *who);
void api_apply_template(struct api *a, struct http_req *q, const struct api_who *who);
void api_props(struct api *a, struct http_req *q, const struct api_who *who);
void api_slots(struct api *a, struct http_req *q, const struct api_who *who);
void api_embeddings(struct api *a, struct http_req *q, const struct api_who *who);
void api_classify(struct api *a, struct http_req *q, const struct api_who *who);
void api_rerank(struct api *a, struct http_req *q, const struct api_who *who);
void api_models(struct api *a, struct http_req *q, const struct api_who *who); /* the list */
void api_model(struct api *a, struct http_req *q, const struct api_who *who);  /* /v1/models/{id} */
/* llama-server's /models/load and /models/unload, LM Studio's forms of them, vLLM's sleep */
void api_load(struct api *a, struct http_req *q, const struct api_who *who);
void api_unload(struct api *a, struct http_req *q, const struct api_who *who);
void api_verify(struct api *a, struct http_req *q, const struct api_who *who); /* /models/verify */
void api_list_instances(struct api *a, struct http_req *q, const struct api_who *who);
void api_load_instance(struct api *a, struct http_req *q, const struct api_who *who);
void api_unload_instance(struct api *a, struct http_req *q, const struct api_who *who);
void api_sleep(struct api *a, struct http_req *q, const struct api_who *who);
void api_wake_up(struct api *a, struct http_req *q, const struct api_who *who);
void api_is_sleeping(struct api *a, struct http_req *q, const struct api_who *who);
void api_models_sse(struct api *a, struct http_req *q, const struct api_who *who);
void api_tokenize(struct api *a, struct http_req *q, const struct api_who *who);
void api_detokenize(struct api *a, struct http_req *q, const struct api_who *who);
/* /v1/requests/{id}/cancel and /cancel */
void api_cancel(struct api *a, struct http_req *q, const struct api_who *who);
/* A chat if the body has messages, else a text completion: /v2/execute */
void api_execute(struct api *a, struct http_req *q, const struct api_who *who);
#endif
