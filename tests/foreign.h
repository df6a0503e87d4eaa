/* foreign.h - the CPU's backend as a device whose memory the host must not read: its sums over members
 * go through staging memory, by a thread of their own, as those of a GPU do. It can be told to fail. */
#ifndef TERN_TESTS_FOREIGN_H
#define TERN_TESTS_FOREIGN_H

#include "base/mem.h"
#include "kernel/backend.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct foreign {
    struct backend *be;          /* the CPU's, opened by somebody */
    unsigned ways;               /* that it offers */
    unsigned char card;          /* which one it says that it is */
    int offer_fails, join_fails; /* error codes; join: of other ways than the host */
    bool adds_wrongly;           /* likewise */
    /* what has happened */
    struct sum_group g;
    float *staging;
    size_t max;
    int n_joins, n_sums;
    bool left;
};

enum { FOREIGN_MAX = 16 };
static struct foreign *foreign_list[FOREIGN_MAX];

static struct foreign *foreign_of(const struct backend *be)
{
    for (int i = 0; i < FOREIGN_MAX; i++)
        if (foreign_list[i] && foreign_list[i]->be == be) return foreign_list[i];
    return NULL;
}

static int foreign_offer(struct backend *be, struct group_offer *out, const struct group_ask *ask,
                         struct err *e)
{
    struct foreign *f = foreign_of(be);

    if (f->offer_fails) return err_set(e, f->offer_fails, "the device makes no offer");
    f->max = ask->max;
    out->ways = f->ways & ask->ways;
    out->card[0] = f->card;
    snprintf(out->device, sizeof out->device, "fake:%d", f->card);
    return OK;
}

static int foreign_join(struct backend *be, const struct sum_group *g, struct err *e)
{
    struct foreign *f = foreign_of(be);

    if (g->way != GROUP_HOST && f->join_fails)
        return err_set(e, f->join_fails, "the memory of the others is out of reach");
    f->g = *g;
    f->n_joins++;
    if (!f->staging) f->staging = mem_array(g->max, sizeof *f->staging);
    return OK;
}

static void foreign_leave(struct backend *be)
{
    struct foreign *f = foreign_of(be);

    if (f->g.way == GROUP_IPC && f->g.meet) f->g.meet(f->g.arg);
    mem_free(f->staging);
    f->staging = NULL;
    f->left = true;
}

struct foreign_call {
    struct foreign *f;
    size_t n;
    int wire;
};

static void *foreign_call_host(void *arg)
{
    struct foreign_call *c = arg;

    c->f->g.sum(c->f->g.arg, c->f->staging, c->n, c->wire);
    return NULL;
}

/* Every way is the host's in truth. The device's own numbers are gone meanwhile. */
static void foreign_all_reduce(struct backend *be, const struct tensor *x, int wire)
{
    struct foreign *f = foreign_of(be);
    struct foreign_call c = { f, (size_t)x->rows * (size_t)x->cols, wire };
    float *p = x->data;
    pthread_t t;

    memcpy(f->staging, p, c.n * sizeof *p);
    for (size_t i = 0; i < c.n; i++) p[i] = NAN;
    if (pthread_create(&t, NULL, foreign_call_host, &c) == 0) pthread_join(t, NULL);
    memcpy(p, f->staging, c.n * sizeof *p);
    if (f->adds_wrongly && f->g.way != GROUP_HOST) p[c.n / 2] += 1;
    f->n_sums++;
}

/* Turns a CPU backend into a foreign device until foreign_drop. One thread at a time. */
static inline void foreign_make(struct foreign *f, struct backend *be)
{
    for (int i = 0; i < FOREIGN_MAX; i++)
        if (!foreign_list[i]) {
            foreign_list[i] = f;
            break;
        }
    f->be = be;
    be->group_offer = foreign_offer;
    be->group_join = foreign_join;
    be->group_leave = foreign_leave;
    be->all_reduce = foreign_all_reduce;
}

static inline void foreign_drop(struct foreign *f)
{
    for (int i = 0; i < FOREIGN_MAX; i++)
        if (foreign_list[i] == f) foreign_list[i] = NULL;
}
#endif
