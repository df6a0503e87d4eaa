/* eval_logits.c - agreement with logits that another program computed from the same weights.
 *
 * golden.safetensors holds input_ids [n], logits [n, n_vocab] and greedy [m], the tokens of greedy
 * decoding behind the input. */
#include "cli/evalmodel.h"

#include "base/file.h"
#include "base/jsonw.h"
#include "base/mem.h"
#include "sample/sampler.h"
#include "format/source.h"

#include <math.h>

struct golden {
    struct source *src;
    int32_t *ids, *greedy;
    int n, n_greedy, n_vocab;
    const struct source_tensor *logits;
};

/* A list of I32 or I64 token ids. Ids that do not fit become -1, which no token has. */
static int read_id_list(const struct source *s, const char *name, int32_t **out, int *n,
                        struct err *e)
{
    const struct source_tensor *t = source_find(s, name);
    if (!t || t->n_dims != 1 || t->dims[0] < 1 || t->dims[0] > 1 << 20 ||
        (t->type != DT_I64 && t->type != DT_I32))
        return err_set(e, E_FORMAT, "%s: '%s' is missing or not a list of token ids",
                       source_path(s), name);
    *n = (int)t->dims[0];
    *out = mem_array((size_t)*n, sizeof **out);
    if (!*out) return err_nomem(e, "the golden token ids");
    for (int i = 0; i < *n; i++) {
        int64_t v = 0;
        if (t->type == DT_I32) memcpy(&(*out)[i], (const char *)t->data + (size_t)i * 4, 4);
        else
            memcpy(&v, (const char *)t->data + (size_t)i * 8, 8),
                (*out)[i] = v < 0 || v > INT32_MAX ? -1 : (int32_t)v;
    }
    return OK;
}

/* Opens the file and checks that its three tensors fit each other. */
static int golden_open(struct golden *g, const struct eval_opt *opt, struct err *e)
{
    char *path =
        opt->golden ? mem_strdup(opt->golden) : path_join(opt->model, "golden.safetensors");
    int rc = path ? source_open(&g->src, path, e) : err_nomem(e, "the path of the golden file");

    mem_free(path);
    if (rc != OK) return rc;
    if ((rc = read_id_list(g->src, "input_ids", &g->ids, &g->n, e)) != OK) return rc;
    if ((rc = read_id_list(g->src, "greedy", &g->greedy, &g->n_greedy, e)) != OK) return rc;
    g->logits = source_find(g->src, "logits");
    if (!g->logits || g->logits->n_dims != 2 || g->logits->type != DT_F32 ||
        g->logits->dims[0] != g->n || g->logits->dims[1] > INT32_MAX)
        return err_set(e, E_FORMAT, "%s: 'logits' is missing or not F32 of [%d, vocabulary]",
                       source_path(g->src), g->n);
    g->n_vocab = (int)g->logits->dims[1];
    return OK;
}

static void golden_release(struct golden *g)
{
    mem_free(g->ids);
    mem_free(g->greedy);
    source_close(g->src);
}

struct agreement {
    double rel_err, max_abs_err;
    int match; /* greedy tokens that agree before the first that does not */
};

/* Fills the worst row's ‖out − ref‖ / ‖ref‖ and the largest absolute difference. A NaN makes the
 * result NaN. */
static void compare_logits(struct agreement *r, const struct golden *g, const float *logits)
{
    for (int t = 0; t < g->n; t++) {
        double diff = 0, norm = 0;
        for (int i = 0; i < g->n_vocab; i++) {
            size_t at = (size_t)t * (size_t)g->n_vocab + (size_t)i;
            float ref;
            memcpy(&ref, (const char *)g->logits->data + at * sizeof ref, sizeof ref);
            double d = (double)logits[at] - ref;
            diff += d * d;
            norm += (double)ref * ref;
            if (!(fabs(d) <= r->max_abs_err)) r->max_abs_err = fabs(d);
        }
        double rel = sqrt(diff) / sqrt(norm);
        if (!(rel <= r->rel_err) && !isnan(r->rel_err)) r->rel_err = rel;
    }
}

/* One batch of the whole input, then greedy decoding as long as the tokens agree. */
static int measure_agreement(struct evalmodel *v, const struct golden *g, struct agreement *r,
                             struct err *e)
{
    int n_all = g->n + g->n_greedy, n = g->n > n_all ? g->n : n_all, rc;
    int32_t *ints = mem_array((size_t)n * 3, sizeof *ints), *pos = ints, *seq = ints + n,
            *rows = ints + 2 * n;
    struct chain c = { 0 };
    const float *logits = NULL;
    struct batch b = { .n_tokens = g->n,
                       .ids = g->ids,
                       .pos = pos,
                       .seq = seq,
                       .n_seqs = 1,
                       .n_out = g->n,
                       .out_rows = rows };
    int32_t next;

    if (!ints) return err_nomem(e, "the batch");
    if (!chain_init(&c, n_all)) {
        rc = err_nomem(e, "the KV blocks");
        goto out;
    }
    if (!chain_reserve(&c, v->pool, n_all)) {
        rc = err_set(e, E_INTERNAL, "the KV cache is too small for %d tokens", n_all);
        goto out;
    }
    b.table = c.blocks;
    b.table_stride = c.n;
    for (int i = 0; i < n; i++) pos[i] = rows[i] = i;
    if ((rc = runner_run(v->runner, &b, &logits, e)) != OK) goto out;
    compare_logits(r, g, logits);
    next = sample_greedy(logits + (size_t)(g->n - 1) * (size_t)g->n_vocab, g->n_vocab);
    for (r->match = 0; r->match < g->n_greedy && next == g->greedy[r->match];) {
        if (++r->match == g->n_greedy) break;
        b.n_tokens = b.n_out = 1;
        b.ids = &next;
        b.pos = &pos[g->n + r->match - 1];
        if ((rc = runner_run(v->runner, &b, &logits, e)) != OK) goto out;
        next = sample_greedy(logits, g->n_vocab);
    }
out:
    chain_release(&c, v->pool);
    mem_free(ints);
    return rc;
}

int eval_logits(const struct eval_opt *opt, struct buf *out, struct err *e)
{
    struct golden g = { 0 };
    struct evalmodel v = { 0 };
    struct agreement r = { 0 };
    struct jsonw w = { .out = out };
    int rc, n_blocks;

    if ((rc = golden_open(&g, opt, e)) != OK) goto out;
    if ((rc = evalmodel_open(&v, opt, e)) != OK) goto out;
    if (v.plan->facts.n_vocab != g.n_vocab) {
        rc = err_set(e, E_FORMAT, "%s has %d logits per token, the model has a vocabulary of %d",
                     source_path(g.src), g.n_vocab, v.plan->facts.n_vocab);
        goto out;
    }
    n_blocks = (g.n + g.n_greedy + KV_BLOCK - 1) / KV_BLOCK;
    rc = evalmodel_prepare(&v, opt, (struct eval_shape){ g.n, 1, n_blocks }, e);
    if (rc != OK || (rc = measure_agreement(&v, &g, &r, e)) != OK) goto out;
    if ((rc = evalmodel_check(&v, e)) != OK) goto out;
    jsonw_obj(&w);
    jsonw_key(&w, "rel_err"), jsonw_num(&w, r.rel_err);
    jsonw_key(&w, "max_abs_err"), jsonw_num(&w, r.max_abs_err);
    jsonw_key(&w, "greedy_match"), jsonw_int(&w, r.match);
    jsonw_key(&w, "greedy_n"), jsonw_int(&w, g.n_greedy);
    jsonw_end(&w);
    buf_putc(out, '\n');
out:
    evalmodel_release(&v);
    golden_release(&g);
    return rc;
}
