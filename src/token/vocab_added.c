/* vocab_added.c - finding added tokens in a text.
 *
 * The search runs over every text twice (raw and normalized), so it first skips to a byte that a
 * token can begin with: with memchr where all tokens begin with the same byte, mostly '<'. */
#include "token/vocab.h"

#include "base/utf8.h"
#include "token/chars.h"

bool added_add(struct added *a, struct str content, int index)
{
    unsigned char c;

    if (!content.n) return true;
    if (trie_add(&a->trie, content, index) < 0) return false;
    c = (unsigned char)content.p[0];
    if (!a->first[c]) a->n_first++;
    a->first[c] = true;
    a->only_first = c;
    return true;
}

void added_release(struct added *a)
{
    trie_release(&a->trie);
    *a = (struct added){ 0 };
}

/* The first byte from i on that a token can begin with. */
static size_t skip_to_first(const struct added *a, struct str text, size_t i)
{
    if (a->n_first == 1) {
        const char *p = i < text.n ? memchr(text.p + i, a->only_first, text.n - i) : NULL;
        return p ? (size_t)(p - text.p) : text.n;
    }
    while (i < text.n && !a->first[(unsigned char)text.p[i]]) i++;
    return i;
}

/* The last character of s, which is not empty, and where it starts. */
static size_t find_last_char(struct str s, int32_t *cp)
{
    size_t at = s.n - 1;

    while (at && ((unsigned char)s.p[at] & 0xc0) == 0x80) at--;
    utf8_next(str_skip(s, at), cp);
    return at;
}

/* Is no word character next to text[start, end)? */
static bool is_single_word(struct str text, size_t start, size_t end)
{
    int32_t cp;

    if (start) {
        find_last_char(str_take(text, start), &cp);
        if (char_is_word(cp)) return false;
    }
    if (end < text.n) {
        utf8_next(str_skip(text, end), &cp);
        if (char_is_word(cp)) return false;
    }
    return true;
}

/* Where the white space that ends at `at` starts, not before `least`. */
static size_t skip_spaces_left(struct str text, size_t at, size_t least)
{
    int32_t cp;

    while (at > least) {
        size_t prev = find_last_char(str_take(text, at), &cp);
        if (!char_is_space(cp)) break;
        at = prev;
    }
    return at > least ? at : least;
}

/* Where the white space that starts at `at` ends. */
static size_t skip_spaces_right(struct str text, size_t at)
{
    while (at < text.n) {
        int32_t cp;
        int n = utf8_next(str_skip(text, at), &cp);
        if (!char_is_space(cp)) break;
        at += (size_t)n;
    }
    return at;
}

/* A token that does not count (special in plain text, or inside a word) is passed over as a whole:
 * the search goes on after it, not one byte later, as in the reference implementation. Spaces that
 * lstrip takes must not belong to the token before. */
const struct added_token *added_next(struct added_walk *w, size_t *before, size_t *start)
{
    if (!w->a->n_first) return NULL;
    while ((w->from = skip_to_first(w->a, w->text, w->from)) < w->text.n) {
        int32_t index;
        size_t n = trie_longest(&w->a->trie, str_skip(w->text, w->from), &index), s = w->from,
               end = s + n;
        if (!n) {
            w->from++;
            continue;
        }
        const struct added_token *t = &w->a->tokens[index];
        w->from = end;
        if (w->plain && t->special) continue;
        if (t->single_word && !is_single_word(w->text, s, end)) continue;
        if (t->lstrip) s = skip_spaces_left(w->text, s, w->done);
        if (t->rstrip) end = skip_spaces_right(w->text, end);
        *before = w->done;
        *start = s > w->done ? s : w->done;
        w->done = end;
        return t;
    }
    return NULL;
}
