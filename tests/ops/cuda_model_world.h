/* cuda_model_world.h - a model opened on a GPU, or on a GPU and the CPU, and its logits in steps of
 * all kinds against those of the reference backend. */
#ifndef TERN_TESTS_OPS_CUDA_MODEL_WORLD_H
#define TERN_TESTS_OPS_CUDA_MODEL_WORLD_H

#include "cuda_world.h"
#include "open_model.h"

#include "kv/chain.h"
#include "model/decoder.h"

enum { MAX_TOKENS = 128, MAX_SEQS = 4, N_BLOCKS = 96, TABLE = 20, MAX_WIDTH = 256 };

struct world {
    struct source *src;
    struct backend *be;
    struct arena arena;
    struct model *m;
    struct block_pool *pool;
    struct runner *dec;
    struct chain chain[MAX_SEQS];
    int len[MAX_SEQS];
};

/* Divides the layers between the backends: the first half on the host if there is one, else all
 * on be. Returns the number of shares; 0: the hyper-parameters cannot be read. */
static inline int divide_layers(struct backend_share out[2], struct backend *be,
                                struct backend *host, const struct source *src, struct err *e)
{
    struct arena a = { 0 };
    struct hparams hp;
    int rc = hparams_read(&hp, &a, src, e), half = rc == OK ? hp.n_layers / 2 : 0;

    arena_release(&a);
    if (rc != OK) return 0;
    out[0] = (struct backend_share){ host ? host : be, host ? half : hp.n_layers };
    out[1] = (struct backend_share){ be, hp.n_layers - half };
    return host ? 2 : 1;
}

/* experts: the device of the routed experts of layers on be; NULL: be. false: tern does not support this
 * model, or not on this device. */
static inline bool world_open_apart(struct world *w, const char *path, struct backend *be,
                                    struct backend *host, struct backend *experts)
{
    struct decoder_opt opt = { .max_tokens = MAX_TOKENS,
                               .max_seqs = MAX_SEQS,
                               .max_table = TABLE,
                               .max_out = MAX_TOKENS,
                               .n_blocks = N_BLOCKS,
                               .kv_type = DT_F16 };
    struct err e = { 0 };
    struct backend_share shares[2];
    int n = 0;

    *w = (struct world){ .be = be };
    if (source_open(&w->src, path, &e) == OK) n = divide_layers(shares, be, host, w->src, &e);
    if (n == 0 || open_model_apart(&w->m, &w->arena, w->src, shares, n, experts, &e) != OK) {
        if (e.code != E_UNSUPPORTED) fail_msg("%s: %s", path, e.msg);
        if (strcmp(be->name, "cpu") != 0) print_message("%s\n", e.msg);
        arena_release(&w->arena);
        source_close(w->src);
        return false;
    }
    if (block_pool_open(&w->pool, N_BLOCKS, &e) != OK ||
        decoder_open(&w->dec, w->m, &opt, &e) != OK)
        fail_msg("%s: %s", path, e.msg);
    for (int i = 0; i < MAX_SEQS; i++) {
        assert_true(chain_init(&w->chain[i], TABLE * KV_BLOCK));
        assert_true(chain_reserve(&w->chain[i], w->pool, TABLE * KV_BLOCK));
    }
    return true;
}

static inline bool world_open(struct world *w, const char *path, struct backend *be,
                              struct backend *host)
{
    return world_open_apart(w, path, be, host, NULL);
}

static inline void world_close(struct world *w)
{
    for (int i = 0; i < MAX_SEQS; i++) chain_release(&w->chain[i], w->pool);
    runner_close(w->dec);
    block_pool_close(w->pool);
    model_close(w->m);
    arena_release(&w->arena);
    assert_int_equal(w->be->used_bytes[MEM_WEIGHTS], 0);
    assert_int_equal(w->be->used_bytes[MEM_KV], 0);
    source_close(w->src);
}

/* Runs a step with n[i] new tokens of sequence i; ids are derived from seed. Returns the logits
 * of all tokens. again: repeats the last step at the same positions. */
static inline const float *run_step(struct world *w, const int n[MAX_SEQS], uint64_t seed,
                                    bool again)
{
    int32_t ids[MAX_TOKENS], pos[MAX_TOKENS], seq[MAX_TOKENS], rows[MAX_TOKENS],
        table[MAX_SEQS * TABLE];
    struct batch b = { .ids = ids,
                       .pos = pos,
                       .seq = seq,
                       .n_seqs = MAX_SEQS,
                       .table = table,
                       .table_stride = TABLE,
                       .out_rows = rows };
    const float *logits = NULL;
    struct err e = { 0 };
    struct rng r;

    rng_seed(&r, seed);
    for (int s = 0; s < MAX_SEQS; s++) {
        memcpy(table + s * TABLE, w->chain[s].blocks, TABLE * sizeof(int32_t));
        for (int i = 0; i < n[s]; i++, b.n_tokens++) {
            ids[b.n_tokens] = (int32_t)(rng_u64(&r) % (uint64_t)w->m->hp.n_vocab);
            pos[b.n_tokens] = w->len[s] + i - (again ? n[s] : 0);
            seq[b.n_tokens] = s;
            rows[b.n_tokens] = b.n_tokens;
        }
        if (!again) w->len[s] += n[s];
    }
    b.n_out = b.n_tokens;
    if (runner_run(w->dec, &b, &logits, &e) != OK) fail_msg("%s", e.msg);
    return logits;
}

static inline int sum_counts(const int n[MAX_SEQS]) { return n[0] + n[1] + n[2] + n[3]; }

/* Token counts of each sequence in each step: prefill of one sequence, decode, prefill and
 * decode mixed, decode of all. */
static const int steps[][MAX_SEQS] = {
    { 40, 0, 0, 0 }, { 1, 0, 0, 0 },  { 1, 0, 0, 0 }, { 1, 0, 0, 0 },
    { 1, 30, 0, 0 }, { 1, 1, 70, 3 }, { 1, 1, 1, 1 }, { 1, 1, 1, 1 },
    { 1, 1, 1, 1 },  { 4, 0, 5, 0 },  { 0, 0, 0, 1 }, { 100, 1, 1, 1 },
};
enum { N_STEPS = sizeof steps / sizeof *steps };

/* ---- routing decisions that are nearly ties ---- */

#define TIE 2e-3 /* a difference of router scores that rounding to F16 may reverse */

static void (*plain_route)(struct backend *be, int32_t *ids, float *weights,
                           const struct tensor *logits, const struct route_opt *opt);
/* For each token of this step, over all layers: the smallest difference between the score of the
 * last expert that was chosen and the first that was not. */
static double margins[MAX_TOKENS];

static inline int compare_descending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* The difference between the n-th largest of x and the next; sorts x in descending order. */
static inline double gap_after_nth(double *x, int n_all, int n)
{
    qsort(x, (size_t)n_all, sizeof *x, compare_descending);
    return n < n_all ? x[n - 1] - x[n] : INFINITY;
}

/* The scores by which o orders n experts, so that a relative error of the logits changes them about as
 * much: the softmax counts only where a bias is added to it. */
static inline void score_experts(double *score, const float *logits, int n,
                                 const struct route_opt *o)
{
    double top = -INFINITY, sum = 0;

    for (int i = 0; i < n; i++) top = fmax(top, (double)logits[i]);
    for (int i = 0; i < n; i++) sum += exp((double)logits[i] - top);
    for (int i = 0; i < n; i++) {
        double x = (double)logits[i], bias = o->bias ? (double)o->bias[i] : 0;
        score[i] = x;
        if (o->route == ROUTE_SIGMOID) score[i] = 1 / (1 + exp(-x)) + bias;
        else if (o->route == ROUTE_SQRT_SOFTPLUS) score[i] = sqrt(log1p(exp(x))) + bias;
        else if (o->bias) score[i] = n * (exp(x - top) / sum + bias);
    }
}

static inline double routing_margin(const float *logits, int n, const struct route_opt *o)
{
    double score[MOE_MAX_EXPERTS], group[MOE_MAX_GROUPS], some[MOE_MAX_EXPERTS], least = INFINITY,
                                                                                 last;
    int each = o->n_groups > 1 ? n / o->n_groups : n;

    score_experts(score, logits, n, o);
    for (int i = 0; i < n / each && o->n_groups > 1; i++) {
        group[i] = 0;
        memcpy(some, score + i * each, (size_t)each * sizeof *some);
        gap_after_nth(some, each, each);
        for (int k = 0; k < o->group_top && k < each; k++) group[i] += some[k];
    }
    if (o->n_groups > 1) {
        memcpy(some, group, (size_t)o->n_groups * sizeof *some);
        least = gap_after_nth(some, o->n_groups, o->n_groups_used);
        last = some[o->n_groups_used - 1];
        for (int i = 0; i < n; i++)
            if (group[i / each] < last) score[i] = -INFINITY;
    }
    return fmin(least, gap_after_nth(score, n, o->n_used));
}

/* Stands in for the backend's route operation: records the margins and calls the original. */
static inline void record_margins(struct backend *be, int32_t *ids, float *weights,
                                  const struct tensor *logits, const struct route_opt *opt)
{
    for (int r = 0; r < logits->rows && !opt->by_token; r++)
        margins[r] = fmin(margins[r], routing_margin(tensor_row(logits, r), logits->cols, opt));
    plain_route(be, ids, weights, logits, opt);
}

/* ---- selections of keys that are nearly ties ---- */

#define NOISE 2e-3f /* a relative error of queries that rounding to F16 may cause */

static void (*plain_choose)(struct backend *be, const struct key_choice *out,
                            const struct tensor *q, const struct tensor *weights,
                            const struct kvview *kv, int layer, const struct index_opt *opt);

/* Stands in for the backend's index_choose: a token whose selection changes with slightly other
 * queries has a margin of 0. */
static inline void record_choices(struct backend *be, const struct key_choice *out,
                                  const struct tensor *q, const struct tensor *weights,
                                  const struct kvview *kv, int layer, const struct index_opt *opt)
{
    size_t row = (size_t)out->n_heads * out->stride;
    struct key_choice other = *out;
    struct tensor near = tensor_f32(NULL, q->rows, q->cols);
    struct rng r;

    rng_seed(&r, 3);
    near.data = mem_array((size_t)q->rows * (size_t)q->cols, sizeof(float));
    other.bits = mem_array((size_t)kv->n_tokens * row, sizeof *other.bits);
    for (int t = 0; t < q->rows; t++)
        for (int i = 0; i < q->cols; i++)
            tensor_row(&near, t)[i] = tensor_row(q, t)[i] * (1 + NOISE * rng_normal(&r));
    plain_choose(be, &other, &near, weights, kv, layer, opt);
    sync_backend(be);
    plain_choose(be, out, q, weights, kv, layer, opt);
    sync_backend(be);
    for (int t = 0; t < kv->n_tokens; t++)
        if (memcmp(other.bits + (size_t)t * row, out->bits + (size_t)t * row,
                   row * sizeof *out->bits) != 0)
            margins[t] = 0;
    mem_free(near.data), mem_free(other.bits);
}

/* ---- logits ---- */

/* The comparison of all steps. After a nearly tied decision the two backends may choose different
 * experts or keys. The keys of that sequence differ from then on, and so may its results: such
 * tokens count as excused, up to a third of all. */
struct verdict {
    double worst;
    int n_excused, n_all;
    bool tied[MAX_SEQS]; /* had a nearly tied decision */
};

static inline void compare_step(struct verdict *v, const char *path, int i, const float *want,
                                const float *got, int vocab)
{
    for (int s = 0, t = 0; s < MAX_SEQS; s++)
        for (int k = 0; k < steps[i][s]; k++, t++) {
            size_t at = (size_t)t * (size_t)vocab;
            v->n_all++;
            v->tied[s] |= margins[t] < TIE;
            double e = error_of(got + at, want + at, (size_t)vocab, 0);
            if (!(e < 5e-3) && v->tied[s]) {
                v->n_excused++;
                continue;
            }
            if (!(e < 5e-3) && v->worst < 5e-3)
                print_message("%s: step %d, token %d of %d: relative error %g\n", path, i, t,
                              sum_counts(steps[i]), e);
            v->worst = fmax(v->worst, e);
        }
}

/* How the model lies on the GPU: whole, its first half on the CPU, its experts on the CPU. */
enum lies { LIES_WHOLE, LIES_SPLIT, LIES_APART, LIES_BOTH };

/* The largest error of all steps. */
static inline double compare_lying(const char *path, enum lies lies, bool *known)
{
    bool split = lies == LIES_SPLIT || lies == LIES_BOTH, apart = lies >= LIES_APART;
    struct backend *gpu = cuda_open(), *cpu = reference_open(), *host = reference_open();
    struct verdict v = { 0 };
    struct world g, c;

    *known = world_open(&c, path, cpu, NULL);
    if (*known) *known = world_open_apart(&g, path, gpu, split ? host : NULL, apart ? host : NULL);
    if (!*known && c.m) world_close(&c);
    if (*known) {
        plain_route = cpu->route, plain_choose = cpu->index_choose;
        for (int i = 0; i < N_STEPS; i++) {
            const float *want, *got;
            for (int t = 0; t < MAX_TOKENS; t++) margins[t] = INFINITY;
            cpu->route = record_margins, cpu->index_choose = record_choices;
            want = run_step(&c, steps[i], (uint64_t)i, false);
            cpu->route = plain_route, cpu->index_choose = plain_choose;
            got = run_step(&g, steps[i], (uint64_t)i, false);
            compare_step(&v, path, i, want, got, c.m->hp.n_vocab);
        }
        world_close(&g), world_close(&c);
        for (int k = 0; k < MEM_KINDS; k++) assert_int_equal(host->used_bytes[k], 0);
        if (v.n_excused)
            print_message("%s: %d of %d tokens differ after a tied decision\n", path, v.n_excused,
                          v.n_all);
        if (3 * v.n_excused > v.n_all) v.worst = INFINITY;
    }
    backend_close(gpu), backend_close(cpu), backend_close(host);
    return v.worst;
}

static inline void need_gpu(void)
{
    struct backend *be = cuda_open();
    backend_close(be);
}
#endif
