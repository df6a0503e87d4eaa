/* body.c - parsing a request body with jansson, after checks that jansson does not make, and
 * reading values of certain types.
 *
 * Errors are written for the person who wrote the request: the path of the field, what was
 * expected, and what was found. */
#include "api/body.h"

#include "base/jsonr.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Jansson skips a NUL after a number, but JSON allows no NUL anywhere. */
static int check_nul(struct str text, struct err *e)
{
    const char *nul = memchr(text.p, 0, text.n), *line = text.p;
    int n_lines = 1;

    if (!nul) return OK;
    for (const char *s = text.p; s < nul; s++)
        if (*s == '\n') n_lines++, line = s + 1;
    return err_set(e, E_INVALID, "the body is not JSON: line %d, column %d (byte %d): a NUL byte",
                   n_lines, (int)(nul - line) + 1, (int)(nul - text.p) + 1);
}

/* JSON_DECODE_ANY: a body that is another JSON value gets a better message than a syntax error. */
int body_parse(json_t **out, struct str text, const atomic_int *stop, struct err *e)
{
    json_error_t je;
    int rc;

    *out = NULL;
    if (text.n == 0)
        return err_set(e, E_INVALID, "the request body is empty: it must be a JSON object");
    if ((rc = check_nul(text, e)) != OK) return rc;
    if (str_json_parts(text) > BODY_PARTS)
        return err_set(e, E_INVALID, "the body has more than %d JSON values (parts)", BODY_PARTS);
    *out = jsonr_load_until(text, JSON_DECODE_ANY, stop, &je);
    if (!*out && stop && atomic_load_explicit(stop, memory_order_relaxed))
        return err_set(e, E_CANCELLED, "the request ended while its body was read");
    if (!*out && json_error_code(&je) == json_error_out_of_memory)
        return err_nomem(e, "the request body");
    if (!*out && json_error_code(&je) == json_error_null_character)
        return err_set(e, E_INVALID, "the body has \\u0000 at byte %d: texts have no NUL character",
                       je.position);
    if (!*out)
        return err_set(e, E_INVALID, "the body is not JSON: line %d, column %d (byte %d): %s",
                       je.line, je.column, je.position, je.text);
    if (json_is_object(*out)) return OK;
    err_set(e, E_INVALID, "the body must be a JSON object, but it is %s", body_type(*out));
    json_decref(*out);
    *out = NULL;
    return E_INVALID;
}

int body_refuse(struct body_reader *r, const char *param, const char *fmt, ...)
{
    char text[384];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    snprintf(r->param, PARAM_MAX, "%s", param);
    return err_set(r->err, E_INVALID, "%s %s", param, text);
}

const char *body_type(const json_t *v)
{
    if (!v) return "not there";
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return json_array_size(v) ? "a list" : "an empty list";
    case JSON_STRING: return json_string_length(v) ? "a string" : "an empty string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number with a fraction";
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    default: return "null";
    }
}

/* Some clients write integers as 3.0. Above 2^53 a double is no exact integer. */
static bool get_int(const json_t *v, int64_t *out)
{
    double d;

    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    if (!json_is_real(v)) return false;
    d = json_real_value(v);
    if (!(d >= -9007199254740992.0 && d <= 9007199254740992.0) || (double)(int64_t)d != d)
        return false;
    *out = (int64_t)d;
    return true;
}

struct str body_str(const json_t *v) { return str_of(json_string_value(v), json_string_length(v)); }

int body_read_bool(struct body_reader *r, const char *param, const json_t *v, bool *out)
{
    if (!json_is_boolean(v))
        return body_refuse(r, param, "must be true or false, but it is %s", body_type(v));
    *out = json_is_true(v);
    return OK;
}

/* JSON has integers of any size; those beyond 64 bits are real numbers here. */
static bool is_large(const json_t *v)
{
    return json_is_real(v) && !(json_real_value(v) > -9.2e18 && json_real_value(v) < 9.2e18);
}

int body_read_int(struct body_reader *r, const char *param, const json_t *v, int64_t least,
                  int64_t most, int64_t *out)
{
    if (is_large(v))
        return body_refuse(r, param, "must be from %lld to %lld, but it is %.17g", (long long)least,
                           (long long)most, json_real_value(v));
    if (!get_int(v, out))
        return body_refuse(r, param, "must be an integer, but it is %s", body_type(v));
    if (*out >= least && *out <= most) return OK;
    return body_refuse(r, param, "must be from %lld to %lld, but it is %lld", (long long)least,
                       (long long)most, (long long)*out);
}

/* The end of the string that begins at text.p[at]. The text was parsed: it has one. */
static size_t end_of_string(struct str text, size_t at)
{
    for (at++; at < text.n && text.p[at] != '"'; at++)
        if (text.p[at] == '\\') at++;
    return at + 1 < text.n ? at + 1 : text.n;
}

static size_t skip_blanks(struct str text, size_t at)
{
    while (at < text.n && memchr(" \t\r\n", text.p[at], 4)) at++;
    return at;
}

/* The digits of the value that follows at `at`, after a colon; empty: something else follows. */
static struct str digits_after_colon(struct str text, size_t at)
{
    size_t n = 0;

    at = skip_blanks(text, at);
    if (at >= text.n || text.p[at] != ':') return (struct str){ 0 };
    at = skip_blanks(text, at + 1);
    while (at + n < text.n && text.p[at + n] >= '0' && text.p[at + n] <= '9') n++;
    if (at + n < text.n && memchr(".eE", text.p[at + n], 3)) n = 0; /* a real number */
    return str_of(text.p + at, n);
}

/* The digits of a field of the object that is the text; the last ones, as jansson takes them.
 * Every byte is looked at a few times at most. */
static struct str find_digits(struct str text, struct str key)
{
    struct str found = { 0 };
    size_t end;
    int depth = 0;

    for (size_t i = 0; i < text.n; i = end) {
        char c = text.p[i];
        end = c == '"' ? end_of_string(text, i) : i + 1;
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        if (c == '"' && depth == 1 && end - i == key.n + 2 &&
            memcmp(text.p + i + 1, key.p, key.n) == 0)
            found = digits_after_colon(text, end);
    }
    return found;
}

int body_read_u64(struct body_reader *r, const char *param, const json_t *v, uint64_t *out)
{
    struct str digits = { 0 };
    char copy[24], *end;
    int64_t small;

    if (!is_large(v)) {
        int rc = body_read_int(r, param, v, INT64_MIN, INT64_MAX, &small);
        if (rc == OK) *out = (uint64_t)small;
        return rc;
    }
    if (json_real_value(v) > 0) digits = find_digits(r->text, str_c(param));
    if (digits.n && digits.n <= 20) {
        snprintf(copy, sizeof copy, "%.*s", STR_ARG(digits));
        errno = 0;
        *out = strtoull(copy, &end, 10);
        if (!errno) return OK;
    }
    return body_refuse(r, param,
                       "must be from -9223372036854775808 to 18446744073709551615, "
                       "but it is %.17g",
                       json_real_value(v));
}

int body_read_ids(struct body_reader *r, const char *param, const json_t *v, int32_t **ids,
                  size_t *n)
{
    char at[PARAM_MAX];
    int64_t id;
    int rc;

    if (!json_is_array(v))
        return body_refuse(r, param, "must be a list of token ids, but it is %s", body_type(v));
    *n = json_array_size(v);
    if (!(*ids = arena_array(r->arena, *n ? *n : 1, sizeof **ids)))
        return err_nomem(r->err, "the token ids of the request");
    for (size_t i = 0; i < *n; i++) {
        snprintf(at, sizeof at, "%s[%zu]", param, i);
        if ((rc = body_read_int(r, at, json_array_get(v, i), 0, INT32_MAX, &id)) != OK) return rc;
        (*ids)[i] = (int32_t)id;
    }
    return OK;
}
