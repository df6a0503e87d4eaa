/* pretok.c - the steps of a pre-tokenizer.
 *
 * Spans are kept as two lists that swap roles at every step: one is read, the other is written.
 * Rewritten text alternates between two buffers in the same way. A step that cuts adds spans to the
 * output list through a struct joiner, which applies the behavior for delimiters.
 *
 * This is the hot path of encoding. The last BYTES step leaves the text as plain bytes: the BPE
 * model looks bytes up directly, so mapping them to characters first would only cost time. */
#include "token/pretok.h"

#include "base/mem.h"
#include "base/utf8.h"

void pretok_step_release(struct pretok_step *s)
{
    mem_free(s->text);
    regex_close(s->regex);
    *s = (struct pretok_step){ 0 };
}

int pretok_add_step(struct pretok *p, struct pretok_step step, struct err *e)
{
    struct pretok_step *steps = mem_grow(p->steps, (size_t)(p->n_steps + 1) * sizeof step);

    if (!steps) {
        pretok_step_release(&step);
        return err_nomem(e, "a pre-tokenizer");
    }
    p->steps = steps;
    p->steps[p->n_steps++] = step;
    return OK;
}

void pretok_release(struct pretok *p)
{
    for (int i = 0; i < p->n_steps; i++) pretok_step_release(&p->steps[i]);
    mem_free(p->steps);
    *p = (struct pretok){ 0 };
}

void span_list_grow(struct span_list *v)
{
    if (v->failed) return;
    v->failed = !mem_ensure(v->p, v->cap, v->cap ? v->cap + 1 : 256);
}

static void clear_spans(struct span_list *v) { v->n = 0, v->failed = false; }

void pretok_scratch_release(struct pretok_scratch *w)
{
    for (int i = 0; i < 2; i++) {
        buf_release(&w->text[i]);
        mem_free(w->spans[i].p);
        w->spans[i] = (struct span_list){ 0 };
    }
}

/* ---- what becomes of matches ---- */

/* Takes the parts of one span from left to right, matches and the text between them, and adds the
 * resulting spans to `out`. */
struct joiner {
    struct span_list *out;
    enum split_behavior behavior;
    bool invert;
    size_t start, end;     /* the span being built, which the next part may join ... */
    bool open, last_match; /* ... if there is one; whether its last part was a match */
};

static void flush_span(struct joiner *k)
{
    if (k->open && k->end > k->start) span_list_add(k->out, k->start, k->end - k->start);
    k->open = false;
}

static void add_part(struct joiner *k, size_t start, size_t end, bool match)
{
    bool joins = false;

    match ^= k->invert;
    switch (k->behavior) {
    case SPLIT_REMOVED:
        if (!match && end > start) span_list_add(k->out, start, end - start);
        return;
    case SPLIT_ISOLATED:
        if (end > start) span_list_add(k->out, start, end - start);
        return;
    case SPLIT_CONTIGUOUS: joins = match == k->last_match; break;
    case SPLIT_WITH_PREVIOUS: joins = match && !k->last_match; break;
    case SPLIT_WITH_NEXT: joins = !match && k->last_match; break;
    }
    if (!k->open || !joins) {
        flush_span(k);
        k->start = start;
        k->open = true;
    }
    k->end = end;
    k->last_match = match;
}

/* ---- steps that only cut ---- */

/* Each cut_by_x reads the text of one span, which starts at byte `base` of the whole text. */

static int cut_by_regex(const struct pretok_step *s, struct pretok_scratch *w, struct str text,
                        size_t base, struct joiner *k, struct err *e)
{
    struct regex_walk walk = { .r = s->regex, .m = w->matcher, .text = text };
    size_t done = 0, start, end;

    while (regex_next(&walk, &start, &end)) {
        if (done != start) add_part(k, base + done, base + start, false);
        add_part(k, base + start, base + end, true);
        done = end;
    }
    if (done != text.n) add_part(k, base + done, base + text.n, false);
    return regex_walk_check(&walk, "pre-tokenizer", e);
}

/* Occurrences do not overlap; an empty delimiter matches nowhere. */
static void cut_by_text(struct str text, struct str at, size_t base, struct joiner *k)
{
    size_t done = 0;

    while (at.n) {
        ptrdiff_t found = str_find(str_skip(text, done), at);
        if (found < 0) break;
        if (found) add_part(k, base + done, base + done + (size_t)found, false);
        done += (size_t)found;
        add_part(k, base + done, base + done + at.n, true);
        done += at.n;
    }
    if (done != text.n) add_part(k, base + done, base + text.n, false);
}

/* Each character of the class is a match of its own: SPLIT_CONTIGUOUS joins runs of them. */
static void cut_by_class(const struct pretok_step *s, struct str text, size_t base,
                         struct joiner *k)
{
    size_t done = 0;

    for (size_t i = 0, n; i < text.n; i += n) {
        int32_t cp = (unsigned char)text.p[i];
        n = 1;
        if (cp >= 0x80) n = (size_t)utf8_next(str_skip(text, i), &cp);
        if (s->kind == PRETOK_CHAR ? cp != s->ch : !s->in_class(cp)) continue;
        if (done < i) add_part(k, base + done, base + i, false);
        add_part(k, base + i, base + i + n, true);
        done = i + n;
    }
    if (done < text.n) add_part(k, base + done, base + text.n, false);
}

/* Counts characters by their first bytes. The behavior of such a step is ISOLATED. */
static void cut_by_length(const struct pretok_step *s, struct str text, size_t base,
                          struct joiner *k)
{
    size_t done = 0;
    int chars = 0;

    for (size_t i = 0; i < text.n; i++) {
        if (((unsigned char)text.p[i] & 0xc0) == 0x80 || chars++ < s->length) continue;
        add_part(k, base + done, base + i, true);
        done = i;
        chars = 1;
    }
    if (done < text.n) add_part(k, base + done, base + text.n, true);
}

/* ---- the chain ---- */

/* The state between two steps. */
struct splitting {
    struct pretok_scratch *w;
    struct str text; /* the spans are in it */
    int in;          /* w->spans[in] are the spans, the other list takes the next step's */
    int text_out;    /* w->text[text_out] takes the next rewritten text */
    bool at_start;   /* the first span begins where the whole input began */
};

/* Cuts every span. */
static int apply_cut(const struct pretok_step *s, struct splitting *r, struct err *e)
{
    const struct span_list *in = &r->w->spans[r->in];
    struct span_list *out = &r->w->spans[!r->in];
    int rc = OK;

    clear_spans(out);
    for (size_t i = 0; i < in->n && rc == OK; i++) {
        struct span p = in->p[i];
        struct str text = str_of(r->text.p + p.at, p.n);
        struct joiner k = { .out = out, .behavior = s->behavior, .invert = s->invert };
        switch (s->kind) {
        case PRETOK_REGEX:
        case PRETOK_BYTES: rc = cut_by_regex(s, r->w, text, p.at, &k, e); break;
        case PRETOK_TEXT:
        case PRETOK_METASPACE: cut_by_text(text, str_of(s->text, s->n_text), p.at, &k); break;
        case PRETOK_LENGTH: cut_by_length(s, text, p.at, &k); break;
        case PRETOK_CLASS:
        case PRETOK_CHAR: cut_by_class(s, text, p.at, &k); break;
        }
        flush_span(&k);
    }
    if (r->at_start) r->at_start = in->n && out->n && out->p[0].at == in->p[0].at;
    r->in = !r->in;
    return rc == OK && out->failed ? err_nomem(e, "the words of a text") : rc;
}

typedef void rewrite_fn(const struct pretok_step *s, const struct splitting *r, struct str piece,
                        bool first, struct buf *out);

/* Writes every span into another text, changed by fn. */
static int apply_rewrite(const struct pretok_step *s, struct splitting *r, rewrite_fn *fn,
                         struct err *e)
{
    const struct span_list *in = &r->w->spans[r->in];
    struct span_list *out = &r->w->spans[!r->in];
    struct buf *to = &r->w->text[r->text_out];

    clear_spans(out);
    buf_clear(to);
    for (size_t i = 0; i < in->n; i++) {
        size_t at = to->n;
        fn(s, r, str_of(r->text.p + in->p[i].at, in->p[i].n), i == 0, to);
        if (to->n > UINT32_MAX / 2)
            return err_set(e, E_INVALID, "the text is too long to tokenize at once");
        if (to->n > at) span_list_add(out, at, to->n - at);
    }
    buf_reserve(to, 64);
    if (to->failed || out->failed) return err_nomem(e, "the words of a text");
    r->text = buf_str(to);
    r->in = !r->in;
    r->text_out = !r->text_out;
    return OK;
}

/* A mark is put before a span that does not start with a mark or a space, where the step says so.
 * PREPEND_FIRST means the start of the input, not of each text between special tokens. */
static void put_metaspace(const struct pretok_step *s, const struct splitting *r, struct str p,
                          bool first, struct buf *out)
{
    struct str mark = str_of(s->text, s->n_text);
    bool prepend =
        s->prepend == PREPEND_ALWAYS || (s->prepend == PREPEND_FIRST && first && r->at_start);

    if (prepend && !str_starts(p, mark) && !(p.n && p.p[0] == ' ')) buf_put_str(out, mark);
    for (size_t i = 0; i < p.n;) {
        const char *space = memchr(p.p + i, ' ', p.n - i);
        size_t end = space ? (size_t)(space - p.p) : p.n;
        buf_add(out, p.p + i, end - i);
        if (space) buf_put_str(out, mark);
        i = end + (space != NULL);
    }
}

static void put_space_prefixed(const struct pretok_step *s, const struct splitting *r, struct str p,
                               bool first, struct buf *out)
{
    (void)s, (void)r, (void)first;
    if (p.n && p.p[0] != ' ') buf_putc(out, ' ');
    buf_put_str(out, p);
}

static void put_byte_level(const struct pretok_step *s, const struct splitting *r, struct str p,
                           bool first, struct buf *out)
{
    (void)s, (void)r, (void)first;
    text_put_bytes(out, p);
}

/* last: no step follows, so a BYTES step may leave the bytes unmapped. */
static int apply_step(const struct pretok_step *s, struct splitting *r, bool last, struct err *e)
{
    int rc = OK;

    switch (s->kind) {
    case PRETOK_METASPACE:
        rc = apply_rewrite(s, r, put_metaspace, e);
        return rc == OK && s->cut ? apply_cut(s, r, e) : rc;
    case PRETOK_BYTES:
        if (s->prefix_space) rc = apply_rewrite(s, r, put_space_prefixed, e);
        if (rc == OK && s->regex) rc = apply_cut(s, r, e);
        return rc == OK && !last ? apply_rewrite(s, r, put_byte_level, e) : rc;
    default: return apply_cut(s, r, e);
    }
}

int pretok_apply(const struct pretok *p, struct pretok_scratch *w, struct str text, bool at_start,
                 struct pretok_result *out, struct err *e)
{
    struct splitting r = { .w = w, .text = text, .at_start = at_start };
    int rc = OK;

    clear_spans(&w->spans[0]);
    if (text.n) span_list_add(&w->spans[0], 0, text.n);
    if (w->spans[0].failed) return err_nomem(e, "the words of a text");
    for (int i = 0; i < p->n_steps && rc == OK; i++)
        rc = apply_step(&p->steps[i], &r, i == p->n_steps - 1, e);
    *out = (struct pretok_result){ r.text, w->spans[r.in].p, w->spans[r.in].n,
                                   p->n_steps && p->steps[p->n_steps - 1].kind == PRETOK_BYTES };
    return rc;
}
