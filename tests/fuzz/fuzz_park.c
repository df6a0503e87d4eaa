/* Fuzz target: a file of parked KV blocks. Checksums would stop nearly every input, so those of inputs
 * with an even last byte are made right first. */
#include "base/mem.h"
#include "kv/park.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct park_set *s = NULL;
    struct park_block b;
    struct err e = { 0 };
    char *copy = mem_dup(data, n); /* exactly n bytes: the sanitizer finds reads past them */
    volatile unsigned char seen = 0;

    if (!copy) return 0;
    if (n > 0 && data[n - 1] % 2 == 0) park_seal(copy, n);
    if (park_parse(&s, copy, n, NULL, &e) == OK) {
        for (int i = 0; i < park_set_n(s); i++) {
            const unsigned char *p = park_set_data(s, i);
            park_set_at(s, i, &b);
            if (b.parent >= i || b.parent < -1) __builtin_trap();
            if (p && n > 0) seen ^= p[0];
        }
        park_set_close(s);
    } else if (!e.msg[0]) __builtin_trap();
    mem_free(copy);
    (void)seen;
    return 0;
}
