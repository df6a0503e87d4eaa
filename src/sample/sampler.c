#include "sample/sampler.h"

#include "base/mem.h"
#include "sample/filter.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { REPEAT_LAST_MAX = 1 << 20, WIDEN = 512 };

struct seen {
    int32_t id;
    int n;    /* how often in the window of the repetition's penalty */
    int made; /* how often in the answer */
};

struct sampler {
    struct sample_opt opt; /* bias: our copy */
    int n_vocab;
    struct rng rng;
    bool repeats, counts; /* a penalty for repetition; for frequency or presence */
    int32_t *ring;        /* [repeat_last] the window of the first; NULL: everything counts */
    int ring_n, ring_at;
    int32_t *slot;     /* [n_vocab] where in seen, plus one; 0: not there */
    struct seen *seen; /* [n_vocab]: never more than that are different */
    int n_seen;
    /* for one pick; pages that are never touched cost nothing */
    float *x;               /* [n_vocab] logits after bias and penalties, or weights */
    float *block_max, *tmp; /* [n_blocks] */
    struct cand *cands;     /* [n_vocab] */
};

struct sample_opt sample_defaults(void)
{
    return (struct sample_opt){ .temp = 0.8f,
                                .top_k = 40,
                                .top_p = 0.95f,
                                .min_p = 0.05f,
                                .typical = 1,
                                .repeat_penalty = 1,
                                .repeat_last = 64 };
}

static int bad(struct err *e, const char *name, double v, const char *range)
{
    return err_set(e, E_INVALID, "%s is %g, but it must be %s", name, v, range);
}

int sample_check(const struct sample_opt *o, int n_vocab, struct err *e)
{
    if (!(o->temp >= 0 && o->temp <= 2))
        return bad(e, "temp", (double)o->temp, "from 0 (greedy) to 2");
    if (o->top_k < 0) return bad(e, "top_k", o->top_k, "0 (all) or more");
    if (!(o->top_p > 0 && o->top_p <= 1))
        return bad(e, "top_p", (double)o->top_p, "above 0 and at most 1 (all)");
    if (!(o->min_p >= 0 && o->min_p < 1))
        return bad(e, "min_p", (double)o->min_p, "from 0 (all) to below 1");
    if (!(o->typical > 0 && o->typical <= 1))
        return bad(e, "typical", (double)o->typical, "above 0 and at most 1 (off)");
    if (!(o->repeat_penalty > 0 && o->repeat_penalty <= 100))
        return bad(e, "repeat_penalty", (double)o->repeat_penalty,
                   "above 0 (1 is off) and at most 100");
    if (o->repeat_last < -1 || o->repeat_last > REPEAT_LAST_MAX)
        return bad(e, "repeat_last", o->repeat_last, "-1 (all), or from 0 (off) to 1048576");
    if (!(o->freq_penalty >= -2 && o->freq_penalty <= 2))
        return bad(e, "freq_penalty", (double)o->freq_penalty, "from -2 to 2");
    if (!(o->presence_penalty >= -2 && o->presence_penalty <= 2))
        return bad(e, "presence_penalty", (double)o->presence_penalty, "from -2 to 2");
    if (o->n_bias < 0 || (o->n_bias > 0 && !o->bias))
        return bad(e, "n_bias", o->n_bias, "the length of bias");
    for (int i = 0; i < o->n_bias; i++) {
        if (o->bias[i].id < 0 || o->bias[i].id >= n_vocab)
            return err_set(e, E_INVALID, "logit bias for token %d, but the vocabulary has %d",
                           o->bias[i].id, n_vocab);
        if (isnan(o->bias[i].bias))
            return err_set(e, E_INVALID, "the logit bias of token %d is not a number",
                           o->bias[i].id);
    }
    return OK;
}

static int by_id(const void *a, const void *b)
{
    const struct logit_bias *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

/* One for each token, of those given twice the sum. */
static void copy_bias(struct sampler *s, const struct sample_opt *o)
{
    struct logit_bias *b = mem_dup(o->bias, (size_t)o->n_bias * sizeof *o->bias);
    int n = 1;

    qsort(b, (size_t)o->n_bias, sizeof *b, by_id);
    for (int i = 1; i < o->n_bias; i++)
        if (b[i].id == b[n - 1].id) b[n - 1].bias += b[i].bias;
        else b[n++] = b[i];
    s->opt.bias = b;
    s->opt.n_bias = n;
}

int sampler_open(struct sampler **out, const struct sample_opt *o, int n_vocab, struct err *e)
{
    struct sampler *s = NULL;
    int rc;

    if (n_vocab <= 0)
        return err_set(e, E_INVALID, "a vocabulary of %d tokens cannot be sampled", n_vocab);
    if ((rc = sample_check(o, n_vocab, e)) != OK) return rc;
    s = mem_new(struct sampler);
    s->opt = *o;
    s->opt.bias = NULL;
    if (o->n_bias > 0) copy_bias(s, o);
    s->n_vocab = n_vocab;
    rng_seed(&s->rng, o->seed);
    s->repeats = o->repeat_last != 0 && o->repeat_penalty != 1;
    s->counts = o->freq_penalty != 0 || o->presence_penalty != 0;
    rc = err_set(e, E_NOMEM, "no memory to sample from %d tokens", n_vocab);
    if (s->repeats || s->counts) {
        if (s->repeats && o->repeat_last > 0 &&
            !(s->ring = mem_array((size_t)o->repeat_last, sizeof *s->ring)))
            goto out;
        if (!(s->slot = mem_array((size_t)n_vocab, sizeof *s->slot))) goto out;
        if (!(s->seen = mem_array((size_t)n_vocab, sizeof *s->seen))) goto out;
    }
    if (!(s->x = mem_array((size_t)n_vocab, sizeof *s->x))) goto out;
    if (!(s->block_max = mem_array((size_t)filter_n_blocks(n_vocab), sizeof *s->block_max)))
        goto out;
    if (!(s->tmp = mem_array((size_t)filter_n_blocks(n_vocab), sizeof *s->tmp))) goto out;
    if (!(s->cands = mem_array((size_t)n_vocab, sizeof *s->cands))) goto out;
    rc = OK;
    if (e) *e = (struct err){ 0 };
    *out = s;
    s = NULL;
out:
    sampler_close(s);
    return rc;
}

void sampler_close(struct sampler *s)
{
    if (!s) return;
    mem_free((void *)s->opt.bias);
    mem_free(s->ring);
    mem_free(s->slot);
    mem_free(s->seen);
    mem_free(s->x);
    mem_free(s->block_max);
    mem_free(s->tmp);
    mem_free(s->cands);
    mem_free(s);
}

static struct seen *seen_of(struct sampler *s, int32_t id)
{
    if (s->slot[id] == 0) {
        s->seen[s->n_seen] = (struct seen){ .id = id };
        s->slot[id] = ++s->n_seen;
    }
    return &s->seen[s->slot[id] - 1];
}

static void window_drop(struct sampler *s, int32_t id)
{
    int at = s->slot[id] - 1;
    if (--s->seen[at].n > 0 || s->seen[at].made > 0) return;
    s->slot[id] = 0;
    s->seen[at] = s->seen[--s->n_seen];
    if (at < s->n_seen) s->slot[s->seen[at].id] = at + 1;
}

void sampler_prompt(struct sampler *s, int32_t id)
{
    if (!s->repeats || id < 0 || id >= s->n_vocab) return;
    seen_of(s, id)->n++;
    if (!s->ring) return;
    if (s->ring_n == s->opt.repeat_last) window_drop(s, s->ring[s->ring_at]);
    else s->ring_n++;
    s->ring[s->ring_at] = id;
    s->ring_at = s->ring_at + 1 < s->opt.repeat_last ? s->ring_at + 1 : 0;
}

void sampler_accept(struct sampler *s, int32_t id)
{
    if (s->counts && id >= 0 && id < s->n_vocab) seen_of(s, id)->made++;
    sampler_prompt(s, id);
}

static float repeat_of(const struct sampler *s, const struct seen *x)
{
    return x->n > 0 ? s->opt.repeat_penalty : 1;
}

static float minus_of(const struct sampler *s, const struct seen *x)
{
    return x->made > 0 ? (float)x->made * s->opt.freq_penalty + s->opt.presence_penalty : 0;
}

/* Logits after bias and penalties: the caller's own where there are none. */
static const float *adjust(struct sampler *s, const float *logits)
{
    const struct sample_opt *o = &s->opt;

    if (o->n_bias == 0 && s->n_seen == 0) return logits;
    memcpy(s->x, logits, (size_t)s->n_vocab * sizeof *s->x);
    for (int i = 0; i < o->n_bias; i++) s->x[o->bias[i].id] += o->bias[i].bias;
    for (int i = 0; i < s->n_seen; i++) {
        float *x = &s->x[s->seen[i].id];
        float repeat = repeat_of(s, &s->seen[i]);
        *x = *x > 0 ? *x / repeat : *x * repeat;
        *x -= minus_of(s, &s->seen[i]);
    }
    return s->x;
}

/* Enough candidates that every survivor of the filters is among them; max is the largest logit. */
static int gather(struct sampler *s, const float *x, float max, double *total)
{
    const struct sample_opt *o = &s->opt;
    float least;
    int n;

    if (o->top_k > 0 && o->top_k < s->n_vocab) {
        n = filter_gather(x, s->n_vocab, s->block_max, s->tmp, o->top_k, max, s->cands);
        n = filter_best(s->cands, n, o->top_k);
        *total = filter_sum(s->cands, n);
        return n;
    }
    if (o->typical == 1 && o->top_p < 1) {
        *total = filter_exp_all(x, s->n_vocab, max, 1, NULL);
        n = filter_gather(x, s->n_vocab, s->block_max, s->tmp, WIDEN, max, s->cands);
        if (filter_sum(s->cands, n) >= (double)o->top_p * *total) return n;
        least = filter_least(x, s->n_vocab, max, (double)o->top_p * *total);
        return filter_above(x, s->n_vocab, s->block_max, least, max, s->cands);
    }
    if (o->typical == 1 && o->top_p == 1) { /* only min-p; exactly so further down */
        n = filter_above(x, s->n_vocab, s->block_max, max + logf(o->min_p) - 0.01f, max, s->cands);
        return n;
    }
    n = filter_above(x, s->n_vocab, s->block_max, -FLT_MAX, max, s->cands);
    *total = filter_sum(s->cands, n);
    return n;
}

/* Those whose surprise is nearest to the expected one. */
static int keep_typical(struct sampler *s, int n, double *total)
{
    struct cand *c = s->cands;
    double mean = 0;

    for (int i = 0; i < n; i++) mean += (double)c[i].p * (double)c[i].d;
    mean /= *total; /* surprise - entropy = mean - d */
    for (int i = 0; i < n; i++) c[i].key = (float)fabs(mean - (double)c[i].d);
    n = filter_mass(c, n, (double)s->opt.typical * *total);
    for (int i = 0; i < n; i++) c[i].key = -c[i].d;
    *total = filter_sum(c, n);
    return n;
}

static int keep_min_p(struct cand *c, int n, float min_p)
{
    float best = 0;
    int kept = 0;

    for (int i = 0; i < n; i++) best = c[i].p > best ? c[i].p : best;
    for (int i = 0; i < n; i++)
        if (c[i].p >= min_p * best) c[kept++] = c[i];
    return kept;
}

/* In the order of ids, whatever order the filters left: devices draw so too. */
static int32_t draw(struct sampler *s, int n)
{
    struct cand *c = s->cands;
    float top = -INFINITY;
    int m = 0;

    for (int i = 0; i < n; i++) top = c[i].d > top ? c[i].d : top;
    filter_weigh(c, n, top, s->opt.temp);
    for (int i = 0; i < n; i++) {
        if (!(c[i].p > 0)) continue;
        c[m] = c[i];
        c[m].key = (float)c[m].id;
        m++;
    }
    m = filter_mass(c, m, rng_unit(&s->rng) * filter_sum(c, m));
    return c[m > 0 ? m - 1 : 0].id;
}

/* Nothing is filtered: the whole vocabulary is in the draw. */
static int32_t draw_all(struct sampler *s, const float *x, float max)
{
    double sum = filter_exp_all(x, s->n_vocab, max, 1 / s->opt.temp, s->x);
    double at = rng_unit(&s->rng) * sum;
    int last = 0;

    for (int i = 0; i < s->n_vocab; i++) {
        if (!(s->x[i] > 0)) continue;
        at -= (double)s->x[i];
        if (at < 0) return i;
        last = i;
    }
    return last;
}

static int32_t pick_random(struct sampler *s, const float *x, float max)
{
    const struct sample_opt *o = &s->opt;
    bool all = (o->top_k == 0 || o->top_k >= s->n_vocab) && o->typical == 1 && o->top_p == 1 &&
               o->min_p == 0;
    double total = 0;
    int n;

    if (all && 1 / o->temp <= FLT_MAX) return draw_all(s, x, max);
    n = all ? filter_above(x, s->n_vocab, s->block_max, max, max, s->cands)
            : gather(s, x, max, &total);
    if (o->typical < 1) n = keep_typical(s, n, &total);
    if (o->top_p < 1) n = filter_mass(s->cands, n, (double)o->top_p * total);
    if (o->min_p > 0) n = keep_min_p(s->cands, n, o->min_p);
    return draw(s, n);
}

static int no_number(struct err *e)
{
    return err_set(e, E_DEVICE, "no logit is a number: the weights or the device are damaged");
}

int sampler_draw(struct sampler *s, const float *logits, int32_t *id, struct err *e)
{
    const float *x = adjust(s, logits);

    if (s->opt.temp == 0) {
        *id = sample_greedy(x, s->n_vocab);
        if (*id < 0 || x[*id] == -INFINITY) goto none;
    } else {
        float max = filter_max(x, s->n_vocab, s->block_max);
        if (max == -INFINITY) goto none;
        if (max > FLT_MAX) { /* infinite ones are equals, and the largest */
            for (int i = 0; i < s->n_vocab; i++) s->x[i] = x[i] > FLT_MAX ? FLT_MAX : x[i];
            x = s->x;
            max = filter_max(x, s->n_vocab, s->block_max);
        }
        *id = pick_random(s, x, max);
    }
    return OK;
none:
    return no_number(e);
}

int sampler_pick(struct sampler *s, const float *logits, int32_t *id, struct err *e)
{
    int rc = sampler_draw(s, logits, id, e);

    if (rc == OK) sampler_accept(s, *id);
    return rc;
}

/* A ban goes over what else there is for its token. */
static int ban(struct logit_adjust *a, int n, int max, int32_t id)
{
    int i = 0;

    while (i < n && a[i].id != id) i++;
    if (i == max) return -1;
    a[i] = (struct logit_adjust){ id, -INFINITY, 1, 0 };
    return i < n ? n : n + 1;
}

int sampler_plan(struct sampler *s, const int32_t *bans, int n_bans, struct sample_row *p,
                 struct logit_adjust *a, int max)
{
    const struct sample_opt *o = &s->opt;
    int n = s->n_seen;

    if (o->typical < 1 || n > max) return -1;
    for (int i = 0; i < n; i++)
        a[i] = (struct logit_adjust){ s->seen[i].id, 0, repeat_of(s, &s->seen[i]),
                                      minus_of(s, &s->seen[i]) };
    for (int i = 0; i < o->n_bias; i++) {
        if (s->slot && s->slot[o->bias[i].id]) {
            a[s->slot[o->bias[i].id] - 1].add = o->bias[i].bias;
            continue;
        }
        if (n == max) return -1;
        a[n++] = (struct logit_adjust){ o->bias[i].id, o->bias[i].bias, 1, 0 };
    }
    for (int i = 0; i < n_bans; i++)
        if (bans[i] < s->n_vocab && (n = ban(a, n, max, bans[i])) < 0) return -1;
    *p = (struct sample_row){
        .top_k = o->top_k, .temp = o->temp, .top_p = o->top_p, .min_p = o->min_p, .n_adjust = n
    };
    if (o->temp != 0) p->u = rng_unit(&s->rng);
    return n;
}

int sampler_take(struct sampler *s, int32_t id, struct err *e)
{
    if (id < 0 || id >= s->n_vocab) return no_number(e);
    sampler_accept(s, id);
    return OK;
}

int32_t sample_greedy(const float *logits, int n)
{
    float max = -INFINITY, m;
    int at = -1, end;

    for (int i = 0; i < n; i += FILTER_BLOCK) {
        int len = n - i < FILTER_BLOCK ? n - i : FILTER_BLOCK;
        filter_max(logits + i, len, &m);
        if (m > max) max = m, at = i;
    }
    if (at < 0) { /* -Inf at best */
        for (int i = 0; i < n; i++)
            if (logits[i] == -INFINITY) return i;
        return -1;
    }
    end = at + FILTER_BLOCK < n ? at + FILTER_BLOCK : n;
    for (int i = at; i < end; i++)
        if (logits[i] == max) return i;
    return -1;
}
