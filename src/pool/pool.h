/* pool.h - the models of this machine: name → engine, loaded and unloaded while the server runs.
 *
 *     UNLOADED ─asked for─► LOADING ──► READY ─unload, eviction, keep-alive─► DRAINING ──► UNLOADED
 *        ▲                     │          └──the engine fails──► FAILED ──back-off──► LOADING
 *        └─nobody waits any more─┘ └──────────────────────────────► FAILED
 *
 * A model that is to sleep goes from DRAINING to SLEEPING instead, and is otherwise as UNLOADED.
 * The list of models only grows, so an index stays valid.
 *
 * What a loaded model consists of is a struct pool_instance. It is immutable and counted: whoever
 * works with it holds a reference from pool_find or pool_acquire until pool_release, and it is
 * closed by the pool's thread when the last reference is gone. A model that is loaded again gets
 * another instance with the next generation number; calls that still hold the old one finish with
 * it. Any thread may ask.
 *
 * One thread of the pool loads, one model at a time, on one path for all:
 *
 *     plan ──► room ──► open ──► warm ──► publish            all or nothing
 *
 * `room` and `publish` are the pool's: bytes of the plan against the budget, models that make room
 * (swapplan.h), visibility. The other steps, and what is done with an instance later, are those of a
 * struct pool_host. The default one opens an engine in this process; one that starts a worker process
 * implements the same steps: plan asks the worker for its bytes and sets m->need, open lets it load
 * and waits until it is ready (pool_set_progress meanwhile), close ends it; m->host_data is its own,
 * m->engine stays NULL. All steps run on the pool's thread; a step that fails returns its error and
 * leaves the rest to close, which is called once for every instance, however far it came. When an
 * instance has died, the host calls pool_wake, and the pool asks `error`. */
#ifndef TERN_POOL_POOL_H
#define TERN_POOL_POOL_H

#include "base/err.h"
#include "base/stat.h"
#include "base/str.h"
#include "engine/options.h"
#include "pool/membudget.h"
#include "pool/tiers.h"
#include "sample/sampleopt.h"

#include <stdatomic.h>

struct engine;
struct engine_info;
struct engine_stats;
struct pool;
struct pool_instance;
struct prompter;
struct registry;
struct registry_model;
struct registry_news;

enum pool_state {
    POOL_UNLOADED,
    POOL_LOADING, /* being loaded, or waiting for its turn */
    POOL_READY,
    POOL_DRAINING, /* cannot be found any more; calls that use it go on */
    POOL_SLEEPING,
    POOL_FAILED
};
const char *pool_state_name(enum pool_state s); /* "unloaded", "loading", ... */

struct pool_model {   /* fixed, but for its state */
    const char *id;   /* file or folder name without the extension, or its alias */
    const char *path; /* as it is shown; see pool_path */
    int64_t created;  /* seconds since 1970: modification time of the file */
    bool preload;     /* loaded when the pool opens */
    bool pinned;      /* never unloaded for another model, or for want of use */
    int priority;     /* see swapplan.h */
    int64_t keep_ms;  /* unloaded after so long without use; -1: never */
    const struct registry_model *entry; /* its settings; NULL: there is no registry */
    /* Without a registry: settings of its own instead of the pool's. Borrowed, as long as the pool. */
    const struct engine_opt *engine;    /* NULL: the pool's */
    const char *chat_template;          /* NULL: the pool's */
    const char *key_file, *key_command; /* of an encrypted model; both NULL: the pool's */
    double kv_share;                    /* part of the memory for KV caches; 0: an equal one */
    _Atomic int state;    /* enum pool_state; pool_state reads it together with the error */
    _Atomic int progress; /* of LOADING: 0 to 100 */
};

/* How models are loaded and run: see above. Each function gets the instance; error, drain, abort and
 * is_idle may be called on any thread, the others on the pool's. Those of the last group are about the
 * host itself, and may be NULL. */
struct pool_host {
    /* Sets need, sizes and refused, by m->room. Called again, before open, where others have come or
     * gone meanwhile: there is another room then. */
    int (*plan)(struct pool_instance *m, struct err *e);
    int (*open)(struct pool_instance *m, struct err *e); /* may correct need */
    int (*warm)(struct pool_instance *m, struct err *e);
    int (*error)(struct pool_instance *m, struct err *e); /* OK, or why it has failed for good */
    void (*drain)(struct pool_instance *m);               /* takes no more requests */
    void (*abort)(struct pool_instance *m);               /* cancels what it has */
    bool (*is_idle)(struct pool_instance *m);
    void (*stop)(struct pool_instance *m); /* ends its threads; facts can still be read */
    /* Before close of a model that is to sleep: keeps what the next instance can begin with, and KV
     * blocks of at most so many bytes. false: nothing is kept. NULL: there is nothing to keep. */
    bool (*sleep)(struct pool_instance *m, uint64_t park_bytes);
    void (*close)(struct pool_instance *m); /* frees what the steps made, also after a failed one */
    /* Anonymous memory that the instance's own process has taken. NULL: it runs in this one. */
    uint64_t (*own_bytes)(const struct pool_instance *m);

    /* A load was cancelled (pool_is_cancelled): plan or open that waits for it returns. Any thread. */
    void (*cancel)(const struct pool_host *h);
    /* Ends what sleep has kept of a model, and returns when it has ended. */
    void (*forget)(const struct pool_host *h, const char *id);
    uint64_t (*parked_bytes)(const struct pool_host *h); /* that sleep has kept; any thread */
    /* Gives up what sleep has kept of one model, the one that has slept longest of those that have
     * parked blocks; returns the bytes of these. 0: there is none. */
    uint64_t (*drop_parked)(const struct pool_host *h);
};

struct pool_instance { /* a loaded model; read only */
    const struct pool_model *model;
    const char *id;                 /* the model's */
    uint32_t generation;            /* 1: the first instance of the model */
    struct engine *engine;          /* NULL: it does not run in this process */
    const struct engine_info *info; /* if it does not: its facts */
    struct prompter *prompter;      /* messages → prompt; NULL: the model has no tokenizer */
    struct sample_opt sample;       /* what the model's makers recommend, over sample_defaults */
    double load_ms, warm_ms;
    struct sizes_room room; /* before plan: memory for default sizes */
    struct membudget need;  /* memory, as planned */
    struct sizes sizes;     /* as planned */
    struct err
        refused;     /* the plan needs more than its device has now (need.device_lack); OK: not */
    bool fill_kv;    /* before open: the KV cache is really taken before READY */
    void *host_data; /* the host's */
    struct keyset *keys; /* of an encrypted model, from plan to open; pool_local's */
    bool by_operator;    /* an operator asked for the load: earlier failures do not count */
    /* the pool's */
    const struct pool_host *host;
    struct pool *pool;
    struct pool_instance *next;
    struct pool_instance *next_taken; /* of pool.taken */
    unsigned planned_at;              /* pool.n_changes when it was planned */
    uint64_t bytes;                   /* counted against the budget */
    bool counted;                     /* the pool's count of instances has it */
    uint64_t ready_ns;                /* when it became READY */
    uint64_t used_ns;                 /* when a call last began or ended; under the pool's lock */
    int64_t keep_ms;                  /* pool_touch; under the pool's lock */
    atomic_int refs;
};

#define POOL_MEMORY_AUTO UINT64_MAX

/* KV blocks of models that are unloaded or sleep come back with them (kv/park.h). */
enum pool_park { POOL_PARK_OFF, POOL_PARK_MEMORY, POOL_PARK_FILE };
struct pool_park_opt {
    enum pool_park where;
    uint64_t max_bytes; /* of all models */
    const char *dir;    /* POOL_PARK_FILE: is made if it is not there */
    bool has_fd;        /* POOL_PARK_FILE: this file instead, for a pool of one model; borrowed */
    int fd;
};

struct pool_opt {
    /* The models: those of a registry, which outlives the pool, in its order; */
    struct registry *registry;
    int64_t keep_ms; /* of its models that are loaded on demand and have no setting; -1: for ever */
    /* or without one: */
    const char *const *paths;   /* [n] models that are loaded at once, and stay */
    const char *const *aliases; /* [n] or NULL; entries may be NULL */
    int n;
    bool empty; /* or with no model: all come by pool_add */
    struct engine_opt engine;
    uint64_t memory_limit; /* bytes of all models on the host; one that does not fit is not loaded.
                            * 0: no limit; POOL_MEMORY_AUTO: what the machine has at the load */
    const struct membudget_limit *device_limits; /* [n_device_limits], borrowed: of GPUs; others are
                                                  * limited by the memory they have */
    int n_device_limits;
    struct pool_park_opt park;
    bool tiers;           /* look at the page cache: pool_view.tier; see pool_ahead.c */
    bool read_ahead;      /* with it: files of models that are probably needed next */
    const char *sys_root; /* a folder that stands for "/" when memory is looked up; NULL: "/" */
    const char *chat_template; /* a file to use instead of the models' own; NULL or "": none */
    const char *key_file, *key_command; /* of encrypted models, unless their settings name others:
                                         * base/keyring.h; NULL or "": none */
    bool warm;                          /* a short run before READY */
    int retry_ms;                 /* a failed model is opened again after this, then after twice as
                                * long each time, up to a minute; 0: 1000 */
    int max_loaded;               /* models loaded at a time; 0: no limit */
    int residence_ms;             /* see swapplan.h; 0: 2000 */
    int patience_ms;              /* see swapplan.h; 0: 5000 */
    int max_waits;                /* calls that wait for models; 0: 4096 */
    const struct pool_host *host; /* NULL: engines of this process */
    /* Called on the pool's thread when a model's state has changed. NULL: not called. */
    void (*changed)(void *arg);
    void *arg;
};

/* Returns at once; models load in the background. The options' strings outlive the pool. */
int pool_open(struct pool **out, const struct pool_opt *opt, struct err *e);
/* Waits for a load under way and ends every engine's thread, after the last events of its requests.
 * Whoever waits for a model gets E_SHUTDOWN. References stay valid; engines refuse requests from then
 * on. */
void pool_stop(struct pool *p);
/* All references are released. Stops first, if that was not done; NULL is allowed. */
void pool_close(struct pool *p);

/* One more model, which is loaded when it is asked for (or at once: m->preload). Copies the strings of
 * m. E_INVALID: the name is taken. *index: its index. Any thread. */
int pool_add(struct pool *p, const struct pool_model *m, int *index, struct err *e);

/* Looks for models again (registry_rescan), and takes new ones into the list. news may be NULL. Any
 * thread. */
int pool_rescan(struct pool *p, struct registry_news *news, struct err *e);
/* Changes of the list by request: see registry.h, which each of these calls. Any thread.
 * pool_add_hub: the model of the cache with that id can be found from now on. */
int pool_add_hub(struct pool *p, const char *id, int *index, struct err *e);
/* Removes model i from the cache; unload it first. */
int pool_remove_hub(struct pool *p, int i, struct err *e);
int pool_check_hub(struct pool *p, int i, struct err *e); /* could it be? */
int pool_copy(struct pool *p, int i, struct str name, struct err *e);
bool pool_drop_copy(struct pool *p, struct str name);
/* Is model i to be listed, and found by its name? Not if its file is gone, unless it is loaded: then it
 * serves until it is unloaded. */
bool pool_is_listed(struct pool *p, int i);
/* Does the id of model i lead to it? Not if another file has taken the name over. */
bool pool_is_current(struct pool *p, int i);
const char *pool_alias(struct pool *p, int i, int k); /* its k-th name besides the id; NULL */

int pool_n(const struct pool *p);
const struct pool_model *pool_at(struct pool *p, int i);
const char *pool_path(const struct pool_model *m); /* to be opened; confined where it has to be */
int pool_index(struct pool *p, struct str id);     /* or an alias, or "tier:light" (pool_tier.c);
                                                    * empty: the first; -1: none */
/* The state of model i and, if it is FAILED, why. e may be NULL. */
enum pool_state pool_state(struct pool *p, int i, struct err *e);
/* What the engines of model i have counted, also before they failed; NULL: it never was READY. */
struct engine_stats *pool_stats(struct pool *p, int i);

/* A reference to the model of that name (empty: the first). E_NOTFOUND lists those there are;
 * E_LOADING; the error of a failed one, with retry_ms if it will be opened again. */
int pool_find(struct pool *p, struct str id, struct pool_instance **out, struct err *e);
/* pool_find for a request with a deadline (clock_ns; 0: none). A model that is not loaded gives
 * E_DEADLINE instead of E_LOADING if the deadline is nearer than POOL_MARGIN_MS: it cannot be met. */
#define POOL_MARGIN_MS 100
int pool_find_by(struct pool *p, struct str id, uint64_t deadline_ns, struct pool_instance **out,
                 struct err *e);
/* pool_find_by for a request that can wait: with E_LOADING, *cold is the model that pool_load can be
 * asked for, or -1: it is loaded with the start of the server, which nobody waits for. */
int pool_find_cold(struct pool *p, struct str id, uint64_t deadline_ns, struct pool_instance **out,
                   int *cold, struct err *e);
/* A reference to model i to look at it; NULL: it is not READY. It is not a use of the model. */
struct pool_instance *pool_acquire(struct pool *p, int i);
/* The same for a handle: E_NOTFOUND if model i is loaded again or not any more. */
int pool_acquire_generation(struct pool *p, int i, uint32_t generation, struct pool_instance **out,
                            struct err *e);
void pool_release(struct pool_instance *m); /* NULL is allowed; never waits */
/* A call with the model begins or ends now. keep_ms: it stays loaded for so long after the last use,
 * -1: for ever; POOL_KEEP_DEFAULT: as the model's settings say; POOL_KEEP_SAME: as before. */
#define POOL_KEEP_DEFAULT (-2)
#define POOL_KEEP_SAME (-3)
void pool_touch(struct pool_instance *m, int64_t keep_ms);

/* Model i is probably needed soon: its file is read ahead, if memory is left over. Any thread. */
void pool_hint(struct pool *p, int i);

/* ---- loading and unloading ---- */

/* Somebody who waits for a model: filled in and kept by the caller until done was called, or
 * pool_cancel_wait has returned true. */
struct pool_wait {
    void (*done)(struct pool_wait *w); /* on the pool's thread, or on that of an unload; w is the
                                        * caller's again */
    void *arg;                         /* the caller's */
    bool by_operator; /* pool_load: also loads what has failed before, and goes on when the wait is
                       * cancelled */
    /* the result */
    int rc;
    struct err err;
    struct pool_instance *model; /* pool_load, OK: a reference */
    /* the pool's */
    struct pool_wait *next;
    int index;
    uint64_t since_ns;
    bool for_end; /* of pool_unload */
    bool waits;
    /* The loads and instances that it is about: pool_impl.h. */
    uint32_t attempt, generation;
    int left;
    bool forgets; /* what sleeps ends, too */
};

enum pool_wait_now { POOL_WAIT, POOL_NOW };

/* Asks for model i. POOL_NOW: the result is there, and done is not called. Any number of waits is one
 * load. */
enum pool_wait_now pool_load(struct pool *p, int i, struct pool_wait *w);
/* Model i cannot be found any more, and its load is cancelled, also one that has not begun or waits for
 * room: those who wait for it get E_LOADING. done when what there was is closed, also what slept.
 * sleep: the model is SLEEPING then. w NULL: nobody waits for it. Whoever asks for the model from then
 * on gets it loaded again, which this does not wait for. */
enum pool_wait_now pool_unload(struct pool *p, int i, bool sleep, struct pool_wait *w);
/* true: w waited, and is the caller's again. false: done was called, or is about to be. */
bool pool_cancel_wait(struct pool *p, struct pool_wait *w);

void pool_info(const struct pool_instance *m, struct engine_info *out); /* wherever it runs */
/* The chat template, wherever the model runs; empty: there is none. Valid as long as the instance. */
struct str pool_template(const struct pool_instance *m);

/* Facts from the files of a model. Texts are "" and numbers 0 where they do not say. */
struct pool_head {
    char arch[64], task[16], dtype[24]; /* as in struct engine_info */
    uint64_t n_params, bytes;           /* bytes: of the files */
    int n_ctx, n_vec;                   /* n_ctx: as trained */
};
/* Facts of model i, loaded or not. Reads headers of its files, unless they were read before; read false: it
 * does not, and only tells their size. For a thread that may wait for the disk. */
void pool_head(struct pool *p, int i, bool read, struct pool_head *out);

/* For hosts. */
/* The keys of a model: by its own settings, else by file and command; see keyset_open. *out is NULL
 * where there are none. entry may be NULL. */
struct keyset;
int pool_read_keys(const struct registry_model *entry, const char *file, const char *command,
                   struct keyset **out, struct err *e);
extern const struct pool_host pool_local; /* the host of models in this process */
void pool_wake(struct pool *p);           /* any thread: look at the instances */
void pool_set_progress(struct pool_instance *m, int percent);         /* of its load */
void pool_set_weights_progress(struct pool_instance *m, int percent); /* of the weights alone */
bool pool_is_cancelled(const struct pool_instance *m); /* it was unloaded meanwhile */
const struct pool_opt *pool_opt_of(const struct pool_instance *m);
struct engine_stats *pool_stats_of(struct pool_instance *m); /* where it counts */
void pool_note_parked(struct pool_instance *m, int n);       /* KV blocks, when it closes */

/* ---- numbers ---- */

/* Why models were unloaded. */
enum { POOL_UNLOAD_ASKED, POOL_UNLOAD_ROOM, POOL_UNLOAD_IDLE, POOL_UNLOAD_FAILED, N_POOL_UNLOAD };

struct pool_counts { /* of one model */
    struct counter loads, load_failures, waits, unloads[N_POOL_UNLOAD];
    struct hist load_s;   /* plan to READY */
    struct hist switch_s; /* from the decision to unload another model for it to READY */
    struct hist wait_s;   /* of calls that waited for the model, to the end of the wait */
};
const struct pool_counts *pool_counts(struct pool *p, int i);

struct pool_view { /* of one model at one moment */
    enum pool_state state;
    struct err err; /* FAILED */
    int progress, n_waits, n_uses;
    uint32_t generation; /* of its last instance; 0: never loaded */
    uint64_t bytes;      /* of all its instances that are not closed */
    int64_t idle_ms;     /* since its last use; -1: not READY */
    int64_t expires_ms;  /* until it is unloaded for want of use; -1: never */
    bool yields;         /* takes no new calls: others wait for its memory */
    enum tier tier;
    double cached;        /* share of its file in the page cache; -1: not known */
    uint64_t ahead_bytes; /* that were read ahead so far */
    int parked_blocks;    /* KV blocks that were parked when it was last unloaded */
};
void pool_view(struct pool *p, int i, struct pool_view *out);
uint64_t pool_bytes(struct pool *p); /* of all instances that are not closed */
uint64_t pool_limit(struct pool *p); /* memory_limit; 0: none or automatic */
uint64_t pool_parked_bytes(
    struct pool *p); /* of KV blocks that are parked in memory, also in that of
                                             * processes that sleep */
/* Parked KV blocks that are saved from now on take at most so many bytes. Any thread. */
void pool_set_park_room(struct pool *p, uint64_t bytes);
/* Should model i be READY: it was not unloaded on purpose, and not only loaded when asked for? */
bool pool_is_expected(struct pool *p, int i);

bool pool_is_ready(struct pool *p); /* all models are READY */
int pool_n_loaded(struct pool *p);  /* models that are READY or FAILED */
void pool_drain(struct pool *p);    /* every engine takes no more requests */
void pool_abort(struct pool *p);    /* every engine cancels what it has */
bool pool_is_idle(struct pool *p);
/* No model is loaded any more: pool_drain, pool_abort or pool_stop was called. */
bool pool_is_ending(const struct pool *p);
#endif
