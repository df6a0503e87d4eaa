/* Fuzz target: an arbitrary tokenizer.json, and after the first NUL a text to encode, decode and
 * stream with it. */
#include "base/mem.h"
#include "base/utf8.h"
#include "token/tokenizer.h"

#include <stdlib.h>

static void require(bool ok)
{
    if (!ok) abort();
}

static void encode_and_decode(const struct tokenizer *t, struct str text, unsigned flags)
{
    struct ids ids = { 0 };
    struct buf out = { 0 };
    struct detok d;
    struct err e;

    if (tokenizer_encode(t, text, flags, &ids, &e) == OK) {
        for (size_t i = 0; i < ids.n; i++) require(ids.p[i] >= 0);
        tokenizer_decode(t, ids.p, ids.n, flags & ENCODE_PLAIN, &out);
        require(utf8_bad(buf_str(&out)) < 0);
        buf_clear(&out);
        detok_init(&d, t, flags & ENCODE_PLAIN);
        for (size_t i = 0; i < ids.n && i < 64; i++) detok_push(&d, ids.p[i], &out);
        detok_flush(&d, &out);
        detok_release(&d);
        require(utf8_bad(buf_str(&out)) < 0);
    }
    buf_release(&out);
    ids_release(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const uint8_t *end = n ? memchr(data, 0, n) : NULL;
    size_t n_json = end ? (size_t)(end - data) : n, n_text = end ? n - n_json - 1 : 0;
    char *json = mem_dup(data, n_json), *text = mem_dup(end ? end + 1 : data, n_text);
    struct tokenizer *t = NULL;
    struct token_export x;
    struct err e;

    require(json && text);
    if (tokenizer_from_json(&t, str_of(json, n_json), STR(""), "fuzz", &e) == OK) {
        encode_and_decode(t, str_of(text, n_text), 0);
        encode_and_decode(t, str_of(text, n_text), ENCODE_SPECIAL | ENCODE_PLAIN);
        tokenizer_export(t, &x, &e);
    }
    tokenizer_close(t);
    mem_free(json);
    mem_free(text);
    return 0;
}
