/* Fuzz target: one member of an arbitrary text. What is found is a part of the text. */
#include "base/jsonpeek.h"
#include "base/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *copy = mem_dup(data, n); /* exactly n bytes: the sanitizer finds reads past them */
    struct buf out = { 0 };

    if (copy && jsonpeek_text(str_of(copy, n), "model", &out) == JSONPEEK_FOUND && !out.failed &&
        out.n && str_find(str_of(copy, n), buf_str(&out)) < 0)
        __builtin_trap();
    buf_release(&out);
    mem_free(copy);
    return 0;
}
