/* conversation.h - the messages of a chat: append, drop the oldest, save and load as JSON.
 *
 * A conversation owns its strings. Without memory a function returns false or E_NOMEM and leaves
 * the conversation as it was. */
#ifndef TERN_CLI_CONVERSATION_H
#define TERN_CLI_CONVERSATION_H

#include "base/err.h"
#include "tern.h"

#include <stdbool.h>

struct conversation {
    tern_message *msgs; /* a system message, if there is one, is the first */
    size_t n, cap;
};

void conversation_release(struct conversation *c); /* a zeroed one is fine */
bool conversation_add(struct conversation *c, const char *role, const char *content);
void conversation_pop(struct conversation *c); /* removes the last message */
/* Removes the oldest question with its answer, never the system message nor the last message.
 * Returns the number of messages removed; 0: none can be. */
size_t conversation_drop_oldest(struct conversation *c);
void conversation_clear(struct conversation *c); /* all but the system message */
bool conversation_set_system(struct conversation *c, const char *text); /* "": no system message */

/* [{"role": ..., "content": ...}, ...]; the file has mode 600. */
int conversation_save(const struct conversation *c, const char *path, struct err *e);
/* Replaces the messages by those of the file. */
int conversation_load(struct conversation *c, const char *path, struct err *e);
#endif
