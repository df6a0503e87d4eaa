/* hfconfig.c - reads the JSON files of a Hugging Face folder.
 *
 * jansson parses strict JSON, which nearly all files are. Only a file it refuses is rewritten first
 * (put_strict_json): NaN and Infinity, which Python writes, and integers beyond 64 bits. */
#include "format/hfconfig.h"

#include "base/file.h"
#include "base/mem.h"
#include "format/jsonload.h"

#include <ctype.h>

#define MAX_BYTES (64u << 20)           /* of one file */
#define MAX_DIGITS 18                   /* an integer of so many digits fits an int64_t */
#define INFINITE 1.7976931348623157e308 /* written for Infinity, and read as infinite */

/* Names in the folder, and the prefixes of keys that select them. */
static const struct {
    const char *name, *prefix;
} files[HFCONFIG_N_FILES] = {
    [HFCONFIG_MODEL] = { "config.json", "" },
    [HFCONFIG_GENERATION] = { "generation_config.json", "generation_config:" },
    [HFCONFIG_TOKENIZER] = { "tokenizer_config.json", "tokenizer_config:" },
    [HFCONFIG_POOLING] = { "1_Pooling/config.json", "pooling:" },
    [HFCONFIG_MODULES] = { "modules.json", "modules:" },
    [HFCONFIG_SCORE] = { "1_LogitScore/config.json", "logit_score:" },
    [HFCONFIG_TERN] = { "tern.json", "tern:" },
    [HFCONFIG_MODELOPT] = { "hf_quant_config.json", "hf_quant_config:" },
    [HFCONFIG_GPTQ] = { "quantize_config.json", "quantize_config:" },
};

/* The parsed files. Strings and lists that are handed out are jansson's. */
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

/* Copies the string at the start of s; returns its bytes. */
static size_t copy_string(struct buf *out, struct str s)
{
    size_t n = 1;

    while (n < s.n && s.p[n] != '"') n += s.p[n] == '\\' && n + 1 < s.n ? 2 : 1;
    n = n < s.n ? n + 1 : s.n;
    buf_put_str(out, str_take(s, n));
    return n;
}

/* Copies the number at the start of s; an integer that may not fit 64 bits becomes a real number. */
static size_t copy_number(struct buf *out, struct str s)
{
    size_t n = 1;
    bool integer = true;

    for (; n < s.n && (isalnum((unsigned char)s.p[n]) || strchr("+-.", s.p[n])) && s.p[n]; n++)
        if (!isdigit((unsigned char)s.p[n])) integer = false;
    buf_put_str(out, str_take(s, n));
    if (integer && n > MAX_DIGITS) buf_puts(out, ".0");
    return n;
}

/* Appends s with what Python writes beyond JSON replaced. */
static void put_strict_json(struct buf *out, struct str s)
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
        if (n) { /* was one of the words */
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

static int load_file(json_t **out, struct str text, const char *name, struct err *e)
{
    struct buf strict = { 0 };
    int rc = jsonload(out, text, 0, name, e);

    if (rc == E_FORMAT) {
        put_strict_json(&strict, text);
        rc = buf_check(&strict, e);
        if (rc == OK) rc = jsonload(out, buf_str(&strict), 0, name, e);
        buf_release(&strict);
    }
    if (rc == OK && !json_is_object(*out) &&
        !(json_is_array(*out) && strcmp(name, files[HFCONFIG_MODULES].name) == 0))
        rc = err_set(e, E_FORMAT, "%s: expected an object", name);
    return rc;
}

/* For listings only (tern inspect). */
static int list_keys(struct hfconfig *c, struct err *e)
{
    const char *name;
    json_t *v;

    c->keys = mem_array(json_object_size(c->root[HFCONFIG_MODEL]), sizeof *c->keys);
    if (!c->keys) return err_nomem(e, "the keys of config.json");
    json_object_foreach (c->root[HFCONFIG_MODEL], name, v) c->keys[c->n_keys++] = name;
    return OK;
}

int hfconfig_parse(struct hfconfig **out, const struct str text[HFCONFIG_N_FILES], struct err *e)
{
    struct hfconfig *c = mem_new(struct hfconfig);
    int rc = OK;

    if (!c) return err_nomem(e, "a model's configuration");
    for (int i = 0; i < HFCONFIG_N_FILES && rc == OK; i++)
        if (text[i].n || i == HFCONFIG_MODEL)
            rc = load_file(&c->root[i], text[i], files[i].name, e);
    if (rc == OK) rc = list_keys(c, e);
    if (rc == OK) *out = c;
    else hfconfig_close(c);
    return rc;
}

/* Is there a tern.json? *rc is E_NOMEM if that cannot be found out. */
static bool has_card(const char *dir, int *rc, struct err *e)
{
    char *card = path_join(dir, files[HFCONFIG_TERN].name);
    bool there = card && file_exists(card);

    if (!card) *rc = err_nomem(e, "the path of a model");
    mem_free(card);
    return there;
}

/* Reads one of the files. A missing one is empty; without config.json there must be tern.json. */
static int read_config_file(struct buf *out, const char *dir, int file, struct err *e)
{
    char *path = path_join(dir, files[file].name);
    int rc = path ? file_read(out, path, MAX_BYTES, e) : err_nomem(e, "the path of a model");

    mem_free(path);
    if (rc != E_NOTFOUND) return rc;
    if (file != HFCONFIG_MODEL) return OK;
    if (has_card(dir, &rc, e)) {
        buf_puts(out, "{}");
        return buf_check(out, e);
    }
    if (rc != E_NOTFOUND) return rc;
    return err_set(e, rc,
                   "%s: a folder without config.json, expected a Hugging Face model folder or a "
                   "GGUF file",
                   dir);
}

int hfconfig_open(struct hfconfig **out, const char *dir, struct err *e)
{
    struct buf bytes[HFCONFIG_N_FILES] = { 0 };
    struct str text[HFCONFIG_N_FILES];
    int rc = OK;

    for (int i = 0; i < HFCONFIG_N_FILES && rc == OK; i++) {
        rc = read_config_file(&bytes[i], dir, i, e);
        text[i] = buf_str(&bytes[i]);
    }
    if (rc == OK && (rc = hfconfig_parse(out, text, e)) != OK) err_wrap(e, "%s", dir);
    for (int i = 0; i < HFCONFIG_N_FILES; i++) buf_release(&bytes[i]);
    return rc;
}

static bool fill_value(const json_t *j, struct value *out);

static bool find_list_item(const struct value *list, size_t i, struct value *out)
{
    return fill_value(json_array_get(list->impl, i), out);
}

/* false: null, or no such value. An object is VALUE_NONE. */
static bool fill_value(const json_t *j, struct value *out)
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
        out->at = find_list_item;
        break;
    case JSON_OBJECT: break;
    default: return false;
    }
    return true;
}

static const json_t *find_member(const json_t *j, struct str part)
{
    int64_t i;

    if (json_is_object(j)) return json_object_getn(j, part.p, part.n);
    if (json_is_array(j) && str_to_i64(part, &i) && i >= 0) return json_array_get(j, (size_t)i);
    return NULL;
}

/* The value at a dotted path. A name may have dots itself, so at each level the whole rest of the
 * path is tried first. */
static const json_t *find_path(const json_t *j, struct str path)
{
    while (j) {
        const json_t *whole = find_member(j, path);
        ptrdiff_t dot = str_find(path, STR("."));
        if (whole || dot < 0) return whole;
        j = find_member(j, str_take(path, (size_t)dot));
        path = str_skip(path, (size_t)dot + 1);
    }
    return NULL;
}

/* A prefix selects the file; without one it is config.json, then its text_config. */
bool hfconfig_key(const struct hfconfig *c, const char *key, struct value *out)
{
    struct str k = str_c(key);
    const json_t *root = c->root[HFCONFIG_MODEL];

    for (int i = 1; i < HFCONFIG_N_FILES; i++) {
        struct str prefix = str_c(files[i].prefix);
        if (str_starts(k, prefix))
            return fill_value(find_path(c->root[i], str_skip(k, prefix.n)), out);
    }
    return fill_value(find_path(root, k), out) ||
           fill_value(find_path(json_object_get(root, "text_config"), k), out);
}

size_t hfconfig_n_keys(const struct hfconfig *c) { return c->n_keys; }
const char *hfconfig_key_name(const struct hfconfig *c, size_t i) { return c->keys[i]; }
