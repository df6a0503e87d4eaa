/* Fuzz target: an arbitrary config.json. Every key that it has is looked up, and some paths into
 * it. */
#include "base/mem.h"
#include "format/hfconfig.h"

static volatile unsigned long long sink;

static void read_value(const struct value *v)
{
    struct value item;
    uint64_t u;
    int64_t i;
    double f;

    sink += value_u64(v, &u) + value_i64(v, &i) + value_f64(v, &f);
    if (v->kind == VALUE_STR && v->s.n)
        sink += (unsigned char)v->s.p[0] + (unsigned char)v->s.p[v->s.n - 1];
    for (size_t k = 0; v->kind == VALUE_LIST && k < v->n; k++)
        if (value_at(v, k, &item)) read_value(&item);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const paths[] = { "a.b",
                                         "a.0.b",
                                         "rope_scaling.factor",
                                         "a.",
                                         ".",
                                         "",
                                         "a.-1",
                                         "a.99999999999999999999",
                                         "generation_config:a",
                                         "tokenizer_config:a.b.0" };
    void *copy = mem_dup(data, n);
    struct str all = str_of(copy, n), text[HFCONFIG_N_FILES] = { all, all, all, all, all, all };
    struct hfconfig *c = NULL;
    struct value v;
    struct err e;

    if (hfconfig_parse(&c, text, &e) == OK) {
        for (size_t i = 0; i < hfconfig_n_keys(c); i++)
            if (hfconfig_key(c, hfconfig_key_name(c, i), &v)) read_value(&v);
        for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
            if (hfconfig_key(c, paths[i], &v)) read_value(&v);
    }
    hfconfig_close(c);
    mem_free(copy);
    return 0;
}
