/* normalizer.c - the steps of a normalizer.
 *
 * Two buffers take turns: each step reads one text and appends its result to the other buffer.
 * Steps that would not change a text are skipped (is_unchanged), so plain text is not copied at
 * all.
 *
 * Functions named put_x append to a buf and report a failed allocation through it; the chain checks
 * the buf after each step. */
#include "token/normalizer.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "token/chars.h"

#include <utf8proc.h>

void normalizer_step_release(struct normalizer_step *s)
{
    mem_free(s->text);
    mem_free(s->find);
    regex_close(s->regex);
    *s = (struct normalizer_step){ 0 };
}

int normalizer_add_step(struct normalizer *n, struct normalizer_step s, struct err *e)
{
    struct normalizer_step *steps = mem_grow(n->steps, (size_t)(n->n_steps + 1) * sizeof s);

    if (!steps) {
        normalizer_step_release(&s);
        return err_nomem(e, "a normalizer");
    }
    n->steps = steps;
    n->steps[n->n_steps++] = s;
    return OK;
}

void normalizer_release(struct normalizer *n)
{
    for (int i = 0; i < n->n_steps; i++) normalizer_step_release(&n->steps[i]);
    mem_free(n->steps);
    *n = (struct normalizer){ 0 };
}

/* ---- Unicode normal forms ---- */

/* Is NFC certain to leave this character alone, whatever stands beside it, and does it start a new
 * segment? The ranges cover common scripts; a character outside only costs time. */
static bool is_stable(int32_t cp)
{
    if (cp < 0x300) return true;
    if (cp < 0x530) return (cp >= 0x400 && cp <= 0x482) || cp >= 0x48a;
    return (cp >= 0x2010 && cp <= 0x2027) || (cp >= 0x2030 && cp <= 0x205e) ||
           (cp >= 0x20a0 && cp <= 0x20bf) || (cp >= 0x3001 && cp <= 0x3029) ||
           (cp >= 0x3041 && cp <= 0x3096) || (cp >= 0x30a1 && cp <= 0x30ff) ||
           (cp >= 0x3400 && cp <= 0x4dbf) || (cp >= 0x4e00 && cp <= 0x9fef) ||
           (cp >= 0xac00 && cp <= 0xd7a3) || (cp >= 0xff01 && cp <= 0xff5e) ||
           (cp >= 0x1f300 && cp <= 0x1f64f);
}

/* The first character from i on that is not stable, or text.n. *before: the character before it. */
static size_t find_unstable(struct str text, size_t i, size_t *before)
{
    *before = i;
    while (i < text.n) {
        int32_t cp = (unsigned char)text.p[i];
        int n = 1;
        if (cp >= 0x80) n = utf8_next(str_skip(text, i), &cp);
        if (!is_stable(cp)) return i;
        *before = i;
        i += (size_t)n;
    }
    return i;
}

/* Composes only where it can matter: from the stable character before one that is not stable up to
 * the next stable one. The rest is copied. */
static int put_nfc(struct str text, struct buf *out, struct err *e)
{
    size_t done = 0, i = 0, before;
    int rc = OK;

    while (rc == OK && (i = find_unstable(text, i, &before)) < text.n) {
        int32_t cp = 0;
        int n = 0;
        if (before < done) before = done;
        for (; i < text.n; i += (size_t)n) {
            n = utf8_next(str_skip(text, i), &cp);
            if (is_stable(cp)) break;
        }
        buf_add(out, text.p + done, before - done);
        rc = form_put(str_of(text.p + before, i - before), FORM_COMPOSE, out, e);
        done = i;
    }
    buf_add(out, text.p + done, text.n - done);
    return rc;
}

static int put_normal_form(enum normal_kind kind, struct str text, struct buf *out, struct err *e)
{
    if (kind == NORMAL_NFC) return put_nfc(text, out, e);
    return form_put(
        text, (kind == NORMAL_NFKC ? FORM_COMPOSE : 0) | (kind != NORMAL_NFD ? FORM_COMPAT : 0),
        out, e);
}

/* Is the text certainly in this normal form already? */
static bool is_normal_form(enum normal_kind kind, struct str text)
{
    size_t before;

    if (kind == NORMAL_NFC) return find_unstable(text, 0, &before) == text.n;
    for (size_t i = 0; i < text.n; i++)
        if (text.p[i] & 0x80) return false;
    return true;
}

/* ---- character by character ---- */

/* Loops over the characters of text: `cp` is at byte i and has n bytes. */
#define EACH_CHAR(text, i, n, cp)                                                                  \
    for (size_t i = 0, n; i < (text).n && ((n = (size_t)utf8_next(str_skip(text, i), &cp)), true); \
         i += n)

/* One pass: `from` is the first character that is not white space, `to` the end of the last. A text
 * of white space alone becomes empty, whichever end is stripped. */
static void put_stripped(const struct normalizer_step *s, struct str text, struct buf *out)
{
    size_t from = 0, to = 0;
    bool any = false;
    int32_t cp;

    EACH_CHAR(text, i, n, cp)
    {
        if (char_is_space(cp)) continue;
        if (!any) from = i;
        any = true;
        to = i + n;
    }
    if (!any && (s->left || s->right)) return;
    if (!s->left) from = 0;
    if (!s->right) to = text.n;
    buf_add(out, text.p + from, to - from);
}

static void put_without(struct str text, char_class *drop, struct buf *out)
{
    int32_t cp;

    EACH_CHAR(text, i, n, cp)
    if (!drop(cp)) buf_add(out, text.p + i, n);
}

/* Character by character, without context: a final sigma does not become U+03C2. The reference
 * implementation does the same. */
static void put_lower(struct str text, struct buf *out)
{
    int32_t cp;

    EACH_CHAR(text, i, n, cp) char_put_lower(out, cp);
}

/* The rules of SentencePiece's nmt_nfkc: control characters go, separators, zero-width characters
 * and the replacement character become spaces. */
static void put_nmt(struct str text, struct buf *out)
{
    int32_t cp;

    EACH_CHAR(text, i, n, cp)
    {
        if ((cp >= 1 && cp <= 8) || cp == 0xb || (cp >= 0xe && cp <= 0x1f) || cp == 0x7f ||
            cp == 0x8f || cp == 0x9f)
            continue;
        if (cp == 9 || cp == 0xa || cp == 0xc || cp == 0xd || cp == 0x1680 ||
            (cp >= 0x200b && cp <= 0x200f) || cp == 0x2028 || cp == 0x2029 || cp == 0x2581 ||
            cp == 0xfeff || cp == 0xfffd)
            buf_putc(out, ' ');
        else buf_add(out, text.p + i, n);
    }
}

/* Only U+0020 counts as a space here: the charsmap has already mapped the others to it. */
static void put_squeezed(struct str text, struct buf *out)
{
    bool gap = false, any = false;

    for (size_t i = 0; i < text.n; i++) {
        if (text.p[i] == ' ') {
            gap = true;
            continue;
        }
        if (gap && any) buf_putc(out, ' ');
        gap = false, any = true;
        buf_putc(out, text.p[i]);
    }
}

/* ---- BERT ---- */

/* BERT's clean_text and handle_chinese_chars. Tab, line feed and carriage return are controls by
 * category and white space to BERT, so they become spaces. */
static void put_cleaned(const struct normalizer_step *s, struct str text, struct buf *out)
{
    int32_t cp;

    EACH_CHAR(text, i, n, cp)
    {
        bool blank = char_is_space(cp);
        if (s->clean && (cp == 0 || cp == 0xfffd ||
                         (char_is_other(cp) && cp != '\t' && cp != '\n' && cp != '\r')))
            continue;
        if (s->clean && blank) buf_putc(out, ' ');
        else if (s->cjk && char_is_cjk(cp)) {
            buf_putc(out, ' ');
            buf_add(out, text.p + i, n);
            buf_putc(out, ' ');
        } else buf_add(out, text.p + i, n);
    }
}

/* The order is fixed: clean, remove accents on the decomposed text, then lower case. Removing
 * accents leaves the text decomposed, as BERT does. */
static int put_bert(const struct normalizer_step *s, struct str text, struct buf *out,
                    struct err *e)
{
    struct buf a = { 0 }, b = { 0 };
    int rc = OK;

    put_cleaned(s, text, &a);
    if ((rc = buf_check(&a, e)) != OK) goto out;
    if (s->accents) {
        if ((rc = form_put(buf_str(&a), 0, &b, e)) != OK) goto out;
        buf_clear(&a);
        put_without(buf_str(&b), char_is_nonspacing, &a);
        if ((rc = buf_check(&a, e)) != OK) goto out;
    }
    if (s->lower) put_lower(buf_str(&a), out);
    else buf_put_str(out, buf_str(&a));
out:
    buf_release(&a);
    buf_release(&b);
    return rc;
}

/* The first character of the canonical decomposition of cp: the letter without its accents. */
static int32_t find_base_char(int32_t cp)
{
    utf8proc_int32_t d[8];
    int boundclass = 0;

    if (cp < 0xc0) return cp;
    return utf8proc_decompose_char(cp, d, 8, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &boundclass) > 0
               ? d[0]
               : cp;
}

/* Spaces around every punctuation character and ideograph, and a space for all white space. The
 * split that follows removes the spaces, so more than one does no harm. */
static void put_wordpiece(const struct normalizer_step *s, struct str text, struct buf *out)
{
    int32_t cp;

    EACH_CHAR(text, i, n, cp)
    {
        if (s->accents) cp = find_base_char(cp);
        int c = utf8proc_category(cp);
        bool symbol = c >= UTF8PROC_CATEGORY_SM && c <= UTF8PROC_CATEGORY_SO;
        bool alone = (c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO) ||
                     (cp < 0x7f && symbol) || char_is_cjk(cp);
        if (char_is_space(cp)) {
            buf_putc(out, ' ');
            continue;
        }
        if (cp == 0 || cp == 0xfffd || char_is_other(cp) || (s->accents && char_is_nonspacing(cp)))
            continue;
        if (alone) buf_putc(out, ' ');
        char_put(out, s->lower ? utf8proc_tolower(cp) : cp);
        if (alone) buf_putc(out, ' ');
    }
}

/* ---- replacement ---- */

/* An empty text to find matches nowhere. */
static void replace_text(const struct normalizer_step *s, struct str text, struct buf *out)
{
    struct str find = str_of(s->find, s->n_find);

    while (find.n) {
        ptrdiff_t at = str_find(text, find);
        if (at < 0) break;
        buf_add(out, text.p, (size_t)at);
        buf_add(out, s->text, s->n_text);
        text = str_skip(text, (size_t)at + find.n);
    }
    buf_put_str(out, text);
}

int normalizer_replace(const struct normalizer_step *s, struct matcher *m, struct str text,
                       struct buf *out, struct err *e)
{
    struct regex_walk w = { .r = s->regex, .m = m, .text = text };
    size_t done = 0, start, end;

    if (!s->regex) {
        replace_text(s, text, out);
        return OK;
    }
    while (regex_next(&w, &start, &end)) {
        buf_add(out, text.p + done, start - done);
        buf_add(out, s->text, s->n_text);
        done = end;
    }
    buf_add(out, text.p + done, text.n - done);
    return regex_walk_check(&w, "normalizer", e);
}

/* ---- the chain ---- */

/* Is the step certain to leave this text unchanged? */
static bool is_unchanged(const struct normalizer_step *s, struct str text)
{
    switch (s->kind) {
    case NORMAL_NFC:
    case NORMAL_NFD:
    case NORMAL_NFKC:
    case NORMAL_NFKD: return is_normal_form(s->kind, text);
    case NORMAL_REPLACE:
        return !s->regex && s->n_find && str_find(text, str_of(s->find, s->n_find)) < 0;
    default: return false;
    }
}

/* Appends the text after one step. */
static int apply_step(const struct normalizer_step *s, struct matcher *m, struct str text,
                      struct buf *out, struct err *e)
{
    switch (s->kind) {
    case NORMAL_NFC:
    case NORMAL_NFD:
    case NORMAL_NFKC:
    case NORMAL_NFKD: return put_normal_form(s->kind, text, out, e);
    case NORMAL_LOWER: put_lower(text, out); break;
    case NORMAL_STRIP: put_stripped(s, text, out); break;
    case NORMAL_STRIP_ACCENTS: put_without(text, char_is_mark, out); break;
    case NORMAL_PREPEND:
        if (text.n) buf_add(out, s->text, s->n_text);
        buf_put_str(out, text);
        break;
    case NORMAL_REPLACE: return normalizer_replace(s, m, text, out, e);
    case NORMAL_BERT: return put_bert(s, text, out, e);
    case NORMAL_NMT: put_nmt(text, out); break;
    case NORMAL_BYTES: text_put_bytes(out, text); break;
    case NORMAL_CHARSMAP: charsmap_apply(str_of(s->text, s->n_text), s->longest, text, out); break;
    case NORMAL_SQUEEZE: put_squeezed(text, out); break;
    case NORMAL_WORDPIECE: put_wordpiece(s, text, out); break;
    }
    return OK;
}

int normalizer_apply(const struct normalizer *n, struct matcher *m, struct str text,
                     struct buf bufs[2], struct str *out, struct err *e)
{
    int side = 0, rc;

    for (int i = 0; i < n->n_steps; i++) {
        struct buf *to = &bufs[side];
        if (is_unchanged(&n->steps[i], text)) continue;
        buf_clear(to);
        buf_reserve(to, text.n + 64);
        if ((rc = apply_step(&n->steps[i], m, text, to, e)) != OK) return rc;
        buf_reserve(to, 64);
        if ((rc = buf_check(to, e)) != OK) return rc;
        text = buf_str(to);
        side = !side;
    }
    *out = text;
    return OK;
}
