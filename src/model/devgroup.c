/* devgroup.c - offers of all members, one choice, a trial, and the host as the way that always works. */
#include "model/devgroup.h"

#include "base/log.h"
#include "base/mem.h"

#include <string.h>

enum {
    TRIAL = 4099,     /* numbers: no multiple of anything */
    TRIAL_MS = 20000, /* processes that share a GPU take turns of milliseconds on it */
    MEET_MS = 2000    /* for the others to let go of shared memory at the end */
};

/* ---- what the device calls ---- */

/* The first failure ends all sums of the step. */
static void sum_by_host(void *arg, float *x, size_t n, int wire)
{
    struct devgroup *g = arg;

    if (g->opt.failed->code == OK)
        comm_all_reduce(g->comm, x, n, (enum comm_wire)wire, g->opt.failed);
}

static bool is_lost(void *arg)
{
    struct comm_link *k = ((struct devgroup *)arg)->comm->link;

    return k->is_aborted(k);
}

/* Of a group that never was complete nobody else would come. */
static void meet(void *arg)
{
    struct devgroup *g = arg;

    g->comm->timeout_ns = MEET_MS * 1000000ull;
    if (g->opened && !is_lost(g)) comm_barrier(g->comm, NULL);
}

/* ---- agreeing ---- */

static struct group_ask make_ask(const struct devgroup *g)
{
    static const unsigned ways[WAYS] = {
        [WAY_AUTO] = 1u << GROUP_HOST | 1u << GROUP_IPC,
        [WAY_HOST] = 1u << GROUP_HOST,
        [WAY_IPC] = 1u << GROUP_HOST | 1u << GROUP_IPC,
        [WAY_NCCL] = 1u << GROUP_HOST | 1u << GROUP_NCCL,
    };

    return (struct group_ask){ .ways = g->opt.whole ? ways[g->opt.way] : 1u << GROUP_HOST,
                               .rank = g->comm->rank,
                               .max = g->opt.max };
}

static int make_want(enum gang_way w)
{
    static const int want[WAYS] = { GROUP_ANY, GROUP_HOST, GROUP_IPC, GROUP_NCCL };

    return want[w];
}

/* The offers of all members. One that could make none says so by an offer that is refused, so that
 * nobody waits for it. */
static int exchange(struct devgroup *g, struct group_offer *all, struct err *e)
{
    struct group_ask ask = make_ask(g);
    struct group_offer mine;
    int rc = OK, one;

    group_offer_init(&mine);
    if (g->be && (rc = g->be->group_offer(g->be, &mine, &ask, e)) != OK) mine.magic = 0;
    if ((one = comm_all_gather(g->comm, &mine, sizeof mine, all, rc == OK ? e : NULL)) != OK)
        return rc == OK ? one : rc;
    return rc == OK ? group_check_offers(all, g->comm->size, e) : rc;
}

/* Does every member say yes? *all is the same for all of them. */
static int ask_all(struct devgroup *g, bool mine, bool *all, struct err *e)
{
    char said[COMM_MAX] = { 0 };
    int rc;

    said[g->comm->rank] = mine;
    rc = comm_all_gather(g->comm, &said[g->comm->rank], 1, said, e);
    *all = true;
    for (int r = 0; r < g->comm->size; r++) *all = *all && said[r];
    return rc;
}

static int join(struct devgroup *g, const struct group_offer *all, enum group_way way,
                uint64_t timeout_ns, struct err *e)
{
    struct sum_group group = { .rank = g->comm->rank,
                               .size = g->comm->size,
                               .way = way,
                               .offers = all,
                               .max = g->opt.max,
                               .timeout_ns = timeout_ns,
                               .sum = sum_by_host,
                               .is_lost = is_lost,
                               .meet = meet,
                               .arg = g };

    return g->be ? g->be->group_join(g->be, &group, e) : OK;
}

/* ---- the trial ---- */

static float trial_number(int rank, int i) { return (float)((rank + 1) * (i % 7 + 1)); }

/* Devices that claim to reach each other's memory do not always. */
static int check_sums(const struct devgroup *g, const float *x, struct err *e)
{
    int n = g->comm->size;

    for (int i = 0; i < TRIAL; i++) {
        float want = (float)(n * (n + 1) / 2 * (i % 7 + 1));
        if (x[i] != want)
            return err_set(e, E_DEVICE, "%s: a sum over %s is wrong: number %d is %g, expected %g",
                           g->be->name, group_way_name(g->way), i, (double)x[i], (double)want);
    }
    return OK;
}

/* Twice: both halves of the memory are used, and numbers that begin at odd places. A wrong sum does not end
 * it: the others make the second one, too. */
static int try_sums(struct devgroup *g, struct err *e)
{
    struct backend *be = g->be;
    size_t bytes = (TRIAL + 1) * sizeof(float);
    float *x = mem_array(TRIAL, sizeof *x), *there = NULL;
    int rc =
        x ? be->alloc(be, (void **)&there, bytes, MEM_SCRATCH, e) : err_nomem(e, "a trial sum");
    int right = OK;

    for (int k = 0; k < 2 && rc == OK; k++) {
        struct tensor t = tensor_f32(there + k, 1, TRIAL);
        for (int i = 0; i < TRIAL; i++) x[i] = trial_number(g->comm->rank, i);
        be->put(be, t.data, x, TRIAL * sizeof *x);
        be->all_reduce(be, &t, COMM_F32);
        be->get(be, x, t.data, TRIAL * sizeof *x);
        if ((rc = be->sync(be, e)) == OK && right == OK) right = check_sums(g, x, e);
    }
    if (there) be->free(be, there, bytes, MEM_SCRATCH);
    mem_free(x);
    return rc != OK ? rc : right;
}

/* Joins the way and tries it; *good: it works on all members. */
static int try_way(struct devgroup *g, const struct group_offer *all, bool *good, struct err *why)
{
    int rc = join(g, all, g->way, TRIAL_MS * 1000000ull, why), one;

    if ((one = ask_all(g, rc == OK, good, why)) != OK || !*good) return one;
    rc = try_sums(g, why);
    if ((one = ask_all(g, rc == OK, good, why)) != OK || !*good) return one;
    return join(g, all, g->way, g->opt.timeout_ns, why);
}

static int fall_back(struct devgroup *g, const struct err *why, struct err *e)
{
    const char *name = group_way_name(g->way);

    if (g->opt.way != WAY_AUTO)
        return err_set(e, E_UNSUPPORTED, "comm %s: %s", name,
                       why->code != OK ? why->msg : "another member of the stage cannot use it");
    log_warn("sums go through the host, not over %s: %s", name,
             why->code != OK ? why->msg : "another member of the stage cannot");
    g->way = GROUP_HOST;
    return OK;
}

int devgroup_open(struct devgroup *g, struct comm *c, struct backend *be,
                  const struct devgroup_opt *opt, struct err *e)
{
    struct group_offer *all = mem_array((size_t)c->size, sizeof *all);
    uint64_t timeout_ns = c->timeout_ns;
    struct err why = { 0 };
    bool good = true;
    int rc;

    *g = (struct devgroup){
        .comm = c, .be = be && be->group_offer ? be : NULL, .opt = *opt, .way = GROUP_HOST
    };
    if (!all) return err_nomem(e, "the offers of a stage's members");
    c->timeout_ns = TRIAL_MS * 2000000ull; /* the first of CUDA's calls take their time */
    rc = exchange(g, all, e);
    if (rc == OK) rc = group_choose(&g->way, all, c->size, make_want(opt->way), e);
    if (rc == OK && g->way != GROUP_HOST) {
        if ((rc = try_way(g, all, &good, &why)) != OK && e) *e = why;
        if (rc == OK && !good) rc = fall_back(g, &why, e);
    }
    if (rc == OK && g->way == GROUP_HOST) rc = join(g, all, GROUP_HOST, opt->timeout_ns, e);
    if (rc == OK) rc = comm_reserve(c, opt->max, e);
    c->timeout_ns = timeout_ns;
    mem_free(all);
    g->opened = rc == OK;
    if (rc != OK) devgroup_release(g);
    return rc;
}

void devgroup_release(struct devgroup *g)
{
    if (g->be) g->be->group_leave(g->be);
    *g = (struct devgroup){ 0 };
}
