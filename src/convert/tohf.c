#include "convert/tohf.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/par.h"
#include "convert/tohf_plan.h"
#include "format/safetensorsw.h"
#include "quant/rewrite.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <zlib.h>

#define PIECE_BYTES (8u << 20)

struct job {
    const struct tohf_opt *opt;
    struct source *src;
    struct arena arena;
    struct hparams hp;
    struct tohf_plan plan;
    struct par *par;
    struct safetensorsw *w;
    /* the piece under way */
    const struct tohf_item *it;
    int64_t row0, row_bytes;
    int n_rows;
    unsigned char *piece;
    float **x;
};

static void encode_rows(void *arg, int t, int n_threads)
{
    struct job *j = arg;
    int64_t cols = j->it->y.cols;
    int a, b;

    (void)n_threads;
    while (par_next(j->par, j->n_rows, cols < 16384 ? (int)(16384 / cols) : 1, &a, &b))
        for (int i = a; i < b; i++)
            tohf_row(j->it, j->row0 + i, j->piece + i * j->row_bytes, j->x[t]);
}

static int write_turned(struct job *j, struct tohf_item *it, struct err *e)
{
    unsigned char *all = mem_alloc(it->bytes);
    int rc = all ? tohf_turned(it, all, e) : err_set(e, E_NOMEM, "%s: no memory for it", it->name);

    if (rc == OK) {
        it->crc = (uint32_t)crc32_z(crc32(0, NULL, 0), all, it->bytes);
        safetensorsw_data(j->w, all, it->bytes);
    }
    mem_free(all);
    return rc;
}

static int write_item(struct job *j, struct tohf_item *it, struct err *e)
{
    int64_t rows = it->y.rows * it->y.count, per_piece;

    if (it->y.turned) return write_turned(j, it, e);
    j->it = it;
    j->row_bytes = (int64_t)(it->bytes / (uint64_t)rows);
    per_piece = (int64_t)PIECE_BYTES / j->row_bytes;
    if (per_piece < 1) per_piece = 1;
    if (per_piece > rows) per_piece = rows;
    j->piece = mem_array((size_t)per_piece, (size_t)j->row_bytes);
    if (!j->piece) return err_set(e, E_NOMEM, "%s: no memory for its rows", it->name);
    for (int t = 0; t < par_n(j->par); t++) j->x[t] = mem_array((size_t)it->y.cols, sizeof(float));
    it->crc = (uint32_t)crc32(0, NULL, 0);
    for (j->row0 = 0; j->row0 < rows; j->row0 += j->n_rows) {
        j->n_rows = (int)(rows - j->row0 < per_piece ? rows - j->row0 : per_piece);
        par_run(j->par, encode_rows, j);
        size_t n = (size_t)(j->n_rows * j->row_bytes);
        it->crc = (uint32_t)crc32_z(it->crc, j->piece, n);
        safetensorsw_data(j->w, j->piece, n);
    }
    for (int t = 0; t < par_n(j->par); t++) mem_free(j->x[t]);
    mem_free(j->piece);
    j->piece = NULL;
    return OK;
}

static int write_tensors(struct job *j, struct tohf_result *r, struct err *e)
{
    const struct tohf_plan *p = &j->plan;
    uint64_t done = 0;
    int rc = safetensorsw_open(&j->w, j->opt->dst, j->opt->shard_bytes, e);

    if (rc != OK) return rc;
    if (j->opt->resume) safetensorsw_resume(j->w);
    for (int i = 0; i < p->n; i++)
        safetensorsw_tensor(j->w, p->items[i].name, p->items[i].type, p->items[i].dims,
                            p->items[i].n_dims);
    for (int i = 0; i < p->n && rc == OK; i++) {
        struct tohf_item *it = &p->items[i];
        if (j->opt->progress) j->opt->progress(j->opt->arg, done, p->bytes, it->name);
        if (safetensorsw_wants(j->w, (size_t)i)) rc = write_item(j, it, e);
        done += it->bytes;
    }
    if (rc != OK) {
        safetensorsw_abort(j->w);
    } else {
        safetensorsw_wants(j->w, 0);
        r->n_files = safetensorsw_n_files(j->w);
        rc = safetensorsw_close(j->w, e);
    }
    j->w = NULL;
    r->n_tensors = p->n;
    r->bytes = p->bytes;
    return rc;
}

static int read_back(const struct job *j, struct err *e)
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
            rc = err_set(e, E_IO, "%s: '%s' did not come back as written", j->opt->dst, it->name);
    }
    arena_release(&a);
    source_close(s);
    return rc;
}

static int write_config(struct job *j, struct err *e)
{
    struct buf text = { 0 };
    char *path = path_join(j->opt->dst, "config.json");
    int rc = tohf_config(j->src, &j->hp, j->plan.main_type, &text, e);

    if (rc == OK) rc = file_replace(path, buf_str(&text), e);
    mem_free(path);
    buf_release(&text);
    return rc;
}

int tohf_run(const struct tohf_opt *opt, struct tohf_result *out, struct err *e)
{
    struct job j = { .opt = opt };
    uint64_t start = clock_ns();
    int rc;

    if ((rc = source_open(&j.src, opt->src, e)) != OK) goto out;
    if (source_onnx(j.src)) {
        rc = err_set(e, E_UNSUPPORTED,
                     "%s: is an ONNX graph, which is run as it is: only weights of known "
                     "architectures are converted",
                     opt->src);
        goto out;
    }
    if ((rc = hparams_read(&j.hp, &j.arena, j.src, e)) != OK) goto out;
    if ((rc = tohf_plan(&j.plan, &j.hp, &j.arena, j.src, opt->type, e)) != OK) goto out;
    if (mkdir(opt->dst, 0777) != 0 && errno != EEXIST) {
        rc = err_set(e, E_IO, "%s: %s", opt->dst, strerror(errno));
        goto out;
    }
    if ((rc = rewrite_room(opt->dst, j.plan.bytes, e)) != OK) goto out;
    if ((rc = par_open(&j.par, (struct par_opt){ .n_threads = opt->n_threads }, e)) != OK) goto out;
    j.x = arena_array(&j.arena, (size_t)par_n(j.par), sizeof *j.x);
    if ((rc = write_config(&j, e)) != OK) goto out;
    if ((rc = tohf_files(j.src, &j.hp, opt->dst, &out->no_tokenizer, e)) != OK) goto out;
    if ((rc = write_tensors(&j, out, e)) != OK) goto out;
    rc = read_back(&j, e);
    out->seconds = clock_ms_since(start) / 1e3;
out:
    par_close(j.par);
    arena_release(&j.arena);
    source_close(j.src);
    return rc;
}
