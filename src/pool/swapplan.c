/* swapplan.c - the order of loads, and the choice of models that make room. */
#include "pool/swapplan.h"

#include <limits.h>

enum { RESIDENCE_LOADS = 4 }; /* a model stays at least so many times as long as it took to load */

#define COST_LEAST_NS 10000000.0 /* loads shorter than this cost the same */

/* Does a come before b? Times are compared with the priorities as an offset, which stays the same
 * while both wait: nobody overtakes for ever. */
static bool waits_before(const struct swap_model *a, const struct swap_model *b,
                         const struct swap_opt *o)
{
    int64_t later = (int64_t)(a->since_ns - b->since_ns);

    return later < ((int64_t)a->priority - b->priority) * (int64_t)o->age_ns;
}

int swapplan_next(const struct swap_model *m, int n, const bool *skip, const struct swap_opt *opt)
{
    int best = -1;

    for (int i = 0; i < n; i++) {
        if (!m[i].wanted || (skip && skip[i])) continue;
        if (best < 0 || waits_before(&m[i], &m[best], opt)) best = i;
    }
    return best;
}

/* Until then a model stays. */
static uint64_t stays_until(const struct swap_model *m, const struct swap_opt *o)
{
    uint64_t by_load = RESIDENCE_LOADS * m->reload_ns;

    return m->ready_ns + (by_load > o->residence_ns ? by_load : o->residence_ns);
}

static bool may_go(const struct swap_model *m) { return m->loaded && !m->pinned; }

/* How little is lost by unloading it: time since its last use over the time to load it again. */
static double score(const struct swap_model *m, uint64_t now)
{
    double idle = now > m->used_ns && !m->in_use ? (double)(now - m->used_ns) : 0;

    return idle / ((double)m->reload_ns + COST_LEAST_NS);
}

/* Of equal ones, the one that was loaded first. */
static bool goes_before(const struct swap_model *a, const struct swap_model *b, uint64_t now)
{
    double x = score(a, now), y = score(b, now);

    if (a->priority != b->priority) return a->priority < b->priority;
    return x > y || (!(x < y) && a->ready_ns < b->ready_ns);
}

/* The memory that models give back, in the same parts as a lack. */
static void add_given(struct swap_lack *sum, const struct swap_model *m)
{
    sum->bytes += m->bytes, sum->address += m->address, sum->device += m->device;
    sum->models++;
}

static struct swap_lack without(struct swap_lack sum, const struct swap_model *m)
{
    sum.bytes -= m->bytes, sum.address -= m->address, sum.device -= m->device;
    sum.models--;
    return sum;
}

static bool is_enough(const struct swap_lack *lack, const struct swap_lack *given)
{
    return given->bytes >= lack->bytes && given->models >= lack->models &&
           given->address >= lack->address && given->device >= lack->device;
}

/* Marks models of the kind that `fits` accepts with `mark`, the best first, until they are enough;
 * false: they are not. */
struct choice_of {
    const struct swap_model *m;
    int n;
    const struct swap_opt *opt;
    uint64_t now;
    bool busy;    /* those in use, too */
    int wanted;   /* priority of the model that is to be loaded */
    int priority; /* models of a higher one stay; INT_MAX: none do */
};

static bool fits(const struct choice_of *c, int i)
{
    const struct swap_model *m = &c->m[i];

    return may_go(m) && (c->busy || !m->in_use) && m->priority <= c->priority &&
           (m->priority < c->wanted || c->now >= stays_until(m, c->opt));
}

static int pick_best(const struct choice_of *c, const unsigned char *act)
{
    int best = -1;

    for (int i = 0; i < c->n; i++)
        if (!act[i] && fits(c, i) && (best < 0 || goes_before(&c->m[i], &c->m[best], c->now)))
            best = i;
    return best;
}

static void clear(unsigned char *act, int n)
{
    for (int i = 0; i < n; i++) act[i] = SWAP_KEEP;
}

/* The chosen one that is not needed beside the others and would be missed most; -1: all are. */
static int find_spare(const struct choice_of *c, const struct swap_lack *lack,
                      const unsigned char *act, const struct swap_lack *given)
{
    int best = -1;

    for (int i = 0; i < c->n; i++) {
        struct swap_lack rest = without(*given, &c->m[i]);
        if (!act[i] || !is_enough(lack, &rest)) continue;
        if (best < 0 || goes_before(&c->m[best], &c->m[i], c->now)) best = i;
    }
    return best;
}

/* Drops those that are not needed beside the others: a large one may have come after small ones. */
static void prune(const struct choice_of *c, const struct swap_lack *lack, unsigned char *act,
                  struct swap_lack given)
{
    int i;

    while ((i = find_spare(c, lack, act, &given)) >= 0) {
        act[i] = SWAP_KEEP;
        given = without(given, &c->m[i]);
    }
}

static bool choose(const struct choice_of *c, const struct swap_lack *lack, unsigned char *act)
{
    struct swap_lack given = { 0 };
    int i;

    clear(act, c->n);
    while (!is_enough(lack, &given)) {
        if ((i = pick_best(c, act)) < 0) {
            clear(act, c->n);
            return false;
        }
        act[i] = SWAP_EVICT;
        add_given(&given, &c->m[i]);
    }
    prune(c, lack, act, given);
    return true;
}

bool swapplan_can_do(const struct swap_model *m, int n, const struct swap_lack *lack)
{
    struct swap_lack given = { 0 };

    for (int i = 0; i < n; i++)
        if (may_go(&m[i]) || m[i].leaving) add_given(&given, &m[i]);
    return is_enough(lack, &given);
}

static uint64_t less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

/* What is lacking beside what models that leave will give back. */
static struct swap_lack lack_after_leaving(const struct swap_model *m, int n, struct swap_lack lack)
{
    for (int i = 0; i < n; i++) {
        if (!m[i].leaving) continue;
        lack.bytes = less(lack.bytes, m[i].bytes);
        lack.address = less(lack.address, m[i].address);
        lack.device = less(lack.device, m[i].device);
        if (lack.models > 0) lack.models--;
    }
    return lack;
}

/* The next moment at which the answer changes by itself. */
static uint64_t next_look(const struct choice_of *c, uint64_t aged_ns)
{
    uint64_t at = aged_ns > c->now ? aged_ns : UINT64_MAX;

    for (int i = 0; i < c->n; i++) {
        uint64_t until = stays_until(&c->m[i], c->opt);
        if (may_go(&c->m[i]) && until > c->now && until < at) at = until;
    }
    return at;
}

enum swap_verdict swapplan_room(const struct swap_model *m, int n, int to,
                                const struct swap_lack *lack, const struct swap_opt *opt,
                                uint64_t now_ns, unsigned char *act, uint64_t *look_ns)
{
    uint64_t aged_ns = m[to].since_ns + opt->patience_ns;
    bool aged = now_ns >= aged_ns;
    struct choice_of c = {
        m, n, opt, now_ns, false, m[to].priority, aged ? INT_MAX : m[to].priority
    };
    struct swap_lack later = lack_after_leaving(m, n, *lack), nothing = { 0 };

    *look_ns = UINT64_MAX;
    clear(act, n);
    if (!swapplan_can_do(m, n, lack)) return SWAP_NEVER;
    *look_ns = next_look(&c, aged_ns);
    if (!aged && is_enough(&later, &nothing)) return SWAP_WAIT; /* nobody need go */
    if (choose(&c, lack, act)) return SWAP_LOAD;
    c.busy = true;
    if (!aged || !choose(&c, &later, act)) return SWAP_WAIT;
    /* Those in use yield; the others of the choice go together with them. */
    for (int i = 0; i < n; i++)
        if (act[i]) act[i] = m[i].in_use ? SWAP_YIELD : SWAP_KEEP;
    return SWAP_WAIT;
}
