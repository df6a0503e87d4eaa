/* Fuzz target: members of an arbitrary text, whole and in pieces. What is found is a part of the text. */
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
        struct jsonpeek_member pieces[] = { { .key = "keep_alive" }, { .key = "model" } };
        struct jsonpeek_scan scan;
        jsonpeek_begin(&scan, str_of(copy, n), pieces, 2);
        while (!jsonpeek_step(&scan, 1 + n % 5)) continue;
        for (int i = 0; i < 2; i++) {
            if (m[i].found == JSONPEEK_FOUND && m[i].value.n &&
                (m[i].value.p < copy || m[i].value.p + m[i].value.n > copy + n))
                __builtin_trap();
            if (m[i].found != pieces[i].found || !str_eq(m[i].value, pieces[i].value))
                __builtin_trap(); /* where a piece ends does not matter */
        }
    }
    buf_release(&out);
    mem_free(copy);
    return 0;
}
