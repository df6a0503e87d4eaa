/* ollama_impl.h - what a call of Ollama's API keeps between its body and its answer. Private to
 * ollama*.c. */
#ifndef TERN_API_OLLAMA_IMPL_H
#define TERN_API_OLLAMA_IMPL_H

#include "api/call.h"

struct jsonw;

struct ollama {
    bool chat;      /* /api/chat; false: /api/generate */
    bool only_load; /* there is no message and no prompt: the model is loaded or unloaded */
    bool one;       /* /api/embeddings: one vector */
};

static inline struct ollama *ollama_state(const struct call *c) { return c->state; }

/* ollama_body.c: dialect.translate */
int ollama_translate_chat(struct call *c, json_t **out, struct err *e);
int ollama_translate_generate(struct call *c, json_t **out, struct err *e);
int ollama_translate_embed(struct call *c, json_t **out, struct err *e);

/* ollama_models.c: "2026-01-02T03:04:05.000000000Z" of milliseconds since 1970 */
void ollama_write_time(struct jsonw *w, const char *key, int64_t epoch_ms);
/* The model that the body names by "model" or, as it once was, "name". name: borrowed from the body. */
int ollama_read_model(struct call *c, struct str *name, int *index, struct err *e);
#endif
