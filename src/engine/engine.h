/* engine.h - many sequences, one forward pass.
 *
 * An engine owns a model's source, weights, KV blocks and decoder, and runs requests: take, plan,
 * run, sample, emit. engine_step is the only way to execution. In this form it runs on its
 * caller's thread; the queue and the thread come around it. */
#ifndef TERN_ENGINE_ENGINE_H
#define TERN_ENGINE_ENGINE_H

#include "engine/request.h"
#include "kernel/backend.h"
#include "model/model.h"
#include "token/tokenizer.h"

struct engine;

struct engine_opt {
    struct backend_opt backend;
    int n_ctx;                   /* tokens of KV; 0: the model's, at most 4096 */
    int max_batch;               /* tokens of a step; 0: 512 */
    int max_seqs;                /* running at once; 0: 16 */
    enum dtype kv_type;          /* DT_NONE: F16, or F32 with the reference kernels */
};

struct engine_info {
    const struct model *model;
    const struct source *source;
    const struct backend *backend;
    int n_ctx, max_batch, max_seqs;
    uint64_t kv_bytes, scratch_bytes;
    double open_ms;
};

int  engine_open(struct engine **out, const char *path, const struct engine_opt *opt, struct err *e);
void engine_close(struct engine *g);                     /* NULL is fine; no request may be left */
void engine_info(const struct engine *g, struct engine_info *out);
const struct tokenizer *engine_tokenizer(const struct engine *g);   /* NULL: the model carries none */
bool engine_is_end(const struct engine *g, int32_t id);  /* one of the model's end tokens */

/* Takes the request in; E_CONTEXT with both numbers if it can never fit. */
int  engine_submit(struct engine *g, struct request *r, struct err *e);
/* One step: some prefill, a token for every running sequence. false: nothing left to do. */
int  engine_step(struct engine *g, bool *more, struct err *e);
void engine_drop(struct engine *g, struct request *r);   /* out of the engine, whatever its state */
#endif
