/* quantize_report.h - the result of `tern quantize` as text and as JSON. */
#ifndef TERN_CLI_QUANTIZE_REPORT_H
#define TERN_CLI_QUANTIZE_REPORT_H

#include "base/buf.h"
#include "convert/quantize.h"

struct quantize_report {
    const struct quantize *q;
    bool dry_run;                 /* the plan only: nothing was written */
    double ppl_before, ppl_after; /* 0: not measured */
};

/* Append to out; the list of tensors only in a dry run or where the loss was measured. */
void quantize_report_text(const struct quantize_report *r, struct buf *out);
void quantize_report_json(const struct quantize_report *r, struct buf *out);
#endif
