/* Fuzz target: an arbitrary JSON schema. It is refused with a message, within a budget, or the
 * shortest text of its grammar is valid JSON. */
#include "base/buf.h"
#include "base/mem.h"
#include "grammar/grammar.h"
#include "bytes.h"
#include "work.h"

#include <jansson.h>

static void make_shortest(const struct pda *a)
{
    struct matcher_cache *d = open_cache(a, byte_vocab());
    struct buf text = { 0 };
    struct matcher x;
    json_t *v;

    begin_text(&x, d, false);
    while (matcher_min_bytes(&x) > 0 && text.n < 20000) {
        const uint64_t *mask = matcher_closing_mask(&x, matcher_min_bytes(&x) - 1);
        int32_t id = 255;
        while (id >= 0 && !(mask[id / 64] >> (id % 64) & 1)) id--;
        if (id < 0 || matcher_accept(&x, id) != OK)
            __builtin_trap(); /* every state must have a way to the end */
        buf_putc(&text, (char)id);
    }
    if (matcher_min_bytes(&x) == 0) {
        if (!matcher_may_end(&x)) __builtin_trap();
        /* Integers of any size are valid JSON; jansson takes large ones as reals only. */
        v = json_loadb(text.p, text.n, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL,
                       NULL);
        if (!v && text.n < 2000) __builtin_trap();
        json_decref(v);
    }
    matcher_end(&x);
    matcher_cache_close(d);
    buf_release(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *copy = mem_dup(data, n);
    struct grammar_spec spec = { .kind = GRAMMAR_SCHEMA, .text = str_of(copy, n) };
    struct grammar *g = NULL;
    struct err e = { 0 };
    struct budget b = { .max_steps = WORK_STEPS, .max_bytes = WORK_BYTES };
    struct grammar_env env = { .budget = &b };
    struct work w = work_begin();
    int rc = grammar_compile(&g, &spec, &env, &e);

    work_end(&w, &b);
    if (rc == OK) make_shortest(grammar_pda(g));
    else if (rc != E_INVALID || !e.msg[0]) __builtin_trap();
    grammar_unref(g);
    mem_free(copy);
    return 0;
}
