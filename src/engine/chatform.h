/* chatform.h - a talk as the token ids a model was trained on.
 *
 * The form is recognised from the chat template the model carries (or, where it carries none, from
 * the names of its special tokens). Special tokens of the form become their ids; what people wrote
 * is always text, so nobody can write a turn's end into a message. */
#ifndef TERN_ENGINE_CHATFORM_H
#define TERN_ENGINE_CHATFORM_H

#include "token/tokenizer.h"

enum chat_form {
    CHAT_NONE,    /* no template; encoding goes by special tokens, or takes CHAT_PLAIN */
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
    struct str role, content; /* "system", "user", "assistant" */
};

enum chat_form chatform_of(const struct tokenizer *t);
const char *chatform_name(enum chat_form f);
struct str chatform_stop(enum chat_form f); /* text that ends an answer; empty: tokens do */

/* Appends the talk and the opening of the assistant's turn. Unknown roles are E_INVALID. */
int chatform_encode(enum chat_form f, const struct tokenizer *t, const struct chat_msg *msgs,
                    size_t n, struct ids *out, struct err *e);
/* The same as text, special tokens by their names: to read and to test. */
int chatform_render(enum chat_form f, const struct tokenizer *t, const struct chat_msg *msgs,
                    size_t n, struct buf *out, struct err *e);
#endif
