/* tokenizer_encode.c - from text to ids: the chain of modules, and the cache of words.
 *
 * The text goes through added tokens in the raw text, the normalizer, added tokens in the
 * normalized text, the pre-tokenizer, and word by word through the model.
 *
 * All working memory is in a struct encode_scratch. A tokenizer keeps up to N_SCRATCH of them for
 * the next texts; a thread takes one for a call and puts it back, so an encoding thread allocates
 * nothing once its buffers have grown. Taking and putting back are atomic exchanges, without a
 * lock.
 *
 * Most words of a text were met before: each scratch has a direct-mapped cache from short words to
 * their ids, 2 MiB large. A hit costs one hash and one compare of 32 bytes, and no merging. */
#include "token/tokenizer.h"

#include "base/mem.h"
#include "token/chars.h"
#include "token/tokenizer_impl.h"

enum {
    MAX_TEXT_BYTES = 1 << 29,
    KEEP_BYTES = 16 << 20, /* a scratch with a larger text buffer is freed, not kept */
    WORD_BYTES = 32,       /* longer words are not cached */
    WORD_IDS = 7,          /* nor words of more ids */
    WORD_SLOTS = 1 << 15,
    READ_AHEAD = 64 /* bytes that can be read past the end of every text in a scratch */
};

/* An entry of the word cache; 64 bytes, one cache line. */
struct word {
    uint64_t key[WORD_BYTES / 8]; /* the bytes of the word, then zeros */
    int32_t ids[WORD_IDS];
    uint8_t n, n_ids; /* bytes of the word, 0: free entry; ids of it */
    uint16_t raw;     /* the word is byte-level text that is not mapped yet */
};

struct encode_scratch {
    struct buf text;              /* the text as it came, made valid UTF-8 */
    struct buf normal[2];         /* for the normalizer */
    struct pretok_scratch pretok; /* its matcher is the normalizer's, too */
    struct model_scratch model;
    struct word *words; /* [WORD_SLOTS] */
};

/* ---- scratch memory ---- */

static void close_scratch(struct encode_scratch *w)
{
    if (!w) return;
    buf_release(&w->text);
    for (int i = 0; i < 2; i++) buf_release(&w->normal[i]);
    pretok_scratch_release(&w->pretok);
    matcher_close(w->pretok.matcher);
    model_scratch_release(&w->model);
    mem_free(w->words);
    mem_free(w);
}

static struct encode_scratch *open_scratch(void)
{
    struct encode_scratch *w = mem_new(struct encode_scratch);

    if (!w) return NULL;
    w->pretok.matcher = matcher_open();
    w->words = mem_array(WORD_SLOTS, sizeof *w->words);
    if (w->pretok.matcher && w->words) return w;
    close_scratch(w);
    return NULL;
}

/* A waiting scratch or a new one; NULL: no memory. */
static struct encode_scratch *take_scratch(const struct tokenizer *t)
{
    _Atomic(struct encode_scratch *) *idle = ((struct tokenizer *)t)->idle;

    for (int i = 0; i < N_SCRATCH; i++) {
        struct encode_scratch *w = atomic_exchange(&idle[i], NULL);
        if (w) return w;
    }
    return open_scratch();
}

static void return_scratch(const struct tokenizer *t, struct encode_scratch *w)
{
    _Atomic(struct encode_scratch *) *idle = ((struct tokenizer *)t)->idle;

    for (int i = 0; i < N_SCRATCH && w->text.cap <= KEEP_BYTES; i++) {
        struct encode_scratch *none = NULL;
        if (atomic_compare_exchange_strong(&idle[i], &none, w)) return;
    }
    close_scratch(w);
}

void tokenizer_release_scratch(struct tokenizer *t)
{
    for (int i = 0; i < N_SCRATCH; i++) close_scratch(atomic_load(&t->idle[i]));
}

/* ---- added tokens ---- */

int tokenizer_index_added(struct tokenizer *t, int i, struct err *e)
{
    struct str content = t->added[i].content;
    struct encode_scratch *w;
    int rc;

    if (!t->added[i].normalized)
        return added_add(&t->in_raw, content, i) ? OK : err_nomem(e, "the added tokens");
    if (!(w = take_scratch(t))) return err_nomem(e, "the scratch memory of a tokenizer");
    rc = normalizer_apply(&t->normalizer, w->pretok.matcher, content, w->normal, &content, e);
    if (rc == OK && !added_add(&t->in_normal, content, i)) rc = err_nomem(e, "the added tokens");
    return_scratch(t, w);
    return rc;
}

/* ---- words ---- */

struct encoding {
    const struct tokenizer *t;
    struct encode_scratch *w;
    struct ids *out;
    bool plain; /* ENCODE_PLAIN */
    struct err *e;
};

static int encode_wordlevel(struct encoding *x, struct str word)
{
    int32_t id = vocab_find(&x->t->vocab, word);

    if (id < 0) id = x->t->wordpiece.unk;
    if (id < 0)
        return err_set(x->e, E_FORMAT,
                       "'%.*s' is not in the vocabulary, which has no unknown token",
                       STR_ARG(str_take(word, 60)));
    ids_push(x->out, id);
    return OK;
}

static int encode_unigram(struct encoding *x, struct str word, bool *done)
{
    bool unknown;

    *done = spm_encode_unigram(&x->t->spm, &x->w->model, word, x->out, &unknown);
    if (!unknown) return OK;
    return err_set(x->e, E_FORMAT,
                   "the text has a character without a piece, and the model has no unknown token");
}

/* Encodes a word with the model. raw: byte-level text that is not mapped yet. */
static int encode_uncached(struct encoding *x, struct str word, bool raw)
{
    const struct tokenizer *t = x->t;
    struct model_scratch *w = &x->w->model;
    bool done = true;
    int rc = OK;

    switch (t->model) {
    case MODEL_BPE: done = bpe_encode(&t->bpe, w, word, raw, x->out); break;
    case MODEL_SPM: done = spm_encode_bpe(&t->spm, w, word, x->out); break;
    case MODEL_UNIGRAM: rc = encode_unigram(x, word, &done); break;
    case MODEL_WORDPIECE: done = wordpiece_encode(&t->wordpiece, w, word, x->out); break;
    case MODEL_WORDLEVEL: rc = encode_wordlevel(x, word); break;
    }
    return !done || x->out->failed ? err_nomem(x->e, "the tokens of a text") : rc;
}

/* The key of a word in the cache: its bytes, then zeros. Reads up to READ_AHEAD bytes past the end
 * of the word. */
static inline void make_word_key(const char *p, size_t n, uint64_t key[4])
{
    memcpy(key, p, WORD_BYTES);
    for (size_t i = 0; i < 4; i++) {
        size_t have = n > 8 * i ? n - 8 * i : 0;
        if (have < 8) key[i] &= (1ull << 8 * have) - 1;
    }
}

static inline uint32_t hash_word(const uint64_t key[4], size_t n)
{
    uint64_t h = (key[0] + n) * 0x9e3779b97f4a7c15u;

    h = (h ^ h >> 32 ^ key[1]) * 0xff51afd7ed558ccdu;
    if (n > 16) h = (h ^ h >> 32 ^ key[2] ^ key[3] * 3) * 0xc4ceb9fe1a85ec53u;
    return (uint32_t)(h >> 40) & (WORD_SLOTS - 1);
}

/* Encodes a word by the cache, or by the model and remembers the result. */
static inline int encode_word(struct encoding *x, struct str word, bool raw)
{
    uint64_t key[4];
    struct word *c;
    size_t before = x->out->n;
    int rc;

    if (word.n > WORD_BYTES) return encode_uncached(x, word, raw);
    make_word_key(word.p, word.n, key);
    c = &x->w->words[hash_word(key, word.n)];
    if (c->n == word.n && c->raw == raw && memcmp(c->key, key, WORD_BYTES) == 0) {
        if (x->out->cap - before < WORD_IDS && !ids_reserve(x->out, WORD_IDS))
            return err_nomem(x->e, "the tokens of a text");
        memcpy(x->out->p + before, c->ids, sizeof c->ids); /* all 7: a fixed size is faster */
        x->out->n += c->n_ids;
        return OK;
    }
    rc = encode_uncached(x, word, raw);
    size_t n = x->out->n - before;
    if (rc != OK || n > WORD_IDS) return rc;
    memcpy(c->key, key, WORD_BYTES);
    memcpy(c->ids, x->out->p + before, n * sizeof *c->ids);
    c->n = (uint8_t)word.n, c->n_ids = (uint8_t)n, c->raw = raw;
    return OK;
}

/* ---- texts ---- */

/* Encodes a span that may be a whole text, for models without a pre-tokenizer: it is cut into words
 * where no merge can reach across. */
static int encode_span(struct encoding *x, struct str text)
{
    bool cuts = x->t->model == MODEL_BPE || x->t->model == MODEL_SPM;
    int rc = OK;

    while (text.n && rc == OK) {
        size_t n = cuts ? bpe_find_cut(&x->t->bpe, text) : text.n;
        rc = encode_word(x, str_take(text, n), false);
        text = str_skip(text, n);
    }
    return rc;
}

/* Splits normalized text and encodes the words. */
static int encode_split(struct encoding *x, struct str text, bool at_start)
{
    struct pretok_result r;
    int rc;

    if (text.n > UINT32_MAX / 2)
        return err_set(x->e, E_INVALID, "the text is too long to tokenize at once");
    rc = pretok_apply(&x->t->pretok, &x->w->pretok, text, at_start, &r, x->e);
    if (rc != OK) return rc;
    ids_reserve(x->out, r.n + r.n / 4 + 8);
    for (size_t i = 0; i < r.n && rc == OK; i++) {
        struct str word = str_of(r.text.p + r.spans[i].at, r.spans[i].n);
        rc = r.raw_bytes ? encode_word(x, word, true) : encode_span(x, word);
    }
    return rc;
}

typedef int part_fn(struct encoding *x, struct str text, bool at_start);

/* Appends the added tokens in text; the text between them is encoded by fn. */
static int encode_between(struct encoding *x, const struct added *a, struct str text, bool at_start,
                          part_fn *fn)
{
    struct added_walk walk = { .a = a, .text = text, .plain = x->plain };
    const struct added_token *found;
    size_t before, start, from;
    int rc = OK;

    while (rc == OK && (found = added_next(&walk, &before, &start))) {
        if (before < start)
            rc = fn(x, str_of(text.p + before, start - before), at_start && before == 0);
        ids_push(x->out, found->id);
    }
    from = walk.done;
    if (rc == OK && from < text.n) rc = fn(x, str_skip(text, from), at_start && from == 0);
    return rc;
}

static int encode_normalized(struct encoding *x, struct str text, bool at_start)
{
    int rc =
        normalizer_apply(&x->t->normalizer, x->w->pretok.matcher, text, x->w->normal, &text, x->e);
    return rc == OK ? encode_between(x, &x->t->in_normal, text, at_start, encode_split) : rc;
}

/* Appends the ids of the text without what the post-processor adds. */
static int encode_text(const struct tokenizer *t, struct str text, bool plain, struct ids *out,
                       struct err *e)
{
    struct encoding x = { .t = t, .out = out, .plain = plain, .e = e };
    int rc;

    if (text.n > MAX_TEXT_BYTES)
        return err_set(e, E_INVALID, "the text has %zu bytes; at most %d can be tokenized at once",
                       text.n, MAX_TEXT_BYTES);
    if (!(x.w = take_scratch(t))) return err_nomem(e, "the scratch memory of a tokenizer");
    x.w->model.failed = false;
    buf_clear(&x.w->text);
    text_put_valid(&x.w->text, text);
    buf_reserve(&x.w->text, READ_AHEAD);
    rc = buf_check(&x.w->text, e);
    if (rc == OK) rc = encode_between(&x, &t->in_raw, buf_str(&x.w->text), true, encode_normalized);
    return_scratch(t, x.w);
    return rc;
}

/* After the last id: reports a failed allocation of out, and takes back what a failed call added. */
static int finish_ids(struct ids *out, size_t before, bool failed_before, int rc, struct err *e)
{
    if (rc == OK) rc = ids_check(out, e);
    if (rc != OK) out->n = before, out->failed = failed_before;
    return rc;
}

int tokenizer_encode(const struct tokenizer *t, struct str text, unsigned flags, struct ids *out,
                     struct err *e)
{
    bool special = flags & ENCODE_SPECIAL, failed = out->failed;
    size_t before = out->n;
    int rc;

    if (special) ids_add(out, t->before, (size_t)t->n_before);
    rc = encode_text(t, text, flags & ENCODE_PLAIN, out, e);
    if (special) ids_add(out, t->after, (size_t)t->n_after);
    return finish_ids(out, before, failed, rc, e);
}

int tokenizer_encode_pair(const struct tokenizer *t, struct str a, struct str b, struct ids *out,
                          int *second, struct err *e)
{
    const struct pair_form *p = &t->pair;
    bool failed = out->failed;
    size_t first = out->n;
    int rc;

    if (p->known) ids_add(out, p->front, (size_t)p->n_front);
    else ids_add(out, t->before, (size_t)t->n_before);
    rc = encode_text(t, a, false, out, e);
    *second = p->known && p->second >= 0 ? (int)(out->n - first) + p->second : 0;
    if (p->known) ids_add(out, p->mid, (size_t)p->n_mid);
    else ids_add(out, t->after, (size_t)t->n_after);
    if (rc == OK) rc = encode_text(t, b, false, out, e);
    if (p->known) ids_add(out, p->end, (size_t)p->n_end);
    else ids_add(out, t->after, (size_t)t->n_after);
    return finish_ids(out, first, failed, rc, e);
}
