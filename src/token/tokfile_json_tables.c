/* tokfile_json_tables.c - vocabulary and merges, read straight from the text of a tokenizer.json.
 *
 * The two members are nearly all of the file, up to a million values; a JSON tree of them would
 * take most of the time and of the memory of opening a tokenizer. A scanner finds them in the text,
 * the rest goes to jansson. Then a reader decodes their strings into one block per table: a decoded
 * string is never longer than its JSON, so a block of the size of the text is enough. */
#include "token/tokfile.h"

#include "base/mem.h"
#include "base/utf8.h"

/* ---- finding the tables ---- */

static size_t skip_space(struct str s, size_t i)
{
    while (i < s.n && (s.p[i] == ' ' || s.p[i] == '\n' || s.p[i] == '\t' || s.p[i] == '\r')) i++;
    return i;
}

/* From the opening quote of a string to after its closing quote, or to the end. */
static size_t skip_string(struct str s, size_t i)
{
    for (i++; i < s.n && s.p[i] != '"'; i++)
        if (s.p[i] == '\\') i++;
    return i < s.n ? i + 1 : s.n;
}

/* From the first byte of a value to after its last. Does not check that it is valid JSON. */
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

/* The value of a member of the object that starts at `at`; empty: none. key is with its quotes. */
static struct str find_json_member(struct str s, size_t at, struct str key)
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

/* A member of the model that starts with the byte `opens`; empty: none. */
static struct str find_table(struct str json, struct str model, const char *key, char opens)
{
    struct str v = find_json_member(json, (size_t)(model.p - json.p), str_c(key));
    return v.n && v.p[0] == opens ? v : STR("");
}

/* The members come in any order, so the cuts are made in the order of the text. */
void tokfile_cut_tables(struct str json, struct json_tables *out, struct buf *rest)
{
    size_t start = skip_space(json, 0), done = 0;
    struct str model = STR(""), cuts[2];

    *out = (struct json_tables){ STR(""), STR("") };
    if (start < json.n && json.p[start] == '{')
        model = find_json_member(json, start, STR("\"model\""));
    if (model.n && model.p[0] == '{') {
        out->vocab = find_table(json, model, "\"vocab\"", '{');
        out->merges = find_table(json, model, "\"merges\"", '[');
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

/* ---- reading a table ---- */

struct table_reader {
    struct str s; /* the text of the table */
    size_t i;     /* the next byte of it */
    char *to;     /* where the next decoded string goes */
    const struct location *at;
    struct err *e;
    int rc; /* the first error; then the other functions give empty values */
};

static void fail_table(struct table_reader *w, const char *what)
{
    if (w->rc == OK) w->rc = location_fail(w->at, w->e, "%s, at byte %zu of it", what, w->i);
}

/* The next byte that is not white space; 0: the end. */
static char peek_token(struct table_reader *w)
{
    w->i = skip_space(w->s, w->i);
    return w->i < w->s.n ? w->s.p[w->i] : 0;
}

static bool take_token(struct table_reader *w, char c)
{
    if (peek_token(w) != c) return false;
    w->i++;
    return true;
}

static int read_hex4(struct table_reader *w)
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

/* What follows \u; a character above U+FFFF is a pair of surrogates. */
static bool read_unicode(struct table_reader *w)
{
    int32_t cp = read_hex4(w), low;

    if (cp >= 0xd800 && cp < 0xdc00) {
        if (!str_starts(str_skip(w->s, w->i), STR("\\u"))) return false;
        w->i += 2;
        low = read_hex4(w);
        if (low < 0xdc00 || low > 0xdfff) return false;
        cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
    } else if (cp < 0 || (cp >= 0xdc00 && cp < 0xe000)) {
        return false;
    }
    w->to += utf8_put(w->to, cp);
    return true;
}

static bool read_escape(struct table_reader *w)
{
    static const char names[] = "\"\\/bfnrt", codes[] = "\"\\/\b\f\n\r\t";
    char c = w->i < w->s.n ? w->s.p[w->i++] : 0;
    const char *at = c ? strchr(names, c) : NULL;

    if (c == 'u') return read_unicode(w);
    if (at) *w->to++ = codes[at - names];
    return at != NULL;
}

static struct str read_string(struct table_reader *w)
{
    char *from = w->to;

    if (!take_token(w, '"')) {
        fail_table(w, "expected a string");
        return STR("");
    }
    while (w->i < w->s.n) {
        unsigned char c = (unsigned char)w->s.p[w->i++];
        if (c == '"') return str_of(from, (size_t)(w->to - from));
        if (c < 0x20 || (c == '\\' && !read_escape(w))) break;
        if (c != '\\') *w->to++ = (char)c;
    }
    fail_table(w, "not a valid string");
    return STR("");
}

/* Digits only; another number is an error that names the piece. */
static int32_t read_id(struct table_reader *w, struct str piece)
{
    int64_t id = -1;
    char c = peek_token(w);

    for (id = c >= '0' && c <= '9' ? 0 : -1; c >= '0' && c <= '9' && id < VOCAB_MAX_ID;
         c = ++w->i < w->s.n ? w->s.p[w->i] : 0)
        id = id * 10 + (c - '0');
    if (id >= 0 && id < VOCAB_MAX_ID) return (int32_t)id;
    if (w->rc == OK)
        w->rc = location_fail(w->at, w->e, "the id of '%.*s' is not a number from 0 to %d",
                              STR_ARG(str_take(piece, 60)), VOCAB_MAX_ID - 1);
    return 0;
}

/* An entry of a vocabulary. All are read before the table is made: its size depends on the largest
 * id. */
struct entry {
    struct str piece;
    int32_t id;
};

/* All entries of a vocabulary, from mem_alloc, also after an error. */
static size_t read_entries(struct table_reader *w, struct entry **out, int32_t *max)
{
    struct entry *v = NULL;
    size_t n = 0, cap = 0;

    *max = -1;
    for (bool more = take_token(w, '{') && peek_token(w) != '}'; more && w->rc == OK;
         more = take_token(w, ',')) {
        if (!mem_ensure(v, cap, n + 1)) {
            w->rc = err_nomem(w->e, "the vocabulary");
            break;
        }
        v[n].piece = read_string(w);
        if (w->rc == OK && !take_token(w, ':')) fail_table(w, "expected ':'");
        v[n].id = w->rc == OK ? read_id(w, v[n].piece) : 0;
        if (v[n].id > *max) *max = v[n].id;
        n++;
    }
    if (w->rc == OK && !take_token(w, '}')) fail_table(w, "expected ',' or '}'");
    *out = v;
    return n;
}

/* The strings of pieces stay in the arena as long as the tokenizer. */
int tokfile_read_vocab(struct tokenizer *t, const struct json_tables *tables,
                       const struct location *at, struct err *e)
{
    struct table_reader w = { .s = tables->vocab, .at = at, .e = e };
    struct entry *v = NULL;
    int32_t max;
    size_t n;
    int rc;

    if (!tables->vocab.n) return location_fail(at, e, "missing or not an object");
    if (utf8_bad(tables->vocab) >= 0) return location_fail(at, e, "not UTF-8");
    if (!(w.to = arena_alloc(&t->arena, tables->vocab.n))) return err_nomem(e, "the vocabulary");
    n = read_entries(&w, &v, &max);
    rc = w.rc;
    if (rc == OK && n > VOCAB_MAX_ID)
        rc = location_fail(at, e, "%zu pieces; at most %d are supported", n, VOCAB_MAX_ID);
    if (rc == OK) rc = vocab_init(&t->vocab, max + 1, (int)n, e);
    for (size_t i = 0; i < n && rc == OK; i++)
        if (!vocab_add(&t->vocab, v[i].piece, v[i].id)) rc = err_nomem(e, "the vocabulary");
    mem_free(v);
    return rc;
}

/* A merge: "a b" or ["a", "b"]. false: "#version: ...", which old files have in the list. */
static bool read_pair(struct table_reader *w, struct str *left, struct str *right)
{
    const char *space;
    struct str s;

    if (take_token(w, '[')) {
        *left = read_string(w);
        if (w->rc == OK && !take_token(w, ',')) fail_table(w, "not a pair of pieces");
        *right = read_string(w);
        if (w->rc == OK && !take_token(w, ']')) fail_table(w, "not a pair of pieces");
        return true;
    }
    s = read_string(w);
    if (str_starts(s, STR("#version"))) return false;
    space = s.n ? memchr(s.p, ' ', s.n) : NULL;
    if (!space) {
        fail_table(w, "not a pair of pieces");
        return true;
    }
    *left = str_of(s.p, (size_t)(space - s.p));
    *right = str_skip(s, left->n + 1);
    if (memchr(right->p, ' ', right->n)) fail_table(w, "not a pair of pieces");
    return true;
}

/* An upper bound of the number of merges, by counting strings and lists. */
static size_t count_merges(struct str s)
{
    size_t n = 0;

    for (size_t i = 1; i < s.n; i++) {
        if (s.p[i] == '"') i = skip_string(s, i) - 1, n++;
        else if (s.p[i] == '[') n--; /* two strings in it are one merge */
    }
    return n;
}

/* The strings of merges are needed only while they are loaded: their block is freed at the end. */
int tokfile_read_merges(struct tokenizer *t, const struct json_tables *tables,
                        const struct location *at, struct err *e)
{
    struct table_reader w = { .s = tables->merges, .at = at, .e = e };
    struct merge_loader m = { .bpe = &t->bpe, .note_inner_marks = true };
    struct str left, right;
    size_t n = count_merges(tables->merges), done = 0;
    char *block;
    int rc;

    if (!tables->merges.n) return location_fail(at, e, "missing or not a list");
    if (n > BPE_MAX_MERGES)
        return location_fail(at, e, "%zu merges; at most %d are supported", n, BPE_MAX_MERGES);
    if ((rc = bpe_init(&t->bpe, &t->vocab, n, e)) != OK) return rc;
    if (!(w.to = block = mem_alloc(tables->merges.n))) return err_nomem(e, "the merges");
    bool more = take_token(&w, '[') && peek_token(&w) != ']';
    for (; more && rc == OK && w.rc == OK && done < n; more = take_token(&w, ','))
        if (read_pair(&w, &left, &right) && w.rc == OK)
            done++, rc = merge_loader_add(&m, left, right);
    if (w.rc == OK && rc == OK) rc = merge_loader_flush(&m);
    if (w.rc == OK && rc != OK)
        w.rc = rc == E_NOMEM ? err_nomem(e, "the merges") : location_fail(at, e, "%s", m.why);
    if (w.rc == OK && !take_token(&w, ']')) fail_table(&w, "expected ',' or ']'");
    merge_loader_release(&m);
    mem_free(block);
    return w.rc;
}
