/* jobrecord.c - the messages of docs/protocol.md, and the subjects that they stand under. */
#include "ledger/jobrecord.h"

#include "base/jsonr.h"
#include "base/jsonw.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <sys/random.h>
#include <time.h>

enum { LETTERS = 24, RANDOM = 15, HEAD_PARTS = 64, BODY_PARTS = 2000000 };

static const char *const stream_subjects[] = {
    [LEDGER_JOBS] = "tern.jobs", [LEDGER_ANSWERS] = "tern.answers"
};

/* ---- names ---- */

bool jobrecord_is_id(struct str id)
{
    if (id.n != 4 + LETTERS || !str_starts(id, STR("job_"))) return false;
    for (size_t i = 4; i < id.n; i++) {
        char c = id.p[i];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')))
            return false;
    }
    return true;
}

/* The first letters of a random id are the time, so that ids sort by age: 44 bits of milliseconds
 * in base 32. */
static void write_time(char out[9])
{
    static const char digits[] = "0123456789abcdefghijklmnopqrstuv";
    struct timespec t;
    uint64_t ms;

    clock_gettime(CLOCK_REALTIME, &t);
    ms = (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
    for (int i = 8; i >= 0; i--, ms >>= 5) out[i] = digits[ms & 31];
}

static void write_letters(char *out, const unsigned char *raw, int n)
{
    static const char letters[] =
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ01";

    for (int i = 0; i < n; i++) out[i] = letters[raw[i] & 63];
}

void jobrecord_new_id(char *out, const char *prefix)
{
    unsigned char raw[RANDOM];
    size_t n = strlen(prefix);
    struct timespec now;

    if (getrandom(raw, RANDOM, 0) != RANDOM) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        memset(raw, 0, sizeof raw);
        memcpy(raw, &now, sizeof now < RANDOM ? sizeof now : RANDOM);
    }
    memcpy(out, prefix, n);
    write_time(out + n);
    write_letters(out + n + 9, raw, RANDOM);
    out[n + LETTERS] = 0;
}

void jobrecord_make_id(char out[JOBRECORD_ID], const char *tenant, struct str key)
{
    unsigned char raw[EVP_MAX_MD_SIZE] = { 0 };
    struct buf text = { 0 };
    unsigned n = 0;

    if (key.p) {
        memcpy(out, "job_", 4);
        out[4 + LETTERS] = 0;
        buf_puts(&text, tenant);
        buf_putc(&text, 0);
        buf_put_str(&text, key);
        if (!text.failed && EVP_Digest(text.p, text.n, raw, &n, EVP_sha256(), NULL) == 1 &&
            n >= LETTERS) {
            write_letters(out + 4, raw, LETTERS);
            buf_release(&text);
            return;
        }
        buf_release(&text); /* without memory: a job of its own */
    }
    jobrecord_new_id(out, "job_");
}

/* A token of a subject: names of tenants may have any character. FNV-1a, twice with other starts. */
void jobrecord_tenant(char out[33], const char *tenant)
{
    uint64_t a = 0xcbf29ce484222325u, b = 0x84222325cbf29ce4u;

    for (const char *s = tenant; *s; s++) {
        a = (a ^ (unsigned char)*s) * 0x100000001b3u;
        b = (b ^ (unsigned char)*s) * 0x100000001b3u;
    }
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)a, (unsigned long long)b);
}

void jobrecord_subject(char out[LEDGER_SUBJECT], enum ledger_stream st, const char *tenant,
                       const char *id)
{
    char token[33];

    jobrecord_tenant(token, tenant);
    snprintf(out, LEDGER_SUBJECT, "%s.%s.%s", stream_subjects[st], token, id);
}

bool jobrecord_id_of(const char *subject, char out[JOBRECORD_ID])
{
    const char *dot = subject ? strrchr(subject, '.') : NULL;

    if (!dot || !jobrecord_is_id(str_c(dot + 1))) return false;
    snprintf(out, JOBRECORD_ID, "%s", dot + 1);
    return true;
}

bool jobrecord_answer_of(const char *subject, char out[LEDGER_SUBJECT])
{
    struct str s = str_c(subject), before = STR("tern.jobs.");

    if (!str_starts(s, before) || s.n + strlen("answers") >= LEDGER_SUBJECT) return false;
    snprintf(out, LEDGER_SUBJECT, "tern.answers.%s", subject + before.n);
    return true;
}

/* ---- messages ---- */

void jobrecord_write(const struct jobrecord *r, struct buf *out)
{
    struct jsonw w = { .out = out };

    jsonw_obj(&w);
    jsonw_key(&w, "v"), jsonw_int(&w, 1);
    jsonw_key(&w, "kind"), jsonw_str(&w, r->is_answer ? STR("answer") : STR("job"));
    jsonw_key(&w, "id"), jsonw_str(&w, str_c(r->id));
    jsonw_key(&w, "tenant"), jsonw_str(&w, str_c(r->tenant));
    jsonw_key(&w, "endpoint"), jsonw_str(&w, str_c(r->endpoint));
    jsonw_key(&w, "created"), jsonw_int(&w, r->created);
    if (r->is_answer) {
        jsonw_key(&w, "ended"), jsonw_int(&w, r->ended);
        jsonw_key(&w, "status"), jsonw_int(&w, r->status);
        jsonw_key(&w, "error"), jsonw_str(&w, str_c(r->error));
    }
    jsonw_key(&w, "bytes"), jsonw_int(&w, (int64_t)r->body.n);
    jsonw_end(&w);
    buf_putc(out, '\n');
    buf_put_str(out, r->body);
}

/* A text of at most cap - 1 bytes without control characters. */
static int read_text(const json_t *root, const char *key, char *out, size_t cap, bool may_be_empty,
                     struct err *e)
{
    const json_t *v = json_object_get(root, key);
    const char *s = json_string_value(v);
    size_t n = s ? json_string_length(v) : 0;

    if (!s || n >= cap || strlen(s) != n || (n == 0 && !may_be_empty))
        return err_set(e, E_FORMAT, "'%s' of a durable job is not a text of at most %zu bytes", key,
                       cap - 1);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < ' ' || s[i] == 127)
            return err_set(e, E_FORMAT, "'%s' of a durable job has a control character", key);
    memcpy(out, s, n + 1);
    return OK;
}

static int read_int(const json_t *root, const char *key, int64_t most, int64_t *out, struct err *e)
{
    const json_t *v = json_object_get(root, key);

    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > most)
        return err_set(e, E_FORMAT, "'%s' of a durable job is not a number from 0 to %lld", key,
                       (long long)most);
    *out = json_integer_value(v);
    return OK;
}

static int read_answer(struct jobrecord *r, const json_t *root, struct err *e)
{
    int64_t status = 0;
    int rc;

    if ((rc = read_int(root, "ended", INT64_C(1) << 40, &r->ended, e)) != OK) return rc;
    if ((rc = read_int(root, "status", 599, &status, e)) != OK) return rc;
    if ((rc = read_text(root, "error", r->error, sizeof r->error, true, e)) != OK) return rc;
    if (status ? status < 200 : !r->error[0])
        return err_set(e, E_FORMAT, "an answer of a durable job has neither a status nor an error");
    r->status = (int)status;
    return OK;
}

static int read_head(struct jobrecord *r, const json_t *root, struct err *e)
{
    const json_t *v = json_object_get(root, "v");
    int64_t bytes = 0;
    char kind[16];
    int rc;

    if (!json_is_integer(v)) return err_set(e, E_FORMAT, "a durable job has no 'v'");
    if (json_integer_value(v) != 1)
        return err_set(e, E_UNSUPPORTED, "a durable job has 'v' %lld: another version of tern?",
                       (long long)json_integer_value(v));
    if ((rc = read_text(root, "kind", kind, sizeof kind, false, e)) != OK) return rc;
    r->is_answer = strcmp(kind, "answer") == 0;
    if (!r->is_answer && strcmp(kind, "job") != 0)
        return err_set(e, E_FORMAT, "a durable job is of kind '%s'", kind);
    if ((rc = read_text(root, "id", r->id, sizeof r->id, false, e)) != OK) return rc;
    if (!jobrecord_is_id(str_c(r->id)))
        return err_set(e, E_FORMAT, "'%s' is not the id of a durable job", r->id);
    if ((rc = read_text(root, "tenant", r->tenant, sizeof r->tenant, true, e)) != OK) return rc;
    if ((rc = read_text(root, "endpoint", r->endpoint, sizeof r->endpoint, false, e)) != OK)
        return rc;
    if (r->endpoint[0] != '/')
        return err_set(e, E_FORMAT, "'%s' of a durable job is not a path", r->endpoint);
    if ((rc = read_int(root, "created", INT64_C(1) << 40, &r->created, e)) != OK) return rc;
    if (r->is_answer && (rc = read_answer(r, root, e)) != OK) return rc;
    if ((rc = read_int(root, "bytes", INT64_C(1) << 32, &bytes, e)) != OK) return rc;
    if ((size_t)bytes != r->body.n)
        return err_set(e, E_FORMAT, "a durable job has %zu bytes where it says %lld", r->body.n,
                       (long long)bytes);
    return OK;
}

int jobrecord_read(struct jobrecord *out, struct str message, struct err *e)
{
    ptrdiff_t lf = str_find(str_take(message, JOBRECORD_HEAD), STR("\n"));
    struct str head = lf < 0 ? STR("") : str_take(message, (size_t)lf);
    json_t *root = NULL;
    int rc;

    *out = (struct jobrecord){ 0 };
    if (lf >= 0 && str_json_parts(head) <= HEAD_PARTS)
        root = jsonr_load(head, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(root)) {
        json_decref(root);
        return err_set(e, E_FORMAT, "a durable job does not begin with a line of JSON");
    }
    out->body = str_skip(message, (size_t)lf + 1);
    rc = read_head(out, root, e);
    json_decref(root);
    return rc;
}

/* ---- for clients ---- */

static const char *status_name(const struct jobrecord *r)
{
    if (!r->is_answer) return "queued";
    if (strcmp(r->error, "cancelled") == 0) return "cancelled";
    return r->error[0] || r->status != 200 ? "failed" : "completed";
}

/* Whoever can write into the store could have written anything. */
static bool is_object(struct str body)
{
    json_t *root = str_json_parts(body) > BODY_PARTS ? NULL : jsonr_load(body, 0, NULL);
    bool is = json_is_object(root);

    json_decref(root);
    return is;
}

static void write_response(const struct jobrecord *r, struct jsonw *w, bool whole)
{
    struct str body = str_trim(r->body);

    jsonw_obj(w);
    jsonw_key(w, "status_code"), jsonw_int(w, r->status);
    jsonw_key(w, "request_id"), jsonw_str(w, str_c(r->id));
    if (whole) {
        jsonw_key(w, "body");
        if (is_object(body)) jsonw_raw(w, body);
        else jsonw_str(w, body);
    }
    jsonw_end(w);
}

void jobrecord_write_json(const struct jobrecord *r, struct jsonw *w, bool whole)
{
    jsonw_obj(w);
    jsonw_key(w, "id"), jsonw_str(w, str_c(r->id));
    jsonw_key(w, "object"), jsonw_str(w, STR("job"));
    jsonw_key(w, "status"), jsonw_str(w, str_c(status_name(r)));
    jsonw_key(w, "endpoint"), jsonw_str(w, str_c(r->endpoint));
    jsonw_key(w, "created_at"), jsonw_int(w, r->created);
    jsonw_key(w, "ended_at");
    if (r->is_answer) jsonw_int(w, r->ended);
    else jsonw_null(w);
    jsonw_key(w, "response");
    if (r->is_answer && r->status) write_response(r, w, whole);
    else jsonw_null(w);
    jsonw_key(w, "error");
    if (r->is_answer && r->error[0]) {
        jsonw_obj(w);
        jsonw_key(w, "code"), jsonw_str(w, str_c(r->error));
        if (!r->status) jsonw_key(w, "message"), jsonw_str(w, r->body);
        jsonw_end(w);
    } else {
        jsonw_null(w);
    }
    jsonw_end(w);
}
