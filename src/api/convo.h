/* convo.h - the conversation that every protocol is translated into: the body of a chat completion.
 *
 * Messages have parts: text, reasoning, tool calls; a tool's result is a message of its own. A reader
 * of a protocol adds these in order, and the builder makes the messages: parts of one assistant's turn
 * that follow each other become one message. The time is proportional to the bytes that are added.
 * Nothing here reports a failure: convo_take does, once. */
#ifndef TERN_API_CONVO_H
#define TERN_API_CONVO_H

#include "api/body.h"
#include "base/buf.h"
#include "base/map.h"

struct convo {
    json_t *messages;         /* an array; NULL: none yet, or no memory */
    json_t *open;             /* the assistant's message that may get more parts; borrowed */
    struct buf text, thought; /* of the open message: its members when it has calls, or ends */
    struct map calls;         /* ids of calls → their functions, all borrowed from messages */
    bool failed;              /* no memory */
};

/* A message of role system, developer, user or assistant with a text. */
void convo_add_text(struct convo *v, struct str role, struct str text);
void convo_add_reasoning(struct convo *v, struct str text);
/* args: the arguments as JSON text. */
void convo_add_call(struct convo *v, struct str id, struct str name, struct str args);
/* name: of the tool; empty: that of the call with this id, if there is one. */
void convo_add_result(struct convo *v, struct str id, struct str name, struct str text);
/* All messages of another conversation, a JSON array of them. */
void convo_add_messages(struct convo *v, const json_t *messages);
void convo_end_turn(struct convo *v); /* the next part of an assistant begins a message */
size_t convo_count(const struct convo *v);
/* Hands the messages over to the caller; E_NOMEM: they are incomplete, and freed. */
int convo_take(struct convo *v, json_t **out, struct err *e);
void convo_release(struct convo *v); /* a zeroed one is allowed */

/* Sets a member; takes over value. false: no memory (also of value). */
bool convo_set(json_t *obj, const char *key, json_t *value);
json_t *convo_string(struct str s); /* NULL: no memory */
/* {"type":"function","function":{...}}; parameters may be NULL, strict: borrowed or NULL. */
json_t *convo_tool(struct str name, const json_t *description, const json_t *parameters,
                   const json_t *strict);
#endif
