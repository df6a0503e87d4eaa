#include "engine/seq.h"

#include "base/mem.h"

enum { TEXT_FIRST = 256, PRIME_TOKENS = 16 };

int seq_check(const struct request *r, struct seq_limits lim, struct err *e)
{
    if (r->prompt.n == 0)
        return err_set(e, E_INVALID, "the prompt is empty: there is no token to go on from");
    if (lim.encoder && !r->embed)
        return err_set(e, E_INVALID, "this model %s and writes no text",
                       lim.classifies ? "classifies" : "gives embeddings");
    if (r->classify != (r->embed && lim.classifies))
        return err_set(e, E_INVALID,
                       lim.classifies
                           ? "this model classifies and gives no embeddings: see /v1/classify"
                           : "this model does not classify: it has no classes");
    if (r->max_tokens < 0 || r->min_tokens < 0)
        return err_set(e, E_INVALID,
                       "max_tokens is %d and min_tokens %d, but they must be 0 or more",
                       r->max_tokens, r->min_tokens);
    if (r->max_tokens > 0 && r->min_tokens > r->max_tokens)
        return err_set(e, E_INVALID, "min_tokens is %d, but max_tokens only %d", r->min_tokens,
                       r->max_tokens);
    if (r->n_top > TOP_MAX)
        return err_set(e, E_INVALID, "%d alternatives of each token, but %d is the most", r->n_top,
                       TOP_MAX);
    for (int i = 0; i < r->n_stops; i++)
        if (r->stops[i].n > OUTBOX_TEXT)
            return err_set(e, E_INVALID, "a stop string of %zu bytes, but %d is the most",
                           r->stops[i].n, OUTBOX_TEXT);
    for (size_t i = 0; i < r->prompt.n; i++)
        if (r->prompt.p[i] < 0 || r->prompt.p[i] >= lim.n_vocab)
            return err_set(e, E_INVALID, "token %zu of the prompt is %d, but the vocabulary has %d",
                           i, r->prompt.p[i], lim.n_vocab);
    return sample_check(&r->sample, lim.n_pick, e);
}

static void stream_open(struct seq *s, const struct tokenizer *tok)
{
    const struct request *r = s->r;
    size_t n = r->prompt.n, tail = n < PRIME_TOKENS ? n : PRIME_TOKENS;

    stream_init(&s->stream, tok, r->stops, r->n_stops);
    s->stream.shown = r->shown;
    s->stream.n_shown = r->n_shown;
    if (r->continues) stream_prime(&s->stream, r->prompt.p + (n - tail), tail);
    buf_reserve(&s->text, TEXT_FIRST);
}

int seq_open(struct seq **out, struct request *r, struct seq_limits lim,
             const struct tokenizer *tok, struct err *e)
{
    struct seq *s = mem_new(struct seq);
    size_t n_new = r->embed ? 0 : (size_t)lim.n_ctx - r->prompt.n;
    int rc;

    s->r = r;
    s->slot = -1;
    if (r->embed) s->pool = mem_array((size_t)lim.n_embd, sizeof *s->pool);
    s->untold = -1;
    if (r->max_tokens > 0 && (size_t)r->max_tokens < n_new) n_new = (size_t)r->max_tokens;
    s->n_max = (int)(r->prompt.n + n_new);
    s->tokens.p = mem_array((size_t)s->n_max, sizeof *s->tokens.p);
    if (!s->tokens.p) {
        rc = err_set(e, E_NOMEM, "no memory for a sequence of %d tokens", s->n_max);
        goto out;
    }
    s->tokens.cap = (size_t)s->n_max;
    if ((rc = sampler_open(&s->sampler, &r->sample, lim.n_pick, e)) != OK) goto out;
    for (size_t i = 0; i < r->prompt.n; i++) {
        ids_push(&s->tokens, r->prompt.p[i]);
        sampler_prompt(s->sampler, r->prompt.p[i]);
    }
    chain_init(&s->chain, s->n_max);
    stream_open(s, tok);
    *out = s;
    s = NULL;
out:
    seq_close(s, NULL);
    return rc;
}

void seq_close(struct seq *s, struct block_pool *pool)
{
    if (!s) return;
    if (s->chain.blocks) chain_release(&s->chain, pool);
    ids_release(&s->tokens);
    sampler_close(s->sampler);
    stream_release(&s->stream);
    buf_release(&s->text);
    mem_free(s->pool);
    mem_free(s);
}

void seq_forget(struct seq *s, struct block_pool *pool)
{
    chain_truncate(&s->chain, pool, 0);
    s->n_kv = s->n_known = 0;
}

enum finish seq_take(struct seq *s, int32_t id, bool is_end)
{
    struct request *r = s->r;

    ids_push(&s->tokens, id); /* reserved by seq_open */
    r->n_out++;
    buf_clear(&s->text);
    is_end = is_end && !r->ignore_eos;
    s->untold = is_end ? -1 : id;
    if (is_end) return FINISH_STOP;
    if (s->stream.n_stops > 0) seq_text(s);
    if (s->stream.stopped) return FINISH_STOP;
    return s->tokens.n >= (size_t)s->n_max ? FINISH_LENGTH : FINISH_NONE;
}

void seq_text(struct seq *s)
{
    if (s->untold < 0) return;
    s->stream.unarmed = s->r->n_out < s->r->min_tokens;
    stream_push(&s->stream, s->untold, &s->text);
    s->untold = -1;
}
