#include "token/tokfile.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "token/tokmodel.h"

/* ---- finding them ---- */

static size_t skip_space(struct str s, size_t i)
{
    while (i < s.n && (s.p[i] == ' ' || s.p[i] == '\n' || s.p[i] == '\t' || s.p[i] == '\r')) i++;
    return i;
}

/* From an opening quote to behind the closing one, or to the end. */
static size_t skip_string(struct str s, size_t i)
{
    for (i++; i < s.n && s.p[i] != '"'; i++)
        if (s.p[i] == '\\') i++;
    return i < s.n ? i + 1 : s.n;
}

static size_t skip_value(struct str s, size_t i)
{
    int depth = 0;

    while (i < s.n) {
        char c = s.p[i];
        if (c == '"') i = skip_string(s, i);
        else if (c == '{' || c == '[') depth++, i++;
        else if ((c == '}' || c == ']') && depth) depth--, i++;
        else if (!depth && (c == ',' || c == '}' || c == ']')) break;
        else i++;
        if (!depth && (c == '"' || c == '}' || c == ']')) break;
    }
    return i;
}

/* The value of a key of the object that begins at `at`; empty if there is none. */
static struct str find_member(struct str s, size_t at, struct str key)
{
    size_t i = skip_space(s, at + 1);

    while (i < s.n && s.p[i] == '"') {
        size_t from = i, end = skip_string(s, i), value = skip_space(s, end);
        if (value >= s.n || s.p[value] != ':') break;
        value = skip_space(s, value + 1);
        i = skip_value(s, value);
        if (str_eq(str_of(s.p + from, end - from), key)) return str_of(s.p + value, i - value);
        i = skip_space(s, i);
        if (i >= s.n || s.p[i] != ',') break;
        i = skip_space(s, i + 1);
    }
    return STR("");
}

static struct str find_big(struct str json, struct str model, const char *key, char opens)
{
    struct str v = find_member(json, (size_t)(model.p - json.p), str_c(key));
    return v.n && v.p[0] == opens ? v : STR("");
}

void tokbig_cut(struct str json, struct tokbig *out, struct buf *rest)
{
    size_t start = skip_space(json, 0), done = 0;
    struct str model = STR(""), cuts[2];

    *out = (struct tokbig){ STR(""), STR("") };
    if (start < json.n && json.p[start] == '{') model = find_member(json, start, STR("\"model\""));
    if (model.n && model.p[0] == '{') {
        out->vocab = find_big(json, model, "\"vocab\"", '{');
        out->merges = find_big(json, model, "\"merges\"", '[');
    }
    bool swapped = out->vocab.n && out->merges.n && out->merges.p < out->vocab.p;
    cuts[0] = swapped ? out->merges : out->vocab;
    cuts[1] = swapped ? out->vocab : out->merges;
    for (int i = 0; i < 2; i++) {
        if (!cuts[i].n) continue;
        size_t at = (size_t)(cuts[i].p - json.p);
        buf_add(rest, json.p + done, at - done);
        buf_puts(rest, "null");
        done = at + cuts[i].n;
    }
    if (json.n) buf_add(rest, json.p + done, json.n - done);
}

/* ---- reading them ---- */

/* A walk over the text of one; strings are written out into a block of their own. */
struct walk {
    struct str s;
    size_t i;
    char *to; /* behind the last string */
    const struct place *p;
    struct err *e;
    int rc;
};

static void walk_fail(struct walk *w, const char *what)
{
    if (w->rc == OK) w->rc = place_fail(w->p, w->e, "%s, %zu bytes into it", what, w->i);
}

static char peek(struct walk *w)
{
    w->i = skip_space(w->s, w->i);
    return w->i < w->s.n ? w->s.p[w->i] : 0;
}

static bool take(struct walk *w, char c)
{
    if (peek(w) != c) return false;
    w->i++;
    return true;
}

static int hex4(struct walk *w)
{
    int v = 0;

    for (int k = 0; k < 4; k++, w->i++) {
        char c = w->i < w->s.n ? w->s.p[w->i] : 0;
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

/* Behind \u; a character beyond the first 65536 is two of them. */
static bool read_unicode(struct walk *w)
{
    int32_t cp = hex4(w), low;

    if (cp >= 0xd800 && cp < 0xdc00) {
        if (!str_starts(str_skip(w->s, w->i), STR("\\u"))) return false;
        w->i += 2;
        low = hex4(w);
        if (low < 0xdc00 || low > 0xdfff) return false;
        cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
    } else if (cp < 0 || (cp >= 0xdc00 && cp < 0xe000)) {
        return false;
    }
    w->to += utf8_put(w->to, cp);
    return true;
}

static bool read_escape(struct walk *w)
{
    static const char names[] = "\"\\/bfnrt", codes[] = "\"\\/\b\f\n\r\t";
    char c = w->i < w->s.n ? w->s.p[w->i++] : 0;
    const char *at = c ? strchr(names, c) : NULL;

    if (c == 'u') return read_unicode(w);
    if (at) *w->to++ = codes[at - names];
    return at != NULL;
}

static struct str read_string(struct walk *w)
{
    char *from = w->to;

    if (!take(w, '"')) {
        walk_fail(w, "expected a string");
        return STR("");
    }
    while (w->i < w->s.n) {
        unsigned char c = (unsigned char)w->s.p[w->i++];
        if (c == '"') return str_of(from, (size_t)(w->to - from));
        if (c < 0x20 || (c == '\\' && !read_escape(w))) break;
        if (c != '\\') *w->to++ = (char)c;
    }
    walk_fail(w, "a bad string");
    return STR("");
}

static int32_t read_id(struct walk *w, struct str piece)
{
    int64_t id = -1;
    char c = peek(w);

    for (id = c >= '0' && c <= '9' ? 0 : -1; c >= '0' && c <= '9' && id < VOCAB_MAX_ID;
         c = ++w->i < w->s.n ? w->s.p[w->i] : 0)
        id = id * 10 + (c - '0');
    if (id >= 0 && id < VOCAB_MAX_ID) return (int32_t)id;
    if (w->rc == OK)
        w->rc = place_fail(w->p, w->e, "the id of '%.*s' is not a number from 0 to %d",
                           STR_ARG(str_take(piece, 60)), VOCAB_MAX_ID - 1);
    return 0;
}

struct entry {
    struct str piece;
    int32_t id;
};

static size_t read_entries(struct walk *w, struct entry **out, int32_t *max)
{
    struct entry *v = NULL;
    size_t n = 0, cap = 0;

    *max = -1;
    for (bool more = take(w, '{') && peek(w) != '}'; more && w->rc == OK; more = take(w, ',')) {
        if (n == cap) v = mem_grow(v, (cap = cap ? cap * 2 : 1024) * sizeof *v);
        v[n].piece = read_string(w);
        if (w->rc == OK && !take(w, ':')) walk_fail(w, "expected ':'");
        v[n].id = w->rc == OK ? read_id(w, v[n].piece) : 0;
        if (v[n].id > *max) *max = v[n].id;
        n++;
    }
    if (w->rc == OK && !take(w, '}')) walk_fail(w, "expected ',' or '}'");
    *out = v;
    return n;
}

int tokbig_vocab(struct tokenizer *t, const struct tokbig *b, const struct place *p, struct err *e)
{
    struct walk w = { .s = b->vocab, .p = p, .e = e };
    struct entry *v = NULL;
    int32_t max;
    size_t n;
    int rc;

    if (!b->vocab.n) return place_fail(p, e, "missing or not an object");
    if (utf8_bad(b->vocab) >= 0) return place_fail(p, e, "not UTF-8");
    w.to = arena_alloc(&t->arena, b->vocab.n);
    n = read_entries(&w, &v, &max);
    rc = w.rc;
    if (rc == OK && n > VOCAB_MAX_ID)
        rc = place_fail(p, e, "%zu pieces, at most %d are supported", n, VOCAB_MAX_ID);
    if (rc == OK) rc = vocab_init(&t->vocab, max + 1, (int)n, e);
    for (size_t i = 0; i < n && rc == OK; i++) vocab_put(&t->vocab, v[i].piece, v[i].id);
    mem_free(v);
    return rc;
}

/* "a b" or ["a", "b"]; false: a line that is no merge, as old files have one. */
static bool read_pair(struct walk *w, struct str *left, struct str *right)
{
    const char *space;
    struct str s;

    if (take(w, '[')) {
        *left = read_string(w);
        if (w->rc == OK && !take(w, ',')) walk_fail(w, "not a pair of pieces");
        *right = read_string(w);
        if (w->rc == OK && !take(w, ']')) walk_fail(w, "not a pair of pieces");
        return true;
    }
    s = read_string(w);
    if (str_starts(s, STR("#version"))) return false;
    space = s.n ? memchr(s.p, ' ', s.n) : NULL;
    if (!space) {
        walk_fail(w, "not a pair of pieces");
        return true;
    }
    *left = str_of(s.p, (size_t)(space - s.p));
    *right = str_skip(s, left->n + 1);
    if (memchr(right->p, ' ', right->n)) walk_fail(w, "not a pair of pieces");
    return true;
}

/* How many merges there can be at most: strings, or lists. */
static size_t count_merges(struct str s)
{
    size_t n = 0;

    for (size_t i = 1; i < s.n; i++) {
        if (s.p[i] == '"') i = skip_string(s, i) - 1, n++;
        else if (s.p[i] == '[') n--; /* two strings in it are one merge */
    }
    return n;
}

int tokbig_merges(struct tokenizer *t, const struct tokbig *b, const struct place *p, struct err *e)
{
    struct walk w = { .s = b->merges, .p = p, .e = e };
    struct merger m = { .bpe = &t->bpe, .note_cuts = true };
    struct str left, right;
    size_t n = count_merges(b->merges), done = 0;
    char *block;
    int rc;

    if (!b->merges.n) return place_fail(p, e, "missing or not a list");
    if (n > BPE_MAX_MERGES)
        return place_fail(p, e, "%zu merges, at most %d are supported", n, BPE_MAX_MERGES);
    if ((rc = bpe_init(&t->bpe, &t->vocab, n, e)) != OK) return rc;
    w.to = block = mem_alloc(b->merges.n);
    bool known = true, more = take(&w, '[') && peek(&w) != ']';
    for (; more && known && w.rc == OK && done < n; more = take(&w, ','))
        if (read_pair(&w, &left, &right) && w.rc == OK) done++, known = merger_add(&m, left, right);
    if (w.rc == OK && known) known = merger_flush(&m);
    if (w.rc == OK && !known) w.rc = place_fail(p, e, "%s", m.why);
    if (w.rc == OK && !take(&w, ']')) walk_fail(&w, "expected ',' or ']'");
    mem_free(block);
    return w.rc;
}
