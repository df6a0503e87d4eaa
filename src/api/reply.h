/* reply.h - JSON bodies and stream chunks of chat and text completions, as OpenAI's clients read
 * them.
 *
 * The beginning that all chunks of a reply share is rendered once; a chunk is then a few appends to
 * the caller's buf, which remembers a failed allocation. Nothing here knows of sockets or engines. */
#ifndef TERN_API_REPLY_H
#define TERN_API_REPLY_H

#include "base/buf.h"

struct event;

/* The bytes of a token, valid until the next call. */
typedef struct str piece_fn(void *arg, int32_t id);

struct reply {
    bool chat;  /* a chat completion; false: a text completion */
    bool ids;   /* log probabilities have the ids of tokens, and are as those of a chat */
    bool usage; /* the stream ends with a usage chunk: every other chunk has "usage":null */
    const char *id, *model, *fingerprint; /* borrowed */
    int64_t created;                      /* seconds since 1970 */
    piece_fn *piece;                      /* used for logprobs only */
    void *piece_arg;
    struct buf head; /* `{...,"choices":[` of a chunk, by reply_render_head */
};

/* Log probabilities of some tokens, rendered. A chat has one list; a text completion has four:
 * tokens, token_logprobs, top_logprobs, text_offset. */
enum { LOGPROB_LISTS = 4 };
struct logprobs {
    struct buf list[LOGPROB_LISTS];
    int n; /* tokens */
};

struct usage {
    int prompt, completion, cached; /* tokens */
    int reasoning;                  /* of the completion */
    double queue_ms, prefill_ms, decode_ms;
};

/* The parts of an assistant's message. */
struct reply_parts {
    struct str text;
    struct str reasoning;  /* empty: none */
    struct str tool_calls; /* by reply_open_tool_call and reply_close_tool_call, separated by
                              commas; empty: none */
};

void reply_render_head(struct reply *y); /* fills y->head from the other fields */
void reply_release(struct reply *y);     /* a zeroed one is allowed */

void logprobs_clear(struct logprobs *l);
void logprobs_release(struct logprobs *l);
bool logprobs_failed(const struct logprobs *l); /* an addition found no memory */
/* Adds the token of ev. offset: characters of the answer before its text. */
void logprobs_add(struct logprobs *l, struct reply *y, const struct event *ev, size_t offset);

/* Stream chunks of choice `index`, without "data: " and newlines. lp NULL: "logprobs":null. */
void reply_chunk_role(const struct reply *y, struct buf *out, int index); /* first one of a chat */
void reply_chunk_text(const struct reply *y, struct buf *out, int index, struct str text,
                      const struct logprobs *lp);
void reply_chunk_reasoning(const struct reply *y, struct buf *out, int index, struct str text);
/* Tool call k of the answer: first its id and name, then its arguments in pieces. */
void reply_chunk_tool_call(const struct reply *y, struct buf *out, int index, int k, struct str id,
                           struct str name);
void reply_chunk_tool_args(const struct reply *y, struct buf *out, int index, int k,
                           struct str piece);
void reply_chunk_finish(const struct reply *y, struct buf *out, int index, const char *finish);
void reply_chunk_usage(const struct reply *y, struct buf *out, const struct usage *u);

/* The body of a reply that is not streamed: open, one choice or more, close. */
void reply_open(const struct reply *y, struct buf *out);
void reply_add_choice(const struct reply *y, struct buf *out, int index,
                      const struct reply_parts *parts, const struct logprobs *lp,
                      const char *finish);
void reply_close(struct buf *out, const struct usage *u);

/* {"id":...,"type":"function","function":{"name":...,"arguments":...}}: everything before the
 * arguments, then the arguments and the end. k: index of the call in a stream; below 0: no index. */
void reply_open_tool_call(struct buf *out, int k, struct str id, struct str name);
void reply_close_tool_call(struct buf *out, struct str args);
#endif
