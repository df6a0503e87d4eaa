/* devices.c - statistics of the devices that models run on, summed over models on the same device.
 *
 * The CPU is not listed: its memory is that of the process. */
#include "server/devices.h"

#include "base/jsonw.h"
#include "engine/engine.h"
#include "engine/info.h"
#include "pool/pool.h"
#include "server/gpus.h"
#include "server/metrics.h"
#include "server/server_impl.h"

struct device {
    const char *name, *detail;
    struct engine_device s; /* bytes and counts: sums over its models; init_ns: of the first */
};

enum { DEVICES_MAX = 16 };

/* Sums over the models on one device. */
static void add_stats(struct device *d, const struct engine_device *s)
{
    d->s.weight_bytes += s->weight_bytes;
    d->s.kv_bytes += s->kv_bytes;
    d->s.scratch_bytes += s->scratch_bytes;
    d->s.graph_bytes += s->graph_bytes;
    d->s.library_bytes += s->library_bytes;
    d->s.busy_ns += s->busy_ns;
    d->s.n_steps += s->n_steps;
    d->s.n_graphs += s->n_graphs;
    d->s.n_replays += s->n_replays;
    /* Each model measured it when it loaded: the smallest value is the nearest to now. */
    if (s->free_bytes < d->s.free_bytes) d->s.free_bytes = s->free_bytes;
}

/* Adds the device to the list, or to its entry; returns the new length. */
static int find_or_add_device(struct device *out, int n, const struct engine_device *s)
{
    int k = 0;

    while (k < n && strcmp(out[k].name, s->name) != 0) k++;
    if (k < n) add_stats(&out[k], s);
    else if (n < DEVICES_MAX) out[n++] = (struct device){ s->name, s->detail, *s };
    return n;
}

/* Only models that are ready, and backends with statistics of their own. */
static int collect_devices(struct server *v, struct device *out)
{
    int n = 0;

    for (int i = 0; i < pool_n(v->pool); i++) {
        struct engine_info info;
        if (!server_engine_info(v, i, &info)) continue;
        for (int k = 0; k < info.n_devices; k++)
            if (info.device[k].counts) n = find_or_add_device(out, n, &info.device[k]);
    }
    return n;
}

uint64_t devices_busy_ns(struct server *v)
{
    struct device d[DEVICES_MAX];
    uint64_t busy = 0;
    int n = collect_devices(v, d);

    for (int i = 0; i < n; i++) busy += d[i].s.busy_ns;
    return busy;
}

/* Share of the last RATE_S seconds. A model that loaded in between counts as idle before. */
static double compute_utilization(struct server *v, int n_devices)
{
    const struct sums *b = history_last(&v->history), *a = history_before(&v->history, RATE_S);
    double share;

    if (!a || !b || n_devices == 0 || b->at_ns <= a->at_ns || b->busy_ns < a->busy_ns) return 0;
    share = (double)(b->busy_ns - a->busy_ns) / (double)(b->at_ns - a->at_ns) / n_devices;
    return share < 1 ? share : 1;
}

enum { KINDS = 8 };
static const char *const kinds[KINDS] = { "weights",   "kv",    "scratch", "graphs",
                                          "libraries", "other", "free",    "total" };

/* Bytes of one device by the names in `kinds`. `other` is what remains of the used memory. */
static void split_by_kind(const struct engine_device *s, uint64_t out[KINDS])
{
    uint64_t used = s->total_bytes > s->free_bytes ? s->total_bytes - s->free_bytes : 0, ours = 0;

    out[0] = s->weight_bytes;
    out[1] = s->kv_bytes;
    out[2] = s->scratch_bytes;
    out[3] = s->graph_bytes;
    out[4] = s->library_bytes;
    for (int i = 0; i < 5; i++) ours += out[i];
    out[5] = used > ours ? used - ours : 0; /* contexts, kernels, other programs */
    out[6] = s->free_bytes;
    out[7] = s->total_bytes;
}

void devices_write_json(struct server *v, struct jsonw *w)
{
    struct device d[DEVICES_MAX];
    int n = collect_devices(v, d);

    for (int i = 0; i < n; i++) {
        uint64_t bytes[KINDS];
        split_by_kind(&d[i].s, bytes);
        jsonw_obj(w);
        jsonw_key(w, "device"), jsonw_str(w, str_c(d[i].name));
        jsonw_key(w, "detail"), jsonw_str(w, str_c(d[i].detail));
        jsonw_key(w, "init_ms"), jsonw_num(w, (double)(d[i].s.init_ns / 1000) / 1e3);
        jsonw_key(w, "busy_s"), jsonw_num(w, (double)(d[i].s.busy_ns / 1000000) / 1e3);
        jsonw_key(w, "steps"), jsonw_int(w, (int64_t)d[i].s.n_steps);
        jsonw_key(w, "graphs"), jsonw_int(w, (int64_t)d[i].s.n_graphs);
        jsonw_key(w, "replays"), jsonw_int(w, (int64_t)d[i].s.n_replays);
        jsonw_key(w, "memory"), jsonw_obj(w);
        for (int k = 0; k < KINDS; k++) jsonw_key(w, kinds[k]), jsonw_int(w, (int64_t)bytes[k]);
        jsonw_key(w, "limit"),
            jsonw_int(w,
                      (int64_t)membudget_limit_of(v->device_limits, v->n_device_limits, d[i].name));
        jsonw_end(w);
        jsonw_end(w);
    }
}

double devices_utilization(struct server *v)
{
    struct device d[DEVICES_MAX];
    return compute_utilization(v, collect_devices(v, d));
}

static void write_memory(const struct device *d, int n, struct buf *out)
{
    const char *help = "Memory of a device by use; other: contexts, kernels, other programs";
    struct buf labels = { 0 };

    for (int i = 0; i < n; i++) {
        uint64_t bytes[KINDS];
        split_by_kind(&d[i].s, bytes);
        for (int k = 0; k < KINDS; k++, help = NULL) {
            buf_clear(&labels);
            stat_label(&labels, "device", str_c(d[i].name));
            stat_label(&labels, "kind", str_c(kinds[k]));
            stat_gauge(out, "tern_device_memory_bytes", metrics_labels(&labels, out), help,
                       (double)bytes[k]);
        }
    }
    buf_release(&labels);
}

/* The CUDA metrics exist without CUDA, too: dashboards expect them. */
void devices_write_metrics(struct server *v, struct buf *out)
{
    struct device d[DEVICES_MAX];
    int n = collect_devices(v, d);
    double init_ms = 0;

    for (int i = 0; i < n; i++) init_ms += (double)d[i].s.init_ns / 1e6;
    stat_gauge(out, "tern_cuda_init_duration_ms", "",
               "Time to initialise CUDA; 0: CUDA is not used", init_ms);
    stat_gauge(out, "tern_cuda_stream_utilization", "",
               "Share of time CUDA streams were busy; 0: CUDA is not used",
               compute_utilization(v, n));
    write_memory(d, n, out);
    gpus_write_metrics(v->gpus, out);
}
