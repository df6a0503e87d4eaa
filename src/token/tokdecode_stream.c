#include "token/tokenizer.h"

#include "base/utf8.h"
#include "token/chars.h"
#include "token/tokenizer_impl.h"

enum { CONTEXT = 8, MAX_WINDOW = 64 };

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

/* Does it take part in the text at all? */
static bool counts(const struct detok *d, int32_t id)
{
    return tokenizer_piece(d->t, id).n && !(d->skip_special && tokenizer_is_special(d->t, id));
}

/* Text of the window, its last bytes perhaps half a character. */
static void write_window(struct detok *d)
{
    struct texts l = { 0 };

    for (size_t i = 0; i < d->ids.n; i++) texts_push(&l, tokenizer_piece(d->t, d->ids.p[i]));
    decode_run(&d->t->decode, &l, true);
    buf_clear(&d->text);
    buf_reserve(&d->text, 1);
    buf_put_str(&d->text, buf_str(&l.text));
    texts_release(&l);
}

/* The last id stays: what follows is not the first piece of a text. */
static void settle(struct detok *d)
{
    d->ids.p[0] = d->ids.p[d->ids.n - 1];
    d->ids.n = 1;
    write_window(d);
    d->given = d->text.n;
}

void detok_prime(struct detok *d, const int32_t *ids, size_t n)
{
    size_t from = n, kept = 0;

    while (from && kept < CONTEXT) kept += counts(d, ids[--from]);
    d->ids.n = 0;
    for (; from < n; from++)
        if (counts(d, ids[from])) ids_push(&d->ids, ids[from]);
    write_window(d);
    d->given = d->text.n - (size_t)utf8_partial(buf_str(&d->text));
}

void detok_push(struct detok *d, int32_t id, struct buf *out)
{
    struct str fresh;
    size_t held;

    if (!counts(d, id)) return;
    ids_push(&d->ids, id);
    write_window(d);
    if (d->given > d->text.n) d->given = d->text.n;
    fresh = str_skip(buf_str(&d->text), d->given);
    held = (size_t)utf8_partial(fresh);
    text_put_valid(out, str_take(fresh, fresh.n - held));
    d->given = d->text.n - held;
    if (held == 0 && (fresh.n || d->ids.n > MAX_WINDOW)) settle(d);
}

void detok_flush(struct detok *d, struct buf *out)
{
    if (!d->ids.n) return;
    write_window(d);
    text_put_valid(out, str_skip(buf_str(&d->text), d->given));
    d->given = d->text.n;
    settle(d);
}
