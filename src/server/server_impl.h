/* server_impl.h - the state of a running server. Private to src/server.
 *
 * Everything belongs to the loop's thread, except `pool_changed`, which the pool's thread sets. */
#ifndef TERN_SERVER_SERVER_IMPL_H
#define TERN_SERVER_SERVER_IMPL_H

#include "base/arena.h"
#include "base/stat.h"
#include "server/health.h"
#include "server/notify.h"
#include "server/recent.h"
#include "server/refused.h"
#include "server/settings.h"

#include <stdatomic.h>

struct api;
struct auth;
struct engine_info;
struct engine_stats;
struct gpus;
struct jobs;
struct http;
struct limit;
struct loop;
struct loop_timer;
struct pool;
struct pull;
struct registry;
struct supervisor;
struct trace;

#define ROUTES_MAX 128
#define STATUS_CLASSES 6 /* 1xx to 5xx; 0 is unused */

enum life {
    LIFE_RUN,
    LIFE_DRAIN, /* no new work; requests that run may end */
    LIFE_ABORT, /* requests that still run are cancelled */
    LIFE_FLUSH  /* no request runs; the last replies are being sent */
};

/* From a request that was read to its first token: phases that follow each other, and their sum. */
enum phase {
    PHASE_ADMISSION,
    PHASE_SCHEDULING,
    PHASE_DISPATCH,
    PHASE_FIRST_TOKEN,
    PHASE_TOTAL,
    N_PHASES
};

/* Log lines of a model that were written already, so that each is written once. */
struct model_note {
    uint32_t logged;   /* generation whose load was logged; 0: none */
    bool failed;       /* and its failure was */
    bool stalled;      /* the watchdog saw no progress */
    int shown;         /* progress of a load that was logged, in percent */
    uint64_t shown_ns; /* when; 0: the load was not seen yet */
};

struct server {
    struct settings *s; /* borrowed */
    struct loop *loop;
    struct http *http;
    struct api *api;
    struct registry *registry;
    struct pool *pool;
    struct auth *auth;
    struct limit *limit;
    struct supervisor *workers; /* of isolated models; NULL: there are none */
    struct arena worker_flags;
    /* Live traffic, for lines of batches: when there was some last, when it began, when a request
     * waited for its place; 0: never. */
    uint64_t live_ns, live_from_ns, short_ns;
    struct jobs *jobs;  /* NULL: there is no folder for them */
    struct pull *pulls; /* models that are being downloaded: pulls.c */
    struct gpus *gpus;  /* NULL: no model uses a GPU, or NVML is not installed */

    uint64_t start_ns;
    int64_t start_ms; /* since 1970 */
    double listen_ms; /* from start to listening */
    int max_conns;    /* max-connections, or fewer if the process may not open so many files */

    struct loop_timer *tick;   /* once a second */
    struct loop_timer *ending; /* while shutting down */
    enum life life;
    uint64_t drain_ns, phase_ns; /* begin of the shutdown; of its current phase */
    atomic_bool pool_changed;    /* some model changed its state */
    struct model_note *notes;    /* [n_notes] by model: server_note */
    size_t n_notes, cap_notes;
    bool ready_logged;
    struct err failed; /* why the server stopped by itself: no model could be loaded */

    struct registrar *registrar;                            /* NULL: no NATS */
    struct notify notify;                                   /* the service manager */
    struct membudget_limit device_limits[MEMBUDGET_LIMITS]; /* of the settings */
    int n_device_limits;
    struct settings_facts facts; /* of this machine, read when /status is first asked for */

    struct health health;
    struct history history;
    struct recent recent;
    struct hist phases[N_PHASES];
    struct refused refused;
    struct counter replies[ROUTES_MAX + 1][STATUS_CLASSES]; /* [ROUTES_MAX]: of no route */
    uint64_t replied_ns;                                    /* when the last reply was sent */
    struct trace *traces; /* traceparent headers of requests in flight */
    int n_traces;
};

struct model_note *server_note(struct server *v, int i); /* NULL: no memory */
/* The statistics of model i; NULL: it never was ready. */
struct engine_stats *server_stats(struct server *v, int i);
/* The first model from i on that is current (pool.h); pool_n: there is none. */
int server_next_model(const struct server *v, int i);
/* Facts of model i; false: it is not ready. */
bool server_engine_info(struct server *v, int i, struct engine_info *out);
#endif
