/* tokfile_write_models.c - WordPiece and unigram models as parts of a tokenizer.json. */
#include "token/tokfile.h"

#include "token/chars.h"

/* ---- WordPiece ---- */

static const struct normalizer_step *find_normal_step(const struct normalizer *n,
                                                      enum normal_kind kind)
{
    for (int i = 0; i < n->n_steps; i++)
        if (n->steps[i].kind == kind) return &n->steps[i];
    return NULL;
}

/* A piece as BERT writes it: GGUF marks the starts of words, BERT their insides. */
static const char *make_bert_piece(struct tokwriter *o, int i)
{
    struct str s = o->x.pieces[i], mark = STR(SPACE_MARK);
    bool named = s.n > 2 && s.p[0] == '[' && s.p[s.n - 1] == ']';

    const char *text;
    if (o->x.types[i] == TYPE_NORMAL && str_starts(s, mark))
        text = arena_cstr(&o->arena, str_skip(s, mark.n));
    else if (o->x.types[i] != TYPE_NORMAL || named) text = arena_cstr(&o->arena, s);
    else text = arena_printf(&o->arena, "##%.*s", STR_ARG(s));
    return text ? text : ""; /* the arena has failed */
}

/* The normalizer step is GGUF's, or BERT's own where the tokenizer came from JSON. */
void tokwrite_wordpiece(struct tokwriter *o)
{
    struct jsonw *w = &o->w;
    const struct normalizer_step *s = find_normal_step(&o->t->normalizer, NORMAL_WORDPIECE);

    if (!s) s = find_normal_step(&o->t->normalizer, NORMAL_BERT);
    jsonw_key(w, "normalizer"), tokwrite_open_type(w, "BertNormalizer");
    put_bool_member(w, "clean_text", true), put_bool_member(w, "handle_chinese_chars", true);
    put_bool_member(w, "strip_accents", s && s->accents),
        put_bool_member(w, "lowercase", s && s->lower);
    jsonw_end(w);
    jsonw_key(w, "pre_tokenizer"), tokwrite_open_type(w, "BertPreTokenizer"), jsonw_end(w);
    tokwrite_post(o);
    jsonw_key(w, "decoder"), tokwrite_open_type(w, "WordPiece");
    put_str_member(w, "prefix", "##"), put_bool_member(w, "cleanup", true);
    jsonw_end(w);
    jsonw_key(w, "model"), tokwrite_open_type(w, "WordPiece");
    put_str_member(w, "unk_token", o->t->unk >= 0 ? tokwrite_piece(o, o->t->unk) : "[UNK]");
    put_str_member(w, "continuing_subword_prefix", "##");
    jsonw_key(w, "max_input_chars_per_word"), jsonw_int(w, 100);
    jsonw_key(w, "vocab"), jsonw_obj(w);
    for (int i = 0; i < o->x.n; i++) jsonw_key(w, make_bert_piece(o, i)), jsonw_int(w, i);
    jsonw_end(w);
    jsonw_end(w);
}

/* ---- unigram ---- */

/* RFC 4648 with padding, in the arena; empty without memory. */
static struct str encode_base64(struct arena *a, struct str s)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = 0;
    char *out = arena_alloc(a, (s.n + 2) / 3 * 4);

    if (!out) return STR("");
    for (size_t i = 0; i < s.n; i += 3) {
        uint32_t v = 0;
        for (size_t k = 0; k < 3; k++) v = v << 8 | (i + k < s.n ? (unsigned char)s.p[i + k] : 0);
        for (size_t k = 0; k < 4; k++)
            out[n++] = i + k > s.n ? '=' : digits[v >> (18 - 6 * k) & 63];
    }
    return str_of(out, n);
}

/* Charsmap, squeezed spaces, then spaces as marks: the order in which SentencePiece works. */
static void put_unigram_normalizer(struct tokwriter *o)
{
    struct jsonw *w = &o->w;
    const struct normalizer_step *map = find_normal_step(&o->t->normalizer, NORMAL_CHARSMAP);

    jsonw_key(w, "normalizer"), tokwrite_open_type(w, "Sequence");
    jsonw_key(w, "normalizers"), jsonw_arr(w);
    if (map) {
        tokwrite_open_type(w, "Precompiled");
        jsonw_key(w, "precompiled_charsmap"),
            jsonw_str(w, encode_base64(&o->arena, str_of(map->text, map->n_text)));
        jsonw_end(w);
    }
    if (o->x.squeeze) {
        tokwrite_open_type(w, "Strip"), put_bool_member(w, "strip_left", true),
            put_bool_member(w, "strip_right", true);
        jsonw_end(w);
        tokwrite_replace(w, "Regex", " {2,}", " ");
    }
    if (o->x.add_space_prefix) tokwrite_prepend(w);
    tokwrite_replace(w, "String", " ", SPACE_MARK);
    jsonw_end(w);
    jsonw_end(w);
}

/* No pre-tokenizer: unigram searches the whole text, spaces are in its pieces. */
void tokwrite_unigram(struct tokwriter *o)
{
    struct jsonw *w = &o->w;

    put_unigram_normalizer(o);
    put_null_member(w, "pre_tokenizer");
    tokwrite_post(o);
    tokwrite_spm_decoder(o, false);
    jsonw_key(w, "model"), tokwrite_open_type(w, "Unigram");
    jsonw_key(w, "unk_id");
    if (o->t->unk >= 0) jsonw_int(w, o->t->unk);
    else jsonw_null(w);
    jsonw_key(w, "vocab"), jsonw_arr(w);
    for (int i = 0; i < o->x.n; i++) {
        jsonw_arr(w);
        jsonw_str(w, o->x.pieces[i]), jsonw_num(w, o->x.scores ? (double)o->x.scores[i] : 0);
        jsonw_end(w);
    }
    jsonw_end(w);
    put_bool_member(w, "byte_fallback", false);
    jsonw_end(w);
}
