/* chattemplate.h - messages and tools → prompt, by the template a model carries.
 *
 * Opened once for a model: the templates are parsed, and tried out to see what they take (contents
 * as texts or as lists of parts, arguments of tool calls as objects or as texts). Immutable
 * afterwards: any number of threads may render. */
#ifndef TERN_JINJA_CHATTEMPLATE_H
#define TERN_JINJA_CHATTEMPLATE_H

#include "jinja/jinja.h"

struct chat_template;

struct chat_template_source {
    struct str text;               /* the template */
    struct str tools;              /* another one for talks with tools; empty: the same */
    struct str bos, eos, unk, pad; /* special tokens by name; p NULL: none */
    const char *name;              /* in errors; NULL is fine */
};

/* E_NOTFOUND: there is no template in it. */
int chat_template_open(struct chat_template **out, const struct chat_template_source *src,
                       struct err *e);
void chat_template_close(struct chat_template *c); /* NULL is fine */

struct chat_template_input {
    const json_t *messages;    /* as the API has them: role, content, tool_calls, ... */
    const json_t *tools;       /* or NULL */
    const json_t *documents;   /* or NULL */
    const json_t *kwargs;      /* an object of more variables, over all others; or NULL */
    bool no_generation_prompt; /* no opening of the assistant's turn */
    bool continue_final;       /* the last message is not over: its end is left off */
};

/* Adds the prompt to out. What the template does not take is E_INVALID, with its own words. */
int chat_template_render(const struct chat_template *c, const struct chat_template_input *ask,
                         struct buf *out, struct err *e);

struct str chat_template_text(const struct chat_template *c,
                              bool tools);                     /* the template that would be used */
bool chat_template_takes_tools(const struct chat_template *c); /* it has a place for them */
#endif
