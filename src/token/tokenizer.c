/* tokenizer.c - opening and closing a tokenizer, and what it knows about its tokens.
 *
 * A tokenizer is built in one go by one thread: a reader (tokfile.h) fills vocabulary, steps and
 * added tokens, then tokenizer_finish completes the tables. If anything fails the half-built
 * tokenizer is closed again; a zeroed part of it is always valid to release. */
#include "token/tokenizer.h"

#include "base/file.h"
#include "base/mem.h"
#include "token/chars.h"
#include "token/tokenizer_impl.h"
#include "token/tokfile.h"

enum { MAX_JSON_BYTES = 512 << 20, MAX_CONFIG_BYTES = 32 << 20 };

/* ---- opening and closing ---- */

static struct tokenizer *new_tokenizer(struct err *e)
{
    struct tokenizer *t = mem_new(struct tokenizer);

    if (!t) {
        err_nomem(e, "a tokenizer");
        return NULL;
    }
    t->bos = t->eos = t->unk = t->pad = -1;
    t->bpe.unk = t->spm.unk = t->wordpiece.unk = -1;
    return t;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t) return;
    tokenizer_release_scratch(t);
    added_release(&t->in_raw);
    added_release(&t->in_normal);
    normalizer_release(&t->normalizer);
    pretok_release(&t->pretok);
    decoder_release(&t->decoder);
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

/* Hands t over to the caller, or closes it after a failure. */
static int finish_open(struct tokenizer **out, struct tokenizer *t, int rc)
{
    if (rc == OK) *out = t;
    else tokenizer_close(t);
    return rc;
}

/* The pieces by id: the vocabulary's array, or a copy of it where ids were added after its end. */
static bool make_pieces(struct tokenizer *t)
{
    t->pieces = t->vocab.pieces;
    if (t->n == t->vocab.n) return true;
    if (!(t->own_pieces = mem_array((size_t)t->n, sizeof *t->pieces))) return false;
    if (t->vocab.n) memcpy(t->own_pieces, t->vocab.pieces, (size_t)t->vocab.n * sizeof *t->pieces);
    t->pieces = t->own_pieces;
    return true;
}

int tokenizer_finish(struct tokenizer *t, struct err *e)
{
    int rc = OK;

    t->n = t->vocab.n;
    for (int i = 0; i < t->n_added; i++)
        if (t->added[i].id >= t->n) t->n = t->added[i].id + 1;
    t->special = mem_array((size_t)t->n + 1, sizeof *t->special);
    if (!t->special || !make_pieces(t)) return err_nomem(e, "the pieces of a tokenizer");
    t->in_raw.tokens = t->in_normal.tokens = t->added;
    for (int pass = 1; pass >= 0; pass--) /* of equal contents the special token counts */
        for (int i = 0; i < t->n_added && rc == OK; i++) {
            if (t->added[i].special != pass) continue;
            if (t->own_pieces) t->pieces[t->added[i].id] = t->added[i].content;
            t->special[t->added[i].id] |= t->added[i].special;
            rc = tokenizer_index_added(t, i, e);
        }
    return rc;
}

int tokenizer_from_json(struct tokenizer **out, struct str json, struct str config,
                        const char *name, struct err *e)
{
    struct tokenizer *t = new_tokenizer(e);

    if (!t) return E_NOMEM;
    return finish_open(out, t, tokfile_read_json(t, json, config, name, e));
}

/* A tokenizer.json with the tokenizer_config.json beside it, where there is one. */
static int open_json(struct tokenizer **out, const char *path, const char *config_path,
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

/* Newer folders have a chat template in a file of its own, which then counts. */
static int read_template_file(struct tokenizer *t, const char *dir, const char *name,
                              struct str *out, struct err *e)
{
    char *path = path_join(dir, name);
    struct buf text = { 0 };
    int rc = OK;

    if (!path) return err_nomem(e, "the path of a chat template");
    if (file_exists(path) && (rc = file_read(&text, path, MAX_CONFIG_BYTES, e)) == OK) {
        *out = arena_str(&t->arena, buf_str(&text));
        rc = arena_check(&t->arena, e);
    }
    buf_release(&text);
    mem_free(path);
    return rc;
}

/* A Hugging Face folder; tokenizer.json may be compressed. */
static int open_folder(struct tokenizer **out, const char *dir, struct err *e)
{
    char *json = path_join(dir, "tokenizer.json"), *gz = path_join(dir, "tokenizer.json.gz");
    char *config = path_join(dir, "tokenizer_config.json");
    struct tokenizer *t = NULL;
    int rc;

    if (!json || !gz || !config) rc = err_nomem(e, "the path of a tokenizer");
    else if (file_exists(json)) rc = open_json(&t, json, config, e);
    else if (file_exists(gz)) rc = open_json(&t, gz, config, e);
    else rc = err_set(e, E_NOTFOUND, "%s: there is no tokenizer.json in this folder", dir);
    if (rc == OK) rc = read_template_file(t, dir, "chat_template.jinja", &t->chat_template, e);
    if (rc == OK)
        rc = read_template_file(t, dir, "additional_chat_templates/tool_use.jinja",
                                &t->tool_template, e);
    mem_free(json);
    mem_free(gz);
    mem_free(config);
    return finish_open(out, t, rc);
}

/* The tokenizer owns the source: its pieces are in the mapped file. */
static int open_gguf(struct tokenizer **out, const char *path, struct err *e)
{
    struct tokenizer *t = new_tokenizer(e);
    int rc;

    if (!t) return E_NOMEM;
    rc = source_open_head(&t->source, path, e);
    if (rc == OK) rc = tokfile_read_gguf(t, t->source, e);
    return finish_open(out, t, rc);
}

/* A Hugging Face source has its tokenizer in files beside the weights, a GGUF source in its keys. */
int tokenizer_from_source(struct tokenizer **out, const struct source *src, struct err *e)
{
    struct tokenizer *t;

    if (source_kind(src) == SOURCE_HF) return open_folder(out, source_path(src), e);
    if (!(t = new_tokenizer(e))) return E_NOMEM;
    return finish_open(out, t, tokfile_read_gguf(t, src, e));
}

/* tokenizer_config.json in the folder of path; from mem_alloc, NULL: no memory. */
static char *find_config_beside(const char *path)
{
    char *dir = mem_strdup(path), *config;

    if (!dir) return NULL;
    dir[path_base(path) - path] = 0;
    config = path_join(*dir ? dir : ".", "tokenizer_config.json");
    mem_free(dir);
    return config;
}

/* A GGUF file is recognized by its magic, anything else is taken for JSON. */
int tokenizer_open(struct tokenizer **out, const char *path, struct err *e)
{
    struct filemap head = { 0 };
    char *config;
    bool gguf;
    int rc;

    if (file_is_dir(path)) return open_folder(out, path, e);
    if ((rc = filemap_open_head(&head, path, 4, e)) != OK) return rc;
    gguf = head.n >= 4 && memcmp(head.p, "GGUF", 4) == 0;
    filemap_release(&head);
    if (gguf) return open_gguf(out, path, e);
    if (!(config = find_config_beside(path))) return err_nomem(e, "the path of a tokenizer");
    rc = open_json(out, path, config, e);
    mem_free(config);
    return rc;
}

/* ---- tokens ---- */

int tokenizer_n(const struct tokenizer *t) { return t->n; }

struct str tokenizer_piece(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n ? t->pieces[id] : STR("");
}

/* Added tokens first: of equal texts they are the ones that encoding gives. */
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
int32_t tokenizer_unk(const struct tokenizer *t) { return t->unk; }
int32_t tokenizer_pad(const struct tokenizer *t) { return t->pad; }

bool tokenizer_adds_bos(const struct tokenizer *t)
{
    return t->n_before > 0 && t->before[0] == t->bos;
}

bool tokenizer_is_byte_level(const struct tokenizer *t)
{
    return t->decoder.n_steps == 1 && t->decoder.steps[0].kind == DECODE_BYTES;
}

struct str tokenizer_chat_template(const struct tokenizer *t) { return t->chat_template; }
struct str tokenizer_rank_template(const struct tokenizer *t) { return t->rank_template; }
struct str tokenizer_tool_template(const struct tokenizer *t) { return t->tool_template; }

/* ---- decoding ---- */

void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                      struct buf *out)
{
    struct text_list l = { 0 };

    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= t->n || !t->pieces[ids[i]].p) continue;
        if (!skip_special || !t->special[ids[i]]) text_list_add(&l, t->pieces[ids[i]]);
    }
    decoder_apply(&t->decoder, &l, false);
    if (l.text.failed) out->failed = true;
    else text_put_valid(out, buf_str(&l.text));
    text_list_release(&l);
}
