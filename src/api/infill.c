/* infill.c - fill in the middle: the text between a prefix and a suffix, for `suffix` of
 * /v1/completions and /api/generate, and for /infill.
 *
 * The model must have been trained for it: it then has tokens for the three places, which are found
 * by their names. The prompt is PREFIX prefix SUFFIX suffix MIDDLE. */
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

static int make_prompt(const struct tokenizer *t, const int32_t ids[3], struct str extra,
                       struct str prefix, struct str suffix, struct ids *out, struct err *e)
{
    int32_t bos = tokenizer_bos(t);
    int rc = OK;

    if (tokenizer_adds_bos(t) && bos >= 0) ids_add(out, &bos, 1);
    if (extra.n) rc = tokenizer_encode(t, extra, ENCODE_PLAIN, out, e);
    if (rc == OK) rc = add_piece(t, ids[0], prefix, out, e);
    if (rc == OK) rc = add_piece(t, ids[1], suffix, out, e);
    if (rc == OK) rc = add_piece(t, ids[2], STR(""), out, e);
    return rc == OK ? ids_check(out, e) : rc;
}

int call_prepare_infill(struct call *c, struct err *e)
{
    const struct tokenizer *t = engine_tokenizer(c->model->engine);
    struct str texts[3] = { c->p.extra, c->p.prompts[0].text, c->p.suffix };
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
    if ((rc = call_check_length(c, texts, 3, "prompt", e)) != OK) return rc;
    call_blame(c, "%s", "");
    rc = make_prompt(t, ids, texts[0], texts[1], texts[2], &prompt, e);
    if (rc == OK) rc = call_make_requests(c, &prompt, 1, STR(""), e);
    ids_release(&prompt);
    return rc;
}
