/* message.c - one table of fields per message, and a writer and a reader over such tables.
 *
 * Fields with their zero value are not written, unless they are required. A reader fills the whole
 * struct: texts that are missing become "", never NULL. */
#include "worker/message.h"

#include "api/api.h"
#include "base/arena.h"
#include "base/jsonr.h"
#include "base/jsonw.h"

#include <limits.h>

enum kind {
    TEXT,   /* const char *, at most max bytes */
    BYTES,  /* struct str, may hold NUL */
    I64,    /* min to max */
    I32,    /* int */
    U64,    /* 0 to 2^63-1 */
    REAL,   /* double, 0 or more */
    FLAG,   /* bool */
    RAW,    /* struct str: a JSON value as text */
    WORD,   /* int: the index of one of `words` */
    OBJECT, /* fields of `sub`, relative to `at` */
    LIST,   /* array of structs at `at`, each of `sub` */
    PAIRS   /* array of struct msg_pair as [[name, value], ...] */
};

struct field {
    const char *key;
    enum kind kind;
    bool required;
    size_t at;         /* offset in the struct */
    int64_t min, max;  /* of a number; max: bytes of a text, items of a list. 0: see limit_of */
    size_t n_at, size; /* LIST, PAIRS: offset of the count; bytes of an item */
    const struct field *sub;
    const char *const *words; /* ends with NULL */
};

/* clang-format off */
#define F(s, kind, name, ...) { #name, kind, .at = offsetof(s, name), __VA_ARGS__ }
/* clang-format on */
#define MUST .required = true

enum { WORD_MAX = 64, TEXT_MAX = 1024, PATH_MAX_BYTES = 64 << 10, VALUE_MAX = 64 << 10 };
enum { PARTS_MAX = 1 << 16 }; /* values in a payload: bounds the memory of its tree */

static const struct field hello_fields[] = {
#define H(kind, name, ...) F(struct msg_hello, kind, name, __VA_ARGS__)
    H(TEXT, role, MUST, .max = WORD_MAX),
    H(I64, version_min, MUST, .min = 1, .max = INT_MAX),
    H(I64, version_max, MUST, .min = 1, .max = INT_MAX),
    H(TEXT, build, .max = 256),
    H(TEXT, name, .max = 512),
    H(TEXT, nonce, MUST, .max = MSG_NONCE_HEX),
    H(I64, window, MUST, .min = 1, .max = INT_MAX),
    H(I64, max_streams, .max = INT_MAX),
    { 0 },
#undef H
};

static const struct field welcome_fields[] = {
    F(struct msg_welcome, I64, version, MUST, .min = 1, .max = INT_MAX),
    F(struct msg_welcome, TEXT, mac, MUST, .max = MSG_MAC_HEX),
    { 0 },
};

static const struct field error_fields[] = {
    F(struct msg_error, TEXT, code, MUST, .max = WORD_MAX),
    F(struct msg_error, TEXT, message, .max = TEXT_MAX),
    F(struct msg_error, U64, offset),
    { 0 },
};

static const struct field beat_fields[] = {
#define B(kind, name, ...) F(struct msg_beat, kind, name, __VA_ARGS__)
    B(U64, n, MUST), B(U64, steps), B(I64, running),  B(I64, waiting),
    B(I64, step_ms), B(I64, calls), B(I64, admitted), { 0 },
#undef B
};

static const struct field stop_fields[] = {
    F(struct msg_stop, TEXT, why, .max = WORD_MAX),
    { 0 },
};

static const struct field device_fields[] = {
    F(struct msg_device, TEXT, name, MUST, .max = WORD_MAX),
    F(struct msg_device, U64, weight_bytes),
    F(struct msg_device, U64, kv_bytes),
    F(struct msg_device, U64, scratch_bytes),
    { 0 },
};

#define DEVICES(s, name)                                                          \
    {                                                                             \
        "devices", LIST, .at = offsetof(s, name), .n_at = offsetof(s, n_devices), \
                         .size = sizeof(struct msg_device), .max = MSG_DEVICES,   \
                         .sub = device_fields                                     \
    }

static const struct field room_fields[] = {
    F(struct msg_room, U64, host_bytes),
    F(struct msg_room, U64, limit_bytes),
    F(struct msg_room, U64, device_bytes),
    F(struct msg_room, U64, later_bytes),
    F(struct msg_room, REAL, share),
    F(struct msg_room, REAL, share_before),
    { 0 },
};

static const struct field plan_fields[] = {
    DEVICES(struct msg_plan, devices),
    F(struct msg_plan, U64, mapped_bytes),
    F(struct msg_plan, I64, n_ctx, .max = INT_MAX),
    F(struct msg_plan, I64, kv_tokens, .max = INT_MAX),
    F(struct msg_plan, FLAG, kv_given),
    F(struct msg_plan, U64, lack_bytes),
    F(struct msg_plan, TEXT, refused, .max = TEXT_MAX),
    { 0 },
};

static const struct field admit_fields[] = {
    F(struct msg_admit, U64, budget_bytes),
    F(struct msg_admit, I64, kv_tokens),
    F(struct msg_admit, FLAG, fill_kv),
    { 0 },
};

static const struct field failure_fields[] = {
    F(struct msg_failure, TEXT, code, MUST, .max = WORD_MAX),
    F(struct msg_failure, TEXT, message, .max = TEXT_MAX),
    F(struct msg_failure, I64, retry_ms, .max = INT_MAX),
    { 0 },
};

static const struct field sleep_fields[] = {
    F(struct msg_sleep, U64, park_bytes),
    { 0 },
};

static const struct field asleep_fields[] = {
    F(struct msg_asleep, I64, parked_blocks),
    F(struct msg_asleep, U64, parked_bytes),
    { 0 },
};

static const struct field progress_fields[] = {
    F(struct msg_progress, TEXT, stage, .max = WORD_MAX),
    F(struct msg_progress, I64, percent, MUST, .max = 100),
    { 0 },
};

static const struct field ready_fields[] = {
#define R(kind, name, ...) F(struct msg_ready, kind, name, __VA_ARGS__)
    R(TEXT, name, .max = TEXT_MAX),
    R(TEXT, arch, .max = WORD_MAX),
    R(TEXT, task, MUST, .max = WORD_MAX),
    R(TEXT, dtype, .max = WORD_MAX),
    { "device", TEXT, .at = offsetof(struct msg_ready, devices), .max = TEXT_MAX },
    R(TEXT, kv_type, .max = WORD_MAX),
    R(I64, n_ctx, .max = INT_MAX),
    R(I64, n_vocab, .max = INT_MAX),
    R(I64, n_vec, .max = INT_MAX),
    R(I64, n_labels, .max = INT_MAX),
    R(I64, n_blocks, .max = INT_MAX),
    R(I64, block_tokens, .max = INT_MAX),
    R(I64, max_seqs, .max = INT_MAX),
    R(I64, max_batch, .max = INT_MAX),
    R(I64, max_requests, .max = INT_MAX),
    R(I64, n_threads, .max = INT_MAX),
    R(U64, n_params),
    R(U64, weight_bytes),
    R(U64, kv_bytes),
    R(U64, scratch_bytes),
    R(I64, created),
    R(REAL, load_ms),
    R(REAL, warm_ms),
    R(FLAG, chat),
    R(TEXT, digest, .max = 128),
    DEVICES(struct msg_ready, device),
    R(TEXT, sandbox, .max = TEXT_MAX),
    R(RAW, more),
    { 0 },
#undef R
};

#define HEADERS(s)                                                                    \
    {                                                                                 \
        "headers", PAIRS, .at = offsetof(s, headers), .n_at = offsetof(s, n_headers), \
                          .max = MSG_HEADERS                                          \
    }

static const struct field request_fields[] = {
#define Q(kind, name, ...) F(struct msg_request, kind, name, __VA_ARGS__)
#define T(kind, key, ...)                                                       \
    {                                                                           \
#key, kind, .at = offsetof(struct msg_request, tenant.key), __VA_ARGS__ \
    }
    Q(TEXT, method, MUST, .max = WORD_MAX),
    Q(TEXT, path, MUST, .max = PATH_MAX_BYTES),
    Q(TEXT, query, .max = PATH_MAX_BYTES),
    HEADERS(struct msg_request),
    { "tenant", OBJECT, MUST,
      .sub = (const struct field[]){ T(TEXT, name, MUST, .max = WORD_MAX),
                                     T(I64, index, .max = UINT32_MAX),
                                     T(I64, priority_max, .min = INT_MIN, .max = INT_MAX),
                                     T(FLAG, admin),
                                     { 0 } } },
    Q(TEXT, id, MUST, .max = 71),
    Q(TEXT, peer, .max = 128),
    Q(I64, deadline_ms),
    Q(I64, age_ms),
    Q(I64, body_bytes, .max = INT64_MAX),
    Q(I64, retry, .max = 1),
    { 0 },
#undef Q
#undef T
};

static const struct field reply_fields[] = {
    F(struct msg_reply, I64, status, MUST, .min = 100, .max = 599),
    F(struct msg_reply, TEXT, type, .max = 256),
    F(struct msg_reply, FLAG, streamed),
    F(struct msg_reply, I64, body_bytes),
    HEADERS(struct msg_reply),
    { 0 },
};

static const char *const why_words[] = { "gone", "asked", "deadline", "shutdown", NULL };
static const struct field cancel_fields[] = {
    { "why", WORD, MUST, .at = offsetof(struct msg_cancel, why), .words = why_words },
    { 0 },
};

static const struct field end_fields[] = {
#define E(kind, name, ...) F(struct api_end, kind, name, __VA_ARGS__)
    E(TEXT, model, .max = TEXT_MAX),
    E(I32, status, MUST, .max = 999),
    E(TEXT, code, .max = WORD_MAX),
    E(TEXT, finish, .max = WORD_MAX),
    E(TEXT, gone, .max = WORD_MAX),
    E(FLAG, stream),
    E(I32, n_choices),
    E(I32, prompt_tokens),
    E(I32, cached_tokens),
    E(I32, output_tokens),
    E(REAL, total_ms),
    E(REAL, queue_ms),
    E(REAL, prefill_ms),
    E(REAL, decode_ms),
    E(REAL, first_ms),
    E(FLAG, has_phases),
    E(REAL, admission_ms),
    E(REAL, scheduling_ms),
    E(REAL, dispatch_ms),
    E(REAL, compute_ms),
    E(BYTES, prompt, .max = 8 << 10),
    { 0 },
#undef E
};

/* ---- writing ---- */

static int count_of(const struct field *f, const char *base)
{
    int n = *(const int *)(base + f->n_at);
    return n > f->max ? (int)f->max : n;
}

static bool is_empty(const struct field *f, const char *base)
{
    const char *at = base + f->at;

    switch (f->kind) {
    case TEXT: return !*(const char *const *)at || !**(const char *const *)at;
    case BYTES:
    case RAW: return ((const struct str *)at)->n == 0;
    case I64: return *(const int64_t *)at == 0;
    case U64: return *(const uint64_t *)at == 0;
    case I32: return *(const int *)at == 0;
    case REAL: return !(*(const double *)at > 0);
    case FLAG: return !*(const bool *)at;
    case LIST:
    case PAIRS: return count_of(f, base) == 0;
    case WORD:
    case OBJECT: return false;
    }
    return false;
}

static void write_fields(struct jsonw *w, const struct field *f, const char *base);

static struct str text_at(const char *at)
{
    const char *s = *(const char *const *)at;
    return s ? str_c(s) : STR("");
}

static void write_list(struct jsonw *w, const struct field *f, const char *base)
{
    jsonw_arr(w);
    for (int i = 0; i < count_of(f, base); i++) {
        if (f->kind == LIST) {
            write_fields(w, f->sub, base + f->at + (size_t)i * f->size);
        } else {
            const struct msg_pair *p = (const struct msg_pair *)(base + f->at) + i;
            jsonw_arr(w);
            jsonw_str(w, str_c(p->name)), jsonw_str(w, str_c(p->value));
            jsonw_end(w);
        }
    }
    jsonw_end(w);
}

static void write_value(struct jsonw *w, const struct field *f, const char *base)
{
    const char *at = base + f->at;

    switch (f->kind) {
    case TEXT: jsonw_str(w, text_at(at)); break;
    case BYTES: jsonw_str(w, *(const struct str *)at); break;
    case RAW: jsonw_raw(w, *(const struct str *)at); break;
    case I64: jsonw_int(w, *(const int64_t *)at); break;
    case U64:
        jsonw_int(w, *(const uint64_t *)at > INT64_MAX ? INT64_MAX : *(const int64_t *)at);
        break;
    case I32: jsonw_int(w, *(const int *)at); break;
    case REAL: jsonw_num(w, *(const double *)at); break;
    case FLAG: jsonw_bool(w, *(const bool *)at); break;
    case WORD: jsonw_str(w, str_c(f->words[*(const int *)at])); break;
    case OBJECT: write_fields(w, f->sub, base); break;
    case LIST:
    case PAIRS: write_list(w, f, base); break;
    }
}

static void write_fields(struct jsonw *w, const struct field *f, const char *base)
{
    jsonw_obj(w);
    for (; f->key; f++) {
        if (!f->required && is_empty(f, base)) continue;
        jsonw_key(w, f->key);
        write_value(w, f, base);
    }
    jsonw_end(w);
}

static void write_message(struct buf *out, const struct field *f, const void *m)
{
    struct jsonw w = { .out = out };
    write_fields(&w, f, m);
}

/* ---- reading ---- */

struct reader {
    int type; /* of the frame, for errors */
    struct arena *arena;
    struct err *e;
};

static int refuse(struct reader *r, const char *key, const char *why)
{
    return err_set(r->e, E_FORMAT, "frame %s: %s: %s", frame_name(r->type), key, why);
}

static int read_text(struct reader *r, const char *key, const json_t *v, int64_t max,
                     const char **out)
{
    struct str s;

    if (!json_is_string(v)) return refuse(r, key, "must be a string");
    s = str_of(json_string_value(v), json_string_length(v));
    if (s.n > (size_t)max) return refuse(r, key, "the text is too long");
    if (memchr(s.p, 0, s.n)) return refuse(r, key, "the text holds a NUL byte");
    *out = arena_cstr(r->arena, s);
    return *out ? OK : err_nomem(r->e, "the fields of a frame");
}

static int read_bytes(struct reader *r, const struct field *f, const json_t *v, struct str *out)
{
    if (!json_is_string(v)) return refuse(r, f->key, "must be a string");
    if (json_string_length(v) > (size_t)f->max) return refuse(r, f->key, "the text is too long");
    *out = arena_str(r->arena, str_of(json_string_value(v), json_string_length(v)));
    return arena_check(r->arena, r->e);
}

static int read_raw(struct reader *r, const json_t *v, struct str *out)
{
    struct buf text = { 0 };
    int rc;

    jsonr_dump(&text, v, JSON_COMPACT | JSON_ENCODE_ANY);
    rc = buf_check(&text, r->e);
    if (rc == OK) {
        *out = arena_str(r->arena, buf_str(&text));
        rc = arena_check(r->arena, r->e);
    }
    buf_release(&text);
    return rc;
}

static int64_t limit_of(const struct field *f)
{
    if (f->kind == I32) return f->max ? f->max : INT_MAX;
    return f->max ? f->max : INT64_MAX;
}

static int read_integer(struct reader *r, const struct field *f, const json_t *v, int64_t *out)
{
    int64_t x = json_is_integer(v) ? json_integer_value(v) : 0;

    if (!json_is_integer(v)) return refuse(r, f->key, "must be an integer");
    if (x < f->min || x > limit_of(f)) return refuse(r, f->key, "the number is out of range");
    *out = x;
    return OK;
}

static int read_real(struct reader *r, const struct field *f, const json_t *v, double *out)
{
    if (!json_is_number(v)) return refuse(r, f->key, "must be a number");
    *out = json_number_value(v);
    return *out >= 0 ? OK : refuse(r, f->key, "must not be negative");
}

static int read_word(struct reader *r, const struct field *f, const json_t *v, int *out)
{
    if (!json_is_string(v)) return refuse(r, f->key, "must be a string");
    for (int i = 0; f->words[i]; i++)
        if (strcmp(json_string_value(v), f->words[i]) == 0) return *out = i, OK;
    return refuse(r, f->key, "unknown value");
}

static int read_fields(struct reader *r, const struct field *f, const json_t *obj, char *base);

static int read_pair(struct reader *r, const struct field *f, const json_t *v, struct msg_pair *p)
{
    int rc;

    if (!json_is_array(v) || json_array_size(v) != 2)
        return refuse(r, f->key, "must hold pairs of a name and a value");
    if ((rc = read_text(r, f->key, json_array_get(v, 0), WORD_MAX, &p->name)) != OK) return rc;
    return read_text(r, f->key, json_array_get(v, 1), VALUE_MAX, &p->value);
}

static int read_list(struct reader *r, const struct field *f, const json_t *v, char *base)
{
    size_t n = json_array_size(v);
    int rc = OK;

    if (!json_is_array(v)) return refuse(r, f->key, "must be an array");
    if (n > (size_t)f->max) return refuse(r, f->key, "has too many items");
    for (size_t i = 0; i < n && rc == OK; i++) {
        json_t *item = json_array_get(v, i);
        if (f->kind == PAIRS) rc = read_pair(r, f, item, (struct msg_pair *)(base + f->at) + i);
        else rc = read_fields(r, f->sub, item, base + f->at + i * f->size);
    }
    *(int *)(base + f->n_at) = (int)n;
    return rc;
}

static int read_value(struct reader *r, const struct field *f, const json_t *v, char *base)
{
    void *at = base + f->at;
    int64_t x = 0;
    int rc;

    switch (f->kind) {
    case TEXT: return read_text(r, f->key, v, f->max, at);
    case BYTES: return read_bytes(r, f, v, at);
    case RAW: return read_raw(r, v, at);
    case REAL: return read_real(r, f, v, at);
    case WORD: return read_word(r, f, v, at);
    case OBJECT: return read_fields(r, f->sub, v, base);
    case LIST:
    case PAIRS: return read_list(r, f, v, base);
    case FLAG:
        if (!json_is_boolean(v)) return refuse(r, f->key, "must be true or false");
        *(bool *)at = json_is_true(v);
        return OK;
    case I64:
    case U64:
    case I32: break;
    }
    if ((rc = read_integer(r, f, v, &x)) != OK) return rc;
    if (f->kind == I32) *(int *)at = (int)x;
    else *(int64_t *)at = x; /* also a uint64_t: x is not negative */
    return OK;
}

/* Texts are never NULL, also in nested objects that are missing. */
static void clear_texts(const struct field *f, char *base)
{
    for (; f->key; f++) {
        if (f->kind == TEXT) *(const char **)(base + f->at) = "";
        if (f->kind == OBJECT) clear_texts(f->sub, base);
    }
}

static int read_fields(struct reader *r, const struct field *f, const json_t *obj, char *base)
{
    int rc;

    if (!json_is_object(obj))
        return err_set(r->e, E_FORMAT, "frame %s: must be a JSON object", frame_name(r->type));
    clear_texts(f, base);
    for (; f->key; f++) {
        const json_t *v = json_object_get(obj, f->key);
        if (!v && f->required) return refuse(r, f->key, "is missing");
        if (v && (rc = read_value(r, f, v, base)) != OK) return rc;
    }
    return OK;
}

static int read_message(int type, const struct field *f, void *m, struct arena *a,
                        struct str payload, struct err *e)
{
    struct reader r = { type, a, e };
    json_error_t je;
    json_t *root;
    int rc;

    if (str_json_parts(payload) > PARTS_MAX)
        return err_set(e, E_FORMAT, "frame %s: the JSON has too many values", frame_name(type));
    root = jsonr_load(payload, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &je);
    if (!root && json_error_code(&je) == json_error_out_of_memory)
        return err_nomem(e, "the fields of a frame");
    if (!root) return err_set(e, E_FORMAT, "frame %s: %s", frame_name(type), je.text);
    rc = read_fields(&r, f, root, m);
    json_decref(root);
    return rc;
}

#define DEFINE(name, type)                                                                        \
    void msg_write_##name(struct buf *out, const struct msg_##name *m)                            \
    {                                                                                             \
        write_message(out, name##_fields, m);                                                     \
    }                                                                                             \
    int msg_read_##name(struct msg_##name *m, struct arena *a, struct str payload, struct err *e) \
    {                                                                                             \
        *m = (struct msg_##name){ 0 };                                                            \
        return read_message(type, name##_fields, m, a, payload, e);                               \
    }
DEFINE(hello, FRAME_HELLO)
DEFINE(welcome, FRAME_WELCOME)
DEFINE(error, FRAME_ERROR)
DEFINE(beat, FRAME_PING)
DEFINE(stop, FRAME_STOP)
DEFINE(room, FRAME_ROOM)
DEFINE(plan, FRAME_PLAN)
DEFINE(admit, FRAME_ADMIT)
DEFINE(sleep, FRAME_SLEEP)
DEFINE(asleep, FRAME_ASLEEP)
DEFINE(failure, FRAME_FAILED)
DEFINE(progress, FRAME_PROGRESS)
DEFINE(ready, FRAME_READY)
DEFINE(request, FRAME_REQUEST)
DEFINE(reply, FRAME_REPLY)
DEFINE(cancel, FRAME_CANCEL)

void msg_write_end(struct buf *out, const struct api_end *m) { write_message(out, end_fields, m); }

int msg_read_end(struct api_end *m, struct arena *a, struct str payload, struct err *e)
{
    *m = (struct api_end){ .route = "", .peer = "" };
    return read_message(FRAME_END, end_fields, m, a, payload, e);
}

const char *msg_header(const struct msg_pair *headers, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(headers[i].name, name) == 0) return headers[i].value;
    return NULL;
}

const char *msg_why_name(int why) { return why >= 0 && why < N_MSG_WHY ? why_words[why] : "?"; }
