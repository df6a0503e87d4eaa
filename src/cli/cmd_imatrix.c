/* tern imatrix: how large a text makes the inputs of every product. */
#include "base/map.h"
#include "base/mem.h"
#include "cli/args.h"
#include "cli/progress.h"
#include "cli/cmd.h"
#include "cli/evalmodel.h"
#include "quant/imatrix.h"

#include <stdio.h>
#include <string.h>

static const struct verb verb = {
    "imatrix",
    "tern imatrix -m MODEL -f TEXT -o FILE",
    "Runs TEXT through MODEL and keeps, for every matrix, the mean square of each input column: "
    "an\n"
    "error there costs as much. tern quantize --imatrix takes it, and so do other programs (a name "
    "that\n"
    "ends with .dat gives the older form). A few hundred windows of text like the model's own are "
    "enough.\n\n"
    "  tern imatrix -m model-f16.gguf -f text.txt -o model.imatrix --chunks 200",
};

/* Sums for one matrix of the model: a tensor, or an expert's part of one. */
struct column_sums {
    const struct weight *w; /* gone with the model */
    const char *name;
    int mat, n_mats, cols;
    double *sums; /* [cols] */
    double count;
};

struct collect {
    struct arena arena;
    struct column_sums *all;
    int n;
    struct map by_weight; /* address → index */
    void (*linear)(struct backend *be, const struct tensor *x, const struct linear *jobs,
                   int n_jobs);
    void (*experts)(struct backend *be, const struct tensor *out, const struct tensor *x,
                    const int32_t *ids, const float *weights, const struct experts_opt *opt);
    double *squares; /* [max cols] of the call under way */
    struct progress bar;
    int n_windows;
};

/* The backend's table has no room for who listens; a process collects once. */
static struct collect *listening;

static struct column_sums *sums_of(const struct collect *c, const struct weight *w)
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

/* The products go on to the backend; what they are made of is summed before. */
static void listen(struct backend *be, const struct tensor *x, const struct linear *jobs,
                   int n_jobs)
{
    struct collect *c = listening;
    bool summed = false;

    for (int k = 0; k < n_jobs; k++) {
        struct column_sums *s = sums_of(c, jobs[k].w);
        if (!s) continue;
        if (!summed) add_squares(c, x);
        summed = true;
        for (int col = 0; col < x->cols; col++) s->sums[col] += c->squares[col];
        s->count += x->rows;
    }
    c->linear(be, x, jobs, n_jobs);
}

static void add_row(struct column_sums *s, const float *row)
{
    for (int i = 0; s && i < s->cols; i++) s->sums[i] += (double)row[i] * (double)row[i];
    if (s) s->count++;
}

/* Behind the call the scratch holds what went into the second product, sorted by expert. */
static void listen_experts(struct backend *be, const struct tensor *out, const struct tensor *x,
                           const int32_t *ids, const float *weights, const struct experts_opt *o)
{
    struct collect *c = listening;

    for (int i = 0; i < x->rows * o->n_used; i++) {
        const float *row = tensor_row(x, i / o->n_used);
        if (o->gate) add_row(sums_of(c, &o->gate[ids[i]]), row);
        add_row(sums_of(c, &o->up[ids[i]]), row);
    }
    c->experts(be, out, x, ids, weights, o);
    for (int e = 0; e < o->n; e++)
        for (int r = o->order[e]; r < o->order[e + 1]; r++)
            add_row(sums_of(c, &o->down[e]), tensor_row(&o->hs, r));
}

static void watch(struct collect *c, const struct weight *w, const char *name, int mat, int n_mats)
{
    if (w->rows == 0 || sums_of(c, w)) return;
    struct column_sums *s = &c->all[c->n];
    *s =
        (struct column_sums){ .w = w, .name = name, .mat = mat, .n_mats = n_mats, .cols = w->cols };
    s->sums = arena_array(&c->arena, (size_t)w->cols, sizeof *s->sums);
    map_put(&c->by_weight, str_of((const char *)&s->w, sizeof s->w), (uint64_t)c->n++);
}

/* Every matrix of the table; of packed ones the first slice stands for all, which share their
 * input. */
static void watch_row(struct collect *c, const struct eval *v, const struct tensor_row *r, int l)
{
    const struct model *m = v->model;
    const char *at = (row_in_layer(r) ? (const char *)&m->layers[l] : (const char *)m) + r->at;
    int n = r->count ? hparams_dim(&m->hp, r->count, l) : 1;
    char text[160];

    if (!hparams_name(&m->hp, r, l, 0, SOURCE_GGUF, text, sizeof text)) return;
    if (m->hp.from == SOURCE_GGUF && !source_find(v->src, text)) return;
    if (m->hp.from == SOURCE_HF && !r->hf && r->kind != ROW_WHOLE)
        return; /* convert writes the parts */
    const struct weight *w = r->count ? *(struct weight *const *)at : (const struct weight *)at;
    const char *name = arena_cstr(&c->arena, str_c(text));
    for (int i = 0; w && i < n; i++) watch(c, &w[i], name, i, n);
}

static bool is_product(const struct tensor_row *r)
{
    return r->cols != DIM_NONE && r->kind != ROW_SCALE && r->gguf;
}

static int count_all(const struct model *m)
{
    int n = 0, it = 0;

    for (const struct tensor_row *r = arch_row(m->hp.info, &it); r; r = arch_row(m->hp.info, &it))
        if (is_product(r))
            n += (r->count ? hparams_dim(&m->hp, r->count, 0) : 1) *
                 (row_in_layer(r) ? m->hp.n_layers : 1);
    return n;
}

static void watch_all(struct collect *c, const struct eval *v)
{
    const struct model *m = v->model;
    int it = 0;

    for (const struct tensor_row *r = arch_row(m->hp.info, &it); r; r = arch_row(m->hp.info, &it)) {
        int n = row_in_layer(r) ? m->hp.n_layers : 1;
        for (int l = 0; is_product(r) && l < n; l++)
            if (hparams_has(&m->hp, r, l)) watch_row(c, v, r, l);
    }
}

static int on_open(void *arg, struct eval *v, struct err *e)
{
    struct collect *c = arg;
    struct backend *be = place_last(&v->place);
    int max_cols = 1;

    if (strcmp(be->name, "cpu") != 0)
        return err_set(e, E_UNSUPPORTED, "an importance matrix is collected on the CPU, not on %s",
                       be->name);
    c->all = mem_array((size_t)count_all(v->model) + 1, sizeof *c->all);
    watch_all(c, v);
    for (int i = 0; i < c->n; i++) max_cols = c->all[i].cols > max_cols ? c->all[i].cols : max_cols;
    c->squares = mem_array((size_t)max_cols, sizeof *c->squares);
    c->linear = be->linear;
    c->experts = be->experts;
    be->linear = listen;
    if (be->experts) be->experts = listen_experts;
    listening = c;
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

static int write_out(struct collect *c, const struct eval_opt *o, const char *path, struct err *e)
{
    struct imatrix m = { .dataset = o->file, .n_chunks = c->n_windows, .chunk_tokens = o->n_ctx };
    int rc;

    for (int i = 0; i < c->n; i++) {
        const struct column_sums *s = &c->all[i];
        if (s->count == 0) continue;
        struct imatrix_entry *en = imatrix_entry(&m, str_c(s->name), s->cols, s->n_mats);
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

static void release(struct collect *c)
{
    listening = NULL;
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
    const char *out = NULL, *pos[1] = { 0 };
    bool helped, quiet = false;
    const struct arg table[] = {
        { "--model", "-m", ARG_STR, &o.model, "MODEL",
          "a GGUF file or a Hugging Face folder, not quantized at best" },
        { "--file", "-f", ARG_STR, &o.file, "TEXT", "the text" },
        { "--output", "-o", ARG_STR, &out, "FILE", "where to write it" },
        { "--ctx", "-c", ARG_INT, &o.n_ctx, "N", "tokens of a window (512)" },
        { "--chunks", NULL, ARG_INT, &o.n_chunks, "N", "only the first N windows (all)" },
        { "--threads", "-t", ARG_INT, &o.n_threads, "N", "threads (default: physical cores)" },
        { "--quiet", "-q", ARG_FLAG, &quiet, NULL, "no progress" },
        { 0 },
    };
    struct eval_ppl_result r;
    struct err e = { 0 };
    int n_pos, rc;

    if (args_parse(&verb, table, argc, argv, pos, 1, &n_pos, &helped, &e) != OK)
        return cmd_usage("imatrix", &e);
    if (helped) return EXIT_OK;
    if (!o.model || !o.file || !out) err_set(&e, E_INVALID, "takes -m MODEL, -f TEXT and -o FILE");
    else if (n_pos) err_set(&e, E_INVALID, "unexpected argument '%s'", pos[0]);
    else if (o.n_ctx < 2 || o.n_ctx > 1 << 20 || o.n_chunks < 0)
        err_set(&e, E_INVALID, "--ctx takes 2 to 1048576, --chunks 0 or more");
    if (e.code != OK) return cmd_usage("imatrix", &e);
    progress_begin(&c.bar, false, quiet);
    rc = eval_ppl_run(&o, &r, &e);
    progress_end(&c.bar);
    if (rc == OK) rc = write_out(&c, &o, out, &e);
    release(&c);
    return rc == OK ? EXIT_OK : cmd_fail(&e);
}
