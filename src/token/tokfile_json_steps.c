/* tokfile_json_steps.c - normalizers, pre-tokenizers and decoders of a tokenizer.json.
 *
 * A table per kind of part maps the member "type" to a reader, which fills one step. The step is
 * then handed to its chain, or released where reading failed. */
#include "token/tokfile.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "token/chars.h"

enum {
    MAX_NEST = 16, /* of sequences */
    MAX_STEPS = 64 /* of one chain */
};

/* A copy of s that belongs to a step. */
static int dup_text(struct str s, char **out, size_t *n, struct err *e)
{
    *out = NULL;
    *n = s.n;
    if (s.n && !(*out = mem_dup(s.p, s.n))) return err_nomem(e, "a text of a tokenizer");
    return OK;
}

int tokfile_read_sequence(struct tokenizer *t, json_t *o, const char *key,
                          const struct location *at, int depth, json_part_reader *read,
                          struct err *e)
{
    struct location list_at = location_member(at, key);
    json_t *list = json_object_get(o, key);
    int rc = OK;

    if (!json_is_array(list)) return location_fail(&list_at, e, list ? "not a list" : "missing");
    if (depth >= MAX_NEST)
        return location_fail(&list_at, e, "sequences are nested more than %d deep", MAX_NEST);
    for (size_t i = 0; i < json_array_size(list) && rc == OK; i++) {
        struct location q = location_item(&list_at, i);
        rc = read(t, json_array_get(list, i), &q, depth + 1, e);
    }
    return rc;
}

/* The member "pattern": {"String": "..."}, {"Regex": "..."} or a plain string. */
static int read_pattern(json_t *o, char **text, size_t *n_text, struct regex **regex,
                        const struct location *at, struct err *e)
{
    json_t *v = json_object_get(o, "pattern"), *re = json_object_get(v, "Regex"),
           *s = json_object_get(v, "String");
    struct location q = location_member(at, "pattern");
    int rc;

    *text = NULL;
    *regex = NULL;
    if (json_is_string(v)) s = v;
    if (json_is_string(s)) return dup_text(json_text(s), text, n_text, e);
    if (!json_is_string(re)) return location_fail(&q, e, "neither a String nor a Regex");
    if ((rc = regex_open(regex, json_text(re), e)) != OK) err_wrap(e, "%s: %s", at->file, q.path);
    return rc;
}

/* Replace, as a normalizer and as a decoder. */
static int read_replace(json_t *o, struct normalizer_step *s, const struct location *at,
                        struct err *e)
{
    struct str content;
    int rc = field_str(o, "content", "", &content, at, e);

    *s = (struct normalizer_step){ .kind = NORMAL_REPLACE };
    if (rc == OK) rc = read_pattern(o, &s->find, &s->n_find, &s->regex, at, e);
    if (rc == OK) rc = dup_text(content, &s->text, &s->n_text, e);
    return rc;
}

/* ---- normalizers ---- */

/* Appends the decoded bytes; stops at the padding. E_FORMAT: another character. */
static int put_base64(struct str s, struct buf *out)
{
    uint32_t bits = 0;
    int n = 0;

    for (size_t i = 0; i < s.n && s.p[i] != '='; i++) {
        char c = s.p[i];
        int v = c >= 'A' && c <= 'Z'   ? c - 'A'
                : c >= 'a' && c <= 'z' ? c - 'a' + 26
                : c >= '0' && c <= '9' ? c - '0' + 52
                : c == '+'             ? 62
                : c == '/'             ? 63
                                       : -1;
        if (v < 0) return E_FORMAT;
        bits = bits << 6 | (uint32_t)v;
        if ((n += 6) >= 8) buf_putc(out, (char)(bits >> (n -= 8)));
    }
    return OK;
}

/* {"type": "Precompiled", "precompiled_charsmap": BASE64}. An empty map is allowed. */
static int read_charsmap(json_t *o, struct normalizer_step *s, const struct location *at,
                         struct err *e)
{
    struct buf map = { 0 };
    struct str text;
    int rc = field_str(o, "precompiled_charsmap", "", &text, at, e);

    if (rc == OK && put_base64(text, &map) != OK)
        rc = location_fail(at, e, "precompiled_charsmap is not base64");
    if (rc == OK) rc = buf_check(&map, e);
    if (rc == OK && map.n && (rc = charsmap_check(buf_str(&map), e)) != OK)
        err_wrap(e, "%s: %s", at->file, at->path);
    if (rc == OK && map.n) s->text = map.p, s->n_text = map.n;
    else buf_release(&map);
    return rc;
}

/* {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
 *  "strip_accents": null, "lowercase": true}; strip_accents null means the value of lowercase. */
static int read_bert(json_t *o, struct normalizer_step *s, const struct location *at, struct err *e)
{
    int rc;

    if ((rc = field_bool(o, "clean_text", true, &s->clean, at, e)) != OK ||
        (rc = field_bool(o, "handle_chinese_chars", true, &s->cjk, at, e)) != OK ||
        (rc = field_bool(o, "lowercase", true, &s->lower, at, e)) != OK)
        return rc;
    return field_bool(o, "strip_accents", s->lower, &s->accents, at, e);
}

/* {"type": "Strip", "strip_left": true, "strip_right": true} */
static int read_strip(json_t *o, struct normalizer_step *s, const struct location *at,
                      struct err *e)
{
    int rc = field_bool(o, "strip_left", true, &s->left, at, e);
    return rc == OK ? field_bool(o, "strip_right", true, &s->right, at, e) : rc;
}

/* {"type": "Prepend", "prepend": "▁"} */
static int read_prepend(json_t *o, struct normalizer_step *s, const struct location *at,
                        struct err *e)
{
    struct str text;
    int rc = field_str(o, "prepend", "", &text, at, e);

    return rc == OK ? dup_text(text, &s->text, &s->n_text, e) : rc;
}

static const struct {
    const char *name;
    enum normal_kind kind;
} normalizers[] = {
    { "NFC", NORMAL_NFC },
    { "NFD", NORMAL_NFD },
    { "NFKC", NORMAL_NFKC },
    { "NFKD", NORMAL_NFKD },
    { "Lowercase", NORMAL_LOWER },
    { "Strip", NORMAL_STRIP },
    { "StripAccents", NORMAL_STRIP_ACCENTS },
    { "Prepend", NORMAL_PREPEND },
    { "Replace", NORMAL_REPLACE },
    { "BertNormalizer", NORMAL_BERT },
    { "Nmt", NORMAL_NMT },
    { "ByteLevel", NORMAL_BYTES },
    { "Precompiled", NORMAL_CHARSMAP },
};

int tokfile_read_normalizer(struct tokenizer *t, json_t *o, const struct location *at, int depth,
                            struct err *e)
{
    struct normalizer_step s = { 0 };
    struct str type = json_type_name(o);
    size_t i = 0, n = sizeof normalizers / sizeof *normalizers;
    int rc = OK;

    if (str_is(type, "Sequence"))
        return tokfile_read_sequence(t, o, "normalizers", at, depth, tokfile_read_normalizer, e);
    if (t->normalizer.n_steps >= MAX_STEPS)
        return location_fail(at, e, "more than %d steps", MAX_STEPS);
    while (i < n && !str_is(type, normalizers[i].name)) i++;
    if (i == n)
        return location_fail(at, e, "'%.*s' is not a supported normalizer",
                             STR_ARG(str_take(type, 60)));
    s.kind = normalizers[i].kind;
    if (s.kind == NORMAL_STRIP) rc = read_strip(o, &s, at, e);
    if (s.kind == NORMAL_PREPEND) rc = read_prepend(o, &s, at, e);
    if (s.kind == NORMAL_REPLACE) rc = read_replace(o, &s, at, e);
    if (s.kind == NORMAL_BERT) rc = read_bert(o, &s, at, e);
    if (s.kind == NORMAL_CHARSMAP) rc = read_charsmap(o, &s, at, e);
    if (rc == OK && !(s.kind == NORMAL_CHARSMAP && !s.n_text)) /* an empty map does nothing */
        return normalizer_add_step(&t->normalizer, s, e);
    normalizer_step_release(&s);
    return rc;
}

/* ---- pre-tokenizers ---- */

/* The names are in the order of enum split_behavior. */
static int read_behavior(json_t *o, enum split_behavior def, enum split_behavior *out,
                         const struct location *at, struct err *e)
{
    static const char *const names[] = { "Removed", "Isolated", "MergedWithPrevious",
                                         "MergedWithNext", "Contiguous" };
    struct str s;
    int rc = field_str(o, "behavior", NULL, &s, at, e);

    *out = def;
    if (rc != OK || !s.p) return rc;
    for (int i = 0; i < 5; i++)
        if (str_is(s, names[i])) {
            *out = (enum split_behavior)i;
            return OK;
        }
    return location_fail(at, e, "'%.*s' is not a supported behavior", STR_ARG(str_take(s, 60)));
}

/* {"type": "Split", "pattern": PATTERN, "behavior": "Isolated", "invert": false} */
static int read_split(json_t *o, struct pretok_step *s, const struct location *at, struct err *e)
{
    int rc;

    if ((rc = read_behavior(o, SPLIT_ISOLATED, &s->behavior, at, e)) != OK ||
        (rc = field_bool(o, "invert", false, &s->invert, at, e)) != OK ||
        (rc = read_pattern(o, &s->text, &s->n_text, &s->regex, at, e)) != OK)
        return rc;
    s->kind = s->regex ? PRETOK_REGEX : PRETOK_TEXT;
    return OK;
}

/* {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}; use_regex: cut by GPT-2's
 * pattern before bytes are mapped. */
static int read_bytelevel(json_t *o, struct pretok_step *s, const struct location *at,
                          struct err *e)
{
    bool use_regex;
    int rc;

    s->kind = PRETOK_BYTES;
    if ((rc = field_bool(o, "add_prefix_space", true, &s->prefix_space, at, e)) != OK ||
        (rc = field_bool(o, "use_regex", true, &use_regex, at, e)) != OK)
        return rc;
    return use_regex ? regex_open(&s->regex, str_c(scan_gpt2_pattern), e) : OK;
}

/* {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}. Old files
 * have add_prefix_space instead of prepend_scheme. */
static int read_metaspace(json_t *o, struct pretok_step *s, const struct location *at,
                          struct err *e)
{
    struct str mark, scheme;
    bool prefix;
    int rc;

    s->kind = PRETOK_METASPACE;
    s->behavior = SPLIT_WITH_NEXT;
    if ((rc = field_str(o, "replacement", SPACE_MARK, &mark, at, e)) != OK ||
        (rc = field_bool(o, "add_prefix_space", true, &prefix, at, e)) != OK ||
        (rc = field_str(o, "prepend_scheme", prefix ? "always" : "never", &scheme, at, e)) != OK ||
        (rc = field_bool(o, "split", true, &s->cut, at, e)) != OK)
        return rc;
    s->prepend = str_is(scheme, "always")  ? PREPEND_ALWAYS
                 : str_is(scheme, "first") ? PREPEND_FIRST
                                           : PREPEND_NEVER;
    return dup_text(mark, &s->text, &s->n_text, e);
}

/* {"type": "Digits", "individual_digits": true}: each digit, or each run of digits, is a word. */
static int read_digits(json_t *o, struct pretok_step *s, const struct location *at, struct err *e)
{
    bool single;
    int rc = field_bool(o, "individual_digits", false, &single, at, e);

    s->kind = PRETOK_CLASS;
    s->in_class = char_is_digit;
    s->behavior = single ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
    return rc;
}

/* {"type": "Punctuation", "behavior": "Isolated"} */
static int read_punctuation(json_t *o, struct pretok_step *s, const struct location *at,
                            struct err *e)
{
    s->kind = PRETOK_CLASS;
    s->in_class = char_is_punct;
    return read_behavior(o, SPLIT_ISOLATED, &s->behavior, at, e);
}

/* {"type": "CharDelimiterSplit", "delimiter": "_"}: the first character of the text counts. */
static int read_delimiter(json_t *o, struct pretok_step *s, const struct location *at,
                          struct err *e)
{
    struct str c;
    int rc = field_str(o, "delimiter", " ", &c, at, e);

    s->kind = PRETOK_CHAR;
    s->behavior = SPLIT_REMOVED;
    if (rc == OK && c.n) utf8_next(c, &s->ch);
    return rc;
}

/* {"type": "FixedLength", "length": 5}, in characters. */
static int read_length(json_t *o, struct pretok_step *s, const struct location *at, struct err *e)
{
    int64_t n;
    int rc = field_int(o, "length", 5, &n, at, e);

    s->kind = PRETOK_LENGTH;
    s->length = n < 1 ? 1 : n > 1 << 30 ? 1 << 30 : (int)n;
    return rc;
}

/* {"type": "WhitespaceSplit"}: words between white space. */
static int read_whitespace_split(json_t *o, struct pretok_step *s, const struct location *at,
                                 struct err *e)
{
    (void)o, (void)at, (void)e;
    s->kind = PRETOK_CLASS;
    s->behavior = SPLIT_REMOVED;
    s->in_class = char_is_space;
    return OK;
}

/* A step that keeps the matches of a pattern and removes the rest. */
static int make_match_step(struct pretok_step *s, struct str pattern, struct err *e)
{
    s->kind = PRETOK_REGEX;
    s->behavior = SPLIT_REMOVED;
    s->invert = true;
    return regex_open(&s->regex, pattern, e);
}

/* \w+|[^\w\s]+ with Rust's \w, which has more members than Oniguruma's. */
static int read_whitespace(json_t *o, struct pretok_step *s, const struct location *at,
                           struct err *e)
{
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}"
    (void)o, (void)at;
    return make_match_step(s, STR("[" WORD "]+|[^" WORD "\\s]+"), e);
}

static int read_scripts(json_t *o, struct pretok_step *s, const struct location *at, struct err *e)
{
    struct buf pattern = { 0 };
    int rc;

    (void)o, (void)at;
    pretok_put_script_pattern(&pattern);
    rc = buf_check(&pattern, e);
    if (rc == OK) rc = make_match_step(s, buf_str(&pattern), e);
    buf_release(&pattern);
    return rc;
}

static const struct {
    const char *name;
    int (*read)(json_t *, struct pretok_step *, const struct location *, struct err *);
} pretokenizers[] = {
    { "Split", read_split },
    { "ByteLevel", read_bytelevel },
    { "Metaspace", read_metaspace },
    { "Digits", read_digits },
    { "Punctuation", read_punctuation },
    { "CharDelimiterSplit", read_delimiter },
    { "FixedLength", read_length },
    { "WhitespaceSplit", read_whitespace_split },
    { "Whitespace", read_whitespace },
    { "UnicodeScripts", read_scripts },
    { "BertPreTokenizer", read_whitespace_split },
};

int tokfile_read_pretok(struct tokenizer *t, json_t *o, const struct location *at, int depth,
                        struct err *e)
{
    struct pretok_step s = { .behavior = SPLIT_ISOLATED };
    struct str type = json_type_name(o);
    size_t i = 0, n = sizeof pretokenizers / sizeof *pretokenizers;
    int rc;

    if (str_is(type, "Sequence"))
        return tokfile_read_sequence(t, o, "pretokenizers", at, depth, tokfile_read_pretok, e);
    if (t->pretok.n_steps >= MAX_STEPS)
        return location_fail(at, e, "more than %d steps", MAX_STEPS);
    while (i < n && !str_is(type, pretokenizers[i].name)) i++;
    if (i == n)
        return location_fail(at, e, "'%.*s' is not a supported pre-tokenizer",
                             STR_ARG(str_take(type, 60)));
    if ((rc = pretokenizers[i].read(o, &s, at, e)) != OK) {
        pretok_step_release(&s);
        return rc;
    }
    rc = pretok_add_step(&t->pretok, s, e);
    if (rc == OK && str_is(type, "BertPreTokenizer")) /* at white space, then at punctuation */
        rc = pretok_add_step(&t->pretok,
                             (struct pretok_step){ .kind = PRETOK_CLASS,
                                                   .behavior = SPLIT_ISOLATED,
                                                   .in_class = char_is_punct },
                             e);
    return rc;
}

/* ---- decoders ---- */

/* A member of a decoder that becomes the text of its step. */
static int read_step_text(json_t *o, const char *key, const char *def, struct decode_step *s,
                          const struct location *at, struct err *e)
{
    struct str text;
    int rc = field_str(o, key, def, &text, at, e);

    return rc == OK ? dup_text(text, &s->text, &s->n_text, e) : rc;
}

/* {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}: where the encoder put a
 * mark before the text, the first one vanishes. */
static int read_decode_metaspace(json_t *o, struct decode_step *s, const struct location *at,
                                 struct err *e)
{
    struct str scheme;
    bool prefix;
    int rc;

    if ((rc = read_step_text(o, "replacement", SPACE_MARK, s, at, e)) != OK ||
        (rc = field_bool(o, "add_prefix_space", true, &prefix, at, e)) != OK ||
        (rc = field_str(o, "prepend_scheme", prefix ? "always" : "never", &scheme, at, e)) != OK)
        return rc;
    s->keep_first = str_is(scheme, "never");
    return OK;
}

/* {"type": "Strip", "content": " ", "start": 1, "stop": 0} */
static int read_decode_strip(json_t *o, struct decode_step *s, const struct location *at,
                             struct err *e)
{
    int64_t start, stop;
    int rc;

    if ((rc = read_step_text(o, "content", " ", s, at, e)) != OK ||
        (rc = field_int(o, "start", 0, &start, at, e)) != OK ||
        (rc = field_int(o, "stop", 0, &stop, at, e)) != OK)
        return rc;
    s->start = start < 0 ? 0 : start > 1 << 20 ? 1 << 20 : (int)start;
    s->stop = stop < 0 ? 0 : stop > 1 << 20 ? 1 << 20 : (int)stop;
    return OK;
}

static const struct {
    const char *name;
    enum decode_kind kind;
} decoders[] = {
    { "ByteLevel", DECODE_BYTES },     { "Metaspace", DECODE_METASPACE },
    { "WordPiece", DECODE_WORDPIECE }, { "ByteFallback", DECODE_FALLBACK },
    { "Fuse", DECODE_FUSE },           { "Strip", DECODE_STRIP },
    { "Replace", DECODE_REPLACE },     { "BPEDecoder", DECODE_SUFFIX },
};

int tokfile_read_decoder(struct tokenizer *t, json_t *o, const struct location *at, int depth,
                         struct err *e)
{
    struct decode_step s = { 0 };
    struct str type = json_type_name(o);
    size_t i = 0, n = sizeof decoders / sizeof *decoders;
    int rc = OK;

    if (str_is(type, "Sequence"))
        return tokfile_read_sequence(t, o, "decoders", at, depth, tokfile_read_decoder, e);
    if (t->decoder.n_steps >= MAX_STEPS)
        return location_fail(at, e, "more than %d steps", MAX_STEPS);
    while (i < n && !str_is(type, decoders[i].name)) i++;
    if (i == n)
        return location_fail(at, e, "'%.*s' is not a supported decoder",
                             STR_ARG(str_take(type, 60)));
    s.kind = decoders[i].kind;
    if (s.kind == DECODE_METASPACE) rc = read_decode_metaspace(o, &s, at, e);
    if (s.kind == DECODE_STRIP) rc = read_decode_strip(o, &s, at, e);
    if (s.kind == DECODE_REPLACE) rc = read_replace(o, &s.replace, at, e);
    if (s.kind == DECODE_SUFFIX) rc = read_step_text(o, "suffix", "</w>", &s, at, e);
    if (s.kind == DECODE_WORDPIECE && (rc = read_step_text(o, "prefix", "##", &s, at, e)) == OK)
        rc = field_bool(o, "cleanup", true, &s.cleanup, at, e);
    if (rc == OK) return decoder_add_step(&t->decoder, s, e);
    decode_step_release(&s);
    return rc;
}
