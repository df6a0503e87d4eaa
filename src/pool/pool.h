/* pool.h - the models of this machine: name → engine.
 *
 * Models are named when the pool opens; the list does not change afterwards. A thread of the pool
 * loads them one after the other, so that a server can answer before they are loaded, and closes
 * them:
 *
 *     LOADING ──► READY ──the engine fails──► FAILED ──back-off──► LOADING ──► READY
 *        └──────────────────────────────────────► FAILED
 *
 * What a loaded model consists of is a struct pool_instance. It is immutable and counted: whoever
 * works with it holds a reference from pool_find or pool_acquire until pool_release, and it is
 * closed by the pool's thread when the last reference is gone. A model that is opened again gets
 * another instance; calls that still hold the old one finish with it. Any thread may ask. */
#ifndef TERN_POOL_POOL_H
#define TERN_POOL_POOL_H

#include "base/err.h"
#include "base/str.h"
#include "engine/options.h"
#include "pool/membudget.h"
#include "sample/sampleopt.h"

#include <stdatomic.h>

struct engine;
struct engine_stats;
struct pool;
struct prompter;

enum pool_state { POOL_LOADING, POOL_READY, POOL_FAILED };

struct pool_model { /* fixed, but for its state */
    const char *id; /* file or folder name without the extension, or its alias */
    const char *path;
    int64_t created;   /* seconds since 1970: modification time of the file */
    _Atomic int state; /* enum pool_state; pool_state reads it together with the error */
};

struct pool_instance { /* a loaded model; read only */
    const struct pool_model *model;
    const char *id; /* the model's */
    struct engine *engine;
    struct prompter *prompter; /* messages → prompt; NULL: the model has no tokenizer */
    struct sample_opt sample;  /* what the model's makers recommend, over sample_defaults */
    double load_ms, warm_ms;
    /* the pool's */
    struct pool *pool;
    struct pool_instance *next;
    struct membudget memory; /* as planned */
    atomic_int refs;
};

#define POOL_MEMORY_AUTO UINT64_MAX

struct pool_opt {
    const char *const *paths;   /* [n] */
    const char *const *aliases; /* [n] or NULL; entries may be NULL */
    int n;
    struct engine_opt engine;
    uint64_t memory_limit; /* bytes of all models; one that does not fit is not loaded. 0: no limit;
                            * POOL_MEMORY_AUTO: what the machine has when a model is loaded */
    const char *sys_root;  /* a folder that stands for "/" when memory is looked up; NULL: "/" */
    const char *chat_template; /* a file to use instead of the models' own; NULL or "": none */
    bool warm;                 /* a short run before READY */
    int retry_ms;              /* a failed model is opened again after this, then after twice as
                                * long each time, up to a minute; 0: 1000 */
    /* Called on the pool's thread when a model's state has changed. NULL: not called. */
    void (*changed)(void *arg);
    void *arg;
};

/* Returns at once; models load in the background. The options' strings outlive the pool. */
int pool_open(struct pool **out, const struct pool_opt *opt, struct err *e);
/* Waits for a load under way and ends every engine's thread, after the last events of its requests.
 * References stay valid; engines refuse requests from then on. */
void pool_stop(struct pool *p);
/* All references are released. Stops first, if that was not done; NULL is allowed. */
void pool_close(struct pool *p);

int pool_n(const struct pool *p);
const struct pool_model *pool_at(struct pool *p, int i);
/* The state of model i and, if it is FAILED, why. e may be NULL. */
enum pool_state pool_state(struct pool *p, int i, struct err *e);
/* What the engines of model i have counted, also before they failed; NULL: it never was READY. */
struct engine_stats *pool_stats(struct pool *p, int i);

/* A reference to the model of that name (empty: the first). E_NOTFOUND lists those there are;
 * E_LOADING; the error of a failed one, with retry_ms if it will be opened again. */
int pool_find(struct pool *p, struct str id, struct pool_instance **out, struct err *e);
/* pool_find for a request with a deadline (clock_ns; 0: none). A model that is loading gives
 * E_DEADLINE instead of E_LOADING if the deadline is nearer than POOL_MARGIN_MS: it cannot be met. */
#define POOL_MARGIN_MS 100
int pool_find_by(struct pool *p, struct str id, uint64_t deadline_ns, struct pool_instance **out,
                 struct err *e);
/* A reference to model i; NULL: it is not READY. */
struct pool_instance *pool_acquire(struct pool *p, int i);
void pool_release(struct pool_instance *m); /* NULL is allowed; never waits */

bool pool_is_ready(struct pool *p); /* all models are READY */
int pool_n_loaded(struct pool *p);  /* models that are READY or FAILED */
void pool_drain(struct pool *p);    /* every engine takes no more requests */
void pool_abort(struct pool *p);    /* every engine cancels what it has */
bool pool_is_idle(struct pool *p);
#endif
