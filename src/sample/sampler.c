/* sampler.c - bias and penalties, the chain of filters, and the random choice.
 *
 * Penalties need counts per token. `seen` is a dense array of the tokens that have occurred, `slot`
 * finds an entry by id, so both the update per token and the pass over all penalized tokens are
 * cheap. The window of the repetition penalty is a ring buffer; a token that leaves it is counted
 * down.
 *
 * The random choice adds up probabilities in ascending order of ids, as the GPU does
 * (kernel/cuda/sample.cu), so both sample the same token from the same random number.
 *
 *     bias        x += bias
 *     penalties   x = x > 0 ? x / repeat : x * repeat;  x -= count * frequency + presence
 *     top-k       the k largest
 *     typical     the fewest tokens nearest to the entropy that have the mass `typical`
 *     top-p       the fewest largest that have the mass top_p
 *     min-p       at least min_p times the largest probability
 *     choice      in proportion to exp(x / temp) */
#include "sample/sampler.h"

#include "base/mem.h"
#include "sample/filter.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    REPEAT_LAST_MAX = 1 << 20,
    FIRST_TRY = 512 /* candidates that nearly always have the mass of top-p */
};

struct seen {
    int32_t id;
    int in_window;     /* occurrences in the window of repeat_penalty */
    int in_completion; /* occurrences in the completion, for freq_penalty and presence_penalty */
};

struct sampler {
    struct sample_opt opt; /* bias is owned, sorted by id, each id once */
    int n_vocab;
    struct rng rng;
    bool repeats;  /* repeat_penalty is on */
    bool counts;   /* freq_penalty or presence_penalty is on */
    int32_t *ring; /* [repeat_last] the window of repeat_penalty; NULL: unlimited */
    int ring_n, ring_at;
    int32_t *slot;     /* [n_vocab] index in seen plus one; 0: not in it */
    struct seen *seen; /* [n_vocab] */
    int n_seen;
    /* Scratch memory of one sampling. Pages that are never written cost nothing. */
    float *x;               /* [n_vocab] logits after bias and penalties, or probabilities */
    float *block_max, *tmp; /* [n_blocks] */
    struct cand *cands;     /* [n_vocab] */
};

/* The defaults of llama.cpp, which most users compare with. */
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

static int fail_range(struct err *e, const char *name, double v, const char *range)
{
    return err_set(e, E_INVALID, "%s is %g, but it must be %s", name, v, range);
}

/* Comparisons are written so that NaN fails them. */
int sample_check(const struct sample_opt *o, int n_vocab, struct err *e)
{
    if (!(o->temp >= 0 && o->temp <= 2))
        return fail_range(e, "temp", (double)o->temp, "from 0 (greedy) to 2");
    if (o->top_k < 0) return fail_range(e, "top_k", o->top_k, "0 (all) or more");
    if (!(o->top_p > 0 && o->top_p <= 1))
        return fail_range(e, "top_p", (double)o->top_p, "above 0 and at most 1 (all)");
    if (!(o->min_p >= 0 && o->min_p < 1))
        return fail_range(e, "min_p", (double)o->min_p, "from 0 (all) to below 1");
    if (!(o->typical > 0 && o->typical <= 1))
        return fail_range(e, "typical", (double)o->typical, "above 0 and at most 1 (off)");
    if (!(o->repeat_penalty > 0 && o->repeat_penalty <= 100))
        return fail_range(e, "repeat_penalty", (double)o->repeat_penalty,
                          "above 0 (1 is off) and at most 100");
    if (o->repeat_last < -1 || o->repeat_last > REPEAT_LAST_MAX)
        return fail_range(e, "repeat_last", o->repeat_last, "-1 (all), or from 0 (off) to 1048576");
    if (!(o->freq_penalty >= -2 && o->freq_penalty <= 2))
        return fail_range(e, "freq_penalty", (double)o->freq_penalty, "from -2 to 2");
    if (!(o->presence_penalty >= -2 && o->presence_penalty <= 2))
        return fail_range(e, "presence_penalty", (double)o->presence_penalty, "from -2 to 2");
    if (o->n_bias < 0 || (o->n_bias > 0 && !o->bias))
        return fail_range(e, "n_bias", o->n_bias, "the length of bias");
    for (int i = 0; i < o->n_bias; i++) {
        if (o->bias[i].id < 0 || o->bias[i].id >= n_vocab)
            return err_set(e, E_INVALID,
                           "logit_bias: there is no token %d; the vocabulary has %d tokens",
                           o->bias[i].id, n_vocab);
        if (isnan(o->bias[i].bias))
            return err_set(e, E_INVALID, "the logit bias of token %d is not a number",
                           o->bias[i].id);
    }
    return OK;
}

static int compare_ids(const void *a, const void *b)
{
    const struct logit_bias *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

/* Copies the bias, sorted by id; biases for the same token are added up. false: no memory. */
static bool copy_bias(struct sampler *s, const struct sample_opt *o)
{
    struct logit_bias *b = mem_dup(o->bias, (size_t)o->n_bias * sizeof *o->bias);
    int n = 1;

    if (!b) return false;
    qsort(b, (size_t)o->n_bias, sizeof *b, compare_ids);
    for (int i = 1; i < o->n_bias; i++)
        if (b[i].id == b[n - 1].id) b[n - 1].bias += b[i].bias;
        else b[n++] = b[i];
    s->opt.bias = b;
    s->opt.n_bias = n;
    return true;
}

static bool alloc_arrays(struct sampler *s)
{
    size_t n = (size_t)s->n_vocab, blocks = (size_t)filter_n_blocks(s->n_vocab);

    if (s->repeats && s->opt.repeat_last > 0 &&
        !(s->ring = mem_array((size_t)s->opt.repeat_last, sizeof *s->ring)))
        return false;
    if (s->repeats || s->counts) {
        s->slot = mem_array(n, sizeof *s->slot);
        s->seen = mem_array(n, sizeof *s->seen);
        if (!s->slot || !s->seen) return false;
    }
    s->x = mem_array(n, sizeof *s->x);
    s->block_max = mem_array(blocks, sizeof *s->block_max);
    s->tmp = mem_array(blocks, sizeof *s->tmp);
    s->cands = mem_array(n, sizeof *s->cands);
    return s->x && s->block_max && s->tmp && s->cands;
}

int sampler_open(struct sampler **out, const struct sample_opt *o, int n_vocab, struct err *e)
{
    struct sampler *s;
    int rc;

    if (n_vocab <= 0)
        return err_set(e, E_INVALID, "a vocabulary of %d tokens cannot be sampled", n_vocab);
    if ((rc = sample_check(o, n_vocab, e)) != OK) return rc;
    if (!(s = mem_new(struct sampler))) return err_nomem(e, "a sampler");
    s->opt = *o;
    s->opt.bias = NULL;
    s->n_vocab = n_vocab;
    s->repeats = o->repeat_last != 0 && o->repeat_penalty != 1;
    s->counts = o->freq_penalty != 0 || o->presence_penalty != 0;
    rng_seed(&s->rng, o->seed);
    if ((o->n_bias > 0 && !copy_bias(s, o)) || !alloc_arrays(s)) {
        sampler_close(s);
        return err_nomem(e, "a sampler");
    }
    *out = s;
    return OK;
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

static struct seen *find_or_add_seen(struct sampler *s, int32_t id)
{
    if (s->slot[id] == 0) {
        s->seen[s->n_seen] = (struct seen){ .id = id };
        s->slot[id] = ++s->n_seen;
    }
    return &s->seen[s->slot[id] - 1];
}

/* A token leaves the window. Its entry is removed if nothing else counts it: the last entry takes
 * its place. */
static void drop_from_window(struct sampler *s, int32_t id)
{
    int at = s->slot[id] - 1;
    if (--s->seen[at].in_window > 0 || s->seen[at].in_completion > 0) return;
    s->slot[id] = 0;
    s->seen[at] = s->seen[--s->n_seen];
    if (at < s->n_seen) s->slot[s->seen[at].id] = at + 1;
}

void sampler_accept_prompt(struct sampler *s, int32_t id)
{
    if (!s->repeats || id < 0 || id >= s->n_vocab) return;
    find_or_add_seen(s, id)->in_window++;
    if (!s->ring) return;
    if (s->ring_n == s->opt.repeat_last) drop_from_window(s, s->ring[s->ring_at]);
    else s->ring_n++;
    s->ring[s->ring_at] = id;
    s->ring_at = s->ring_at + 1 < s->opt.repeat_last ? s->ring_at + 1 : 0;
}

/* A token of the completion counts for all penalties. */
void sampler_accept(struct sampler *s, int32_t id)
{
    if (s->counts && id >= 0 && id < s->n_vocab) find_or_add_seen(s, id)->in_completion++;
    sampler_accept_prompt(s, id);
}

/* The factor that a positive logit is divided by and a negative one multiplied with. */
static float repeat_factor(const struct sampler *s, const struct seen *x)
{
    return x->in_window > 0 ? s->opt.repeat_penalty : 1;
}

/* What is subtracted from a logit. */
static float count_penalty(const struct sampler *s, const struct seen *x)
{
    return x->in_completion > 0
               ? (float)x->in_completion * s->opt.freq_penalty + s->opt.presence_penalty
               : 0;
}

/* Logits after bias and penalties: a copy in s->x, or the caller's where there are none. */
static const float *adjust_logits(struct sampler *s, const float *logits)
{
    const struct sample_opt *o = &s->opt;

    if (o->n_bias == 0 && s->n_seen == 0) return logits;
    memcpy(s->x, logits, (size_t)s->n_vocab * sizeof *s->x);
    for (int i = 0; i < o->n_bias; i++) s->x[o->bias[i].id] += o->bias[i].bias;
    for (int i = 0; i < s->n_seen; i++) {
        float *x = &s->x[s->seen[i].id];
        float repeat = repeat_factor(s, &s->seen[i]);
        *x = *x > 0 ? *x / repeat : *x * repeat;
        *x -= count_penalty(s, &s->seen[i]);
    }
    return s->x;
}

/* Fills the candidates: at least all that survive the filters. max is the largest logit, *total the
 * mass that top-p and typical refer to. */
static int gather_candidates(struct sampler *s, const float *x, float max, double *total)
{
    const struct sample_opt *o = &s->opt;
    float least;
    int n;

    if (o->top_k > 0 && o->top_k < s->n_vocab) {
        n = filter_gather(x, s->n_vocab, s->block_max, s->tmp, o->top_k, max, s->cands);
        n = filter_top_k(s->cands, n, o->top_k);
        *total = filter_sum(s->cands, n);
        return n;
    }
    if (o->typical == 1 && o->top_p < 1) {
        *total = filter_exp_all(x, s->n_vocab, max, 1, NULL);
        n = filter_gather(x, s->n_vocab, s->block_max, s->tmp, FIRST_TRY, max, s->cands);
        if (filter_sum(s->cands, n) >= (double)o->top_p * *total) return n;
        least = filter_bound(x, s->n_vocab, max, (double)o->top_p * *total);
        return filter_above(x, s->n_vocab, s->block_max, least, max, s->cands);
    }
    if (o->typical == 1 && o->top_p == 1) /* min-p alone: a loose bound; keep_min_p is exact */
        return filter_above(x, s->n_vocab, s->block_max, max + logf(o->min_p) - 0.01f, max,
                            s->cands);
    n = filter_above(x, s->n_vocab, s->block_max, -FLT_MAX, max, s->cands);
    *total = filter_sum(s->cands, n);
    return n;
}

/* Locally typical sampling (Meister et al., 2022): keeps the tokens whose surprisal is nearest to
 * the entropy of the distribution. */
static int keep_typical(struct sampler *s, int n, double *total)
{
    struct cand *c = s->cands;
    double mean = 0;

    for (int i = 0; i < n; i++) mean += (double)c[i].p * (double)c[i].d;
    mean /= *total; /* surprisal - entropy = mean - d */
    for (int i = 0; i < n; i++) c[i].key = (float)fabs(mean - (double)c[i].d);
    n = filter_top_mass(c, n, (double)s->opt.typical * *total);
    for (int i = 0; i < n; i++) c[i].key = -c[i].d;
    *total = filter_sum(c, n);
    return n;
}

/* min-p (Nguyen et al., 2024): keeps tokens with at least min_p times the largest probability. */
static int keep_min_p(struct cand *c, int n, float min_p)
{
    float best = 0;
    int kept = 0;

    for (int i = 0; i < n; i++) best = c[i].p > best ? c[i].p : best;
    for (int i = 0; i < n; i++)
        if (c[i].p >= min_p * best) c[kept++] = c[i];
    return kept;
}

/* Samples among the candidates. The cumulative sum runs in ascending order of ids, whatever order
 * the filters left, as on a GPU. */
static int32_t sample_candidates(struct sampler *s, int n)
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
    m = filter_top_mass(c, m, rng_unit(&s->rng) * filter_sum(c, m));
    return c[m > 0 ? m - 1 : 0].id;
}

/* Samples from the whole vocabulary: no filter is on. */
static int32_t sample_all(struct sampler *s, const float *x, float max)
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

static int32_t sample_random(struct sampler *s, const float *x, float max)
{
    const struct sample_opt *o = &s->opt;
    bool all = (o->top_k == 0 || o->top_k >= s->n_vocab) && o->typical == 1 && o->top_p == 1 &&
               o->min_p == 0;
    double total = 0;
    int n;

    if (all && 1 / o->temp <= FLT_MAX) return sample_all(s, x, max);
    /* A temperature that is nearly 0 leaves only the largest logits. */
    n = all ? filter_above(x, s->n_vocab, s->block_max, max, max, s->cands)
            : gather_candidates(s, x, max, &total);
    if (o->typical < 1) n = keep_typical(s, n, &total);
    if (o->top_p < 1) n = filter_top_mass(s->cands, n, (double)o->top_p * total);
    if (o->min_p > 0) n = keep_min_p(s->cands, n, o->min_p);
    return sample_candidates(s, n);
}

/* logits: as the model gave them, or NULL. If one of them is a number, every token is banned. */
static int fail_no_number(const float *logits, int n, struct err *e)
{
    for (int i = 0; logits && i < n; i++)
        if (logits[i] > -INFINITY)
            return err_set(e, E_INVALID, "every token is banned, so none can be sampled");
    return err_set(e, E_DAMAGED,
                   "no logit is a number: the weights are damaged or the device failed");
}

int sampler_sample(struct sampler *s, const float *logits, int32_t *id, struct err *e)
{
    const float *x = adjust_logits(s, logits);
    float max;

    if (s->opt.temp == 0) {
        *id = sample_greedy(x, s->n_vocab);
        return *id < 0 || x[*id] == -INFINITY ? fail_no_number(logits, s->n_vocab, e) : OK;
    }
    max = filter_max(x, s->n_vocab, s->block_max);
    if (max == -INFINITY) return fail_no_number(logits, s->n_vocab, e);
    if (max > FLT_MAX) { /* +Inf: all such logits are equally likely */
        for (int i = 0; i < s->n_vocab; i++) s->x[i] = x[i] > FLT_MAX ? FLT_MAX : x[i];
        x = s->x;
        max = filter_max(x, s->n_vocab, s->block_max);
    }
    *id = sample_random(s, x, max);
    return OK;
}

int sampler_next(struct sampler *s, const float *logits, int32_t *id, struct err *e)
{
    int rc = sampler_sample(s, logits, id, e);

    if (rc == OK) sampler_accept(s, *id);
    return rc;
}

/* Adds an adjustment that bans a token, in place of any other for it. Returns the new number of
 * adjustments, -1: no room. */
static int add_ban(struct logit_adjust *a, int n, int max, int32_t id)
{
    int i = 0;

    while (i < n && a[i].id != id) i++;
    if (i == max) return -1;
    a[i] = (struct logit_adjust){ id, -INFINITY, 1, 0 };
    return i < n ? n : n + 1;
}

/* Adjustments of penalties come first, in the order of `seen`, so that a bias for the same token
 * finds its entry through `slot`. The random number is consumed here, as on the host. */
int sampler_plan(struct sampler *s, const int32_t *bans, int n_bans, struct sample_row *p,
                 struct logit_adjust *a, int max)
{
    const struct sample_opt *o = &s->opt;
    int n = s->n_seen;

    if (o->typical < 1 || n > max) return -1;
    for (int i = 0; i < n; i++)
        a[i] = (struct logit_adjust){ s->seen[i].id, 0, repeat_factor(s, &s->seen[i]),
                                      count_penalty(s, &s->seen[i]) };
    for (int i = 0; i < o->n_bias; i++) {
        if (s->slot && s->slot[o->bias[i].id]) {
            a[s->slot[o->bias[i].id] - 1].add = o->bias[i].bias;
            continue;
        }
        if (n == max) return -1;
        a[n++] = (struct logit_adjust){ o->bias[i].id, o->bias[i].bias, 1, 0 };
    }
    for (int i = 0; i < n_bans; i++)
        if (bans[i] < s->n_vocab && (n = add_ban(a, n, max, bans[i])) < 0) return -1;
    *p = (struct sample_row){
        .top_k = o->top_k, .temp = o->temp, .top_p = o->top_p, .min_p = o->min_p, .n_adjust = n
    };
    if (o->temp != 0) p->u = rng_unit(&s->rng);
    return n;
}

void sampler_replay(struct sampler *s, int32_t id)
{
    if (s->opt.temp != 0) rng_unit(&s->rng);
    sampler_accept(s, id);
}

int sampler_accept_device(struct sampler *s, int32_t id, struct err *e)
{
    if (id < 0 || id >= s->n_vocab) return fail_no_number(NULL, 0, e);
    sampler_accept(s, id);
    return OK;
}

/* Finds the block of the maximum first, then the first index in it. */
int32_t sample_greedy(const float *logits, int n)
{
    float max = -INFINITY, m;
    int at = -1, end;

    for (int i = 0; i < n; i += FILTER_BLOCK) {
        int len = n - i < FILTER_BLOCK ? n - i : FILTER_BLOCK;
        filter_max(logits + i, len, &m);
        if (m > max) max = m, at = i;
    }
    if (at < 0) { /* only -Inf and NaN */
        for (int i = 0; i < n; i++)
            if (logits[i] == -INFINITY) return i;
        return -1;
    }
    end = at + FILTER_BLOCK < n ? at + FILTER_BLOCK : n;
    for (int i = at; i < end; i++)
        if (logits[i] == max) return i;
    return -1;
}
