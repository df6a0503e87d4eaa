/* batchbody.c - members of a new batch, checked. */
#include "jobs/batchbody.h"

#include "base/jsonr.h"
#include "jobs/batchline.h"

enum {
    METADATA_PAIRS = 16,
    METADATA_KEY = 64, /* bytes, as OpenAI's */
    METADATA_VALUE = 512,
    WINDOW_MAX_S = 30 * 86400,
    PARTS_MAX = 1000
};

static int read_text(const json_t *root, const char *key, char *out, size_t cap, struct err *e)
{
    const json_t *v = json_object_get(root, key);
    size_t n = v ? json_string_length(v) : 0;

    if (!json_is_string(v) || n == 0 || n >= cap || strlen(json_string_value(v)) != n)
        return err_set(e, E_INVALID, "%s must be a string of 1 to %zu bytes", key, cap - 1);
    memcpy(out, json_string_value(v), n + 1);
    return OK;
}

/* "24h": a number and s, m, h or d. */
static int read_window(struct jobstore_batch *b, struct err *e)
{
    size_t n = strlen(b->window);
    char unit = n ? b->window[n - 1] : 0;
    int64_t each = unit == 's'   ? 1
                   : unit == 'm' ? 60
                   : unit == 'h' ? 3600
                   : unit == 'd' ? 86400
                                 : 0;
    int64_t count;

    if (each && str_to_i64(str_of(b->window, n - 1), &count) && count > 0 &&
        count <= WINDOW_MAX_S / each) {
        b->window_s = count * each;
        return OK;
    }
    return err_set(e, E_INVALID,
                   "completion_window is \"%s\", but it must be a time up to 30d such as \"24h\"",
                   b->window);
}

static int read_metadata(struct jobstore_batch *b, struct buf *text, const json_t *root,
                         struct err *e)
{
    json_t *v = json_object_get(root, "metadata"), *value;
    const char *key;

    if (!v || json_is_null(v)) return OK;
    if (!json_is_object(v) || json_object_size(v) > METADATA_PAIRS)
        return err_set(e, E_INVALID, "metadata must be an object of at most %d texts",
                       METADATA_PAIRS);
    json_object_foreach (v, key, value) {
        if (strlen(key) <= METADATA_KEY && json_is_string(value) &&
            json_string_length(value) <= METADATA_VALUE)
            continue;
        return err_set(
            e, E_INVALID,
            "metadata.%.64s: keys have at most %d bytes, and values are texts of at most "
            "%d bytes",
            key, METADATA_KEY, METADATA_VALUE);
    }
    jsonr_dump(text, v, JSON_COMPACT);
    b->metadata = buf_str(text);
    return buf_check(text, e);
}

static int read_members(struct jobstore_batch *b, struct buf *text, const json_t *root,
                        struct err *e)
{
    int rc;

    if (!json_is_object(root)) return err_set(e, E_INVALID, "the body must be a JSON object");
    if ((rc = read_text(root, "input_file_id", b->input, sizeof b->input, e)) != OK) return rc;
    if ((rc = read_text(root, "endpoint", b->endpoint, sizeof b->endpoint, e)) != OK) return rc;
    if (!batchline_is_endpoint(str_c(b->endpoint)))
        return err_set(e, E_INVALID, "endpoint is \"%s\", but it must be " BATCHLINE_ENDPOINTS,
                       b->endpoint);
    rc = read_text(root, "completion_window", b->window, sizeof b->window, e);
    if (rc == OK) rc = read_window(b, e);
    return rc == OK ? read_metadata(b, text, root, e) : rc;
}

int batchbody_read(struct jobstore_batch *b, struct buf *text, struct str body, struct err *e)
{
    json_error_t je;
    json_t *root;
    int rc;

    if (body.n > BATCHBODY_BYTES || str_json_parts(body) > PARTS_MAX)
        return err_set(e, E_INVALID, "the body has too many values");
    if (!(root = jsonr_load(body, JSON_REJECT_DUPLICATES, &je))) {
        if (json_error_code(&je) == json_error_out_of_memory) return err_nomem(e, "the body");
        return err_set(e, E_INVALID, "the body is not valid JSON: %s (line %d, column %d)", je.text,
                       je.line, je.column);
    }
    rc = read_members(b, text, root, e);
    json_decref(root);
    return rc;
}
