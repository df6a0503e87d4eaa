/* Fuzz target: names of models. What is accepted stays inside the cache, whatever the name. */
#include "base/mem.h"
#include "format/hubcache.h"
#include "format/modelref.h"

#include <stdlib.h>

/* No part of an accepted name may leave a folder. */
static void check_ref(const struct hf_ref *r)
{
    const struct str parts[] = { r->org, r->name, r->rev, r->file };

    for (int i = 0; i < 4; i++) {
        if (parts[i].n == 0) continue;
        if (!hub_name_is_safe(parts[i]) || memchr(parts[i].p, 0, parts[i].n)) __builtin_trap();
        if (i < 2 && memchr(parts[i].p, '/', parts[i].n)) __builtin_trap();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *copy = mem_dup(data, n), *path = NULL; /* exactly n bytes */
    struct hf_ref r;
    struct err e = { 0 };

    setenv("HF_HUB_CACHE", "/nonexistent", 1);
    if (!copy) return 0;
    if (modelref_parse(&r, str_of(copy, n), &e) == OK) check_ref(&r);
    modelref_is_word(str_of(copy, n));
    if (modelref_resolve(&path, str_of(copy, n), &e) == OK && modelref_is_hub(str_of(copy, n)))
        __builtin_trap(); /* there is no cache */
    mem_free(path);
    mem_free(copy);
    return 0;
}
