/* quantize.c - puts a model in front of quant/plan and quant/rewrite.
 *
 * A GGUF file is passed to both as it is. A folder is presented as a list of GGUF tensors without
 * data; rewrite asks for their rows (read_row) and keys (write_keys) when it needs them, so the
 * unquantized GGUF file never exists. */
#include "convert/quantize.h"

#include "base/mem.h"
#include "convert/togguf_keys.h"

#include <sys/stat.h>

/* ---- folders ---- */

/* Describes one of the folder's tensors as GGUF has it; its rows are read later, by read_row. */
static struct source_tensor describe_item(const struct gguf_item *it)
{
    struct source_tensor t = { .name = str_c(it->name),
                               .n_dims = it->n_dims,
                               .dims = { 1, 1, 1, 1 } };
    uint64_t row_bytes = 0;

    t.type = it->keep_f32 ? DT_F32 : layout_type(&it->lay, it->from[0]);
    if (t.type == DT_GROUPED) t.type = DT_F32; /* a quantized folder is decoded, then quantized */
    memcpy(t.dims, it->dims, (size_t)it->n_dims * sizeof it->dims[0]);
    dtype_row_bytes(t.type, (uint64_t)it->cols, &row_bytes);
    t.bytes = row_bytes * (uint64_t)it->rows;
    return t;
}

/* Fills q->list with the folder's tensors under their GGUF names. */
static int list_folder(struct quantize *q, struct err *e)
{
    const struct gguf_extra *extra = q->rest.list;
    int n, n_extra, rc;

    if ((rc = hparams_read(&q->hp, &q->arena, q->src, e)) != OK) return rc;
    if ((rc = naming_plan(&q->hp, q->src, &q->arena, &q->items, &n, e)) != OK) return rc;
    if ((rc = naming_rest(&q->rest, &q->hp, q->src, &q->arena, e)) != OK) return rc;
    n_extra = q->rest.n;
    struct source_tensor *t = arena_array(&q->arena, (size_t)(n + n_extra), sizeof *t);
    q->list = arena_array(&q->arena, (size_t)(n + n_extra), sizeof *q->list);
    if ((rc = arena_check(&q->arena, e)) != OK) return rc;
    for (int i = 0; i < n; i++) {
        const struct gguf_item *it = &q->items[i];
        t[i] = describe_item(it);
        if (naming_room(it) > q->read_room) q->read_room = naming_room(it);
    }
    for (int i = 0; i < n_extra; i++) {
        t[n + i] = (struct source_tensor){ .name = str_c(extra[i].name),
                                           .type = DT_F32,
                                           .n_dims = extra[i].n_dims,
                                           .dims = { extra[i].dims[0], extra[i].dims[1], 1, 1 },
                                           .data = extra[i].data,
                                           .bytes = (size_t)extra[i].n * sizeof(float) };
    }
    q->n_list = n + n_extra;
    for (int i = 0; i < q->n_list; i++) q->list[i] = &t[i];
    return OK;
}

/* rewrite_opt.read. A vector is one row to the plan, and many rows of one value to naming_row. */
static void read_row(void *arg, int i, int64_t row, enum dtype to, void *dst, float *tmp)
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

/* rewrite_opt.keys. The file type is rewrite's to write. */
static int write_keys(void *arg, struct ggufw *w, struct err *e)
{
    struct quantize *q = arg;
    int rc = naming_keys(&q->hp, w, e);

    if (rc != OK) return rc;
    naming_head_keys(&q->hp, q->rest.head, w);
    return togguf_write_keys(w, q->src, -1, false, e);
}

/* plan_make needs to know what kind of model it is; from a GGUF file plan_gguf reads it itself. */
static int plan_folder(struct quantize *q, struct err *e)
{
    const struct layer_hp *l = &q->hp.layers[0];
    struct plan_model m = { .path = q->in,
                            .falcon = strcmp(q->hp.arch, "falcon") == 0,
                            .n_experts = q->hp.moe.n,
                            .n_gqa = l->n_kv_heads > 0 ? l->n_heads / l->n_kv_heads : 1 };

    return plan_make(&q->plan, &q->arena, &m, q->list, q->n_list, &q->plan_opt, e);
}

/* Also true for two names of one file: rewriting a file that is mapped would destroy the input. */
static bool is_same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* An imatrix may lack tensors (experts that were never used), but not all of them. */
static bool imatrix_knows_any(struct quantize *q)
{
    size_t n = q->list ? (size_t)q->n_list : source_n_tensors(q->src);

    for (size_t i = 0; i < n; i++) {
        const struct source_tensor *t = q->list ? q->list[i] : source_tensor(q->src, i);
        if (imatrix_find(&q->imatrix, t->name)) return true;
    }
    return false;
}

static int open_imatrix(struct quantize *q, struct err *e)
{
    int rc = imatrix_read(&q->imatrix, q->imatrix_path, e);

    if (rc != OK || imatrix_knows_any(q)) return rc;
    return err_set(e, E_INVALID,
                   "%s has no entry for any tensor of %s; it was made for another model",
                   q->imatrix_path, q->in);
}

int quantize_open(struct quantize *q, struct err *e)
{
    int rc;

    if (is_same_file(q->in, q->out))
        return err_set(e, E_INVALID, "%s is the input; name another file to write", q->out);
    if ((rc = source_open(&q->src, q->in, e)) != OK) return rc;
    if (source_onnx(q->src))
        return err_set(e, E_UNSUPPORTED,
                       "%s is an ONNX model; only GGUF files and Hugging Face folders of known "
                       "architectures can be quantized",
                       q->in);
    if (source_kind(q->src) == SOURCE_HF && (rc = list_folder(q, e)) != OK) return rc;
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
                               .read = q->list ? read_row : NULL,
                               .keys = q->list ? write_keys : NULL,
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
    arena_release(&q->arena);
    *q = (struct quantize){ 0 };
}
