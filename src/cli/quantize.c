#include "cli/quantize.h"

#include "base/jsonw.h"
#include "base/mem.h"
#include "cli/cmd.h"
#include "convert/convert_keys.h"
#include "quant/rtn.h"

#include <math.h>
#include <stdio.h>
#include <sys/stat.h>

bool quantize_can(enum dtype t) { return rtn_can(t); }

/* ---- folders ---- */

/* A folder's tensors as GGUF has them, rows read one by one where they are. */
static int open_folder(struct quantize *q, struct err *e)
{
    struct gguf_extra extra[2];
    int n, n_extra, rc;

    if ((rc = hparams_read(&q->hp, &q->arena, q->src, e)) != OK) return rc;
    if ((rc = naming_plan(&q->hp, q->src, &q->arena, &q->items, &n, e)) != OK) return rc;
    n_extra = naming_extras(&q->hp, &q->arena, extra);
    struct source_tensor *t = arena_array(&q->arena, (size_t)(n + n_extra), sizeof *t);
    q->list = arena_array(&q->arena, (size_t)(n + n_extra), sizeof *q->list);
    for (int i = 0; i < n; i++) {
        const struct gguf_item *it = &q->items[i];
        uint64_t row = 0;
        t[i] = (struct source_tensor){ .name = str_c(it->name),
                                       .n_dims = it->n_dims,
                                       .dims = { 1, 1, 1, 1 } };
        t[i].type = it->keep_f32 ? DT_F32 : layout_type(&it->lay, it->from[0]);
        memcpy(t[i].dims, it->dims, (size_t)it->n_dims * sizeof it->dims[0]);
        dtype_row_bytes(t[i].type, (uint64_t)it->cols, &row);
        if (layout_room(&it->lay) > q->read_room) q->read_room = layout_room(&it->lay);
        t[i].bytes = row * (uint64_t)it->rows;
    }
    for (int i = 0; i < n_extra; i++)
        t[n + i] = (struct source_tensor){ .name = str_c(extra[i].name),
                                           .type = DT_F32,
                                           .n_dims = 1,
                                           .dims = { extra[i].n, 1, 1, 1 },
                                           .data = extra[i].data,
                                           .bytes = (size_t)extra[i].n * sizeof(float) };
    q->n_list = n + n_extra;
    for (int i = 0; i < q->n_list; i++) q->list[i] = &t[i];
    return OK;
}

/* A vector is one row of the plan and rows of one number to naming. */
static void read_folder(void *arg, int i, int64_t row, enum dtype to, void *dst, float *tmp)
{
    const struct gguf_item *it = &((struct quantize *)arg)->items[i];
    uint64_t bytes = (uint64_t)dtype_info((int)to)->bytes;

    if (it->cols > 1 || it->lay.vector == false) {
        naming_row(it, row, to, dst, tmp);
        return;
    }
    int64_t n = it->dims[it->n_dims - 1];
    for (int64_t k = 0; k < n; k++)
        naming_row(it, row * n + k, to, (char *)dst + (uint64_t)k * bytes, tmp);
}

static int folder_keys(void *arg, struct ggufw *w, struct err *e)
{
    struct quantize *q = arg;

    naming_keys(&q->hp, w);
    return convert_keys(w, q->src, -1, false, e);
}

static int plan_folder(struct quantize *q, struct err *e)
{
    const struct layer_hp *l = &q->hp.layers[0];
    struct plan_model m = { .path = q->path,
                            .falcon = strcmp(q->hp.arch, "falcon") == 0,
                            .n_experts = q->hp.moe.n,
                            .n_gqa = l->n_kv_heads > 0 ? l->n_heads / l->n_kv_heads : 1 };

    return plan_make(&q->plan, &q->arena, &m, q->list, q->n_list, &q->plan_opt, e);
}

static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static int open_imatrix(struct quantize *q, struct err *e)
{
    int rc = imatrix_read(&q->imatrix, q->imatrix_path, e);

    for (int i = 0; rc == OK && q->list && i < q->n_list; i++)
        if (imatrix_entry(&q->imatrix, q->list[i]->name, 0, 0)) return OK;
    for (size_t i = 0; rc == OK && !q->list && i < source_n_tensors(q->src); i++)
        if (imatrix_entry(&q->imatrix, source_tensor(q->src, i)->name, 0, 0)) return OK;
    return rc != OK ? rc
                    : err_set(e, E_INVALID,
                              "%s: knows none of the tensors of %s: it was made for another model",
                              q->imatrix_path, q->path);
}

int quantize_open(struct quantize *q, struct err *e)
{
    int rc;

    if ((rc = cmd_model(&q->in, e)) != OK) return rc;
    q->path = mem_strdup(q->in);
    if (same_file(q->in, q->out))
        return err_set(e, E_INVALID, "%s is what is read: name another file to write", q->out);
    if ((rc = source_open(&q->src, q->path, e)) != OK) return rc;
    if (source_onnx(q->src))
        return err_set(
            e, E_UNSUPPORTED,
            "%s: is an ONNX graph, which is run as it is: only GGUF files and folders of known "
            "architectures are quantized",
            q->path);
    if (source_kind(q->src) == SOURCE_HF && (rc = open_folder(q, e)) != OK) return rc;
    if (q->imatrix_path && (rc = open_imatrix(q, e)) != OK) return rc;
    q->plan_opt.has_imatrix = q->imatrix_path != NULL;
    return q->list ? plan_folder(q, e) : plan_gguf(&q->plan, &q->arena, q->src, &q->plan_opt, e);
}

int quantize_run(struct quantize *q, struct err *e)
{
    struct rewrite_opt opt = { .src = q->src,
                               .dst = q->out,
                               .plan = &q->plan,
                               .mix = q->plan_opt.mix,
                               .imatrix = q->imatrix_path ? &q->imatrix : NULL,
                               .n_threads = q->n_threads,
                               .split_bytes = q->split_bytes,
                               .measure = q->measure,
                               .read = q->list ? read_folder : NULL,
                               .keys = q->list ? folder_keys : NULL,
                               .source_arg = q,
                               .read_room = q->read_room,
                               .progress = q->progress,
                               .progress_arg = q->progress_arg,
                               .stop = q->stop };
    return rewrite_run(&opt, &q->result, e);
}

void quantize_release(struct quantize *q)
{
    source_close(q->src);
    imatrix_release(&q->imatrix);
    plan_rules_free(q->plan_opt.rules);
    mem_free(q->result.loss);
    mem_free(q->path);
    arena_release(&q->arena);
    *q = (struct quantize){ 0 };
}

/* ---- telling ---- */

static double params_of(const struct plan *p)
{
    double n = 0;
    for (int i = 0; i < p->n; i++) n += (double)p->items[i].rows * (double)p->items[i].cols;
    return n;
}

static double rmse(const struct plan_item *it, const struct rewrite_loss *l)
{
    return sqrt(l->error / ((double)it->rows * (double)it->cols));
}

static double relative(const struct rewrite_loss *l)
{
    return l->square > 0 ? sqrt(l->error / l->square) : 0;
}

static void text_item(const struct quantize *q, int i, struct buf *out)
{
    const struct plan_item *it = &q->plan.items[i];
    char shape[48];

    if (it->from->n_dims == 3)
        snprintf(shape, sizeof shape, "%lld x %lld x %lld", (long long)it->from->dims[0],
                 (long long)it->from->dims[1], (long long)it->cols);
    else if (it->from->n_dims > 1)
        snprintf(shape, sizeof shape, "%lld x %lld", (long long)it->rows, (long long)it->cols);
    else snprintf(shape, sizeof shape, "%lld", (long long)it->cols);
    buf_printf(out, "%-34.*s %20s  %5s -> %-7s %9.2f MiB", STR_ARG(it->from->name), shape,
               dtype_name((int)it->from->type), dtype_name((int)it->type),
               (double)it->bytes / 0x1p20);
    if (q->result.loss && it->type != it->from->type)
        buf_printf(out, "  rmse %.3e  %.3f%%", rmse(it, &q->result.loss[i]),
                   100 * relative(&q->result.loss[i]));
    buf_printf(out, "%s%s\n", *it->why ? "  " : "", it->why);
}

static void text_types(const struct plan *p, struct buf *out)
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

void quantize_text(const struct quantize *q, bool dry, struct buf *out)
{
    const struct plan *p = &q->plan;
    const struct rewrite_result *r = &q->result;

    for (int i = 0; (dry || q->measure) && i < p->n; i++) text_item(q, i, out);
    if (dry || q->measure) text_types(p, out);
    buf_printf(out, "%s: %s, %d tensors, %.1f MiB -> %.1f MiB, %.2f bits a weight",
               dry ? q->in : q->out, q->plan_opt.mix->name, p->n, (double)p->from_bytes / 0x1p20,
               (double)p->bytes / 0x1p20, 8 * (double)p->bytes / params_of(p));
    if (!dry)
        buf_printf(out, ", %.1f s (%.0f MB/s), read back", r->seconds,
                   (double)p->from_bytes / r->seconds / 1e6);
    if (r->n_files > 1) buf_printf(out, ", %d files", r->n_files);
    if (q->imatrix_path && !dry) buf_printf(out, ", %d tensors by the imatrix", r->n_weighted);
    buf_putc(out, '\n');
    if (q->ppl_after > 0)
        buf_printf(out, "perplexity %.4f -> %.4f (%+.2f%%)\n", q->ppl_before, q->ppl_after,
                   100 * (q->ppl_after / q->ppl_before - 1));
}

static void json_item(const struct quantize *q, int i, struct jsonw *w)
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
        jsonw_key(w, "relative"), jsonw_num(w, relative(&q->result.loss[i]));
        jsonw_key(w, "max_error"), jsonw_num(w, q->result.loss[i].worst);
    }
    jsonw_end(w);
}

void quantize_json(const struct quantize *q, bool dry, struct buf *out)
{
    struct jsonw w = { .out = out };
    const struct plan *p = &q->plan;

    jsonw_obj(&w);
    jsonw_key(&w, "path"), jsonw_str(&w, str_c(q->out));
    jsonw_key(&w, "type"), jsonw_str(&w, str_c(q->plan_opt.mix->name));
    jsonw_key(&w, "dry_run"), jsonw_bool(&w, dry);
    jsonw_key(&w, "tensors"), jsonw_int(&w, p->n);
    jsonw_key(&w, "from_bytes"), jsonw_int(&w, (int64_t)p->from_bytes);
    jsonw_key(&w, "bytes"), jsonw_int(&w, (int64_t)p->bytes);
    jsonw_key(&w, "bits_per_weight"), jsonw_num(&w, 8 * (double)p->bytes / params_of(p));
    if (!dry) {
        jsonw_key(&w, "files"), jsonw_int(&w, q->result.n_files);
        jsonw_key(&w, "file_bytes"), jsonw_int(&w, (int64_t)q->result.file_bytes);
        jsonw_key(&w, "seconds"), jsonw_num(&w, q->result.seconds);
        if (q->imatrix_path) jsonw_key(&w, "imatrix_tensors"), jsonw_int(&w, q->result.n_weighted);
    }
    if (q->ppl_after > 0) {
        jsonw_key(&w, "ppl_before"), jsonw_num(&w, q->ppl_before);
        jsonw_key(&w, "ppl_after"), jsonw_num(&w, q->ppl_after);
    }
    if (dry || q->measure) {
        jsonw_key(&w, "items"), jsonw_arr(&w);
        for (int i = 0; i < p->n; i++) json_item(q, i, &w);
        jsonw_end(&w);
    }
    jsonw_end(&w);
    buf_putc(out, '\n');
}
