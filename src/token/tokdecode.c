/* tokdecode.c - the steps of a decoder.
 *
 * Each step reads one list of texts and writes another; the two lists swap roles from step to step.
 * Failed allocations are collected in the buf of the output list: a step that uses a temporary
 * buffer hands its failure on (pass_failure). */
#include "token/tokdecode.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "token/chars.h"

#include <ctype.h>

void decode_step_release(struct decode_step *s)
{
    mem_free(s->text);
    normalizer_step_release(&s->replace);
    *s = (struct decode_step){ 0 };
}

int decoder_add_step(struct decoder *d, struct decode_step s, struct err *e)
{
    struct decode_step *steps = mem_grow(d->steps, (size_t)(d->n_steps + 1) * sizeof s);

    if (!steps) {
        decode_step_release(&s);
        return err_nomem(e, "a decoder");
    }
    d->steps = steps;
    d->steps[d->n_steps++] = s;
    return OK;
}

void decoder_release(struct decoder *d)
{
    for (int i = 0; i < d->n_steps; i++) decode_step_release(&d->steps[i]);
    mem_free(d->steps);
    *d = (struct decoder){ 0 };
}

/* ---- lists of texts ---- */

/* Ends the text that is being appended to l->text. */
static void end_text(struct text_list *l)
{
    if (!mem_ensure(l->ends, l->cap, l->n + 1)) l->text.failed = true;
    if (!l->text.failed) l->ends[l->n++] = l->text.n;
}

void text_list_add(struct text_list *l, struct str s)
{
    buf_put_str(&l->text, s);
    end_text(l);
}

void text_list_release(struct text_list *l)
{
    buf_release(&l->text);
    mem_free(l->ends);
    *l = (struct text_list){ 0 };
}

/* out got the bytes of a temporary buffer. */
static void pass_failure(struct buf *out, const struct buf *temp) { out->failed |= temp->failed; }

/* The i-th text of the list. */
static struct str text_at(const struct text_list *l, size_t i)
{
    size_t from = i ? l->ends[i - 1] : 0;
    return str_of(l->text.p + from, l->ends[i] - from);
}

/* ---- byte-level ---- */

void decode_put_bytes(struct buf *out, struct str piece)
{
    size_t before = out->n;

    for (size_t i = 0; i < piece.n;) {
        int32_t cp;
        int n = utf8_next(str_skip(piece, i), &cp), b = cp < 0 ? -1 : char_byte(cp);
        if (b < 0) {
            out->n = before;
            buf_put_str(out, piece);
            return;
        }
        buf_putc(out, (char)b);
        i += (size_t)n;
    }
}

/* Pieces are joined before bytes are checked for UTF-8: a character may be split over pieces. */
static void apply_bytes(const struct text_list *in, struct text_list *out, bool stream)
{
    struct buf raw = { 0 };
    struct buf *to = stream ? &out->text : &raw;

    for (size_t i = 0; i < in->n; i++) decode_put_bytes(to, text_at(in, i));
    if (!stream) text_put_valid(&out->text, buf_str(&raw));
    pass_failure(&out->text, &raw);
    end_text(out);
    buf_release(&raw);
}

/* ---- byte fallback ---- */

/* The byte that "<0x0A>" names; -1: not such a piece. */
static int parse_named_byte(struct str s)
{
    static const char hex[] = "0123456789abcdef";

    if (s.n != 6 || !str_starts(s, STR("<0x")) || s.p[5] != '>') return -1;
    if (s.p[3] == '+' &&
        isxdigit((unsigned char)s.p[4])) /* "<0x+A>": Rust's from_str_radix takes a sign */
        return (int)(strchr(hex, tolower((unsigned char)s.p[4])) - hex);
    if (!isxdigit((unsigned char)s.p[3]) || !isxdigit((unsigned char)s.p[4])) return -1;
    return (int)(strchr(hex, tolower((unsigned char)s.p[3])) - hex) * 16 +
           (int)(strchr(hex, tolower((unsigned char)s.p[4])) - hex);
}

/* Ends a run of named bytes: as they are, or one U+FFFD per byte if they are not UTF-8. */
static void flush_bytes(struct text_list *out, struct buf *bytes, bool stream)
{
    if (!bytes->n) return;
    if (stream || utf8_bad(buf_str(bytes)) < 0) text_list_add(out, buf_str(bytes));
    else
        for (size_t i = 0; i < bytes->n; i++) text_list_add(out, STR("\xef\xbf\xbd"));
    bytes->n = 0; /* a failure stays noted */
}

/* Runs of byte pieces become one text, so that the bytes of a character stay together. */
static void apply_fallback(const struct text_list *in, struct text_list *out, bool stream)
{
    struct buf bytes = { 0 };

    for (size_t i = 0; i < in->n; i++) {
        int b = parse_named_byte(text_at(in, i));
        if (b >= 0) {
            buf_putc(&bytes, (char)b);
            continue;
        }
        flush_bytes(out, &bytes, stream);
        text_list_add(out, text_at(in, i));
    }
    flush_bytes(out, &bytes, stream);
    pass_failure(&out->text, &bytes);
    buf_release(&bytes);
}

/* ---- text by text ---- */

/* Appends text with every `find` replaced; an empty one matches nowhere. */
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

/* BERT's clean_up_tokenization: removes the spaces of English tokenization, pair by pair in this
 * order. */
static void put_cleaned_up(struct str text, struct buf *out)
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
        b.n = 0;
        replace_all(buf_str(&a), str_c(pairs[i][0]), str_c(pairs[i][1]), &b);
        a = b;
        b = t;
    }
    buf_put_str(out, buf_str(&a));
    pass_failure(out, &a);
    pass_failure(out, &b);
    buf_release(&a);
    buf_release(&b);
}

/* "##ing" joins the text before it, anything else gets a space first; cleanup works on each piece
 * with its space. */
static void put_wordpiece(const struct decode_step *s, struct str piece, bool first,
                          struct buf *out)
{
    struct str prefix = str_of(s->text, s->n_text);
    struct buf word = { 0 };

    if (!first && str_starts(piece, prefix)) piece = str_skip(piece, prefix.n);
    else if (!first) buf_putc(&word, ' ');
    buf_put_str(&word, piece);
    if (s->cleanup) put_cleaned_up(buf_str(&word), out);
    else buf_put_str(out, buf_str(&word));
    pass_failure(out, &word);
    buf_release(&word);
}

/* Removes the text at most `start` times at the start and `stop` times at the end. */
static void put_stripped(const struct decode_step *s, struct str piece, struct buf *out)
{
    struct str c = str_of(s->text, s->n_text);

    for (int i = 0; c.n && i < s->start && str_starts(piece, c); i++) piece = str_skip(piece, c.n);
    for (int i = 0; c.n && i < s->stop && str_ends(piece, c); i++) piece.n -= c.n;
    buf_put_str(out, piece);
}

static void put_step(const struct decode_step *s, struct matcher *m, struct str piece, bool first,
                     bool last, struct buf *out)
{
    struct str mark = str_of(s->text, s->n_text);

    switch (s->kind) {
    case DECODE_METASPACE:
        replace_all(piece, mark, first && !s->keep_first ? STR("") : STR(" "), out);
        break;
    case DECODE_WORDPIECE: put_wordpiece(s, piece, first, out); break;
    case DECODE_STRIP: put_stripped(s, piece, out); break;
    case DECODE_REPLACE: /* a pattern that takes too long leaves the rest of the text as it is */
        if (normalizer_replace(&s->replace, m, piece, out, NULL) == E_NOMEM) out->failed = true;
        break;
    case DECODE_SUFFIX: replace_all(piece, mark, last ? STR("") : STR(" "), out); break;
    default:
        if (!first) buf_putc(out, ' ');
        buf_put_str(out, piece);
    }
}

static void apply_each(const struct decode_step *s, const struct text_list *in,
                       struct text_list *out)
{
    struct matcher *m = s->replace.regex ? matcher_open() : NULL;

    if (s->replace.regex && !m) {
        out->text.failed = true;
        return;
    }
    for (size_t i = 0; i < in->n; i++) {
        put_step(s, m, text_at(in, i), i == 0, i + 1 == in->n, &out->text);
        end_text(out);
    }
    matcher_close(m);
}

/* A step that fails ends the chain; the caller looks at l->text.failed. */
void decoder_apply(const struct decoder *d, struct text_list *l, bool stream)
{
    struct text_list other = { 0 };

    buf_reserve(&l->text, 1); /* an empty text has an address, too */
    for (int i = 0; i < d->n_steps && !l->text.failed; i++) {
        buf_clear(&other.text);
        buf_reserve(&other.text, 1);
        other.n = 0;
        switch (d->steps[i].kind) {
        case DECODE_BYTES: apply_bytes(l, &other, stream); break;
        case DECODE_FALLBACK: apply_fallback(l, &other, stream); break;
        case DECODE_FUSE: text_list_add(&other, buf_str(&l->text)); break;
        default: apply_each(&d->steps[i], l, &other);
        }
        struct text_list t = *l;
        *l = other;
        other = t;
    }
    text_list_release(&other);
}
