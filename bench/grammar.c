/* grammar.c - the cost of constrained decoding per token: grammar TOKENIZER...
 *
 * For each tokenizer prints the time to build the trie of its vocabulary, then a CSV line for each
 * grammar: microseconds to compile it; to compute the mask of a token (mean of the first text, with
 * an empty cache; mean, 99th percentile and maximum of the texts after it); to apply the mask to
 * the logits; and the size of the cache. Texts are random walks over the allowed tokens. */
#include "base/mem.h"
#include "base/rng.h"
#include "grammar/grammar.h"
#include "grammar/matcher.h"
#include "grammar/vocabtrie.h"
#include "token/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { TEXTS = 40, TOKENS = 200 };

static const struct {
    const char *name;
    enum grammar_kind kind;
    const char *text;
} cases[] = {
    { "json_object", GRAMMAR_OBJECT, "" },
    { "person", GRAMMAR_SCHEMA,
      "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":"
      "\"integer\","
      "\"minimum\":0,"
      "\"maximum\":150},\"email\":{\"type\":\"string\",\"format\":\"email\"},\"tags\":{\"type\":"
      "\"array\","
      "\"items\":{\"type\":"
      "\"string\",\"maxLength\":20}}},\"required\":[\"name\",\"age\",\"email\",\"tags\"]}" },
    { "long strings", GRAMMAR_SCHEMA,
      "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"minLength\":50,\"maxLength\":500},"
      "\"minItems\":"
      "3}" },
    { "tree", GRAMMAR_SCHEMA,
      "{\"$ref\":\"#/$defs/"
      "t\",\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},"
      "\"left\":{"
      "\"anyOf\":[{\"$ref\":\"#/$defs/"
      "t\"},{\"type\":\"null\"}]},\"right\":{\"anyOf\":[{\"$ref\":\"#/$defs/"
      "t\"},{\"type\":\"null\"}]}},"
      "\"required\":[\"name\",\"left\",\"right\"]}}}" },
    { "words", GRAMMAR_GBNF,
      "root ::= word (\" \" word){20,200} \".\"\nword ::= [a-zA-Z\\u00c0-\\u024f]{1,12}" },
    { "any text", GRAMMAR_GBNF, "root ::= .{100,5000} \"END\"" },
    { "c-like", GRAMMAR_GBNF,
      "root ::= (statement \"\\n\")+\nstatement ::= ident \" = \" expr \";\"\nexpr ::= term "
      "([-+*/] "
      "term)*\n"
      "term ::= ident | num | \"(\" expr \")\" | \"\\\"\" [^\"\\\\\\n]* \"\\\"\"\nident ::= "
      "[a-zA-Z_] "
      "[a-zA-Z0-9_]*\nnum ::= [0-9]+ (\".\" [0-9]+)?" },
};

/* CPU time of this thread: other processes do not disturb it. */
static uint64_t cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

struct times {
    double *us;
    int n;
};

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A random token of the mask; -1: it is empty. */
static int32_t sample_mask(const uint64_t *mask, int n_words, struct rng *rng)
{
    uint64_t k = 0;

    for (int i = 0; i < n_words; i++) k += (uint64_t)__builtin_popcountll(mask[i]);
    if (k == 0) return -1;
    k = rng_u64(rng) % k;
    for (int i = 0; i < n_words; i++) {
        uint64_t w = mask[i], n = (uint64_t)__builtin_popcountll(w);
        if (k >= n) {
            k -= n;
            continue;
        }
        while (k--) w &= w - 1;
        return i * 64 + __builtin_ctzll(w);
    }
    return -1;
}

static void run_text(struct matcher_cache *d, const struct vocabtrie *lex, struct rng *rng,
                     struct times *t)
{
    struct matcher x;

    if (matcher_begin(&x, d, false, NULL) != OK) return;
    for (int i = 0; i < TOKENS && !matcher_is_complete(&x); i++) {
        uint64_t start = cpu_ns();
        const uint64_t *mask = matcher_mask(&x);
        int32_t id;
        t->us[t->n++] = (double)(cpu_ns() - start) / 1e3;
        id = sample_mask(mask, (lex->n_ids + 63) / 64, rng);
        if (id < 0 || matcher_accept(&x, id) != OK) break;
    }
    matcher_end(&x);
}

static double mean(const struct times *t)
{
    double sum = 0;

    for (int i = 0; i < t->n; i++) sum += t->us[i];
    return t->n ? sum / t->n : 0;
}

/* Microseconds of applying a mask; -1: no memory. */
static double time_apply(const struct vocabtrie *lex)
{
    float *in = mem_array((size_t)lex->n_ids, sizeof *in),
          *out = mem_array((size_t)lex->n_ids, sizeof *out);
    uint64_t *mask = mem_array((size_t)lex->n_ids / 64 + 1, sizeof *mask), start;
    struct rng rng;

    if (!in || !out || !mask) return -1;
    rng_seed(&rng, 1);
    for (int i = 0; i < lex->n_ids / 64; i++) mask[i] = rng_u64(&rng) | rng_u64(&rng);
    matcher_apply_mask(mask, in, out, lex->n_ids);
    start = cpu_ns();
    for (int i = 0; i < 200; i++) matcher_apply_mask(mask, in, out, lex->n_ids);
    mem_free(in);
    mem_free(out);
    mem_free(mask);
    return (double)(cpu_ns() - start) / 1e3 / 200;
}

static int run_case(const char *tokenizer, const struct tokenizer *tok, const struct vocabtrie *lex,
                    int c, double apply)
{
    struct grammar_spec spec = { .kind = cases[c].kind, .text = str_c(cases[c].text) };
    struct times first = { .us = mem_array(TOKENS, sizeof(double)) };
    struct times later = { .us = mem_array(TEXTS * TOKENS, sizeof(double)) };
    struct grammar *g = NULL;
    struct err e = { 0 };
    struct rng rng;
    struct matcher_cache *d;
    uint64_t start = cpu_ns();
    double compile;

    if (!first.us || !later.us) return 1;
    if (grammar_compile(&g, &spec, &(struct grammar_env){ .tok = tok }, &e) != OK) {
        fprintf(stderr, "%s: %s\n", cases[c].name, e.msg);
        return 1;
    }
    compile = (double)(cpu_ns() - start) / 1e3;
    rng_seed(&rng, 3);
    if (matcher_cache_open(&d, grammar_pda(g), lex, &e) != OK) return 1;
    run_text(d, lex, &rng, &first);
    for (int i = 0; i < TEXTS; i++) run_text(d, lex, &rng, &later);
    qsort(later.us, (size_t)later.n, sizeof *later.us, compare_doubles);
    printf("%s,%d,%s,%.0f,%.1f,%.2f,%.1f,%.1f,%.1f,%.1f\n", tokenizer, lex->n_ids, cases[c].name,
           compile, mean(&first), mean(&later), later.us[later.n * 99 / 100], later.us[later.n - 1],
           apply, (double)matcher_cache_bytes(d) / 1e6);
    fflush(stdout);
    matcher_cache_close(d);
    grammar_unref(g);
    mem_free(first.us);
    mem_free(later.us);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: grammar TOKENIZER...\n");
        return 2;
    }
    printf("tokenizer,ids,grammar,compile_us,first_us,mask_us,mask_99_us,mask_most_us,apply_us,"
           "megabytes\n");
    for (int i = 1; i < argc; i++) {
        struct tokenizer *t = NULL;
        struct vocabtrie *lex = NULL;
        struct err e = { 0 };
        const char *name = strrchr(argv[i], '/') ? strrchr(argv[i], '/') + 1 : argv[i];
        int32_t end;
        uint64_t start;
        double apply;
        if (tokenizer_open(&t, argv[i], &e) != OK) {
            fprintf(stderr, "grammar: %s\n", e.msg);
            return 1;
        }
        end = tokenizer_eos(t);
        start = cpu_ns();
        if (vocabtrie_open(&lex, t, tokenizer_n(t), &end, end >= 0, &e) != OK) return 1;
        fprintf(stderr, "%s: %d tokens, trie of %d nodes built in %.0f ms\n", name, lex->n_ids,
                lex->trie.n_nodes, (double)(cpu_ns() - start) / 1e6);
        apply = time_apply(lex);
        for (int c = 0; c < (int)(sizeof cases / sizeof *cases); c++)
            if (run_case(name, t, lex, c, apply)) return 1;
        vocabtrie_close(lex);
        tokenizer_close(t);
    }
    return 0;
}
