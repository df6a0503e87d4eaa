/* chars.c - character classes by code point ranges and utf8proc categories.
 *
 * The classes follow the reference libraries (Hugging Face tokenizers, BERT), not one Unicode
 * property each: char_is_word is Rust regex's \w, char_is_cjk is the list in BERT's tokenizer. */
#include "token/chars.h"

#include "base/utf8.h"

#include <utf8proc.h>

bool char_is_space(int32_t cp)
{
    if (cp < 0x80) return cp == ' ' || (cp >= 9 && cp <= 13);
    return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

bool char_is_digit(int32_t cp)
{
    if (cp < 0x80) return cp >= '0' && cp <= '9';
    int c = utf8proc_category(cp);
    return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}

bool char_is_punct(int32_t cp)
{
    if (cp < 0x80)
        return (cp >= '!' && cp <= '/') || (cp >= ':' && cp <= '@') || (cp >= '[' && cp <= '`') ||
               (cp >= '{' && cp <= '~');
    int c = utf8proc_category(cp);
    return c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO;
}

bool char_is_mark(int32_t cp)
{
    int c = cp < 0x300 ? 0 : utf8proc_category(cp);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_ME;
}

bool char_is_nonspacing(int32_t cp)
{
    return cp >= 0x300 && utf8proc_category(cp) == UTF8PROC_CATEGORY_MN;
}

/* Categories Lu to Nl are letters, marks and decimal or letter numbers, in utf8proc's order. */
bool char_is_word(int32_t cp)
{
    int c = utf8proc_category(cp);

    if ((c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NL) || c == UTF8PROC_CATEGORY_PC)
        return true;
    return cp == 0x200c || cp == 0x200d || (cp >= 0x24b6 && cp <= 0x24e9) || /* circled letters */
           (cp >= 0x1f130 && cp <= 0x1f149) || (cp >= 0x1f150 && cp <= 0x1f169) ||
           (cp >= 0x1f170 && cp <= 0x1f189);
}

bool char_is_other(int32_t cp)
{
    int c = utf8proc_category(cp);
    return c == UTF8PROC_CATEGORY_CC || c == UTF8PROC_CATEGORY_CF || c == UTF8PROC_CATEGORY_CO;
}

/* Blocks of CJK ideographs, without kana and hangul: BERT treats those as it treats alphabets. */
bool char_is_cjk(int32_t cp)
{
    return (cp >= 0x4e00 && cp <= 0x9fff) || (cp >= 0x3400 && cp <= 0x4dbf) ||
           (cp >= 0x20000 && cp <= 0x2a6df) || (cp >= 0x2a700 && cp <= 0x2b73f) ||
           (cp >= 0x2b740 && cp <= 0x2b81f) || (cp >= 0x2b920 && cp <= 0x2ceaf) ||
           (cp >= 0xf900 && cp <= 0xfaff) || (cp >= 0x2f800 && cp <= 0x2fa1f);
}

void char_put(struct buf *out, int32_t cp)
{
    char c[4];
    buf_add(out, c, (size_t)utf8_put(c, cp));
}

void char_put_lower(struct buf *out, int32_t cp)
{
    if (cp < 0x80) buf_putc(out, (char)(cp >= 'A' && cp <= 'Z' ? cp + 32 : cp));
    else if (cp == 0x130) buf_puts(out, "i\xcc\x87");
    else char_put(out, utf8proc_tolower(cp));
}

/* s begins with bytes that are not UTF-8. Bytes of the maximal ill-formed sequence at its start: as
 * many as are the beginning of some character, at least one. */
static size_t count_broken_bytes(struct str s)
{
    for (size_t n = s.n < 3 ? s.n : 3; n > 1; n--)
        if ((size_t)utf8_partial(str_take(s, n)) == n) return n;
    return 1;
}

/* Bytes of s before its first byte that is not ASCII; eight at a time, since most text is ASCII. */
static size_t count_ascii(struct str s)
{
    size_t i = 0;
    uint64_t w;

    for (; i + 8 <= s.n; i += 8) {
        memcpy(&w, s.p + i, 8);
        if (w & 0x8080808080808080u) break;
    }
    while (i < s.n && !(s.p[i] & 0x80)) i++;
    return i;
}

void text_put_valid(struct buf *out, struct str s)
{
    size_t from = 0, i = 0; /* s[from, i) is valid and not copied yet */

    if (!buf_reserve(out, s.n + 64) || !s.n) return;
    while (i < s.n) {
        int32_t cp;
        i += count_ascii(str_skip(s, i));
        if (i == s.n) break;
        int n = utf8_next(str_skip(s, i), &cp);
        if (cp < 0) {
            buf_add(out, s.p + from, i - from);
            buf_puts(out, "\xef\xbf\xbd");
            from = i + count_broken_bytes(str_skip(s, i));
            i = from;
        } else {
            i += (size_t)n;
        }
    }
    buf_add(out, s.p + from, s.n - from);
}

/* Does the byte stand for itself, that is, is it a printable Latin-1 character? */
static bool is_plain_byte(int b)
{
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
}

int32_t byte_char(unsigned char b)
{
    if (is_plain_byte(b)) return b;
    if (b <= 32) return 256 + b; /* 0 to 32, then 127 to 160, then 173, in this order */
    return b == 173 ? 256 + 67 : 256 + 33 + (b - 127);
}

int char_byte(int32_t cp)
{
    if (cp < 256) return is_plain_byte(cp) ? (int)cp : -1;
    if (cp <= 256 + 32) return cp - 256;
    if (cp <= 256 + 66) return cp - 256 - 33 + 127;
    return cp == 256 + 67 ? 173 : -1;
}

void text_put_bytes(struct buf *out, struct str s)
{
    if (!buf_reserve(out, s.n * 2)) return; /* a character of the alphabet has at most 2 bytes */
    for (size_t i = 0; i < s.n; i++) {
        int32_t c = byte_char((unsigned char)s.p[i]);
        if (c < 0x80) out->p[out->n++] = (char)c;
        else out->n += (size_t)utf8_put(out->p + out->n, c);
    }
}
