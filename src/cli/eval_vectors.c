/* eval_vectors.c - agreement of an encoder with vectors or scores that another program computed.
 *
 * golden.safetensors holds sequences i = 0, 1, ...: input_ids.i [n], optionally token_type_ids.i
 * [n], and embedding.i [width] with last_hidden_state.i [n, hidden] (embed) or score.i (rerank). Each
 * sequence is run alone, as the other program did. The score of a generative reranker is P(yes), and
 * its sequences are whole prompts. */
#include "cli/evalmodel.h"

#include "base/file.h"
#include "base/jsonw.h"
#include "base/mem.h"
#include "engine/yesno.h"
#include "format/source.h"
#include "token/tokenizer.h"

#include <math.h>
#include <stdio.h>

enum { SEQUENCES = 4096, TOKENS = 1 << 20 };

/* One sequence of the golden file; tensors are the source's. */
struct sequence {
    const struct source_tensor *ids, *types, *vector, *hidden;
    int n;
};

static const struct source_tensor *find_numbered(const struct source *s, const char *name, int i)
{
    char full[64];

    snprintf(full, sizeof full, "%s.%d", name, i);
    return source_find(s, full);
}

static int64_t id_at(const struct source_tensor *t, int i)
{
    int64_t wide = 0;
    int32_t narrow = 0;

    if (t->type == DT_I64) return memcpy(&wide, (const char *)t->data + (size_t)i * 8, 8), wide;
    memcpy(&narrow, (const char *)t->data + (size_t)i * 4, 4);
    return narrow;
}

static bool is_id_list(const struct source_tensor *t)
{
    return t->n_dims == 1 && t->dims[0] > 0 && t->dims[0] <= TOKENS &&
           (t->type == DT_I64 || t->type == DT_I32);
}

/* false: there is no such sequence, the file has no more. */
static bool find_sequence(struct sequence *q, const struct source *s, int i, bool rerank)
{
    *q = (struct sequence){ .ids = find_numbered(s, "input_ids", i),
                            .types = find_numbered(s, "token_type_ids", i),
                            .vector = find_numbered(s, rerank ? "score" : "embedding", i),
                            .hidden = find_numbered(s, "last_hidden_state", i) };
    return q->ids != NULL;
}

static int check_sequence(struct sequence *q, const struct source *s, int i, struct err *e)
{
    if (!is_id_list(q->ids) || (q->types && !is_id_list(q->types)) ||
        (q->types && q->types->dims[0] != q->ids->dims[0]))
        return err_set(e, E_FORMAT, "%s: sequence %d: token ids or types are no list of integers",
                       source_path(s), i);
    q->n = (int)q->ids->dims[0];
    if (!q->vector || q->vector->type != DT_F32 || q->vector->n_dims != 1)
        return err_set(e, E_FORMAT, "%s: sequence %d has no F32 list 'embedding' or 'score'",
                       source_path(s), i);
    return OK;
}

/* ‖out − ref‖ / ‖ref‖ of n numbers. */
static double measure(const float *out, const void *ref, int n)
{
    double diff = 0, norm = 0;

    for (int i = 0; i < n; i++) {
        float r;
        memcpy(&r, (const char *)ref + (size_t)i * sizeof r, sizeof r);
        diff += ((double)out[i] - r) * ((double)out[i] - r);
        norm += (double)r * r;
    }
    return sqrt(diff) / sqrt(norm);
}

static double worst(double a, double b) { return isnan(a) || isnan(b) ? NAN : a > b ? a : b; }

/* The vectors or scores that are compared. */
struct target {
    struct pooler pooler;
    struct yesno yesno; /* n > 0: a generative reranker */
};

/* Numbers of a sequence. */
static int n_numbers(const struct target *t) { return t->yesno.n ? 1 : pooler_out(&t->pooler); }

struct agreement {
    double rel_err, hidden; /* of the vectors; of single hidden rows */
    int n;
};

/* Memory of the largest sequence. */
struct room {
    int32_t *ids, *pos, *seq, *rows;
    float *hidden, *out;
    double *sum;
};

/* The hidden rows, pooled by the model's rule, or the logits of the last. */
static void make_numbers(const struct target *t, const struct sequence *q, int width,
                         const float *logits, struct room *m)
{
    const struct pooler *p = &t->pooler;

    if (t->yesno.n && !t->yesno.by_head) {
        float picked[2] = { 0 };
        for (int i = 0; i < t->yesno.n; i++) picked[i] = logits[t->yesno.ids[i]];
        m->out[0] = (float)yesno_score(&t->yesno, picked);
        return;
    }
    for (int i = 0; i < pooler_room(p); i++) m->sum[i] = 0;
    for (int i = 0; i < q->n; i++)
        if (pooler_wants(p, i, q->n)) pooler_add(p, m->sum, m->hidden + (size_t)i * (size_t)width);
    pooler_finish(p, m->sum, q->n, m->out);
    if (t->yesno.n) m->out[0] = (float)yesno_score(&t->yesno, m->out);
}

static int run_sequence(struct evalmodel *v, const struct sequence *q, const struct target *t,
                        struct room *m, struct agreement *r, struct err *e)
{
    bool picks = t->yesno.n && !t->yesno.by_head;
    int width = v->runner->lim.n_vec, rc, all = 0;
    int32_t second = 0, last = q->n - 1;
    struct chain c = { 0 };
    const float *logits;
    struct batch b = { .n_tokens = q->n,
                       .ids = m->ids,
                       .pos = m->pos,
                       .seq = m->seq,
                       .n_seqs = 1,
                       .n_out = picks,
                       .out_rows = &last,
                       .n_hidden = picks ? 0 : q->n,
                       .hidden_rows = m->rows,
                       .hidden = m->hidden,
                       .second = &second };

    for (int i = 0; i < q->n; i++) {
        int64_t id = id_at(q->ids, i);
        m->ids[i] = id < 0 || id > INT32_MAX ? -1 : (int32_t)id;
        m->pos[i] = m->rows[i] = i;
        m->seq[i] = 0;
        if (!second && q->types && id_at(q->types, i) == 1) second = i;
    }
    if (!chain_init(&c, q->n) || !chain_reserve(&c, v->pool, q->n)) {
        chain_release(&c, v->pool);
        return err_nomem(e, "the KV blocks");
    }
    b.table = c.blocks;
    b.table_stride = c.n;
    rc = runner_run(v->runner, &b, &logits, e);
    chain_release(&c, v->pool);
    if (rc != OK) return rc;
    make_numbers(t, q, width, logits, m);
    r->rel_err = worst(r->rel_err, measure(m->out, q->vector->data, n_numbers(t)));
    if (!picks && q->hidden && q->hidden->type == DT_F32 && q->hidden->n_dims == 2 &&
        q->hidden->dims[0] == q->n && q->hidden->dims[1] == width)
        for (all = 0; all < q->n; all++)
            r->hidden = worst(r->hidden, measure(m->hidden + (size_t)all * (size_t)width,
                                                 (const char *)q->hidden->data +
                                                     (size_t)all * (size_t)width * sizeof(float),
                                                 width));
    r->n++;
    return OK;
}

static int open_room(struct room *m, int n, int width, const struct pooler *p, struct err *e)
{
    m->ids = mem_array((size_t)n * 4, sizeof *m->ids);
    m->pos = m->ids + n;
    m->seq = m->pos + n;
    m->rows = m->seq + n;
    m->hidden = mem_array((size_t)n * (size_t)width, sizeof *m->hidden);
    m->out = mem_array((size_t)pooler_out(p), sizeof *m->out);
    m->sum = mem_array((size_t)pooler_room(p), sizeof *m->sum);
    return m->ids && m->hidden && m->out && m->sum ? OK : err_nomem(e, "the sequences");
}

static void close_room(struct room *m)
{
    mem_free(m->ids);
    mem_free(m->hidden);
    mem_free(m->out);
    mem_free(m->sum);
}

/* The largest sequence, after a check of all of them. */
static int find_largest(const struct source *golden, bool rerank, int out, int *most, struct err *e)
{
    struct sequence q;
    int rc;

    *most = 0;
    for (int i = 0; i < SEQUENCES && find_sequence(&q, golden, i, rerank); i++) {
        if ((rc = check_sequence(&q, golden, i, e)) != OK) return rc;
        if (q.vector->dims[0] != out)
            return err_set(e, E_FORMAT, "%s: sequence %d: %lld numbers, the model has %d",
                           source_path(golden), i, (long long)q.vector->dims[0], out);
        if (q.n > *most) *most = q.n;
    }
    return *most ? OK
                 : err_set(e, E_FORMAT, "%s: there is no sequence: 'input_ids.0' is missing",
                           source_path(golden));
}

/* Is the model what it is compared as? */
static int find_target(struct target *t, const struct evalmodel *v, const struct eval_opt *opt,
                       bool rerank, struct err *e)
{
    const struct model_facts *f = &v->plan->facts;
    struct tokenizer *tok = NULL;

    *t = (struct target){ .pooler = f->pooler };
    if (rerank) {
        t->pooler.form = VEC_RAW;
        (void)tokenizer_from_source(&tok, v->plan->source,
                                    NULL); /* without one: as the files say */
        yesno_find(&t->yesno, v->plan, tok, true);
        tokenizer_close(tok);
    }
    if (rerank == (f->task == TASK_CLASSIFY) || t->yesno.n) return OK;
    return err_set(e, E_UNSUPPORTED, "%s: a model with the task %s has no %s%s%s", opt->model,
                   model_task_name(f->task), rerank ? "scores" : "embeddings",
                   t->yesno.why[0] ? ": " : "", t->yesno.why);
}

int eval_vectors(const struct eval_opt *opt, bool rerank, struct buf *out, struct err *e)
{
    char *path =
        opt->golden ? mem_strdup(opt->golden) : path_join(opt->model, "golden.safetensors");
    struct source *golden = NULL;
    struct evalmodel v = { .vectors = true };
    struct agreement r = { 0 };
    struct jsonw w = { .out = out };
    struct room m = { 0 };
    struct target t;
    struct sequence q;
    int rc = path ? source_open(&golden, path, e) : err_nomem(e, "the path of the golden file"), n;

    mem_free(path);
    if (rc != OK || (rc = evalmodel_open(&v, opt, e)) != OK) goto out;
    if ((rc = find_target(&t, &v, opt, rerank, e)) != OK) goto out;
    if ((rc = find_largest(golden, rerank, n_numbers(&t), &n, e)) != OK) goto out;
    rc = evalmodel_prepare(&v, opt, (struct eval_shape){ n, 1, (n + KV_BLOCK - 1) / KV_BLOCK }, e);
    if (rc == OK) rc = open_room(&m, n, v.runner->lim.n_vec, &t.pooler, e);
    for (int i = 0; rc == OK && i < SEQUENCES && find_sequence(&q, golden, i, rerank); i++) {
        check_sequence(&q, golden, i, e);
        rc = run_sequence(&v, &q, &t, &m, &r, e);
    }
    if (rc != OK || (rc = evalmodel_check(&v, e)) != OK) goto out;
    jsonw_obj(&w);
    jsonw_key(&w, "rel_err"), jsonw_num(&w, r.rel_err);
    if (!rerank) jsonw_key(&w, "hidden_rel_err"), jsonw_num(&w, r.hidden);
    jsonw_key(&w, "sequences"), jsonw_int(&w, r.n);
    jsonw_end(&w);
    buf_putc(out, '\n');
out:
    close_room(&m);
    evalmodel_release(&v);
    source_close(golden);
    return rc;
}
