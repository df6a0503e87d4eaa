/* metakeys.c - look-ups in the metadata of a GGUF file. */
#include "model/metakeys.h"

#include <stdio.h>

struct metakey metakeys_name(const struct metakeys *k, const char *name)
{
    struct metakey key;

    snprintf(key.s, sizeof key.s, "%s.%s", k->arch, name);
    return key;
}

bool metakeys_f64(const struct metakeys *k, const char *name, double *out)
{
    return source_f64(k->src, metakeys_name(k, name).s, out);
}

double metakeys_f64_or(const struct metakeys *k, const char *name, double otherwise)
{
    double v = otherwise;

    metakeys_f64(k, name, &v);
    return v;
}

bool metakeys_int(const struct metakeys *k, const char *name, int l, int *out)
{
    struct value v, list;
    int64_t i;

    if (!source_key(k->src, metakeys_name(k, name).s, &v)) return false;
    if (v.kind == VALUE_LIST) {
        list = v;
        if (!value_at(&list, (size_t)l, &v)) return false;
    }
    if (v.kind == VALUE_BOOL) i = v.b;
    else if (!value_i64(&v, &i)) return false;
    if (i < 0 || i > INT32_MAX) return false;
    *out = (int)i;
    return true;
}

int metakeys_need(const struct metakeys *k, const char *name, int l, int *out, struct err *e)
{
    if (metakeys_int(k, name, l, out) && *out > 0) return OK;
    return err_set(e, E_FORMAT, "%s: the key %s is missing or not a positive integer",
                   source_path(k->src), metakeys_name(k, name).s);
}

const struct source_tensor *metakeys_tensor(const struct metakeys *k, int l, const char *name)
{
    char s[160];

    snprintf(s, sizeof s, "blk.%d.%s", l, name);
    return source_find(k->src, s);
}
