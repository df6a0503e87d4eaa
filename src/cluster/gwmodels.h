/* gwmodels.h - models over the fleet: the demand for each, its replicas, and loads and unloads at workers by
 * what replicas.h chooses. One of them is on its way at a time. On the loop's thread. */
#ifndef TERN_CLUSTER_GWMODELS_H
#define TERN_CLUSTER_GWMODELS_H

#include "base/buf.h"
#include "base/err.h"

struct gateway;
struct gwmodels;
struct jsonw;

int gwmodels_open(struct gwmodels **out, struct gateway *g, struct err *e);
void gwmodels_close(struct gwmodels *m); /* before the fleet; NULL is allowed */
void gwmodels_write_status(struct gwmodels *m, struct jsonw *w); /* the value of "models" */
void gwmodels_write_metrics(struct gwmodels *m, struct buf *out);
#endif
