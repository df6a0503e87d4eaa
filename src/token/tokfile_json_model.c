/* tokjson_model.c - the model of a tokenizer.json: its vocabulary, and merges or scores. */
#include "base/mem.h"
#include "token/tokfile.h"

/* [["piece", score], ...] */
static int read_scored_vocab(struct tokenizer *t, json_t *list, const struct place *p,
                             struct err *e)
{
    size_t n = json_array_size(list);
    int rc;

    if (!json_is_array(list)) return place_fail(p, e, list ? "not a list" : "missing");
    if (n > VOCAB_MAX_ID)
        return place_fail(p, e, "%zu pieces, at most %d are supported", n, VOCAB_MAX_ID);
    if ((rc = vocab_init(&t->vocab, (int)n, (int)n, e)) != OK) return rc;
    t->scores = mem_array(n + 1, sizeof *t->scores);
    for (size_t i = 0; i < n; i++) {
        json_t *x = json_array_get(list, i), *piece = json_array_get(x, 0),
               *score = json_array_get(x, 1);
        if (!json_is_string(piece) || !json_is_number(score)) {
            struct place q = place_at(p, i);
            return place_fail(&q, e, "not a piece and its score");
        }
        vocab_put(&t->vocab, arena_str(&t->arena, json_text(piece)), (int32_t)i);
        t->scores[i] = json_number_value(score);
    }
    return OK;
}

/* The id of the token a field names; -1 if it names none. */
static int read_token(struct tokenizer *t, json_t *o, const char *key, const char *def, int32_t *id,
                      const struct place *p, struct err *e)
{
    struct str s;
    int rc = field_str(o, key, def, &s, p, e);

    *id = -1;
    if (rc != OK || !s.p) return rc;
    *id = vocab_find(&t->vocab, s);
    return OK;
}

static int read_bpe(struct tokenizer *t, json_t *o, const struct tokbig *big, const struct place *p,
                    struct err *e)
{
    struct place vocab = place_in(p, "vocab"), merges = place_in(p, "merges");
    bool byte_fallback;
    int rc;

    if ((rc = tokbig_vocab(t, big, &vocab, e)) != OK ||
        (rc = field_str(o, "continuing_subword_prefix", NULL, &t->bpe.prefix, p, e)) != OK ||
        (rc = field_str(o, "end_of_word_suffix", NULL, &t->bpe.suffix, p, e)) != OK)
        return rc;
    if (t->bpe.prefix.n) t->bpe.prefix = arena_str(&t->arena, t->bpe.prefix);
    if (t->bpe.suffix.n) t->bpe.suffix = arena_str(&t->arena, t->bpe.suffix);
    if ((rc = tokbig_merges(t, big, &merges, e)) != OK ||
        (rc = field_bool(o, "byte_fallback", false, &byte_fallback, p, e)) != OK ||
        (rc = field_bool(o, "fuse_unk", false, &t->bpe.fuse_unk, p, e)) != OK ||
        (rc = field_bool(o, "ignore_merges", false, &t->bpe.ignore_merges, p, e)) != OK ||
        (rc = read_token(t, o, "unk_token", NULL, &t->bpe.unk, p, e)) != OK)
        return rc;
    t->unk = t->bpe.unk;
    bpe_finish(&t->bpe, byte_fallback);
    return OK;
}

static int read_unigram(struct tokenizer *t, json_t *o, const struct tokbig *big,
                        const struct place *p, struct err *e)
{
    struct place vocab = place_in(p, "vocab");
    int64_t unk;
    int rc;

    (void)big; /* a list of pairs, which is no large object */
    if ((rc = read_scored_vocab(t, json_object_get(o, "vocab"), &vocab, e)) != OK ||
        (rc = field_int(o, "unk_id", -1, &unk, p, e)) != OK ||
        (rc = field_bool(o, "byte_fallback", false, &t->spm.byte_fallback, p, e)) != OK)
        return rc;
    if (unk < -1 || unk >= t->vocab.n)
        return place_fail(p, e, "unk_id is %lld, but there are %d pieces", (long long)unk,
                          t->vocab.n);
    t->spm.vocab = &t->vocab;
    t->spm.scores = t->scores;
    t->spm.unk = t->unk = (int32_t)unk;
    spm_finish(&t->spm, true);
    return OK;
}

static int read_wordpiece(struct tokenizer *t, json_t *o, const struct tokbig *big,
                          const struct place *p, struct err *e)
{
    struct place vocab = place_in(p, "vocab");
    struct str prefix;
    int64_t max;
    int rc;

    if ((rc = tokbig_vocab(t, big, &vocab, e)) != OK ||
        (rc = field_str(o, "continuing_subword_prefix", "##", &prefix, p, e)) != OK ||
        (rc = field_int(o, "max_input_chars_per_word", 100, &max, p, e)) != OK ||
        (rc = read_token(t, o, "unk_token", "[UNK]", &t->wordpiece.unk, p, e)) != OK)
        return rc;
    t->wordpiece.vocab = &t->vocab;
    t->wordpiece.inside = arena_str(&t->arena, prefix);
    t->wordpiece.max_chars = max < 1 ? 1 : max > 1 << 20 ? 1 << 20 : (int)max;
    t->unk = t->wordpiece.unk;
    return OK;
}

static int read_wordlevel(struct tokenizer *t, json_t *o, const struct tokbig *big,
                          const struct place *p, struct err *e)
{
    struct place vocab = place_in(p, "vocab");
    int rc = tokbig_vocab(t, big, &vocab, e);

    if (rc == OK) rc = read_token(t, o, "unk_token", NULL, &t->wordpiece.unk, p, e);
    t->unk = t->wordpiece.unk;
    return rc;
}

/* Old files do not say. */
static const char *guess_type(json_t *o, const struct tokbig *big)
{
    if (big->merges.n) return "BPE";
    if (json_is_array(json_object_get(o, "vocab"))) return "Unigram";
    return json_object_get(o, "max_input_chars_per_word") ? "WordPiece" : "WordLevel";
}

int tokjson_model(struct tokenizer *t, json_t *o, const struct tokbig *big, const struct place *p,
                  struct err *e)
{
    static const struct {
        const char *name;
        enum token_model model;
        int (*read)(struct tokenizer *, json_t *, const struct tokbig *, const struct place *,
                    struct err *);
    } types[] = {
        { "BPE", MODEL_BPE, read_bpe },
        { "Unigram", MODEL_UNIGRAM, read_unigram },
        { "WordPiece", MODEL_WORDPIECE, read_wordpiece },
        { "WordLevel", MODEL_WORDLEVEL, read_wordlevel },
    };
    struct str type;
    int rc;

    if (!json_is_object(o)) return place_fail(p, e, o ? "not an object" : "missing");
    if ((rc = field_str(o, "type", guess_type(o, big), &type, p, e)) != OK) return rc;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (str_is(type, types[i].name)) {
            t->model = types[i].model;
            return types[i].read(t, o, big, p, e);
        }
    return place_fail(p, e, "'%.*s' is no kind of model tern knows", STR_ARG(str_take(type, 60)));
}
