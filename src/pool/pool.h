/* pool.h - the models of this machine: name → engine.
 *
 * Models are named when the pool opens and loaded by a thread of the pool, one after the other, so
 * that a server answers before they are there. The list does not change afterwards. Any thread may
 * ask. */
#ifndef TERN_POOL_POOL_H
#define TERN_POOL_POOL_H

#include "engine/chatform.h"
#include "engine/engine.h"
#include "jinja/chattemplate.h"

struct pool;

enum pool_state { POOL_LOADING, POOL_READY, POOL_FAILED };

struct pool_model {
    const char *id; /* file or folder name without the extension, or its alias */
    const char *path;
    _Atomic int state;     /* enum pool_state: READY is stored after the rest is written */
    struct engine *engine; /* READY only */
    struct chat_template
        *chat; /* its template; NULL: it has none, `form` is what it is taken for */
    enum chat_form form;
    struct sample_opt sample; /* defaults the model's makers recommend, over sample_defaults */
    struct err err;           /* FAILED only */
    double load_ms, warm_ms;
    int64_t created; /* seconds since 1970: the file's */
};

struct pool_opt {
    const char *const *paths;   /* [n] */
    const char *const *aliases; /* [n] or NULL; entries may be NULL */
    int n;
    struct engine_opt engine;
    uint64_t memory_limit;     /* bytes of all models; what does not fit is not loaded; 0: none */
    const char *chat_template; /* a file in place of the models' own; NULL or "": none */
    bool warm;                 /* a short run before READY */
    void (*changed)(
        void *arg); /* some model's state changed; called on the pool's thread. NULL: nobody asks */
    void *arg;
};

int pool_open(struct pool **out, const struct pool_opt *opt, struct err *e); /* returns at once */
void pool_close(struct pool *p); /* waits for a load under way; NULL is fine */
int pool_n(const struct pool *p);
struct pool_model *pool_at(struct pool *p, int i);
/* The model of that name (empty: the first). E_NOTFOUND names those there are; E_LOADING; a failed
 * load's own error. */
int pool_find(struct pool *p, struct str id, struct pool_model **out, struct err *e);
bool pool_is_ready(struct pool *p); /* all loaded */
int pool_n_loaded(struct pool *p);  /* models that are ready or failed */
void pool_drain(struct pool *p);    /* every engine takes no more */
void pool_abort(struct pool *p);
bool pool_is_idle(struct pool *p);
#endif
