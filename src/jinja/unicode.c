/* unicode.c - utf8proc has general categories and simple case mappings. The tables here add what
 * CPython takes from other files of the Unicode database: Numeric_Type, Other_Uppercase and
 * Other_Lowercase, White_Space, and the unconditional mappings of SpecialCasing.txt.
 *
 * Most text of templates is ASCII, so mappings test for it before they search a table. */
#include "jinja/unicode.h"

#include <stddef.h>
#include <utf8proc.h>

struct range {
    int32_t from, to;
};

/* Binary search in sorted, disjoint ranges. */
static bool is_in_ranges(const struct range *v, size_t n, int32_t cp)
{
    size_t lo = 0, hi = n;

    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > v[mid].to) lo = mid + 1;
        else hi = mid;
    }
    return lo < n && cp >= v[lo].from;
}
#define WITHIN(table, cp) is_in_ranges(table, sizeof table / sizeof *table, cp)

/* ---- classes ---- */

/* Invalid code points are unassigned. */
static int category(int32_t cp)
{
    return cp < 0 ? UTF8PROC_CATEGORY_CN : (int)utf8proc_category(cp);
}

/* White_Space, and the separators 0x1c to 0x1f, which Python counts too. */
bool uni_space(int32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x20) || cp == 0x85 || cp == 0xa0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

bool uni_line_end(int32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

/* All but the categories Other and Separator; the ASCII space is printable. */
bool uni_printable(int32_t cp)
{
    switch (category(cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    case UTF8PROC_CATEGORY_ZS: return cp == ' ';
    default: return true;
    }
}

bool uni_alpha(int32_t cp)
{
    int c = category(cp);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool uni_decimal(int32_t cp) { return category(cp) == UTF8PROC_CATEGORY_ND; }

/* Decimal digits, and characters of Numeric_Type=Digit, such as superscripts. */
bool uni_digit(int32_t cp)
{
    static const struct range more[] = {
        { 0xb2, 0xb3 },       { 0xb9, 0xb9 },       { 0x1369, 0x1371 },   { 0x19da, 0x19da },
        { 0x2070, 0x2070 },   { 0x2074, 0x2079 },   { 0x2080, 0x2089 },   { 0x2460, 0x2468 },
        { 0x2474, 0x247c },   { 0x2488, 0x2490 },   { 0x24ea, 0x24ea },   { 0x24f5, 0x24fd },
        { 0x24ff, 0x24ff },   { 0x2776, 0x277e },   { 0x2780, 0x2788 },   { 0x278a, 0x2792 },
        { 0x10a40, 0x10a43 }, { 0x10e60, 0x10e68 }, { 0x11052, 0x1105a }, { 0x1f100, 0x1f10a },
    };
    return uni_decimal(cp) || WITHIN(more, cp);
}

/* Number categories, and ideographs of Numeric_Type=Numeric. */
bool uni_numeric(int32_t cp)
{
    static const struct range ideographs[] = {
        { 0x3405, 0x3405 },   { 0x3483, 0x3483 },   { 0x382a, 0x382a },   { 0x3b4d, 0x3b4d },
        { 0x4e00, 0x4e00 },   { 0x4e03, 0x4e03 },   { 0x4e07, 0x4e07 },   { 0x4e09, 0x4e09 },
        { 0x4e5d, 0x4e5d },   { 0x4e8c, 0x4e8c },   { 0x4e94, 0x4e94 },   { 0x4e96, 0x4e96 },
        { 0x4ebf, 0x4ec0 },   { 0x4edf, 0x4edf },   { 0x4ee8, 0x4ee8 },   { 0x4f0d, 0x4f0d },
        { 0x4f70, 0x4f70 },   { 0x5104, 0x5104 },   { 0x5146, 0x5146 },   { 0x5169, 0x5169 },
        { 0x516b, 0x516b },   { 0x516d, 0x516d },   { 0x5341, 0x5341 },   { 0x5343, 0x5345 },
        { 0x534c, 0x534c },   { 0x53c1, 0x53c4 },   { 0x56db, 0x56db },   { 0x58f1, 0x58f1 },
        { 0x58f9, 0x58f9 },   { 0x5e7a, 0x5e7a },   { 0x5efe, 0x5eff },   { 0x5f0c, 0x5f0e },
        { 0x5f10, 0x5f10 },   { 0x62fe, 0x62fe },   { 0x634c, 0x634c },   { 0x67d2, 0x67d2 },
        { 0x6f06, 0x6f06 },   { 0x7396, 0x7396 },   { 0x767e, 0x767e },   { 0x8086, 0x8086 },
        { 0x842c, 0x842c },   { 0x8cae, 0x8cae },   { 0x8cb3, 0x8cb3 },   { 0x8d30, 0x8d30 },
        { 0x9621, 0x9621 },   { 0x9646, 0x9646 },   { 0x964c, 0x964c },   { 0x9678, 0x9678 },
        { 0x96f6, 0x96f6 },   { 0xf96b, 0xf96b },   { 0xf973, 0xf973 },   { 0xf978, 0xf978 },
        { 0xf9b2, 0xf9b2 },   { 0xf9d1, 0xf9d1 },   { 0xf9d3, 0xf9d3 },   { 0xf9fd, 0xf9fd },
        { 0x20001, 0x20001 }, { 0x20064, 0x20064 }, { 0x200e2, 0x200e2 }, { 0x20121, 0x20121 },
        { 0x2092a, 0x2092a }, { 0x20983, 0x20983 }, { 0x2098c, 0x2098c }, { 0x2099c, 0x2099c },
        { 0x20aea, 0x20aea }, { 0x20afd, 0x20afd }, { 0x20b19, 0x20b19 }, { 0x22390, 0x22390 },
        { 0x22998, 0x22998 }, { 0x23b1b, 0x23b1b }, { 0x2626d, 0x2626d }, { 0x2f890, 0x2f890 },
    };
    int c = category(cp);
    return (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO) || WITHIN(ideographs, cp);
}

/* Category Lu, and Other_Uppercase. */
bool uni_upper(int32_t cp)
{
    static const struct range more[] = { { 0x2160, 0x216f },
                                         { 0x24b6, 0x24cf },
                                         { 0x1f130, 0x1f149 },
                                         { 0x1f150, 0x1f169 },
                                         { 0x1f170, 0x1f189 } };
    return category(cp) == UTF8PROC_CATEGORY_LU || WITHIN(more, cp);
}

/* Category Ll, and Other_Lowercase. */
bool uni_lower(int32_t cp)
{
    static const struct range more[] = {
        { 0xaa, 0xaa },       { 0xba, 0xba },       { 0x2b0, 0x2b8 },     { 0x2c0, 0x2c1 },
        { 0x2e0, 0x2e4 },     { 0x345, 0x345 },     { 0x37a, 0x37a },     { 0x1d2c, 0x1d6a },
        { 0x1d78, 0x1d78 },   { 0x1d9b, 0x1dbf },   { 0x2071, 0x2071 },   { 0x207f, 0x207f },
        { 0x2090, 0x209c },   { 0x2170, 0x217f },   { 0x24d0, 0x24e9 },   { 0x2c7c, 0x2c7d },
        { 0xa69c, 0xa69d },   { 0xa770, 0xa770 },   { 0xa7f8, 0xa7f9 },   { 0xab5c, 0xab5f },
        { 0x10780, 0x10780 }, { 0x10783, 0x10785 }, { 0x10787, 0x107b0 }, { 0x107b2, 0x107ba },
    };
    return category(cp) == UTF8PROC_CATEGORY_LL || WITHIN(more, cp);
}

bool uni_title(int32_t cp) { return category(cp) == UTF8PROC_CATEGORY_LT; }
bool uni_cased(int32_t cp) { return uni_lower(cp) || uni_upper(cp) || uni_title(cp); }

/* Case_Ignorable: marks, modifiers, and some punctuation inside of words. */
bool uni_case_ignorable(int32_t cp)
{
    switch (category(cp)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK: return true;
    default:
        return cp == '\'' || cp == '.' || cp == ':' || cp == 0xb7 || cp == 0x2018 || cp == 0x2019 ||
               cp == 0x2024;
    }
}

bool uni_word(int32_t cp) { return uni_alpha(cp) || uni_numeric(cp) || cp == '_'; }

/* ---- case mappings ---- */

/* Characters that become several, sorted by cp. title[0] 0: the simple title mapping applies. */
static const struct special {
    int32_t cp, upper[3], title[3];
} specials[] = {
    { 0x00df, { 0x53, 0x53, 0 }, { 0x53, 0x73, 0 } },
    { 0x0149, { 0x2bc, 0x4e, 0 }, { 0x2bc, 0x4e, 0 } },
    { 0x01f0, { 0x4a, 0x30c, 0 }, { 0x4a, 0x30c, 0 } },
    { 0x0390, { 0x399, 0x308, 0x301 }, { 0x399, 0x308, 0x301 } },
    { 0x03b0, { 0x3a5, 0x308, 0x301 }, { 0x3a5, 0x308, 0x301 } },
    { 0x0587, { 0x535, 0x552, 0 }, { 0x535, 0x582, 0 } },
    { 0x1e96, { 0x48, 0x331, 0 }, { 0x48, 0x331, 0 } },
    { 0x1e97, { 0x54, 0x308, 0 }, { 0x54, 0x308, 0 } },
    { 0x1e98, { 0x57, 0x30a, 0 }, { 0x57, 0x30a, 0 } },
    { 0x1e99, { 0x59, 0x30a, 0 }, { 0x59, 0x30a, 0 } },
    { 0x1e9a, { 0x41, 0x2be, 0 }, { 0x41, 0x2be, 0 } },
    { 0x1f50, { 0x3a5, 0x313, 0 }, { 0x3a5, 0x313, 0 } },
    { 0x1f52, { 0x3a5, 0x313, 0x300 }, { 0x3a5, 0x313, 0x300 } },
    { 0x1f54, { 0x3a5, 0x313, 0x301 }, { 0x3a5, 0x313, 0x301 } },
    { 0x1f56, { 0x3a5, 0x313, 0x342 }, { 0x3a5, 0x313, 0x342 } },
    { 0x1f80, { 0x1f08, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f81, { 0x1f09, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f82, { 0x1f0a, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f83, { 0x1f0b, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f84, { 0x1f0c, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f85, { 0x1f0d, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f86, { 0x1f0e, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f87, { 0x1f0f, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f88, { 0x1f08, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f89, { 0x1f09, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f8a, { 0x1f0a, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f8b, { 0x1f0b, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f8c, { 0x1f0c, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f8d, { 0x1f0d, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f8e, { 0x1f0e, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f8f, { 0x1f0f, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f90, { 0x1f28, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f91, { 0x1f29, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f92, { 0x1f2a, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f93, { 0x1f2b, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f94, { 0x1f2c, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f95, { 0x1f2d, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f96, { 0x1f2e, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f97, { 0x1f2f, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f98, { 0x1f28, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f99, { 0x1f29, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f9a, { 0x1f2a, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f9b, { 0x1f2b, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f9c, { 0x1f2c, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f9d, { 0x1f2d, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f9e, { 0x1f2e, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1f9f, { 0x1f2f, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1fa0, { 0x1f68, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1fa1, { 0x1f69, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1fa2, { 0x1f6a, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1fa3, { 0x1f6b, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1fa4, { 0x1f6c, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1fa5, { 0x1f6d, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1fa6, { 0x1f6e, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1fa7, { 0x1f6f, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1fa8, { 0x1f68, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1fa9, { 0x1f69, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1faa, { 0x1f6a, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1fab, { 0x1f6b, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1fac, { 0x1f6c, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1fad, { 0x1f6d, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1fae, { 0x1f6e, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1faf, { 0x1f6f, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1fb2, { 0x1fba, 0x399, 0 }, { 0x1fba, 0x345, 0 } },
    { 0x1fb3, { 0x391, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1fb4, { 0x386, 0x399, 0 }, { 0x386, 0x345, 0 } },
    { 0x1fb6, { 0x391, 0x342, 0 }, { 0x391, 0x342, 0 } },
    { 0x1fb7, { 0x391, 0x342, 0x399 }, { 0x391, 0x342, 0x345 } },
    { 0x1fbc, { 0x391, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1fc2, { 0x1fca, 0x399, 0 }, { 0x1fca, 0x345, 0 } },
    { 0x1fc3, { 0x397, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1fc4, { 0x389, 0x399, 0 }, { 0x389, 0x345, 0 } },
    { 0x1fc6, { 0x397, 0x342, 0 }, { 0x397, 0x342, 0 } },
    { 0x1fc7, { 0x397, 0x342, 0x399 }, { 0x397, 0x342, 0x345 } },
    { 0x1fcc, { 0x397, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1fd2, { 0x399, 0x308, 0x300 }, { 0x399, 0x308, 0x300 } },
    { 0x1fd3, { 0x399, 0x308, 0x301 }, { 0x399, 0x308, 0x301 } },
    { 0x1fd6, { 0x399, 0x342, 0 }, { 0x399, 0x342, 0 } },
    { 0x1fd7, { 0x399, 0x308, 0x342 }, { 0x399, 0x308, 0x342 } },
    { 0x1fe2, { 0x3a5, 0x308, 0x300 }, { 0x3a5, 0x308, 0x300 } },
    { 0x1fe3, { 0x3a5, 0x308, 0x301 }, { 0x3a5, 0x308, 0x301 } },
    { 0x1fe4, { 0x3a1, 0x313, 0 }, { 0x3a1, 0x313, 0 } },
    { 0x1fe6, { 0x3a5, 0x342, 0 }, { 0x3a5, 0x342, 0 } },
    { 0x1fe7, { 0x3a5, 0x308, 0x342 }, { 0x3a5, 0x308, 0x342 } },
    { 0x1ff2, { 0x1ffa, 0x399, 0 }, { 0x1ffa, 0x345, 0 } },
    { 0x1ff3, { 0x3a9, 0x399, 0 }, { 0, 0, 0 } },
    { 0x1ff4, { 0x38f, 0x399, 0 }, { 0x38f, 0x345, 0 } },
    { 0x1ff6, { 0x3a9, 0x342, 0 }, { 0x3a9, 0x342, 0 } },
    { 0x1ff7, { 0x3a9, 0x342, 0x399 }, { 0x3a9, 0x342, 0x345 } },
    { 0x1ffc, { 0x3a9, 0x399, 0 }, { 0, 0, 0 } },
    { 0xfb00, { 0x46, 0x46, 0 }, { 0x46, 0x66, 0 } },
    { 0xfb01, { 0x46, 0x49, 0 }, { 0x46, 0x69, 0 } },
    { 0xfb02, { 0x46, 0x4c, 0 }, { 0x46, 0x6c, 0 } },
    { 0xfb03, { 0x46, 0x46, 0x49 }, { 0x46, 0x66, 0x69 } },
    { 0xfb04, { 0x46, 0x46, 0x4c }, { 0x46, 0x66, 0x6c } },
    { 0xfb05, { 0x53, 0x54, 0 }, { 0x53, 0x74, 0 } },
    { 0xfb06, { 0x53, 0x54, 0 }, { 0x53, 0x74, 0 } },
    { 0xfb13, { 0x544, 0x546, 0 }, { 0x544, 0x576, 0 } },
    { 0xfb14, { 0x544, 0x535, 0 }, { 0x544, 0x565, 0 } },
    { 0xfb15, { 0x544, 0x53b, 0 }, { 0x544, 0x56b, 0 } },
    { 0xfb16, { 0x54e, 0x546, 0 }, { 0x54e, 0x576, 0 } },
    { 0xfb17, { 0x544, 0x53d, 0 }, { 0x544, 0x56d, 0 } },
};

static const struct special *find_special(int32_t cp)
{
    size_t lo = 0, hi = sizeof specials / sizeof *specials;

    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (specials[mid].cp < cp) lo = mid + 1;
        else hi = mid;
    }
    return lo < sizeof specials / sizeof *specials && specials[lo].cp == cp ? &specials[lo] : NULL;
}

static int copy_mapping(const int32_t from[3], int32_t out[3])
{
    int n = 0;

    for (; n < 3 && from[n]; n++) out[n] = from[n];
    return n;
}

int uni_to_upper(int32_t cp, int32_t out[3])
{
    const struct special *s = cp < 0x80 ? NULL : find_special(cp);

    if (s) return copy_mapping(s->upper, out);
    out[0] = cp < 0x80 ? (cp >= 'a' && cp <= 'z' ? cp - 32 : cp) : utf8proc_toupper(cp);
    return 1;
}

/* Only U+0130 has a lower case of two characters. */
int uni_to_lower(int32_t cp, int32_t out[3])
{
    out[0] = cp < 0x80 ? (cp >= 'A' && cp <= 'Z' ? cp + 32 : cp) : utf8proc_tolower(cp);
    if (cp != 0x130) return 1;
    out[0] = 'i';
    out[1] = 0x307;
    return 2;
}

int uni_to_title(int32_t cp, int32_t out[3])
{
    const struct special *s = cp < 0x80 ? NULL : find_special(cp);

    if (s && s->title[0]) return copy_mapping(s->title, out);
    if (cp < 0x80) return uni_to_upper(cp, out);
    out[0] = utf8proc_totitle(cp);
    return 1;
}

/* Full case folding of utf8proc. */
int uni_to_fold(int32_t cp, int32_t out[3])
{
    utf8proc_int32_t buf[8] = { 0 };
    int last = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char(cp, buf, 8, UTF8PROC_CASEFOLD, &last);

    if (n < 1 || n > 3) return out[0] = cp, 1;
    for (utf8proc_ssize_t i = 0; i < n; i++) out[i] = buf[i];
    return (int)n;
}
