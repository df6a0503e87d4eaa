/* tokfile_gguf.c - reads a tokenizer from the tokenizer.* keys of a GGUF file.
 *
 *   tokenizer.ggml.model            "gpt2" (BPE), "llama" (SentencePiece BPE), "t5", "bert",
 *                                   "gemma4" (BPE with merges and byte fallback)
 *   tokenizer.ggml.tokens           the pieces; the id is the position
 *   tokenizer.ggml.token_type       enum gguf_token_type, one per token
 *   tokenizer.ggml.scores           SentencePiece: one per token
 *   tokenizer.ggml.merges           BPE: "left right", by rank
 *   tokenizer.ggml.pre              BPE: the name of the pre-tokenizer, see pretok_styles.c
 *   tokenizer.ggml.*_token_id       special tokens
 *   tokenizer.ggml.add_*            BOS, EOS and a space before the text
 *   tokenizer.ggml.normalizer.*     NFC, lower case, accents
 *   tokenizer.chat_template[.NAME]  chat templates
 *
 * Pieces are not copied: they stay in the mapped file. Normalizer, pre-tokenizer and decoder follow
 * from the model and from the defaults of llama.cpp, which defines these keys. */
#include "token/tokfile.h"

#include "base/log.h"
#include "base/mem.h"
#include "token/chars.h"

#define KEY(name) "tokenizer.ggml." name

/* What every reader of keys needs. */
struct gguf_reader {
    struct tokenizer *t;
    const struct source *src;
    struct err *e;
};

static int fail_key(const struct gguf_reader *r, const char *key, const char *what)
{
    return err_set(r->e, E_FORMAT, "%s: %s %s", source_path(r->src), key, what);
}

/* ---- the vocabulary ---- */

/* The id of a token is its position. */
static int read_tokens(struct gguf_reader *r)
{
    struct tokenizer *t = r->t;
    struct value list, v;
    int rc;

    if (!source_key(r->src, KEY("tokens"), &list) || list.kind != VALUE_LIST || list.n == 0)
        return fail_key(r, KEY("tokens"),
                        "is missing, empty or not a list: the file has no vocabulary");
    if (list.n > VOCAB_MAX_ID)
        return fail_key(r, KEY("tokens"), "has more tokens than tern supports (2^20)");
    if ((rc = vocab_init(&t->vocab, (int)list.n, (int)list.n, r->e)) != OK) return rc;
    for (size_t i = 0; i < list.n; i++) {
        if (!value_at(&list, i, &v) || v.kind != VALUE_STR)
            return fail_key(r, KEY("tokens"), "has an item that is not a string");
        if (!vocab_add(&t->vocab, v.s, (int32_t)i)) return err_nomem(r->e, "the vocabulary");
    }
    return OK;
}

/* A missing list, or an unknown type, means normal. */
static int read_types(struct gguf_reader *r)
{
    struct tokenizer *t = r->t;
    struct value list, v;
    int64_t type;

    if (!(t->types = mem_array((size_t)t->vocab.n, sizeof *t->types)))
        return err_nomem(r->e, "the types of tokens");
    for (int i = 0; i < t->vocab.n; i++) t->types[i] = TYPE_NORMAL;
    if (!source_key(r->src, KEY("token_type"), &list)) return OK;
    if (list.kind != VALUE_LIST || list.n != (size_t)t->vocab.n)
        return fail_key(r, KEY("token_type"), "does not have one type for each token");
    for (size_t i = 0; i < list.n; i++) {
        if (!value_at(&list, i, &v) || !value_i64(&v, &type))
            return fail_key(r, KEY("token_type"), "has an item that is not a number");
        t->types[i] = type >= TYPE_NORMAL && type <= TYPE_BYTE ? (int32_t)type : TYPE_NORMAL;
    }
    return OK;
}

/* Required by both SentencePiece models: a file without them cannot be tokenized. */
static int read_scores(struct gguf_reader *r)
{
    struct tokenizer *t = r->t;
    struct value list, v;

    if (!source_key(r->src, KEY("scores"), &list) || list.kind != VALUE_LIST ||
        list.n != (size_t)t->vocab.n)
        return fail_key(r, KEY("scores"), "does not have one score for each token");
    if (!(t->scores = mem_array(list.n + 1, sizeof *t->scores)))
        return err_nomem(r->e, "the scores of a vocabulary");
    for (size_t i = 0; i < list.n; i++)
        if (!value_at(&list, i, &v) || !value_f64(&v, &t->scores[i]))
            return fail_key(r, KEY("scores"), "has an item that is not a number");
    return OK;
}

/* Is a token of this type searched for in the text? */
static bool is_added_type(int32_t type)
{
    return type == TYPE_USER || type == TYPE_CONTROL || type == TYPE_UNKNOWN;
}

/* User-defined tokens are recognized in every text; control tokens and the unknown token, unless
 * special tokens are to be plain text. */
static int read_added(struct gguf_reader *r)
{
    struct tokenizer *t = r->t;
    int n = 0;

    for (int i = 0; i < t->vocab.n; i++) n += is_added_type(t->types[i]);
    if (!(t->added = mem_array((size_t)n + 1, sizeof *t->added)))
        return err_nomem(r->e, "the added tokens");
    for (int i = 0; i < t->vocab.n; i++) {
        if (!is_added_type(t->types[i]) || !t->vocab.pieces[i].n) continue;
        t->added[t->n_added++] = (struct added_token){ .content = t->vocab.pieces[i],
                                                       .id = i,
                                                       .special = t->types[i] != TYPE_USER };
    }
    return OK;
}

/* ---- merges ---- */

/* The merges of the list, each "left right"; a piece may begin with a space. */
static int load_merges(struct gguf_reader *r, struct merge_loader *m, const struct value *list)
{
    struct value v;
    int rc = OK;

    for (size_t i = 0; i < list->n && rc == OK; i++) {
        const char *space = NULL;
        if (value_at(list, i, &v) && v.kind == VALUE_STR && v.s.n > 1)
            space = memchr(v.s.p + 1, ' ', v.s.n - 1);
        if (!space) return fail_key(r, KEY("merges"), "has an item that is not a pair of pieces");
        size_t n = (size_t)(space - v.s.p);
        rc = merge_loader_add(m, str_take(v.s, n), str_skip(v.s, n + 1));
    }
    if (rc == OK) rc = merge_loader_flush(m);
    if (rc == E_NOMEM) return err_nomem(r->e, "the merges");
    if (rc == OK) return OK;
    return err_set(r->e, E_FORMAT, "%s: %s: %s", source_path(r->src), KEY("merges"), m->why);
}

static int read_merges(struct gguf_reader *r)
{
    struct merge_loader m = { .bpe = &r->t->bpe };
    struct value list;
    int rc;

    if (!source_key(r->src, KEY("merges"), &list) || list.kind != VALUE_LIST)
        return fail_key(r, KEY("merges"), "is missing or not a list");
    if (list.n > BPE_MAX_MERGES)
        return fail_key(r, KEY("merges"), "has more merges than tern supports (2^24 - 1)");
    if ((rc = bpe_init(&r->t->bpe, &r->t->vocab, list.n, r->e)) != OK) return rc;
    rc = load_merges(r, &m, &list);
    merge_loader_release(&m);
    return rc;
}

/* ---- ids and flags ---- */

/* An id of a special token; def where the key is missing, -1: none. */
static int read_id(struct gguf_reader *r, const char *key, int32_t def, int32_t *out)
{
    uint64_t id;

    *out = def < r->t->vocab.n ? def : -1;
    if (!source_u64(r->src, key, &id)) return OK;
    if (id == UINT32_MAX) { /* some writers mean "none" by it */
        *out = -1;
        return OK;
    }
    if (id >= (uint64_t)r->t->vocab.n)
        return err_set(r->e, E_FORMAT, "%s: %s is %llu, but there are %d tokens",
                       source_path(r->src), key, (unsigned long long)id, r->t->vocab.n);
    *out = (int32_t)id;
    return OK;
}

static bool read_flag(const struct gguf_reader *r, const char *key, bool def)
{
    bool v = def;
    return source_bool(r->src, key, &v) ? v : def;
}

/* Values for keys that are missing, by kind of model. */
struct defaults {
    int32_t bos, eos, unk;
    bool add_bos, add_eos;
};

/* The four special tokens, and which of BOS and EOS are added. A flag without a token does nothing. */
static int read_ids(struct gguf_reader *r, struct defaults d)
{
    struct tokenizer *t = r->t;
    int rc;

    if ((rc = read_id(r, KEY("bos_token_id"), d.bos, &t->bos)) != OK ||
        (rc = read_id(r, KEY("eos_token_id"), d.eos, &t->eos)) != OK ||
        (rc = read_id(r, KEY("unknown_token_id"), d.unk, &t->unk)) != OK ||
        (rc = read_id(r, KEY("padding_token_id"), -1, &t->pad)) != OK)
        return rc;
    if (read_flag(r, KEY("add_bos_token"), d.add_bos) && t->bos >= 0)
        t->before[t->n_before++] = t->bos;
    if (read_flag(r, KEY("add_eos_token"), d.add_eos) && t->eos >= 0)
        t->after[t->n_after++] = t->eos;
    return OK;
}

/* ---- kinds of models ---- */

/* A step that replaces `find` by `text`. */
static int make_replace(struct normalizer_step *out, const char *find, const char *text,
                        struct err *e)
{
    struct normalizer_step s = { .kind = NORMAL_REPLACE,
                                 .find = mem_strdup(find),
                                 .n_find = strlen(find),
                                 .text = mem_strdup(text),
                                 .n_text = strlen(text) };

    if (!s.find || !s.text) {
        normalizer_step_release(&s);
        return err_nomem(e, "a normalizer");
    }
    *out = s;
    return OK;
}

/* Marks to spaces; bytes: byte fallback; strip: remove the space that the encoder put first. */
static int add_decoders(struct gguf_reader *r, bool bytes, bool strip)
{
    struct decoder *d = &r->t->decoder;
    struct decode_step mark = { .kind = DECODE_REPLACE },
                       space = { .kind = DECODE_STRIP, .n_text = 1, .start = 1 };
    int rc;

    if ((rc = make_replace(&mark.replace, SPACE_MARK, " ", r->e)) != OK ||
        (rc = decoder_add_step(d, mark, r->e)) != OK)
        return rc;
    if (bytes &&
        (rc = decoder_add_step(d, (struct decode_step){ .kind = DECODE_FALLBACK }, r->e)) != OK)
        return rc;
    rc = decoder_add_step(d, (struct decode_step){ .kind = DECODE_FUSE }, r->e);
    if (rc != OK || !strip) return rc;
    if (!(space.text = mem_strdup(" "))) return err_nomem(r->e, "a decoder");
    return decoder_add_step(d, space, r->e);
}

/* A mark before the text (prefix), and one for each space in it. */
static int add_marks(struct gguf_reader *r, bool prefix)
{
    struct tokenizer *t = r->t;
    struct normalizer_step mark = { .kind = NORMAL_PREPEND, .n_text = strlen(SPACE_MARK) }, spaces;
    int rc;

    t->space_prefix = prefix;
    if (prefix) {
        if (!(mark.text = mem_strdup(SPACE_MARK))) return err_nomem(r->e, "a normalizer");
        if ((rc = normalizer_add_step(&t->normalizer, mark, r->e)) != OK) return rc;
    }
    if ((rc = make_replace(&spaces, " ", SPACE_MARK, r->e)) != OK) return rc;
    return normalizer_add_step(&t->normalizer, spaces, r->e);
}

/* "gpt2": byte-level BPE with merges; the pre-tokenizer is named by tokenizer.ggml.pre. */
static int build_bpe(struct gguf_reader *r)
{
    struct tokenizer *t = r->t;
    struct str pre = STR("default");
    bool ignore_merges;
    int rc;

    if (!source_str(r->src, KEY("pre"), &pre))
        log_warn("%s: tokenizer.ggml.pre is missing: the default pre-tokenizer is used, token ids "
                 "may differ from the model's own",
                 source_path(r->src));
    t->model = MODEL_BPE;
    if (!(t->pre = arena_cstr(&t->arena, pre))) return err_nomem(r->e, "a tokenizer");
    if ((rc = pretok_add_style(&t->pretok, pre, &ignore_merges, r->e)) != OK ||
        (rc = read_merges(r)) != OK)
        return rc;
    t->bpe.ignore_merges = ignore_merges;
    if (read_flag(r, KEY("normalizer.nfc"), pretok_style_composes(pre)) &&
        (rc = normalizer_add_step(&t->normalizer, (struct normalizer_step){ .kind = NORMAL_NFC },
                                  r->e)) != OK)
        return rc;
    bpe_finish(&t->bpe, false);
    rc = decoder_add_step(&t->decoder, (struct decode_step){ .kind = DECODE_BYTES }, r->e);
    if (rc != OK) return rc;
    return read_ids(r, (struct defaults){
                           -1, -1, -1, str_is(pre, "llama-bpe") || str_is(pre, "llama3"), false });
}

/* "llama": SentencePiece BPE with scores, byte fallback, no pre-tokenizer. */
static int build_spm(struct gguf_reader *r)
{
    struct tokenizer *t = r->t;
    int rc;

    t->model = MODEL_SPM;
    if ((rc = read_scores(r)) != OK ||
        (rc = add_marks(r, read_flag(r, KEY("add_space_prefix"), true))) != OK)
        return rc;
    if ((rc = read_ids(r, (struct defaults){ 1, 2, 0, true, false })) != OK) return rc;
    if ((rc = bpe_init(&t->bpe, &t->vocab, 0, r->e)) != OK) return rc;
    for (int i = 0; i < t->vocab.n; i++)
        if (t->types[i] != TYPE_CONTROL) bpe_note_inner_marks(&t->bpe, t->vocab.pieces[i]);
    bpe_finish(&t->bpe, false);
    t->spm = (struct spm){
        .vocab = &t->vocab, .scores = t->scores, .unk = t->unk, .byte_fallback = true
    };
    if ((rc = spm_finish(&t->spm, false, r->e)) != OK) return rc;
    return add_decoders(r, true, t->space_prefix);
}

/* "gemma4": BPE with merges over text with marks for spaces, byte fallback, no pre-tokenizer. */
static int build_marked_bpe(struct gguf_reader *r)
{
    struct tokenizer *t = r->t;
    int rc;

    t->model = MODEL_BPE;
    if ((rc = add_marks(r, read_flag(r, KEY("add_space_prefix"), false))) != OK ||
        (rc = read_ids(r, (struct defaults){ 2, 1, 3, true, false })) != OK ||
        (rc = read_merges(r)) != OK)
        return rc;
    t->bpe.unk = t->unk;
    t->bpe.fuse_unk = true;
    bpe_finish(&t->bpe, true);
    return add_decoders(r, true, t->space_prefix);
}

/* precompiled_charsmap is a list of bytes. */
static int read_charsmap(struct gguf_reader *r)
{
    struct value list, v;
    struct buf map = { 0 };
    int64_t byte;
    int rc;

    if (!source_key(r->src, KEY("precompiled_charsmap"), &list) || list.kind != VALUE_LIST ||
        !list.n)
        return OK;
    for (size_t i = 0; i < list.n; i++) {
        if (!value_at(&list, i, &v) || !value_i64(&v, &byte)) break;
        buf_putc(&map, (char)byte);
    }
    rc = buf_check(&map, r->e);
    if (rc == OK) rc = charsmap_check(buf_str(&map), r->e);
    if (rc == OK)
        return normalizer_add_step(
            &r->t->normalizer,
            (struct normalizer_step){
                .kind = NORMAL_CHARSMAP, .text = map.p, .n_text = map.n, .longest = true },
            r->e);
    buf_release(&map);
    return rc;
}

/* "t5": SentencePiece unigram, with a charsmap as its normalizer. */
static int build_unigram(struct gguf_reader *r)
{
    struct tokenizer *t = r->t;
    int rc;

    if ((rc = read_scores(r)) != OK || (rc = read_charsmap(r)) != OK) return rc;
    t->model = MODEL_UNIGRAM;
    if (read_flag(r, KEY("remove_extra_whitespaces"), false) &&
        (rc = normalizer_add_step(&t->normalizer,
                                  (struct normalizer_step){ .kind = NORMAL_SQUEEZE }, r->e)) != OK)
        return rc;
    if ((rc = add_marks(r, read_flag(r, KEY("add_space_prefix"), true))) != OK) return rc;
    if ((rc = read_ids(r, (struct defaults){ -1, 1, 2, false, true })) != OK) return rc;
    for (int i = 0; i < t->vocab.n; i++)
        if (t->types[i] == TYPE_USER) t->scores[i] = 0; /* the best: such a piece is always used */
    t->spm = (struct spm){ .vocab = &t->vocab, .scores = t->scores, .unk = t->unk };
    if ((rc = spm_finish(&t->spm, true, r->e)) != OK) return rc;
    return add_decoders(r, false, t->space_prefix);
}

/* "bert": WordPiece. [CLS] and [SEP] are always added; files without their keys have them as BOS
 * and EOS, or at the ids of the original BERT. */
static int build_wordpiece(struct gguf_reader *r)
{
    struct tokenizer *t = r->t;
    int32_t cls, sep;
    int rc;

    t->model = MODEL_WORDPIECE;
    if ((rc = read_ids(r, (struct defaults){ -1, -1, 100, false, false })) != OK ||
        (rc = read_id(r, KEY("cls_token_id"), t->bos >= 0 ? t->bos : 101, &cls)) != OK ||
        (rc = read_id(r, KEY("seperator_token_id") /* sic */, t->eos >= 0 ? t->eos : 102, &sep)) !=
            OK)
        return rc;
    if (t->bos < 0) t->bos = cls;
    if (t->eos < 0) t->eos = sep;
    t->n_before = t->n_after = 0;
    if (cls >= 0) t->before[t->n_before++] = cls;
    if (sep >= 0) t->after[t->n_after++] = sep;
    bool lower = read_flag(r, KEY("normalizer.lowercase"), true);
    struct normalizer_step clean = { .kind = NORMAL_WORDPIECE,
                                     .lower = lower,
                                     .accents =
                                         read_flag(r, KEY("normalizer.strip_accents"), lower) };
    struct pretok_step spaces = { .kind = PRETOK_CHAR, .behavior = SPLIT_REMOVED, .ch = ' ' };
    if ((rc = normalizer_add_step(&t->normalizer, clean, r->e)) != OK ||
        (rc = pretok_add_step(&t->pretok, spaces, r->e)) != OK)
        return rc;
    /* GGUF marks the starts of words, where BERT's own vocabulary marks insides with "##" */
    t->wordpiece =
        (struct wordpiece){ .vocab = &t->vocab, .first = STR(SPACE_MARK), .unk = t->unk };
    return add_decoders(r, false, true);
}

/* How an encoder reads a pair of texts, which GGUF has no key for: "[CLS] A [SEP] B [SEP]", with token
 * types where the model has two; RoBERTa and XLM-RoBERTa have "</s></s>" between A and B, and one type.
 * Other models take one text after the other. */
static void set_pair(struct gguf_reader *r)
{
    struct tokenizer *t = r->t;
    struct str arch = STR("");
    uint64_t n_types = 2;
    bool wordpiece = t->model == MODEL_WORDPIECE, twice;

    source_str(r->src, "general.architecture", &arch);
    source_u64(r->src, KEY("token_type_count"), &n_types);
    twice = !wordpiece && (str_is(arch, "bert") || str_is(arch, "jina-bert-v3"));
    if (t->n_before != 1 || t->n_after != 1 || !(wordpiece || twice || str_is(arch, "modern-bert")))
        return;
    t->pair = (struct pair_form){ .known = true,
                                  .front = { t->before[0] },
                                  .mid = { t->after[0], t->after[0] },
                                  .end = { t->after[0] },
                                  .n_front = 1,
                                  .n_mid = 1 + twice,
                                  .n_end = 1,
                                  .second = wordpiece && n_types > 1 ? 1 : -1 };
}

/* Vocabulary and types first: every kind of model needs them. Added tokens last: they depend on the
 * types, and tokenizer_finish on them. */
int tokfile_read_gguf(struct tokenizer *t, const struct source *src, struct err *e)
{
    static const struct {
        const char *name;
        int (*build)(struct gguf_reader *);
    } kinds[] = {
        { "gpt2", build_bpe },       { "llama", build_spm },         { "t5", build_unigram },
        { "bert", build_wordpiece }, { "gemma4", build_marked_bpe },
    };
    struct gguf_reader r = { .t = t, .src = src, .e = e };
    size_t i = 0, n = sizeof kinds / sizeof *kinds;
    struct str model;
    int rc;

    if (!source_str(src, KEY("model"), &model))
        return err_set(e, E_NOTFOUND, "%s: the file has no tokenizer (%s is missing)",
                       source_path(src), KEY("model"));
    while (i < n && !str_is(model, kinds[i].name)) i++;
    if (i == n)
        return err_set(e, E_UNSUPPORTED, "%s: tokenizer.ggml.model '%.*s' is not supported",
                       source_path(src), STR_ARG(str_take(model, 60)));
    if ((rc = read_tokens(&r)) != OK || (rc = read_types(&r)) != OK ||
        (rc = kinds[i].build(&r)) != OK || (rc = read_added(&r)) != OK)
        return rc;
    source_str(src, "tokenizer.chat_template", &t->chat_template);
    source_str(src, "tokenizer.chat_template.tool_use", &t->tool_template);
    source_str(src, "tokenizer.chat_template.rerank", &t->rank_template);
    set_pair(&r);
    return tokenizer_finish(t, e);
}
