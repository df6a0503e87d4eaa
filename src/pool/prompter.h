/* prompter.h - messages and tools → prompt: the one path, for tern.h, the command line and the
 * server.
 *
 * A prompter renders the chat template of a model (src/jinja) or, where the model has none that can
 * be used, the form it is recognised to have (chatform.h). It is opened once per model and
 * immutable afterwards: any number of threads may use it. */
#ifndef TERN_POOL_PROMPTER_H
#define TERN_POOL_PROMPTER_H

#include "pool/chatform.h"

#include <jansson.h>
#include <stdatomic.h>

struct prompter;

/* file: a template to use instead of the model's own; NULL or "": none. A file that is wrong is an
 * error. A template of the model that cannot be parsed is a warning in the log: the model then uses
 * its form. The tokenizer is borrowed. */
int prompter_open(struct prompter **out, const struct tokenizer *t, const char *file,
                  struct err *e);
void prompter_close(struct prompter *p); /* NULL is allowed */

/* All JSON is borrowed. */
struct prompt_input {
    const struct chat_msg *msgs; /* [n_msgs] roles and texts */
    size_t n_msgs;
    const json_t *messages;    /* the same with tool calls and parts, as the API has them; NULL:
                                * made from msgs */
    const json_t *tools;       /* or NULL */
    const json_t *documents;   /* or NULL */
    const json_t *vars;        /* an object of more template variables; or NULL */
    bool no_generation_prompt; /* without the opening of the assistant's turn */
    bool continue_final;       /* the last message is continued: its end is left off */
    const atomic_int *stop;    /* set by any thread, not 0: E_CANCELLED; NULL: never */
    uint64_t deadline_ns;      /* of clock_ns: E_DEADLINE; 0: none */
    bool find_borders;         /* prompt_output.borders are wanted */
};

enum { PROMPT_BORDERS = 3 };

/* A zeroed one is empty. */
struct prompt_output {
    struct buf text;
    struct ids ids;
    /* Beginnings of ids that a later prompt of the conversation, or of another one with the same
     * system message and tools, has too, the shortest first: up to the first message that is not the
     * system's, up to the last message, and all but the end that templates write otherwise once there
     * is an answer. Some may be missing. */
    int borders[PROMPT_BORDERS], n_borders;
    char field[48];   /* after E_INVALID: the field of the request at fault, "messages[3].role" */
    bool by_template; /* after E_INVALID: the message has words of the template, and its lines */
};

/* Appends the prompt to out, as text and as ids. E_INVALID: the model cannot take this input. */
int prompter_make(const struct prompter *p, const struct prompt_input *in,
                  struct prompt_output *out, struct err *e);
void prompt_output_release(struct prompt_output *o);

/* Has the model a template or a recognised form? Otherwise a plain dialogue is written. */
bool prompter_knows_chat(const struct prompter *p);
/* The template that is used with or without tools; empty: there is none. */
struct str prompter_template(const struct prompter *p, bool tools);
bool prompter_takes_tools(const struct prompter *p); /* does the template mention tools? */
struct str prompter_stop(const struct prompter *p);  /* a stop string of its form; may be empty */
const char *prompter_name(const struct prompter *p); /* "template", or the form's name */

/* For `tern template`: renders a template with exactly these variables (an object, to which the
 * tokenizer's special tokens are added where they are missing). file NULL: the tokenizer's own
 * template, the one for tools if vars has some. t may be NULL with a file. */
int prompter_render_vars(const struct tokenizer *t, const char *file, json_t *vars, struct buf *out,
                         struct err *e);
#endif
