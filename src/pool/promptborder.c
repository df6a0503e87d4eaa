/* promptborder.c - compares from the front where the beginning is the shorter side, else from the back. */
#include "pool/promptborder.h"

#include "base/minmax.h"

size_t promptborder_common(struct str a, struct str b)
{
    size_t n = min_size(a.n, b.n), i = 0;

    while (i < n && a.p[i] == b.p[i]) i++;
    while (i > 0 && i < a.n && ((unsigned char)a.p[i] & 0xc0) == 0x80) i--;
    return i;
}

int promptborder_same(const struct ids *a, const struct ids *b)
{
    size_t n = min_size(a->n, b->n), i = 0;

    while (i < n && a->p[i] == b->p[i]) i++;
    return (int)i;
}

/* Tokens that both end with. */
static size_t count_same_end(const struct ids *a, const struct ids *b)
{
    size_t n = min_size(a->n, b->n), i = 0;

    while (i < n && a->p[a->n - 1 - i] == b->p[b->n - 1 - i]) i++;
    return i;
}

/* A border amid a word, or a tokenizer that puts a space before every text: the last tokens before the
 * border may be others in the next prompt, so one more is left out. */
static int tokens_before_end(const struct ids *ids, const struct ids *end)
{
    int n = (int)ids->n - (int)end->n;

    return count_same_end(ids, end) == end->n ? n : n - 1;
}

int promptborder_tokens(const struct tokenizer *t, struct str text, const struct ids *ids,
                        size_t at)
{
    bool front = at <= text.n / 2;
    struct ids part = { 0 };
    int n = 0;

    if (tokenizer_encode(t, front ? str_take(text, at) : str_skip(text, at), 0, &part, NULL) ==
            OK &&
        !part.failed)
        n = front ? promptborder_same(ids, &part) : tokens_before_end(ids, &part);
    ids_release(&part);
    return n > 0 ? n : 0;
}

void promptborder_add(int *list, int *n, int max, int at)
{
    int i = *n;

    if (at <= 0 || *n >= max) return;
    for (int k = 0; k < *n; k++)
        if (list[k] == at) return;
    for (; i > 0 && list[i - 1] > at; i--) list[i] = list[i - 1];
    list[i] = at;
    ++*n;
}
