#include "token/tokdecode.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "token/chars.h"

#include <ctype.h>

void decode_add(struct decode *d, struct decode_step s)
{
    d->steps = mem_grow(d->steps, (size_t)(d->n_steps + 1) * sizeof s);
    d->steps[d->n_steps++] = s;
}

void decode_release(struct decode *d)
{
    for (int i = 0; i < d->n_steps; i++) {
        mem_free(d->steps[i].text);
        mem_free(d->steps[i].replace.text);
        mem_free(d->steps[i].replace.find);
        regex_close(d->steps[i].replace.regex);
    }
    mem_free(d->steps);
    *d = (struct decode){ 0 };
}

/* Ends the text that is being written at the end of the list. */
static void texts_end(struct texts *l)
{
    if (l->n == l->cap) {
        l->cap = l->cap ? l->cap * 2 : 16;
        l->ends = mem_grow(l->ends, l->cap * sizeof *l->ends);
    }
    l->ends[l->n++] = l->text.n;
}

void texts_push(struct texts *l, struct str s)
{
    buf_put_str(&l->text, s);
    texts_end(l);
}

void texts_release(struct texts *l)
{
    buf_release(&l->text);
    mem_free(l->ends);
    *l = (struct texts){ 0 };
}

static struct str text_at(const struct texts *l, size_t i)
{
    size_t from = i ? l->ends[i - 1] : 0;
    return str_of(l->text.p + from, l->ends[i] - from);
}

/* ---- byte-level ---- */

static void put_bytes(struct str piece, struct buf *out)
{
    size_t before = out->n;

    for (size_t i = 0; i < piece.n;) {
        int32_t cp;
        int n = utf8_next(str_skip(piece, i), &cp), b = cp < 0 ? -1 : char_byte(cp);
        if (b < 0) { /* not of the alphabet: the piece is plain text */
            out->n = before;
            buf_put_str(out, piece);
            return;
        }
        buf_putc(out, (char)b);
        i += (size_t)n;
    }
}

static void run_bytes(const struct texts *in, struct texts *out, bool stream)
{
    struct buf raw = { 0 };
    struct buf *to = stream ? &out->text : &raw;

    for (size_t i = 0; i < in->n; i++) put_bytes(text_at(in, i), to);
    if (!stream) text_put_valid(&out->text, buf_str(&raw));
    texts_end(out);
    buf_release(&raw);
}

/* ---- bytes by name ---- */

static int named_byte(struct str s)
{
    static const char hex[] = "0123456789abcdef";

    if (s.n != 6 || !str_starts(s, STR("<0x")) || s.p[5] != '>') return -1;
    if (s.p[3] == '+' && isxdigit((unsigned char)s.p[4])) /* a sign is allowed there */
        return (int)(strchr(hex, tolower((unsigned char)s.p[4])) - hex);
    if (!isxdigit((unsigned char)s.p[3]) || !isxdigit((unsigned char)s.p[4])) return -1;
    return (int)(strchr(hex, tolower((unsigned char)s.p[3])) - hex) * 16 +
           (int)(strchr(hex, tolower((unsigned char)s.p[4])) - hex);
}

static void end_bytes(struct texts *out, struct buf *bytes, bool stream)
{
    if (!bytes->n) return;
    if (stream || utf8_bad(buf_str(bytes)) < 0) texts_push(out, buf_str(bytes));
    else
        for (size_t i = 0; i < bytes->n; i++) texts_push(out, STR("\xef\xbf\xbd"));
    buf_clear(bytes);
}

static void run_fallback(const struct texts *in, struct texts *out, bool stream)
{
    struct buf bytes = { 0 };

    for (size_t i = 0; i < in->n; i++) {
        int b = named_byte(text_at(in, i));
        if (b >= 0) {
            buf_putc(&bytes, (char)b);
            continue;
        }
        end_bytes(out, &bytes, stream);
        texts_push(out, text_at(in, i));
    }
    end_bytes(out, &bytes, stream);
    buf_release(&bytes);
}

/* ---- piece by piece ---- */

static void replace_all(struct str text, struct str find, struct str with, struct buf *out)
{
    while (find.n && text.n) {
        ptrdiff_t at = str_find(text, find);
        if (at < 0) break;
        buf_add(out, text.p, (size_t)at);
        buf_put_str(out, with);
        text = str_skip(text, (size_t)at + find.n);
    }
    buf_put_str(out, text);
}

static void cleanup(struct str text, struct buf *out)
{
    static const char *const pairs[][2] = {
        { " .", "." },   { " ?", "?" },     { " !", "!" },     { " ,", "," },
        { " ' ", "'" },  { " n't", "n't" }, { " 'm", "'m" },   { " do not", " don't" },
        { " 's", "'s" }, { " 've", "'ve" }, { " 're", "'re" },
    };
    struct buf a = { 0 }, b = { 0 };

    buf_reserve(&a, text.n + 1);
    buf_put_str(&a, text);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct buf t = a;
        buf_clear(&b);
        replace_all(buf_str(&a), str_c(pairs[i][0]), str_c(pairs[i][1]), &b);
        a = b;
        b = t;
    }
    buf_put_str(out, buf_str(&a));
    buf_release(&a);
    buf_release(&b);
}

static void put_wordpiece(const struct decode_step *s, struct str piece, bool first,
                          struct buf *out)
{
    struct str prefix = str_of(s->text, s->n_text);
    struct buf word = { 0 };

    if (!first && str_starts(piece, prefix)) piece = str_skip(piece, prefix.n);
    else if (!first) buf_putc(&word, ' ');
    buf_put_str(&word, piece);
    if (s->cleanup) cleanup(buf_str(&word), out);
    else buf_put_str(out, buf_str(&word));
    buf_release(&word);
}

static void put_stripped(const struct decode_step *s, struct str piece, struct buf *out)
{
    struct str c = str_of(s->text, s->n_text);

    for (int i = 0; c.n && i < s->start && str_starts(piece, c); i++) piece = str_skip(piece, c.n);
    for (int i = 0; c.n && i < s->stop && str_ends(piece, c); i++) piece.n -= c.n;
    buf_put_str(out, piece);
}

static void run_each(const struct decode_step *s, const struct texts *in, struct texts *out)
{
    struct matcher *m = s->replace.regex ? matcher_open() : NULL;
    struct str mark = str_of(s->text, s->n_text);

    for (size_t i = 0; i < in->n; i++) {
        struct str piece = text_at(in, i);
        bool first = i == 0, last = i + 1 == in->n;
        switch (s->kind) {
        case DECODE_METASPACE:
            replace_all(piece, mark, first && !s->keep_first ? STR("") : STR(" "), &out->text);
            break;
        case DECODE_WORDPIECE: put_wordpiece(s, piece, first, &out->text); break;
        case DECODE_STRIP: put_stripped(s, piece, &out->text); break;
        case DECODE_REPLACE: normal_replace(&s->replace, m, piece, &out->text, NULL); break;
        case DECODE_SUFFIX: replace_all(piece, mark, last ? STR("") : STR(" "), &out->text); break;
        default:
            if (!first) buf_putc(&out->text, ' ');
            buf_put_str(&out->text, piece);
        }
        texts_end(out);
    }
    matcher_close(m);
}

void decode_run(const struct decode *d, struct texts *l, bool stream)
{
    struct texts other = { 0 };

    buf_reserve(&l->text, 1); /* an empty text has an address, too */
    for (int i = 0; i < d->n_steps; i++) {
        buf_clear(&other.text);
        buf_reserve(&other.text, 1);
        other.n = 0;
        switch (d->steps[i].kind) {
        case DECODE_BYTES: run_bytes(l, &other, stream); break;
        case DECODE_FALLBACK: run_fallback(l, &other, stream); break;
        case DECODE_FUSE: texts_push(&other, buf_str(&l->text)); break;
        default: run_each(&d->steps[i], l, &other);
        }
        struct texts t = *l;
        *l = other;
        other = t;
    }
    texts_release(&other);
}
