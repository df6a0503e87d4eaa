/* abi_impl.h - what the files of src/abi share: the objects behind the handles of tern.h.
 *
 * A model is either of tern_open, with an engine of its own, or of tern_load: then it is a record of
 * its runtime, and the pool decides when it is in memory. Calls reach the engine of either through a
 * struct lease, which keeps it loaded.
 *
 * Handles are counted. A model of tern_open lives until its handle and its requests are closed; a
 * runtime until the same holds for itself and all its models, whose records end with it. */
#ifndef TERN_ABI_ABI_IMPL_H
#define TERN_ABI_ABI_IMPL_H

#include "tern.h"

#include "base/arena.h"
#include "base/buf.h"
#include "engine/info.h"
#include "engine/options.h"
#include "pool/membudget.h"
#include "sample/logprob.h"
#include "sample/sampleopt.h"

#include <pthread.h>
#include <stdatomic.h>

struct dispatcher;
struct engine;
struct pool;
struct pool_instance;
struct prompter;
struct request;
struct tokenizer;

/* The error of the last failure on this thread. */
extern _Thread_local struct err abi_last;

static inline int abi_fail(const struct err *e)
{
    abi_last = *e;
    return abi_last.code;
}
int abi_invalid(const char *call, const char *what);

/* Structs that callers of another version have in another size. */
enum { ABI_SIZE_LEAST = sizeof(size_t) };
/* Fills as much of the caller's struct as it has. */
void abi_write_sized(void *to, size_t size, const void *from, size_t ours);
/* Copies the caller's struct, whose first field is its size, over the defaults in `to`. A caller of
 * a later version may have fields that this one does not know, as long as they are zero. */
int abi_read_sized(const char *call, void *to, size_t ours, const void *from, size_t size);

/* The facts of a model that stay when it is evicted. */
struct abi_facts {
    struct engine_info info; /* its strings are the model's own, or those of its engine */
    struct sample_opt sample;
    bool has_chat;
};

struct tern_model {
    pthread_mutex_t lock; /* protects the dispatcher's start, and facts while they are filled in */
    pthread_cond_t news;
    bool has_lock;
    struct dispatcher *dispatcher; /* of callbacks; NULL: there was none yet */
    char *id, *path;
    struct arena strings; /* of facts */
    struct abi_facts facts;
    atomic_bool has_facts;
    /* of tern_open */
    atomic_int n_refs; /* the handle's and the requests' */
    struct engine *engine;
    struct prompter *prompter; /* NULL: the model has no tokenizer */
    struct membudget need;
    /* of tern_load: a record of the runtime */
    struct tern_runtime *rt; /* NULL: of tern_open */
    int index;               /* in the pool */
    tern_options given;      /* as asked for; its strings are in `strings` */
    struct engine_opt opt;
    bool listed; /* not unloaded by name; under the runtime's lock */
    struct tern_model *next;
};

/* Members that both kinds of models share: lock, id and path. */
int abi_model_init(struct tern_model *m, const char *id, const char *path, struct err *e);
void abi_model_release(struct tern_model *m); /* frees it; its engine is closed */
/* Names of models (modelref.h) become paths; *out is freed with mem_free. */
int abi_find_model(char **out, const char *name, struct err *e);
/* Reads the options over their defaults and checks them. */
int abi_read_options(const char *call, tern_options *to, const tern_options *from);
struct engine_opt abi_engine_options(const tern_options *o);

void abi_model_ref(struct tern_model *m); /* one more handle or request */
void abi_model_unref(struct tern_model *m);

/* ---- abi_runtime.c ---- */
void abi_runtime_ref(struct tern_runtime *rt);
void abi_runtime_unref(struct tern_runtime *rt);
/* The instance of a record, which is loaded first if needed. deadline_ns: clock_ns, 0: none. */
int abi_runtime_acquire(struct tern_model *m, uint64_t deadline_ns, struct pool_instance **out,
                        struct err *e);
struct pool *abi_pool(const struct tern_runtime *rt);

/* ---- abi_lease.c ---- */
/* An engine for the time of a call or a request. */
struct lease {
    struct engine *engine;
    struct prompter *prompter;
    struct pool_instance *hold; /* NULL: of tern_open */
};
int lease_take(struct lease *l, struct tern_model *m, uint64_t deadline_ns, struct err *e);
void lease_end(struct lease *l); /* may be repeated */
/* NULL: the model has none, and *e says so. */
const struct tokenizer *lease_tokenizer(const struct lease *l, const struct tern_model *m,
                                        struct err *e);

/* ---- abi_request.c ---- */
struct tern_request {
    struct tern_model *m;
    struct lease lease; /* until the last event was read */
    struct request *r;
    struct buf text; /* of the last event */
    tern_top top[TOP_MAX];
    tern_finish finish;
    bool failed; /* r->err says how */
    /* how its reader is woken; freed with the request, which the engine may hold for longer */
    pthread_mutex_t lock;
    pthread_cond_t news;
    bool has_lock;
    uint64_t n_news; /* notifications of the engine */
    int fd;          /* eventfd, or -1 */
    bool closed;
    /* callbacks; queued and next_ready are the dispatcher's */
    tern_callback *fn;
    void *arg;
    bool queued;
    struct tern_request *next_ready;
};

/* One without a prompt, or NULL. embed: a vector is wanted. */
struct tern_request *abi_request_open(struct tern_model *m, const struct lease *l);
/* tern_next_wait for the reader, whoever that is. */
int abi_next(struct tern_request *r, tern_event *ev, int timeout_ms);
bool abi_request_is_over(const struct tern_request *r);

/* ---- abi_dispatch.c ---- */
struct dispatcher *dispatcher_open(struct err *e); /* NULL: *e says why */
void dispatcher_close(struct dispatcher *d);       /* NULL is allowed; also by a callback */
void dispatcher_push(struct dispatcher *d, struct tern_request *r); /* it may have events */
/* No callback of r runs or will run, other than the one that calls this. */
void dispatcher_remove(struct dispatcher *d, struct tern_request *r);

/* Waits on a condition until the time has passed: false. until_ns: clock_ns; UINT64_MAX: for ever. */
bool abi_wait_until(pthread_cond_t *news, pthread_mutex_t *lock, uint64_t until_ns);
uint64_t abi_until(int timeout_ms);
#endif
