#include "cluster/storerec.h"

#include "base/jsonr.h"
#include "base/jsonw.h"
#include "jobs/batchline.h"
#include "jobs/batchobject.h"
#include "ledger/jobrecord.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    LETTERS = 24,
    RECORD_BYTES = 512 << 10,
    RECORD_PARTS = 4000,
    LINE_HEAD = 1024,
    METADATA_PAIRS = 16,
    PIECE_MAX = 64 << 20
};

#define MOST_TIME (INT64_C(1) << 40)
#define MOST_BYTES (INT64_C(1) << 50)

/* ---- names ---- */

bool storerec_is_id(struct str id, const char *prefix)
{
    size_t n = strlen(prefix);

    if (id.n != n + LETTERS || !str_starts(id, str_c(prefix))) return false;
    for (size_t i = n; i < id.n; i++) {
        char c = id.p[i];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')))
            return false;
    }
    return true;
}

void storerec_subject(char out[LEDGER_SUBJECT], const char *kind, const char *tenant,
                      const char *id)
{
    char token[33];

    jobrecord_tenant(token, tenant);
    snprintf(out, LEDGER_SUBJECT, "tern.records.%s.%s.%s", kind, token, id);
}

static void number_subject(char out[LEDGER_SUBJECT], const char *of, const char *id, int n)
{
    if (n < 0) snprintf(out, LEDGER_SUBJECT, "tern.%s.%s.*", of, id);
    else snprintf(out, LEDGER_SUBJECT, "tern.%s.%s.%d", of, id, n);
}

void storerec_piece_subject(char out[LEDGER_SUBJECT], const char *file, int n)
{
    number_subject(out, "files", file, n);
}

void storerec_line_subject(char out[LEDGER_SUBJECT], const char *batch, int n)
{
    number_subject(out, "lines", batch, n);
}

int storerec_number_of(const char *subject, int most)
{
    const char *dot = strrchr(subject, '.');
    int64_t n;

    if (!dot || !str_to_i64(str_c(dot + 1), &n) || n < 0 || n >= most) return -1;
    return (int)n;
}

const char *storerec_id_of(const char *subject, const char *prefix)
{
    const char *dot = strrchr(subject, '.');

    return dot && storerec_is_id(str_c(dot + 1), prefix) ? dot + 1 : "";
}

/* ---- members ---- */

/* Reads members of one record; the first error stays. */
struct reader {
    const json_t *root;
    const char *kind;
    int rc;
    struct err *e;
};

static void read_text(struct reader *r, const char *key, char *out, size_t cap, bool may_be_empty)
{
    const json_t *v = json_object_get(r->root, key);
    const char *s = json_string_value(v);
    size_t n = s ? json_string_length(v) : 0;

    if (r->rc != OK) return;
    if (!s || n >= cap || strlen(s) != n || (n == 0 && !may_be_empty)) {
        r->rc = err_set(r->e, E_FORMAT, "'%s' of a stored %s is not a text of at most %zu bytes",
                        key, r->kind, cap - 1);
        return;
    }
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < ' ' || s[i] == 127) {
            r->rc = err_set(r->e, E_FORMAT, "'%s' of a stored %s has a control character", key,
                            r->kind);
            return;
        }
    memcpy(out, s, n + 1);
}

static int64_t read_int(struct reader *r, const char *key, int64_t most)
{
    const json_t *v = json_object_get(r->root, key);

    if (r->rc != OK) return 0;
    if (json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= most)
        return json_integer_value(v);
    r->rc = err_set(r->e, E_FORMAT, "'%s' of a stored %s is not a number from 0 to %lld", key,
                    r->kind, (long long)most);
    return 0;
}

static void read_id(struct reader *r, const char *key, char out[STORE_ID], const char *prefix,
                    bool may_be_empty)
{
    read_text(r, key, out, STORE_ID, may_be_empty);
    if (r->rc == OK && !(may_be_empty && !*out) && !storerec_is_id(str_c(out), prefix))
        r->rc = err_set(r->e, E_FORMAT, "'%s' of a stored %s is not an id", key, r->kind);
}

/* One of the names; -1 and an error: none of them. */
static int read_name(struct reader *r, const char *key, const char *(*name)(int), int n)
{
    char text[32] = "";

    read_text(r, key, text, sizeof text, false);
    for (int i = 0; i < n && r->rc == OK; i++)
        if (strcmp(name(i), text) == 0) return i;
    if (r->rc == OK)
        r->rc = err_set(r->e, E_FORMAT, "'%s' of a stored %s is '%s'", key, r->kind, text);
    return 0;
}

/* The caller releases *root. */
static int begin_read(struct reader *r, json_t **root, const char *kind, struct str text,
                      struct err *e)
{
    const json_t *v;
    char found[16] = "";

    *r = (struct reader){ .kind = kind, .e = e };
    *root = NULL;
    if (text.n <= RECORD_BYTES && str_json_parts(text) <= RECORD_PARTS)
        *root = jsonr_load(text, JSON_REJECT_DUPLICATES, NULL);
    r->root = *root;
    if (!json_is_object(*root))
        return r->rc = err_set(e, E_FORMAT, "a stored %s is not a JSON object", kind);
    v = json_object_get(*root, "v");
    if (!json_is_integer(v)) return r->rc = err_set(e, E_FORMAT, "a stored %s has no 'v'", kind);
    if (json_integer_value(v) != 1)
        return r->rc =
                   err_set(e, E_UNSUPPORTED, "a stored %s has 'v' %lld: another version of tern?",
                           kind, (long long)json_integer_value(v));
    read_text(r, "kind", found, sizeof found, false);
    if (r->rc == OK && strcmp(found, kind) != 0)
        r->rc = err_set(e, E_FORMAT, "a stored %s is of kind '%s'", kind, found);
    return r->rc;
}

static void write_text(struct jsonw *w, const char *key, const char *s)
{
    jsonw_key(w, key), jsonw_str(w, str_c(s));
}

static void write_int(struct jsonw *w, const char *key, int64_t v)
{
    jsonw_key(w, key), jsonw_int(w, v);
}

static void write_head(struct jsonw *w, const char *kind)
{
    jsonw_obj(w);
    write_int(w, "v", 1);
    write_text(w, "kind", kind);
}

/* ---- files ---- */

static const char *state_name(int state)
{
    static const char *const names[] = { "writing", "ready", "gone" };
    return names[state];
}

void filerec_write(const struct filerec *r, struct buf *out)
{
    struct jsonw w = { .out = out };

    write_head(&w, "file");
    write_text(&w, "id", r->file.id);
    write_text(&w, "tenant", r->file.tenant);
    write_text(&w, "state", state_name(r->state));
    write_text(&w, "name", r->file.name);
    write_text(&w, "purpose", r->file.purpose);
    write_int(&w, "bytes", r->file.bytes);
    write_int(&w, "created", r->file.created);
    write_int(&w, "expires", r->file.expires);
    write_int(&w, "piece", r->piece);
    jsonw_end(&w);
}

int filerec_read(struct filerec *out, struct str message, struct err *e)
{
    struct reader r;
    json_t *root;

    *out = (struct filerec){ 0 };
    if (begin_read(&r, &root, "file", message, e) == OK) {
        read_id(&r, "id", out->file.id, STOREREC_FILE, false);
        read_text(&r, "tenant", out->file.tenant, sizeof out->file.tenant, true);
        out->state = (enum filerec_state)read_name(&r, "state", state_name, FILEREC_GONE + 1);
        read_text(&r, "name", out->file.name, sizeof out->file.name, false);
        read_text(&r, "purpose", out->file.purpose, sizeof out->file.purpose, false);
        out->file.bytes = read_int(&r, "bytes", MOST_BYTES);
        out->file.created = read_int(&r, "created", MOST_TIME);
        out->file.expires = read_int(&r, "expires", MOST_TIME);
        out->piece = (int)read_int(&r, "piece", PIECE_MAX);
        if (r.rc == OK && (out->piece == 0 || out->file.bytes / out->piece >= INT32_MAX))
            r.rc = err_set(e, E_FORMAT, "'piece' of a stored file is %d", out->piece);
    }
    json_decref(root);
    return r.rc;
}

int filerec_n_pieces(const struct filerec *r)
{
    return (int)((r->file.bytes + r->piece - 1) / r->piece);
}

/* ---- batches ---- */

void batchrec_release(struct batchrec *r)
{
    buf_release(&r->metadata);
    buf_release(&r->errors);
}

void batchrec_write(const struct batchrec *r, struct buf *out)
{
    struct jsonw w = { .out = out };

    write_head(&w, "batch");
    write_text(&w, "id", r->id);
    write_text(&w, "tenant", r->tenant);
    write_text(&w, "endpoint", r->endpoint);
    write_text(&w, "input", r->input);
    write_text(&w, "window", r->window);
    write_text(&w, "output", r->output);
    write_text(&w, "error", r->error);
    write_int(&w, "has_output", r->has_output);
    write_int(&w, "has_error", r->has_error);
    write_text(&w, "status", batch_status_name(r->status));
    write_text(&w, "ends_as", batch_status_name(r->ends_as));
    write_int(&w, "created", r->created);
    write_int(&w, "expires", r->expires);
    write_int(&w, "in_progress", r->in_progress);
    write_int(&w, "finalizing", r->finalizing);
    write_int(&w, "cancelling", r->cancelling);
    write_int(&w, "ended", r->ended);
    write_int(&w, "total", r->total);
    write_int(&w, "completed", r->completed);
    write_int(&w, "failed", r->failed);
    write_text(&w, "holder", r->holder);
    if (r->metadata.n) jsonw_key(&w, "metadata"), jsonw_raw(&w, buf_str(&r->metadata));
    if (r->errors.n) jsonw_key(&w, "errors"), jsonw_raw(&w, buf_str(&r->errors));
    jsonw_end(&w);
    if (r->metadata.failed || r->errors.failed) out->failed = true;
}

static void read_metadata(struct reader *r, struct buf *out)
{
    json_t *v = json_object_get(r->root, "metadata"), *value;
    const char *key;

    if (r->rc != OK || !v) return;
    if (!json_is_object(v) || json_object_size(v) > METADATA_PAIRS)
        r->rc = err_set(r->e, E_FORMAT, "'metadata' of a stored batch is not a small object");
    else
        json_object_foreach (v, key, value)
            if (!json_is_string(value))
                r->rc = err_set(r->e, E_FORMAT, "'metadata' of a stored batch has no texts");
    if (r->rc != OK) return;
    jsonr_dump(out, v, JSON_COMPACT);
    r->rc = buf_check(out, r->e);
}

static void read_errors(struct reader *r, struct buf *out)
{
    json_t *v = json_object_get(r->root, "errors"), *one;
    size_t i;

    if (r->rc != OK || !v) return;
    if (!json_is_array(v) || json_array_size(v) > BATCHREC_ERRORS)
        r->rc = err_set(r->e, E_FORMAT, "'errors' of a stored batch is not a list of at most %d",
                        BATCHREC_ERRORS);
    else
        json_array_foreach (v, i, one)
            if (!json_is_string(json_object_get(one, "code")) ||
                !json_is_string(json_object_get(one, "message")))
                r->rc =
                    err_set(r->e, E_FORMAT, "'errors' of a stored batch has no code or message");
    if (r->rc != OK || json_array_size(v) == 0) return;
    jsonr_dump(out, v, JSON_COMPACT);
    r->rc = buf_check(out, r->e);
}

static void read_times(struct reader *r, struct batchrec *out)
{
    out->created = read_int(r, "created", MOST_TIME);
    out->expires = read_int(r, "expires", MOST_TIME);
    out->in_progress = read_int(r, "in_progress", MOST_TIME);
    out->finalizing = read_int(r, "finalizing", MOST_TIME);
    out->cancelling = read_int(r, "cancelling", MOST_TIME);
    out->ended = read_int(r, "ended", MOST_TIME);
    out->total = read_int(r, "total", INT32_MAX / 2);
    out->completed = read_int(r, "completed", out->total);
    out->failed = read_int(r, "failed", out->total);
}

int batchrec_read(struct batchrec *out, struct str message, struct err *e)
{
    struct reader r;
    json_t *root;

    *out = (struct batchrec){ 0 };
    if (begin_read(&r, &root, "batch", message, e) == OK) {
        read_id(&r, "id", out->id, STOREREC_BATCH, false);
        read_text(&r, "tenant", out->tenant, sizeof out->tenant, true);
        read_text(&r, "endpoint", out->endpoint, sizeof out->endpoint, false);
        if (r.rc == OK && !batchline_is_endpoint(str_c(out->endpoint)))
            r.rc = err_set(e, E_FORMAT, "'endpoint' of a stored batch is '%s'", out->endpoint);
        read_id(&r, "input", out->input, STOREREC_FILE, false);
        read_text(&r, "window", out->window, sizeof out->window, false);
        read_id(&r, "output", out->output, STOREREC_FILE, true);
        read_id(&r, "error", out->error, STOREREC_FILE, true);
        out->has_output = read_int(&r, "has_output", 1) && *out->output;
        out->has_error = read_int(&r, "has_error", 1) && *out->error;
        out->status = read_name(&r, "status", batch_status_name, BATCH_STATUSES);
        out->ends_as = read_name(&r, "ends_as", batch_status_name, BATCH_STATUSES);
        if (r.rc == OK && out->ends_as < BATCH_COMPLETED)
            r.rc = err_set(e, E_FORMAT, "'ends_as' of a stored batch is not the end of one");
        read_times(&r, out);
        read_text(&r, "holder", out->holder, sizeof out->holder, true);
        read_metadata(&r, &out->metadata);
        read_errors(&r, &out->errors);
    }
    json_decref(root);
    if (r.rc != OK) batchrec_release(out);
    return r.rc;
}

void batchrec_show(const struct batchrec *r, struct jsonw *w)
{
    struct str none = { 0 };
    struct batch_object o = { .id = str_c(r->id),
                              .endpoint = str_c(r->endpoint),
                              .input = str_c(r->input),
                              .window = str_c(r->window),
                              .output = r->has_output ? str_c(r->output) : none,
                              .error = r->has_error ? str_c(r->error) : none,
                              .metadata = buf_str(&r->metadata),
                              .errors = buf_str(&r->errors),
                              .status = r->status,
                              .created = r->created,
                              .in_progress = r->in_progress,
                              .expires = r->expires,
                              .finalizing = r->finalizing,
                              .cancelling = r->cancelling,
                              .ended = r->ended,
                              .total = r->total,
                              .completed = r->completed,
                              .failed = r->failed };

    batch_object_write(&o, w);
}

/* ---- answers of lines ---- */

void linerec_write(const struct linerec *r, struct buf *out)
{
    struct jsonw w = { .out = out };

    write_head(&w, "line");
    write_int(&w, "status", r->status);
    write_text(&w, "error", r->error);
    write_int(&w, "bytes", (int64_t)r->body.n);
    jsonw_end(&w);
    buf_putc(out, '\n');
    buf_put_str(out, r->body);
}

int linerec_read(struct linerec *out, struct str message, struct err *e)
{
    ptrdiff_t lf = str_find(str_take(message, LINE_HEAD), STR("\n"));
    struct reader r;
    json_t *root;
    int64_t bytes;

    *out = (struct linerec){ 0 };
    if (lf < 0) return err_set(e, E_FORMAT, "a stored line does not begin with a line of JSON");
    out->body = str_skip(message, (size_t)lf + 1);
    if (begin_read(&r, &root, "line", str_take(message, (size_t)lf), e) == OK) {
        out->status = (int)read_int(&r, "status", 599);
        read_text(&r, "error", out->error, sizeof out->error, true);
        bytes = read_int(&r, "bytes", MOST_BYTES);
        if (r.rc == OK && (size_t)bytes != out->body.n)
            r.rc = err_set(e, E_FORMAT, "a stored line has %zu bytes where it says %lld",
                           out->body.n, (long long)bytes);
        if (r.rc == OK && (out->status ? out->status < 200 : !out->error[0]))
            r.rc = err_set(e, E_FORMAT, "a stored line has neither a status nor an error");
    }
    json_decref(root);
    return r.rc;
}
