/* Fuzz target: an arbitrary GGUF file. It is parsed, then every key and both ends of every
 * tensor are read. */
#include "base/mem.h"
#include "format/gguf.h"

static volatile unsigned long long sink;

static void read_value(const struct value *v)
{
    struct value item;

    sink += v->kind == VALUE_STR && v->s.n
                ? (unsigned char)v->s.p[0] + (unsigned char)v->s.p[v->s.n - 1]
                : v->u;
    for (size_t i = 0; v->kind == VALUE_LIST && i < v->n; i++)
        if (value_at(v, i, &item)) read_value(&item);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    void *copy = mem_dup(data, n); /* aligned like a mapped file */
    struct gguf *g = NULL;
    struct err e;
    struct value v;

    if (gguf_parse(&g, copy, n, "fuzz", &e) == OK) {
        for (size_t i = 0; i < gguf_n_keys(g); i++) {
            struct str raw = gguf_key_raw(g, str_c(gguf_key_name(g, i)));
            if (!gguf_key(g, str_c(gguf_key_name(g, i)), &v) || raw.n < 5) __builtin_trap();
            read_value(&v);
        }
        for (size_t i = 0; i < gguf_n_tensors(g); i++) {
            const struct source_tensor *t = gguf_tensor(g, i);
            const uint8_t *p = t->data;
            if (gguf_find(g, t->name) != t || t->bytes == 0) __builtin_trap();
            sink += p[0] + p[t->bytes - 1];
        }
    }
    gguf_close(g);
    mem_free(copy);
    return 0;
}
