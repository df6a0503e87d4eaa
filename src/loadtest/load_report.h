/* load_report.h - the results of a load run as text, JSON and an HTML page.
 *
 * All append to a buf, which remembers a failed allocation, and sort the series of s. */
#ifndef TERN_LOADTEST_LOAD_REPORT_H
#define TERN_LOADTEST_LOAD_REPORT_H

#include "loadtest/load_plan.h"

/* A block of lines with the labels that `vllm bench serve` prints. */
void load_report_text(struct buf *out, const struct load_plan *p, struct load_stats *s);
void load_report_json(struct buf *out, const struct load_plan *p, struct load_stats *s);
/* A self-contained page with inline SVG charts: no scripts, no other files. */
void load_report_html(struct buf *out, const struct load_plan *p, struct load_stats *s);
#endif
