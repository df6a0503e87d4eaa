#include "token/tokenizer.h"

#include "base/utf8.h"
#include "token/chars.h"

static int32_t find_anchor(const struct tokenizer *t)
{
    int32_t id = tokenizer_find(t, STR("a"));

    for (int32_t i = 0; id < 0 && i < tokenizer_n(t); i++)
        if (tokenizer_piece(t, i).n && !tokenizer_is_special(t, i)) id = i;
    return id;
}

void pieces_init(struct pieces *p, const struct tokenizer *t)
{
    detok_init(&p->detok, t, false);
    p->bytes = tokenizer_is_byte_level(t);
    p->anchor = find_anchor(t);
    p->anchor_bytes = 0;
    if (p->anchor < 0) return;
    detok_prime(&p->detok, &p->anchor, 1);
    p->anchor_bytes = p->detok.text.n;
}

void pieces_release(struct pieces *p)
{
    detok_release(&p->detok);
    *p = (struct pieces){ 0 };
}

/* What the step to bytes makes of it: a piece with other characters is text. */
static struct str bytes_of(struct pieces *p, struct str piece)
{
    struct buf *out = &p->detok.text;

    buf_clear(out);
    buf_reserve(out, 1);
    for (size_t i = 0; i < piece.n;) {
        int32_t cp;
        int n = utf8_next(str_skip(piece, i), &cp), b = cp < 0 ? -1 : char_byte(cp);
        if (b < 0) return piece;
        buf_putc(out, (char)b);
        i += (size_t)n;
    }
    return buf_str(out);
}

struct str pieces_of(struct pieces *p, int32_t id)
{
    int32_t two[2] = { p->anchor, id };
    bool alone = p->anchor < 0;

    if (p->bytes) return bytes_of(p, tokenizer_piece(p->detok.t, id));
    detok_prime(&p->detok, two + alone, 2 - (size_t)alone);
    return str_skip(buf_str(&p->detok.text), p->anchor_bytes);
}
