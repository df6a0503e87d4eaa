/* devices.h - memory and load of the devices that models run on, for /status and /metrics. */
#ifndef TERN_SERVER_DEVICES_H
#define TERN_SERVER_DEVICES_H

#include <stdint.h>

struct buf;
struct jsonw;
struct server;

uint64_t devices_busy_ns(struct server *v);   /* time all devices computed, summed */
double devices_utilization(struct server *v); /* share of the last RATE_S seconds, 0 to 1 */
void devices_write_json(struct server *v, struct jsonw *w); /* the elements of "devices" */
void devices_write_metrics(struct server *v, struct buf *out);
#endif
