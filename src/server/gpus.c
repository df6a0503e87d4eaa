/* gpus.c - NVML through dlopen, and the thread that polls it.
 *
 * The library is not a dependency: it is opened by name, and its absence is normal. A call into the
 * driver can take long, so only the thread makes one; readers copy the last values under a lock. */
#include "server/gpus.h"

#include "base/jsonw.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/stat.h"
#include "base/thread.h"
#include "server/metrics.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#define LIBRARY "libnvidia-ml.so.1"
#define POLL_S 1

/* The part of NVML's ABI that is used. Every function returns 0 on success. */
struct nvml_rates {
    unsigned gpu, memory;
};
struct nvml_memory {
    unsigned long long total, free, used;
};

struct nvml {
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *n);
    int (*handle)(unsigned index, void **device);
    int (*name)(void *device, char *name, unsigned size);
    int (*memory)(void *device, struct nvml_memory *out);
    /* these may be missing: */
    int (*rates)(void *device, struct nvml_rates *out);
    int (*temperature)(void *device, int sensor, unsigned *celsius);
    int (*power)(void *device, unsigned *milliwatts);
};

struct gpus {
    void *lib;
    struct nvml nvml;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool has_thread;
    bool quit; /* under the lock, like the fields below */
    struct gpu gpu[GPUS_MAX];
    int n;
    int64_t n_polls;
};

/* false: a required function is missing, so the library is not NVML. */
static bool find_symbols(struct gpus *g)
{
    struct nvml *v = &g->nvml;
    const struct {
        void *to;
        const char *name;
        bool required;
    } names[] = {
        { &v->init, "nvmlInit_v2", true },
        { &v->shutdown, "nvmlShutdown", true },
        { &v->count, "nvmlDeviceGetCount_v2", true },
        { &v->handle, "nvmlDeviceGetHandleByIndex_v2", true },
        { &v->name, "nvmlDeviceGetName", true },
        { &v->memory, "nvmlDeviceGetMemoryInfo", true },
        { &v->rates, "nvmlDeviceGetUtilizationRates", false },
        { &v->temperature, "nvmlDeviceGetTemperature", false },
        { &v->power, "nvmlDeviceGetPowerUsage", false },
    };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *p = dlsym(g->lib, names[i].name);
        if (!p && names[i].required) return false;
        memcpy(names[i].to, &p, sizeof p);
    }
    return true;
}

/* Values that the GPU does not report stay -1. false: the GPU cannot be opened. */
static bool poll_gpu(const struct nvml *v, unsigned index, struct gpu *out)
{
    struct nvml_memory m = { 0 };
    struct nvml_rates r = { 0 };
    unsigned n = 0;
    void *d = NULL;

    *out = (struct gpu){
        .utilization = -1, .memory_utilization = -1, .temperature_c = -1, .power_mw = -1
    };
    if (v->handle(index, &d) != 0) return false;
    if (v->name(d, out->name, sizeof out->name - 1) != 0)
        snprintf(out->name, sizeof out->name, "GPU %u", index);
    if (v->memory(d, &m) == 0) out->used_bytes = m.used, out->total_bytes = m.total;
    if (v->rates && v->rates(d, &r) == 0)
        out->utilization = (int)r.gpu, out->memory_utilization = (int)r.memory;
    if (v->temperature && v->temperature(d, 0, &n) == 0) out->temperature_c = (int)n;
    if (v->power && v->power(d, &n) == 0) out->power_mw = (int64_t)n;
    return true;
}

/* The driver is called without the lock. */
static void poll_all(struct gpus *g)
{
    struct gpu all[GPUS_MAX];
    unsigned count = 0;
    int n = 0;

    if (g->nvml.count(&count) != 0) count = 0;
    for (unsigned i = 0; i < count && n < GPUS_MAX; i++) n += poll_gpu(&g->nvml, i, &all[n]);
    pthread_mutex_lock(&g->lock);
    if (n) memcpy(g->gpu, all, (size_t)n * sizeof *all);
    g->n = n;
    g->n_polls++;
    pthread_mutex_unlock(&g->lock);
}

/* Sleeps until the next poll; false: gpus_close was called. */
static bool wait_for_poll(struct gpus *g)
{
    struct timespec until;
    bool quit;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += POLL_S;
    pthread_mutex_lock(&g->lock);
    while (!g->quit && pthread_cond_timedwait(&g->wake, &g->lock, &until) == 0) {}
    quit = g->quit;
    pthread_mutex_unlock(&g->lock);
    return !quit;
}

/* The library is initialised here, since that calls the driver, too. */
static void *gpus_main(void *arg)
{
    struct gpus *g = arg;

    if (g->nvml.init() != 0) {
        log_debug("NVML is installed, but cannot be initialised: no driver?");
        return NULL;
    }
    do poll_all(g);
    while (wait_for_poll(g));
    g->nvml.shutdown();
    return NULL;
}

struct gpus *gpus_open(const char *library)
{
    struct gpus *g = mem_new(struct gpus);

    if (!g || lock_init(&g->lock, &g->wake, "the GPU monitor", NULL) != OK) {
        mem_free(g);
        return NULL;
    }
    g->lib = dlopen(library ? library : LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (g->lib && find_symbols(g))
        g->has_thread = thread_start(&g->thread, "tern-gpus", gpus_main, g, NULL) == OK;
    if (g->has_thread) return g;
    gpus_close(g);
    return NULL;
}

void gpus_close(struct gpus *g)
{
    if (!g) return;
    pthread_mutex_lock(&g->lock);
    g->quit = true;
    pthread_cond_signal(&g->wake);
    pthread_mutex_unlock(&g->lock);
    if (g->has_thread) pthread_join(g->thread, NULL);
    if (g->lib) dlclose(g->lib);
    lock_destroy(&g->lock, &g->wake);
    mem_free(g);
}

int gpus_get(struct gpus *g, struct gpu *out, int most)
{
    int n;

    if (!g) return 0;
    pthread_mutex_lock(&g->lock);
    n = g->n;
    if (most > n) most = n;
    if (most > 0) memcpy(out, g->gpu, (size_t)most * sizeof *out);
    pthread_mutex_unlock(&g->lock);
    return n;
}

int64_t gpus_n_polls(struct gpus *g)
{
    int64_t n;

    pthread_mutex_lock(&g->lock);
    n = g->n_polls;
    pthread_mutex_unlock(&g->lock);
    return n;
}

/* ---- output ---- */

/* Writes the member unless it is not reported (below 0). */
static void write_reported(struct jsonw *w, const char *key, double v)
{
    if (v >= 0) jsonw_key(w, key), jsonw_num(w, v);
}

void gpus_write_json(struct gpus *g, struct jsonw *w)
{
    struct gpu all[GPUS_MAX];
    int n = gpus_get(g, all, GPUS_MAX);

    for (int i = 0; i < n; i++) {
        jsonw_obj(w);
        jsonw_key(w, "index"), jsonw_int(w, i);
        jsonw_key(w, "name"), jsonw_str(w, str_c(all[i].name));
        jsonw_key(w, "memory_used"), jsonw_int(w, (int64_t)all[i].used_bytes);
        jsonw_key(w, "memory_total"), jsonw_int(w, (int64_t)all[i].total_bytes);
        write_reported(w, "utilization_percent", all[i].utilization);
        write_reported(w, "memory_utilization_percent", all[i].memory_utilization);
        write_reported(w, "temperature_c", all[i].temperature_c);
        write_reported(w, "power_w", all[i].power_mw < 0 ? -1 : (double)all[i].power_mw / 1e3);
        jsonw_end(w);
    }
}

/* The value of one metric; below 0: not reported. */
static double get_value(const struct gpu *u, int metric)
{
    switch (metric) {
    case 0: return u->utilization < 0 ? -1 : u->utilization / 100.0;
    case 1: return (double)u->used_bytes;
    case 2: return (double)u->total_bytes;
    case 3: return u->temperature_c;
    default: return u->power_mw < 0 ? -1 : (double)u->power_mw / 1e3;
    }
}

void gpus_write_metrics(struct gpus *g, struct buf *out)
{
    static const struct {
        const char *name, *help;
    } metrics[] = {
        { "tern_gpu_utilization", "Share of time a kernel ran on the GPU, as NVML reports it" },
        { "tern_gpu_memory_used_bytes", "Memory of the GPU in use by all processes" },
        { "tern_gpu_memory_total_bytes", "Memory of the GPU" },
        { "tern_gpu_temperature_celsius", "Temperature of the GPU" },
        { "tern_gpu_power_watts", "Power consumption of the GPU" },
    };
    struct gpu all[GPUS_MAX];
    struct buf labels = { 0 };
    int n = gpus_get(g, all, GPUS_MAX);

    for (int m = 0; m < (int)(sizeof metrics / sizeof *metrics); m++) {
        const char *help = metrics[m].help;
        for (int i = 0; i < n; i++) {
            double v = get_value(&all[i], m);
            char index[16];
            if (v < 0) continue;
            snprintf(index, sizeof index, "%d", i);
            buf_clear(&labels);
            stat_label(&labels, "gpu", str_c(index));
            stat_label(&labels, "name", str_c(all[i].name));
            stat_gauge(out, metrics[m].name, metrics_labels(&labels, out), help, v);
            help = NULL;
        }
    }
    buf_release(&labels);
}
