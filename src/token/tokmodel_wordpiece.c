/* tokmodel_wordpiece.c - the WordPiece model of BERT: greedy longest match. */
#include "token/tokmodel.h"

static bool is_continuation_byte(char c) { return ((unsigned char)c & 0xc0) == 0x80; }

static bool is_too_long(const struct wordpiece *p, struct str word)
{
    size_t n = 0;

    if (!p->max_chars) return false;
    for (size_t i = 0; i < word.n; i++) n += !is_continuation_byte(word.p[i]);
    return n > (size_t)p->max_chars;
}

/* The longest piece that head + text starts with: bytes of text in it, 0: none. */
static size_t find_longest(const struct wordpiece *p, struct model_scratch *w, struct str head,
                           struct str text, int32_t *id)
{
    size_t n = text.n < p->vocab->max_bytes ? text.n : p->vocab->max_bytes;

    buf_clear(&w->tmp);
    buf_put_str(&w->tmp, head);
    buf_add(&w->tmp, text.p, n);
    w->failed |= w->tmp.failed;
    for (; n && !w->failed; n--) {
        if (n < text.n && is_continuation_byte(text.p[n])) continue;
        *id = vocab_find(p->vocab, str_of(w->tmp.p, head.n + n));
        if (*id >= 0) return n;
    }
    return 0;
}

/* A word is all pieces or one unknown token: what was added for its start is taken back. */
bool wordpiece_encode(const struct wordpiece *p, struct model_scratch *w, struct str word,
                      struct ids *out)
{
    size_t before = out->n, at = 0;
    bool known = !is_too_long(p, word);

    while (known && at < word.n) {
        int32_t id;
        size_t n = find_longest(p, w, at ? p->inside : p->first, str_skip(word, at), &id);
        if (n) ids_push(out, id);
        known = n > 0;
        at += n;
    }
    if (known) return true;
    out->n = before;
    if (p->unk >= 0) ids_push(out, p->unk);
    return !w->failed;
}
