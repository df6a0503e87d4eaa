#include "engine/seq.h"

#include "base/clock.h"
#include "base/mem.h"

void request_release(struct request *r)
{
    ids_release(&r->prompt);
    ids_release(&r->out);
}

static int check(const struct request *r, struct seq_limits lim, struct err *e)
{
    if (r->prompt.n == 0)
        return err_set(e, E_INVALID, "the prompt is empty: there is no token to go on from");
    if (r->max_tokens < 0)
        return err_set(e, E_INVALID, "max_tokens is %d, but it must be 0 or more", r->max_tokens);
    if (r->prompt.n >= (size_t)lim.n_ctx)
        return err_set(e, E_CONTEXT, "the prompt has %zu tokens and leaves no room in a context of %d",
                       r->prompt.n, lim.n_ctx);
    for (size_t i = 0; i < r->prompt.n; i++)
        if (r->prompt.p[i] < 0 || r->prompt.p[i] >= lim.n_vocab)
            return err_set(e, E_INVALID, "token %zu of the prompt is %d, but the vocabulary has %d", i,
                           r->prompt.p[i], lim.n_vocab);
    return OK;
}

static bool ids_reserve(struct ids *v, size_t cap)
{
    if (v->cap >= cap) return true;
    mem_free(v->p);
    *v = (struct ids){ .p = mem_try_array(cap, sizeof *v->p) };
    if (v->p) v->cap = cap;
    return v->p != NULL;
}

int seq_open(struct seq **out, struct request *r, struct seq_limits lim, struct err *e)
{
    struct seq *s = NULL;
    size_t n_new;
    int rc;

    if ((rc = check(r, lim, e)) != OK) return rc;
    s = mem_new(struct seq);
    s->r = r;
    n_new = (size_t)lim.n_ctx - r->prompt.n;
    if (r->max_tokens > 0 && (size_t)r->max_tokens < n_new) n_new = (size_t)r->max_tokens;
    s->n_max = (int)(r->prompt.n + n_new);
    if (!ids_reserve(&s->tokens, (size_t)s->n_max) || !ids_reserve(&r->out, n_new)) {
        rc = err_set(e, E_NOMEM, "no memory for a sequence of %d tokens", s->n_max);
        goto out;
    }
    if ((rc = sampler_open(&s->sampler, &r->sample, lim.n_pick, e)) != OK) goto out;
    for (size_t i = 0; i < r->prompt.n; i++) {
        ids_push(&s->tokens, r->prompt.p[i]);
        sampler_accept(s->sampler, r->prompt.p[i]);
    }
    chain_init(&s->chain, lim.n_ctx);
    r->out.n = 0;
    r->finish = FINISH_NONE;
    r->n_cached = 0;
    r->submit_ns = clock_ns();
    r->start_ns = r->first_ns = r->end_ns = 0;
    r->seq = s;
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
    if (s->r->seq == s) s->r->seq = NULL;
    mem_free(s);
}

void seq_forget(struct seq *s, struct block_pool *pool)
{
    chain_truncate(&s->chain, pool, 0);
    s->n_kv = 0;
}

void seq_finish(struct seq *s, enum finish why, const struct err *e)
{
    s->r->finish = why;
    s->r->end_ns = clock_ns();
    if (e) s->r->err = *e;
}

void seq_take(struct seq *s, int32_t id, bool is_end)
{
    struct request *r = s->r;

    ids_push(&s->tokens, id);                            /* reserved by seq_open, both of them */
    ids_push(&r->out, id);
    r->end_ns = clock_ns();
    if (r->out.n == 1) r->first_ns = r->end_ns;
    if (is_end && !r->ignore_eos) r->finish = FINISH_STOP;
    else if (s->tokens.n >= (size_t)s->n_max) r->finish = FINISH_LENGTH;
}

void past_keep(struct past *p, struct seq *s, struct block_pool *pool)
{
    past_drop(p, pool);
    p->chain = s->chain;
    p->tokens = s->tokens;
    p->tokens.n = (size_t)s->n_kv;
    chain_truncate(&p->chain, pool, s->n_kv);
    s->chain = (struct chain){ 0 };
    s->tokens = (struct ids){ 0 };
}

void past_give(struct past *p, struct seq *s, struct block_pool *pool)
{
    size_t same = 0, most = s->tokens.n - 1; /* the last one is computed: its logits are wanted */
    struct chain empty = s->chain;

    if (p->tokens.n < most) most = p->tokens.n;
    while (same < most && p->tokens.p[same] == s->tokens.p[same]) same++;
    if (same == 0) return;
    s->chain = p->chain;
    chain_truncate(&s->chain, pool, (int)same);
    s->n_kv = (int)same;
    p->chain = empty;
    p->tokens.n = 0;
}

void past_drop(struct past *p, struct block_pool *pool)
{
    if (p->chain.blocks) chain_release(&p->chain, pool);
    ids_release(&p->tokens);
    *p = (struct past){ 0 };
}
