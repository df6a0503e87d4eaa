/* regex_scan.c - scanners for the best-known splitting patterns, over ASCII text.
 *
 * Most models split text by one of three patterns, and most text is ASCII. There a match depends on
 * a few kinds of bytes, and a loop over a table finds it several times faster than PCRE2's machine
 * code. PCRE2 defines what a pattern matches: wherever a byte that is not ASCII follows or could
 * take part in the match, the scanner returns 0 and PCRE2 decides. test_tokparts compares both.
 *
 * The alternatives of a pattern are tried in its order; comments name the alternative. */
#include "token/regex.h"

/* Kinds of bytes: other (punctuation, controls), lower and upper case letter, digit, space, line
 * end, not ASCII. */
enum { P, L, U, N, S, R, H };

/* clang-format off */
#define ROW(x) x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x
static const unsigned char kinds[256] = {
    P, P, P, P, P, P, P, P, P, S, R, S, S, R, P, P, ROW(P),
    S, P, P, P, P, P, P, P, P, P, P, P, P, P, P, P,
    N, N, N, N, N, N, N, N, N, N, P, P, P, P, P, P,
    P, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U,
    U, U, U, U, U, U, U, U, U, U, U, P, P, P, P, P,
    P, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L,
    L, L, L, L, L, L, L, L, L, L, L, P, P, P, P, P,
    ROW(H), ROW(H), ROW(H), ROW(H), ROW(H), ROW(H), ROW(H), ROW(H),
};
/* clang-format on */

/* Building blocks of the patterns, as tokenizer.json files write them. */
#define SUFFIXES "'s|'t|'re|'ve|'m|'ll|'d"
#define CASED "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define SMALL "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define LEAD "[^\\r\\n\\p{L}\\p{N}]?"
#define SPACE_TAIL "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CL100K(start, digits) \
    start "|" LEAD "\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACE_TAIL
#define O200K(tail, digits, ends)                                              \
    LEAD CASED "*" SMALL "+" tail "|" LEAD CASED "+" SMALL "*" tail "|" digits \
               "| ?[^\\s\\p{L}\\p{N}]+[" ends "]*" SPACE_TAIL
#define ANY_CASE "(?i:" SUFFIXES ")"
#define BOTH_CASES "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"

const char scan_gpt2_pattern[] =
    SUFFIXES "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static const struct {
    const char *pattern;
    struct scan scan; /* known, style, max_digits, slash, contractions */
} known[] = {
    { scan_gpt2_pattern, { true, SCAN_GPT2, 0, false, false } },
    { CL100K(ANY_CASE, "\\p{N}"), { true, SCAN_CL100K, 1, false, false } },
    { CL100K(ANY_CASE, "\\p{N}{1,3}"), { true, SCAN_CL100K, 3, false, false } },
    { CL100K(BOTH_CASES, "\\p{N}"), { true, SCAN_CL100K, 1, false, false } },
    { CL100K(BOTH_CASES, "\\p{N}{1,3}"), { true, SCAN_CL100K, 3, false, false } },
    { O200K("", "\\p{N}", "\\r\\n/"), { true, SCAN_O200K, 1, true, false } },
    { O200K(ANY_CASE "?", "\\p{N}{1,3}", "\\r\\n/"), { true, SCAN_O200K, 3, true, true } },
};

struct scan scan_for(struct str pattern)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (str_is(pattern, known[i].pattern)) return known[i].scan;
    return (struct scan){ 0 };
}

#define KIND(i) (size_t)(i) < n ? kinds[p[i]] : P + 16 /* at the end of the text: of no kind */

static inline bool is_letter(int k) { return k == L || k == U; }

/* Length of the contraction 's 't 're 've 'm 'll 'd at p; 0: none. any_case: also 'S 'T ... */
static size_t match_suffix(const unsigned char *p, size_t n, bool any_case)
{
    unsigned fold = any_case ? 0x20 : 0;

    if (n < 2 || p[0] != '\'') return 0;
    switch (p[1] | fold) {
    case 's':
    case 't':
    case 'm':
    case 'd': return 2;
    case 'r':
    case 'v': return n > 2 && (p[2] | fold) == 'e' ? 3 : 0;
    case 'l': return n > 2 && (p[2] | fold) == 'l' ? 3 : 0;
    }
    return 0;
}

/* \s+(?!\S)|\s+ , and with `lines` before it \s*[\r\n]+ . The last space of a run before other
 * text belongs to that text. */
static size_t match_spaces(const unsigned char *p, size_t n, bool lines)
{
    size_t i = 0, line_end = 0;

    for (; i < n; i++) {
        int k = kinds[p[i]];
        if (k == R) line_end = i + 1;
        else if (k != S) break;
    }
    if (i < n && kinds[p[i]] == H) return 0;
    if (lines && line_end) return line_end;
    return i < n && i > 1 ? i - 1 : i;
}

/* The end of the run of kinds a and b that starts at i; 0: a byte that is not ASCII follows it. */
static inline size_t match_run(const unsigned char *p, size_t n, size_t i, int a, int b)
{
    int k = -1;

    while (i < n && ((k = kinds[p[i]]) == a || k == b)) i++;
    return i < n && k == H ? 0 : i;
}

static size_t match_gpt2(const unsigned char *p, size_t n)
{
    size_t q = p[0] == ' ', s; /* q: after the optional space */
    int k = KIND(q);

    if (is_letter(k)) return match_run(p, n, q, L, U);
    if (k == H) return 0;
    if ((s = match_suffix(p, n, false))) return s;
    if (k == N) return match_run(p, n, q, N, N);
    if (k == P) return match_run(p, n, q, P, P);
    return match_spaces(p, n, false);
}

/* The alternatives that CL100K and O200K share: digits, punctuation, spaces. */
static size_t match_common(const struct scan *s, const unsigned char *p, size_t n)
{
    size_t q = p[0] == ' ', i; /* q: after the optional space */
    int k = kinds[p[0]];

    if (k == N) {
        for (i = 1; i < n && i < (size_t)s->max_digits && kinds[p[i]] == N; i++) {}
        return i < n && i < (size_t)s->max_digits && kinds[p[i]] == H ? 0 : i;
    }
    k = KIND(q);
    if (k == H) return 0;
    if (k != P) return match_spaces(p, n, true);
    i = match_run(p, n, q, P, P);
    if (i)
        while (i < n && (kinds[p[i]] == R || (s->slash && p[i] == '/'))) i++;
    return i;
}

static size_t match_cl100k(const struct scan *s, const unsigned char *p, size_t n)
{
    int k = kinds[p[0]], k1 = KIND(1);
    size_t len;

    if (is_letter(k)) return match_run(p, n, 1, L, U);
    if (k == H) return 0;
    if (p[0] == '\'') {
        if (k1 == H) return 0; /* (?i:'s) matches U+017F, the long s, too */
        if ((len = match_suffix(p, n, true))) return len;
    }
    if (k == P || k == S) {
        if (is_letter(k1)) return match_run(p, n, 2, L, U);
        if (k1 == H) return 0;
    }
    return match_common(s, p, n);
}

static size_t match_o200k(const struct scan *s, const unsigned char *p, size_t n)
{
    int k = kinds[p[0]], k1 = KIND(1);
    size_t from = 0, i, j; /* from: after the optional leading character */

    if (k == H) return 0;
    if (k == P || k == S) {
        if (k1 == H) return 0;
        from = is_letter(k1);
        if (!from) return match_common(s, p, n);
    } else if (!is_letter(k)) {
        return match_common(s, p, n);
    }
    for (i = from; i < n && kinds[p[i]] == U; i++) {}
    j = match_run(p, n, i, L, L); /* upper case, then lower case; either may be empty */
    if (!j || !s->contractions || j >= n || p[j] != '\'') return j;
    if (j + 1 < n && kinds[p[j + 1]] == H) return 0;
    return j + match_suffix(p + j, n - j, true);
}

size_t scan_next(const struct scan *s, const unsigned char *p, size_t n)
{
    switch (s->style) {
    case SCAN_GPT2: return match_gpt2(p, n);
    case SCAN_CL100K: return match_cl100k(s, p, n);
    case SCAN_O200K: return match_o200k(s, p, n);
    }
    return 0;
}
