/* call.h - one HTTP request on its way through the API. Private to src/api.
 *
 * A handler opens a call. It ends (call_end_if_done) when its HTTP request was answered and the
 * last event of every choice was read; opt.ended is called, and the call is freed. Functions that
 * may end a call say so; a caller that goes on using the call raises `holds` meanwhile. */
#ifndef TERN_API_CALL_H
#define TERN_API_CALL_H

#include "api/api_impl.h"
#include "api/forward.h"
#include "api/params.h"
#include "api/reply.h"
#include "base/arena.h"
#include "base/buf.h"
#include "base/workers.h"
#include "engine/request.h"
#include "engine/yesno.h"
#include "pool/pool.h"
#include "token/tokenizer.h"

struct dialect;
struct grammar;
struct toolfamily;
struct reasoning_format;

#define SHOWN_MAX 32
#define CALL_ITEMS_PER_LOOK 1000

/* How the text of an answer is split into text, reasoning and tool calls. */
struct parsing {
    bool on;
    bool forced; /* a grammar forces a tool call */
    const struct toolfamily *calls;
    const struct reasoning_format *think;
    struct str prompt_end;    /* last bytes of the prompt, in the arena */
    int32_t shown[SHOWN_MAX]; /* special tokens whose text the parser needs to see */
    int n_shown;
};

/* Why a call that is away should come back early. */
enum stop { STOP_NO, STOP_GONE, STOP_DEADLINE, STOP_ASKED, STOP_SHUTDOWN };

/* The two halves of a call's work (prepare.c): `work` runs on a request thread, `then` on the loop
 * after it. An error of either becomes the response. A work that finds its model not loaded is run
 * once more when it is: what it did until then is skipped (call_read_body). */
struct call_job {
    int (*work)(struct call *c, struct err *e); /* on the request thread; NULL: nothing */
    int (*then)(struct call *c, struct err *e); /* on the loop, after OK */
};

struct call {
    struct api *api;
    struct call *prev, *next;
    struct http_req *q; /* NULL: answered */
    struct api_who who; /* name: in the arena */
    struct arena arena;
    struct params p;
    char id[ID_BYTES]; /* "chatcmpl-..." */
    const char *route; /* a literal */
    const char *peer;
    struct pool_instance *model; /* a reference; NULL: not found yet */
    const char *model_id;        /* the model's; "": none */
    int cold;       /* a model that is not loaded, and that it must wait for; -1: none */
    bool waits;     /* the loop's: the pool has `wait`; the call is away, too */
    bool body_read; /* what call_read_body does before it looks for the model is done */
    struct pool_wait wait;
    struct reply reply;
    struct pieces pieces; /* texts of tokens, for logprobs */
    char fingerprint[24];
    struct choice **choices;  /* [n_choices] submitted so far */
    int n_choices, n_running; /* n_running: those whose last event was not read */
    struct parsing parsing;
    struct grammar *grammar;       /* shared by all choices; NULL: none */
    struct compile_job *compiling; /* compiles the grammar; the requests wait meanwhile */
    struct request **requests;     /* [n_requests] made by the thread; NULL: submitted */
    int n_requests;
    int n_prompts;
    int *prompt_tokens; /* [n_prompts] */

    /* embeddings, classify and rerank: every input is a choice; those after n_choices are still to submit */
    bool wants_vector;
    struct ids *inputs;   /* [n_prompts] */
    struct ticket ticket; /* of all inputs together */
    int *second_at;       /* [n_prompts] classify: where the second text begins; NULL: embeddings */
    int n_vec;            /* numbers of a vector: dimensions, classes, or logits */
    struct yesno yesno;   /* rerank: n > 0: the model answers a question about each document */

    /* request threads: prepare.c */
    struct work work;
    struct workers *lane; /* that it was given to last */
    const struct call_job *job;
    bool away; /* the loop's: a request thread has it */
    int job_rc;
    struct err job_err;
    struct call *next_ready;
    const struct dialect *dialect; /* of its route */
    json_t *source; /* the body as parsed, while it is translated; NULL: it was not, or is done */
    void *state;    /* the dialect's own, in the arena */
    bool local;     /* is about no model: never forwarded */
    bool missing;   /* what it asks for is not there */
    bool any_tools; /* tools are written into the messages: anytools.h */
    bool keeps_prompt; /* prompt_text is set: the prompt of a chat, in the arena */
    struct str prompt_text;
    struct buf skipped; /* types of tools and items that were skipped, separated by ", " */
    int n_events;       /* the dialect's: events of the stream so far */
    int64_t n_items;    /* of the body, that were read so far */
    struct str body;    /* of the HTTP request, borrowed; empty once it was read */
    size_t body_bytes;
    char
        *kept; /* [n_kept] a copy of the body, of a request that becomes a job; NULL: it does not */
    size_t n_kept;
    bool is_job; /* opt.keep has its HTTP request */
    struct {     /* headers, borrowed; p NULL: absent */
        struct str deadline, timeout, priority;
        bool no_load; /* ?autoload=false: a model that is not loaded is an error */
    } head;
    uint64_t head_deadline_ns; /* as the headers say; 0: none */

    uint64_t deadline_ns; /* clock_ns; 0: none */
    int priority;
    struct buf out;       /* stream chunks to send, or the body; reused */
    bool head_sent;       /* the stream has begun */
    char stream_type[40]; /* of a forwarded call: its content type */
    bool watches;         /* a stream of the states of models (watchers.c) */
    int next_model; /* of /sleep, /wake_up and /models/sse: where they look for the next model; of
                     * /api/delete and /api/show: the model */
    bool gone;      /* the connection closed before the answer was complete */
    int holds;      /* functions that work on the call: it is not freed meanwhile */
    int status;     /* sent */
    char code[32];  /* of the error sent */
    char gone_reason[24];
    uint64_t start_ns, first_ns, last_ns; /* arrival; first and last bytes of the answer */
    uint64_t open_ns;                     /* the request was read */
    struct str prompt_log;
    struct forward fw;
    int borders[REQUEST_BORDERS], n_borders; /* of the prompt of a chat: request.borders */
    struct ids resume;    /* tokens that the client has: the answer continues behind them */
    struct ids new_ids;   /* tokens since the last flush, for a gateway */
    struct ids token_ids; /* of the answer, with dialect.token_ids */
    size_t n_ids_sent;    /* of them */
};

/* ---- call.c ---- */
/* NULL: no memory; q was answered and opt.ended was called. route: a literal. */
struct call *call_open(struct api *a, struct http_req *q, const struct api_who *who,
                       const char *route);
void call_make_id(struct call *c, const char *prefix); /* "chatcmpl" */
/* Borrows body and headers of the HTTP request, for a request thread. */
void call_borrow_request(struct call *c);
/* Reads headers and body and finds the model. E_LOADING with c->cold: the job is done again when the
 * model is loaded. */
int call_read_body(struct call *c, enum body_kind kind, struct err *e);
/* E_CONTEXT for long texts that cannot fit into the context, found by tokenizing only their
 * beginning: no time is spent on all of their tokens. param: their field. */
int call_check_length(struct call *c, const struct str *texts, int n, const char *param,
                      struct err *e);
/* Records the field an error is about, for the envelope. */
void call_blame(struct call *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Something that the server cannot run, and that agents send all the same: it is left out, which the log
 * tells once for each type. On a request thread. */
void call_note_skipped(struct call *c, struct str type);
/* Sends c->out as the whole answer: a JSON body, or 503 if it is incomplete for want of memory. */
void call_send_body(struct call *c, int status);
/* Answers with an error: its status, or an error event in a stream that has begun. Cancels the
 * choices that run. */
void call_fail(struct call *c, const struct err *e, const char *param);
void call_fail_status(struct call *c, int status, const char *code, const char *msg);
bool call_cancel_choices(struct call *c, int why); /* enum cancel; true: some were running */
void call_note_gone(struct call *c);               /* the connection closed: cancels */
void call_end_handler(struct call *c); /* the handler is done with c, which may end here */
void call_end_if_done(struct call *c); /* c may end here */

/* ---- prepare.c ---- */
/* Opens a call and gives it to a request thread. */
void call_begin(struct api *a, struct http_req *q, const struct api_who *who, const char *route,
                const struct call_job *job);
void call_begin_as(struct api *a, struct http_req *q, const struct api_who *who, const char *route,
                   const struct call_job *job, const struct dialect *d);
/* bytes: what it has to do, as a size of its input or output. bounded: may be refused with
 * E_QUEUE_FULL. On an error the call stays with the loop. */
int call_hand_over(struct call *c, const struct call_job *job, size_t bytes, bool bounded,
                   struct err *e);
/* Loads model i, or unloads it, and then calls job->then on the loop, with a reference to a loaded one
 * in c->model. The call is away meanwhile. For the loop; c may end here. */
void call_load(struct call *c, int i, const struct call_job *job);
void call_unload(struct call *c, int i, bool sleep, const struct call_job *job);
/* For the thread: OK, E_CANCELLED if the call should come back, or E_DEADLINE. */
int call_check_stop(const struct call *c, struct err *e);
bool call_is_stopped(const struct call *c);
/* For the thread, at each item of a body that it reads (a message, a part, a tool call): looks as
 * call_check_stop does, once in CALL_ITEMS_PER_LOOK of them. */
int call_note_item(struct call *c, struct err *e);
/* For the loop: false if the call is not away; otherwise it will be, or has been, answered with the
 * error of that reason. c may end here. */
bool call_stop(struct call *c, enum stop why);
void call_note_gone_away(struct call *c); /* the client of a call that may be away is gone */
/* Frees a parsed body of so many bytes, a large one on a request thread. */
void prepare_free_json(struct api *a, uint32_t tenant, size_t bytes, json_t *root);

/* ---- handoff.c ---- */
/* On a request thread: sets c->kept if the body says "durable": true. */
int call_find_durable(struct call *c, struct err *e);
void call_hand_to_jobs(struct call *c); /* on the loop: c->kept and the HTTP request */

/* ---- forward.c ---- */
/* On a request thread: takes the call for another process, if its model runs there. */
bool forward_claims(struct call *c);
/* On a request thread: the model's process has died; true: the call waits for the next one. */
bool forward_can_wait(struct call *c, const struct err *e);
/* On the loop: with c->model, or waits for it. */
int forward_start(struct call *c, struct err *e);
bool forward_is_under_way(const struct call *c);
bool forward_cancel(struct call *c, enum forward_why why); /* false: there was nothing to cancel */
void forward_drop(struct call *c);
void forward_fill_end(const struct call *c, struct api_end *out);
void forward_on_retry(void *arg);

/* ---- responses_get.c ---- */
/* A forwarded call of /v1/responses was answered: its process may have stored the response. */
void responses_note_owner(const struct call *c);
void responses_forget_owners(struct api *a);

/* ---- cancel.c ---- */
/* Cancels calls with this id, or correlation id, but self; true: there were some. */
bool api_cancel_running(struct api *a, struct str id, const struct api_who *who,
                        const struct call *self);

/* ---- chat.c, completions.c: on a request thread, after call_read_body ---- */
int call_prepare_chat(struct call *c, struct err *e);
int call_prepare_text(struct call *c, struct err *e);
int call_prepare_infill(struct call *c, struct err *e); /* infill.c: p.prompts[0], p.suffix */

/* ---- submit.c ---- */
/* On a request thread: makes p.n requests for each prompt. stop: one more stop string; may be empty. */
int call_make_requests(struct call *c, const struct ids *prompts, int n, struct str stop,
                       struct err *e);
/* Checks c->inputs [n] on a request thread, for call_submit_inputs. */
int call_check_inputs(struct call *c, int n, struct err *e);
/* Submits the requests, at once or after the grammar is compiled. */
int call_submit(struct call *c, struct err *e);
/* Submits c->inputs with one place in the queue: the first few now, and when one ends the next. */
int call_submit_inputs(struct call *c, struct err *e);
/* OK also if the engine is full now (others of c run), or no input is left. */
int call_submit_next_inputs(struct call *c, struct err *e);
void call_release_requests(struct call *c); /* that are not submitted; its grammar, too */

/* ---- respond.c ---- */
/* Chunks are collected in c->out, the last one open; a flush sends all in one write. */
void respond_begin_chunk(struct call *c);                   /* an event, or a line of JSON */
void respond_begin_event(struct call *c, const char *name); /* with an "event:" line */
bool respond_send_head(struct call *c); /* once; false: no memory, and nothing was sent */
void respond_flush(struct call *c);
void call_send_ping(struct call *c, uint64_t now_ns); /* c may end here */

/* ---- models.c ---- */
struct jsonw;
/* In the words of llama-server: "loaded". */
const char *models_status_name(enum pool_state s);

/* ---- inputs.c, embeddings.c, classify.c, rerank.c ---- */
/* A body of texts, each submitted as a request of its own. */
struct inputs_kind {
    const char *verb, *field; /* literals: "embed", "input" */
    enum body_kind kind;
    bool pairs; /* an input may be a pair of texts */
    /* Checks the model before anything is tokenized, and sets n_vec. */
    int (*check)(struct call *c, struct err *e);
};
/* On a request thread: from the body to inputs. */
int inputs_prepare(struct call *c, const struct inputs_kind *kind, struct err *e);
/* Every vector is there: sends the answer, written on a request thread if it is large. */
void inputs_send(struct call *c);
int embeddings_prepare(struct call *c, struct err *e);          /* on a request thread */
int embeddings_write(struct call *c, struct err *e);            /* into c->out */
void embeddings_append(struct call *c, int i, struct buf *out); /* the vector of input i */
int classify_write(struct call *c, struct err *e);
int rerank_write(struct call *c, struct err *e);
#endif
