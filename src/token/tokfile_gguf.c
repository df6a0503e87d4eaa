/* tokgguf.c - a tokenizer from GGUF's tokenizer.* keys. */
#include "base/log.h"
#include "base/mem.h"
#include "token/tokmodel.h"
#include "token/tokenizer_impl.h"
#include "token/pretok.h"

#define KEY(name) "tokenizer.ggml." name
#define MARK "\xe2\x96\x81"

enum {
    TYPE_NORMAL = 1,
    TYPE_UNKNOWN = 2,
    TYPE_CONTROL = 3,
    TYPE_USER = 4,
    TYPE_UNUSED = 5,
    TYPE_BYTE = 6
};

struct reader {
    struct tokenizer *t;
    const struct source *src;
    struct err *e;
};

static int fail_at(const struct reader *r, const char *key, const char *what)
{
    return err_set(r->e, E_FORMAT, "%s: %s %s", source_path(r->src), key, what);
}

/* ---- the vocabulary ---- */

static int read_tokens(struct reader *r)
{
    struct tokenizer *t = r->t;
    struct value list, v;
    int rc;

    if (!source_key(r->src, KEY("tokens"), &list) || list.kind != VALUE_LIST || list.n == 0)
        return fail_at(r, KEY("tokens"),
                       "is missing, empty or no list: the file has no vocabulary");
    if (list.n > VOCAB_MAX_ID)
        return fail_at(r, KEY("tokens"), "has more tokens than are supported");
    if ((rc = vocab_init(&t->vocab, (int)list.n, (int)list.n, r->e)) != OK) return rc;
    for (size_t i = 0; i < list.n; i++) {
        if (!value_at(&list, i, &v) || v.kind != VALUE_STR)
            return fail_at(r, KEY("tokens"), "holds something but text");
        vocab_put(&t->vocab, v.s, (int32_t)i);
    }
    return OK;
}

static int read_types(struct reader *r)
{
    struct tokenizer *t = r->t;
    struct value list, v;
    int64_t type;

    t->types = mem_array((size_t)t->vocab.n, sizeof *t->types);
    for (int i = 0; i < t->vocab.n; i++) t->types[i] = TYPE_NORMAL;
    if (!source_key(r->src, KEY("token_type"), &list)) return OK;
    if (list.kind != VALUE_LIST || list.n != (size_t)t->vocab.n)
        return fail_at(r, KEY("token_type"), "has not one type for each token");
    for (size_t i = 0; i < list.n; i++) {
        if (!value_at(&list, i, &v) || !value_i64(&v, &type))
            return fail_at(r, KEY("token_type"), "holds no numbers");
        t->types[i] = type >= TYPE_NORMAL && type <= TYPE_BYTE ? (int32_t)type : TYPE_NORMAL;
    }
    return OK;
}

static int read_scores(struct reader *r)
{
    struct tokenizer *t = r->t;
    struct value list, v;

    if (!source_key(r->src, KEY("scores"), &list) || list.kind != VALUE_LIST ||
        list.n != (size_t)t->vocab.n)
        return fail_at(r, KEY("scores"), "has not one score for each token");
    t->scores = mem_array(list.n + 1, sizeof *t->scores);
    for (size_t i = 0; i < list.n; i++)
        if (!value_at(&list, i, &v) || !value_f64(&v, &t->scores[i]))
            return fail_at(r, KEY("scores"), "holds no numbers");
    return OK;
}

/* User-defined tokens are found in any text, control tokens unless they are to be text. */
static void read_added(struct tokenizer *t)
{
    int n = 0;

    for (int i = 0; i < t->vocab.n; i++)
        n += t->types[i] == TYPE_USER || t->types[i] == TYPE_CONTROL || t->types[i] == TYPE_UNKNOWN;
    t->added = mem_array((size_t)n + 1, sizeof *t->added);
    for (int i = 0; i < t->vocab.n; i++) {
        int32_t type = t->types[i];
        if (type != TYPE_USER && type != TYPE_CONTROL && type != TYPE_UNKNOWN) continue;
        if (!t->vocab.pieces[i].n) continue;
        t->added[t->n_added++] = (struct added_token){ .content = t->vocab.pieces[i],
                                                       .id = i,
                                                       .special = type != TYPE_USER };
    }
}

/* ---- merges ---- */

static int read_merges(struct reader *r)
{
    struct merger m = { .bpe = &r->t->bpe };
    struct value list, v;
    bool known = true;
    int rc;

    if (!source_key(r->src, KEY("merges"), &list) || list.kind != VALUE_LIST)
        return fail_at(r, KEY("merges"), "is missing or no list");
    if (list.n > BPE_MAX_MERGES)
        return fail_at(r, KEY("merges"), "has more merges than are supported");
    if ((rc = bpe_init(&r->t->bpe, &r->t->vocab, list.n, r->e)) != OK) return rc;
    for (size_t i = 0; i < list.n && known; i++) {
        const char *space = NULL;
        if (value_at(&list, i, &v) && v.kind == VALUE_STR && v.s.n > 1)
            space = memchr(v.s.p + 1, ' ', v.s.n - 1);
        if (!space) return fail_at(r, KEY("merges"), "holds something but pairs of pieces");
        size_t n = (size_t)(space - v.s.p);
        known = merger_add(&m, str_take(v.s, n), str_skip(v.s, n + 1));
    }
    if (known) known = merger_flush(&m);
    if (known) return OK;
    return err_set(r->e, E_FORMAT, "%s: %s: %s", source_path(r->src), KEY("merges"), m.why);
}

/* ---- ids and flags ---- */

static int read_id(struct reader *r, const char *key, int32_t def, int32_t *out)
{
    uint64_t id;

    *out = def < r->t->vocab.n ? def : -1;
    if (!source_u64(r->src, key, &id)) return OK;
    if (id == UINT32_MAX) { /* written so where there is none */
        *out = -1;
        return OK;
    }
    if (id >= (uint64_t)r->t->vocab.n)
        return err_set(r->e, E_FORMAT, "%s: %s is %llu, but there are %d tokens",
                       source_path(r->src), key, (unsigned long long)id, r->t->vocab.n);
    *out = (int32_t)id;
    return OK;
}

static bool flag(const struct reader *r, const char *key, bool def)
{
    bool v = def;
    return source_bool(r->src, key, &v) ? v : def;
}

/* What each kind of model has where the file is silent. */
struct defaults {
    int32_t bos, eos, unk;
    bool add_bos, add_eos;
};

static int read_ids(struct reader *r, struct defaults d)
{
    struct tokenizer *t = r->t;
    int rc;

    if ((rc = read_id(r, KEY("bos_token_id"), d.bos, &t->bos)) != OK ||
        (rc = read_id(r, KEY("eos_token_id"), d.eos, &t->eos)) != OK ||
        (rc = read_id(r, KEY("unknown_token_id"), d.unk, &t->unk)) != OK ||
        (rc = read_id(r, KEY("padding_token_id"), -1, &t->pad)) != OK)
        return rc;
    if (flag(r, KEY("add_bos_token"), d.add_bos) && t->bos >= 0) t->before[t->n_before++] = t->bos;
    if (flag(r, KEY("add_eos_token"), d.add_eos) && t->eos >= 0) t->after[t->n_after++] = t->eos;
    return OK;
}

/* ---- the kinds ---- */

static char *dup_mark(size_t *n)
{
    *n = sizeof MARK - 1;
    return mem_dup(MARK, *n);
}

static void add_decoders(struct tokenizer *t, bool bytes, bool strip)
{
    struct decode_step mark = { .kind = DECODE_REPLACE,
                                .replace = { .kind = NORMAL_REPLACE, .n_text = 1 } };

    mark.replace.text = mem_dup(" ", 1);
    mark.replace.find = dup_mark(&mark.replace.n_find);
    decode_add(&t->decode, mark);
    if (bytes) decode_add(&t->decode, (struct decode_step){ .kind = DECODE_FALLBACK });
    decode_add(&t->decode, (struct decode_step){ .kind = DECODE_FUSE });
    if (strip)
        decode_add(&t->decode,
                   (struct decode_step){
                       .kind = DECODE_STRIP, .text = mem_dup(" ", 1), .n_text = 1, .start = 1 });
}

/* A mark before the text, and one for each space in it. */
static void add_marks(struct tokenizer *t, bool prefix)
{
    struct normal_step mark = { .kind = NORMAL_PREPEND },
                       spaces = { .kind = NORMAL_REPLACE, .n_find = 1 };

    t->space_prefix = prefix;
    mark.text = dup_mark(&mark.n_text);
    if (prefix) normal_add(&t->normal, mark);
    else mem_free(mark.text);
    spaces.find = mem_dup(" ", 1);
    spaces.text = dup_mark(&spaces.n_text);
    normal_add(&t->normal, spaces);
}

static int build_bpe(struct reader *r)
{
    struct tokenizer *t = r->t;
    struct str pre = STR("default");
    bool ignore_merges;
    int rc;

    if (!source_str(r->src, KEY("pre"), &pre))
        log_warn(
            "%s: tokenizer.ggml.pre is missing: text is split in the default way, ids may differ",
            source_path(r->src));
    t->model = MODEL_BPE;
    t->pre = arena_cstr(&t->arena, pre);
    if ((rc = pretok_add(&t->split, pre, &ignore_merges, r->e)) != OK ||
        (rc = read_merges(r)) != OK)
        return rc;
    t->bpe.ignore_merges = ignore_merges;
    if (flag(r, KEY("normalizer.nfc"), pretok_composes(pre)))
        normal_add(&t->normal, (struct normal_step){ .kind = NORMAL_NFC });
    bpe_finish(&t->bpe, false);
    decode_add(&t->decode, (struct decode_step){ .kind = DECODE_BYTES });
    return read_ids(r, (struct defaults){
                           -1, -1, -1, str_is(pre, "llama-bpe") || str_is(pre, "llama3"), false });
}

static int build_spm(struct reader *r)
{
    struct tokenizer *t = r->t;
    int rc = read_scores(r);

    if (rc != OK) return rc;
    t->model = MODEL_SPM;
    add_marks(t, flag(r, KEY("add_space_prefix"), true));
    if ((rc = read_ids(r, (struct defaults){ 1, 2, 0, true, false })) != OK) return rc;
    if ((rc = bpe_init(&t->bpe, &t->vocab, 0, r->e)) != OK) return rc;
    for (int i = 0; i < t->vocab.n; i++)
        if (t->types[i] != TYPE_CONTROL) bpe_note_cuts(&t->bpe, t->vocab.pieces[i]);
    bpe_finish(&t->bpe, false);
    t->spm = (struct spm){
        .vocab = &t->vocab, .scores = t->scores, .unk = t->unk, .byte_fallback = true
    };
    spm_finish(&t->spm, false);
    add_decoders(t, true, t->space_prefix);
    return OK;
}

static int read_charsmap(struct reader *r)
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
    rc = normal_check_charsmap(buf_str(&map), r->e);
    if (rc == OK)
        normal_add(&r->t->normal,
                   (struct normal_step){
                       .kind = NORMAL_CHARSMAP, .text = map.p, .n_text = map.n, .longest = true });
    else buf_release(&map);
    return rc;
}

static int build_unigram(struct reader *r)
{
    struct tokenizer *t = r->t;
    int rc;

    if ((rc = read_scores(r)) != OK || (rc = read_charsmap(r)) != OK) return rc;
    t->model = MODEL_UNIGRAM;
    if (flag(r, KEY("remove_extra_whitespaces"), false))
        normal_add(&t->normal, (struct normal_step){ .kind = NORMAL_SQUEEZE });
    add_marks(t, flag(r, KEY("add_space_prefix"), true));
    if ((rc = read_ids(r, (struct defaults){ -1, 1, 2, false, true })) != OK) return rc;
    for (int i = 0; i < t->vocab.n; i++)
        if (t->types[i] == TYPE_USER) t->scores[i] = 0;
    t->spm = (struct spm){ .vocab = &t->vocab, .scores = t->scores, .unk = t->unk };
    spm_finish(&t->spm, true);
    add_decoders(t, false, t->space_prefix);
    return OK;
}

static int build_wordpiece(struct reader *r)
{
    struct tokenizer *t = r->t;
    int32_t cls, sep;
    int rc;

    t->model = MODEL_WORDPIECE;
    if ((rc = read_ids(r, (struct defaults){ -1, -1, 100, false, false })) != OK ||
        (rc = read_id(r, KEY("cls_token_id"), t->bos >= 0 ? t->bos : 101, &cls)) != OK ||
        (rc = read_id(r, KEY("seperator_token_id"), t->eos >= 0 ? t->eos : 102, &sep)) != OK)
        return rc;
    if (t->bos < 0) t->bos = cls;
    if (t->eos < 0) t->eos = sep;
    t->n_before = t->n_after = 0;
    if (cls >= 0) t->before[t->n_before++] = cls;
    if (sep >= 0) t->after[t->n_after++] = sep;
    bool lower = flag(r, KEY("normalizer.lowercase"), true);
    normal_add(&t->normal,
               (struct normal_step){ .kind = NORMAL_WORDPIECE,
                                     .lower = lower,
                                     .accents = flag(r, KEY("normalizer.strip_accents"), lower) });
    split_add(&t->split,
              (struct split_step){ .kind = SPLIT_CHAR, .behavior = SPLIT_REMOVED, .ch = ' ' });
    t->wordpiece = (struct wordpiece){ .vocab = &t->vocab, .first = STR(MARK), .unk = t->unk };
    add_decoders(t, false, true);
    return OK;
}

int tokgguf_build(struct tokenizer *t, const struct source *src, struct err *e)
{
    static const struct {
        const char *name;
        int (*build)(struct reader *);
    } kinds[] = {
        { "gpt2", build_bpe },
        { "llama", build_spm },
        { "t5", build_unigram },
        { "bert", build_wordpiece },
    };
    struct reader r = { .t = t, .src = src, .e = e };
    size_t i = 0, n = sizeof kinds / sizeof *kinds;
    struct str model;
    int rc;

    if (!source_str(src, KEY("model"), &model))
        return err_set(e, E_NOTFOUND, "%s: there is no tokenizer in it (%s is missing)",
                       source_path(src), KEY("model"));
    while (i < n && !str_is(model, kinds[i].name)) i++;
    if (i == n)
        return err_set(e, E_UNSUPPORTED, "%s: tokenizer '%.*s' is not supported", source_path(src),
                       STR_ARG(str_take(model, 60)));
    if ((rc = read_tokens(&r)) != OK || (rc = read_types(&r)) != OK ||
        (rc = kinds[i].build(&r)) != OK)
        return rc;
    read_added(t);
    source_str(src, "tokenizer.chat_template", &t->chat_template);
    source_str(src, "tokenizer.chat_template.tool_use", &t->tool_template);
    return tokenizer_finish(t, e);
}
