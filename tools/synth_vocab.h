/* synth_vocab.h - the vocabulary of a synthetic model: 256 bytes, pieces that each merge two earlier
 * ones, and special tokens. Included by synth.c only. */
#include "base/buf.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/rng.h"
#include "format/ggufw.h"

#include <stdio.h>
#include <stdlib.h>

/* Passes p on, or ends the program if an allocation failed. */
static void *check_alloc(void *p)
{
    if (p) return p;
    fprintf(stderr, "synth: out of memory\n");
    exit(1);
}

struct vocab {
    struct str *tokens, *merges;
    int32_t *types;
    int n, n_merges;
    struct map seen;
};

static struct str copy_str(const char *p, size_t n)
{
    return str_of(check_alloc(mem_dup(p, n)), n);
}

/* false: the token is in the vocabulary already. */
static bool vocab_add(struct vocab *v, const char *p, size_t n, int32_t type)
{
    uint64_t id;
    if (map_get(&v->seen, str_of(p, n), &id)) return false;
    v->tokens[v->n] = copy_str(p, n);
    v->types[v->n] = type;
    if (map_put(&v->seen, v->tokens[v->n], (uint64_t)v->n) < 0) check_alloc(NULL);
    v->n++;
    return true;
}

/* The characters that GPT-2 vocabularies use for the 256 bytes, in their order. */
static void vocab_add_bytes(struct vocab *v)
{
    int next = 256;
    for (int pass = 0; pass < 2; pass++)
        for (int b = 0; b < 256; b++) {
            bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
            if (printable != (pass == 0)) continue;
            int c = printable ? b : next++;
            char utf8[2] = { (char)(0xc0 | c >> 6), (char)(0x80 | (c & 63)) };
            if (c < 128) vocab_add(v, (char[]){ (char)c }, 1, 1);
            else vocab_add(v, utf8, 2, 1);
        }
}

/* One side of a merge: a letter, with about the frequency of English, or an earlier piece. The left
 * side may begin with the space marker; `inner` lists the pieces that do not. */
static struct str choose_side(struct rng *r, const struct vocab *v, const int *inner, int n_inner,
                              bool left)
{
    static const char letters[] = "eeeeeetttttaaaaooooiiiinnnnsssshhhrrrddllluucmwfgypbvkjxqz";
    uint64_t u = rng_u64(r);
    if (left && u % 4 == 0) return str_of("\xc4\xa0", 2);
    if (n_inner == 0 || u % 8 < 5) return str_of(&letters[(u >> 8) % (sizeof letters - 1)], 1);
    if (left) return v->tokens[256 + (u >> 8) % (uint64_t)(v->n - 256)];
    return v->tokens[inner[(u >> 8) % (uint64_t)n_inner]];
}

static void vocab_add_pieces(struct vocab *v, struct rng *r, int n_until)
{
    int *inner = check_alloc(mem_array((size_t)n_until, sizeof *inner)), n_inner = 0;
    while (v->n < n_until) {
        struct str a = choose_side(r, v, inner, n_inner, true),
                   b = choose_side(r, v, inner, n_inner, false);
        char piece[32], merge[32];
        if (a.n + b.n > 10) continue;
        int n = snprintf(piece, sizeof piece, "%.*s%.*s", (int)a.n, a.p, (int)b.n, b.p);
        if (!vocab_add(v, piece, (size_t)n, 1)) continue;
        if (piece[0] != '\xc4') inner[n_inner++] = v->n - 1;
        n = snprintf(merge, sizeof merge, "%.*s %.*s", (int)a.n, a.p, (int)b.n, b.p);
        v->merges[v->n_merges++] = copy_str(merge, (size_t)n);
    }
    mem_free(inner);
}

/* Writes n_vocab tokens, the last n_special of them special, and the merges. */
static void write_vocab(struct ggufw *w, struct rng *r, const char *pre, int n_vocab, int n_special,
                        bool add_bos)
{
    size_t n = (size_t)n_vocab;
    struct vocab v = { check_alloc(mem_array(n, sizeof *v.tokens)),
                       check_alloc(mem_array(n, sizeof *v.merges)),
                       check_alloc(mem_array(n, sizeof *v.types)),
                       0,
                       0,
                       { 0 } };
    int first_special = n_vocab - n_special;

    vocab_add_bytes(&v);
    vocab_add_pieces(&v, r, first_special);
    vocab_add(&v, "<|begin_of_text|>", 17, 3);
    vocab_add(&v, "<|end_of_text|>", 15, 3);
    while (v.n < n_vocab) {
        char name[48];
        int len = snprintf(name, sizeof name, "<|reserved_special_token_%d|>", v.n - first_special);
        vocab_add(&v, name, (size_t)len, 3);
    }
    ggufw_str(w, "tokenizer.ggml.model", str_c("gpt2"));
    ggufw_str(w, "tokenizer.ggml.pre", str_c(pre));
    ggufw_strs(w, "tokenizer.ggml.tokens", v.tokens, (size_t)v.n);
    ggufw_i32s(w, "tokenizer.ggml.token_type", v.types, (size_t)v.n);
    ggufw_strs(w, "tokenizer.ggml.merges", v.merges, (size_t)v.n_merges);
    ggufw_u32(w, "tokenizer.ggml.bos_token_id", (uint32_t)first_special);
    ggufw_u32(w, "tokenizer.ggml.eos_token_id", (uint32_t)first_special + 1);
    ggufw_bool(w, "tokenizer.ggml.add_bos_token", add_bos);

    for (int i = 0; i < v.n; i++) mem_free((char *)v.tokens[i].p);
    for (int i = 0; i < v.n_merges; i++) mem_free((char *)v.merges[i].p);
    mem_free(v.tokens);
    mem_free(v.merges);
    mem_free(v.types);
    map_release(&v.seen);
}
