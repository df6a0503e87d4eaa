/* load_report.h - a load run's numbers: a block to read, JSON, a page with charts. */
#ifndef TERN_LOADTEST_LOAD_REPORT_H
#define TERN_LOADTEST_LOAD_REPORT_H

#include "loadtest/load_plan.h"

/* The block, in the words that `vllm bench serve` made common. Sorts the series of s; so do the
 * others. */
void load_report_text(struct buf *out, const struct load_plan *p, struct load_stats *s);
void load_report_json(struct buf *out, const struct load_plan *p, struct load_stats *s);
/* A page that needs nothing but itself. */
void load_report_html(struct buf *out, const struct load_plan *p, struct load_stats *s);
#endif
