/* reply.h - bodies and stream chunks, as OpenAI's clients read them.
 *
 * What every chunk of a reply begins with is rendered once; a chunk is then a few appends to the
 * caller's buf. Nothing here knows of sockets or engines. */
#ifndef TERN_API_REPLY_H
#define TERN_API_REPLY_H

#include "base/buf.h"
#include "engine/outbox.h"

/* The bytes of a token; they live until the next call. */
typedef struct str piece_fn(void *arg, int32_t id);

struct reply {
    bool chat;
    bool usage; /* a stream that ends with usage: every other chunk says null */
    const char *id, *model, *fingerprint; /* borrowed */
    int64_t created;                      /* seconds since 1970 */
    piece_fn *piece;                      /* only for logprobs */
    void *arg;
    struct buf head; /* "{...,"choices":[" of a chunk; reply_begin */
};

/* Log probabilities of some tokens, rendered. Chat has one list, completions four. */
struct logprobs {
    struct buf list[4];
    int n;
};

struct usage {
    int prompt, completion, cached;
    double queue_ms, prefill_ms, decode_ms;
};

/* What a chat's message holds beside its text. */
struct reply_parts {
    struct str text, think; /* think empty: none */
    struct str calls; /* rendered by reply_open_call and reply_close_call, with commas between;
                         empty: none */
};

void reply_begin(struct reply *y);   /* renders the head; the rest is filled in */
void reply_release(struct reply *y); /* a zeroed one is fine */

void logprobs_clear(struct logprobs *l);
void logprobs_release(struct logprobs *l);
/* The token of ev, whose text stands behind `offset` characters of the answer. */
void logprobs_add(struct logprobs *l, struct reply *y, const struct event *ev, size_t offset);

/* Chunks, without "data: " and newlines. lp NULL: "logprobs":null. */
void reply_role(const struct reply *y, struct buf *out, int index); /* chat's first */
void reply_delta(const struct reply *y, struct buf *out, int index, struct str text,
                 const struct logprobs *lp);
void reply_think(const struct reply *y, struct buf *out, int index, struct str text);
/* The k-th call of an answer begins; then its arguments, piece by piece. */
void reply_call(const struct reply *y, struct buf *out, int index, int k, struct str id,
                struct str name);
void reply_args(const struct reply *y, struct buf *out, int index, int k, struct str piece);
void reply_finish(const struct reply *y, struct buf *out, int index, const char *finish);
void reply_usage(const struct reply *y, struct buf *out, const struct usage *u);

/* The whole: open, a choice each, close. */
void reply_open(const struct reply *y, struct buf *out);
void reply_choice(const struct reply *y, struct buf *out, int index, struct str text,
                  const struct logprobs *lp, const char *finish);
void reply_message(const struct reply *y, struct buf *out, int index,
                   const struct reply_parts *parts, const struct logprobs *lp, const char *finish);
/* {"id":...,"type":"function","function":{...}}, up to its arguments and to its end; k below 0: no
 * index in it. */
void reply_open_call(struct buf *out, int k, struct str id, struct str name);
void reply_close_call(struct buf *out, struct str args);
void reply_close(const struct reply *y, struct buf *out, const struct usage *u);
#endif
