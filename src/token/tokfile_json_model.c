/* tokfile_json_model.c - the model of a tokenizer.json: its vocabulary, with merges or scores.
 *
 *   {"type": "BPE", "vocab": {"a": 0, ...}, "merges": ["a b", ...], "unk_token": null, ...}
 *   {"type": "Unigram", "vocab": [["a", -1.5], ...], "unk_id": 0}
 *   {"type": "WordPiece", "vocab": {"a": 0, ...}, "continuing_subword_prefix": "##", ...}
 *   {"type": "WordLevel", "vocab": {"a": 0, ...}, "unk_token": "<unk>"} */
#include "token/tokfile.h"

#include "base/mem.h"

/* The vocabulary of a Unigram model: [["piece", score], ...]; the id is the position. */
static int read_scored_vocab(struct tokenizer *t, json_t *list, const struct location *at,
                             struct err *e)
{
    size_t n = json_array_size(list);
    int rc;

    if (!json_is_array(list)) return location_fail(at, e, list ? "not a list" : "missing");
    if (n > VOCAB_MAX_ID)
        return location_fail(at, e, "%zu pieces; at most %d are supported", n, VOCAB_MAX_ID);
    if ((rc = vocab_init(&t->vocab, (int)n, (int)n, e)) != OK) return rc;
    if (!(t->scores = mem_array(n + 1, sizeof *t->scores)))
        return err_nomem(e, "the scores of a vocabulary");
    for (size_t i = 0; i < n; i++) {
        json_t *x = json_array_get(list, i), *piece = json_array_get(x, 0),
               *score = json_array_get(x, 1);
        if (!json_is_string(piece) || !json_is_number(score)) {
            struct location q = location_item(at, i);
            return location_fail(&q, e, "not a piece and its score");
        }
        struct str text = arena_str(&t->arena, json_text(piece));
        if (!text.p || !vocab_add(&t->vocab, text, (int32_t)i))
            return err_nomem(e, "the vocabulary");
        t->scores[i] = json_number_value(score);
    }
    return OK;
}

/* The id of the token that a member names; -1: it names none. */
static int read_token_id(struct tokenizer *t, json_t *o, const char *key, const char *def,
                         int32_t *id, const struct location *at, struct err *e)
{
    struct str s;
    int rc = field_str(o, key, def, &s, at, e);

    *id = -1;
    if (rc != OK || !s.p) return rc;
    *id = vocab_find(&t->vocab, s);
    return OK;
}

/* The merges need the prefix of inner symbols: "a ##b" becomes "ab". So options are read first. */
static int read_bpe(struct tokenizer *t, json_t *o, const struct json_tables *tables,
                    const struct location *at, struct err *e)
{
    struct location vocab = location_member(at, "vocab"), merges = location_member(at, "merges");
    bool byte_fallback;
    int rc;

    if ((rc = tokfile_read_vocab(t, tables, &vocab, e)) != OK ||
        (rc = field_str(o, "continuing_subword_prefix", NULL, &t->bpe.prefix, at, e)) != OK ||
        (rc = field_str(o, "end_of_word_suffix", NULL, &t->bpe.suffix, at, e)) != OK)
        return rc;
    if (t->bpe.prefix.n) t->bpe.prefix = arena_str(&t->arena, t->bpe.prefix);
    if (t->bpe.suffix.n) t->bpe.suffix = arena_str(&t->arena, t->bpe.suffix);
    if ((rc = arena_check(&t->arena, e)) != OK) return rc;
    if ((rc = tokfile_read_merges(t, tables, &merges, e)) != OK ||
        (rc = field_bool(o, "byte_fallback", false, &byte_fallback, at, e)) != OK ||
        (rc = field_bool(o, "fuse_unk", false, &t->bpe.fuse_unk, at, e)) != OK ||
        (rc = field_bool(o, "ignore_merges", false, &t->bpe.ignore_merges, at, e)) != OK ||
        (rc = read_token_id(t, o, "unk_token", NULL, &t->bpe.unk, at, e)) != OK)
        return rc;
    t->unk = t->bpe.unk;
    bpe_finish(&t->bpe, byte_fallback);
    return OK;
}

/* Scores are log probabilities. unk_id -1 or null: no unknown token. */
static int read_unigram(struct tokenizer *t, json_t *o, const struct json_tables *tables,
                        const struct location *at, struct err *e)
{
    struct location vocab = location_member(at, "vocab");
    int64_t unk;
    int rc;

    (void)tables; /* the vocabulary is a list, which is not cut out of the JSON */
    if ((rc = read_scored_vocab(t, json_object_get(o, "vocab"), &vocab, e)) != OK ||
        (rc = field_int(o, "unk_id", -1, &unk, at, e)) != OK ||
        (rc = field_bool(o, "byte_fallback", false, &t->spm.byte_fallback, at, e)) != OK)
        return rc;
    if (unk < -1 || unk >= t->vocab.n)
        return location_fail(at, e, "unk_id is %lld, but there are %d pieces", (long long)unk,
                             t->vocab.n);
    t->spm.vocab = &t->vocab;
    t->spm.scores = t->scores;
    t->spm.unk = t->unk = (int32_t)unk;
    return spm_finish(&t->spm, true, e);
}

/* The limit on characters is clamped, as its only use is to compare with it. */
static int read_wordpiece(struct tokenizer *t, json_t *o, const struct json_tables *tables,
                          const struct location *at, struct err *e)
{
    struct location vocab = location_member(at, "vocab");
    struct str prefix;
    int64_t max;
    int rc;

    if ((rc = tokfile_read_vocab(t, tables, &vocab, e)) != OK ||
        (rc = field_str(o, "continuing_subword_prefix", "##", &prefix, at, e)) != OK ||
        (rc = field_int(o, "max_input_chars_per_word", 100, &max, at, e)) != OK ||
        (rc = read_token_id(t, o, "unk_token", "[UNK]", &t->wordpiece.unk, at, e)) != OK)
        return rc;
    t->wordpiece.vocab = &t->vocab;
    t->wordpiece.inside = arena_str(&t->arena, prefix);
    t->wordpiece.max_chars = max < 1 ? 1 : max > 1 << 20 ? 1 << 20 : (int)max;
    t->unk = t->wordpiece.unk;
    return arena_check(&t->arena, e);
}

/* One token per word; the unknown token is kept with the WordPiece model. */
static int read_wordlevel(struct tokenizer *t, json_t *o, const struct json_tables *tables,
                          const struct location *at, struct err *e)
{
    struct location vocab = location_member(at, "vocab");
    int rc = tokfile_read_vocab(t, tables, &vocab, e);

    if (rc == OK) rc = read_token_id(t, o, "unk_token", NULL, &t->wordpiece.unk, at, e);
    t->unk = t->wordpiece.unk;
    return rc;
}

/* The type of the model of a file that does not name it, as old files do. */
static const char *guess_type(json_t *o, const struct json_tables *tables)
{
    if (tables->merges.n) return "BPE";
    if (json_is_array(json_object_get(o, "vocab"))) return "Unigram";
    return json_object_get(o, "max_input_chars_per_word") ? "WordPiece" : "WordLevel";
}

int tokfile_read_model(struct tokenizer *t, json_t *o, const struct json_tables *tables,
                       const struct location *at, struct err *e)
{
    static const struct {
        const char *name;
        enum token_model model;
        int (*read)(struct tokenizer *, json_t *, const struct json_tables *,
                    const struct location *, struct err *);
    } types[] = {
        { "BPE", MODEL_BPE, read_bpe },
        { "Unigram", MODEL_UNIGRAM, read_unigram },
        { "WordPiece", MODEL_WORDPIECE, read_wordpiece },
        { "WordLevel", MODEL_WORDLEVEL, read_wordlevel },
    };
    struct str type;
    int rc;

    if (!json_is_object(o)) return location_fail(at, e, o ? "not an object" : "missing");
    if ((rc = field_str(o, "type", guess_type(o, tables), &type, at, e)) != OK) return rc;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (str_is(type, types[i].name)) {
            t->model = types[i].model;
            return types[i].read(t, o, tables, at, e);
        }
    return location_fail(
        at, e, "'%.*s' is not a supported model; tern reads BPE, Unigram, WordPiece and WordLevel",
        STR_ARG(str_take(type, 60)));
}
