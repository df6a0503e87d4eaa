/* onnxrunner.c - an ONNX graph behind the runner boundary, and its loader.
 *
 * The engine gives texts as flat tokens; the graph wants a matrix [texts][tokens]. Texts of equal
 * length are gathered into one pass, as many as the planned memory holds. */
#include "model/onnxrunner.h"

#include "base/log.h"
#include "base/mem.h"
#include "kernel/cpu/cpu.h"
#include "model/loadplan.h"
#include "model/scan.h"

#include <string.h>

enum { WARM_TOKENS = 4 };

static struct onnxrunner *graph_of(const struct runner *r) { return (struct onnxrunner *)r; }

/* Works on a graph at any stage of opening. */
static void close_graph(struct runner *r)
{
    struct onnxrunner *g = graph_of(r);

    for (int k = 0; g->be && k < MEM_KINDS; k++) g->be->used_bytes[k] -= g->counted[k];
    onnx_run_close(g->run);
    if (g->source) source_watch(g->source, NULL, NULL);
    onnx_close(g->file);
    for (int k = 0; k < CARD_INPUTS; k++) mem_free(g->data[k]);
    mem_free(g->seq_end);
    mem_free(g->n_of);
    mem_free(g->first);
    mem_free(g->len);
    mem_free(g->row);
    mem_free(g);
}

/* ---- inputs of the graph ---- */

static enum onnx_type input_type(const struct onnxrunner *g, int k)
{
    return g->file->graph.inputs[g->card.inputs[k]].type;
}

/* Writes one number of input k in the type that the graph declares for it. */
static void put_input(const struct onnxrunner *g, int k, size_t at, int64_t v)
{
    if (g->card.inputs[k] < 0) return;
    switch (input_type(g, k)) {
    case ONNX_F32: ((float *)g->data[k])[at] = (float)v; break;
    case ONNX_I64: ((int64_t *)g->data[k])[at] = v; break;
    default: ((uint8_t *)g->data[k])[at] = v != 0;
    }
}

static void set_inputs(struct onnxrunner *g, int64_t batch, int64_t len)
{
    int64_t dims[2] = { batch, len };

    for (int k = 0; k < CARD_INPUTS; k++)
        if (g->card.inputs[k] >= 0) onnx_run_set(g->run, g->card.inputs[k], 2, dims, g->data[k]);
}

/* A row of the graph's inputs: the text of a sequence, padded to len tokens. */
static void put_text(const struct onnxrunner *g, const struct batch *b, int seq, int row, int len)
{
    size_t at = (size_t)row * (size_t)len;
    int second = b->second ? b->second[seq] : 0;

    for (int i = 0; i < len; i++, at++) {
        bool in = i < g->len[seq];
        put_input(g, CARD_IDS, at, in ? b->ids[g->first[seq] + i] : g->card.pad);
        put_input(g, CARD_MASK, at, in);
        put_input(g, CARD_TYPES, at, in && second > 0 && i >= second);
        put_input(g, CARD_POSITIONS, at, i + g->card.first_pos);
    }
}

/* The output must be what the card says: [texts][width], or [texts][tokens][width] before pooling. */
static int check_shape(const struct onnxrunner *g, const struct onnx_tensor *t, int64_t batch,
                       int64_t len, struct err *e)
{
    const struct card *c = &g->card;
    bool rows = c->pool != CARD_NONE, good = t->type == ONNX_F32 && t->n_dims == 2 + rows;

    good = good && t->dims[0] == batch && (!rows || t->dims[1] == len) &&
           t->dims[t->n_dims - 1] == c->width;
    if (good) return OK;
    return err_set(e, E_FORMAT,
                   "%s: for %lld texts of %lld tokens the output is %s of %d dimensions (%lld x "
                   "%lld x %lld), but %s of %d were expected: see tern.json",
                   g->file->path, (long long)batch, (long long)len, onnx_type_name(t->type),
                   t->n_dims, (long long)t->dims[0], (long long)t->dims[1], (long long)t->dims[2],
                   c->task == CARD_EMBED ? "vectors" : "classes", c->width);
}

/* ---- a batch ---- */

/* First token and length of every sequence in the batch. */
static int find_texts(struct onnxrunner *g, const struct batch *b, struct err *e)
{
    for (int i = 0; i < b->n_seqs; i++) g->len[i] = 0;
    for (int t = 0; t < b->n_tokens; t++) {
        int s = b->seq[t];
        if (g->len[s]++ == 0) g->first[s] = t;
        if (t != g->first[s] + g->len[s] - 1)
            return err_set(e, E_INVALID,
                           "token %d: the tokens of sequence %d do not follow each other", t, s);
    }
    return OK;
}

/* The wanted rows of the texts that were in this pass. */
static void copy_rows(const struct onnxrunner *g, const struct batch *b,
                      const struct onnx_tensor *out, int len)
{
    size_t width = (size_t)g->card.width;

    for (int i = 0; i < b->n_hidden; i++) {
        int t = b->hidden_rows[i], s = b->seq[t];
        size_t row = (size_t)g->row[s];
        if (g->row[s] < 0) continue;
        if (g->card.pool != CARD_NONE) row = row * (size_t)len + (size_t)(t - g->first[s]);
        memcpy(b->hidden + (size_t)i * width, (const float *)out->data + row * width,
               width * sizeof(float));
    }
}

/* Fills the inputs with sequence s and those behind it of the same length, as many as fit. Returns
 * how many; the others' len becomes negative, which marks them as done. */
static int gather_texts(struct onnxrunner *g, const struct batch *b, int s, int len)
{
    int n = 0, want = g->len[s];

    for (int i = 0; i < b->n_seqs; i++) g->row[i] = -1;
    for (int i = s; i < b->n_seqs; i++) {
        if (g->len[i] != want || (n + 1) * len > g->max_tokens || (n > 0 && g->alone)) continue;
        g->row[i] = n;
        put_text(g, b, i, n++, len);
        g->len[i] = i == s ? want : -want;
    }
    return n;
}

/* Everything is computed in wait_batch: the graph runs on the host. */
static int start_batch(struct runner *r, const struct batch *b, struct err *e)
{
    struct onnxrunner *g = graph_of(r);
    int rc = batch_check(b, &r->lim, g->seq_end, g->n_of, e);

    if (rc == OK) rc = find_texts(g, b, e);
    if (rc == OK) g->b = *b;
    return rc;
}

/* One pass per length, until all texts are done. */
static int wait_batch(struct runner *r, const float **logits, struct err *e)
{
    struct onnxrunner *g = graph_of(r);
    const struct batch *b = &g->b;
    const struct onnx_tensor *out;
    int rc = OK;

    *logits = NULL;
    for (int s = 0; s < b->n_seqs && rc == OK; s++) {
        int len = g->card.fixed_len > 0 ? (int)g->card.fixed_len : g->len[s], n;
        if (g->len[s] <= 0) continue;
        n = gather_texts(g, b, s, len);
        set_inputs(g, n, len);
        if ((rc = onnx_run_execute(g->run, b->stop, b->stop_arg, &out, e)) != OK) break;
        if ((rc = check_shape(g, out, n, len, e)) == OK) copy_rows(g, b, out, len);
    }
    return rc;
}

static int list_devices(const struct runner *r, struct runner_device *out, int max)
{
    const struct backend *be = graph_of(r)->be;

    if (max > 0)
        *out = (struct runner_device){ .name = be->name, .detail = be->detail, .n_layers = 1 };
    return 1;
}

/* ---- the load plan ---- */

/* Arrays of the largest pass through the graph. */
static int alloc_arrays(struct onnxrunner *g, int max_seqs, struct err *e)
{
    int32_t **per_seq[] = { &g->seq_end, &g->n_of, &g->first, &g->len, &g->row };

    for (int k = 0; k < CARD_INPUTS; k++)
        if (g->card.inputs[k] >= 0 &&
            !(g->data[k] = mem_array((size_t)g->max_tokens, sizeof(int64_t))))
            return err_nomem(e, "the inputs of the graph");
    for (size_t i = 0; i < sizeof per_seq / sizeof *per_seq; i++)
        if (!(*per_seq[i] = mem_array((size_t)max_seqs, sizeof(int32_t))))
            return err_nomem(e, "the sequences of a batch");
    return OK;
}

static void count_bytes(struct onnxrunner *g, enum mem_kind kind, size_t bytes)
{
    g->counted[kind] += bytes;
    g->be->used_bytes[kind] += bytes;
}

/* Walks the graph with the largest batch, which allocates its memory. */
static int plan_graph(struct onnxrunner *g, const struct load_opt *o, struct err *e)
{
    int64_t longest = o->n_ctx < g->card.n_ctx ? o->n_ctx : g->card.n_ctx;
    int64_t len = g->card.fixed_len > 0    ? g->card.fixed_len
                  : longest < o->max_batch ? longest
                                           : o->max_batch;
    int64_t batch = g->alone || g->card.fixed_batch > 0 ? 1 : o->max_batch / len;
    struct onnx_tensor shape;
    int rc;

    if (g->card.fixed_batch > 1)
        return err_set(e, E_UNSUPPORTED, "%s: the graph takes exactly %lld texts at a time",
                       g->file->path, (long long)g->card.fixed_batch);
    if (batch < 1) batch = 1;
    g->max_tokens = (int)(batch * len);
    if ((rc = alloc_arrays(g, o->max_seqs, e)) != OK) return rc;
    for (int i = 0; i < g->max_tokens; i++) {
        put_input(g, CARD_MASK, (size_t)i, 1);
        put_input(g, CARD_POSITIONS, (size_t)i, i % len + g->card.first_pos);
    }
    set_inputs(g, batch, len);
    if ((rc = onnx_run_plan(g->run, &shape, e)) != OK) return rc;
    count_bytes(g, MEM_SCRATCH, onnx_run_bytes(g->run));
    return check_shape(g, &shape, batch, len, e);
}

static void share_rows(void *team, int rows, long long work, onnx_rows_fn *fn, const void *arg)
{
    cpu_rows(team, rows, work, fn, arg);
}

/* Finds the operators, folds constants and packs matrices, on the CPU backend's threads. */
static int open_run(struct onnxrunner *g, struct err *e)
{
    struct cpu *cpu = cpu_of(g->be);
    struct onnx_run_opt opt = { .host = { .vec = cpu->vec, .rows = share_rows, .team = cpu },
                                .output = g->card.output };
    int rc = onnx_run_open(&g->run, g->file, &opt, e);

    if (rc != OK) return rc;
    count_bytes(g, MEM_WEIGHTS, onnx_run_const_bytes(g->run));
    /* DynamicQuantizeLinear scales by the largest number of the whole batch: texts would depend on
     * their neighbours. */
    g->alone = g->card.fixed_batch == 1 || onnx_run_uses(g->run, "DynamicQuantizeLinear");
    return OK;
}

/* The card's pooling and output function in the engine's terms. */
static struct pooler pooler_of(const struct card *c)
{
    static const enum pooling pools[] = { [CARD_NONE] = POOL_LAST,
                                          [CARD_MEAN] = POOL_MEAN,
                                          [CARD_CLS] = POOL_CLS,
                                          [CARD_LAST] = POOL_LAST };
    static const enum vec_form scores[] = {
        [CARD_SOFTMAX] = VEC_SOFTMAX, [CARD_SIGMOID] = VEC_SIGMOID, [CARD_RAW] = VEC_RAW
    };
    struct pooler p = { .pooling = pools[c->pool], .width = c->width };

    p.form = c->task == CARD_CLASSIFY ? scores[c->score] : c->normalize ? VEC_UNIT : VEC_MEAN;
    return p;
}

static int check_files(const void *file, bool look, struct err *e)
{
    return onnx_check(file, look, e);
}

/* The file and its card. */
static int read_graph(struct loadplan *p, struct err *e)
{
    struct onnxrunner *g = p->graph = mem_new(struct onnxrunner);
    const struct card *c;
    int rc;

    if (!g) return err_nomem(e, "the graph");
    if ((rc = onnx_open(&g->file, source_onnx(p->source), e)) != OK) return rc;
    g->source = p->source;
    source_watch(p->source, check_files, g->file);
    if ((rc = card_read(&g->card, &p->arena, p->source, g->file, e)) != OK) return rc;
    c = &g->card;
    p->facts = (struct model_facts){ .arch = "onnx",
                                     .task = c->task == CARD_CLASSIFY ? TASK_CLASSIFY : TASK_EMBED,
                                     .n_vocab = c->n_vocab,
                                     .n_vec = c->width,
                                     .n_ctx = c->n_ctx,
                                     .max_ctx = c->n_ctx,
                                     .bidirectional = true,
                                     .pooler = pooler_of(c),
                                     .n_params = g->file->n_params };
    if (c->task == CARD_CLASSIFY) p->facts.labels = c->labels, p->facts.n_labels = c->width;
    return OK;
}

/* Always the CPU. The graph is opened here, because only then its memory is known. */
static int place_graph(struct loadplan *p, struct err *e)
{
    struct onnxrunner *g = p->graph;
    struct backend_opt host = p->opt.backend;
    struct sizes_in in = { .known = p->opt.room.host_bytes > 0 }; /* a KV block is only an id */
    int rc;

    if (p->opt.shard.tp * p->opt.shard.pp > 1)
        return err_set(e, E_UNSUPPORTED, "%s: an ONNX graph runs in one process: no tp and pp",
                       source_path(p->source));
    if (expert_place_is_given(&host) && !host.place_loose)
        return err_set(e, E_INVALID, "cpu-moe, n-cpu-moe and place: an ONNX graph has no experts");
    if (place_is_gpu(&host)) log_warn("%s: ONNX graphs run on the CPU", source_path(p->source));
    host.device = NULL;
    if ((rc = place_check_vram_only(&host, 1, e)) != OK) return rc;
    if ((rc = loadplan_choose_sizes(p, &in, e)) != OK) return rc;
    p->n_saved = 0;
    if ((rc = place_open_one(&p->place, &host, 1, e)) != OK) return rc;
    g->be = p->place.shares[0].be;
    if ((rc = open_run(g, e)) != OK) return rc;
    if ((rc = plan_graph(g, &p->opt, e)) != OK) return rc;
    p->memory[0] = (struct load_memory){ .mapped = g->file->weight_bytes,
                                         .weights = g->counted[MEM_WEIGHTS],
                                         .scratch = g->counted[MEM_SCRATCH] };
    return OK;
}

/* The plan has opened the graph already; the runner takes it over. */
static int open_graph(struct runner **out, struct loadplan *p, struct err *e)
{
    struct onnxrunner *g = p->graph;
    const struct load_opt *o = &p->opt;
    int rc = o->allow_nan ? OK : scan_graph(g->file, e);

    if (rc != OK) return rc;
    g->r = (struct runner){ .lim = { .n_vocab = g->card.n_vocab,
                                     .n_vec = g->card.width,
                                     .max_tokens = o->max_batch,
                                     .max_seqs = o->max_seqs,
                                     .max_table = (o->n_ctx + KV_BLOCK - 1) / KV_BLOCK,
                                     .n_blocks = p->n_blocks,
                                     .min_chunk = 2 * KV_BLOCK,
                                     .warm_tokens = WARM_TOKENS,
                                     .bidirectional = true },
                            .start = start_batch,
                            .wait = wait_batch,
                            .devices = list_devices,
                            .close = close_graph };
    *out = &g->r;
    p->graph = NULL;
    return OK;
}

static void release_graph(struct loadplan *p)
{
    if (p->graph) close_graph(&p->graph->r);
}

const struct loader onnx_loader = { read_graph, place_graph, open_graph, release_graph };
