/* scan.c - tensors slice by slice, in the calling thread or in a thread of its own. */
#include "model/scan.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "kernel/finite.h"
#include "model/weightlist.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

enum {
    SLICE_BYTES = 1 << 20,
    REST = 3 /* the thread waits this many times as long as a slice took */
};

struct scan {
    const struct source *source;
    const struct weight_list *list;
    pthread_t thread;
    atomic_bool stop;
};

/* Called after each slice; true: no more of it is wanted. */
typedef bool pause_fn(void *arg, uint64_t slice_ns);

/* MXFP4 in folders has its scales in a tensor of bytes. */
static bool are_mx_scales(const struct source_tensor *t)
{
    return t->type == DT_U8 && str_ends(t->name, STR("_scales"));
}

static bool is_finite(const struct source_tensor *t, const char *p, int64_t n)
{
    bool good = true;

    if (!are_mx_scales(t)) return finite_all(t->type, p, n);
    for (int64_t i = 0; i < n; i++) good &= finite_mx_scale((uint8_t)p[i]);
    return good;
}

static int fail_number(const struct source *s, const struct source_tensor *t, int64_t at,
                       struct err *e)
{
    return err_set(e, E_DAMAGED,
                   "%s: the tensor %.*s has a NaN or an infinite number in %s %lld; --allow-nan "
                   "uses the model all the same",
                   source_path(s), STR_ARG(str_take(t->name, 100)),
                   t->n_dims == 1 ? "element" : "row", (long long)at);
}

/* The first unit (a row, or an element of a vector) of [from, end) that is not finite. */
static int64_t find_unit(const struct source_tensor *t, int64_t from, int64_t end, int64_t elements,
                         uint64_t bytes)
{
    while (from < end && is_finite(t, (const char *)t->data + (size_t)from * bytes, elements))
        from++;
    return from;
}

/* OK, E_DAMAGED, or E_CANCELLED where pause wants no more. */
static int scan_slices(const struct source *s, const struct source_tensor *t, pause_fn *pause,
                       void *arg, struct err *e)
{
    const struct dtype_info *d = dtype_info((int)t->type);
    int64_t cols = t->n_dims ? t->dims[t->n_dims - 1] : 1, units = 1, step; /* a scalar has one */
    uint64_t bytes = 0;

    for (int i = 0; i + 1 < t->n_dims; i++) units *= t->dims[i];
    if (t->n_dims == 1 && d->block == 1) units = cols, cols = 1;
    if (!dtype_row_bytes(t->type, (uint64_t)cols, &bytes) || !bytes) return OK;
    step = (int64_t)(SLICE_BYTES / bytes);
    if (step < 1 || dtype_head(t->type)) step = 1; /* every row has a head */
    for (int64_t at = 0; at < units; at += step) {
        uint64_t start = clock_ns();
        int64_t n = units - at < step ? units - at : step;
        if (!is_finite(t, (const char *)t->data + (size_t)at * bytes, n * cols))
            return fail_number(s, t, find_unit(t, at, at + n, cols, bytes), e);
        if (pause && pause(arg, clock_ns() - start)) return E_CANCELLED;
    }
    return OK;
}

int scan_tensor(const struct source *s, const struct source_tensor *t, struct err *e)
{
    return scan_slices(s, t, NULL, NULL, e);
}

/* Only floats can be bad: codes in E4M3 or E5M2, and scales. */
static int scan_parts(const struct source *s, const struct hfquant_tensor *q, pause_fn *pause,
                      void *arg, struct err *e)
{
    int rc = OK;

    for (int i = 0; i < HFQUANT_PARTS && rc == OK; i++) {
        const struct source_tensor *t = hfquant_part(q, i);
        if (!t || t->type == DT_I32 || t->type == DT_U8 || t->type == DT_I8) continue;
        if (t->n_dims > 0) rc = scan_slices(s, t, pause, arg, e);
    }
    return rc;
}

int scan_item(const struct source *s, const struct weight_item *w, struct err *e)
{
    int rc = w->r->kind == ROW_IDS ? OK
             : w->t->quant         ? scan_parts(s, w->t->quant, NULL, NULL, e)
                                   : scan_tensor(s, w->t, e);

    return rc == OK && w->lay.scales ? scan_tensor(s, w->lay.scales, e) : rc;
}

int scan_graph(const struct onnx *m, struct err *e)
{
    for (int i = 0; i < m->n_values; i++) {
        const struct onnx_value *v = &m->values[i];
        if (!v->is_const || v->t.type != ONNX_F32) continue;
        for (size_t k = 0; k < v->t.n; k++) {
            float x;
            memcpy(&x, (const char *)v->t.data + k * sizeof x, sizeof x);
            if (isnan(x))
                return err_set(e, E_DAMAGED,
                               "%s: the tensor %.*s has a NaN in element %zu; --allow-nan uses the "
                               "model all the same",
                               m->path, STR_ARG(str_take(v->name, 100)), k);
        }
    }
    return OK;
}

/* ---- in the background ---- */

static bool rest(void *arg, uint64_t slice_ns)
{
    struct scan *c = arg;
    uint64_t ns = slice_ns * REST;
    struct timespec t = { .tv_sec = (time_t)(ns / 1000000000u),
                          .tv_nsec = (long)(ns % 1000000000u) };

    if (t.tv_sec > 0) t = (struct timespec){ .tv_sec = 1 };
    if (!atomic_load(&c->stop)) nanosleep(&t, NULL);
    return atomic_load(&c->stop);
}

static void *scan_main(void *arg)
{
    struct scan *c = arg;
    struct err e;
    int rc = OK;

    thread_set_nice(19);
    for (int i = 0; i < c->list->n && rc == OK; i++) {
        const struct weight_item *w = &c->list->items[i];
        rc = w->t->quant ? scan_parts(c->source, w->t->quant, rest, c, &e)
                         : scan_slices(c->source, w->t, rest, c, &e);
        if (rc == OK && w->lay.scales) rc = scan_slices(c->source, w->lay.scales, rest, c, &e);
    }
    if (rc == E_DAMAGED) source_set_damaged(c->source, e.msg);
    else if (rc == OK) log_debug("%s: all weights are finite", source_path(c->source));
    return NULL;
}

struct scan *scan_start(const struct source *s, const struct weight_list *list)
{
    struct scan *c = mem_new(struct scan);

    if (!c) return NULL;
    c->source = s, c->list = list;
    if (thread_start(&c->thread, "tern-scan", scan_main, c, NULL) == OK) return c;
    mem_free(c);
    return NULL;
}

void scan_stop(struct scan *c)
{
    if (!c) return;
    atomic_store(&c->stop, true);
    pthread_join(c->thread, NULL);
    mem_free(c);
}
