/* gpus.h - what NVIDIA's management library tells of the GPUs of this machine.
 *
 * The library is opened where it is there; a thread of its own asks it once a second, and whoever
 * wants to know gets a copy of what it said last. So nobody waits for a driver. */
#ifndef TERN_SERVER_GPUS_H
#define TERN_SERVER_GPUS_H

#include "base/buf.h"
#include "base/jsonw.h"

#define GPUS_MAX 16

struct gpu {
    char name[96];
    uint64_t used_bytes, total_bytes;
    int utilization, memory_utilization; /* percent of the last moment; -1: it does not tell */
    int temperature_c;                   /* -1: it does not tell */
    int64_t power_mw;                    /* -1: it does not tell */
};

struct gpus;

/* library NULL: the system's. NULL: there is none, which is no error. */
struct gpus *gpus_open(const char *library);
void gpus_close(struct gpus *g); /* NULL is fine */

/* How many there are, and the first `most` of them; 0: nobody was asked yet, or g is NULL. */
int gpus_get(struct gpus *g, struct gpu *out, int most);
int64_t gpus_n_asked(struct gpus *g); /* times the library was asked for news */

/* The values of "gpus" in /status, and lines of /metrics; nothing where there are no GPUs. */
void gpus_json(struct gpus *g, struct jsonw *w);
void gpus_metrics(struct gpus *g, struct buf *out);
#endif
