#include "engine/guided.h"

#include "base/mem.h"

enum {
    KEPT_TEXT = 256 << 10, /* longer grammars are not kept */
    IDLE_GUIDES = 16,
    IDLE_BYTES = 64 << 20
};

void guided_init(struct guided *d, const struct tokenizer *tok, const struct ends *ends, int n_pick)
{
    *d = (struct guided){ .tok = tok, .ends = ends, .n_pick = n_pick };
    pthread_mutex_init(&d->lock, NULL);
    pthread_mutex_init(&d->warming, NULL);
}

static void forget_kept(struct kept *k)
{
    mem_free((void *)k->spec.text.p);
    grammar_unref(k->g);
    *k = (struct kept){ 0 };
}

static void close_use(struct guided *d, int i)
{
    matcher_cache_close(d->uses[i].cache);
    grammar_unref(d->uses[i].g);
    d->uses[i] = d->uses[--d->n_uses];
}

void guided_release(struct guided *d)
{
    for (int i = 0; i < GUIDED_KEPT; i++) forget_kept(&d->kept[i]);
    while (d->n_uses > 0) close_use(d, d->n_uses - 1);
    if (d->ends) {
        pthread_mutex_destroy(&d->lock);
        pthread_mutex_destroy(&d->warming);
    }
    vocabtrie_close(d->vocab);
    mem_free(d->uses);
    mem_free(d->logits);
    *d = (struct guided){ 0 };
}

/* ---- compiling ---- */

int guided_warm(struct guided *d, struct err *e)
{
    int rc = OK;

    if (!d->tok) return OK;
    pthread_mutex_lock(&d->warming);
    if (!d->vocab) rc = vocabtrie_open(&d->vocab, d->tok, d->n_pick, d->ends->ids, d->ends->n, e);
    pthread_mutex_unlock(&d->warming);
    return rc;
}

struct grammar *guided_kept(struct guided *d, const struct grammar_spec *spec)
{
    struct grammar *g = NULL;

    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < GUIDED_KEPT && !g; i++) {
        struct kept *k = &d->kept[i];
        if (!k->g || !grammar_spec_equal(&k->spec, spec)) continue;
        k->used = ++d->tick;
        g = grammar_ref(k->g);
    }
    pthread_mutex_unlock(&d->lock);
    return g;
}

static void keep(struct guided *d, const struct grammar_spec *spec, struct grammar *g)
{
    struct kept *k = NULL, old, new = { .spec = *spec, .g = grammar_ref(g) };

    if (spec->text.n > KEPT_TEXT) {
        grammar_unref(g);
        return;
    }
    new.spec.text = str_of(spec->text.n ? mem_dup(spec->text.p, spec->text.n) : NULL, spec->text.n);
    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < GUIDED_KEPT; i++)
        if (!k || d->kept[i].used < k->used) k = &d->kept[i];
    old = *k;
    new.used = ++d->tick;
    *k = new;
    pthread_mutex_unlock(&d->lock);
    forget_kept(&old);
}

int guided_compile(struct guided *d, const struct grammar_spec *spec, struct grammar **out,
                   struct err *e)
{
    struct grammar_env env = { .tok = d->tok, .ends = d->ends->ids, .n_ends = d->ends->n };
    int rc;

    if (!d->tok)
        return err_set(e, E_INVALID,
                       "the model has no tokenizer: its text cannot be held to a grammar");
    if ((rc = guided_warm(d, e)) != OK) return rc;
    if ((*out = guided_kept(d, spec))) return OK;
    if ((rc = grammar_compile(out, spec, &env, e)) == OK) keep(d, spec, *out);
    return rc;
}

/* ---- guides ---- */

/* Those that nobody uses go, the oldest first, when there are many or they are large. */
static void tidy(struct guided *d)
{
    for (;;) {
        size_t bytes = 0;
        int idle = 0, oldest = -1;
        for (int i = 0; i < d->n_uses; i++) {
            if (d->uses[i].n) continue;
            idle++;
            bytes += matcher_cache_bytes(d->uses[i].cache);
            if (oldest < 0 || d->uses[i].used < d->uses[oldest].used) oldest = i;
        }
        if (oldest < 0 || (idle <= IDLE_GUIDES && bytes <= IDLE_BYTES)) return;
        close_use(d, oldest);
    }
}

/* The matcher cache of a grammar, opened if it is new. NULL: e has the error. */
static struct matcher_use *use_of(struct guided *d, struct grammar *g, struct err *e)
{
    struct matcher_cache *cache;

    for (int i = 0; i < d->n_uses; i++)
        if (d->uses[i].g == g) return &d->uses[i];
    if (!mem_ensure(d->uses, d->cap_uses, d->n_uses + 1)) {
        err_nomem(e, "the state of a grammar");
        return NULL;
    }
    if (matcher_cache_open(&cache, grammar_pda(g), d->vocab, e) != OK) return NULL;
    d->uses[d->n_uses] = (struct matcher_use){ .g = grammar_ref(g), .cache = cache };
    return &d->uses[d->n_uses++];
}

int guided_begin(struct guided *d, struct matcher *x, struct grammar *g, bool at_start,
                 struct err *e)
{
    struct matcher_use *u;
    int rc;

    if (!d->logits && !(d->logits = mem_array((size_t)d->n_pick, sizeof *d->logits)))
        return err_nomem(e, "the masked logits");
    if (!(u = use_of(d, g, e))) return E_NOMEM;
    if ((rc = matcher_begin(x, u->cache, at_start, e)) != OK) return rc;
    u->n++;
    u->used = ++d->n_begun;
    return OK;
}

void guided_end(struct guided *d, struct matcher *x)
{
    for (int i = 0; i < d->n_uses && x->cache; i++)
        if (d->uses[i].cache == x->cache) {
            d->uses[i].n--;
            matcher_end(x);
        }
    tidy(d);
}
