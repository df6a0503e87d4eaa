#include "token/pieces.h"

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

struct str pieces_of(struct pieces *p, int32_t id)
{
    int32_t two[2] = { p->anchor, id };
    bool alone = p->anchor < 0;

    detok_prime(&p->detok, two + alone, 2 - (size_t)alone);
    return str_skip(buf_str(&p->detok.text), p->anchor_bytes);
}
