/* gangsplit.c - bisection over the time of a step; for a given time, stages take as many layers as
 * they can compute and keep, one after the other. */
#include "model/gangsplit.h"

#include "base/minmax.h"

#include <stdio.h>
#include <string.h>

enum { HALVINGS = 60 };
#define NEARLY_ALL (1 - 1e-9) /* sums of parts are rounded */

/* A stage with layers [at, at + n). */
struct part {
    const struct gangsplit_in *in;
    int stage, at, n;
    double cost, bytes; /* of all its layers, and the head */
    const double *left; /* [memory] bytes that earlier stages have left */
};

static struct part make_part(const struct gangsplit_in *in, int stage, int at, int n,
                             const double *left)
{
    struct part p = { .in = in, .stage = stage, .at = at, .n = n, .left = left };

    for (int l = at; l < at + n; l++) {
        p.cost += in->layers[l].cost;
        p.bytes += (double)in->layers[l].bytes;
    }
    if (stage == in->pp - 1) {
        p.cost += in->head_cost;
        p.bytes += (double)in->head_bytes;
    }
    if (p.cost <= 0) p.cost = 1;
    return p;
}

/* Bytes that the stage's members need in memory m whatever their shares are; *n: their number. */
static double fixed_bytes(const struct part *p, int m, int *n)
{
    const struct gangsplit_in *in = p->in;

    *n = 0;
    for (int r = 0; r < in->tp; r++) *n += in->memories[p->stage * in->tp + r] == m;
    return (double)*n * (double)in->each_bytes + (p->stage == 0 ? (double)in->embd_bytes : 0);
}

/* Bytes of memory m that stages behind this one cannot do without: one of the smallest layers each. */
static double reserved_bytes(const struct part *p, int m)
{
    const struct gangsplit_in *in = p->in;
    double least = (double)in->layers[0].bytes, sum = 0;

    for (int l = 1; l < in->n_layers; l++)
        if ((double)in->layers[l].bytes < least) least = (double)in->layers[l].bytes;
    for (int rank = (p->stage + 1) * in->tp; rank < in->tp * in->pp; rank++) {
        bool last = rank / in->tp == in->pp - 1;
        if (in->memories[rank] != m) continue;
        sum += (double)in->each_bytes + (least + (last ? (double)in->head_bytes : 0)) / in->tp;
    }
    return sum;
}

/* The part of the stage that fits into memory m, and the part that its members compute in that time. */
static void bound_part(const struct part *p, int m, double time, double *fits, double *reach)
{
    const struct gangsplit_in *in = p->in;
    int n;
    double fixed = fixed_bytes(p, m, &n);

    *fits = *reach = 0;
    if (n == 0) return;
    for (int r = 0; r < in->tp; r++) {
        int rank = p->stage * in->tp + r;
        if (in->memories[rank] == m) *reach += time * in->speeds[rank] / p->cost;
    }
    *fits = *reach;
    if (in->rooms[m] == UINT64_MAX) return;
    fixed += reserved_bytes(p, m);
    *fits = p->left[m] > fixed ? p->left[m] - fixed : 0;
    *fits = p->bytes > 0 ? *fits / p->bytes : 1;
}

/* Can the stage compute and keep its layers in that time? Each memory must have room for something. */
static bool is_done(const struct part *p, double time)
{
    double sum = 0, fits, reach;

    for (int m = 0; m < COMM_MAX; m++) {
        bound_part(p, m, time, &fits, &reach);
        if (reach > 0 && fits <= 0) return false;
        sum += fits < reach ? fits : reach;
    }
    return sum >= NEARLY_ALL;
}

/* The most layers that stage s takes in that time; those behind it get one each at least. 0: none. */
static int take_layers(const struct gangsplit_in *in, int s, int at, double time,
                       const double *left)
{
    int most = in->n_layers - at - (in->pp - 1 - s), n = s == in->pp - 1 ? most : 1;
    struct part p = make_part(in, s, at, n, left);

    if (!is_done(&p, time)) return 0;
    for (; n < most; n++) {
        p = make_part(in, s, at, n + 1, left);
        if (!is_done(&p, time)) break;
    }
    return n;
}

/* Parts of the members in the shortest time that the stage can have; what they take is off `left`. */
static void share_stage(const struct part *p, double longest, double *parts, double *left)
{
    const struct gangsplit_in *in = p->in;
    double lo = 0, hi = longest, fits, reach;
    int n;

    for (int i = 0; i < HALVINGS; i++) {
        double mid = (lo + hi) / 2;
        if (is_done(p, mid)) hi = mid;
        else lo = mid;
    }
    for (int m = 0; m < COMM_MAX; m++) {
        bound_part(p, m, hi, &fits, &reach);
        if (reach <= 0) continue;
        for (int r = 0; r < in->tp; r++) {
            int rank = p->stage * in->tp + r;
            if (in->memories[rank] != m) continue;
            parts[r] = hi * in->speeds[rank] / p->cost * (fits < reach ? fits / reach : 1);
        }
        left[m] -= fixed_bytes(p, m, &n) + p->bytes * (fits < reach ? fits : reach);
    }
}

/* All stages in that time. false: it is too short. */
static bool fill_stages(struct gangsplit *out, const struct gangsplit_in *in, double time)
{
    double left[COMM_MAX], parts[COMM_MAX] = { 0 };
    int at = 0;

    for (int m = 0; m < COMM_MAX; m++) left[m] = (double)in->rooms[m];
    for (int s = 0; s < in->pp; s++) {
        int n = take_layers(in, s, at, time, left);
        struct part p = make_part(in, s, at, n, left);
        if (n < 1) return false;
        share_stage(&p, time, parts, left);
        for (int r = 0; r < in->tp; r++)
            out->shares[s * in->tp + r] = max_int(1, (int)(parts[r] * GANGSPLIT_WHOLE + 0.5));
        out->layers[s] = n;
        at += n;
    }
    return true;
}

/* ---- equal parts ---- */

bool gangsplit_even_fits(const struct gangsplit_in *in)
{
    double left[COMM_MAX];
    int n, at = 0;

    for (int m = 0; m < COMM_MAX; m++) left[m] = (double)in->rooms[m];
    for (int s = 0; s < in->pp; s++) {
        int end = (int)(((int64_t)in->n_layers * (s + 1) + in->pp / 2) / in->pp);
        struct part p = make_part(in, s, at, end - at, left);
        for (int m = 0; m < COMM_MAX; m++) {
            double fixed = fixed_bytes(&p, m, &n);
            if (n == 0 || in->rooms[m] == UINT64_MAX) continue;
            left[m] -= fixed + p.bytes * n / in->tp;
            if (left[m] < 0) return false;
        }
        at = end;
    }
    return true;
}

/* ---- messages ---- */

static double mib(double bytes) { return bytes / 1048576; }

/* "member 0: 512 MiB, members 1 and 2: 900 MiB" */
static void describe_rooms(const struct gangsplit_in *in, char *out, size_t cap)
{
    int n_members = in->tp * in->pp;
    size_t n = 0;

    *out = 0;
    for (int m = 0; m < COMM_MAX; m++) {
        int of = 0, k = 0;
        for (int r = 0; r < n_members; r++) of += in->memories[r] == m;
        if (of == 0 || in->rooms[m] == UINT64_MAX) continue;
        if (n < cap) n += (size_t)snprintf(out + n, cap - n, n ? ", member" : "member");
        if (n < cap && of > 1) n += (size_t)snprintf(out + n, cap - n, "s");
        for (int r = 0; r < n_members; r++)
            if (in->memories[r] == m && n < cap)
                n += (size_t)snprintf(out + n, cap - n, "%s %d", k++ ? " and" : "", r);
        if (n < cap)
            n += (size_t)snprintf(out + n, cap - n, ": %.0f MiB", mib((double)in->rooms[m]));
    }
}

static int refuse(const struct gangsplit_in *in, struct err *e)
{
    double bytes = (double)in->head_bytes + (double)in->embd_bytes;
    char rooms[256];

    for (int l = 0; l < in->n_layers; l++) bytes += (double)in->layers[l].bytes;
    describe_rooms(in, rooms, sizeof rooms);
    return err_set(e, E_UNSUPPORTED,
                   "split: weights and KV cache of %.0f MiB and scratch of %.0f MiB for each of %d "
                   "members do not fit into what is free (%s)",
                   mib(bytes), mib((double)in->each_bytes), in->tp * in->pp, rooms);
}

int gangsplit_choose(struct gangsplit *out, const struct gangsplit_in *in, struct err *e)
{
    double lo = 0, hi, all = in->head_cost, slowest = in->speeds[0];

    *out = (struct gangsplit){ 0 };
    for (int l = 0; l < in->n_layers; l++) all += in->layers[l].cost;
    for (int r = 1; r < in->tp * in->pp; r++)
        if (in->speeds[r] < slowest) slowest = in->speeds[r];
    hi = 2 * (all > 1 ? all : 1) / slowest; /* every member could compute all of it */
    if (!fill_stages(out, in, hi)) return refuse(in, e);
    for (int i = 0; i < HALVINGS; i++) {
        double mid = (lo + hi) / 2;
        struct gangsplit try = { 0 };
        if (fill_stages(&try, in, mid)) hi = mid, *out = try;
        else lo = mid;
    }
    return OK;
}
