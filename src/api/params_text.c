/* params_text.c - messages, prompts, stop strings and logit_bias.
 *
 * Messages are read twice: here as role and text, for models without a chat template and for
 * checks; and by the template as the JSON that was given. Texts are borrowed from the body, except
 * contents that are joined from parts. */
#include "api/params_impl.h"

#include "base/buf.h"
#include "pool/chatform.h"

#include <ctype.h>
#include <stdio.h>

enum { PER_LOOK = 1000 }; /* messages between two looks at `stop` */

/* ---- messages ---- */

/* Content given as a list of parts: joins the text of all. */
static int join_parts(struct body_reader *r, const char *param, const json_t *v, struct str *out)
{
    struct buf all = { 0 };
    char at[PARAM_MAX];
    int rc = OK;

    for (size_t i = 0; i < json_array_size(v) && rc == OK; i++) {
        const json_t *part = json_array_get(v, i), *type = json_object_get(part, "type");
        const json_t *text = json_object_get(part, "text");
        snprintf(at, sizeof at, "%.60s[%zu]", param, i);
        if (!json_is_object(part)) {
            rc = body_refuse(r, at, "must be an object, but it is %s", body_type(part));
        } else if (!json_is_string(type)) {
            snprintf(at, sizeof at, "%.60s[%zu].type", param, i);
            rc = body_refuse(r, at, "must be a string");
        } else if (!str_is(body_str(type), "text")) {
            rc = body_refuse(r, at, "is of type \"%.40s\", but only \"text\" is supported",
                             json_string_value(type));
        } else if (!json_is_string(text)) {
            snprintf(at, sizeof at, "%.60s[%zu].text", param, i);
            rc = body_refuse(r, at, "must be a string");
        } else {
            buf_put_str(&all, body_str(text));
        }
    }
    if (rc == OK) rc = buf_check(&all, r->err);
    if (rc == OK) *out = arena_str(r->arena, buf_str(&all));
    if (rc == OK && all.n && !out->p) rc = err_nomem(r->err, "the text of a message");
    buf_release(&all);
    return rc;
}

/* An assistant's message may be without content: it then has tool calls. */
static int read_content(struct body_reader *r, size_t i, const json_t *msg, bool assistant,
                        struct str *out)
{
    const json_t *v = json_object_get(msg, "content");
    char at[PARAM_MAX];

    snprintf(at, sizeof at, "messages[%zu].content", i);
    if (json_is_string(v)) *out = body_str(v);
    else if (json_is_array(v)) return join_parts(r, at, v, out);
    else if (assistant && (!v || json_is_null(v))) *out = STR("");
    else if (!v) return body_refuse(r, at, "is required");
    else
        return body_refuse(r, at, "must be a string or a list of parts, but it is %s",
                           body_type(v));
    return OK;
}

/* developer is the newer name of system. */
static int read_role(struct body_reader *r, size_t i, const json_t *msg, struct str *out)
{
    static const char *const known[] = { "system", "user", "assistant", "tool", "function" };
    const json_t *v = json_object_get(msg, "role");
    char at[PARAM_MAX];

    snprintf(at, sizeof at, "messages[%zu].role", i);
    if (!v) return body_refuse(r, at, "is required");
    if (!json_is_string(v))
        return body_refuse(r, at, "must be a string, but it is %s", body_type(v));
    *out = body_str(v);
    if (str_is(*out, "developer")) *out = STR("system");
    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
        if (str_is(*out, known[k])) return OK;
    return body_refuse(r, at,
                       "is \"%.40s\", but must be system, developer, user, assistant or tool",
                       json_string_value(v));
}

static int read_message(struct body_reader *r, size_t i, const json_t *msg, struct chat_msg *out)
{
    const json_t *calls = json_object_get(msg, "tool_calls");
    char at[PARAM_MAX];
    int rc;

    snprintf(at, sizeof at, "messages[%zu]", i);
    if (!json_is_object(msg))
        return body_refuse(r, at, "must be an object, but it is %s", body_type(msg));
    if ((rc = read_role(r, i, msg, &out->role)) != OK) return rc;
    if (calls && !json_is_null(calls) && (rc = params_check_past_calls(r, i, calls)) != OK)
        return rc;
    return read_content(r, i, msg, str_is(out->role, "assistant"), &out->content);
}

int params_read_messages(struct params *p, struct body_reader *r, const char *param,
                         const json_t *v)
{
    int rc = OK;

    if (!json_is_array(v))
        return body_refuse(r, param, "must be a list, but it is %s", body_type(v));
    if (json_array_size(v) == 0) return body_refuse(r, param, "must contain at least one message");
    p->messages = v;
    p->n_msgs = (int)json_array_size(v);
    if (!(p->msgs = arena_array(r->arena, (size_t)p->n_msgs, sizeof *p->msgs)))
        return err_nomem(r->err, "the messages of the request");
    for (size_t i = 0; i < (size_t)p->n_msgs && rc == OK; i++) {
        if (i % PER_LOOK == 0 && p->stop && atomic_load_explicit(p->stop, memory_order_relaxed))
            return err_set(r->err, E_CANCELLED, "the request ended early");
        rc = read_message(r, i, json_array_get(v, i), &p->msgs[i]);
    }
    return rc;
}

/* ---- prompt and input: a text, texts, token ids, or lists of token ids ---- */

static int make_prompts(struct params *p, struct body_reader *r, size_t n)
{
    p->prompts = arena_array(r->arena, n, sizeof *p->prompts);
    p->n_prompts = p->prompts ? (int)n : 0;
    return p->prompts ? OK : err_nomem(r->err, "the prompts of the request");
}

/* A prompt given as token ids. */
static int read_prompt_ids(struct body_reader *r, const char *param, const json_t *v,
                           struct prompt *out)
{
    if (json_array_size(v) == 0) return body_refuse(r, param, "must not be empty");
    return body_read_ids(r, param, v, &out->ids, &out->n_ids);
}

/* The type of the first element decides how the list is read. */
int params_read_prompt(struct params *p, struct body_reader *r, const char *param, const json_t *v)
{
    const json_t *first = json_array_get(v, 0);
    size_t most = strcmp(param, "input") == 0 ? INPUTS_MAX : PROMPTS_MAX;
    char at[PARAM_MAX];
    int rc = OK;

    if ((rc = make_prompts(p, r, 1)) != OK) return rc;
    if (json_is_string(v)) {
        p->prompts[0].text = body_str(v);
        return OK;
    }
    if (!json_is_array(v))
        return body_refuse(r, param,
                           "must be a string, a list of strings, or token ids, but it is %s",
                           body_type(v));
    if (!first) return body_refuse(r, param, "must not be empty");
    if (json_is_number(first)) return read_prompt_ids(r, param, v, &p->prompts[0]);
    if (json_array_size(v) > most)
        return body_refuse(r, param, "contains %zu prompts, but at most %zu are allowed",
                           json_array_size(v), most);

    if ((rc = make_prompts(p, r, json_array_size(v))) != OK) return rc;
    for (int i = 0; i < p->n_prompts && rc == OK; i++) {
        const json_t *item = json_array_get(v, (size_t)i);
        snprintf(at, sizeof at, "%s[%d]", param, i);
        if (json_is_string(first) && json_is_string(item)) p->prompts[i].text = body_str(item);
        else if (json_is_array(first) && json_is_array(item))
            rc = read_prompt_ids(r, at, item, &p->prompts[i]);
        else if (json_is_array(first) || json_is_string(first))
            rc = body_refuse(r, at, "is %s, but the first prompt is %s", body_type(item),
                             body_type(first));
        else
            rc = body_refuse(r, at, "must be a string or token ids, but it is %s", body_type(item));
    }
    return rc;
}

/* The input of classify may also be pairs of texts: [["question", "answer"], ...]. */
int params_read_pairs(struct params *p, struct body_reader *r, const char *param, const json_t *v)
{
    const json_t *first = json_array_get(json_array_get(v, 0), 0);
    char at[PARAM_MAX];
    int rc;

    if (!json_is_string(first)) return params_read_prompt(p, r, param, v);
    if (json_array_size(v) > INPUTS_MAX)
        return body_refuse(r, param, "contains %zu pairs, but at most %d are allowed",
                           json_array_size(v), INPUTS_MAX);
    if ((rc = make_prompts(p, r, json_array_size(v))) != OK) return rc;
    for (int i = 0; i < p->n_prompts; i++) {
        const json_t *pair = json_array_get(v, (size_t)i);
        const json_t *a = json_array_get(pair, 0), *b = json_array_get(pair, 1);
        snprintf(at, sizeof at, "%s[%d]", param, i);
        if (json_array_size(pair) != 2 || !json_is_string(a) || !json_is_string(b))
            return body_refuse(r, at, "must be a list of two strings, as the first pair is");
        p->prompts[i].text = body_str(a);
        p->prompts[i].second = body_str(b);
    }
    return OK;
}

/* ---- stop, logit_bias ---- */

static int add_stop(struct params *p, struct body_reader *r, const char *param, const json_t *v)
{
    if (!json_is_string(v))
        return body_refuse(r, param, "must be a string, but it is %s", body_type(v));
    if (json_string_length(v) == 0) return body_refuse(r, param, "must not be empty");
    if (json_string_length(v) > STOP_BYTES_MAX)
        return body_refuse(r, param, "has %zu bytes, but at most %d are allowed",
                           json_string_length(v), STOP_BYTES_MAX);
    p->stops[p->n_stops++] = body_str(v);
    return OK;
}

/* A string, or up to STOPS_MAX strings. */
int params_read_stop(struct params *p, struct body_reader *r, const char *param, const json_t *v)
{
    char at[PARAM_MAX];
    int rc = OK;

    if (json_is_string(v)) return add_stop(p, r, param, v);
    if (!json_is_array(v))
        return body_refuse(r, param, "must be a string or a list of strings, but it is %s",
                           body_type(v));
    if (json_array_size(v) > STOPS_MAX)
        return body_refuse(r, param, "contains %zu strings, but at most %d are allowed",
                           json_array_size(v), STOPS_MAX);
    for (size_t i = 0; i < json_array_size(v) && rc == OK; i++) {
        snprintf(at, sizeof at, "%s[%zu]", param, i);
        rc = add_stop(p, r, at, json_array_get(v, i));
    }
    return rc;
}

/* {"token id": bias}. Ids are checked against the vocabulary when the model is known. */
int params_read_logit_bias(struct params *p, struct body_reader *r, const char *param,
                           const json_t *v)
{
    struct logit_bias *all;
    const char *key;
    json_t *value;
    char at[PARAM_MAX];
    int n = 0;

    if (!json_is_object(v))
        return body_refuse(r, param, "must be an object of token ids and numbers, but it is %s",
                           body_type(v));
    if (json_object_size(v) > BIAS_MAX)
        return body_refuse(r, param, "has %zu entries, but at most %d are allowed",
                           json_object_size(v), BIAS_MAX);
    if (!(all = arena_array(r->arena, json_object_size(v) + 1, sizeof *all)))
        return err_nomem(r->err, "logit_bias");
    json_object_foreach ((json_t *)v, key, value) {
        int64_t id;
        snprintf(at, sizeof at, "%s.%.40s", param, key);
        if (!str_to_i64(str_c(key), &id) || id < 0 || id > INT32_MAX)
            return body_refuse(r, at, "is not a token id");
        if (!json_is_number(value))
            return body_refuse(r, at, "must be a number, but it is %s", body_type(value));
        if (!(json_number_value(value) >= -100 && json_number_value(value) <= 100))
            return body_refuse(r, at, "must be from -100 to 100, but it is %g",
                               json_number_value(value));
        all[n++] = (struct logit_bias){ (int32_t)id, (float)json_number_value(value) };
    }
    p->sample.bias = all;
    p->sample.n_bias = n;
    return OK;
}

/* ---- keep_alive ---- */

/* Go's notation of durations, which Ollama uses: "5m", "1h30m", "0.5s", "-1m". A text without a unit is
 * seconds. */
static bool parse_duration(struct str s, double *ms)
{
    static const struct {
        const char *unit;
        double ms;
    } units[] = { { "ms", 1 }, { "h", 3600e3 }, { "m", 60e3 }, { "s", 1e3 } };
    bool negative = str_starts(s, STR("-"));
    double sum = 0, v;

    if (negative) s = str_skip(s, 1);
    if (!s.n) return false;
    while (s.n) {
        size_t digits = 0, i = 0;
        while (digits < s.n && (isdigit((unsigned char)s.p[digits]) || s.p[digits] == '.'))
            digits++;
        if (!digits || !str_to_f64(str_take(s, digits), &v)) return false;
        s = str_skip(s, digits);
        if (!s.n) {
            sum += v * 1e3;
            break;
        }
        while (i < 4 && !str_starts(s, str_c(units[i].unit))) i++;
        if (i == 4) return false;
        sum += v * units[i].ms;
        s = str_skip(s, strlen(units[i].unit));
    }
    *ms = negative ? -sum : sum;
    return true;
}

/* A negative time, and one of more than ten years: for ever. */
static int64_t keep_of(double ms)
{
    const double most = 1e3 * 86400 * 365 * 10;

    return ms >= 0 && ms <= most ? (int64_t)ms : -1;
}

bool params_parse_keep(struct str s, bool is_text, int64_t *ms)
{
    double v;

    if (is_text ? !parse_duration(s, &v) : !str_to_f64(s, &v)) return false;
    *ms = keep_of(is_text ? v : v * 1e3);
    return true;
}

/* A number of seconds, or a text with units; a negative one: for ever. */
int params_read_keep_alive(struct params *p, struct body_reader *r, const char *param,
                           const json_t *v)
{
    double ms = 0;

    if (json_is_number(v)) ms = json_number_value(v) * 1e3;
    else if (!json_is_string(v) || !parse_duration(body_str(v), &ms))
        return body_refuse(r, param,
                           "must be a number of seconds, or a time such as \"5m\"; 0: the model is "
                           "unloaded after the answer, -1: it stays");
    p->has_keep = true;
    p->keep_ms = keep_of(ms);
    return OK;
}
