/* strcase.c - methods of str that change or test the case and class of characters.
 *
 * Case mappings are full Unicode mappings (one character may become three), as in CPython. */
#include "base/utf8.h"
#include "jinja/builtins.h"
#include "jinja/render.h"
#include "jinja/unicode.h"

/* The code point at *at, which advances; invalid bytes give U+FFFD. */
static int32_t next_cp(struct str s, size_t *at)
{
    int32_t cp;

    *at += (size_t)utf8_next(str_skip(s, *at), &cp);
    return cp < 0 ? 0xfffd : cp;
}

/* A case mapping may produce up to three characters. */
static void put_mapped_cp(struct jtext *t, int32_t cp, int (*map)(int32_t, int32_t[3]))
{
    int32_t out[3];
    int n = map(cp, out);

    for (int i = 0; i < n; i++) jtext_put_cp(t, out[i]);
}

/* Greek capital sigma becomes another letter at the end of a word: Unicode's Final_Sigma condition. */
static bool is_final_sigma(struct str s, size_t begin, size_t end)
{
    bool before = false;

    for (size_t i = begin; i > 0 && !before;) {
        int32_t cp;
        size_t at;
        do i--;
        while (i > 0 && ((unsigned char)s.p[i] & 0xc0) == 0x80);
        at = i;
        cp = next_cp(s, &at);
        if (uni_case_ignorable(cp)) continue;
        if (!uni_cased(cp)) return false;
        before = true;
    }
    while (before && end < s.n) {
        int32_t cp = next_cp(s, &end);
        if (uni_case_ignorable(cp)) continue;
        return !uni_cased(cp);
    }
    return before;
}

/* Lower case depends on the context for sigma only. begin and end are the bytes of cp in s. */
static void put_lower(struct jtext *t, struct str s, size_t begin, size_t end, int32_t cp)
{
    if (cp == 0x3a3) jtext_put_cp(t, is_final_sigma(s, begin, end) ? 0x3c2 : 0x3c3);
    else put_mapped_cp(t, cp, uni_to_lower);
}

struct jval text_upper(struct render *r, struct str s)
{
    struct jtext t = { .r = r };

    jv_step(r, s.n / 16);
    for (size_t i = 0; i < s.n && !jv_failed(r);) put_mapped_cp(&t, next_cp(s, &i), uni_to_upper);
    return jtext_done(&t);
}

struct jval text_lower(struct render *r, struct str s)
{
    struct jtext t = { .r = r };

    jv_step(r, s.n / 16);
    for (size_t i = 0; i < s.n && !jv_failed(r);) {
        size_t begin = i;
        int32_t cp = next_cp(s, &i);
        put_lower(&t, s, begin, i, cp);
    }
    return jtext_done(&t);
}

/* The first character in title case, the rest in lower case. */
struct jval text_capitalize(struct render *r, struct str s)
{
    struct jtext t = { .r = r };
    size_t i = 0;

    if (s.n) put_mapped_cp(&t, next_cp(s, &i), uni_to_title);
    while (i < s.n && !jv_failed(r)) {
        size_t begin = i;
        int32_t cp = next_cp(s, &i);
        put_lower(&t, s, begin, i, cp);
    }
    return jtext_done(&t);
}

static bool check_no_args(struct render *r, const struct jargs *a)
{
    if (a->n + a->n_kw == 0) return true;
    jv_fail(r, "the method takes no arguments (%zu given)", a->n + a->n_kw);
    return false;
}

/* A method of str receives the str and its arguments. */
#define METHOD(name) \
    static struct jval m_##name(struct render *r, struct jval self, const struct jargs *a)

METHOD(upper) { return check_no_args(r, a) ? text_upper(r, self.s) : self; }
METHOD(lower) { return check_no_args(r, a) ? text_lower(r, self.s) : self; }
METHOD(capitalize) { return check_no_args(r, a) ? text_capitalize(r, self.s) : self; }

/* For comparisons without case: "ß" becomes "ss". */
METHOD(casefold)
{
    struct jtext t = { .r = r };

    if (!check_no_args(r, a)) return self;
    for (size_t i = 0; i < self.s.n && jv_step(r, 1);)
        put_mapped_cp(&t, next_cp(self.s, &i), uni_to_fold);
    return jtext_done(&t);
}

/* The first letter of each run of cased characters, as in Python. */
METHOD(title)
{
    struct jtext t = { .r = r };
    bool inside = false;

    if (!check_no_args(r, a)) return self;
    for (size_t i = 0; i < self.s.n && !jv_failed(r);) {
        size_t begin = i;
        int32_t cp = next_cp(self.s, &i);
        if (inside) put_lower(&t, self.s, begin, i, cp);
        else put_mapped_cp(&t, cp, uni_to_title);
        /* A character without case ends a word. */
        inside = uni_cased(cp);
    }
    return jtext_done(&t);
}

/* Upper to lower and lower to upper case. */
METHOD(swapcase)
{
    struct jtext t = { .r = r };

    if (!check_no_args(r, a)) return self;
    for (size_t i = 0; i < self.s.n && !jv_failed(r);) {
        size_t begin = i;
        int32_t cp = next_cp(self.s, &i);
        if (uni_upper(cp)) put_lower(&t, self.s, begin, i, cp);
        else if (uni_lower(cp)) put_mapped_cp(&t, cp, uni_to_upper);
        else jtext_put_cp(&t, cp);
    }
    return jtext_done(&t);
}

/* Whether every character has the property; `empty` is the result for an empty str. */
static struct jval test_every_char(struct render *r, struct jval self, const struct jargs *a,
                                   bool (*is)(int32_t), bool empty)
{
    if (!check_no_args(r, a)) return self;
    jv_step(r, self.s.n / 16);
    for (size_t i = 0; i < self.s.n;)
        if (!is(next_cp(self.s, &i))) return jv_bool(false);
    return jv_bool(self.s.n > 0 || empty);
}

static bool is_ascii(int32_t cp) { return cp < 0x80; }
static bool is_alnum(int32_t cp) { return uni_alpha(cp) || uni_numeric(cp); }

METHOD(isalpha) { return test_every_char(r, self, a, uni_alpha, false); }
METHOD(isalnum) { return test_every_char(r, self, a, is_alnum, false); }
METHOD(isdecimal) { return test_every_char(r, self, a, uni_decimal, false); }
METHOD(isdigit) { return test_every_char(r, self, a, uni_digit, false); }
METHOD(isnumeric) { return test_every_char(r, self, a, uni_numeric, false); }
METHOD(isspace) { return test_every_char(r, self, a, uni_space, false); }
METHOD(isascii) { return test_every_char(r, self, a, is_ascii, true); }
METHOD(isprintable) { return test_every_char(r, self, a, uni_printable, true); }

/* A letter or underscore, then word characters. Keywords count too, as in Python. */
METHOD(isidentifier)
{
    size_t i = 0;
    int32_t cp;

    if (!check_no_args(r, a) || self.s.n == 0) return jv_bool(false);
    cp = next_cp(self.s, &i);
    if (!uni_alpha(cp) && cp != '_') return jv_bool(false);
    while (i < self.s.n)
        if (!uni_word(next_cp(self.s, &i))) return jv_bool(false);
    return jv_bool(true);
}

/* isupper and islower: at least one cased character, and none of the other case. */
static struct jval test_one_case(struct render *r, struct jval self, const struct jargs *a,
                                 bool upper)
{
    bool any = false;

    if (!check_no_args(r, a)) return self;
    for (size_t i = 0; i < self.s.n;) {
        int32_t cp = next_cp(self.s, &i);
        if (uni_title(cp) || (upper ? uni_lower(cp) : uni_upper(cp))) return jv_bool(false);
        any |= upper ? uni_upper(cp) : uni_lower(cp);
    }
    return jv_bool(any);
}

METHOD(isupper) { return test_one_case(r, self, a, true); }
METHOD(islower) { return test_one_case(r, self, a, false); }

/* Upper case only at the beginning of words, lower case only inside. */
METHOD(istitle)
{
    bool any = false, inside = false;

    if (!check_no_args(r, a)) return self;
    for (size_t i = 0; i < self.s.n;) {
        int32_t cp = next_cp(self.s, &i);
        if (uni_upper(cp) || uni_title(cp)) {
            if (inside) return jv_bool(false);
            any = inside = true;
        } else if (uni_lower(cp)) {
            if (!inside) return jv_bool(false);
        } else {
            inside = false;
        }
    }
    return jv_bool(any);
}

const struct jmethod_def str_case_methods[] = { { "upper", m_upper },
                                                { "lower", m_lower },
                                                { "capitalize", m_capitalize },
                                                { "casefold", m_casefold },
                                                { "title", m_title },
                                                { "swapcase", m_swapcase },
                                                { "isalpha", m_isalpha },
                                                { "isalnum", m_isalnum },
                                                { "isdecimal", m_isdecimal },
                                                { "isdigit", m_isdigit },
                                                { "isnumeric", m_isnumeric },
                                                { "isspace", m_isspace },
                                                { "isascii", m_isascii },
                                                { "isprintable", m_isprintable },
                                                { "isidentifier", m_isidentifier },
                                                { "isupper", m_isupper },
                                                { "islower", m_islower },
                                                { "istitle", m_istitle },
                                                { NULL, NULL } };
