/* tokdecode_pieces.c - the bytes that single tokens contribute to a text.
 *
 * Some decoders strip the space of the first piece of a text. So a token is decoded after an
 * anchor, an ordinary token whose text is then cut off. Byte-level pieces need no neighbour. */
#include "token/tokenizer_impl.h"

/* "a", or else the first ordinary token; -1: there is none. */
static int32_t find_anchor(const struct tokenizer *t)
{
    int32_t id = tokenizer_find(t, STR("a"));

    for (int32_t i = 0; id < 0 && i < tokenizer_n(t); i++)
        if (tokenizer_piece(t, i).n && !tokenizer_is_special(t, i)) id = i;
    return id;
}

void pieces_init(struct pieces *p, const struct tokenizer *t)
{
    *p = (struct pieces){ .bytes = tokenizer_is_byte_level(t), .anchor = find_anchor(t) };
    detok_init(&p->detok, t, false);
    if (p->anchor < 0) return;
    detok_prime(&p->detok, &p->anchor, 1);
    p->anchor_bytes = p->detok.text.n;
    p->failed = p->detok.text.failed;
}

void pieces_release(struct pieces *p)
{
    detok_release(&p->detok);
    *p = (struct pieces){ 0 };
}

struct str pieces_of(struct pieces *p, int32_t id)
{
    int32_t two[2] = { p->anchor, id };
    bool alone = p->anchor < 0;
    struct buf *text = &p->detok.text;

    if (p->bytes) {
        buf_clear(text);
        buf_reserve(text, 1); /* an empty text has an address, too */
        decode_put_bytes(text, tokenizer_piece(p->detok.t, id));
    } else {
        detok_prime(&p->detok, two + alone, 2 - (size_t)alone);
    }
    p->failed |= text->failed;
    if (p->failed) return STR("");
    return p->bytes ? buf_str(text) : str_skip(buf_str(text), p->anchor_bytes);
}
