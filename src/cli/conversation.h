/* conversation.h - the messages of a talk: grow, drop the oldest, keep on disk as JSON. */
#ifndef TERN_CLI_CONVERSATION_H
#define TERN_CLI_CONVERSATION_H

#include "base/err.h"
#include "tern.h"

#include <stdbool.h>

struct talk {
    tern_message *msgs; /* strings are the talk's own */
    size_t n, cap;
};

void talk_release(struct talk *t); /* a zeroed talk is fine */
void talk_add(struct talk *t, const char *role, const char *content);
void talk_pop(struct talk *t); /* the last message */
/* Drops the oldest question and its answer, never the system message nor the last message.
 * How many messages went; 0: nothing can go. */
size_t talk_drop_oldest(struct talk *t);
/* Everything but the system message. */
void talk_clear(struct talk *t);
void talk_set_system(struct talk *t, const char *text); /* empty: none */

/* [{"role": ..., "content": ...}, ...]; mode 600. */
int talk_save(const struct talk *t, const char *path, struct err *e);
int talk_load(struct talk *t, const char *path, struct err *e); /* replaces what is there */
#endif
