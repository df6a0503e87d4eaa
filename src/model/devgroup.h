/* devgroup.h - the members of a stage as a group of devices: they agree on the way in which their sums
 * travel (kernel/group.h), join it and try it once.
 *
 * All members of the stage open it at the same time. A way that does not work on one of them, or that
 * adds up wrongly, is no error where the way is WAY_AUTO: all of them then sum through the host. */
#ifndef TERN_MODEL_DEVGROUP_H
#define TERN_MODEL_DEVGROUP_H

#include "comm/gang.h"
#include "kernel/backend.h"

struct devgroup_opt {
    enum gang_way way;
    bool whole; /* all layers of the stage are on the device: else it sums through the host */
    size_t max; /* numbers of the largest sum */
    uint64_t timeout_ns; /* a wait for another member; 0: none */
    struct err *failed;  /* borrowed: the first failure of a sum through the host */
};

struct devgroup {
    struct comm *comm;  /* borrowed */
    struct backend *be; /* borrowed; NULL: this member computes in host memory */
    struct devgroup_opt opt;
    enum group_way way;
    bool opened;
};

/* be: the member's device, or one whose memory is the host's. g stays where it is. */
int devgroup_open(struct devgroup *g, struct comm *c, struct backend *be,
                  const struct devgroup_opt *opt, struct err *e);
void devgroup_release(struct devgroup *g); /* a zeroed one is allowed */
#endif
