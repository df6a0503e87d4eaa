/* pool.h - the models of this machine: name → engine.
 *
 * Models are named when the pool opens and loaded by a thread of the pool, one after the other, so
 * that a server can answer before they are loaded. The list does not change afterwards. Any thread
 * may ask; a model's fields are written by the loading thread before its state becomes READY or
 * FAILED, and never change after that. */
#ifndef TERN_POOL_POOL_H
#define TERN_POOL_POOL_H

#include "base/err.h"
#include "base/str.h"
#include "engine/options.h"
#include "sample/sampleopt.h"

#include <stdatomic.h>

struct engine;
struct pool;
struct prompter;

enum pool_state { POOL_LOADING, POOL_READY, POOL_FAILED };

struct pool_model {
    const char *id; /* file or folder name without the extension, or its alias */
    const char *path;
    _Atomic int state;         /* enum pool_state: stored after the rest is written */
    struct engine *engine;     /* READY only */
    struct prompter *prompter; /* messages → prompt; NULL: the model has no tokenizer */
    struct sample_opt sample;  /* what the model's makers recommend, over sample_defaults */
    struct err err;            /* FAILED only */
    double load_ms, warm_ms;
    int64_t created; /* seconds since 1970: modification time of the file */
};

struct pool_opt {
    const char *const *paths;   /* [n] */
    const char *const *aliases; /* [n] or NULL; entries may be NULL */
    int n;
    struct engine_opt engine;
    uint64_t memory_limit; /* bytes of all models; one that does not fit is not loaded; 0: none */
    const char *chat_template; /* a file to use instead of the models' own; NULL or "": none */
    bool warm;                 /* a short run before READY */
    /* Called on the pool's thread when a model's state has changed. NULL: not called. */
    void (*changed)(void *arg);
    void *arg;
};

/* Returns at once; models load in the background. The options' strings outlive the pool. */
int pool_open(struct pool **out, const struct pool_opt *opt, struct err *e);
void pool_close(struct pool *p); /* waits for a load under way; NULL is allowed */
int pool_n(const struct pool *p);
struct pool_model *pool_at(struct pool *p, int i);
/* The model of that name (empty: the first). E_NOTFOUND lists those there are; E_LOADING; the error
 * of a failed load. */
int pool_find(struct pool *p, struct str id, struct pool_model **out, struct err *e);
bool pool_is_ready(struct pool *p); /* all models are READY */
int pool_n_loaded(struct pool *p);  /* models that are READY or FAILED */
void pool_drain(struct pool *p);    /* every engine takes no more requests */
void pool_abort(struct pool *p);    /* every engine cancels what it has */
bool pool_is_idle(struct pool *p);
#endif
