/* config.c - look-ups in config.json. */
#include "model/config.h"

#include <stdio.h>

struct config_key {
    char s[160];
};

static struct config_key full_key(const struct config *c, const char *dict, const char *name)
{
    struct config_key k;
    snprintf(k.s, sizeof k.s, "%s%s%s", c->in, dict, name);
    return k;
}

bool config_value(const struct config *c, const char *dict, const char *name, struct value *out)
{
    return source_key(c->src, full_key(c, dict, name).s, out);
}

/* A key with the value null counts as missing; see config_null. */
bool config_has(const struct config *c, const char *dict, const char *name)
{
    struct value v;
    return config_value(c, dict, name, &v);
}

bool config_f64(const struct config *c, const char *dict, const char *name, double *out)
{
    return source_f64(c->src, full_key(c, dict, name).s, out);
}

bool config_str(const struct config *c, const char *dict, const char *name, struct str *out)
{
    return source_str(c->src, full_key(c, dict, name).s, out);
}

bool config_flag(const struct config *c, const char *dict, const char *name, bool otherwise)
{
    bool b = otherwise;
    source_bool(c->src, full_key(c, dict, name).s, &b);
    return b;
}

/* Values out of the range of int count as missing: the caller then reports the key or infers the
 * shape. */
bool config_int(const struct config *c, const char *name, int *out)
{
    int64_t v;
    if (!source_i64(c->src, full_key(c, "", name).s, &v) || v < 0 || v > INT32_MAX) return false;
    *out = (int)v;
    return true;
}

bool config_bool(const struct config *c, const char *name, bool otherwise)
{
    return config_flag(c, "", name, otherwise);
}

/* source_key does not distinguish null from missing; the list of names does. */
bool config_null(const struct config *c, const char *name)
{
    struct config_key k = full_key(c, "", name);
    if (config_has(c, "", name)) return false;
    for (size_t i = 0; i < source_n_keys(c->src); i++)
        if (strcmp(source_key_name(c->src, i), k.s) == 0) return true;
    return false;
}

double config_or(const struct config *c, const char *name, double otherwise)
{
    double v = otherwise;
    if (config_f64(c, "", name, &v)) return v;
    return config_null(c, name) ? 0 : otherwise;
}

bool config_any(const struct config *c, const char *const *names, int *out)
{
    for (; *names; names++)
        if (config_int(c, *names, out)) return true;
    return false;
}

/* The message says whether the key is missing or has a wrong value. */
int config_need(const struct config *c, const char *const *names, int *out, struct err *e)
{
    if (config_any(c, names, out) && *out > 0) return OK;
    for (const char *const *n = names; *n; n++)
        if (config_has(c, "", *n))
            return err_set(e, E_FORMAT, "%s: config.json: %s%s is not a positive integer",
                           source_path(c->src), c->in, *n);
    return err_set(e, E_FORMAT, "%s: config.json has no %s%s", source_path(c->src), c->in, *names);
}

int config_refuse(const struct config *c, const char *key, const char *why, struct err *e)
{
    return err_set(e, E_UNSUPPORTED, "%s: config.json: %s %s", source_path(c->src), key, why);
}

static struct config_key element_key(const char *list, int l)
{
    struct config_key k;
    snprintf(k.s, sizeof k.s, "%s.%d", list, l);
    return k;
}

bool config_list_is(const struct config *c, const char *list, int l, const char *name)
{
    struct str s;
    return config_str(c, "", element_key(list, l).s, &s) && str_is(s, name);
}

/* Lists of true and false count as 1 and 0. */
bool config_list_int(const struct config *c, const char *list, int l, int *out)
{
    struct config_key k = element_key(list, l);
    struct value v;
    if (config_int(c, k.s, out)) return true;
    if (!config_value(c, "", k.s, &v) || v.kind != VALUE_BOOL) return false;
    *out = config_bool(c, k.s, false);
    return true;
}

bool config_list_f64(const struct config *c, const char *list, int l, double *out)
{
    return config_f64(c, "", element_key(list, l).s, out);
}
