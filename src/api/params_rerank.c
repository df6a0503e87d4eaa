/* params_rerank.c - a query and the documents to rank by it: texts, or token ids on both sides. */
#include "api/params_impl.h"

#include <stdio.h>

/* A text, {"text": ...}, or token ids. */
static int read_side(struct body_reader *r, const char *param, const json_t *v, struct prompt *out)
{
    const json_t *text = json_is_object(v) ? json_object_get(v, "text") : v;

    if (json_is_array(v)) {
        if (json_array_size(v) == 0) return body_refuse(r, param, "must not be empty");
        return body_read_ids(r, param, v, &out->ids, &out->n_ids);
    }
    if (!json_is_string(text))
        return body_refuse(r, param,
                           "must be a string, an object with a string \"text\", or token ids, but "
                           "%s is %s",
                           json_is_object(v) ? "its text" : "it", body_type(text));
    out->text = body_str(text);
    return OK;
}

int params_read_query(struct params *p, struct body_reader *r, const char *param, const json_t *v)
{
    return read_side(r, param, v, &p->query);
}

int params_read_instruction(struct params *p, struct body_reader *r, const char *param,
                            const json_t *v)
{
    if (!json_is_string(v))
        return body_refuse(r, param, "must be a string, but it is %s", body_type(v));
    if (json_string_length(v) == 0) return body_refuse(r, param, "must not be empty");
    p->instruction = body_str(v);
    return OK;
}

int params_read_ranked(struct params *p, struct body_reader *r, const char *param, const json_t *v)
{
    size_t n = json_array_size(v);
    char at[PARAM_MAX];
    int rc = OK;

    if (!json_is_array(v))
        return body_refuse(r, param, "must be a list, but it is %s", body_type(v));
    if (n == 0) return body_refuse(r, param, "must not be empty");
    if (n > INPUTS_MAX)
        return body_refuse(r, param, "contains %zu documents, but at most %d are allowed", n,
                           INPUTS_MAX);
    if (!(p->prompts = arena_array(r->arena, n, sizeof *p->prompts)))
        return err_nomem(r->err, "the documents of the request");
    p->n_prompts = (int)n;
    for (size_t i = 0; i < n && rc == OK; i++) {
        snprintf(at, sizeof at, "%s[%zu]", param, i);
        rc = read_side(r, at, json_array_get(v, i), &p->prompts[i]);
    }
    return rc;
}

int params_join_query(struct params *p, struct body_reader *r)
{
    const struct prompt *query = &p->query;
    char at[PARAM_MAX];

    if (!query->text.p && !query->ids) return body_refuse(r, "query", "is required");
    if (p->n_prompts == 0) return body_refuse(r, "documents", "is required");
    for (int i = 0; i < p->n_prompts; i++) {
        struct prompt *doc = &p->prompts[i];
        if (!query->ids != !doc->ids) {
            snprintf(at, sizeof at, "documents[%d]", i);
            return body_refuse(r, at, "is %s, but the query is %s: both must be of one kind",
                               doc->ids ? "token ids" : "a text",
                               query->ids ? "token ids" : "a text");
        }
        if (doc->ids && p->instruction.p)
            return body_refuse(r, "instruction", "needs texts: token ids are the whole prompt");
        if (doc->ids) doc->second_at = query->n_ids;
        else doc->second = doc->text, doc->text = query->text;
    }
    return OK;
}
