/* health.h - is the server ready, and what did it do in the last two minutes?
 *
 * A timer samples all engines once a second (health_tick). GET /health and GET /ready are answered
 * from the state it leaves, without asking an engine, so they answer even while an engine hangs. */
#ifndef TERN_SERVER_HEALTH_H
#define TERN_SERVER_HEALTH_H

#include "base/buf.h"
#include "server/settings.h"

struct server;
struct visit;

#define REASON_BYTES 512
#define HISTORY 120 /* seconds of samples */
#define RATE_S 5    /* seconds that rates are averaged over */

/* Why a server is not ready, most important first. */
enum ready { READY_OK, READY_DRAINING, READY_FAILED, READY_LOADING, READY_STALLED };

struct health {
    enum ready ready;
    char reason[REASON_BYTES]; /* "" when ready */
    struct buf body;           /* of GET /ready, rendered when something changes */
};

/* Counters summed over all models at one moment. */
struct sums {
    uint64_t at_ns, generated, prompt, finished, steps;
    uint64_t busy_ns; /* of all devices */
    int64_t running, waiting, kv_used;
};

struct history { /* a ring of samples, one a second */
    struct sums at[HISTORY + 1];
    int n; /* ever taken; the newest is at[(n - 1) % (HISTORY + 1)] */
};

void health_update(struct server *v); /* after a model loaded, or draining began */
void health_tick(struct server *v);   /* once a second: samples, watchdog, update */
void health_get_live(struct visit *t);
void health_get_ready(struct visit *t);
const char *health_name(enum ready r); /* "ready", "draining", ... */

void history_sample(struct server *v, struct sums *out);  /* the sums now */
const struct sums *history_last(const struct history *h); /* NULL: no sample yet */
/* The sample so many seconds before the newest, or the oldest; NULL: fewer than two samples. */
const struct sums *history_before(const struct history *h, int seconds);
#endif
