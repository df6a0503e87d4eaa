/* tokexport.c - what a GGUF file would say of a tokenizer. */
#include "base/mem.h"
#include "base/utf8.h"
#include "token/tokenizer_impl.h"

#define MARK "\xe2\x96\x81"

enum {
    TYPE_NORMAL = 1,
    TYPE_UNKNOWN = 2,
    TYPE_CONTROL = 3,
    TYPE_USER = 4,
    TYPE_UNUSED = 5,
    TYPE_BYTE = 6
};

static bool is_bytelevel(const struct tokenizer *t)
{
    for (int i = 0; i < t->split.n_steps; i++) /* falcon splits numbers behind it */
        if (t->split.steps[i].kind == SPLIT_BYTES) return true;
    return false;
}

static bool is_byte_piece(struct str s)
{
    return s.n == 6 && str_starts(s, STR("<0x")) && s.p[5] == '>';
}

static void fill_types(struct tokenizer *t, bool bytes)
{
    t->types = mem_array((size_t)t->n + 1, sizeof *t->types);
    for (int i = 0; i < t->n; i++)
        t->types[i] = !t->pieces[i].p                        ? TYPE_UNUSED
                      : bytes && is_byte_piece(t->pieces[i]) ? TYPE_BYTE
                                                             : TYPE_NORMAL;
    for (int i = 0; i < t->n_added; i++)
        t->types[t->added[i].id] = t->added[i].special ? TYPE_CONTROL : TYPE_USER;
    if (t->unk >= 0 && t->unk < t->n) t->types[t->unk] = TYPE_UNKNOWN;
}

/* Pieces as GGUF writes them: every id has one; WordPiece marks beginnings, not insides. */
static void fill_pieces(struct tokenizer *t)
{
    struct str inside = t->wordpiece.inside;

    t->export_pieces = mem_array((size_t)t->n + 1, sizeof *t->export_pieces);
    for (int i = 0; i < t->n; i++) {
        struct str s = t->pieces[i];
        if (!s.p) s = str_c(arena_printf(&t->arena, "[PAD%d]", i));
        else if (t->model == MODEL_WORDPIECE && inside.n && t->types[i] == TYPE_NORMAL) {
            if (str_starts(s, inside)) s = str_skip(s, inside.n);
            else s = str_c(arena_printf(&t->arena, MARK "%.*s", STR_ARG(s)));
        }
        t->export_pieces[i] = s;
    }
}

/* "left right" in the order of ranks. */
static void fill_merges(struct tokenizer *t)
{
    const struct bpe *b = &t->bpe;

    t->merges = mem_array(b->n_ranks + 1, sizeof *t->merges);
    for (size_t i = 0; i <= b->mask; i++) {
        if (b->slots[i] == UINT64_MAX) continue;
        struct str left = t->pieces[b->slots[i] >> 44],
                   right = t->pieces[b->slots[i] >> 24 & 0xfffff];
        char *text = arena_alloc(&t->arena, left.n + right.n + 1);
        memcpy(text, left.p, left.n);
        text[left.n] = ' ';
        memcpy(text + left.n + 1, right.p, right.n);
        t->merges[b->slots[i] & 0xffffff] = str_of(text, left.n + right.n + 1);
    }
    t->n_merges = 0;
    for (size_t i = 0; i < b->n_ranks; i++) /* a pair listed twice left a gap */
        if (t->merges[i].p) t->merges[t->n_merges++] = t->merges[i];
}

/* The earlier a piece is merged, the better its score; what no merge makes comes last. */
static void fill_scores(struct tokenizer *t)
{
    t->export_scores = mem_array((size_t)t->n + 1, sizeof *t->export_scores);
    if (t->scores) {
        for (int i = 0; i < t->vocab.n; i++) t->export_scores[i] = (float)t->scores[i];
        return;
    }
    for (int i = 0; i < t->n; i++) t->export_scores[i] = t->types[i] == TYPE_NORMAL ? -1e9f : 0;
    for (size_t i = t->bpe.n_ranks; i-- > 0;)
        if (t->bpe.merged[i] >= 0) t->export_scores[t->bpe.merged[i]] = -(float)i;
}

static int model_name(const struct tokenizer *t, const char **name, struct err *e)
{
    *name = NULL;
    switch (t->model) {
    case MODEL_BPE:
        if (!is_bytelevel(t)) *name = "llama";
        else if (t->pre) *name = "gpt2";
        else
            return err_set(e, E_UNSUPPORTED,
                           "GGUF has no name for the way this tokenizer splits text");
        break;
    case MODEL_SPM: *name = "llama"; break;
    case MODEL_UNIGRAM: *name = "t5"; break;
    case MODEL_WORDPIECE: *name = "bert"; break;
    case MODEL_WORDLEVEL: break;
    }
    return *name ? OK : err_set(e, E_UNSUPPORTED, "GGUF has no such kind of tokenizer");
}

/* Is something put before every text: by the normalizer, or by the splitting? */
static bool has_space_prefix(const struct tokenizer *t)
{
    if (t->space_prefix) return true;
    for (int i = 0; i < t->normal.n_steps; i++)
        if (t->normal.steps[i].kind == NORMAL_PREPEND) return true;
    for (int i = 0; i < t->split.n_steps; i++)
        if (t->split.steps[i].kind == SPLIT_METASPACE && t->split.steps[i].prepend != PREPEND_NEVER)
            return true;
    return false;
}

/* What normalizers and splitting do that GGUF has keys for. */
static void fill_normal(const struct tokenizer *t, struct token_export *out)
{
    for (int i = 0; i < t->normal.n_steps; i++) {
        const struct normal_step *s = &t->normal.steps[i];
        if (s->kind == NORMAL_CHARSMAP) out->charsmap = str_of(s->text, s->n_text);
        out->squeeze |= s->kind == NORMAL_SQUEEZE;
        out->nfc |= s->kind == NORMAL_NFC;
        out->lower |= s->kind == NORMAL_LOWER || s->lower;
        out->accents |= s->kind == NORMAL_STRIP_ACCENTS || s->accents;
    }
    for (int i = 0; i < t->split.n_steps; i++)
        out->squeeze |= t->split.steps[i].kind == SPLIT_CLASS;
    out->squeeze = out->squeeze && t->model == MODEL_UNIGRAM;
}

int tokenizer_export(const struct tokenizer *ct, struct token_export *out, struct err *e)
{
    struct tokenizer *t = (struct tokenizer *)ct; /* tables are made once and kept */
    const char *model;
    int rc = model_name(t, &model, e);

    if (rc != OK) return rc;
    bool gpt2 = str_is(str_c(model), "gpt2");
    if (!t->types) fill_types(t, !gpt2);
    if (!t->export_pieces) {
        fill_pieces(t);
        if (gpt2) fill_merges(t);
        else if (t->model != MODEL_WORDPIECE) fill_scores(t);
    }
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
    fill_normal(t, out);
    return OK;
}
