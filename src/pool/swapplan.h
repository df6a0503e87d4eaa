/* swapplan.h - which model is loaded next, and which ones give up their memory for it.
 *
 * Pure functions over numbers: no clock, no lock, no model. The pool describes its models, asks, and
 * does what the answer says.
 *
 *  - Requests are grouped by model: one load serves all that wait for it. Groups take turns by the
 *    arrival of their oldest request; each step of priority counts as if that had come `age_ns`
 *    earlier. So a model of high priority is first, and one of low priority waits at most as much
 *    longer as the difference of priorities says, however many others come.
 *  - A model stays loaded for a minimum time, and for some times as long as it took to load, so that
 *    traffic over more models than fit spends little of its time on loading. One of higher priority need
 *    not wait for that.
 *  - A model in use is never unloaded. Once a group has waited longer than `patience_ns`, models in
 *    use yield: they take no new requests, and are unloaded when the last one has ended. The wait of a
 *    group is thus bounded by patience, residence, the longest request and the loads before it.
 *  - A model does not go for one of lower priority, unless that has waited for `patience_ns`.
 *  - Among models that may go, those of the lowest priority go first; among equal ones, the one that was
 *    not used for longest, weighed by the time to load it again. */
#ifndef TERN_POOL_SWAPPLAN_H
#define TERN_POOL_SWAPPLAN_H

#include <stdbool.h>
#include <stdint.h>

struct swap_model {
    bool wanted;         /* not loaded, and somebody waits for it */
    uint64_t since_ns;   /* wanted: arrival of the oldest of them */
    bool loaded;         /* and what follows is known */
    bool leaving;        /* not loaded any more, but its bytes are still to be given back */
    bool in_use, pinned; /* a pinned model is never unloaded for another */
    uint64_t ready_ns;   /* when it was loaded */
    uint64_t used_ns;    /* when it was last used */
    uint64_t reload_ns;  /* how long loading it takes */
    uint64_t bytes;      /* that unloading it gives back */
    uint64_t address;    /* likewise, of the address space of this process */
    uint64_t device;     /* likewise, of the device that the model to be loaded needs */
    int priority;        /* -100 to 100; a higher one is loaded sooner and unloaded later */
};

struct swap_opt {
    uint64_t residence_ns; /* least time between READY and unloading for another model */
    uint64_t patience_ns;  /* after so much waiting, models in use yield */
    uint64_t age_ns;       /* of waiting that counts as much as one step of priority */
};

/* The memory that the model to be loaded lacks; all 0: none. */
struct swap_lack {
    uint64_t bytes;
    int models; /* where the number of loaded models is limited */
    uint64_t address, device;
};

enum swap_act { SWAP_KEEP, SWAP_EVICT, SWAP_YIELD };
enum swap_verdict {
    SWAP_LOAD, /* carry out the evictions, then there is room */
    SWAP_WAIT, /* for an end of use of those that yield or others, or until *look_ns */
    SWAP_NEVER /* unloading everything that may go would not be enough */
};

/* Would unloading everything that may go, in use or not, be enough? */
bool swapplan_can_do(const struct swap_model *m, int n, const struct swap_lack *lack);
/* The wanted model whose turn it is, of those not marked in skip (NULL: none is); -1: none. */
int swapplan_next(const struct swap_model *m, int n, const bool *skip, const struct swap_opt *opt);
/* Makes room for model `to`. act [n] is written. *look_ns: when to ask again at the latest; UINT64_MAX:
 * only after a change. */
enum swap_verdict swapplan_room(const struct swap_model *m, int n, int to,
                                const struct swap_lack *lack, const struct swap_opt *opt,
                                uint64_t now_ns, unsigned char *act, uint64_t *look_ns);
#endif
