#include "token/tokenizer.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "token/tokenizer_impl.h"

enum {
    MAX_JSON_BYTES = 512 << 20,
    MAX_CONFIG_BYTES = 32 << 20,
    MAX_TEXT_BYTES = 1 << 29,
    KEEP_BYTES = 16 << 20
};

/* ---- opening and closing ---- */

static struct tokenizer *new_tokenizer(void)
{
    struct tokenizer *t = mem_new(struct tokenizer);

    t->bos = t->eos = t->unk = t->pad = -1;
    t->bpe.unk = t->spm.unk = t->wordpiece.unk = -1;
    return t;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t) return;
    for (int i = 0; i < N_SCRATCH; i++) scratch_close(atomic_load(&t->idle[i]));
    added_release(&t->in_raw);
    added_release(&t->in_normal);
    normal_release(&t->normal);
    split_release(&t->split);
    decode_release(&t->decode);
    bpe_release(&t->bpe);
    spm_release(&t->spm);
    vocab_release(&t->vocab);
    mem_free(t->own_pieces);
    mem_free(t->special);
    mem_free(t->scores);
    mem_free(t->merges);
    mem_free(t->types);
    mem_free(t->export_scores);
    mem_free(t->export_pieces);
    mem_free(t->added);
    arena_release(&t->arena);
    source_close(t->source);
    mem_free(t);
}

/* A token that is looked for in normalized text is normalized itself. */
static int place_added(struct tokenizer *t, int i, struct scratch *w, struct err *e)
{
    struct str content = t->added[i].content;
    int rc;

    if (!t->added[i].normalized) {
        added_put(&t->in_raw, content, i);
        return OK;
    }
    if ((rc = normal_run(&t->normal, w->matcher, content, w->normal, &content, e)) == OK)
        added_put(&t->in_normal, content, i);
    return rc;
}

int tokenizer_finish(struct tokenizer *t, struct err *e)
{
    struct scratch *w = t->n_added ? scratch_open() : NULL;
    int rc = OK;

    t->n = t->vocab.n;
    for (int i = 0; i < t->n_added; i++)
        if (t->added[i].id >= t->n) t->n = t->added[i].id + 1;
    t->special = mem_array((size_t)t->n + 1, sizeof *t->special);
    t->pieces = t->vocab.pieces;
    if (t->n > t->vocab.n) {
        t->pieces = t->own_pieces = mem_array((size_t)t->n, sizeof *t->pieces);
        if (t->vocab.n) memcpy(t->pieces, t->vocab.pieces, (size_t)t->vocab.n * sizeof *t->pieces);
    }
    t->in_raw.tokens = t->in_normal.tokens = t->added;
    for (int pass = 1; pass >= 0; pass--) /* special ones come first where texts are equal */
        for (int i = 0; i < t->n_added && rc == OK; i++) {
            if (t->added[i].special != pass) continue;
            if (t->own_pieces) t->pieces[t->added[i].id] = t->added[i].content;
            t->special[t->added[i].id] |= t->added[i].special;
            rc = place_added(t, i, w, e);
        }
    if (w) atomic_store(&t->idle[0], w);
    return rc;
}

int tokenizer_from_json(struct tokenizer **out, struct str json, struct str config,
                        const char *name, struct err *e)
{
    struct tokenizer *t = new_tokenizer();
    int rc = tokjson_build(t, json, config, name, e);

    if (rc == OK) *out = t, t = NULL;
    tokenizer_close(t);
    return rc;
}

static int from_files(struct tokenizer **out, const char *path, const char *config_path,
                      struct err *e)
{
    struct buf json = { 0 }, config = { 0 };
    int rc = file_read_gz(&json, path, MAX_JSON_BYTES, e);

    if (rc == OK && config_path && file_exists(config_path))
        rc = file_read(&config, config_path, MAX_CONFIG_BYTES, e);
    if (rc == OK)
        rc = tokenizer_from_json(out, buf_str(&json), buf_str(&config), path_base(path), e);
    buf_release(&json);
    buf_release(&config);
    return rc;
}

/* Newer folders keep chat templates in files of their own. */
static void read_template(struct tokenizer *t, const char *dir, const char *name, struct str *out)
{
    char *path = path_join(dir, name);
    struct buf text = { 0 };

    if (file_exists(path) && file_read(&text, path, MAX_CONFIG_BYTES, NULL) == OK)
        *out = arena_str(&t->arena, buf_str(&text));
    buf_release(&text);
    mem_free(path);
}

static int from_folder(struct tokenizer **out, const char *dir, struct err *e)
{
    char *json = path_join(dir, "tokenizer.json"), *gz = path_join(dir, "tokenizer.json.gz");
    char *config = path_join(dir, "tokenizer_config.json");
    int rc;

    if (file_exists(json)) rc = from_files(out, json, config, e);
    else if (file_exists(gz)) rc = from_files(out, gz, config, e);
    else rc = err_set(e, E_NOTFOUND, "%s: there is no tokenizer.json", dir);
    if (rc == OK) {
        read_template(*out, dir, "chat_template.jinja", &(*out)->chat_template);
        read_template(*out, dir, "additional_chat_templates/tool_use.jinja",
                      &(*out)->tool_template);
    }
    mem_free(json);
    mem_free(gz);
    mem_free(config);
    return rc;
}

static int from_gguf(struct tokenizer **out, const char *path, struct err *e)
{
    struct tokenizer *t = new_tokenizer();
    int rc = source_open(&t->source, path, e);

    if (rc == OK) rc = tokgguf_build(t, t->source, e);
    if (rc == OK) *out = t, t = NULL;
    tokenizer_close(t);
    return rc;
}

int tokenizer_from_source(struct tokenizer **out, const struct source *src, struct err *e)
{
    struct tokenizer *t;
    int rc;

    if (source_kind(src) == SOURCE_HF) return from_folder(out, source_path(src), e);
    t = new_tokenizer();
    rc = tokgguf_build(t, src, e);
    if (rc == OK) *out = t, t = NULL;
    tokenizer_close(t);
    return rc;
}

/* The companion of dir/tokenizer.json. */
static char *config_beside(const char *path)
{
    char *dir = mem_strdup(path), *config;

    dir[path_base(path) - path] = 0;
    config = path_join(*dir ? dir : ".", "tokenizer_config.json");
    mem_free(dir);
    return config;
}

int tokenizer_open(struct tokenizer **out, const char *path, struct err *e)
{
    struct filemap head = { 0 };
    char *config;
    bool gguf;
    int rc;

    if (file_is_dir(path)) return from_folder(out, path, e);
    if ((rc = filemap_open(&head, path, e)) != OK) return rc;
    gguf = head.n >= 4 && memcmp(head.p, "GGUF", 4) == 0;
    filemap_release(&head);
    if (gguf) return from_gguf(out, path, e);
    config = config_beside(path);
    rc = from_files(out, path, config, e);
    mem_free(config);
    return rc;
}

/* ---- scratch memory ---- */

static struct scratch *take_scratch(const struct tokenizer *t)
{
    _Atomic(struct scratch *) *idle = ((struct tokenizer *)t)->idle;

    for (int i = 0; i < N_SCRATCH; i++) {
        struct scratch *s = atomic_exchange(&idle[i], NULL);
        if (s) return s;
    }
    return scratch_open();
}

static void give_scratch(const struct tokenizer *t, struct scratch *s)
{
    _Atomic(struct scratch *) *idle = ((struct tokenizer *)t)->idle;

    for (int i = 0; i < N_SCRATCH && s->text.cap <= KEEP_BYTES; i++) {
        struct scratch *none = NULL;
        if (atomic_compare_exchange_strong(&idle[i], &none, s)) return;
    }
    scratch_close(s);
}

/* ---- encoding ---- */

struct encoding {
    const struct tokenizer *t;
    struct scratch *w;
    struct ids *out;
    bool plain;
    struct err *e;
};

static int encode_wordlevel(struct encoding *x, struct str word)
{
    int32_t id = vocab_find(&x->t->vocab, word);

    if (id < 0) id = x->t->wordpiece.unk;
    if (id < 0)
        return err_set(x->e, E_FORMAT,
                       "'%.*s' is not in the vocabulary, which has no unknown token",
                       STR_ARG(str_take(word, 60)));
    ids_push(x->out, id);
    return OK;
}

static int encode_model(struct encoding *x, struct str word, bool raw)
{
    const struct tokenizer *t = x->t;

    switch (t->model) {
    case MODEL_BPE: bpe_encode(&t->bpe, x->w, word, raw, x->out); return OK;
    case MODEL_SPM: spm_merge(&t->spm, x->w, word, x->out); return OK;
    case MODEL_UNIGRAM: return spm_unigram(&t->spm, x->w, word, x->out, x->e);
    case MODEL_WORDPIECE: wordpiece_encode(&t->wordpiece, x->w, word, x->out); return OK;
    case MODEL_WORDLEVEL: return encode_wordlevel(x, word);
    }
    return err_set(x->e, E_INTERNAL, "a tokenizer of no kind");
}

/* The word's bytes, filled up with zeros. Reads past the end of it, which scratch texts allow. */
static inline void word_key(const char *p, size_t n, uint64_t key[4])
{
    memcpy(key, p, WORD_BYTES);
    for (size_t i = 0; i < 4; i++) {
        size_t have = n > 8 * i ? n - 8 * i : 0;
        if (have < 8) key[i] &= (1ull << 8 * have) - 1;
    }
}

static inline uint32_t word_slot(const uint64_t key[4], size_t n)
{
    uint64_t h = (key[0] + n) * 0x9e3779b97f4a7c15u;

    h = (h ^ h >> 32 ^ key[1]) * 0xff51afd7ed558ccdu;
    if (n > 16) h = (h ^ h >> 32 ^ key[2] ^ key[3] * 3) * 0xc4ceb9fe1a85ec53u;
    return (uint32_t)(h >> 40) & (WORD_SLOTS - 1);
}

/* A word most texts have met before. */
static inline int encode_word(struct encoding *x, struct str word, bool raw)
{
    uint64_t key[4];
    struct word *c;
    size_t before = x->out->n;
    int rc;

    if (word.n > WORD_BYTES) return encode_model(x, word, raw);
    word_key(word.p, word.n, key);
    c = &x->w->words[word_slot(key, word.n)];
    if (c->n == word.n && c->mode == raw && memcmp(c->key, key, WORD_BYTES) == 0) {
        if (x->out->cap - before < WORD_IDS) ids_reserve(x->out, WORD_IDS);
        memcpy(x->out->p + before, c->ids, sizeof c->ids);
        x->out->n += c->n_ids;
        return OK;
    }
    rc = encode_model(x, word, raw);
    size_t n = x->out->n - before;
    if (rc != OK || n > WORD_IDS) return rc;
    memcpy(c->key, key, WORD_BYTES);
    memcpy(c->ids, x->out->p + before, n * sizeof *c->ids);
    c->n = (uint8_t)word.n, c->n_ids = (uint8_t)n, c->mode = raw;
    return OK;
}

/* A piece that may be a whole text: cut where no merge can reach across. */
static int encode_piece(struct encoding *x, struct str text)
{
    bool cuts = x->t->model == MODEL_BPE || x->t->model == MODEL_SPM;
    int rc = OK;

    while (text.n && rc == OK) {
        size_t n = cuts ? bpe_cut(&x->t->bpe, text) : text.n;
        rc = encode_word(x, str_take(text, n), false);
        text = str_skip(text, n);
    }
    return rc;
}

static int encode_split(struct encoding *x, struct str text, bool at_start)
{
    struct split_result r;
    int rc;

    if (text.n > UINT32_MAX / 2)
        return err_set(x->e, E_INVALID, "the text is too long to tokenize in one go");
    rc = split_run(&x->t->split, x->w, text, at_start, &r, x->e);
    if (rc != OK) return rc;
    ids_reserve(x->out, r.n + r.n / 4 + 8);
    for (size_t i = 0; i < r.n && rc == OK; i++) {
        struct str piece = str_of(r.text.p + r.pieces[i].at, r.pieces[i].n);
        rc = r.raw ? encode_word(x, piece, true) : encode_piece(x, piece);
    }
    return rc;
}

typedef int part_fn(struct encoding *x, struct str text, bool at_start);

/* Tokens found in text go out as they are, what is between them through fn. */
static int encode_between(struct encoding *x, const struct added *a, struct str text, bool at_start,
                          part_fn *fn)
{
    struct added_walk walk = { .a = a, .text = text, .plain = x->plain };
    const struct added_token *found;
    size_t before, start, from;
    int rc = OK;

    while (rc == OK && (found = added_next(&walk, &before, &start))) {
        if (before < start)
            rc = fn(x, str_of(text.p + before, start - before), at_start && before == 0);
        ids_push(x->out, found->id);
    }
    from = walk.done;
    if (rc == OK && from < text.n) rc = fn(x, str_skip(text, from), at_start && from == 0);
    return rc;
}

static int encode_normal(struct encoding *x, struct str text, bool at_start)
{
    int rc = normal_run(&x->t->normal, x->w->matcher, text, x->w->normal, &text, x->e);
    return rc == OK ? encode_between(x, &x->t->in_normal, text, at_start, encode_split) : rc;
}

int tokenizer_encode(const struct tokenizer *t, struct str text, unsigned flags, struct ids *out,
                     struct err *e)
{
    struct encoding x = { .t = t, .out = out, .plain = flags & ENCODE_PLAIN, .e = e };
    bool special = flags & ENCODE_SPECIAL;
    int rc;

    if (text.n > MAX_TEXT_BYTES)
        return err_set(e, E_INVALID,
                       "the text has %zu bytes; at most %d can be tokenized in one go", text.n,
                       MAX_TEXT_BYTES);
    for (int i = 0; special && i < t->n_before; i++) ids_push(out, t->before[i]);
    x.w = take_scratch(t);
    buf_clear(&x.w->text);
    text_put_valid(&x.w->text, text);
    buf_reserve(&x.w->text, 64);
    rc = encode_between(&x, &t->in_raw, buf_str(&x.w->text), true, encode_normal);
    give_scratch(t, x.w);
    for (int i = 0; special && i < t->n_after; i++) ids_push(out, t->after[i]);
    return rc;
}

static void push_all(struct ids *out, const int32_t *ids, int n)
{
    for (int i = 0; i < n; i++) ids_push(out, ids[i]);
}

int tokenizer_encode_pair(const struct tokenizer *t, struct str a, struct str b, struct ids *out,
                          int *second, struct err *e)
{
    const struct pair_form *p = &t->pair;
    size_t first = out->n;
    int rc;

    if (p->known) push_all(out, p->front, p->n_front);
    else push_all(out, t->before, t->n_before);
    if ((rc = tokenizer_encode(t, a, 0, out, e)) != OK) return rc;
    *second = p->known && p->second >= 0 ? (int)(out->n - first) + p->second : 0;
    if (p->known) push_all(out, p->mid, p->n_mid);
    else push_all(out, t->after, t->n_after);
    if ((rc = tokenizer_encode(t, b, 0, out, e)) != OK) return rc;
    if (p->known) push_all(out, p->end, p->n_end);
    else push_all(out, t->after, t->n_after);
    return OK;
}

/* ---- what it knows ---- */

int tokenizer_n(const struct tokenizer *t) { return t->n; }

struct str tokenizer_piece(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n ? t->pieces[id] : STR("");
}

int32_t tokenizer_find(const struct tokenizer *t, struct str piece)
{
    for (int i = 0; i < t->n_added; i++)
        if (str_eq(t->added[i].content, piece)) return t->added[i].id;
    return vocab_find(&t->vocab, piece);
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n && t->special[id];
}
int32_t tokenizer_bos(const struct tokenizer *t) { return t->bos; }
int32_t tokenizer_eos(const struct tokenizer *t) { return t->eos; }
bool tokenizer_is_byte_level(const struct tokenizer *t)
{
    return t->decode.n_steps == 1 && t->decode.steps[0].kind == DECODE_BYTES;
}
bool tokenizer_adds_bos(const struct tokenizer *t)
{
    return t->n_before > 0 && t->before[0] == t->bos;
}
int32_t tokenizer_unk(const struct tokenizer *t) { return t->unk; }
int32_t tokenizer_pad(const struct tokenizer *t) { return t->pad; }
struct str tokenizer_chat_template(const struct tokenizer *t) { return t->chat_template; }
struct str tokenizer_tool_template(const struct tokenizer *t) { return t->tool_template; }

void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                      struct buf *out)
{
    struct texts l = { 0 };

    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= t->n || !t->pieces[ids[i]].p) continue;
        if (!skip_special || !t->special[ids[i]]) texts_push(&l, t->pieces[ids[i]]);
    }
    decode_run(&t->decode, &l, false);
    text_put_valid(out, buf_str(&l.text));
    texts_release(&l);
}
