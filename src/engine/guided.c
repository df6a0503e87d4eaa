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
    guide_close(d->uses[i].guide);
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
    lexicon_close(d->lexicon);
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
    if (!d->lexicon) rc = lexicon_open(&d->lexicon, d->tok, d->n_pick, d->ends->ids, d->ends->n, e);
    pthread_mutex_unlock(&d->warming);
    return rc;
}

static bool same_text(const char *a, const char *b) { return a == b || (a && b && !strcmp(a, b)); }

static bool same(const struct grammar_spec *a, const struct grammar_spec *b)
{
    return a->kind == b->kind && a->thinking == b->thinking && same_text(a->think, b->think) &&
           same_text(a->think_end, b->think_end) && same_text(a->think_after, b->think_after) &&
           same_text(a->lead, b->lead) && str_eq(a->text, b->text);
}

struct grammar *guided_kept(struct guided *d, const struct grammar_spec *spec)
{
    struct grammar *g = NULL;

    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < GUIDED_KEPT && !g; i++) {
        struct kept *k = &d->kept[i];
        if (!k->g || !same(&k->spec, spec)) continue;
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
    struct grammar_spec mine = *spec;
    int rc;

    if (!d->tok)
        return err_set(e, E_INVALID,
                       "the model has no tokenizer: its text cannot be held to a grammar");
    if ((rc = guided_warm(d, e)) != OK) return rc;
    if ((*out = guided_kept(d, spec))) return OK;
    mine.ends = d->ends->ids;
    mine.n_ends = d->ends->n;
    if ((rc = grammar_compile(out, &mine, d->tok, e)) == OK) keep(d, spec, *out);
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
            bytes += guide_bytes(d->uses[i].guide);
            if (oldest < 0 || d->uses[i].used < d->uses[oldest].used) oldest = i;
        }
        if (oldest < 0 || (idle <= IDLE_GUIDES && bytes <= IDLE_BYTES)) return;
        close_use(d, oldest);
    }
}

static struct guide_use *use_of(struct guided *d, struct grammar *g)
{
    for (int i = 0; i < d->n_uses; i++)
        if (d->uses[i].g == g) return &d->uses[i];
    if (d->n_uses == d->cap_uses) {
        d->cap_uses = d->cap_uses ? 2 * d->cap_uses : 16;
        d->uses = mem_grow(d->uses, (size_t)d->cap_uses * sizeof *d->uses);
    }
    d->uses[d->n_uses] =
        (struct guide_use){ .g = grammar_ref(g), .guide = guide_open(grammar_auto(g), d->lexicon) };
    return &d->uses[d->n_uses++];
}

int guided_begin(struct guided *d, struct match *x, struct grammar *g, bool at_start, struct err *e)
{
    struct guide_use *u;

    if (!d->logits && !(d->logits = mem_array((size_t)d->n_pick, sizeof *d->logits)))
        return err_set(e, E_NOMEM, "no memory for the logits of %d tokens", d->n_pick);
    u = use_of(d, g);
    u->n++;
    u->used = ++d->n_begun;
    match_begin(x, u->guide, at_start);
    return OK;
}

void guided_end(struct guided *d, struct match *x)
{
    for (int i = 0; i < d->n_uses && x->m; i++)
        if (d->uses[i].guide == x->m) {
            d->uses[i].n--;
            match_end(x);
        }
    tidy(d);
}
