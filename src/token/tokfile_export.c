/* tokfile_export.c - a tokenizer as the keys of a GGUF file.
 *
 * The tables are made at the first call and belong to the tokenizer. They replace nothing that
 * encoding reads, so other threads may go on encoding. */
#include "token/tokfile.h"

#include "base/mem.h"
#include "token/chars.h"

static bool has_bytes_step(const struct tokenizer *t)
{
    for (int i = 0; i < t->pretok.n_steps;
         i++) /* not only the last: falcon splits digits after it */
        if (t->pretok.steps[i].kind == PRETOK_BYTES) return true;
    return false;
}

/* "<0x0A>": a byte of byte fallback. */
static bool is_byte_piece(struct str s)
{
    return s.n == 6 && str_starts(s, STR("<0x")) && s.p[5] == '>';
}

/* bytes: pieces like "<0x0A>" are bytes. false: no memory. */
static bool make_types(struct tokenizer *t, bool bytes)
{
    if (!(t->types = mem_array((size_t)t->n + 1, sizeof *t->types))) return false;
    for (int i = 0; i < t->n; i++)
        t->types[i] = !t->pieces[i].p                        ? TYPE_UNUSED
                      : bytes && is_byte_piece(t->pieces[i]) ? TYPE_BYTE
                                                             : TYPE_NORMAL;
    for (int i = 0; i < t->n_added; i++)
        t->types[t->added[i].id] = t->added[i].special ? TYPE_CONTROL : TYPE_USER;
    if (t->unk >= 0 && t->unk < t->n) t->types[t->unk] = TYPE_UNKNOWN;
    return true;
}

/* Pieces as GGUF writes them: every id has one, and WordPiece marks the starts of words, not their
 * insides. NULL: no memory. */
static struct str *make_pieces(struct tokenizer *t)
{
    struct str inside = t->wordpiece.inside;
    struct str *pieces = mem_array((size_t)t->n + 1, sizeof *pieces);

    for (int i = 0; pieces && i < t->n; i++) {
        struct str s = t->pieces[i];
        if (!s.p) s = str_c(arena_printf(&t->arena, "[PAD%d]", i));
        else if (t->model == MODEL_WORDPIECE && inside.n && t->types[i] == TYPE_NORMAL) {
            if (str_starts(s, inside)) s = str_skip(s, inside.n);
            else s = str_c(arena_printf(&t->arena, SPACE_MARK "%.*s", STR_ARG(s)));
        }
        pieces[i] = s;
    }
    return pieces;
}

/* "left right"; p is NULL without memory. */
static struct str join_merge(struct arena *a, struct str left, struct str right)
{
    char *text = arena_alloc(a, left.n + right.n + 1);

    if (!text) return str_of(NULL, 0);
    memcpy(text, left.p, left.n);
    text[left.n] = ' ';
    memcpy(text + left.n + 1, right.p, right.n);
    return str_of(text, left.n + right.n + 1);
}

/* The merges by rank, from the hash table of the model. false: no memory. */
static bool make_merges(struct tokenizer *t)
{
    const struct bpe *b = &t->bpe;

    if (!(t->merges = mem_array(b->n_ranks + 1, sizeof *t->merges))) return false;
    for (size_t i = 0; i <= b->mask; i++) {
        uint64_t s = b->slots[i];
        if (s != UINT64_MAX)
            t->merges[s & 0xffffff] =
                join_merge(&t->arena, t->pieces[s >> 44], t->pieces[s >> 24 & 0xfffff]);
    }
    t->n_merges = 0;
    for (size_t i = 0; i < b->n_ranks; i++) /* a pair that was listed twice left a gap */
        if (t->merges[i].p) t->merges[t->n_merges++] = t->merges[i];
    return true;
}

/* The scores of the model, or of a BPE model scores that merge in the same order: minus the rank,
 * and far below for pieces that no merge makes. false: no memory. */
static bool make_scores(struct tokenizer *t)
{
    if (!(t->export_scores = mem_array((size_t)t->n + 1, sizeof *t->export_scores))) return false;
    if (t->scores) {
        for (int i = 0; i < t->vocab.n; i++) t->export_scores[i] = (float)t->scores[i];
        return true;
    }
    for (int i = 0; i < t->n; i++) t->export_scores[i] = t->types[i] == TYPE_NORMAL ? -1e9f : 0;
    for (size_t i = t->bpe.n_ranks; i-- > 0;)
        if (t->bpe.merged[i] >= 0) t->export_scores[t->bpe.merged[i]] = -(float)i;
    return true;
}

/* Makes all tables, once. export_pieces is set last and says that all are complete; a failed call
 * takes the others back, so that a later one can try again. */
static int make_tables(struct tokenizer *t, bool gpt2, struct err *e)
{
    struct str *pieces = NULL;
    bool done = true;

    if (t->export_pieces) return OK;
    if (!t->types) done = make_types(t, !gpt2);
    if (done && gpt2) done = make_merges(t);
    else if (done && t->model != MODEL_WORDPIECE) done = make_scores(t);
    if (done) pieces = make_pieces(t);
    if (pieces && !t->arena.failed) {
        t->export_pieces = pieces;
        return OK;
    }
    mem_free(pieces);
    mem_free(t->merges);
    mem_free(t->export_scores);
    t->merges = NULL;
    t->export_scores = NULL;
    t->arena.failed = false;
    return err_nomem(e, "the tables of a tokenizer");
}

/* tokenizer.ggml.model. */
static int find_model_name(const struct tokenizer *t, const char **name, struct err *e)
{
    *name = NULL;
    switch (t->model) {
    case MODEL_BPE:
        if (!has_bytes_step(t)) *name = "llama";
        else if (t->pre) *name = "gpt2";
        else
            return err_set(e, E_UNSUPPORTED,
                           "GGUF has no name for the pre-tokenizer of this model");
        break;
    case MODEL_SPM: *name = "llama"; break;
    case MODEL_UNIGRAM: *name = "t5"; break;
    case MODEL_WORDPIECE: *name = "bert"; break;
    case MODEL_WORDLEVEL: break;
    }
    return *name ? OK : err_set(e, E_UNSUPPORTED, "GGUF has no word-level tokenizers");
}

/* Is a space put before every text, by the normalizer or by the pre-tokenizer? */
static bool has_space_prefix(const struct tokenizer *t)
{
    if (t->space_prefix) return true;
    for (int i = 0; i < t->normalizer.n_steps; i++)
        if (t->normalizer.steps[i].kind == NORMAL_PREPEND) return true;
    for (int i = 0; i < t->pretok.n_steps; i++)
        if (t->pretok.steps[i].kind == PRETOK_METASPACE &&
            t->pretok.steps[i].prepend != PREPEND_NEVER)
            return true;
    return false;
}

/* The options of the normalizer that GGUF has keys for. */
static void fill_normalizer_keys(const struct tokenizer *t, struct token_export *out)
{
    for (int i = 0; i < t->normalizer.n_steps; i++) {
        const struct normalizer_step *s = &t->normalizer.steps[i];
        if (s->kind == NORMAL_CHARSMAP) out->charsmap = str_of(s->text, s->n_text);
        out->squeeze |= s->kind == NORMAL_SQUEEZE;
        out->nfc |= s->kind == NORMAL_NFC;
        out->lower |= s->kind == NORMAL_LOWER || s->lower;
        out->accents |= s->kind == NORMAL_STRIP_ACCENTS || s->accents;
    }
    for (int i = 0; i < t->pretok.n_steps; i++)
        out->squeeze |= t->pretok.steps[i].kind == PRETOK_CLASS;
    out->squeeze = out->squeeze && t->model == MODEL_UNIGRAM;
}

/* The struct only points to tables of the tokenizer; nothing in it is freed by the caller. */
int tokenizer_export(const struct tokenizer *ct, struct token_export *out, struct err *e)
{
    struct tokenizer *t = (struct tokenizer *)ct; /* for the tables */
    const char *model;
    int rc = find_model_name(t, &model, e);

    if (rc != OK) return rc;
    bool gpt2 = str_is(str_c(model), "gpt2");
    if ((rc = make_tables(t, gpt2, e)) != OK) return rc;
    *out = (struct token_export){
        .model = model,
        .pre = gpt2                                             ? t->pre
               : t->model == MODEL_SPM || t->model == MODEL_BPE ? "default"
                                                                : NULL,
        .n = t->n,
        .pieces = t->export_pieces,
        .scores = t->export_scores,
        .types = t->types,
        .merges = t->merges,
        .n_merges = t->n_merges,
        .bos = t->bos,
        .eos = t->eos,
        .unk = t->unk,
        .pad = t->pad,
        .first = t->n_before ? t->before[0] : -1,
        .last = t->n_after ? t->after[0] : -1,
        .add_bos = tokenizer_adds_bos(t),
        .add_eos = t->n_after && t->after[0] == t->eos,
        .add_space_prefix = has_space_prefix(t),
    };
    fill_normalizer_keys(t, out);
    return OK;
}
