/* tokwrite.c - a tokenizer that came out of a GGUF file, said as tokenizer.json. */
#include "base/mem.h"
#include "base/utf8.h"
#include "token/regex.h"
#include "token/tokfile.h"

#include <stdlib.h>

static void put_added(struct tokwriter *o)
{
    struct jsonw *w = &o->w;

    jsonw_key(w, "added_tokens"), jsonw_arr(w);
    for (int i = 0; i < o->x.n; i++) {
        int32_t t = o->x.types[i];
        bool unk = t == 2 && i == o->t->unk;
        if (t != 3 && t != 4 && !unk) continue;
        jsonw_obj(w);
        jsonw_key(w, "id"), jsonw_int(w, i);
        jsonw_key(w, "content"), jsonw_str(w, o->x.pieces[i]);
        key_bool(w, "single_word", false), key_bool(w, "lstrip", false),
            key_bool(w, "rstrip", false);
        key_bool(w, "normalized", false), key_bool(w, "special", t != 4);
        jsonw_end(w);
    }
    jsonw_end(w);
}

void tokwrite_replace(struct jsonw *w, const char *kind, const char *from, const char *to)
{
    tokwrite_type(w, "Replace");
    jsonw_key(w, "pattern"), jsonw_obj(w);
    key_str(w, kind, from);
    jsonw_end(w);
    key_str(w, "content", to);
    jsonw_end(w);
}

void tokwrite_prepend(struct jsonw *w)
{
    tokwrite_type(w, "Prepend");
    key_str(w, "prepend", TOKWRITE_MARK);
    jsonw_end(w);
}

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

static void put_sequence(struct jsonw *w, const char *name, int type_id)
{
    jsonw_obj(w);
    jsonw_key(w, "Sequence"), jsonw_obj(w);
    key_str(w, "id", name);
    jsonw_key(w, "type_id"), jsonw_int(w, type_id);
    jsonw_end(w);
    jsonw_end(w);
}

static void put_special_entry(struct tokwriter *o, int32_t id)
{
    struct jsonw *w = &o->w;

    jsonw_key(w, arena_cstr(&o->arena, o->x.pieces[id])), jsonw_obj(w);
    jsonw_key(w, "id"), jsonw_str(w, o->x.pieces[id]);
    jsonw_key(w, "ids"), jsonw_arr(w), jsonw_int(w, id), jsonw_end(w);
    jsonw_key(w, "tokens"), jsonw_arr(w), jsonw_str(w, o->x.pieces[id]), jsonw_end(w);
    jsonw_end(w);
}

/* What stands before and behind every text. */
void tokwrite_post(struct tokwriter *o)
{
    const struct tokenizer *t = o->t;
    struct jsonw *w = &o->w;

    jsonw_key(w, "post_processor");
    if (t->n_before + t->n_after == 0) {
        jsonw_null(w);
        return;
    }
    tokwrite_type(w, "TemplateProcessing");
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
    for (int i = 0; i < o->x.n; i++)
        jsonw_key(&o->w, arena_cstr(&o->arena, o->x.pieces[i])), jsonw_int(&o->w, i);
    jsonw_end(&o->w);
}

static void put_bpe_head(struct tokwriter *o, const char *unk, bool fallback)
{
    struct jsonw *w = &o->w;

    key_null(w, "dropout");
    if (unk) key_str(w, "unk_token", unk);
    else key_null(w, "unk_token");
    key_null(w, "continuing_subword_prefix"), key_null(w, "end_of_word_suffix");
    key_bool(w, "fuse_unk", fallback), key_bool(w, "byte_fallback", fallback);
    key_bool(w, "ignore_merges", o->t->bpe.ignore_merges);
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
    tokwrite_type(w, "ByteLevel");
    key_bool(w, "add_prefix_space", prefix), key_bool(w, "trim_offsets", true),
        key_bool(w, "use_regex", regex);
    jsonw_end(w);
}

static void put_bytes_bpe(struct tokwriter *o)
{
    const struct split *s = &o->t->split;
    struct jsonw *w = &o->w;

    jsonw_key(w, "normalizer");
    if (o->x.nfc) tokwrite_type(w, "NFC"), jsonw_end(w);
    else jsonw_null(w);
    jsonw_key(w, "pre_tokenizer"), tokwrite_type(w, "Sequence");
    jsonw_key(w, "pretokenizers"), jsonw_arr(w);
    for (int i = 0; i < s->n_steps; i++) {
        if (s->steps[i].kind != SPLIT_REGEX) continue;
        tokwrite_type(w, "Split");
        jsonw_key(w, "pattern"), jsonw_obj(w);
        jsonw_key(w, "Regex"), jsonw_str(w, regex_pattern(s->steps[i].regex));
        jsonw_end(w);
        key_str(w, "behavior", "Isolated"), key_bool(w, "invert", false);
        jsonw_end(w);
    }
    put_byte_level(w, false, false);
    jsonw_end(w);
    jsonw_end(w);
    tokwrite_post(o);
    jsonw_key(w, "decoder"), put_byte_level(w, true, true);
    jsonw_key(w, "model"), tokwrite_type(w, "BPE");
    put_bpe_head(o, NULL, false);
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

/* ---- sentencepiece's BPE ---- */

/* Two pieces that make a third. */
struct pair {
    int32_t left, right, whole;
    float score;
};

static int by_score(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;

    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    if (x->whole != y->whole) return x->whole < y->whole ? -1 : 1;
    return x->left != y->left ? (x->left < y->left ? -1 : 1)
                              : (x->right > y->right) - (x->right < y->right);
}

/* The scores say which pair goes first; tokenizer.json wants the pairs themselves. */
static size_t find_pairs(const struct tokwriter *o, struct pair **out)
{
    struct pair *p = NULL;
    size_t n = 0, cap = 0;

    for (int i = 0; i < o->x.n; i++) {
        struct str s = o->x.pieces[i];
        int32_t cp;
        if (o->x.types[i] != 1 && o->x.types[i] != 4) continue;
        for (size_t at = (size_t)utf8_next(s, &cp); at < s.n;
             at += (size_t)utf8_next(str_skip(s, at), &cp)) {
            int32_t left = tokenizer_find(o->t, str_take(s, at)),
                    right = tokenizer_find(o->t, str_skip(s, at));
            if (left < 0 || right < 0) continue;
            if (n == cap) {
                cap = cap ? 2 * cap : 1024;
                p = mem_grow(p, cap * sizeof *p);
            }
            p[n++] = (struct pair){ left, right, i, o->x.scores ? o->x.scores[i] : -(float)i };
        }
    }
    if (n) qsort(p, n, sizeof *p, by_score);
    *out = p;
    return n;
}

void tokwrite_decoder(struct tokwriter *o, bool bytes)
{
    struct jsonw *w = &o->w;

    jsonw_key(w, "decoder"), tokwrite_type(w, "Sequence");
    jsonw_key(w, "decoders"), jsonw_arr(w);
    tokwrite_replace(w, "String", TOKWRITE_MARK, " ");
    if (bytes) tokwrite_type(w, "ByteFallback"), jsonw_end(w);
    tokwrite_type(w, "Fuse"), jsonw_end(w);
    if (o->x.add_space_prefix) {
        tokwrite_type(w, "Strip");
        key_str(w, "content", " ");
        jsonw_key(w, "start"), jsonw_int(w, 1);
        jsonw_key(w, "stop"), jsonw_int(w, 0);
        jsonw_end(w);
    }
    jsonw_end(w);
    jsonw_end(w);
}

static void put_spm(struct tokwriter *o)
{
    struct jsonw *w = &o->w;
    struct pair *p;
    size_t n;

    jsonw_key(w, "normalizer"), tokwrite_type(w, "Sequence");
    jsonw_key(w, "normalizers"), jsonw_arr(w);
    if (o->x.add_space_prefix) tokwrite_prepend(w);
    tokwrite_replace(w, "String", " ", TOKWRITE_MARK);
    jsonw_end(w);
    jsonw_end(w);
    key_null(w, "pre_tokenizer");
    tokwrite_post(o);
    tokwrite_decoder(o, true);
    jsonw_key(w, "model"), tokwrite_type(w, "BPE");
    put_bpe_head(o, o->t->unk >= 0 ? arena_cstr(&o->arena, o->x.pieces[o->t->unk]) : NULL, true);
    put_vocab(o);
    n = find_pairs(o, &p);
    jsonw_key(w, "merges"), jsonw_arr(w);
    for (size_t i = 0; i < n; i++) put_merge(w, o->x.pieces[p[i].left], o->x.pieces[p[i].right]);
    jsonw_end(w);
    jsonw_end(w);
    mem_free(p);
}

int tokenizer_to_json(const struct tokenizer *t, struct buf *out, struct err *e)
{
    struct tokwriter o = { .t = t, .w = { .out = out } };
    int rc = tokenizer_export(t, &o.x, e);

    if (rc != OK) return rc;
    jsonw_obj(&o.w);
    key_str(&o.w, "version", "1.0"), key_null(&o.w, "truncation"), key_null(&o.w, "padding");
    put_added(&o);
    if (t->model == MODEL_WORDPIECE) tokwrite_wordpiece(&o);
    else if (t->model == MODEL_UNIGRAM) tokwrite_unigram(&o);
    else if (str_is(str_c(o.x.model), "gpt2")) put_bytes_bpe(&o);
    else put_spm(&o);
    jsonw_end(&o.w);
    buf_putc(out, '\n');
    arena_release(&o.arena);
    return OK;
}
