/* dialect.h - one protocol of the API: how its bodies are read, and how its answers are written.
 *
 *     body ─► translate ─► conversation (the body of a chat completion) ─► params, prompt, engine
 *     engine ─► respond.c: parts of the answer ─► begin, open_part, add_part, ... ─► stream
 *                                             └─► write_body ─► body
 *
 * The conversation that all protocols share is the body of POST /v1/chat/completions as JSON
 * (convo.h): a protocol's reader translates its own body into it, so that checks, sampling, tools,
 * grammars and templates are the same for all. Functions of a dialect append to call.out and report no
 * errors: the buffer remembers a failed allocation. All of them run on the loop, except translate. */
#ifndef TERN_API_DIALECT_H
#define TERN_API_DIALECT_H

#include "base/err.h"

#include <jansson.h>

struct call;
struct choice;
struct fail;
struct part;
struct str;
struct usage;

struct dialect {
    const char *id_prefix; /* of ids of calls, with its separator; NULL: by the route */
    bool ndjson;           /* a stream is a JSON object per line; false: server-sent events */
    bool keeps;            /* parts are kept while they are streamed */
    bool token_ids;        /* log probabilities have ids, and those of the answer are kept */

    /* NULL: bodies are conversations. On a request thread: *out is the conversation for the body
     * c->source. An error names the field of the protocol (call_blame). */
    int (*translate)(struct call *c, json_t **out, struct err *e);
    /* A stream: */
    void (*begin)(struct choice *ch);
    void (*open_part)(struct choice *ch, const struct part *p);
    void (*add_part)(struct choice *ch, const struct part *p, struct str piece);
    void (*close_part)(struct choice *ch, const struct part *p); /* NULL: nothing is written */
    void (*finish)(struct choice *ch, const char *reason);       /* of one choice; NULL: nothing */
    void (*end)(struct call *c, const struct usage *u);
    void (*fail)(struct call *c, const struct fail *f, const char *msg, const char *param);
    void (*ping)(struct call *c); /* NULL: none, or the comment of server-sent events */
    /* An answer that is not streamed. */
    void (*write_body)(struct call *c, const struct usage *u);
    /* Replies with embeddings; NULL: OpenAI's. On a request thread, or on the loop. */
    void (*write_vectors)(struct call *c);
};

extern const struct dialect dialect_openai;
#endif
