#include "api/params.h"

#include "base/buf.h"

#include <stdio.h>

/* ---- messages ---- */

/* Parts of text, put together; what is not text is named. */
static int read_parts(struct reader *r, const char *param, const json_t *v, struct str *out)
{
    struct buf all = { 0 };
    char at[PARAM_MAX];
    int rc = OK;

    for (size_t i = 0; i < json_array_size(v) && rc == OK; i++) {
        const json_t *part = json_array_get(v, i), *type = json_object_get(part, "type");
        const json_t *text = json_object_get(part, "text");
        snprintf(at, sizeof at, "%.60s[%zu]", param, i);
        if (!json_is_object(part)) {
            rc = reader_bad(r, at, "must be an object, but it is %s", body_type(part));
        } else if (!json_is_string(type)) {
            snprintf(at, sizeof at, "%.60s[%zu].type", param, i);
            rc = reader_bad(r, at, "must be a string");
        } else if (!str_is(body_str(type), "text")) {
            rc = reader_bad(r, at, "is of type \"%.40s\", but this model reads only \"text\"",
                            json_string_value(type));
        } else if (!json_is_string(text)) {
            snprintf(at, sizeof at, "%.60s[%zu].text", param, i);
            rc = reader_bad(r, at, "must be a string");
        } else {
            buf_put_str(&all, body_str(text));
        }
    }
    *out = arena_str(r->arena, buf_str(&all));
    buf_release(&all);
    return rc;
}

static int read_content(struct reader *r, size_t i, const json_t *msg, bool assistant,
                        struct str *out)
{
    const json_t *v = json_object_get(msg, "content");
    char at[PARAM_MAX];

    snprintf(at, sizeof at, "messages[%zu].content", i);
    if (json_is_string(v)) *out = body_str(v);
    else if (json_is_array(v)) return read_parts(r, at, v, out);
    else if (assistant && (!v || json_is_null(v))) *out = STR("");
    else if (!v) return reader_bad(r, at, "is required");
    else
        return reader_bad(r, at, "must be a string or a list of parts, but it is %s", body_type(v));
    return OK;
}

static int read_role(struct reader *r, size_t i, const json_t *msg, struct str *out)
{
    static const char *const known[] = { "system", "user", "assistant", "tool", "function" };
    const json_t *v = json_object_get(msg, "role");
    char at[PARAM_MAX];

    snprintf(at, sizeof at, "messages[%zu].role", i);
    if (!v) return reader_bad(r, at, "is required");
    if (!json_is_string(v))
        return reader_bad(r, at, "must be a string, but it is %s", body_type(v));
    *out = body_str(v);
    if (str_is(*out, "developer")) *out = STR("system");
    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
        if (str_is(*out, known[k])) return OK;
    return reader_bad(r, at, "is \"%.40s\", but must be system, developer, user, assistant or tool",
                      json_string_value(v));
}

static int read_message(struct reader *r, size_t i, const json_t *msg, struct chat_msg *out)
{
    const json_t *calls = json_object_get(msg, "tool_calls");
    char at[PARAM_MAX];
    int rc;

    snprintf(at, sizeof at, "messages[%zu]", i);
    if (!json_is_object(msg))
        return reader_bad(r, at, "must be an object, but it is %s", body_type(msg));
    if ((rc = read_role(r, i, msg, &out->role)) != OK) return rc;
    if (calls && !json_is_null(calls) && (rc = read_past_calls(r, i, calls)) != OK) return rc;
    return read_content(r, i, msg, str_is(out->role, "assistant"), &out->content);
}

int read_messages(struct params *p, struct reader *r, const char *param, const json_t *v)
{
    int rc = OK;

    if (!json_is_array(v))
        return reader_bad(r, param, "must be a list, but it is %s", body_type(v));
    if (json_array_size(v) == 0) return reader_bad(r, param, "must hold at least one message");
    p->messages = v;
    p->n_msgs = (int)json_array_size(v);
    p->msgs = arena_array(r->arena, (size_t)p->n_msgs, sizeof *p->msgs);
    for (size_t i = 0; i < (size_t)p->n_msgs && rc == OK; i++)
        rc = read_message(r, i, json_array_get(v, i), &p->msgs[i]);
    return rc;
}

/* ---- prompt: text, texts, ids, lists of ids ---- */

static int read_prompt_ids(struct reader *r, const char *param, const json_t *v, struct prompt *out)
{
    if (json_array_size(v) == 0) return reader_bad(r, param, "must not be empty");
    return body_read_ids(r, param, v, &out->ids, &out->n_ids);
}

int read_prompt(struct params *p, struct reader *r, const char *param, const json_t *v)
{
    const json_t *first = json_array_get(v, 0);
    size_t most = strcmp(param, "input") == 0 ? INPUTS_MAX : PROMPTS_MAX;
    char at[PARAM_MAX];
    int rc = OK;

    p->n_prompts = 1;
    p->prompts = arena_array(r->arena, 1, sizeof *p->prompts);
    if (json_is_string(v)) {
        p->prompts[0].text = body_str(v);
        return OK;
    }
    if (!json_is_array(v))
        return reader_bad(r, param,
                          "must be a string, a list of strings, or token ids, but it is %s",
                          body_type(v));
    if (!first) return reader_bad(r, param, "must not be empty");
    if (json_is_number(first)) return read_prompt_ids(r, param, v, &p->prompts[0]);
    if (json_array_size(v) > most)
        return reader_bad(r, param, "holds %zu prompts, but %zu is the most", json_array_size(v),
                          most);

    p->n_prompts = (int)json_array_size(v);
    p->prompts = arena_array(r->arena, (size_t)p->n_prompts, sizeof *p->prompts);
    for (int i = 0; i < p->n_prompts && rc == OK; i++) {
        const json_t *item = json_array_get(v, (size_t)i);
        snprintf(at, sizeof at, "%s[%d]", param, i);
        if (json_is_string(first) && json_is_string(item)) p->prompts[i].text = body_str(item);
        else if (json_is_array(first) && json_is_array(item))
            rc = read_prompt_ids(r, at, item, &p->prompts[i]);
        else if (json_is_array(first) || json_is_string(first))
            rc = reader_bad(r, at, "is %s, but the first prompt is %s", body_type(item),
                            body_type(first));
        else rc = reader_bad(r, at, "must be a string or token ids, but it is %s", body_type(item));
    }
    return rc;
}

/* The same to classify, where two texts may go together: [["question", "answer"], ...]. */
int read_pairs(struct params *p, struct reader *r, const char *param, const json_t *v)
{
    const json_t *first = json_array_get(json_array_get(v, 0), 0);
    char at[PARAM_MAX];

    if (!json_is_string(first)) return read_prompt(p, r, param, v);
    if (json_array_size(v) > INPUTS_MAX)
        return reader_bad(r, param, "holds %zu pairs, but %d is the most", json_array_size(v),
                          INPUTS_MAX);
    p->n_prompts = (int)json_array_size(v);
    p->prompts = arena_array(r->arena, (size_t)p->n_prompts, sizeof *p->prompts);
    for (int i = 0; i < p->n_prompts; i++) {
        const json_t *pair = json_array_get(v, (size_t)i);
        const json_t *a = json_array_get(pair, 0), *b = json_array_get(pair, 1);
        snprintf(at, sizeof at, "%s[%d]", param, i);
        if (json_array_size(pair) != 2 || !json_is_string(a) || !json_is_string(b))
            return reader_bad(r, at, "must be two strings, as the first one is");
        p->prompts[i].text = body_str(a);
        p->prompts[i].second = body_str(b);
    }
    return OK;
}

/* ---- stop, logit_bias ---- */

static int read_stop_one(struct params *p, struct reader *r, const char *param, const json_t *v)
{
    if (!json_is_string(v))
        return reader_bad(r, param, "must be a string, but it is %s", body_type(v));
    if (json_string_length(v) == 0) return reader_bad(r, param, "must not be empty");
    if (json_string_length(v) > STOP_BYTES_MAX)
        return reader_bad(r, param, "has %zu bytes, but %d is the most", json_string_length(v),
                          STOP_BYTES_MAX);
    p->stops[p->n_stops++] = body_str(v);
    return OK;
}

int read_stop(struct params *p, struct reader *r, const char *param, const json_t *v)
{
    char at[PARAM_MAX];
    int rc = OK;

    if (json_is_string(v)) return read_stop_one(p, r, param, v);
    if (!json_is_array(v))
        return reader_bad(r, param, "must be a string or a list of strings, but it is %s",
                          body_type(v));
    if (json_array_size(v) > STOPS_MAX)
        return reader_bad(r, param, "holds %zu strings, but %d is the most", json_array_size(v),
                          STOPS_MAX);
    for (size_t i = 0; i < json_array_size(v) && rc == OK; i++) {
        snprintf(at, sizeof at, "%s[%zu]", param, i);
        rc = read_stop_one(p, r, at, json_array_get(v, i));
    }
    return rc;
}

int read_logit_bias(struct params *p, struct reader *r, const char *param, const json_t *v)
{
    struct logit_bias *all;
    const char *key;
    json_t *value;
    char at[PARAM_MAX];
    int n = 0;

    if (!json_is_object(v))
        return reader_bad(r, param, "must be an object of token ids and numbers, but it is %s",
                          body_type(v));
    if (json_object_size(v) > BIAS_MAX)
        return reader_bad(r, param, "has %zu entries, but %d is the most", json_object_size(v),
                          BIAS_MAX);
    all = arena_array(r->arena, json_object_size(v) + 1, sizeof *all);
    json_object_foreach ((json_t *)v, key, value) {
        int64_t id;
        snprintf(at, sizeof at, "%s.%.40s", param, key);
        if (!str_to_i64(str_c(key), &id) || id < 0 || id > INT32_MAX)
            return reader_bad(r, at, "is not a token id");
        if (!json_is_number(value))
            return reader_bad(r, at, "must be a number, but it is %s", body_type(value));
        if (!(json_number_value(value) >= -100 && json_number_value(value) <= 100))
            return reader_bad(r, at, "must be from -100 to 100, but it is %g",
                              json_number_value(value));
        all[n++] = (struct logit_bias){ (int32_t)id, (float)json_number_value(value) };
    }
    p->sample.bias = all;
    p->sample.n_bias = n;
    return OK;
}
