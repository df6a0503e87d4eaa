/* Fuzz target: an arbitrary safetensors file, or an arbitrary index whose shards do not exist. */
#include "base/mem.h"
#include "format/safetensors.h"

static volatile unsigned long long sink;

static void read_tensors(const struct safetensors *s)
{
    struct str v;

    for (size_t i = 0; i < safetensors_n_tensors(s); i++) {
        const struct source_tensor *t = safetensors_tensor(s, i);
        const uint8_t *p = t->data;
        if (safetensors_find(s, t->name) != t) __builtin_trap();
        if ((uintptr_t)p % (size_t)dtype_info((int)t->type)->bytes) __builtin_trap();
        if (t->bytes) sink += p[0] + p[t->bytes - 1];
    }
    if (safetensors_meta(s, "format", &v) && v.n) sink += (unsigned char)v.p[v.n - 1];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    void *copy = mem_dup(data, n);
    struct safetensors *s = NULL;
    struct err e;
    int rc;

    if (n && data[0] == '{')
        rc = safetensors_open_index(&s, "/nonexistent", str_of(copy, n), "fuzz", &e);
    else rc = safetensors_parse(&s, copy, n, "fuzz", &e);
    if (rc == OK) read_tensors(s);
    safetensors_close(s);
    mem_free(copy);
    return 0;
}
