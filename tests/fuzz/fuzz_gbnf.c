/* Fuzz target: an arbitrary grammar (GBNF; after '/' a regular expression, after '[' a choice),
 * and after the first NUL a text to match.
 *
 * A grammar is refused with a message, within a budget, or it can be matched, and its masks contain
 * exactly the tokens that can be accepted. */
#include "base/mem.h"
#include "grammar/grammar.h"
#include "bytes.h"
#include "work.h"

static struct vocabtrie *text_vocab(void)
{
    static struct vocabtrie *l;
    static char bytes[256];
    static struct str words[256 + 8];
    static const char *const more[8] = { "ab", "abc", "root", "\"]", ", ", "  ", "\xc3\xa9", "12" };

    if (l) return l;
    for (int i = 0; i < 256; i++) bytes[i] = (char)i, words[i] = str_of(&bytes[i], 1);
    for (int i = 0; i < 8; i++) words[256 + i] = str_c(more[i]);
    if (vocabtrie_from_bytes(&l, words, NULL, 264, NULL) != OK) __builtin_trap();
    return l;
}

static void match_text(const struct pda *a, struct str text)
{
    struct matcher_cache *d = open_cache(a, text_vocab());
    struct matcher x;

    begin_text(&x, d, false);
    for (size_t i = 0; i < text.n && i < 64; i++) {
        const uint64_t *mask = matcher_mask(&x);
        uint64_t copy[5];
        memcpy(copy, mask, sizeof copy);
        for (int32_t id = 0; id < 264; id++) {
            int after = matcher_min_bytes_after(&x, id);
            if (after != E_UNSUPPORTED && (copy[id / 64] >> (id % 64) & 1) != (after < MATCHER_FAR))
                __builtin_trap();
        }
        if (matcher_is_complete(&x)) break;
        if (matcher_accept(&x, (int32_t)((unsigned char)text.p[i])) != OK) {
            int32_t id = 0;
            while (id < 264 && !(copy[id / 64] >> (id % 64) & 1)) id++;
            int rc = id < 264 ? matcher_accept(&x, id) : OK;
            if (rc == E_UNSUPPORTED) break;
            if (rc != OK) __builtin_trap();
        }
    }
    matcher_end(&x);
    matcher_cache_close(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *cut = n ? memchr(data, 0, n) : NULL;
    size_t n_text = cut ? (size_t)(cut - (const char *)data) : n;
    char *copy = mem_dup(data, n);
    struct grammar_spec spec = { .kind = GRAMMAR_GBNF, .text = str_of(copy, n_text) };
    struct grammar *g = NULL;
    struct err e = { 0 };
    struct budget b = { .max_steps = WORK_STEPS, .max_bytes = WORK_BYTES };
    struct grammar_env env = { .budget = &b };
    struct work w;
    int rc;

    if (n && (data[0] == '/' || data[0] == '[')) { /* a regular expression or a choice */
        spec.kind = data[0] == '/' ? GRAMMAR_REGEX : GRAMMAR_CHOICE;
        if (data[0] == '/') spec.text = str_skip(spec.text, 1);
    }
    w = work_begin();
    rc = grammar_compile(&g, &spec, &env, &e);
    work_end(&w, &b);
    if (rc == OK)
        match_text(grammar_pda(g), cut ? str_skip(str_of(copy, n), n_text) : STR("a1\"{[ x"));
    else if (rc != E_INVALID || !e.msg[0]) __builtin_trap();
    grammar_unref(g);
    mem_free(copy);
    return 0;
}
