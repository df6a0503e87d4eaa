/* batchline.c - lines of batches, in OpenAI's form. */
#include "jobs/batchline.h"

#include "base/jsonr.h"
#include "base/jsonw.h"

#include <stdio.h>

enum { PARTS_MAX = 2000000 /* values of one line */ };

bool batchline_is_endpoint(struct str path)
{
    return str_is(path, "/v1/chat/completions") || str_is(path, "/v1/completions") ||
           str_is(path, "/v1/responses") || str_is(path, "/v1/embeddings");
}

static int refuse(struct batchline *out, const char *code, const char *param, struct err *e,
                  const char *msg)
{
    out->code = code;
    out->param = param;
    return err_set(e, E_INVALID, "%s", msg);
}

/* A member that must be a string of 1 to cap - 1 bytes without NUL. */
static bool read_text(const json_t *root, const char *key, char *out, size_t cap)
{
    const json_t *v = json_object_get(root, key);
    size_t n = v ? json_string_length(v) : 0;

    if (!json_is_string(v) || n == 0 || n >= cap || strlen(json_string_value(v)) != n) return false;
    memcpy(out, json_string_value(v), n + 1);
    return true;
}

static int check_members(struct batchline *out, const json_t *root, const char *endpoint,
                         struct err *e)
{
    const json_t *body = json_object_get(root, "body");
    char method[16] = "", msg[200];

    if (!json_is_object(root))
        return refuse(out, "invalid_json_line", NULL, e, "the line is not a JSON object");
    if (!read_text(root, "custom_id", out->custom_id, sizeof out->custom_id))
        return refuse(out, "missing_required_parameter", "custom_id", e,
                      "custom_id must be a string of 1 to 511 bytes");
    if (!read_text(root, "method", method, sizeof method) || strcmp(method, "POST") != 0)
        return refuse(out, "invalid_method", "method", e, "method must be \"POST\"");
    if (!read_text(root, "url", out->url, sizeof out->url) ||
        (*endpoint ? strcmp(out->url, endpoint) != 0 : !batchline_is_endpoint(str_c(out->url)))) {
        if (*endpoint) snprintf(msg, sizeof msg, "url must be \"%s\"", endpoint);
        else snprintf(msg, sizeof msg, "url must be %s", BATCHLINE_ENDPOINTS);
        return refuse(out, "invalid_url", "url", e, msg);
    }
    if (!json_is_object(body))
        return refuse(out, "missing_required_parameter", "body", e, "body must be an object");
    if (json_is_true(json_object_get(body, "stream")))
        return refuse(out, "invalid_request", "body.stream", e,
                      "a line of a batch cannot be streamed");
    return OK;
}

int batchline_read(struct batchline *out, struct str text, const char *endpoint, struct buf *body,
                   struct err *e)
{
    json_error_t je;
    json_t *root;
    char msg[300];
    int rc;

    *out = (struct batchline){ 0 };
    if (str_json_parts(text) > PARTS_MAX)
        return refuse(out, "invalid_json_line", NULL, e, "the line has too many values");
    if (!(root = jsonr_load(text, 0, &je))) {
        if (json_error_code(&je) == json_error_out_of_memory) return err_nomem(e, "a line");
        snprintf(msg, sizeof msg, "the line is not valid JSON: %s (at byte %d)", je.text,
                 je.position);
        return refuse(out, "invalid_json_line", NULL, e, msg);
    }
    rc = check_members(out, root, endpoint, e);
    if (rc == OK && body) {
        jsonr_dump(body, json_object_get(root, "body"), JSON_COMPACT);
        rc = buf_check(body, e);
    }
    json_decref(root);
    return rc;
}

/* The API writes its bodies by itself, and they are one line of JSON. */
static bool is_json(struct str s)
{
    s = str_trim(s);
    return s.n > 1 && s.p[0] == '{' && s.p[s.n - 1] == '}' && !memchr(s.p, '\n', s.n);
}

static void write_response(struct jsonw *w, const struct batchline_result *r)
{
    jsonw_obj(w);
    jsonw_key(w, "status_code"), jsonw_int(w, r->status);
    jsonw_key(w, "request_id"), jsonw_str(w, r->request_id);
    jsonw_key(w, "body");
    if (is_json(r->body)) jsonw_raw(w, str_trim(r->body));
    else jsonw_str(w, r->body);
    jsonw_end(w);
}

void batchline_write(struct buf *out, const struct batchline_result *r)
{
    struct jsonw w = { .out = out };

    jsonw_obj(&w);
    jsonw_key(&w, "id"), jsonw_str(&w, str_c(r->id));
    jsonw_key(&w, "custom_id"), jsonw_str(&w, str_c(r->custom_id));
    jsonw_key(&w, "response");
    if (r->status) write_response(&w, r);
    else jsonw_null(&w);
    jsonw_key(&w, "error");
    if (r->error) {
        jsonw_obj(&w);
        jsonw_key(&w, "code"), jsonw_str(&w, str_c(r->error));
        jsonw_key(&w, "message"), jsonw_str(&w, str_c(r->message ? r->message : ""));
        jsonw_end(&w);
    } else {
        jsonw_null(&w);
    }
    jsonw_end(&w);
    buf_putc(out, '\n');
}
