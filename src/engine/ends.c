/* ends.c - end tokens from three places: keys of the model's files, the tokenizer's EOS, and well
 * known names in the vocabulary. A model usually lists only some of them. */
#include "engine/ends.h"

static const char *const keys[] = {
    "eos_token_id",
    "text_config.eos_token_id",
    "generation_config:eos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
};

/* End tokens that files often do not list: a chat model's end of turn, beside its base model's end
 * of text. */
static const char *const names[] = {
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eot|>",
    "<end_of_turn>",
    "<turn|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|END_OF_TURN_TOKEN|>",
    "<｜end▁of▁sentence｜>",
};

bool ends_has(const struct ends *e, int32_t id)
{
    for (int i = 0; i < e->n; i++)
        if (e->ids[i] == id) return true;
    return false;
}

static void add_id(struct ends *e, int64_t id, int n_vocab)
{
    if (id < 0 || id >= n_vocab || e->n == ENDS_MAX || ends_has(e, (int32_t)id)) return;
    e->ids[e->n++] = (int32_t)id;
}

/* A key holds one id or a list of ids. */
static void add_key(struct ends *e, const struct source *src, const char *key, int n_vocab)
{
    struct value v, item;
    int64_t id;

    if (!source_key(src, key, &v)) return;
    if (v.kind != VALUE_LIST) {
        if (value_i64(&v, &id)) add_id(e, id, n_vocab);
        return;
    }
    for (size_t i = 0; i < v.n && i < ENDS_MAX; i++)
        if (value_at(&v, i, &item) && value_i64(&item, &id)) add_id(e, id, n_vocab);
}

void ends_find(struct ends *out, const struct source *src, const struct tokenizer *tok, int n_vocab)
{
    *out = (struct ends){ 0 };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) add_key(out, src, keys[i], n_vocab);
    if (!tok) return;
    add_id(out, tokenizer_eos(tok), n_vocab);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct str name = str_c(names[i]);
        /* In the harmony format a completion ends with <|return|>; <|end|> ends one message. */
        if (str_is(name, "<|end|>") && tokenizer_find(tok, STR("<|return|>")) >= 0) continue;
        add_id(out, tokenizer_find(tok, name), n_vocab);
    }
}
