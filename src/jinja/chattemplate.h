/* chattemplate.h - messages and tools to a prompt, by the chat template of a model.
 *
 * Templates of models differ in the shape of messages they understand: contents as strings or as
 * lists of parts, arguments of tool calls as objects or as JSON text. chat_template_open renders
 * each template over small probe conversations to find out, and chat_template_render converts the
 * messages of a request accordingly. So one request works with every model.
 *
 * Variables are those of transformers' apply_chat_template: messages, tools, documents (None where
 * absent), add_generation_prompt, the special tokens, and the caller's chat_template_kwargs.
 *
 * A struct chat_template is immutable: any number of threads may render it. */
#ifndef TERN_JINJA_CHATTEMPLATE_H
#define TERN_JINJA_CHATTEMPLATE_H

#include "jinja/jinja.h"

struct chat_template;

struct chat_template_source {      /* borrowed: copied by chat_template_open */
    struct str text;               /* the template */
    struct str tools;              /* another one for requests with tools; empty: the same */
    struct str bos, eos, unk, pad; /* texts of special tokens; p NULL: the model has none */
    const char *name;              /* in error messages; NULL: "chat template" */
};

/* E_NOTFOUND: the text is empty. E_FORMAT, E_UNSUPPORTED: it cannot be parsed. */
int chat_template_open(struct chat_template **out, const struct chat_template_source *src,
                       struct err *e);
void chat_template_close(struct chat_template *c); /* NULL is allowed */

struct chat_template_input {
    const json_t *messages;    /* an array as in the API: role, content, tool_calls, ... */
    const json_t *tools;       /* NULL: none */
    const json_t *documents;   /* NULL: none */
    const json_t *kwargs;      /* an object of variables that override all others; NULL: none */
    bool no_generation_prompt; /* do not end with the beginning of an assistant message */
    bool continue_final;       /* transformers' continue_final_message: the last message is not
                                * finished, so the prompt ends with its last character */
    const struct jinja_limits *limits; /* of each rendering; NULL: the defaults */
};

/* Appends the prompt to out. E_INVALID: the template cannot render these messages; the message is
 * that of the template. E_CANCELLED, E_DEADLINE: the limits ended it. E_NOMEM: out of memory. On an
 * error out keeps its old bytes. */
int chat_template_render(const struct chat_template *c, const struct chat_template_input *in,
                         struct buf *out, struct err *e);

/* The source of the template that requests with or without tools use. */
struct str chat_template_text(const struct chat_template *c, bool tools);
bool chat_template_takes_tools(const struct chat_template *c); /* it reads the variable tools */
#endif
