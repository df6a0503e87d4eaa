/* tokwrite_kinds.c - WordPiece and sentencepiece's unigram as parts of a tokenizer.json. */
#include "token/tokfile.h"

/* ---- WordPiece ---- */

static const struct normal_step *find_step(const struct normal *n, enum normal_kind kind)
{
    for (int i = 0; i < n->n_steps; i++)
        if (n->steps[i].kind == kind) return &n->steps[i];
    return NULL;
}

/* GGUF marks beginnings of words, BERT insides. */
static const char *bert_piece(struct tokwriter *o, int i)
{
    struct str s = o->x.pieces[i], mark = STR(TOKWRITE_MARK);
    bool named = s.n > 2 && s.p[0] == '[' && s.p[s.n - 1] == ']';

    if (o->x.types[i] == 1 && str_starts(s, mark))
        return arena_cstr(&o->arena, str_skip(s, mark.n));
    if (o->x.types[i] != 1 || named) return arena_cstr(&o->arena, s);
    return arena_printf(&o->arena, "##%.*s", STR_ARG(s));
}

void tokwrite_wordpiece(struct tokwriter *o)
{
    struct jsonw *w = &o->w;
    const struct normal_step *s = find_step(&o->t->normal, NORMAL_WORDPIECE);

    if (!s) s = find_step(&o->t->normal, NORMAL_BERT);
    jsonw_key(w, "normalizer"), tokwrite_type(w, "BertNormalizer");
    key_bool(w, "clean_text", true), key_bool(w, "handle_chinese_chars", true);
    key_bool(w, "strip_accents", s && s->accents), key_bool(w, "lowercase", s && s->lower);
    jsonw_end(w);
    jsonw_key(w, "pre_tokenizer"), tokwrite_type(w, "BertPreTokenizer"), jsonw_end(w);
    tokwrite_post(o);
    jsonw_key(w, "decoder"), tokwrite_type(w, "WordPiece");
    key_str(w, "prefix", "##"), key_bool(w, "cleanup", true);
    jsonw_end(w);
    jsonw_key(w, "model"), tokwrite_type(w, "WordPiece");
    key_str(w, "unk_token",
            o->t->unk >= 0 ? arena_cstr(&o->arena, o->x.pieces[o->t->unk]) : "[UNK]");
    key_str(w, "continuing_subword_prefix", "##");
    jsonw_key(w, "max_input_chars_per_word"), jsonw_int(w, 100);
    jsonw_key(w, "vocab"), jsonw_obj(w);
    for (int i = 0; i < o->x.n; i++) jsonw_key(w, bert_piece(o, i)), jsonw_int(w, i);
    jsonw_end(w);
    jsonw_end(w);
}

/* ---- unigram ---- */

static struct str base64(struct arena *a, struct str s)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = 0;
    char *out = arena_alloc(a, (s.n + 2) / 3 * 4);

    for (size_t i = 0; i < s.n; i += 3) {
        uint32_t v = 0;
        for (size_t k = 0; k < 3; k++) v = v << 8 | (i + k < s.n ? (unsigned char)s.p[i + k] : 0);
        for (size_t k = 0; k < 4; k++)
            out[n++] = i + k > s.n ? '=' : digits[v >> (18 - 6 * k) & 63];
    }
    return str_of(out, n);
}

static void put_normalizer(struct tokwriter *o)
{
    struct jsonw *w = &o->w;
    const struct normal_step *map = find_step(&o->t->normal, NORMAL_CHARSMAP);

    jsonw_key(w, "normalizer"), tokwrite_type(w, "Sequence");
    jsonw_key(w, "normalizers"), jsonw_arr(w);
    if (map) {
        tokwrite_type(w, "Precompiled");
        jsonw_key(w, "precompiled_charsmap"),
            jsonw_str(w, base64(&o->arena, str_of(map->text, map->n_text)));
        jsonw_end(w);
    }
    if (o->x.squeeze) {
        tokwrite_type(w, "Strip"), key_bool(w, "strip_left", true),
            key_bool(w, "strip_right", true);
        jsonw_end(w);
        tokwrite_replace(w, "Regex", " {2,}", " ");
    }
    if (o->x.add_space_prefix) tokwrite_prepend(w);
    tokwrite_replace(w, "String", " ", TOKWRITE_MARK);
    jsonw_end(w);
    jsonw_end(w);
}

void tokwrite_unigram(struct tokwriter *o)
{
    struct jsonw *w = &o->w;

    put_normalizer(o);
    key_null(w, "pre_tokenizer");
    tokwrite_post(o);
    tokwrite_decoder(o, false);
    jsonw_key(w, "model"), tokwrite_type(w, "Unigram");
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
    key_bool(w, "byte_fallback", false);
    jsonw_end(w);
}
