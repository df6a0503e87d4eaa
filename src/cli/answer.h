/* report.h - one answer as one JSON object. */
#ifndef TERN_CLI_REPORT_H
#define TERN_CLI_REPORT_H

#include "base/buf.h"
#include "cli/gen.h"

struct report {
    struct buf text;
    int32_t *ids;
    int n_ids, cap;
};

void report_add(struct report *r, const tern_event *ev);
bool report_write(struct report *r, const struct gen *g, const tern_stats *s, tern_finish finish);
void report_release(struct report *r); /* a zeroed one is fine */
const char *report_finish(tern_finish f);
#endif
