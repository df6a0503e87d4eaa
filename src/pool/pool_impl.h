/* pool_impl.h - the pool's own state. Private to pool*.c.
 *
 * `lock` protects which instance a slot has, its error, its waits and the lists; it is held for a
 * few instructions only, never while a model is loaded or closed. What is marked as the thread's is
 * touched by the pool's thread alone. */
#ifndef TERN_POOL_POOL_IMPL_H
#define TERN_POOL_POOL_IMPL_H

#include "base/clock.h"
#include "engine/stats.h"
#include "pool/pool.h"
#include "pool/swapplan.h"

#include <pthread.h>
#include <sys/stat.h>

struct park;

enum {
    POOL_MODELS_MAX = 4096,
    RETRY_FIRST_MS = 1000, /* a failed model is opened again after this */
    NEVER = -1
};

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)

/* Which file a path named: another one, or the same after a change, differs. */
struct file_id {
    dev_t dev;
    ino_t ino;
    off_t size;
    struct timespec changed;
};

struct slot {
    struct pool_model m;
    struct engine_stats stats; /* of all its instances */
    struct pool_counts counts;
    atomic_bool was_ready;
    /* under the lock */
    struct pool_head head; /* of its files, which had this print; 0: it was not read */
    uint64_t head_print;
    struct pool_instance *now; /* the pool's reference; NULL: not READY */
    struct err err;            /* FAILED: why */
    struct pool_wait *waits;   /* in the order of arrival */
    int n_waits;               /* those for READY */
    uint32_t generation;
    bool asked; /* somebody wants it loaded who does not wait: the start, an operator, a retry */
    uint64_t asked_ns;
    bool at_start;    /* by the start of the server: requests do not wait, no other model goes */
    bool by_operator; /* an operator asked for the load: earlier failures do not count */
    bool reopens;     /* it has failed and is loaded again by itself, until that works */
    bool sleeps;      /* SLEEPING instead of UNLOADED, and after DRAINING */
    bool on_purpose;  /* it was unloaded by somebody, or for another model */
    bool yields;      /* swapplan.h */
    bool loading;     /* the thread loads it now */
    bool planned;     /* it has a plan, and waits for room: pending */
    bool kept;        /* its host has kept something since it slept */
    bool forget;      /* which is to end: it was unloaded */
    /* Loads are numbered. One that is unloaded meanwhile is cancelled for good: who asks after that
     * waits for the next one. A wait for READY has the number of the first load that can end it. A
     * wait for the end has the numbers of the last load and of the last instance that it is about,
     * and how many of these are left. */
    uint32_t attempt;   /* of the load under way, or the last one */
    uint32_t cancelled; /* the last one that was cancelled; 0: none */
    int n_open;         /* instances that are not closed */
    uint64_t retry_ns;  /* FAILED: when it is opened again by itself; 0: it is not */
    uint64_t
        again_ns; /* FAILED: when a request may cause another load; 0: with another file only */
    atomic_int parked_blocks;
    double uses; /* lately, at uses_ns: tier_decay */
    uint64_t uses_ns;
    struct slot *after; /* the model that was used next after this one, */
    int n_after;        /* so many times in a row */
    uint64_t hint_ns;
    atomic_int cached_1000; /* thousandths of its file in the page cache; -1: not known */
    _Atomic uint64_t ahead_bytes;
    uint64_t ahead_ns; /* when it was last read ahead; that thread's */
    /* the thread's */
    struct file_id file;           /* what the path named when it failed */
    struct pool_instance *pending; /* planned, and waiting for room */
    uint64_t ready_ns;             /* when it last became READY */
    uint64_t switch_ns; /* when another model was first told to go for this one; 0: none */
    uint64_t reload_ns; /* how long the last load took */
    int n_fails;        /* failures in a row */
};

struct pool {
    struct slot *slots[POOL_MODELS_MAX];
    atomic_int n;
    struct pool_opt opt;
    pthread_mutex_t lock;
    pthread_cond_t news; /* for the thread */
    bool has_lock, has_thread;
    pthread_t thread;
    struct pool_instance *open;   /* instances with references */
    struct pool_instance *unused; /* to be closed */
    bool is_news;                 /* something that the thread should look at */
    bool wants_room;              /* a load waits for room: the end of a use is news */
    int n_waits;                  /* of all models */
    atomic_bool stop;             /* load no more models */
    atomic_bool draining, aborting;
    bool stopped;
    _Atomic uint64_t taken_bytes;  /* of instances that are not closed; written by the thread */
    _Atomic uint64_t taken_host;   /* the part of it in host memory */
    struct membudget held;         /* the same in detail; the thread's */
    int n_taken;                   /* such instances; the thread's */
    struct pool_instance *taken;   /* these; the thread's */
    unsigned n_changes;            /* how often they became more or fewer; the thread's */
    struct slot *last_used;        /* under the lock, as is the next */
    struct ahead *ahead;           /* NULL: tiers are not looked at */
    struct park *park;             /* NULL: off; the thread's */
    _Atomic uint64_t parked_bytes; /* in this process */
    _Atomic uint64_t park_room;    /* pool_set_park_room */
    uint64_t look_ns;              /* when a load that waits for room asks again; the thread's */
    /* The thread's, for swapplan.h; n_view of them. Not allocated when they are needed: a load that
     * cannot even be planned would have nobody to report to. */
    struct swap_model view[POOL_MODELS_MAX];
    unsigned char act[POOL_MODELS_MAX];
    bool skip[POOL_MODELS_MAX];
    size_t n_view;
};

static inline int state_of(const struct slot *s)
{
    return atomic_load_explicit(&s->m.state, memory_order_acquire);
}
static inline void put_state(struct slot *s, enum pool_state state)
{
    atomic_store_explicit(&s->m.state, (int)state, memory_order_release);
}
/* Time until a FAILED model may be loaded again, at least 1; 0: unknown. With the lock held. */
static inline int retry_left_ms(const struct slot *s)
{
    uint64_t at = s->retry_ns ? s->retry_ns : s->again_ns, now = clock_ns();

    if (!at) return 0;
    return at > now ? (int)((at - now) / MS) + 1 : 1;
}
static inline bool is_wanted(const struct slot *s) { return s->asked || s->n_waits > 0; }
static inline bool is_cancelled(const struct slot *s) { return s->cancelled == s->attempt; }
static inline bool is_plan_cancelled(const struct slot *s) { return s->planned && is_cancelled(s); }
static inline struct slot *slot_of(const struct pool_instance *m)
{
    return (struct slot *)((char *)m->model - offsetof(struct slot, m));
}

/* ---- pool.c ---- */
void pool_tell(struct pool *p);          /* with the lock held: there is news */
void pool_report_change(struct pool *p); /* without it: opt.changed */
void pool_put(struct pool_instance *m);  /* pool_release with the lock held */
struct file_id pool_file_id(const char *path);
bool pool_is_same_file(const struct file_id *a, const struct file_id *b);

/* ---- pool_wait.c ---- */
/* The state of a slot that is neither loaded nor FAILED: by who wants it. With the lock held. */
void wait_settle(struct slot *s);
/* Takes the waits for READY that the load under way can end out of the slot's list, each with a
 * reference to m if there is one. With the lock held, in one piece with the change of state that ends
 * them: who asks later waits for what comes later. */
struct pool_wait *wait_take(struct pool *p, struct slot *s, struct pool_instance *m);
/* With the lock held: the load under way has ended; an instance is closed. Those who wait for the end
 * count on it. */
void wait_note_end(struct slot *s);
void wait_note_closed(struct slot *s, uint32_t generation);
void wait_note_forgotten(struct slot *s);
void wait_finish(struct pool_wait *list, int rc, const struct err *e); /* without the lock */
void wait_refuse(struct pool_wait *list, const struct slot *s);        /* its load is cancelled */
void wait_serve(struct pool *p);   /* those whose model is READY */
void wait_end_all(struct pool *p); /* E_SHUTDOWN */

/* ---- pool.c, pool_names.c ---- */
int pool_take_entries(struct pool *p, struct err *e); /* new ones of the registry, as slots */
/* "hf:ORG/NAME" as the id that a pulled model has, into out [n]; false: it is another name. */
bool pool_hub_id(struct str name, char *out, size_t n);

/* ---- pool_load.c: the thread's ---- */
/* Room, open, warm, publish; or the state FAILED. false: it waits for room. first: it may make others
 * give up their memory. */
bool load_slot(struct pool *p, int i, bool first);
void load_drop_pending(struct pool *p, struct slot *s);
void load_end_plans(struct pool *p); /* of models that nobody waits for any more */
void load_forget(struct pool *p);    /* what slept of models that were unloaded */
void load_watch(struct pool *p);     /* engines that have failed, and models to be opened again */
void load_close_unused(struct pool *p);
void load_close(struct pool *p, struct pool_instance *m);
uint64_t load_next_retry(struct pool *p);

/* ---- pool_ahead.c ---- */
int ahead_start(struct pool *p, struct err *e);
void ahead_stop(struct pool *p);
void ahead_note_use(struct pool *p, struct slot *s);          /* with the lock held */
void ahead_view(const struct slot *s, struct pool_view *out); /* with the lock held */

/* ---- pool_park.c: the thread's ---- */
int pool_open_park(struct pool *p, struct err *e);
void pool_end_park(
    struct pool *p); /* the pool closes: what is saved from now on is saved quickly */
void pool_close_park(struct pool *p);
void pool_save_blocks(struct pool_instance *m);           /* of its engine, which is stopped */
struct park *pool_park_of(const struct pool_instance *m); /* NULL: off */
void pool_note_restored(struct pool *p);                  /* an engine has taken its blocks */
void pool_trim_park(struct pool *p);                      /* files that workers have written */
bool pool_shrink_park(struct pool *p, uint64_t bytes);    /* false: there is nothing to drop */
uint64_t pool_room_to_park(struct pool *p, const struct pool_instance *m); /* when m closes */

/* ---- pool_room.c: the thread's ---- */
struct memavail;
void room_read_free(const struct pool *p, struct memavail *out); /* beside the loaded models */
/* The model for "tier:NAME": one that is READY, else one that is being loaded, else the cheapest to
 * load; -1: the tier has none. */
int pool_find_tier(struct pool *p, struct str tier);
/* Bytes of a device that models which are not closed take, and the limit of it; 0: none. */
uint64_t room_taken_on(const struct pool *p, const char *device);
uint64_t room_limit_on(const struct pool *p, const char *device);
struct sizes_room room_for(struct pool *p, const struct pool_model *m);
bool room_is_kv_large(const struct pool *p, const struct pool_instance *m);

/* ---- pool_swap.c: the thread's ---- */
enum room {
    ROOM,
    ROOM_AGAIN, /* others were unloaded: plan again */
    ROOM_LATER,
    ROOM_NEVER
};
/* Makes room for m, which is planned: others are unloaded. e: after ROOM_NEVER. m NULL: it could not be
 * planned, since its device has no memory, as *e says. */
enum room swap_make_room(struct pool *p, int i, struct pool_instance *m, bool first, struct err *e);
/* The budget once more, after the model was opened. */
int swap_count(struct pool *p, struct pool_instance *m, struct err *e);
void swap_uncount(struct pool *p, struct pool_instance *m);
bool swap_load_next(struct pool *p); /* true: a model was loaded, or has failed */
void swap_expire(struct pool *p);    /* unloads what was not used for long */
uint64_t swap_next_expiry(struct pool *p);
/* READY → DRAINING; why: POOL_UNLOAD_... With the lock held. */
void swap_retire(struct slot *s, int why);

#endif
