#include "token/pretok.h"

#include "base/mem.h"
#include "base/utf8.h"

void split_add(struct split *s, struct split_step step)
{
    s->steps = mem_grow(s->steps, (size_t)(s->n_steps + 1) * sizeof step);
    s->steps[s->n_steps++] = step;
}

void split_release(struct split *s)
{
    for (int i = 0; i < s->n_steps; i++) {
        mem_free(s->steps[i].text);
        regex_close(s->steps[i].regex);
    }
    mem_free(s->steps);
    *s = (struct split){ 0 };
}

/* ---- what becomes of matches ---- */

/* Stretches of one piece come in, match and not match in turn as they lie; pieces go out. */
struct sink {
    struct span_list *out;
    enum split_behavior behavior;
    bool invert;
    size_t start, end; /* one that may still grow */
    bool open, last_match;
};

static void sink_flush(struct sink *k)
{
    if (k->open && k->end > k->start) spans_push(k->out, k->start, k->end - k->start);
    k->open = false;
}

static void sink_put(struct sink *k, size_t start, size_t end, bool match)
{
    bool joins = false;

    match ^= k->invert;
    switch (k->behavior) {
    case SPLIT_REMOVED:
        if (!match && end > start) spans_push(k->out, start, end - start);
        return;
    case SPLIT_ISOLATED:
        if (end > start) spans_push(k->out, start, end - start);
        return;
    case SPLIT_CONTIGUOUS: joins = match == k->last_match; break;
    case SPLIT_WITH_PREVIOUS: joins = match && !k->last_match; break;
    case SPLIT_WITH_NEXT: joins = !match && k->last_match; break;
    }
    if (!k->open || !joins) {
        sink_flush(k);
        k->start = start;
        k->open = true;
    }
    k->end = end;
    k->last_match = match;
}

/* ---- steps that only cut ---- */

static int cut_regex(const struct split_step *s, struct scratch *w, struct str text, size_t base,
                     struct sink *k, struct err *e)
{
    struct regex_walk walk = { .r = s->regex, .m = w->matcher, .text = text };
    size_t done = 0, start, end;

    while (regex_next(&walk, &start, &end)) {
        if (done != start) sink_put(k, base + done, base + start, false);
        sink_put(k, base + start, base + end, true);
        done = end;
    }
    if (done != text.n) sink_put(k, base + done, base + text.n, false);
    return walk.rc == OK
               ? OK
               : err_set(e, walk.rc, "a pattern of the pre-tokenizer takes too long on this text");
}

static void cut_text(struct str text, struct str at, size_t base, struct sink *k)
{
    size_t done = 0;

    while (at.n) {
        ptrdiff_t found = str_find(str_skip(text, done), at);
        if (found < 0) break;
        if (found) sink_put(k, base + done, base + done + (size_t)found, false);
        done += (size_t)found;
        sink_put(k, base + done, base + done + at.n, true);
        done += at.n;
    }
    if (done != text.n) sink_put(k, base + done, base + text.n, false);
}

static void cut_class(const struct split_step *s, struct str text, size_t base, struct sink *k)
{
    size_t done = 0;

    for (size_t i = 0, n; i < text.n; i += n) {
        int32_t cp = (unsigned char)text.p[i];
        n = 1;
        if (cp >= 0x80) n = (size_t)utf8_next(str_skip(text, i), &cp);
        if (s->kind == SPLIT_CHAR ? cp != s->ch : !s->in_class(cp)) continue;
        if (done < i) sink_put(k, base + done, base + i, false);
        sink_put(k, base + i, base + i + n, true);
        done = i + n;
    }
    if (done < text.n) sink_put(k, base + done, base + text.n, false);
}

static void cut_length(const struct split_step *s, struct str text, size_t base, struct sink *k)
{
    size_t done = 0;
    int chars = 0;

    for (size_t i = 0; i < text.n; i++) {
        if (((unsigned char)text.p[i] & 0xc0) == 0x80 || chars++ < s->length) continue;
        sink_put(k, base + done, base + i, true);
        done = i;
        chars = 1;
    }
    if (done < text.n) sink_put(k, base + done, base + text.n, true);
}

/* ---- the chain ---- */

struct run {
    struct scratch *w;
    struct str text;
    int side, text_side; /* which of the two the pieces, and the next text, go to */
    bool at_start;       /* the first piece begins where the whole text began */
};

static int cut_step(const struct split_step *s, struct run *r, struct err *e)
{
    const struct span_list *in = &r->w->pieces[r->side];
    struct span_list *out = &r->w->pieces[!r->side];
    int rc = OK;

    out->n = 0;
    for (size_t i = 0; i < in->n && rc == OK; i++) {
        struct span p = in->p[i];
        struct str text = str_of(r->text.p + p.at, p.n);
        struct sink k = { .out = out, .behavior = s->behavior, .invert = s->invert };
        switch (s->kind) {
        case SPLIT_REGEX:
        case SPLIT_BYTES: rc = cut_regex(s, r->w, text, p.at, &k, e); break;
        case SPLIT_TEXT:
        case SPLIT_METASPACE: cut_text(text, str_of(s->text, s->n_text), p.at, &k); break;
        case SPLIT_LENGTH: cut_length(s, text, p.at, &k); break;
        case SPLIT_CLASS:
        case SPLIT_CHAR: cut_class(s, text, p.at, &k); break;
        }
        sink_flush(&k);
    }
    if (r->at_start) r->at_start = in->n && out->n && out->p[0].at == in->p[0].at;
    r->side = !r->side;
    return rc;
}

typedef void rewrite_fn(const struct split_step *s, const struct run *r, struct str piece,
                        bool first, struct buf *out);

/* Every piece written anew, into another text. */
static int rewrite_step(const struct split_step *s, struct run *r, rewrite_fn *fn, struct err *e)
{
    const struct span_list *in = &r->w->pieces[r->side];
    struct span_list *out = &r->w->pieces[!r->side];
    struct buf *to = &r->w->split[r->text_side];

    out->n = 0;
    buf_clear(to);
    for (size_t i = 0; i < in->n; i++) {
        size_t at = to->n;
        fn(s, r, str_of(r->text.p + in->p[i].at, in->p[i].n), i == 0, to);
        if (to->n > UINT32_MAX / 2)
            return err_set(e, E_INVALID, "the text is too long to tokenize in one go");
        if (to->n > at) spans_push(out, at, to->n - at);
    }
    buf_reserve(to, 64);
    r->text = buf_str(to);
    r->side = !r->side;
    r->text_side = !r->text_side;
    return OK;
}

static void put_metaspace(const struct split_step *s, const struct run *r, struct str p, bool first,
                          struct buf *out)
{
    struct str mark = str_of(s->text, s->n_text);
    bool wants =
        s->prepend == PREPEND_ALWAYS || (s->prepend == PREPEND_FIRST && first && r->at_start);

    if (wants && !str_starts(p, mark) && !(p.n && p.p[0] == ' ')) buf_put_str(out, mark);
    for (size_t i = 0; i < p.n;) {
        const char *space = memchr(p.p + i, ' ', p.n - i);
        size_t end = space ? (size_t)(space - p.p) : p.n;
        buf_add(out, p.p + i, end - i);
        if (space) buf_put_str(out, mark);
        i = end + (space != NULL);
    }
}

static void put_prefixed(const struct split_step *s, const struct run *r, struct str p, bool first,
                         struct buf *out)
{
    (void)s, (void)r, (void)first;
    if (p.n && p.p[0] != ' ') buf_putc(out, ' ');
    buf_put_str(out, p);
}

static void put_mapped(const struct split_step *s, const struct run *r, struct str p, bool first,
                       struct buf *out)
{
    (void)s, (void)r, (void)first;
    text_put_bytes(out, p);
}

static int run_step(const struct split_step *s, struct run *r, bool last, struct err *e)
{
    int rc = OK;

    switch (s->kind) {
    case SPLIT_METASPACE:
        rc = rewrite_step(s, r, put_metaspace, e);
        return rc == OK && s->cut ? cut_step(s, r, e) : rc;
    case SPLIT_BYTES:
        if (s->prefix_space) rc = rewrite_step(s, r, put_prefixed, e);
        if (rc == OK && s->regex) rc = cut_step(s, r, e);
        return rc == OK && !last ? rewrite_step(s, r, put_mapped, e) : rc;
    default: return cut_step(s, r, e);
    }
}

int split_run(const struct split *s, struct scratch *w, struct str text, bool at_start,
              struct split_result *out, struct err *e)
{
    struct run r = { .w = w, .text = text, .at_start = at_start };
    int rc = OK;

    w->pieces[0].n = 0;
    if (text.n) spans_push(&w->pieces[0], 0, text.n);
    for (int i = 0; i < s->n_steps && rc == OK; i++)
        rc = run_step(&s->steps[i], &r, i == s->n_steps - 1, e);
    *out = (struct split_result){ r.text, w->pieces[r.side].p, w->pieces[r.side].n,
                                  s->n_steps && s->steps[s->n_steps - 1].kind == SPLIT_BYTES };
    return rc;
}
