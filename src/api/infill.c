/* infill.c - fill in the middle: the text between a prefix and a suffix, for `suffix` of
 * /v1/completions and /api/generate, and for /infill.
 *
 * The model must have been trained for it: it then has tokens for the three places, which are found
 * by their names. The prompt is PREFIX prefix SUFFIX suffix MIDDLE. Other files of the project come
 * before it, as models were trained on whole repositories:
 *
 *     REPOSITORY name \n  FILE path \n text \n  …  FILE path \n  PREFIX …
 *
 * Without a token for FILE they are plain text, each below a line "--- path". */
#include "api/call.h"

#include "engine/engine.h"
#include "pool/pool.h"

struct fim {
    const char *prefix, *suffix, *middle;
};

/* Qwen, StarCoder, CodeGemma, CodeLlama, DeepSeek, Codestral, Granite, and others after them. */
static const struct fim forms[] = {
    { "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>" },
    { "<fim_prefix>", "<fim_suffix>", "<fim_middle>" },
    { "<fim-prefix>", "<fim-suffix>", "<fim-middle>" },
    { "<|fim_begin|>", "<|fim_hole|>", "<|fim_end|>" },
    { "<\xef\xbd\x9c"
      "fim\xe2\x96\x81"
      "begin\xef\xbd\x9c>",
      "<\xef\xbd\x9c"
      "fim\xe2\x96\x81"
      "hole\xef\xbd\x9c>",
      "<\xef\xbd\x9c"
      "fim\xe2\x96\x81"
      "end\xef\xbd\x9c>" },
    { "\xe2\x96\x81<PRE>", "\xe2\x96\x81<SUF>", "\xe2\x96\x81<MID>" },
    { "<PRE>", "<SUF>", "<MID>" },
    { "[PREFIX]", "[SUFFIX]", "[MIDDLE]" },
    { "<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>" },
};

static bool find_form(const struct tokenizer *t, int32_t ids[3])
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        ids[0] = tokenizer_find(t, str_c(forms[i].prefix));
        ids[1] = tokenizer_find(t, str_c(forms[i].suffix));
        ids[2] = tokenizer_find(t, str_c(forms[i].middle));
        if (ids[0] >= 0 && ids[1] >= 0 && ids[2] >= 0) return true;
    }
    return false;
}

static int add_piece(const struct tokenizer *t, int32_t id, struct str text, struct ids *out,
                     struct err *e)
{
    ids_add(out, &id, 1);
    return text.n ? tokenizer_encode(t, text, ENCODE_PLAIN, out, e) : OK;
}

/* ---- other files of the project ---- */

/* The names that a repository and the file being edited have: clients do not tell them. */
#define REPOSITORY_NAME "repository\n"
#define FILE_NAME "current_file\n"

/* The first of the names that the vocabulary has; -1: none. */
static int32_t find_one(const struct tokenizer *t, const char *const *names)
{
    int32_t id = -1;

    for (; *names && id < 0; names++) id = tokenizer_find(t, str_c(*names));
    return id;
}

static int add_text(const struct tokenizer *t, const struct buf *text, struct ids *out,
                    struct err *e)
{
    int rc = buf_check(text, e);

    return rc == OK && text->n ? tokenizer_encode(t, buf_str(text), ENCODE_PLAIN, out, e) : rc;
}

/* sep -1: a line instead of the token. */
static int add_file(const struct tokenizer *t, int32_t sep, const struct infill_file *f,
                    struct buf *text, struct ids *out, struct err *e)
{
    buf_clear(text);
    if (sep >= 0) ids_add(out, &sep, 1);
    else if (f->name.p) buf_puts(text, "--- ");
    if (f->name.p || sep >= 0) {
        buf_put_str(text, f->name);
        buf_putc(text, '\n');
    }
    buf_put_str(text, f->text);
    buf_putc(text, '\n');
    return add_text(t, text, out, e);
}

/* Qwen, StarCoder 2, CodeGemma, Granite. */
static int add_files(const struct call *c, const struct tokenizer *t, struct ids *out,
                     struct err *e)
{
    static const char *const repos[] = { "<|repo_name|>", "<repo_name>", "<|reponame|>",
                                         "<reponame>", NULL },
                             *const seps[] = { "<|file_sep|>", "<file_sep>", "<|file_separator|>",
                                               NULL };
    int32_t sep = find_one(t, seps), repo = sep < 0 ? -1 : find_one(t, repos);
    struct buf text = { 0 };
    int rc = OK;

    if (c->p.n_files == 0) return OK;
    if (repo >= 0) rc = add_piece(t, repo, STR(REPOSITORY_NAME), out, e);
    for (int i = 0; i < c->p.n_files && rc == OK; i++)
        rc = add_file(t, sep, &c->p.files[i], &text, out, e);
    if (rc == OK && sep >= 0) rc = add_piece(t, sep, STR(FILE_NAME), out, e);
    buf_release(&text);
    return rc;
}

static int make_prompt(const struct call *c, const struct tokenizer *t, const int32_t ids[3],
                       struct ids *out, struct err *e)
{
    int32_t bos = tokenizer_bos(t);
    int rc;

    if (tokenizer_adds_bos(t) && bos >= 0) ids_add(out, &bos, 1);
    rc = add_files(c, t, out, e);
    if (rc == OK) rc = add_piece(t, ids[0], c->p.prompts[0].text, out, e);
    if (rc == OK) rc = add_piece(t, ids[1], c->p.suffix, out, e);
    if (rc == OK) rc = add_piece(t, ids[2], STR(""), out, e);
    return rc == OK ? ids_check(out, e) : rc;
}

static int check_length(struct call *c, struct err *e)
{
    int n = 2 * c->p.n_files;
    struct str *texts = arena_array(&c->arena, (size_t)n + 2, sizeof *texts);

    if (!texts) return err_nomem(e, "the request");
    for (int i = 0; i < c->p.n_files; i++) {
        texts[2 * i] = c->p.files[i].name;
        texts[2 * i + 1] = c->p.files[i].text;
    }
    texts[n] = c->p.prompts[0].text;
    texts[n + 1] = c->p.suffix;
    return call_check_length(c, texts, n + 2, "prompt", e);
}

int call_prepare_infill(struct call *c, struct err *e)
{
    const struct tokenizer *t = engine_tokenizer(c->model->engine);
    struct ids prompt = { 0 };
    int32_t ids[3];
    int rc;

    call_blame(c, "%s", c->p.field ? c->p.field : "suffix");
    if (c->p.n_prompts != 1 || !c->p.prompts[0].text.p)
        return err_set(e, E_INVALID, "suffix needs one prompt that is a text");
    if (!t || !find_form(t, ids))
        return err_set(
            e, E_INVALID,
            "the model %s cannot fill in the middle: its vocabulary has no tokens for it",
            c->model->id);
    if ((rc = check_length(c, e)) != OK) return rc;
    call_blame(c, "%s", "");
    rc = make_prompt(c, t, ids, &prompt, e);
    if (rc == OK) rc = call_make_requests(c, &prompt, 1, STR(""), e);
    ids_release(&prompt);
    return rc;
}
