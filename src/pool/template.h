/* template.h - the chat template of a model, ready to render. */
#ifndef TERN_POOL_TEMPLATE_H
#define TERN_POOL_TEMPLATE_H

#include "jinja/chattemplate.h"
#include "token/tokenizer.h"

/* The one the model carries, or that of `file` (NULL or "": none) in its place. A file that is
 * wrong is an error; a model without a template, or with one that tern cannot read, gives OK and
 * *out NULL (and, for the latter, a line in the log): its chat form is then guessed. */
int template_open(struct chat_template **out, const struct tokenizer *t, const char *file,
                  struct err *e);

/* Adds the ids of a rendered talk to out: special tokens are matched, none is added. */
int template_encode(const struct chat_template *c, const struct tokenizer *t,
                    const struct chat_template_input *ask, struct ids *out, struct err *e);
#endif
