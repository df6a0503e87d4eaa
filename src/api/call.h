/* call.h - one HTTP request on its way through the API, and the API that holds them all.
 *
 * A call is opened by a handler, and ends when its HTTP request was answered and the last event of
 * every choice was read: call_settle then tells opt.ended and frees it. All of it is the loop's.
 *
 * A choice is one engine request. Engines hold its address in request.owner and may tell of news
 * a moment after the last event was read; so choices are never freed, only used again, and one that
 * has another request by then is left alone. */
#ifndef TERN_API_CALL_H
#define TERN_API_CALL_H

#include "api/api.h"
#include "api/params.h"
#include "token/tokenizer.h"
#include "api/reply.h"
#include "toolcall/toolparse.h"
#include "base/chan.h"

#include <pthread.h>

#define ID_BYTES 48
#define SHOWN_MAX 32

struct choice {
    struct api *api;           /* set once */
    struct choice *all, *free; /* lists of the api */
    struct call *call;
    struct request *r; /* NULL: not submitted, or its last event was read */
    int index, prompt;
    bool begun;              /* streams: its first chunk is out */
    struct buf text;         /* whole replies */
    struct toolparse parse;  /* with call.parsing.on */
    struct buf think, calls; /* whole replies: reasoning; calls, rendered */
    struct buf args;         /* of the last of them, which is still open */
    int n_calls;
    bool skips; /* one call was wanted, and this is another */
    struct logprobs lp;
    size_t n_chars; /* of text given out */
    int n_seen;     /* tokens read */
    /* of the request, when it is over */
    enum finish finish;
    float *vec; /* embeddings; from mem_alloc */
    int n_out, n_cached;
    double queue_ms, prefill_ms, decode_ms;
};

struct call {
    struct api *api;
    struct call *prev, *next;
    struct http_req *q; /* NULL: answered */
    struct api_who who; /* name: in the arena */
    struct arena arena;
    struct params p;
    char id[ID_BYTES]; /* "chatcmpl-..." */
    const char *route, *peer;
    struct pool_model *model; /* NULL: not found yet, or gone with the pool */
    const char *model_id;     /* in the arena; "" */
    struct reply reply;
    struct pieces pieces;
    char fingerprint[24];
    struct choice **choices; /* [n_choices] */
    int n_choices, n_live;
    struct grammar *grammar; /* of all choices; NULL: none */
    struct compile_job *job; /* it is on its way; the prompts wait for it */
    struct ids *parked;      /* [n_prompts] */
    struct str parked_stop;
    int n_prompts;
    int *prompt_tokens; /* [n_prompts] */
    bool
        embed; /* embeddings are wanted, of inputs [n_prompts]; the first n_choices are submitted */
    struct ids *inputs;
    int *seconds; /* [n_prompts] of classify: where second texts begin; NULL: of embeddings */
    int n_embd;
    uint64_t deadline_ns;
    int priority;
    struct parsing { /* how answers are taken apart; on: they are */
        bool on;
        bool forced; /* a call must come */
        const struct tool_family *calls;
        const struct think_family *think;
        struct str prompt_end;    /* in the arena */
        int32_t shown[SHOWN_MAX]; /* special tokens it looks for */
        int n_shown;
    } parsing;
    struct buf out; /* stream chunks on their way, reused */
    bool head_sent, gone;
    int busy; /* inside: not to be freed now */
    /* for the end */
    int status;
    char code[32], gone_why[24];
    uint64_t start_ns, first_ns, last_ns; /* came; first bytes of the answer; last ones */
    struct str prompt_log;
};

struct past_call {
    char id[ID_BYTES], correlation[72];
    uint32_t tenant;
};

#define PAST_CALLS 256

struct api {
    struct api_opt opt; /* no zeros that mean a default */
    struct chan *news;  /* of requests, each with a reference */
    atomic_int missed;  /* the channel was full: look at all */
    pthread_mutex_t compiled_lock;
    struct compile_job *compiled; /* grammars that calls wait for */
    struct call *calls;
    int n_calls, n_live; /* choices in engines */
    struct choice *all, *free;
    struct loop_timer *ping;
    struct past_call past[PAST_CALLS];
    unsigned past_at;
};

/* route: a literal. */
struct call *call_open(struct api *a, struct http_req *q, const struct api_who *who,
                       const char *route);
/* Reads the body and finds its model. */
int call_read(struct call *c, enum body_kind kind, struct err *e);
/* Submits p.n choices for each of the n prompts, now or when their grammar is compiled; stop:
 * beside those of the body, may be empty, must stay. */
int call_submit(struct call *c, const struct ids *prompts, int n, struct str stop, struct err *e);
/* The same for embeddings, at_once of them; each that ends brings the next (call_submit_next). The
 * ids must stay. */
int call_submit_some(struct call *c, const struct ids *prompts, int n, int at_once, struct err *e);
int call_submit_next(struct call *c,
                     struct err *e); /* OK also if there is no room now, or nothing left */
/* Long texts that cannot fit are refused before the loop spends its time on all of their tokens:
 * E_CONTEXT. param: their field. */
int call_check_size(struct call *c, const struct str *texts, int n, const char *param,
                    struct err *e);
/* A body of texts, each a request of its own (inputs.c). */
struct inputs {
    const char *route, *verb; /* literals; "embed" */
    enum body_kind kind;
    bool pairs; /* a text may come with a second one */
    int (*check)(struct call *c,
                 struct err *e); /* the model, before anything is encoded; sets n_embd */
};
void inputs_call(struct api *a, struct http_req *q, const struct api_who *who,
                 const struct inputs *how);
/* Answers, whole; body is JSON. */
void call_reply(struct call *c, int status, struct str body);
/* Answers with an error: with its status, or into the stream that has begun. What runs is
 * cancelled. */
void call_fail(struct call *c, const struct err *e, const char *param);
void call_fail_as(struct call *c, int status, const char *code, const char *msg);
bool call_cancel(struct call *c, int why); /* enum cancel; true: there was something to */
void call_gone(struct call *c);            /* the client left */
void call_release(struct call *c);         /* the handler is through with it */
void call_settle(struct call *c);          /* if all is done, ends it: c is gone then */

/* The answer, from events (answer.c). */
void choice_drain(struct choice *ch); /* reads what is there; settles its call */
void call_ping(struct call *c, uint64_t now_ns);
/* Chunks pile up in `out`, the last one open; a flush is one write. */
void answer_open_chunk(struct call *c);
void answer_flush(struct call *c);
/* Before its request is submitted: its text is taken apart. */
void choice_parse(struct choice *ch);

/* Embeddings (embeddings.c): all are there. */
void embeddings_reply(struct call *c);
/* Classes (classify.c), likewise. */
void classify_reply(struct call *c);

/* Calls that wait for a grammar (submit.c). */
void api_compiled(struct api *a); /* those it came for go on */
void call_unpark(struct call *c); /* it waits no more */

/* Choices (api.c). */
struct choice *choice_get(struct api *a);
void choice_put(struct choice *ch);
void api_news(struct request *r); /* request.notify */
void api_remember(struct api *a, const struct call *c);
#endif
