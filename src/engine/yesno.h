/* yesno.h - how a generative reranker answers: the tokens whose logits make the score of a document.
 *
 * Such a model is a causal language model that is asked whether a document answers a query
 * (pool/rankform.h). Its score is P(yes) / (P(yes) + P(no)), which takes the logits of two tokens behind
 * the prompt. They come from the model's logits, or from a head of two rows where the file has only
 * these (GGUF files of Qwen3-Reranker). Constant once the engine is open. */
#ifndef TERN_ENGINE_YESNO_H
#define TERN_ENGINE_YESNO_H

#include <stdbool.h>
#include <stdint.h>

struct loadplan;
struct tokenizer;

struct yesno {
    int n;        /* numbers of the result: yes and no, or yes alone; 0: the model has no answer */
    bool by_head; /* the classes of the model are the answers; else the logits of: */
    int32_t ids[2]; /* yes, no */
    char why[128];  /* n is 0, although it was asked for: the reason; "": it was not */
};

/* By the model's files: a head with the classes yes and no behind a causal model, or the module
 * LogitScore of sentence-transformers. wanted: any other model that generates text answers with the
 * tokens of "yes" and "no". t may be NULL. */
void yesno_find(struct yesno *out, const struct loadplan *plan, const struct tokenizer *t,
                bool wanted);

/* The relevance of a document by its n numbers: P(yes), or the logit of yes alone. */
double yesno_score(const struct yesno *y, const float *vec);
#endif
