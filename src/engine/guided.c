/* guided.c - two caches: compiled grammars by their text, and matcher caches by grammar.
 *
 * The first is shared by all threads and small; the second belongs to the engine thread and can
 * grow to megabytes per grammar, so entries without a sequence are closed beyond a limit. */
#include "engine/guided.h"

#include "base/mem.h"
#include "grammar/vocabtrie.h"

#include <string.h>

enum {
    CACHED_TEXT = 256 << 10, /* longer grammars are not cached */
    IDLE_CACHES = 16,        /* caches without a sequence that stay, */
    IDLE_BYTES = 64 << 20    /* and their bytes */
};

int guided_init(struct guided *d, const struct tokenizer *tok, const struct ends *ends,
                int n_sample, struct err *e)
{
    *d = (struct guided){ .tok = tok, .ends = ends, .n_sample = n_sample };
    if (pthread_mutex_init(&d->lock, NULL) != 0) return err_nomem(e, "the lock of the grammars");
    if (pthread_mutex_init(&d->vocab_lock, NULL) != 0) {
        pthread_mutex_destroy(&d->lock);
        return err_nomem(e, "the lock of the vocabulary");
    }
    d->has_locks = true;
    return OK;
}

static void release_cached(struct cached_grammar *k)
{
    mem_free((void *)k->spec.text.p);
    grammar_unref(k->g);
    *k = (struct cached_grammar){ 0 };
}

/* The last entry fills the gap: the order of entries means nothing. */
static void close_use(struct guided *d, int i)
{
    matcher_cache_close(d->uses[i].cache);
    grammar_unref(d->uses[i].g);
    d->uses[i] = d->uses[--d->n_uses];
}

void guided_release(struct guided *d)
{
    for (int i = 0; i < GUIDED_CACHED; i++) release_cached(&d->cache[i]);
    while (d->n_uses > 0) close_use(d, d->n_uses - 1);
    if (d->has_locks) {
        pthread_mutex_destroy(&d->lock);
        pthread_mutex_destroy(&d->vocab_lock);
    }
    vocabtrie_close(d->vocab);
    mem_free(d->uses);
    mem_free(d->logits);
    *d = (struct guided){ 0 };
}

/* ---- compiling ---- */

/* Sorting a vocabulary of 150,000 tokens takes a tenth of a second: the warm-up does it. */
int guided_warm(struct guided *d, struct err *e)
{
    int rc = OK;

    if (!d->tok) return OK;
    pthread_mutex_lock(&d->vocab_lock);
    if (!d->vocab) rc = vocabtrie_open(&d->vocab, d->tok, d->n_sample, d->ends->ids, d->ends->n, e);
    pthread_mutex_unlock(&d->vocab_lock);
    return rc;
}

/* A hit counts as use. The reference is taken under the lock: the entry may be replaced after. */
struct grammar *guided_find(struct guided *d, const struct grammar_spec *spec)
{
    struct grammar *g = NULL;

    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < GUIDED_CACHED && !g; i++) {
        struct cached_grammar *k = &d->cache[i];
        if (!k->g || !grammar_spec_equal(&k->spec, spec)) continue;
        k->used = ++d->tick;
        g = grammar_ref(k->g);
    }
    pthread_mutex_unlock(&d->lock);
    return g;
}

/* Replaces the least recently used entry. Without memory for the text it is not cached. */
static void add_cached(struct guided *d, const struct grammar_spec *spec, struct grammar *g)
{
    struct cached_grammar *k = NULL, old, new = { .spec = *spec };
    char *text;

    if (spec->text.n > CACHED_TEXT || !(text = mem_dup(spec->text.p, spec->text.n))) return;
    new.spec.text = str_of(text, spec->text.n);
    new.g = grammar_ref(g);
    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < GUIDED_CACHED; i++)
        if (!k || d->cache[i].used < k->used) k = &d->cache[i];
    old = *k;
    new.used = ++d->tick;
    *k = new;
    pthread_mutex_unlock(&d->lock);
    release_cached(&old);
}

/* Two threads may compile the same text at once; both results are right, one stays cached. */
int guided_compile(struct guided *d, const struct grammar_spec *spec, struct grammar **out,
                   struct err *e)
{
    struct grammar_env env = { .tok = d->tok, .ends = d->ends->ids, .n_ends = d->ends->n };
    int rc;

    if (!d->tok)
        return err_set(e, E_INVALID,
                       "the model has no tokenizer, so its text cannot follow a grammar");
    if ((rc = guided_warm(d, e)) != OK) return rc;
    if ((*out = guided_find(d, spec))) return OK;
    if ((rc = grammar_compile(out, spec, &env, e)) == OK) add_cached(d, spec, *out);
    return rc;
}

/* ---- matcher caches ---- */

/* Closes caches without a sequence, least recently used first, while there are many or they are
 * large. */
static void close_idle_caches(struct guided *d)
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
        if (oldest < 0 || (idle <= IDLE_CACHES && bytes <= IDLE_BYTES)) return;
        close_use(d, oldest);
    }
}

/* The matcher cache of a grammar. NULL: e has the error. */
static struct matcher_use *find_or_add_use(struct guided *d, struct grammar *g, struct err *e)
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

    if (!d->logits && !(d->logits = mem_array((size_t)d->n_sample, sizeof *d->logits)))
        return err_nomem(e, "the masked logits");
    if (!(u = find_or_add_use(d, g, e))) return E_NOMEM;
    if ((rc = matcher_begin(x, u->cache, at_start, e)) != OK) return rc;
    u->n++;
    u->used = ++d->n_begun;
    return OK;
}

/* The cache of the grammar stays for the next request with the same one. */
void guided_end(struct guided *d, struct matcher *x)
{
    for (int i = 0; i < d->n_uses && x->cache; i++)
        if (d->uses[i].cache == x->cache) {
            d->uses[i].n--;
            matcher_end(x);
        }
    close_idle_caches(d);
}
