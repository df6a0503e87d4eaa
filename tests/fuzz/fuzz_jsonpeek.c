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
    if (copy) {
        struct jsonpeek_member m[] = { { .key = "keep_alive" }, { .key = "model" } };
        jsonpeek_members(str_of(copy, n), m, 2);
        for (int i = 0; i < 2; i++)
            if (m[i].found == JSONPEEK_FOUND && m[i].value.n &&
                (m[i].value.p < copy || m[i].value.p + m[i].value.n > copy + n))
                __builtin_trap();
    }
    buf_release(&out);
    mem_free(copy);
    return 0;
}
