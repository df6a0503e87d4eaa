/* tohf_files.c - the JSON files beside config.json: the tokenizer and the sampling settings.
 *
 * Each is restored from the key of hfkeys.h that holds its text; without that key it is written
 * from the GGUF keys. */
#include "base/file.h"
#include "base/jsonw.h"
#include "base/mem.h"
#include "convert/hfkeys.h"
#include "convert/tohf.h"
#include "token/tokenizer.h"

#include <math.h>

static int write_text(const char *dir, const char *name, struct str text, struct err *e)
{
    char *path = path_join(dir, name);
    int rc = path ? file_replace(path, text, e) : err_nomem(e, "a file's path");

    mem_free(path);
    return rc;
}

/* Writes the file's text that the key holds. true: the key is there (*rc says how the write went).
 * Does nothing after an earlier failure in *rc. */
static bool restore_file(const struct source *src, const char *key, const char *dir,
                         const char *name, int *rc, struct err *e)
{
    struct str text;

    if (*rc != OK || !source_str(src, key, &text)) return false;
    *rc = write_text(dir, name, text, e);
    return true;
}

/* A special token by its text; nothing for an id outside the vocabulary. */
static void put_token(struct jsonw *w, const char *key, const struct token_export *x, int32_t id)
{
    if (id < 0 || id >= x->n) return;
    jsonw_key(w, key), jsonw_str(w, x->pieces[id]);
}

/* tokenizer_config.json with the keys that transformers needs to load the tokenizer. */
static int write_tokenizer_config(const struct tokenizer *t, const struct hparams *hp,
                                  const char *dir, struct err *e)
{
    struct token_export x;
    struct buf out = { 0 };
    struct jsonw w = { .out = &out };
    struct str chat = tokenizer_chat_template(t);
    int rc = tokenizer_export(t, &x, e);

    if (rc != OK) return rc;
    jsonw_obj(&w);
    jsonw_key(&w, "add_bos_token"), jsonw_bool(&w, x.add_bos);
    jsonw_key(&w, "add_eos_token"), jsonw_bool(&w, x.add_eos);
    put_token(&w, "bos_token", &x, x.bos);
    put_token(&w, "eos_token", &x, x.eos);
    put_token(&w, "unk_token", &x, x.unk);
    put_token(&w, "pad_token", &x, x.pad);
    if (chat.n) jsonw_key(&w, "chat_template"), jsonw_str(&w, chat);
    jsonw_key(&w, "clean_up_tokenization_spaces"), jsonw_bool(&w, false);
    jsonw_key(&w, "model_max_length"), jsonw_int(&w, hp->n_ctx);
    jsonw_key(&w, "tokenizer_class"), jsonw_str(&w, STR("PreTrainedTokenizerFast"));
    jsonw_end(&w);
    buf_putc(&out, '\n');
    rc = buf_check(&out, e);
    if (rc == OK) rc = write_text(dir, "tokenizer_config.json", buf_str(&out), e);
    buf_release(&out);
    return rc;
}

/* generation_config.json from GGUF's token ids and general.sampling.* keys. do_sample is written
 * only where there is a sampling setting. */
static int write_generation(const struct source *src, const char *dir, struct err *e)
{
    static const char *const numbers[][2] = { { "temperature", "general.sampling.temp" },
                                              { "top_p", "general.sampling.top_p" },
                                              { "min_p", "general.sampling.min_p" },
                                              { "top_k", "general.sampling.top_k" } };
    struct buf out = { 0 };
    struct jsonw w = { .out = &out };
    uint64_t eos, eot;
    double v;
    bool sample = false;
    int rc;

    jsonw_obj(&w);
    if (source_u64(src, "tokenizer.ggml.bos_token_id", &eos))
        jsonw_key(&w, "bos_token_id"), jsonw_int(&w, (int64_t)eos);
    if (source_u64(src, "tokenizer.ggml.eos_token_id", &eos)) {
        jsonw_key(&w, "eos_token_id"), jsonw_arr(&w), jsonw_int(&w, (int64_t)eos);
        if (source_u64(src, "tokenizer.ggml.eot_token_id", &eot) && eot != eos)
            jsonw_int(&w, (int64_t)eot);
        jsonw_end(&w);
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (source_f64(src, numbers[i][1], &v)) {
            /* rounded, so that an F32 0.7 is written as 0.7 */
            jsonw_key(&w, numbers[i][0]), jsonw_num(&w, round(v * 1e6) / 1e6);
            sample = true;
        }
    if (sample) jsonw_key(&w, "do_sample"), jsonw_bool(&w, true);
    jsonw_end(&w);
    buf_putc(&out, '\n');
    rc = buf_check(&out, e);
    if (rc == OK) rc = write_text(dir, "generation_config.json", buf_str(&out), e);
    buf_release(&out);
    return rc;
}

/* *no_tokenizer: tokenizer_to_json has no form for this kind; the folder is complete without it. */
static int write_tokenizer(const struct source *src, const struct hparams *hp, const char *dir,
                           bool *no_tokenizer, struct err *e)
{
    struct tokenizer *t = NULL;
    struct buf json = { 0 };
    int rc = OK;
    bool json_restored = restore_file(src, HFKEY_TOKENIZER, dir, "tokenizer.json", &rc, e);
    bool config_restored =
        restore_file(src, HFKEY_TOKENIZER_CONFIG, dir, "tokenizer_config.json", &rc, e);

    if (rc != OK || (json_restored && config_restored)) return rc;
    if ((rc = tokenizer_from_source(&t, src, e)) != OK) return rc;
    if (!json_restored) {
        rc = tokenizer_to_json(t, &json, e);
        if (rc == OK) rc = buf_check(&json, e);
        if (rc == OK) rc = write_text(dir, "tokenizer.json", buf_str(&json), e);
        else if (rc == E_UNSUPPORTED) *no_tokenizer = true, rc = OK;
    }
    if (rc == OK && !config_restored && !*no_tokenizer) rc = write_tokenizer_config(t, hp, dir, e);
    buf_release(&json);
    tokenizer_close(t);
    return rc;
}

int tohf_files(const struct source *src, const struct hparams *hp, const char *dir,
               bool *no_tokenizer, struct err *e)
{
    struct str model;
    int rc = OK;

    *no_tokenizer = false;
    if (source_str(src, "tokenizer.ggml.model", &model))
        rc = write_tokenizer(src, hp, dir, no_tokenizer, e);
    if (rc == OK && !restore_file(src, HFKEY_GENERATION, dir, "generation_config.json", &rc, e) &&
        rc == OK && source_str(src, "tokenizer.ggml.model", &model))
        rc = write_generation(src, dir, e);
    return rc;
}
