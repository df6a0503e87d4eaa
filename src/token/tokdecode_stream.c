/* tokdecode_stream.c - the streaming detokenizer.
 *
 * The text of an id depends on its neighbours: a character may be split over several ids, and some
 * decoders treat the first piece of a text in another way. So the ids since the last settled point
 * are kept as a window and decoded again for each new id; the text beyond what was given out
 * already is new. A window is settled, that is, shortened to its last id, as soon as its text ends
 * with a whole character. The last id stays, because what follows it is not the start of a text.
 *
 * A failed allocation is handed to the output buffer. Where only the output was affected, the
 * window still has the text and the next call gives it out; after a failure of the window itself
 * all later calls fail, too (ids.failed stays set). */
#include "token/tokenizer_impl.h"

#include "base/utf8.h"
#include "token/chars.h"

enum {
    CONTEXT = 8,    /* ids before the first new one that are decoded with it */
    MAX_WINDOW = 64 /* ids; longer windows happen only with ids that give no text */
};

void detok_init(struct detok *d, const struct tokenizer *t, bool skip_special)
{
    *d = (struct detok){ .t = t, .skip_special = skip_special };
}

void detok_release(struct detok *d)
{
    ids_release(&d->ids);
    buf_release(&d->text);
    *d = (struct detok){ 0 };
}

/* Does the id contribute to the text at all? */
static bool has_text(const struct detok *d, int32_t id)
{
    return tokenizer_piece(d->t, id).n && !(d->skip_special && tokenizer_is_special(d->t, id));
}

/* Decodes the window into d->text, which may end within a character. false: no memory. */
static bool decode_window(struct detok *d)
{
    struct text_list l = { 0 };

    for (size_t i = 0; i < d->ids.n; i++) text_list_add(&l, tokenizer_piece(d->t, d->ids.p[i]));
    decoder_apply(&d->t->decoder, &l, true);
    buf_clear(&d->text);
    buf_reserve(&d->text, 1);
    buf_put_str(&d->text, buf_str(&l.text));
    d->text.failed |= l.text.failed || d->ids.failed;
    text_list_release(&l);
    return !d->text.failed;
}

/* Shortens the window to its last id. All of its text was given out. */
static void settle_window(struct detok *d, struct buf *out)
{
    d->ids.p[0] = d->ids.p[d->ids.n - 1];
    d->ids.n = 1;
    if (!decode_window(d)) d->ids.failed = out->failed = true;
    d->given = d->text.n;
}

void detok_prime(struct detok *d, const int32_t *ids, size_t n)
{
    size_t from = n, kept = 0;

    while (from && kept < CONTEXT) kept += has_text(d, ids[--from]);
    d->ids.n = 0;
    for (; from < n; from++)
        if (has_text(d, ids[from])) ids_push(&d->ids, ids[from]);
    if (!decode_window(d)) d->ids.failed = true;
    d->given = d->text.n - (size_t)utf8_partial(buf_str(&d->text));
}

void detok_push(struct detok *d, int32_t id, struct buf *out)
{
    struct str fresh;
    size_t partial;

    if (!has_text(d, id)) return;
    ids_push(&d->ids, id);
    if (!decode_window(d)) {
        out->failed = true;
        return;
    }
    if (d->given > d->text.n) d->given = d->text.n;
    fresh = str_skip(buf_str(&d->text), d->given);
    partial = (size_t)utf8_partial(fresh);
    text_put_valid(out, str_take(fresh, fresh.n - partial));
    if (out->failed) return;
    d->given = d->text.n - partial;
    if (partial == 0 && (fresh.n || d->ids.n > MAX_WINDOW)) settle_window(d, out);
}

void detok_flush(struct detok *d, struct buf *out)
{
    if (d->ids.failed) out->failed = true;
    if (!d->ids.n || out->failed) return;
    if (!decode_window(d)) {
        out->failed = true;
        return;
    }
    text_put_valid(out, str_skip(buf_str(&d->text), d->given));
    if (out->failed) return;
    d->given = d->text.n;
    settle_window(d, out);
}
