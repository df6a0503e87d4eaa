/* seq.c - checks of a request's settings, and a sequence's life from its prompt to its text. */
#include "engine/seq.h"

#include "base/clock.h"
#include "base/mem.h"

#include <assert.h>

enum { TEXT_FIRST = 256, PRIME_TOKENS = 16 };

/* Does the model do what the request wants? */
static int check_task(const struct request *r, const struct seq_limits *lim, struct err *e)
{
    if (lim->no_text && !r->embed)
        return err_set(e, E_INVALID, "this model %s and generates no text",
                       lim->classifies ? "classifies" : "makes embeddings");
    if (r->classify == (r->embed && lim->classifies)) return OK;
    return err_set(e, E_INVALID,
                   lim->classifies
                       ? "this model classifies and makes no embeddings: see /v1/classify"
                       : "this model does not classify: it has no classes");
}

/* Logits of single ids are wanted. */
static int check_picks(const struct request *r, const struct seq_limits *lim, struct err *e)
{
    if (r->n_pick == 0) return OK;
    if (r->n_pick < 0 || r->n_pick > REQUEST_PICKS || r->embed || r->grammar || r->resume.n)
        return err_set(e, E_INVALID,
                       "%d logits are wanted: at most %d are possible, with nothing else",
                       r->n_pick, REQUEST_PICKS);
    for (int i = 0; i < r->n_pick; i++)
        if (r->pick[i] < 0 || r->pick[i] >= lim->n_vocab)
            return err_set(e, E_INVALID,
                           "the logit of token %d is wanted: ids are from 0 to %d for this model",
                           r->pick[i], lim->n_vocab - 1);
    return OK;
}

static int check_lengths(const struct request *r, struct err *e)
{
    if (r->max_tokens < 0 || r->min_tokens < 0)
        return err_set(e, E_INVALID,
                       "max_tokens is %d and min_tokens is %d: both must be 0 or more",
                       r->max_tokens, r->min_tokens);
    if (r->max_tokens > 0 && r->min_tokens > r->max_tokens)
        return err_set(e, E_INVALID, "min_tokens is %d: it must be at most max_tokens, %d",
                       r->min_tokens, r->max_tokens);
    if (r->n_top > TOP_MAX)
        return err_set(e, E_INVALID, "%d alternatives of each token: at most %d are possible",
                       r->n_top, TOP_MAX);
    for (int i = 0; i < r->n_stops; i++)
        if (r->stops[i].n > REQUEST_STOP_MAX)
            return err_set(e, E_INVALID, "a stop string of %zu bytes: at most %d are possible",
                           r->stops[i].n, REQUEST_STOP_MAX);
    return OK;
}

/* Room for one more token must be left: a completion that is complete is not continued. */
static int check_resume(const struct request *r, const struct seq_limits *lim, struct err *e)
{
    if (r->resume.n == 0) return OK;
    if (r->embed) return err_set(e, E_INVALID, "a vector cannot be continued");
    if (r->max_tokens > 0 && r->resume.n > (size_t)r->max_tokens)
        return err_set(e, E_INVALID, "%zu tokens to continue behind: max_tokens is %d", r->resume.n,
                       r->max_tokens);
    if (r->prompt.n + r->resume.n > (size_t)lim->n_ctx)
        return err_set(
            e, E_CONTEXT,
            "%zu tokens of the prompt and %zu to continue behind exceed the context of %d",
            r->prompt.n, r->resume.n, lim->n_ctx);
    for (size_t i = 0; i < r->resume.n; i++)
        if (r->resume.p[i] < 0 || r->resume.p[i] >= lim->n_sample)
            return err_set(
                e, E_INVALID,
                "token %zu to continue behind is %d: ids are from 0 to %d for this model", i,
                r->resume.p[i], lim->n_sample - 1);
    return OK;
}

int seq_check(const struct request *r, const struct seq_limits *lim, struct err *e)
{
    int rc;

    if (r->prompt.n == 0)
        return err_set(e, E_INVALID, "the prompt is empty: it needs at least one token");
    if ((rc = check_task(r, lim, e)) != OK) return rc;
    if ((rc = check_lengths(r, e)) != OK) return rc;
    for (size_t i = 0; i < r->prompt.n; i++)
        if (r->prompt.p[i] < 0 || r->prompt.p[i] >= lim->n_vocab)
            return err_set(e, E_INVALID,
                           "token %zu of the prompt is %d: ids are from 0 to %d for this model", i,
                           r->prompt.p[i], lim->n_vocab - 1);
    if ((rc = check_resume(r, lim, e)) != OK) return rc;
    if ((rc = check_picks(r, lim, e)) != OK) return rc;
    return sample_check(&r->sample, lim->n_sample, e);
}

/* A text that continues the prompt needs the prompt's last tokens: whether a piece begins with a
 * space depends on the one before it. */
static bool open_stream(struct seq *s, const struct tokenizer *tok)
{
    const struct request *r = s->r;
    size_t n = r->prompt.n, tail = n < PRIME_TOKENS ? n : PRIME_TOKENS;

    if (!stream_init(&s->stream, tok, r->stops, r->n_stops)) return false;
    s->stream.shown = r->shown;
    s->stream.n_shown = r->n_shown;
    if (r->continues) stream_prime(&s->stream, r->prompt.p + (n - tail), tail);
    return buf_reserve(&s->text, TEXT_FIRST) && !stream_is_failed(&s->stream);
}

/* Tokens, sampler and chain, each with room for the longest the sequence may become. The sampler
 * sees the prompt, because repetition penalties cover it. */
static int open_tokens(struct seq *s, const struct seq_limits *lim, struct err *e)
{
    const struct request *r = s->r;
    size_t n_new = r->embed || r->n_pick ? 0 : (size_t)lim->n_ctx - r->prompt.n;
    int rc;

    if (r->max_tokens > 0 && (size_t)r->max_tokens < n_new) n_new = (size_t)r->max_tokens;
    s->n_max = (int)(r->prompt.n + n_new);
    if (!ids_reserve(&s->tokens, (size_t)s->n_max))
        return err_set(e, E_NOMEM, "no memory for a sequence of %d tokens", s->n_max);
    if ((rc = sampler_open(&s->sampler, &r->sample, lim->n_sample, e)) != OK) return rc;
    for (size_t i = 0; i < r->prompt.n; i++) {
        ids_push(&s->tokens, r->prompt.p[i]);
        sampler_accept_prompt(s->sampler, r->prompt.p[i]);
    }
    if (!chain_init(&s->chain, s->n_max)) return err_nomem(e, "the KV blocks of a sequence");
    return OK;
}

int seq_open(struct seq **out, struct request *r, const struct seq_limits *lim,
             const struct tokenizer *tok, struct err *e)
{
    struct seq *s = mem_new(struct seq);
    int rc;

    if (!s) return err_nomem(e, "a sequence");
    s->r = r;
    s->slot = s->pending_id = -1;
    if (r->embed && !(s->vec_sum = mem_array((size_t)lim->vec_room, sizeof *s->vec_sum)))
        rc = err_nomem(e, "the vector of a text");
    else rc = open_tokens(s, lim, e);
    if (rc == OK && !open_stream(s, tok)) rc = err_nomem(e, "the text of a sequence");
    if (rc == OK) *out = s;
    else seq_close(s, NULL);
    return rc;
}

/* pool is needed only if the sequence holds blocks. */
void seq_close(struct seq *s, struct block_pool *pool)
{
    if (!s) return;
    if (s->chain.blocks) chain_release(&s->chain, pool);
    ids_release(&s->tokens);
    sampler_close(s->sampler);
    stream_release(&s->stream);
    buf_release(&s->text);
    mem_free(s->vec_sum);
    mem_free(s);
}

void seq_drop_kv(struct seq *s, struct block_pool *pool)
{
    chain_truncate(&s->chain, pool, 0);
    s->n_kv = s->n_published = 0;
}

/* The prediction's time is over: see request.predict_ns. */
static bool is_late(struct seq *s)
{
    uint64_t now = clock_ns();

    if (!s->began_ns) s->began_ns = now;
    s->has_line |= s->text.n && memchr(s->text.p, '\n', s->text.n);
    return s->has_line && now - s->began_ns > s->r->predict_ns;
}

enum finish seq_append(struct seq *s, int32_t id, bool is_end)
{
    struct request *r = s->r;

    assert(s->tokens.n < (size_t)s->n_max); /* reserved by open_tokens */
    ids_push(&s->tokens, id);
    r->n_out++;
    buf_clear(&s->text);
    is_end = is_end && !r->ignore_eos;
    s->pending_id = is_end ? -1 : id;
    if (is_end) return FINISH_STOP;
    if (s->stream.n_stops > 0 || r->predict_ns) seq_make_text(s);
    if (s->stream.stopped) return FINISH_STOP;
    if (r->predict_ns && is_late(s)) return FINISH_LENGTH;
    return s->tokens.n >= (size_t)s->n_max ? FINISH_LENGTH : FINISH_NONE;
}

/* As if they had been sampled here: sampler, text and stop strings are in the same state then. */
enum finish seq_resume(struct seq *s, bool (*is_end)(void *arg, int32_t id), void *arg)
{
    struct request *r = s->r;
    enum finish why = FINISH_NONE;

    for (size_t i = 0; i < r->resume.n && why == FINISH_NONE; i++) {
        sampler_replay(s->sampler, r->resume.p[i]);
        why = seq_append(s, r->resume.p[i], is_end(arg, r->resume.p[i]));
        seq_make_text(s);
        buf_put_str(&r->resumed, buf_str(&s->text));
    }
    buf_clear(&s->text);
    s->failed |= r->resumed.failed;
    return why;
}

/* Stop strings count only from min_tokens on. */
void seq_make_text(struct seq *s)
{
    if (s->pending_id < 0) return;
    s->stream.unarmed = s->r->n_out < s->r->min_tokens;
    stream_push(&s->stream, s->pending_id, &s->text);
    s->pending_id = -1;
    s->failed |= s->text.failed || stream_is_failed(&s->stream);
}
