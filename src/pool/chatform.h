/* chatform.h - chat prompts for models whose template tern cannot use: a few known forms.
 *
 * The form is recognised from the text of the chat template the model carries or, without one, from
 * the names of its special tokens. Special tokens of the form become their ids; what users wrote is
 * always encoded as text, so a message cannot contain the end of a turn. Used by prompter.c only. */
#ifndef TERN_POOL_CHATFORM_H
#define TERN_POOL_CHATFORM_H

#include "token/tokenizer.h"

enum chat_form {
    CHAT_NONE,    /* no template; encoding goes by special tokens, else CHAT_PLAIN */
    CHAT_PLAIN,   /* "User: ...\nAssistant:" */
    CHAT_ROLES,   /* <|user|>\n...<|end|>\n: tern-tales, Phi-3 */
    CHAT_ZEPHYR,  /* <|user|>\n...</s>\n: zephyr, TinyLlama */
    CHAT_CHATML,  /* <|im_start|>user\n...<|im_end|>\n */
    CHAT_LLAMA2,  /* [INST] <<SYS>>...<</SYS>> ... [/INST] */
    CHAT_LLAMA3,  /* <|start_header_id|>user<|end_header_id|>\n\n...<|eot_id|> */
    CHAT_MISTRAL, /* [INST] ... [/INST] */
    CHAT_GEMMA    /* <start_of_turn>user\n...<end_of_turn>\n */
};

struct chat_msg {
    struct str role, content; /* role: "system", "user", "assistant" */
};

enum chat_form chatform_of(const struct tokenizer *t);
const char *chatform_name(enum chat_form f); /* "none", "plain", "chatml", ... */
/* A text that ends the assistant's turn; empty: a token does. */
struct str chatform_stop(enum chat_form f);
/* Does the form write the system message into the first user message, so that a system message can
 * only be the first one? */
bool chatform_system_first(enum chat_form f);

/* Appends the conversation and the opening of the assistant's turn: to text, special tokens by
 * their names, and to ids. Unknown roles are E_INVALID. Either output may be NULL. */
int chatform_write(enum chat_form f, const struct tokenizer *t, const struct chat_msg *msgs,
                   size_t n, struct buf *text, struct ids *ids, struct err *e);
#endif
