#include "cli/quantize_report.h"

#include "base/jsonw.h"

#include <math.h>
#include <stdio.h>

static double count_params(const struct plan *p)
{
    double n = 0;

    for (int i = 0; i < p->n; i++) n += (double)p->items[i].rows * (double)p->items[i].cols;
    return n;
}

static double bits_per_weight(const struct plan *p)
{
    return 8 * (double)p->bytes / count_params(p);
}

/* Root mean square error of a tensor's weights. */
static double rmse(const struct plan_item *it, const struct rewrite_loss *l)
{
    return sqrt(l->error / ((double)it->rows * (double)it->cols));
}

/* RMSE relative to the root mean square of the weights. */
static double relative_error(const struct rewrite_loss *l)
{
    return l->square > 0 ? sqrt(l->error / l->square) : 0;
}

/* The list may have thousands of lines: only for --dry-run and --report. */
static bool lists_items(const struct quantize_report *r) { return r->dry_run || r->q->measure; }

/* ---- text ---- */

/* "experts x rows x cols", "rows x cols" or "n". */
static void format_shape(const struct plan_item *it, char *out, size_t cap)
{
    if (it->from->n_dims == 3)
        snprintf(out, cap, "%lld x %lld x %lld", (long long)it->from->dims[0],
                 (long long)it->from->dims[1], (long long)it->cols);
    else if (it->from->n_dims > 1)
        snprintf(out, cap, "%lld x %lld", (long long)it->rows, (long long)it->cols);
    else snprintf(out, cap, "%lld", (long long)it->cols);
}

static void add_item_text(const struct quantize *q, int i, struct buf *out)
{
    const struct plan_item *it = &q->plan.items[i];
    char shape[64];

    format_shape(it, shape, sizeof shape);
    buf_printf(out, "%-34.*s %20s  %5s -> %-7s %9.2f MiB", STR_ARG(it->from->name), shape,
               dtype_name((int)it->from->type), dtype_name((int)it->type),
               (double)it->bytes / 0x1p20);
    if (q->result.loss && it->type != it->from->type)
        buf_printf(out, "  rmse %.3e  %.3f%%", rmse(it, &q->result.loss[i]),
                   100 * relative_error(&q->result.loss[i]));
    buf_printf(out, "%s%s\n", *it->why ? "  " : "", it->why);
}

/* One line for each type: tensors and bytes. */
static void add_types_text(const struct plan *p, struct buf *out)
{
    for (int t = 0; t < DT_COUNT; t++) {
        uint64_t bytes = 0;
        int n = 0;
        for (int i = 0; i < p->n; i++)
            if ((int)p->items[i].type == t) n++, bytes += p->items[i].bytes;
        if (n)
            buf_printf(out, "%-7s %4d tensors %12.2f MiB\n", dtype_name(t), n,
                       (double)bytes / 0x1p20);
    }
}

void quantize_report_text(const struct quantize_report *r, struct buf *out)
{
    const struct quantize *q = r->q;
    const struct plan *p = &q->plan;
    const struct rewrite_result *done = &q->result;

    for (int i = 0; lists_items(r) && i < p->n; i++) add_item_text(q, i, out);
    if (lists_items(r)) add_types_text(p, out);
    buf_printf(out, "%s: %s, %d tensors, %.1f MiB -> %.1f MiB, %.2f bits per weight",
               r->dry_run ? q->in : q->out, q->plan_opt.mix->name, p->n,
               (double)p->from_bytes / 0x1p20, (double)p->bytes / 0x1p20, bits_per_weight(p));
    if (!r->dry_run)
        buf_printf(out, ", %.1f s (%.0f MB/s), verified", done->seconds,
                   (double)p->from_bytes / done->seconds / 1e6);
    if (done->n_files > 1) buf_printf(out, ", %d files", done->n_files);
    if (q->imatrix_path && !r->dry_run)
        buf_printf(out, ", imatrix used for %d tensors", done->n_weighted);
    buf_putc(out, '\n');
    if (r->ppl_after > 0)
        buf_printf(out, "perplexity %.4f -> %.4f (%+.2f%%)\n", r->ppl_before, r->ppl_after,
                   100 * (r->ppl_after / r->ppl_before - 1));
}

/* ---- JSON ---- */

static void add_item_json(const struct quantize *q, int i, struct jsonw *w)
{
    const struct plan_item *it = &q->plan.items[i];

    jsonw_obj(w);
    jsonw_key(w, "name"), jsonw_str(w, it->from->name);
    jsonw_key(w, "shape"), jsonw_arr(w);
    for (int d = 0; d < it->from->n_dims; d++) jsonw_int(w, it->from->dims[d]);
    jsonw_end(w);
    jsonw_key(w, "from"), jsonw_str(w, str_c(dtype_name((int)it->from->type)));
    jsonw_key(w, "type"), jsonw_str(w, str_c(dtype_name((int)it->type)));
    jsonw_key(w, "bytes"), jsonw_int(w, (int64_t)it->bytes);
    if (*it->why) jsonw_key(w, "why"), jsonw_str(w, str_c(it->why));
    if (q->result.loss && it->type != it->from->type) {
        jsonw_key(w, "rmse"), jsonw_num(w, rmse(it, &q->result.loss[i]));
        jsonw_key(w, "relative"), jsonw_num(w, relative_error(&q->result.loss[i]));
        jsonw_key(w, "max_error"), jsonw_num(w, q->result.loss[i].worst);
    }
    jsonw_end(w);
}

/* Field names are part of the interface; "items" as in the text. */
void quantize_report_json(const struct quantize_report *r, struct buf *out)
{
    const struct quantize *q = r->q;
    const struct plan *p = &q->plan;
    struct jsonw w = { .out = out };

    jsonw_obj(&w);
    jsonw_key(&w, "path"), jsonw_str(&w, str_c(q->out));
    jsonw_key(&w, "type"), jsonw_str(&w, str_c(q->plan_opt.mix->name));
    jsonw_key(&w, "dry_run"), jsonw_bool(&w, r->dry_run);
    jsonw_key(&w, "tensors"), jsonw_int(&w, p->n);
    jsonw_key(&w, "from_bytes"), jsonw_int(&w, (int64_t)p->from_bytes);
    jsonw_key(&w, "bytes"), jsonw_int(&w, (int64_t)p->bytes);
    jsonw_key(&w, "bits_per_weight"), jsonw_num(&w, bits_per_weight(p));
    if (!r->dry_run) {
        jsonw_key(&w, "files"), jsonw_int(&w, q->result.n_files);
        jsonw_key(&w, "file_bytes"), jsonw_int(&w, (int64_t)q->result.file_bytes);
        jsonw_key(&w, "seconds"), jsonw_num(&w, q->result.seconds);
        if (q->imatrix_path) jsonw_key(&w, "imatrix_tensors"), jsonw_int(&w, q->result.n_weighted);
    }
    if (r->ppl_after > 0) {
        jsonw_key(&w, "ppl_before"), jsonw_num(&w, r->ppl_before);
        jsonw_key(&w, "ppl_after"), jsonw_num(&w, r->ppl_after);
    }
    if (lists_items(r)) {
        jsonw_key(&w, "items"), jsonw_arr(&w);
        for (int i = 0; i < p->n; i++) add_item_json(q, i, &w);
        jsonw_end(&w);
    }
    jsonw_end(&w);
    buf_putc(out, '\n');
}
