/* gwjobs_impl.h - the durable requests of a gateway. Private to gwjobs.c and gwjobs_http.c. */
#ifndef TERN_CLUSTER_GWJOBS_IMPL_H
#define TERN_CLUSTER_GWJOBS_IMPL_H

#include "base/stat.h"
#include "cluster/gwjobs.h"
#include "ledger/ledger.h"

struct loop_timer;

struct gwjobs {
    struct gateway *g;
    struct ledger *ledger;
    struct loop_timer *timer;
    struct gwjob *jobs; /* taken from the queue */
    int n_jobs, n_running, n_asked;
    bool draining, closing;
    struct {
        struct counter accepted, refused; /* requests */
        struct counter taken, redelivered, answered, second, failed, released;
    } n;
};
#endif
