/* cmd_imatrix.c - tern imatrix: an importance matrix, the mean square of every input column of
 * every weight matrix over a text.
 *
 * The backend's linear and experts operations are replaced by functions that sum the squares of
 * their inputs and then call the original. CPU backend only: inputs must be in host memory. */
#include "base/map.h"
#include "base/mem.h"
#include "cli/args.h"
#include "cli/cliio.h"
#include "cli/progress.h"
#include "cli/cmd.h"
#include "cli/guard.h"
#include "cli/evalmodel.h"
#include "quant/imatrix.h"
#include "model/decoder.h"
#include "format/source.h"

#include <stdio.h>
#include <string.h>

static const struct verb verb = {
    "imatrix",
    "tern imatrix -m MODEL -f TEXT -o FILE",
    "Runs the text through the model and writes the mean square of each input column of each\n"
    "matrix: the weight that a quantization error in that column has. tern quantize --imatrix\n"
    "and llama.cpp read the file; a name that ends with .dat selects the older format. A few\n"
    "hundred windows of text similar to what the model is used for are enough.\n\n"
    "examples:\n"
    "  tern imatrix -m model-f16.gguf -f text.txt -o model.imatrix --chunks 200",
};

/* Sums for one matrix of the model: a tensor, or one expert of a stacked tensor. */
struct column_sums {
    const struct weight *w; /* borrowed; also the key in by_weight */
    const char *name;
    int mat, n_mats, cols;
    double *sums; /* [cols] */
    double count;
};

struct collect {
    struct arena arena;
    struct column_sums *all;
    int n;
    struct map by_weight; /* address of a struct weight → index into all */
    /* the backend's operations */
    void (*linear)(struct backend *be, const struct tensor *x, const struct linear *jobs,
                   int n_jobs);
    void (*experts)(struct backend *be, const struct tensor *out, const struct tensor *x,
                    const int32_t *ids, const float *weights, const struct experts_opt *opt);
    double *squares; /* [max cols] sums of the current call */
    struct progress bar;
    int n_windows;
};

/* Operations of a backend have no user argument; a process collects one imatrix. */
static struct collect *collecting;

static struct column_sums *find_sums(const struct collect *c, const struct weight *w)
{
    uint64_t i;
    return map_get(&c->by_weight, str_of((const char *)&w, sizeof w), &i) ? &c->all[i] : NULL;
}

static void add_squares(struct collect *c, const struct tensor *x)
{
    memset(c->squares, 0, (size_t)x->cols * sizeof *c->squares);
    for (int r = 0; r < x->rows; r++) {
        const float *row = tensor_row(x, r);
        for (int i = 0; i < x->cols; i++) c->squares[i] += (double)row[i] * (double)row[i];
    }
}

/* Replaces backend.linear. */
static void collect_linear(struct backend *be, const struct tensor *x, const struct linear *jobs,
                           int n_jobs)
{
    struct collect *c = collecting;
    bool summed = false;

    for (int k = 0; k < n_jobs; k++) {
        struct column_sums *s = find_sums(c, jobs[k].w);
        if (!s) continue;
        if (!summed) add_squares(c, x);
        summed = true;
        for (int col = 0; col < x->cols; col++) s->sums[col] += c->squares[col];
        s->count += x->rows;
    }
    c->linear(be, x, jobs, n_jobs);
}

static void add_input_row(struct column_sums *s, const float *row)
{
    for (int i = 0; s && i < s->cols; i++) s->sums[i] += (double)row[i] * (double)row[i];
    if (s) s->count++;
}

/* Replaces backend.experts. After the call the scratch memory hs holds the inputs of the down
 * projection, sorted by expert. */
static void collect_experts(struct backend *be, const struct tensor *out, const struct tensor *x,
                            const int32_t *ids, const float *weights, const struct experts_opt *o)
{
    struct collect *c = collecting;

    for (int i = 0; i < x->rows * o->n_used; i++) {
        const float *row = tensor_row(x, i / o->n_used);
        if (o->gate) add_input_row(find_sums(c, &o->gate[ids[i]]), row);
        add_input_row(find_sums(c, &o->up[ids[i]]), row);
    }
    c->experts(be, out, x, ids, weights, o);
    for (int e = 0; e < o->n; e++)
        for (int r = o->order[e]; r < o->order[e + 1]; r++)
            add_input_row(find_sums(c, &o->down[e]), tensor_row(&o->hs, r));
}

static void add_matrix(struct collect *c, const struct weight *w, const char *name, int mat,
                       int n_mats)
{
    if (w->rows == 0 || find_sums(c, w)) return;
    struct column_sums *s = &c->all[c->n];
    *s =
        (struct column_sums){ .w = w, .name = name, .mat = mat, .n_mats = n_mats, .cols = w->cols };
    s->sums = cli_need(arena_array(&c->arena, (size_t)w->cols, sizeof *s->sums));
    if (map_put(&c->by_weight, str_of((const char *)&s->w, sizeof s->w), (uint64_t)c->n++) < 0)
        cli_nomem();
}

/* Adds the matrices of one row of the architecture's tensor table in layer l, under their GGUF
 * name. */
static void add_table_row(struct collect *c, const struct evalmodel *v, const struct tensor_row *r,
                          int l)
{
    const struct model *m = v->model;
    const char *at = (row_in_layer(r) ? (const char *)&m->layers[l] : (const char *)m) + r->at;
    int n = r->count ? hparams_dim(&m->hp, r->count, l) : 1;
    char text[160];

    if (!hparams_name(&m->hp, r, l, 0, SOURCE_GGUF, text, sizeof text)) return;
    if (m->hp.from == SOURCE_GGUF && !source_find(v->plan->source, text)) return;
    /* A folder's packed tensor has no GGUF name of its own: tern convert writes its parts. */
    if (m->hp.from == SOURCE_HF && !r->hf && r->kind != ROW_WHOLE) return;
    const struct weight *w = r->count ? *(struct weight *const *)at : (const struct weight *)at;
    const char *name = cli_need(arena_cstr(&c->arena, str_c(text)));
    for (int i = 0; w && i < n; i++) add_matrix(c, &w[i], name, i, n);
}

/* Is it the weight of a matrix product, and in GGUF files? */
static bool is_matrix(const struct tensor_row *r)
{
    return r->cols != DIM_NONE && r->kind != ROW_SCALE && r->gguf;
}

static int count_matrices(const struct model *m)
{
    int n = 0, it = 0;

    for (const struct tensor_row *r = arch_row(m->hp.info, &it); r; r = arch_row(m->hp.info, &it))
        if (is_matrix(r))
            n += (r->count ? hparams_dim(&m->hp, r->count, 0) : 1) *
                 (row_in_layer(r) ? m->hp.n_layers : 1);
    return n;
}

static void add_all_matrices(struct collect *c, const struct evalmodel *v)
{
    const struct model *m = v->model;
    int it = 0;

    for (const struct tensor_row *r = arch_row(m->hp.info, &it); r; r = arch_row(m->hp.info, &it)) {
        int n = row_in_layer(r) ? m->hp.n_layers : 1;
        for (int l = 0; is_matrix(r) && l < n; l++)
            if (hparams_has(&m->hp, r, l)) add_table_row(c, v, r, l);
    }
}

static int on_open(void *arg, struct evalmodel *v, struct err *e)
{
    struct collect *c = arg;
    struct backend *be = place_last(&v->plan->place);
    int max_cols = 1;

    if (strcmp(be->name, "cpu") != 0)
        return err_set(e, E_UNSUPPORTED, "an importance matrix is computed on the CPU, not on %s",
                       be->name);
    c->all = cli_need(mem_array((size_t)count_matrices(v->model) + 1, sizeof *c->all));
    add_all_matrices(c, v);
    for (int i = 0; i < c->n; i++) max_cols = c->all[i].cols > max_cols ? c->all[i].cols : max_cols;
    c->squares = cli_need(mem_array((size_t)max_cols, sizeof *c->squares));
    c->linear = be->linear;
    c->experts = be->experts;
    be->linear = collect_linear;
    if (be->experts) be->experts = collect_experts;
    collecting = c;
    return OK;
}

static int on_scored(void *arg, int n, int of, struct err *e)
{
    struct collect *c = arg;
    char text[48];

    (void)e;
    c->n_windows = n;
    snprintf(text, sizeof text, "window %d of %d", n, of);
    progress_show(&c->bar, (uint64_t)n, (uint64_t)of, text);
    return OK;
}

static int write_imatrix(struct collect *c, const struct eval_opt *o, const char *path,
                         struct err *e)
{
    struct imatrix m = { .dataset = o->file, .n_chunks = c->n_windows, .chunk_tokens = o->n_ctx };
    int rc;

    for (int i = 0; i < c->n; i++) {
        const struct column_sums *s = &c->all[i];
        if (s->count == 0) continue;
        struct imatrix_entry *en = cli_need(imatrix_add(&m, str_c(s->name), s->cols, s->n_mats));
        for (int k = 0; k < s->cols; k++) en->sums[s->mat * s->cols + k] = (float)s->sums[k];
        en->counts[s->mat] = (float)s->count;
    }
    rc = imatrix_write(&m, path, e);
    if (rc == OK)
        fprintf(stderr, "%s: %d matrices, %d windows of %d tokens\n", path, m.n, c->n_windows,
                o->n_ctx);
    imatrix_release(&m);
    return rc;
}

static void release_collect(struct collect *c)
{
    collecting = NULL;
    map_release(&c->by_weight);
    arena_release(&c->arena);
    mem_free(c->all);
    mem_free(c->squares);
}

int cmd_imatrix(int argc, char **argv)
{
    struct collect c = { 0 };
    struct eval_opt o = {
        .n_ctx = 512, .llama = true, .opened = on_open, .scored = on_scored, .arg = &c
    };
    struct guard guard = { 0 };
    const char *out = NULL, *pos[1] = { 0 };
    bool helped, quiet = false;
    const struct arg table[] = {
        { "--model", "-m", ARG_STR, &o.model, "MODEL",
          "GGUF file or Hugging Face folder, best without quantization" },
        { "--file", "-f", ARG_STR, &o.file, "TEXT", "the text" },
        { "--output", "-o", ARG_STR, &out, "FILE", "file to write" },
        { "--ctx", "-c", ARG_INT, &o.n_ctx, "N", "tokens per window (512)" },
        { "--chunks", NULL, ARG_INT, &o.n_chunks, "N", "at most N windows (all)" },
        { "--threads", "-t", ARG_INT, &o.n_threads, "N", "threads (physical cores)" },
        { "--quiet", "-q", ARG_FLAG, &quiet, NULL, "no progress bar" },
        GUARD_KEY_ARGS(&guard),
        { 0 },
    };
    struct eval_ppl_result r;
    struct err e = { 0 };
    int n_pos, rc;

    if (args_parse(&verb, table, argc, argv, pos, 1, &n_pos, &helped, &e) != OK)
        return cmd_usage("imatrix", &e);
    if (helped) return EXIT_OK;
    if (!o.model || !o.file || !out)
        err_set(&e, E_INVALID, "-m MODEL, -f TEXT and -o FILE are required");
    else if (n_pos) err_set(&e, E_INVALID, "unexpected argument '%s'", pos[0]);
    else if (o.n_ctx < 2 || o.n_ctx > 1 << 20)
        err_set(&e, E_INVALID, "--ctx %d: must be 2 to 1048576", o.n_ctx);
    else if (o.n_chunks < 0) err_set(&e, E_INVALID, "--chunks %d: must be 0 or more", o.n_chunks);
    if (e.code != OK) return cmd_usage("imatrix", &e);
    progress_begin(&c.bar, false, quiet);
    if ((rc = guard_join(&guard, &e)) == OK) rc = eval_ppl_run(&o, &r, &e);
    progress_end(&c.bar);
    guard_release(&guard);
    if (rc == OK) rc = write_imatrix(&c, &o, out, &e);
    release_collect(&c);
    return cmd_result(rc, &e);
}
