/* rankform.h - what a generative reranker is asked: query, document and instruction → prompt.
 *
 * The model is asked whether the document meets what the instruction wants for the query, and the next
 * token is its answer (engine/yesno.h). The question has the form that the model was trained with:
 *
 *     1. the template "rerank" of its tokenizer, with places for {query} and {document};
 *     2. a chat template that knows messages of the roles query and document (sentence-transformers);
 *     3. ChatML, where the vocabulary has it: the prompt of Qwen3-Reranker;
 *     4. the chat template of any other model, with the same texts.
 *
 * Texts of the client are plain text in 1 and 3: they cannot contain the end of a turn. */
#ifndef TERN_POOL_RANKFORM_H
#define TERN_POOL_RANKFORM_H

#include "base/err.h"
#include "base/ids.h"
#include "base/str.h"

struct prompter;
struct tokenizer;

/* Qwen3-Reranker's instruction; a request may give another one. */
#define RANKFORM_INSTRUCTION \
    "Given a web search query, retrieve relevant passages that answer the query"

struct rank_question {
    struct str query, document;
    struct str instruction; /* p NULL: the usual one */
};

/* Appends the prompt. E_INVALID: the model's template has no place for an instruction, or refuses the
 * messages. Any thread. */
int rankform_write(const struct prompter *p, const struct tokenizer *t,
                   const struct rank_question *q, struct ids *out, struct err *e);
#endif
