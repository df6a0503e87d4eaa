/* tokfile_json_post.c - the post-processor of a tokenizer.json: tokens around a text, and around a
 * pair of texts. */
#include "token/tokfile.h"

/* Adds a token before or after every text. */
static int add_id(struct tokenizer *t, bool after, int64_t id, const struct location *at,
                  struct err *e)
{
    int *n = after ? &t->n_after : &t->n_before;

    if (id < 0 || id >= VOCAB_MAX_ID)
        return location_fail(at, e, "id %lld, expected 0 to %d", (long long)id, VOCAB_MAX_ID - 1);
    if (*n == MAX_POST)
        return location_fail(at, e, "more than %d tokens on one side of the text", MAX_POST);
    (after ? t->after : t->before)[(*n)++] = (int32_t)id;
    return OK;
}

/* A token and its id: ["[CLS]", 101]. */
static int read_named_id(struct tokenizer *t, json_t *o, const char *key, bool after,
                         const struct location *at, struct err *e)
{
    json_t *id = json_array_get(json_object_get(o, key), 1);

    if (!json_is_integer(id)) return location_fail(at, e, "'%s' is not a token and its id", key);
    return add_id(t, after, json_integer_value(id), at, e);
}

/* The template of a pair: "[CLS] $A [SEP] $B:1 [SEP]:1", where ":1" is the token type. A template
 * of another shape leaves t->pair unknown: then the two texts are encoded one after the other. */
static void read_pair_form(struct tokenizer *t, json_t *pair, json_t *tokens)
{
    struct pair_form f = { .second = -1 };
    int part = 0; /* 0: before A, 1: between A and B, 2: after B */

    for (size_t i = 0; i < json_array_size(pair); i++) {
        json_t *x = json_array_get(pair, i), *seq = json_object_get(x, "Sequence"),
               *tok = json_object_get(x, "SpecialToken");
        const char *name = json_string_value(json_object_get(tok, "id"));
        json_t *ids = json_object_get(json_object_get(tokens, name ? name : ""), "ids");
        bool type1 = json_integer_value(json_object_get(seq ? seq : tok, "type_id")) == 1;
        int32_t *to = part == 0 ? f.front : part == 1 ? f.mid : f.end;
        int *n = part == 0 ? &f.n_front : part == 1 ? &f.n_mid : &f.n_end;

        if (type1 && f.second < 0 && part == 1) f.second = f.n_mid;
        if (type1 != (f.second >= 0)) return; /* type 1 must be everything from one point on */
        if (seq && ++part > 2) return;
        for (size_t k = 0; !seq && k < json_array_size(ids); k++) {
            json_t *id = json_array_get(ids, k);
            if (*n == MAX_POST || json_integer_value(id) < 0 ||
                json_integer_value(id) >= VOCAB_MAX_ID)
                return;
            to[(*n)++] = (int32_t)json_integer_value(id);
        }
    }
    f.known = part == 2;
    if (f.known) t->pair = f;
}

/* [CLS] A [SEP] B [SEP]; RoBERTa has </s></s> between A and B, and one token type. */
static void set_bert_pair(struct tokenizer *t, bool roberta)
{
    struct pair_form f = {
        .known = true, .n_front = 1, .n_mid = 1 + roberta, .n_end = 1, .second = roberta ? -1 : 1
    };

    f.front[0] = t->before[0];
    f.mid[0] = f.mid[1] = f.end[0] = t->after[0];
    t->pair = f;
}

/* "single": [{"SpecialToken": {"id": "[CLS]", ...}}, {"Sequence": {"id": "A", ...}}, ...]; the ids
 * of a special token are in "special_tokens". */
static int read_template(struct tokenizer *t, json_t *o, const struct location *at, struct err *e)
{
    json_t *single = json_object_get(o, "single"), *tokens = json_object_get(o, "special_tokens");
    bool after = false; /* the place of the text was passed */
    int rc = OK;

    if (!json_is_array(single)) return location_fail(at, e, "'single' is not a list");
    for (size_t i = 0; i < json_array_size(single) && rc == OK; i++) {
        json_t *x = json_array_get(single, i),
               *name = json_object_get(json_object_get(x, "SpecialToken"), "id");
        if (json_object_get(x, "Sequence")) {
            after = true;
            continue;
        }
        if (!json_is_string(name))
            return location_fail(at, e, "single[%zu] is neither a token nor a sequence", i);
        json_t *ids = json_object_get(json_object_get(tokens, json_string_value(name)), "ids");
        if (!json_is_array(ids))
            return location_fail(at, e, "special_tokens has no '%.60s'", json_string_value(name));
        for (size_t k = 0; k < json_array_size(ids) && rc == OK; k++) {
            json_t *id = json_array_get(ids, k);
            rc = add_id(t, after, json_is_integer(id) ? json_integer_value(id) : -1, at, e);
        }
    }
    if (rc == OK) read_pair_form(t, json_object_get(o, "pair"), tokens);
    return rc;
}

int tokfile_read_post(struct tokenizer *t, json_t *o, const struct location *at, int depth,
                      struct err *e)
{
    struct str type = json_type_name(o);
    int rc;

    if (str_is(type, "Sequence"))
        return tokfile_read_sequence(t, o, "processors", at, depth, tokfile_read_post, e);
    if (str_is(type, "ByteLevel")) return OK; /* it only changes offsets */
    if (str_is(type, "TemplateProcessing")) return read_template(t, o, at, e);
    if (!str_is(type, "BertProcessing") && !str_is(type, "RobertaProcessing"))
        return location_fail(at, e, "'%.*s' is not a supported post-processor",
                             STR_ARG(str_take(type, 60)));
    if ((rc = read_named_id(t, o, "cls", false, at, e)) != OK ||
        (rc = read_named_id(t, o, "sep", true, at, e)) != OK)
        return rc;
    set_bert_pair(t, str_is(type, "RobertaProcessing"));
    return OK;
}
