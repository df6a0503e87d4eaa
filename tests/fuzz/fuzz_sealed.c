/* Fuzz target: the header of an encrypted file, and the text of a key file. What is accepted has sizes
 * that fit the file, and a name without control characters. */
#include "base/keyring.h"
#include "base/sealed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    unsigned char head[SEALED_HEAD] = { 0 };
    struct sealed_head h;
    struct keyset *k = NULL;
    struct err e;
    uint64_t bytes = 0;

    memcpy(head, data, n < sizeof head ? n : sizeof head);
    if (n >= 24) memcpy(&bytes, data + 16, 8); /* as long as the header says, or a little longer */
    for (uint64_t tags = 0; tags < 4; tags++)
        if (sealed_parse(&h, head, SEALED_START + bytes + tags * CRYPTO_TAG, "fuzz", &e) == OK) {
            if (h.n_slots < 1 || h.n_slots > SEALED_SLOTS || h.chunk_bytes < SEALED_CHUNK_MIN)
                __builtin_trap();
            if (memchr(h.name, 0, sizeof h.name) == NULL) __builtin_trap();
        }
    if (keyset_parse(&k, str_of((const char *)data, n), "fuzz", &e) == OK &&
        (keyset_n(k) < 1 || keyset_n(k) > KEYSET_MAX))
        __builtin_trap();
    keyset_close(k);
    return 0;
}
