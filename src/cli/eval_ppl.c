/* eval_ppl.c - perplexity of a text: exp of the mean negative log-likelihood per token.
 *
 * The text is cut into windows of n_ctx tokens that are scored independently. The windows' tokens
 * fill batches one after the other, so short windows share a batch and long ones span several.
 * Logits of a batch take at most 64 MiB. */
#include "cli/evalmodel.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/jsonw.h"
#include "base/mem.h"
#include "base/par.h"
#include "base/utf8.h"
#include "token/tokenizer.h"

#include <math.h>

#define MAX_TEXT (1u << 30)
#define MAX_WINDOWS 64 /* in one batch */

struct ppl {
    const struct eval_opt *opt;
    struct evalmodel v;
    struct par *par;
    struct ids ids;
    int n_windows;
    int first;      /* position in a window from which on predictions are scored */
    int max_tokens; /* of a batch */
    int n_rows;     /* of the block table: window w uses row w % n_rows */
    int stride;     /* blocks of a row */
    /* The batch being filled: arrays of [max_tokens], the table [n_rows][stride]. */
    int32_t *tok, *pos, *seq;
    int32_t *rows; /* of the tokens whose logits are scored */
    int32_t *want; /* the token that follows each of them */
    int32_t *table;
    int n_tok, n_out;
    const float *logits; /* [n_out][n_vocab] */
    double *nll;         /* [max_tokens] negative log-likelihoods */
    double sum;
    uint64_t n_scored;
};

static struct str take_chars(struct str s, uint64_t n)
{
    size_t at = 0;
    int32_t cp;
    if (n == 0) return s;
    while (at < s.n && n-- > 0) at += (size_t)utf8_next(str_skip(s, at), &cp);
    return str_take(s, at);
}

/* Fills the ids and the number of windows. */
static int read_windows(struct ppl *p, struct err *e)
{
    struct tokenizer *t = NULL;
    struct buf text = { 0 };
    int n_ctx = p->opt->n_ctx, rc;
    bool bos;

    if ((rc = tokenizer_from_source(&t, p->v.plan->source, e)) != OK) goto out;
    if ((rc = file_read(&text, p->opt->file, MAX_TEXT, e)) != OK) goto out;
    bos = p->opt->llama && tokenizer_adds_bos(t);
    rc = tokenizer_encode(t, take_chars(buf_str(&text), p->opt->n_chars),
                          p->opt->llama ? ENCODE_SPECIAL : 0, &p->ids, e);
    if (rc == OK) rc = ids_check(&p->ids, e);
    if (rc != OK) goto out;
    p->n_windows = (int)(p->ids.n / (size_t)n_ctx);
    if (p->opt->n_chunks && p->n_windows > p->opt->n_chunks) p->n_windows = p->opt->n_chunks;
    if (p->n_windows < 1)
        rc = err_set(e, E_INVALID, "%s has %zu tokens, fewer than one window of %d (--ctx)",
                     p->opt->file, p->ids.n, n_ctx);
    for (int w = 0; bos && w < p->n_windows; w++)
        p->ids.p[(size_t)w * (size_t)n_ctx] = tokenizer_bos(t);
    p->first = p->opt->llama ? n_ctx / 2 : 0;
out:
    buf_release(&text);
    tokenizer_close(t);
    return rc;
}

/* logsumexp(x) - x[want], in double precision. */
static double compute_nll(const float *x, int n, int32_t want)
{
    double sum = 0;
    float max = x[0];
    for (int i = 1; i < n; i++) max = x[i] > max ? x[i] : max;
    for (int i = 0; i < n; i++) sum += exp((double)x[i] - max);
    return log(sum) + max - x[want];
}

static void score_rows(void *arg, int thread, int n_threads)
{
    struct ppl *p = arg;
    int n_vocab = p->v.plan->facts.n_vocab, a, b;
    par_share(p->n_out, 1, thread, n_threads, &a, &b);
    for (int i = a; i < b; i++)
        p->nll[i] = compute_nll(p->logits + (size_t)i * (size_t)n_vocab, n_vocab, p->want[i]);
}

/* Runs the batch and scores it. */
static int run_batch(struct ppl *p, struct err *e)
{
    struct batch b = { .n_tokens = p->n_tok,
                       .ids = p->tok,
                       .pos = p->pos,
                       .seq = p->seq,
                       .n_seqs = p->n_rows,
                       .table = p->table,
                       .table_stride = p->stride,
                       .n_out = p->n_out,
                       .out_rows = p->rows };
    int rc;
    if (p->n_tok == 0) return OK;
    if ((rc = runner_run(p->v.runner, &b, &p->logits, e)) != OK) return rc;
    par_run(p->par, score_rows, p);
    for (int i = 0; i < p->n_out; i++) p->sum += p->nll[i];
    p->n_scored += (uint64_t)p->n_out;
    p->n_tok = p->n_out = 0;
    return OK;
}

static int run_windows(struct ppl *p, struct err *e)
{
    int n_ctx = p->opt->n_ctx, rc = OK;
    for (int w = 0; w < p->n_windows && rc == OK; w++) {
        const int32_t *ids = p->ids.p + (size_t)w * (size_t)n_ctx;
        if (p->n_rows > 1 && w % p->n_rows == 0)
            rc = run_batch(p, e); /* before this window reuses row 0 of the table */
        for (int i = 0; i < n_ctx && rc == OK; i++) {
            if (p->n_tok == p->max_tokens && (rc = run_batch(p, e)) != OK) break;
            p->tok[p->n_tok] = ids[i];
            p->pos[p->n_tok] = i;
            p->seq[p->n_tok] = w % p->n_rows;
            if (i >= p->first && i + 1 < n_ctx) {
                p->rows[p->n_out] = p->n_tok;
                p->want[p->n_out++] = ids[i + 1];
            }
            p->n_tok++;
        }
        if (p->n_rows == 1 && rc == OK) rc = run_batch(p, e);
        if (rc == OK && p->opt->scored) rc = p->opt->scored(p->opt->arg, w + 1, p->n_windows, e);
    }
    return rc == OK ? run_batch(p, e) : rc;
}

static int alloc_batch(struct ppl *p, struct err *e)
{
    size_t n = (size_t)p->max_tokens;

    p->tok = mem_array(5 * n, sizeof *p->tok);
    p->nll = mem_array(n, sizeof *p->nll);
    p->table = mem_array((size_t)p->n_rows * (size_t)p->stride, sizeof *p->table);
    if (!p->tok || !p->nll || !p->table) return err_nomem(e, "the batch");
    p->pos = p->tok + n, p->seq = p->pos + n, p->rows = p->seq + n, p->want = p->rows + n;
    for (int i = 0; i < p->n_rows * p->stride; i++) p->table[i] = block_get(p->v.pool);
    return OK;
}

/* Chooses the batch size and loads the model. */
static int prepare_batches(struct ppl *p, struct err *e)
{
    int n_ctx = p->opt->n_ctx, n_vocab = p->v.plan->facts.n_vocab, rc;
    int room = (16 << 20) / n_vocab; /* rows of logits in 64 MiB */

    p->max_tokens = room < 32 ? 32 : room > 1024 ? 1024 : room;
    p->n_rows = p->max_tokens / n_ctx;
    p->n_rows = p->n_rows < 1 ? 1 : p->n_rows > MAX_WINDOWS ? MAX_WINDOWS : p->n_rows;
    p->stride = (n_ctx + KV_BLOCK - 1) / KV_BLOCK;
    if ((rc = evalmodel_prepare(
             &p->v, p->opt, (struct eval_shape){ p->max_tokens, p->n_rows, p->stride }, e)) != OK)
        return rc;
    if ((rc = par_open(&p->par, (struct par_opt){ .n_threads = p->opt->n_threads }, e)) != OK)
        return rc;
    return alloc_batch(p, e);
}

int eval_ppl_run(const struct eval_opt *opt, struct eval_ppl_result *out, struct err *e)
{
    struct ppl p = { .opt = opt };
    uint64_t start;
    int rc;

    if ((rc = evalmodel_open(&p.v, opt, e)) != OK) goto out;
    if ((rc = read_windows(&p, e)) != OK) goto out;
    if ((rc = prepare_batches(&p, e)) != OK) goto out;
    if (opt->opened && (rc = opt->opened(opt->arg, &p.v, e)) != OK) goto out;
    start = clock_ns();
    if ((rc = run_windows(&p, e)) != OK || (rc = evalmodel_check(&p.v, e)) != OK) goto out;
    *out = (struct eval_ppl_result){ exp(p.sum / (double)p.n_scored), p.n_scored,
                                     clock_ms_since(start) / 1e3 };
out:
    par_close(p.par);
    mem_free(p.tok);
    mem_free(p.nll);
    mem_free(p.table);
    ids_release(&p.ids);
    evalmodel_release(&p.v);
    return rc;
}

int eval_ppl(const struct eval_opt *opt, struct buf *out, struct err *e)
{
    struct eval_ppl_result r;
    struct jsonw w = { .out = out };
    int rc = eval_ppl_run(opt, &r, e);

    if (rc != OK) return rc;
    jsonw_obj(&w);
    jsonw_key(&w, "ppl"), jsonw_num(&w, r.ppl);
    jsonw_key(&w, "tokens"), jsonw_int(&w, (int64_t)r.n_tokens);
    jsonw_key(&w, "seconds"), jsonw_num(&w, r.seconds);
    jsonw_end(&w);
    buf_putc(out, '\n');
    return OK;
}
