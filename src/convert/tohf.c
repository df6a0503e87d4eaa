/* tohf.c - the order of work: plan every tensor of the folder (tohf_plan), write the small JSON
 * files, then the tensors shard by shard. Worker threads encode the rows of a piece, the calling
 * thread writes it and adds it to the tensor's CRC-32. At the end the folder is opened as any
 * reader would and the checksums are compared, so a bad disk is noticed here and not when the model
 * misbehaves.
 *
 * --resume: safetensorsw keeps a shard whose header is what this run would write; its tensors are
 * skipped and have no checksum.
 *
 * A transposed tensor (GPT-2's Conv1D) is made as a whole in memory; everything else needs one
 * piece at a time. */
#include "convert/tohf.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/par.h"
#include "convert/tohf_plan.h"
#include "format/safetensorsw.h"
#include "quant/rewrite.h"

#include <errno.h>
#include <sys/stat.h>
#include <zlib.h>

/* Rows are encoded and written in pieces of about this size. */
#define PIECE_BYTES (8u << 20)

struct job {
    const struct tohf_opt *opt;
    struct source *src;
    struct arena arena;
    struct hparams hp;
    struct tohf_plan plan;
    struct par *par;
    struct safetensorsw *w;
    /* The piece being encoded: rows [row0, row0 + n_rows) of it. */
    const struct tohf_item *it;
    int64_t row0, row_bytes;
    int n_rows;
    unsigned char *piece; /* [n_rows][row_bytes] */
    float **tmp;          /* [threads][tohf_room] for decoding a row */
};

/* par_run's function. Rows are handed out in portions of about 16384 values: rows of quantized
 * types take different times. */
static void encode_piece(void *arg, int t, int n_threads)
{
    struct job *j = arg;
    int64_t cols = j->it->y.cols;
    int a, b;

    (void)n_threads;
    while (par_next(j->par, j->n_rows, cols < 16384 ? (int)(16384 / cols) : 1, &a, &b))
        for (int i = a; i < b; i++)
            tohf_row(j->it, j->row0 + i, j->piece + i * j->row_bytes, j->tmp[t]);
}

static int write_transposed(struct job *j, struct tohf_item *it, struct err *e)
{
    unsigned char *all = mem_alloc(it->bytes);
    int rc = all ? tohf_transposed(it, all, e)
                 : err_set(e, E_NOMEM, "%s: out of memory: no room for its %llu bytes", it->name,
                           (unsigned long long)it->bytes);

    if (rc == OK) {
        it->crc = (uint32_t)crc32_z(crc32(0, NULL, 0), all, it->bytes);
        safetensorsw_data(j->w, all, it->bytes);
    }
    mem_free(all);
    return rc;
}

/* false: no memory; free_piece releases the rest. */
static bool alloc_piece(struct job *j, const struct tohf_item *it, int64_t n_rows)
{
    j->piece = mem_array((size_t)n_rows, (size_t)j->row_bytes);
    bool ok = j->piece != NULL;

    for (int t = 0; t < par_n(j->par); t++) {
        j->tmp[t] = mem_array(tohf_room(it), sizeof(float));
        ok = ok && j->tmp[t];
    }
    return ok;
}

static void free_piece(struct job *j)
{
    for (int t = 0; t < par_n(j->par); t++) {
        mem_free(j->tmp[t]);
        j->tmp[t] = NULL;
    }
    mem_free(j->piece);
    j->piece = NULL;
}

static int write_item(struct job *j, struct tohf_item *it, struct err *e)
{
    int64_t rows = it->y.rows * it->y.count, per_piece;
    int rc = OK;

    if (it->y.transposed) return write_transposed(j, it, e);
    j->it = it;
    j->row_bytes = (int64_t)(it->bytes / (uint64_t)rows);
    per_piece = (int64_t)PIECE_BYTES / j->row_bytes;
    if (per_piece < 1) per_piece = 1;
    if (per_piece > rows) per_piece = rows;
    if (!alloc_piece(j, it, per_piece))
        rc = err_set(e, E_NOMEM, "%s: out of memory: no room for %lld rows of %lld bytes", it->name,
                     (long long)per_piece, (long long)j->row_bytes);
    it->crc = (uint32_t)crc32(0, NULL, 0);
    for (j->row0 = 0; j->row0 < rows && rc == OK; j->row0 += j->n_rows) {
        j->n_rows = (int)(rows - j->row0 < per_piece ? rows - j->row0 : per_piece);
        par_run(j->par, encode_piece, j);
        size_t n = (size_t)(j->n_rows * j->row_bytes);
        it->crc = (uint32_t)crc32_z(it->crc, j->piece, n);
        safetensorsw_data(j->w, j->piece, n);
    }
    free_piece(j);
    return rc;
}

/* The progress counts bytes of skipped shards too: they are done. */
static int write_items(struct job *j, struct err *e)
{
    const struct tohf_plan *p = &j->plan;
    uint64_t done = 0;
    int rc = OK;

    for (int i = 0; i < p->n && rc == OK; i++) {
        struct tohf_item *it = &p->items[i];
        if (j->opt->progress) j->opt->progress(j->opt->progress_arg, done, p->bytes, it->name);
        if (safetensorsw_wants(j->w, (size_t)i)) rc = write_item(j, it, e);
        done += it->bytes;
    }
    return rc;
}

/* All tensors are declared before the first data: shard sizes and the index depend on them. */
static int write_tensors(struct job *j, struct tohf_result *r, struct err *e)
{
    const struct tohf_plan *p = &j->plan;
    int rc = safetensorsw_open(&j->w, j->opt->dst, j->opt->shard_bytes, e);

    if (rc != OK) return rc;
    if (j->opt->resume) safetensorsw_resume(j->w);
    for (int i = 0; i < p->n; i++)
        safetensorsw_tensor(j->w, p->items[i].name, p->items[i].type, p->items[i].dims,
                            p->items[i].n_dims);
    if ((rc = write_items(j, e)) != OK) {
        safetensorsw_abort(j->w);
    } else {
        safetensorsw_wants(j->w, 0); /* plans the shards even where there is no tensor */
        r->n_files = safetensorsw_n_files(j->w);
        rc = safetensorsw_close(j->w, e);
    }
    j->w = NULL;
    r->n_tensors = p->n;
    r->bytes = p->bytes;
    return rc;
}

/* Opens the folder again: every tensor must be there with its type, size and checksum. Tensors of
 * shards kept from an earlier run have no checksum. */
static int verify_folder(const struct job *j, struct err *e)
{
    struct source *s = NULL;
    struct arena a = { 0 };
    struct hparams hp = { 0 };
    int rc = source_open(&s, j->opt->dst, e);

    if (rc == OK) rc = hparams_read(&hp, &a, s, e);
    for (int i = 0; i < j->plan.n && rc == OK; i++) {
        const struct tohf_item *it = &j->plan.items[i];
        const struct source_tensor *t = source_find(s, it->name);
        bool good = t && t->type == it->type && t->bytes == it->bytes;
        if (good && it->crc) good = crc32_z(crc32(0, NULL, 0), t->data, t->bytes) == it->crc;
        if (!good)
            rc = err_set(e, E_IO, "%s: reading it back, tensor '%s' differs from what was written",
                         j->opt->dst, it->name);
    }
    arena_release(&a);
    source_close(s);
    return rc;
}

/* config.json is written first: source_open needs it when the folder is verified. */
static int write_config(struct job *j, struct err *e)
{
    struct buf text = { 0 };
    char *path = path_join(j->opt->dst, "config.json");
    int rc = path ? tohf_config(j->src, &j->hp, j->plan.main_type, &text, e)
                  : err_nomem(e, "the path of config.json");

    if (rc == OK) rc = buf_check(&text, e);
    if (rc == OK) rc = file_replace(path, buf_str(&text), e);
    mem_free(path);
    buf_release(&text);
    return rc;
}

/* Reads the GGUF file, plans, and makes the folder with enough disk space in it. */
static int prepare_folder(struct job *j, struct err *e)
{
    const struct tohf_opt *opt = j->opt;
    int rc = source_open(&j->src, opt->src, e);

    if (rc != OK) return rc;
    if (source_onnx(j->src))
        return err_set(e, E_UNSUPPORTED,
                       "%s is an ONNX model and cannot be converted; tern runs ONNX files directly",
                       opt->src);
    if ((rc = hparams_read(&j->hp, &j->arena, j->src, e)) != OK) return rc;
    if ((rc = tohf_plan(&j->plan, &j->hp, &j->arena, j->src, opt->type, e)) != OK) return rc;
    if (mkdir(opt->dst, 0777) != 0 && errno != EEXIST)
        return err_set(e, E_IO, "cannot make the folder %s: %s", opt->dst, strerror(errno));
    return rewrite_room(opt->dst, j->plan.bytes, e);
}

int tohf_run(const struct tohf_opt *opt, struct tohf_result *out, struct err *e)
{
    struct job j = { .opt = opt };
    uint64_t start = clock_ns();
    int rc;

    *out = (struct tohf_result){ 0 };
    if ((rc = prepare_folder(&j, e)) != OK) goto out;
    if ((rc = par_open(&j.par, (struct par_opt){ .n_threads = opt->n_threads }, e)) != OK) goto out;
    j.tmp = arena_array(&j.arena, (size_t)par_n(j.par), sizeof *j.tmp);
    if (!j.tmp) {
        rc = err_nomem(e, "the row buffers");
        goto out;
    }
    if ((rc = write_config(&j, e)) != OK) goto out;
    if ((rc = tohf_files(j.src, &j.hp, opt->dst, &out->no_tokenizer, e)) != OK) goto out;
    if ((rc = write_tensors(&j, out, e)) != OK) goto out;
    rc = verify_folder(&j, e);
    out->seconds = clock_ms_since(start) / 1e3;
out:
    par_close(j.par);
    arena_release(&j.arena);
    source_close(j.src);
    return rc;
}
