/* gpus.h - memory, load, temperature and power of this machine's GPUs, from NVIDIA's management
 * library (NVML).
 *
 * The library is opened at run time where it is installed. A thread polls it once a second; readers
 * get a copy of the last values, so no request waits for a driver. */
#ifndef TERN_SERVER_GPUS_H
#define TERN_SERVER_GPUS_H

#include <stdint.h>

struct buf;
struct jsonw;

#define GPUS_MAX 16

struct gpu {
    char name[96];
    uint64_t used_bytes, total_bytes;
    int utilization, memory_utilization; /* percent; -1: not reported */
    int temperature_c;                   /* -1: not reported */
    int64_t power_mw;                    /* -1: not reported */
};

struct gpus;

/* library NULL: the system's. Returns NULL where there is none (not an error), or no memory. */
struct gpus *gpus_open(const char *library);
void gpus_close(struct gpus *g); /* NULL is allowed */

/* The number of GPUs, and the first `most` of them; 0: not polled yet, or g is NULL. */
int gpus_get(struct gpus *g, struct gpu *out, int most);
int64_t gpus_n_polls(struct gpus *g); /* polls so far */

/* The elements of "gpus" in /status, and series of /metrics; nothing where there are no GPUs. */
void gpus_write_json(struct gpus *g, struct jsonw *w);
void gpus_write_metrics(struct gpus *g, struct buf *out);
#endif
