#include "format/hfconfig.h"

#include "base/file.h"
#include "base/mem.h"
#include "format/jsonload.h"

#include <ctype.h>

#define MAX_BYTES (64u << 20)
#define MAX_DIGITS 18 /* what surely fits an int64_t */
#define INFINITE 1.7976931348623157e308

static const struct {
    const char *name, *prefix;
} files[HFCONFIG_N_FILES] = {
    [HFCONFIG_MODEL] = { "config.json", "" },
    [HFCONFIG_GENERATION] = { "generation_config.json", "generation_config:" },
    [HFCONFIG_TOKENIZER] = { "tokenizer_config.json", "tokenizer_config:" },
    [HFCONFIG_POOLING] = { "1_Pooling/config.json", "pooling:" },
    [HFCONFIG_MODULES] = { "modules.json", "modules:" },
    [HFCONFIG_TERN] = { "tern.json", "tern:" },
};

struct hfconfig {
    json_t *root[HFCONFIG_N_FILES];
    const char **keys; /* borrowed from root[HFCONFIG_MODEL] */
    size_t n_keys;
};

void hfconfig_close(struct hfconfig *c)
{
    if (!c) return;
    for (int i = 0; i < HFCONFIG_N_FILES; i++) json_decref(c->root[i]);
    mem_free(c->keys);
    mem_free(c);
}

static size_t copy_string(struct buf *out, struct str s)
{
    size_t n = 1;

    while (n < s.n && s.p[n] != '"') n += s.p[n] == '\\' && n + 1 < s.n ? 2 : 1;
    n = n < s.n ? n + 1 : s.n;
    buf_put_str(out, str_take(s, n));
    return n;
}

/* A number as it stands; a whole one too long for 64 bits becomes a real one. */
static size_t copy_number(struct buf *out, struct str s)
{
    size_t n = 1;
    bool whole = true;

    for (; n < s.n && (isalnum((unsigned char)s.p[n]) || strchr("+-.", s.p[n])) && s.p[n]; n++)
        if (!isdigit((unsigned char)s.p[n])) whole = false;
    buf_put_str(out, str_take(s, n));
    if (whole && n > MAX_DIGITS) buf_puts(out, ".0");
    return n;
}

/* What Python writes and JSON does not have, said in JSON. */
static void plain_json(struct buf *out, struct str s)
{
    static const struct {
        struct str from, to;
    } words[] = {
        { STR("NaN"), STR("null") },
        { STR("Infinity"), STR("1.7976931348623157e308") },
        { STR("-Infinity"), STR("-1.7976931348623157e308") },
    };

    while (s.n) {
        size_t n = 0;
        for (size_t i = 0; i < sizeof words / sizeof *words && !n; i++)
            if (str_starts(s, words[i].from)) {
                buf_put_str(out, words[i].to);
                n = words[i].from.n;
            }
        if (n) { /* a word */
        } else if (*s.p == '"') {
            n = copy_string(out, s);
        } else if (*s.p == '-' || isdigit((unsigned char)*s.p)) {
            n = copy_number(out, s);
        } else {
            buf_putc(out, *s.p);
            n = 1;
        }
        s = str_skip(s, n);
    }
}

static int load(json_t **out, struct str text, const char *name, struct err *e)
{
    struct buf plain = { 0 };
    int rc = jsonload(out, text, 0, name, e);

    if (rc == E_FORMAT) {
        plain_json(&plain, text);
        rc = jsonload(out, buf_str(&plain), 0, name, e);
        buf_release(&plain);
    }
    if (rc == OK && !json_is_object(*out) &&
        !(json_is_array(*out) && strcmp(name, files[HFCONFIG_MODULES].name) == 0))
        rc = err_set(e, E_FORMAT, "%s: expected an object", name);
    return rc;
}

static void list_keys(struct hfconfig *c)
{
    const char *name;
    json_t *v;

    c->keys = mem_array(json_object_size(c->root[HFCONFIG_MODEL]), sizeof *c->keys);
    json_object_foreach (c->root[HFCONFIG_MODEL], name, v) c->keys[c->n_keys++] = name;
}

int hfconfig_parse(struct hfconfig **out, const struct str text[HFCONFIG_N_FILES], struct err *e)
{
    struct hfconfig *c = mem_new(struct hfconfig);
    int rc = OK;

    for (int i = 0; i < HFCONFIG_N_FILES && rc == OK; i++)
        if (text[i].n || i == HFCONFIG_MODEL) rc = load(&c->root[i], text[i], files[i].name, e);
    if (rc == OK) {
        list_keys(c);
        *out = c;
    } else {
        hfconfig_close(c);
    }
    return rc;
}

int hfconfig_open(struct hfconfig **out, const char *dir, struct err *e)
{
    struct buf bytes[HFCONFIG_N_FILES] = { 0 };
    struct str text[HFCONFIG_N_FILES];
    char *card = path_join(dir, files[HFCONFIG_TERN].name);
    int rc = OK;

    for (int i = 0; i < HFCONFIG_N_FILES && rc == OK; i++) {
        char *path = path_join(dir, files[i].name);
        rc = file_read(&bytes[i], path, MAX_BYTES, e);
        if (rc == E_NOTFOUND && i == HFCONFIG_MODEL && file_exists(card))
            buf_puts(&bytes[i], "{}"), rc = OK;
        else if (rc == E_NOTFOUND && i == HFCONFIG_MODEL)
            err_set(e, rc,
                    "%s: a folder without config.json, expected a Hugging Face model folder or a "
                    "GGUF file",
                    dir);
        else if (rc == E_NOTFOUND) rc = OK;
        mem_free(path);
        text[i] = buf_str(&bytes[i]);
    }
    if (rc == OK && (rc = hfconfig_parse(out, text, e)) != OK) err_wrap(e, "%s", dir);
    for (int i = 0; i < HFCONFIG_N_FILES; i++) buf_release(&bytes[i]);
    mem_free(card);
    return rc;
}

static bool to_value(const json_t *j, struct value *out);

static bool list_at(const struct value *list, size_t i, struct value *out)
{
    return to_value(json_array_get(list->impl, i), out);
}

static bool to_value(const json_t *j, struct value *out)
{
    *out = (struct value){ 0 };
    switch (j ? json_typeof(j) : JSON_NULL) {
    case JSON_TRUE:
    case JSON_FALSE: out->kind = VALUE_BOOL, out->b = json_is_true(j); break;
    case JSON_INTEGER: out->kind = VALUE_INT, out->i = json_integer_value(j); break;
    case JSON_REAL:
        out->kind = VALUE_FLOAT, out->f = json_real_value(j);
        if (out->f >= INFINITE || out->f <= -INFINITE)
            out->f = out->f > 0 ? __builtin_inf() : -__builtin_inf();
        break;
    case JSON_STRING:
        out->kind = VALUE_STR, out->s = str_of(json_string_value(j), json_string_length(j));
        break;
    case JSON_ARRAY:
        out->kind = VALUE_LIST, out->n = json_array_size(j), out->elem = -1, out->impl = j,
        out->at = list_at;
        break;
    case JSON_OBJECT: break;
    default: return false;
    }
    return true;
}

static const json_t *get(const json_t *j, struct str part)
{
    int64_t i;

    if (json_is_object(j)) return json_object_getn(j, part.p, part.n);
    if (json_is_array(j) && str_to_i64(part, &i) && i >= 0) return json_array_get(j, (size_t)i);
    return NULL;
}

/* A member may have dots in its own name, so the whole rest is tried first. */
static const json_t *walk(const json_t *j, struct str path)
{
    while (j) {
        const json_t *whole = get(j, path);
        ptrdiff_t dot = str_find(path, STR("."));
        if (whole || dot < 0) return whole;
        j = get(j, str_take(path, (size_t)dot));
        path = str_skip(path, (size_t)dot + 1);
    }
    return NULL;
}

bool hfconfig_key(const struct hfconfig *c, const char *key, struct value *out)
{
    struct str k = str_c(key);
    const json_t *root = c->root[HFCONFIG_MODEL];

    for (int i = 1; i < HFCONFIG_N_FILES; i++) {
        struct str prefix = str_c(files[i].prefix);
        if (str_starts(k, prefix)) return to_value(walk(c->root[i], str_skip(k, prefix.n)), out);
    }
    return to_value(walk(root, k), out) ||
           to_value(walk(json_object_get(root, "text_config"), k), out);
}

size_t hfconfig_n_keys(const struct hfconfig *c) { return c->n_keys; }
const char *hfconfig_key_name(const struct hfconfig *c, size_t i) { return c->keys[i]; }
