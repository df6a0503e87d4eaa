/* matcher.c - caches and matchers as others see them. The work is in matcher_config.c (positions),
 * matcher_mask.c and matcher_count.c (masks). */
#include "grammar/matcher_impl.h"

#include "base/mem.h"

enum { DEFAULT_LIMIT = 96 << 20 };

_Static_assert((int)MATCHER_FAR == (int)PDA_FAR, "matcher.h repeats the constant of pda.h");

/* ---- the cache ---- */

int matcher_cache_open(struct matcher_cache **out, const struct pda *pda,
                       const struct vocabtrie *vocab, struct err *e)
{
    struct matcher_cache *c = mem_new(struct matcher_cache);

    if (!c) return err_nomem(e, "the state of a grammar");
    c->pda = pda;
    c->vocab = vocab;
    c->limit_bytes = DEFAULT_LIMIT;
    c->n_words = (vocab->n_ids + 63) / 64;
    for (int b = 255; b >= 0; b--) c->byte_of[pda->class_of[b]] = (uint8_t)b;
    if (!config_reset(c)) {
        matcher_cache_close(c);
        return err_nomem(e, "the state of a grammar");
    }
    *out = c;
    return OK;
}

void matcher_cache_close(struct matcher_cache *c)
{
    if (!c) return;
    masks_evict(c);
    config_release(c);
    mem_free(c);
}

/* What grows with use. Capacity that was allocated ahead is not counted. */
size_t matcher_cache_bytes(const struct matcher_cache *c)
{
    return config_bytes(c) + masks_bytes(c);
}

void matcher_cache_limit(struct matcher_cache *c, size_t bytes) { c->limit_bytes = bytes; }

/* Called where no position is in use but those of the matchers. */
static void evict_above_limit(struct matcher_cache *c)
{
    if (matcher_cache_bytes(c) > c->limit_bytes) config_evict(c);
}

/* ---- one text ---- */

int matcher_begin(struct matcher *x, struct matcher_cache *c, bool at_start, struct err *e)
{
    int32_t config;

    *x = (struct matcher){ 0 };
    evict_above_limit(c);
    c->failed = false;
    config = config_of_start(c);
    if (c->failed) return err_nomem(e, "the state of a grammar");
    if (config == CONFIG_FULL)
        return err_set(e, E_INVALID,
                       "the grammar is too ambiguous: a text can begin in more than %d ways",
                       MATCHER_MAX_STACKS);
    *x = (struct matcher){ .cache = c,
                           .next = c->matchers,
                           .config = config,
                           .at_start = at_start && c->vocab->strips_first };
    if (c->matchers) c->matchers->prev = x;
    c->matchers = x;
    return OK;
}

void matcher_end(struct matcher *x)
{
    if (!x->cache) return;
    if (x->prev) x->prev->next = x->next;
    else x->cache->matchers = x->next;
    if (x->next) x->next->prev = x->prev;
    *x = (struct matcher){ 0 };
}

bool matcher_may_end(const struct matcher *x) { return x->cache->configs[x->config].ends; }

bool matcher_is_complete(const struct matcher *x)
{
    const struct config *k = &x->cache->configs[x->config];
    return k->ends && k->n == 0;
}

int matcher_min_bytes(const struct matcher *x) { return x->cache->configs[x->config].min_bytes; }

/* The configuration after the bytes. Clears and sets cache->failed. */
static int32_t config_after(struct matcher *x, struct str bytes)
{
    int32_t at = x->config;

    x->cache->failed = false;
    for (size_t i = 0; i < bytes.n && !config_is_stuck(at); i++)
        at = config_next(x->cache, at, (uint8_t)bytes.p[i]);
    return at;
}

/* The bytes of a token at the current position; empty: there is no such token, or it has none. */
static struct str get_token_bytes(const struct matcher *x, int32_t id)
{
    const struct vocabtrie *v = x->cache->vocab;
    struct str s = id >= 0 && id < v->n_ids ? vocabtrie_bytes(v, id) : STR("");

    return x->at_start && s.n && s.p[0] == ' ' ? str_skip(s, 1) : s;
}

/* An empty text is refused: a token that writes nothing would never end. */
int matcher_accept_bytes(struct matcher *x, struct str bytes)
{
    int32_t to = bytes.n ? config_after(x, bytes) : CONFIG_DEAD;

    if (bytes.n && x->cache->failed) return E_NOMEM;
    if (config_is_stuck(to)) return to == CONFIG_FULL ? E_UNSUPPORTED : E_INVALID;
    x->config = to;
    x->at_start = false;
    evict_above_limit(x->cache);
    return OK;
}

int matcher_accept(struct matcher *x, int32_t id)
{
    return matcher_accept_bytes(x, get_token_bytes(x, id));
}

int matcher_min_bytes_after(struct matcher *x, int32_t id)
{
    struct str bytes = get_token_bytes(x, id);
    int32_t to = bytes.n ? config_after(x, bytes) : CONFIG_DEAD;

    if (bytes.n && x->cache->failed) return E_NOMEM;
    if (to == CONFIG_FULL) return E_UNSUPPORTED;
    return to == CONFIG_DEAD ? MATCHER_FAR : x->cache->configs[to].min_bytes;
}
