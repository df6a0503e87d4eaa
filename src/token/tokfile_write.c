/* tokfile_write.c - writes a tokenizer as tokenizer.json.
 *
 * For tokenizers that came from a GGUF file: the parts are put together from what tokenizer_export
 * says, by kind of model. BPE models are here, the others in tokfile_write_models.c. */
#include "token/tokfile.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "token/chars.h"

#include <stdlib.h>

const char *tokwrite_piece(struct tokwriter *o, int32_t id)
{
    const char *s = arena_cstr(&o->arena, o->x.pieces[id]);
    return s ? s : "";
}

/* Every control and user-defined token, and the unknown token where it is in use. */
static void put_added(struct tokwriter *o)
{
    struct jsonw *w = &o->w;

    jsonw_key(w, "added_tokens"), jsonw_arr(w);
    for (int i = 0; i < o->x.n; i++) {
        int32_t t = o->x.types[i];
        bool unk = t == TYPE_UNKNOWN && i == o->t->unk;
        if (t != TYPE_CONTROL && t != TYPE_USER && !unk) continue;
        jsonw_obj(w);
        jsonw_key(w, "id"), jsonw_int(w, i);
        jsonw_key(w, "content"), jsonw_str(w, o->x.pieces[i]);
        put_bool_member(w, "single_word", false), put_bool_member(w, "lstrip", false),
            put_bool_member(w, "rstrip", false);
        put_bool_member(w, "normalized", false), put_bool_member(w, "special", t != TYPE_USER);
        jsonw_end(w);
    }
    jsonw_end(w);
}

void tokwrite_replace(struct jsonw *w, const char *kind, const char *from, const char *to)
{
    tokwrite_open_type(w, "Replace");
    jsonw_key(w, "pattern"), jsonw_obj(w);
    put_str_member(w, kind, from);
    jsonw_end(w);
    put_str_member(w, "content", to);
    jsonw_end(w);
}

void tokwrite_prepend(struct jsonw *w)
{
    tokwrite_open_type(w, "Prepend");
    put_str_member(w, "prepend", SPACE_MARK);
    jsonw_end(w);
}

/* {"SpecialToken": {"id": PIECE, "type_id": 0}} for each id. */
static void put_special(struct tokwriter *o, const int32_t *ids, int n)
{
    for (int i = 0; i < n; i++) {
        jsonw_obj(&o->w);
        jsonw_key(&o->w, "SpecialToken"), jsonw_obj(&o->w);
        jsonw_key(&o->w, "id"), jsonw_str(&o->w, o->x.pieces[ids[i]]);
        jsonw_key(&o->w, "type_id"), jsonw_int(&o->w, 0);
        jsonw_end(&o->w);
        jsonw_end(&o->w);
    }
}

/* {"Sequence": {"id": "A", "type_id": 0}}: the place of a text. */
static void put_sequence(struct jsonw *w, const char *name, int type_id)
{
    jsonw_obj(w);
    jsonw_key(w, "Sequence"), jsonw_obj(w);
    put_str_member(w, "id", name);
    jsonw_key(w, "type_id"), jsonw_int(w, type_id);
    jsonw_end(w);
    jsonw_end(w);
}

/* An entry of "special_tokens": "PIECE": {"id": PIECE, "ids": [ID], "tokens": [PIECE]}. */
static void put_special_entry(struct tokwriter *o, int32_t id)
{
    struct jsonw *w = &o->w;

    jsonw_key(w, tokwrite_piece(o, id)), jsonw_obj(w);
    jsonw_key(w, "id"), jsonw_str(w, o->x.pieces[id]);
    jsonw_key(w, "ids"), jsonw_arr(w), jsonw_int(w, id), jsonw_end(w);
    jsonw_key(w, "tokens"), jsonw_arr(w), jsonw_str(w, o->x.pieces[id]), jsonw_end(w);
    jsonw_end(w);
}

/* A template with the tokens before and after the text. A pair is A and B within the same tokens. */
void tokwrite_post(struct tokwriter *o)
{
    const struct tokenizer *t = o->t;
    struct jsonw *w = &o->w;

    jsonw_key(w, "post_processor");
    if (t->n_before + t->n_after == 0) {
        jsonw_null(w);
        return;
    }
    tokwrite_open_type(w, "TemplateProcessing");
    jsonw_key(w, "single"), jsonw_arr(w);
    put_special(o, t->before, t->n_before);
    put_sequence(w, "A", 0);
    put_special(o, t->after, t->n_after);
    jsonw_end(w);
    jsonw_key(w, "pair"), jsonw_arr(w);
    put_special(o, t->before, t->n_before);
    put_sequence(w, "A", 0);
    put_sequence(w, "B", 1);
    put_special(o, t->after, t->n_after);
    jsonw_end(w);
    jsonw_key(w, "special_tokens"), jsonw_obj(w);
    for (int i = 0; i < t->n_before; i++) put_special_entry(o, t->before[i]);
    for (int i = 0; i < t->n_after; i++)
        if (t->n_before == 0 || t->after[i] != t->before[0]) put_special_entry(o, t->after[i]);
    jsonw_end(w);
    jsonw_end(w);
}

static void put_vocab(struct tokwriter *o)
{
    jsonw_key(&o->w, "vocab"), jsonw_obj(&o->w);
    for (int i = 0; i < o->x.n; i++) jsonw_key(&o->w, tokwrite_piece(o, i)), jsonw_int(&o->w, i);
    jsonw_end(&o->w);
}

/* fallback: SentencePiece BPE, with byte fallback and fused unknown tokens. */
static void put_bpe_options(struct tokwriter *o, const char *unk, bool fallback)
{
    struct jsonw *w = &o->w;

    put_null_member(w, "dropout");
    if (unk) put_str_member(w, "unk_token", unk);
    else put_null_member(w, "unk_token");
    put_null_member(w, "continuing_subword_prefix"), put_null_member(w, "end_of_word_suffix");
    put_bool_member(w, "fuse_unk", fallback), put_bool_member(w, "byte_fallback", fallback);
    put_bool_member(w, "ignore_merges", o->t->bpe.ignore_merges);
}

static void put_merge(struct jsonw *w, struct str a, struct str b)
{
    jsonw_arr(w);
    jsonw_str(w, a), jsonw_str(w, b);
    jsonw_end(w);
}

/* ---- byte-level BPE ---- */

static void put_byte_level(struct jsonw *w, bool prefix, bool regex)
{
    tokwrite_open_type(w, "ByteLevel");
    put_bool_member(w, "add_prefix_space", prefix), put_bool_member(w, "trim_offsets", true),
        put_bool_member(w, "use_regex", regex);
    jsonw_end(w);
}

/* The patterns of the style become Split steps, before a ByteLevel step without a pattern. */
static void write_byte_bpe(struct tokwriter *o)
{
    const struct pretok *s = &o->t->pretok;
    struct jsonw *w = &o->w;

    jsonw_key(w, "normalizer");
    if (o->x.nfc) tokwrite_open_type(w, "NFC"), jsonw_end(w);
    else jsonw_null(w);
    jsonw_key(w, "pre_tokenizer"), tokwrite_open_type(w, "Sequence");
    jsonw_key(w, "pretokenizers"), jsonw_arr(w);
    for (int i = 0; i < s->n_steps; i++) {
        if (s->steps[i].kind != PRETOK_REGEX) continue;
        tokwrite_open_type(w, "Split");
        jsonw_key(w, "pattern"), jsonw_obj(w);
        jsonw_key(w, "Regex"), jsonw_str(w, regex_pattern(s->steps[i].regex));
        jsonw_end(w);
        put_str_member(w, "behavior", "Isolated"), put_bool_member(w, "invert", false);
        jsonw_end(w);
    }
    put_byte_level(w, false, false);
    jsonw_end(w);
    jsonw_end(w);
    tokwrite_post(o);
    jsonw_key(w, "decoder"), put_byte_level(w, true, true);
    jsonw_key(w, "model"), tokwrite_open_type(w, "BPE");
    put_bpe_options(o, NULL, false);
    put_vocab(o);
    jsonw_key(w, "merges"), jsonw_arr(w);
    for (int i = 0; i < o->x.n_merges; i++) {
        struct str m = o->x.merges[i];
        const char *space = m.n > 1 ? memchr(m.p + 1, ' ', m.n - 1) : NULL;
        if (!space) continue;
        put_merge(w, str_of(m.p, (size_t)(space - m.p)), str_skip(m, (size_t)(space - m.p) + 1));
    }
    jsonw_end(w);
    jsonw_end(w);
}

/* ---- SentencePiece's BPE ---- */

/* Two pieces that make a third: a merge. */
struct merge {
    int32_t left, right, whole;
    float score;
};

/* The best score first, then in the order of ids. */
static int compare_merges(const void *a, const void *b)
{
    const struct merge *x = a, *y = b;

    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    if (x->whole != y->whole) return x->whole < y->whole ? -1 : 1;
    return x->left != y->left ? (x->left < y->left ? -1 : 1)
                              : (x->right > y->right) - (x->right < y->right);
}

/* Every way to make a piece from two others, in the order of their scores: SentencePiece has scores
 * only, and tokenizer.json wants the list of merges. From mem_alloc; false: no memory. */
static bool find_merges(const struct tokwriter *o, struct merge **out, size_t *n_out)
{
    struct merge *p = NULL;
    size_t n = 0, cap = 0;

    for (int i = 0; i < o->x.n; i++) {
        struct str s = o->x.pieces[i];
        int32_t cp;
        if (o->x.types[i] != TYPE_NORMAL && o->x.types[i] != TYPE_USER) continue;
        for (size_t at = (size_t)utf8_next(s, &cp); at < s.n;
             at += (size_t)utf8_next(str_skip(s, at), &cp)) {
            int32_t left = tokenizer_find(o->t, str_take(s, at)),
                    right = tokenizer_find(o->t, str_skip(s, at));
            if (left < 0 || right < 0) continue;
            if (!mem_ensure(p, cap, n + 1)) {
                mem_free(p);
                return false;
            }
            p[n++] = (struct merge){ left, right, i, o->x.scores ? o->x.scores[i] : -(float)i };
        }
    }
    if (n) qsort(p, n, sizeof *p, compare_merges);
    *out = p;
    *n_out = n;
    return true;
}

void tokwrite_spm_decoder(struct tokwriter *o, bool bytes)
{
    struct jsonw *w = &o->w;

    jsonw_key(w, "decoder"), tokwrite_open_type(w, "Sequence");
    jsonw_key(w, "decoders"), jsonw_arr(w);
    tokwrite_replace(w, "String", SPACE_MARK, " ");
    if (bytes) tokwrite_open_type(w, "ByteFallback"), jsonw_end(w);
    tokwrite_open_type(w, "Fuse"), jsonw_end(w);
    if (o->x.add_space_prefix) {
        tokwrite_open_type(w, "Strip");
        put_str_member(w, "content", " ");
        jsonw_key(w, "start"), jsonw_int(w, 1);
        jsonw_key(w, "stop"), jsonw_int(w, 0);
        jsonw_end(w);
    }
    jsonw_end(w);
    jsonw_end(w);
}

/* SentencePiece BPE is BPE with byte fallback, spaces written as marks by the normalizer. */
static void write_spm_bpe(struct tokwriter *o)
{
    struct jsonw *w = &o->w;
    struct merge *p = NULL;
    size_t n = 0;

    jsonw_key(w, "normalizer"), tokwrite_open_type(w, "Sequence");
    jsonw_key(w, "normalizers"), jsonw_arr(w);
    if (o->x.add_space_prefix) tokwrite_prepend(w);
    tokwrite_replace(w, "String", " ", SPACE_MARK);
    jsonw_end(w);
    jsonw_end(w);
    put_null_member(w, "pre_tokenizer");
    tokwrite_post(o);
    tokwrite_spm_decoder(o, true);
    jsonw_key(w, "model"), tokwrite_open_type(w, "BPE");
    put_bpe_options(o, o->t->unk >= 0 ? tokwrite_piece(o, o->t->unk) : NULL, true);
    put_vocab(o);
    if (!find_merges(o, &p, &n)) w->out->failed = true;
    jsonw_key(w, "merges"), jsonw_arr(w);
    for (size_t i = 0; i < n; i++) put_merge(w, o->x.pieces[p[i].left], o->x.pieces[p[i].right]);
    jsonw_end(w);
    jsonw_end(w);
    mem_free(p);
}

/* The order of members is that of Hugging Face's library. */
int tokenizer_to_json(const struct tokenizer *t, struct buf *out, struct err *e)
{
    struct tokwriter o = { .t = t, .w = { .out = out } };
    int rc = tokenizer_export(t, &o.x, e);

    if (rc != OK) return rc;
    jsonw_obj(&o.w);
    put_str_member(&o.w, "version", "1.0"), put_null_member(&o.w, "truncation"),
        put_null_member(&o.w, "padding");
    put_added(&o);
    if (t->model == MODEL_WORDPIECE) tokwrite_wordpiece(&o);
    else if (t->model == MODEL_UNIGRAM) tokwrite_unigram(&o);
    else if (str_is(str_c(o.x.model), "gpt2")) write_byte_bpe(&o);
    else write_spm_bpe(&o);
    jsonw_end(&o.w);
    buf_putc(out, '\n');
    rc = arena_check(&o.arena, e);
    if (rc == OK) rc = buf_check(out, e);
    arena_release(&o.arena);
    return rc;
}
