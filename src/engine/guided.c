/* guided.c - two caches: compiled grammars by their text, and matcher caches by grammar.
 *
 * The first is shared by all threads; the second belongs to the engine thread and can grow to
 * megabytes per grammar, so entries without a sequence are closed beyond a limit, and those with one
 * share a number of bytes. Grammars that requests hold are counted in the whole process
 * (grammar_live_bytes): beyond a limit no further one is compiled. */
#include "engine/guided.h"

#include "base/mem.h"
#include "engine/stats.h"
#include "grammar/vocabtrie.h"

#include <string.h>

enum {
    CACHED_TEXT = 256 << 10,   /* longer grammars are not cached */
    CACHED_BYTES = 64 << 20,   /* of cached grammars and their texts */
    LIVE_BYTES = 512 << 20,    /* of all compiled grammars, cached or not */
    MATCHER_BYTES = 384 << 20, /* of matcher caches with a sequence, */
    MATCHER_LEAST = 4 << 20,   /* each of which gets at least this, */
    MATCHER_MOST = 96 << 20,   /* and at most this */
    IDLE_CACHES = 16,          /* caches without a sequence that stay, */
    IDLE_BYTES = 64 << 20      /* and their bytes */
};

int guided_init(struct guided *d, const struct tokenizer *tok, const struct ends *ends,
                int n_sample, struct engine_stats *stats, struct err *e)
{
    *d = (struct guided){ .tok = tok,
                          .ends = ends,
                          .n_sample = n_sample,
                          .stats = stats,
                          .max_cached_bytes = CACHED_BYTES };
    if (pthread_mutex_init(&d->lock, NULL) != 0) return err_nomem(e, "the lock of the grammars");
    if (pthread_mutex_init(&d->vocab_lock, NULL) != 0) {
        pthread_mutex_destroy(&d->lock);
        return err_nomem(e, "the lock of the vocabulary");
    }
    d->has_locks = true;
    return OK;
}

static size_t cached_bytes(const struct cached_grammar *k)
{
    return k->g ? k->spec.text.n + grammar_bytes(k->g) : 0;
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
    if (d->stats) gauge_set(&d->stats->grammar_bytes, 0), gauge_set(&d->stats->matcher_bytes, 0);
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

/* With the lock held. false: the cache is empty. */
static bool evict_oldest(struct guided *d)
{
    struct cached_grammar *k = NULL;

    for (int i = 0; i < GUIDED_CACHED; i++)
        if (d->cache[i].g && (!k || d->cache[i].used < k->used)) k = &d->cache[i];
    if (!k) return false;
    d->cached_bytes -= cached_bytes(k);
    release_cached(k);
    return true;
}

/* An empty entry, and room for so many bytes. With the lock held. */
static struct cached_grammar *make_room(struct guided *d, size_t bytes)
{
    while (d->cached_bytes + bytes > d->max_cached_bytes && evict_oldest(d)) {}
    for (;;) {
        for (int i = 0; i < GUIDED_CACHED; i++)
            if (!d->cache[i].g) return &d->cache[i];
        evict_oldest(d);
    }
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
    struct cached_grammar new = { .spec = *spec };
    char *text;

    if (spec->text.n > CACHED_TEXT || !(text = mem_dup(spec->text.p, spec->text.n))) return;
    new.spec.text = str_of(text, spec->text.n);
    new.g = grammar_ref(g);
    pthread_mutex_lock(&d->lock);
    new.used = ++d->tick;
    *make_room(d, cached_bytes(&new)) = new;
    d->cached_bytes += cached_bytes(&new);
    gauge_set(&d->stats->grammar_bytes, (int64_t)d->cached_bytes);
    pthread_mutex_unlock(&d->lock);
}

/* Requests that wait or run hold their grammars, whatever the cache does. */
static int check_live_bytes(struct guided *d, struct err *e)
{
    if (grammar_live_bytes() <= LIVE_BYTES) return OK;
    pthread_mutex_lock(&d->lock);
    while (evict_oldest(d)) {}
    pthread_mutex_unlock(&d->lock);
    if (grammar_live_bytes() <= LIVE_BYTES) return OK;
    return err_set(e, E_MEMORY, "the grammars of requests hold %zu MiB of memory; the limit is %d",
                   grammar_live_bytes() >> 20, LIVE_BYTES >> 20);
}

/* Two threads may compile the same text at once; both results are right, one stays cached. */
int guided_compile(struct guided *d, const struct grammar_spec *spec, struct budget *b,
                   struct grammar **out, struct err *e)
{
    struct grammar_env env = {
        .tok = d->tok, .ends = d->ends->ids, .n_ends = d->ends->n, .budget = b
    };
    int rc;

    if (!d->tok)
        return err_set(e, E_INVALID,
                       "the model has no tokenizer, so its text cannot follow a grammar");
    if ((rc = guided_warm(d, e)) != OK) return rc;
    if ((*out = guided_find(d, spec))) return OK;
    if ((rc = check_live_bytes(d, e)) != OK) return rc;
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

/* Caches with a sequence share their bytes evenly; a cache that has more than its share drops what
 * no sequence needs at the next token. */
static void share_bytes(struct guided *d)
{
    size_t share, bytes = 0;
    int n = 0;

    for (int i = 0; i < d->n_uses; i++) n += d->uses[i].n > 0;
    share = MATCHER_BYTES / (size_t)(n ? n : 1);
    if (share < MATCHER_LEAST) share = MATCHER_LEAST;
    if (share > MATCHER_MOST) share = MATCHER_MOST;
    for (int i = 0; i < d->n_uses; i++) {
        matcher_cache_limit(d->uses[i].cache, share);
        bytes += matcher_cache_bytes(d->uses[i].cache);
    }
    gauge_set(&d->stats->matcher_bytes, (int64_t)bytes);
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
    share_bytes(d);
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
    share_bytes(d);
}
