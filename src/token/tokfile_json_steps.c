/* tokjson_parts.c - normalizers, pre-tokenizers, post-processors and decoders of a tokenizer.json.
 */
#include "base/mem.h"
#include "base/utf8.h"
#include "token/regex.h"
#include "token/pretok.h"
#include "token/tokfile.h"

enum { MAX_NEST = 16, MAX_STEPS = 64 };

static struct str type_of(json_t *o)
{
    json_t *type = json_object_get(o, "type");
    return json_is_string(type) ? json_text(type) : STR("");
}

static char *dup_text(struct str s, size_t *n)
{
    *n = s.n;
    return s.n ? mem_dup(s.p, s.n) : NULL;
}

typedef int reader_fn(struct tokenizer *t, json_t *o, const struct place *p, int depth,
                      struct err *e);

/* The parts of a Sequence, one by one. */
static int read_each(struct tokenizer *t, json_t *list, const struct place *p, int depth,
                     reader_fn *read, struct err *e)
{
    int rc = OK;

    if (!json_is_array(list)) return place_fail(p, e, list ? "not a list" : "missing");
    if (depth >= MAX_NEST) return place_fail(p, e, "sequences nested too deeply");
    for (size_t i = 0; i < json_array_size(list) && rc == OK; i++) {
        struct place q = place_at(p, i);
        rc = read(t, json_array_get(list, i), &q, depth + 1, e);
    }
    return rc;
}

static int read_sequence(struct tokenizer *t, json_t *o, const char *key, const struct place *p,
                         int depth, reader_fn *read, struct err *e)
{
    struct place q = place_in(p, key);
    return read_each(t, json_object_get(o, key), &q, depth, read, e);
}

/* {"String": "..."} or {"Regex": "..."}, or a plain string. */
static int read_pattern(json_t *o, char **text, size_t *n_text, struct regex **regex,
                        const struct place *p, struct err *e)
{
    json_t *v = json_object_get(o, "pattern"), *re = json_object_get(v, "Regex"),
           *s = json_object_get(v, "String");
    struct place q = place_in(p, "pattern");
    int rc;

    *text = NULL;
    *regex = NULL;
    if (json_is_string(v)) s = v;
    if (json_is_string(s)) *text = dup_text(json_text(s), n_text);
    else if (json_is_string(re)) {
        if ((rc = regex_open(regex, json_text(re), e)) != OK)
            return err_wrap(e, "%s: %s", p->file, q.path);
    } else return place_fail(&q, e, "neither a String nor a Regex");
    return OK;
}

static int read_replace(json_t *o, struct normal_step *s, const struct place *p, struct err *e)
{
    struct str content;
    int rc = field_str(o, "content", "", &content, p, e);

    *s = (struct normal_step){ .kind = NORMAL_REPLACE };
    if (rc == OK) rc = read_pattern(o, &s->find, &s->n_find, &s->regex, p, e);
    if (rc == OK) s->text = dup_text(content, &s->n_text);
    return rc;
}

/* ---- normalizers ---- */

static int read_base64(struct str s, struct buf *out)
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

static int read_charsmap(struct tokenizer *t, json_t *o, const struct place *p, struct err *e)
{
    struct buf map = { 0 };
    struct str s;
    int rc = field_str(o, "precompiled_charsmap", "", &s, p, e);

    if (rc == OK && read_base64(s, &map) != OK)
        rc = place_fail(p, e, "precompiled_charsmap is not base64");
    if (rc == OK && map.n && (rc = normal_check_charsmap(buf_str(&map), e)) != OK)
        err_wrap(e, "%s: %s", p->file, p->path);
    if (rc == OK && map.n)
        normal_add(&t->normal,
                   (struct normal_step){ .kind = NORMAL_CHARSMAP, .text = map.p, .n_text = map.n });
    else buf_release(&map);
    return rc;
}

static int read_bert(json_t *o, struct normal_step *s, const struct place *p, struct err *e)
{
    int rc;

    if ((rc = field_bool(o, "clean_text", true, &s->clean, p, e)) != OK ||
        (rc = field_bool(o, "handle_chinese_chars", true, &s->cjk, p, e)) != OK ||
        (rc = field_bool(o, "lowercase", true, &s->lower, p, e)) != OK)
        return rc;
    return field_bool(o, "strip_accents", s->lower, &s->accents, p, e);
}

static int read_strip(json_t *o, struct normal_step *s, const struct place *p, struct err *e)
{
    int rc = field_bool(o, "strip_left", true, &s->left, p, e);
    return rc == OK ? field_bool(o, "strip_right", true, &s->right, p, e) : rc;
}

static int read_prepend(json_t *o, struct normal_step *s, const struct place *p, struct err *e)
{
    struct str text;
    int rc = field_str(o, "prepend", "", &text, p, e);

    if (rc == OK) s->text = dup_text(text, &s->n_text);
    return rc;
}

int tokjson_normalizer(struct tokenizer *t, json_t *o, const struct place *p, int depth,
                       struct err *e)
{
    static const struct {
        const char *name;
        enum normal_kind kind;
    } kinds[] = {
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
    };
    struct normal_step s = { 0 };
    struct str type = type_of(o);
    size_t i = 0, n = sizeof kinds / sizeof *kinds;
    int rc = OK;

    if (str_is(type, "Sequence"))
        return read_sequence(t, o, "normalizers", p, depth, tokjson_normalizer, e);
    if (t->normal.n_steps >= MAX_STEPS) return place_fail(p, e, "too many steps");
    if (str_is(type, "Precompiled")) return read_charsmap(t, o, p, e);
    while (i < n && !str_is(type, kinds[i].name)) i++;
    if (i == n)
        return place_fail(p, e, "'%.*s' is no normalizer tern knows", STR_ARG(str_take(type, 60)));
    s.kind = kinds[i].kind;
    if (s.kind == NORMAL_STRIP) rc = read_strip(o, &s, p, e);
    if (s.kind == NORMAL_PREPEND) rc = read_prepend(o, &s, p, e);
    if (s.kind == NORMAL_REPLACE) rc = read_replace(o, &s, p, e);
    if (s.kind == NORMAL_BERT) rc = read_bert(o, &s, p, e);
    normal_add(&t->normal, s); /* also on failure: the chain frees it */
    return rc;
}

/* ---- pre-tokenizers ---- */

static int read_behavior(json_t *o, enum split_behavior def, enum split_behavior *out,
                         const struct place *p, struct err *e)
{
    static const char *const names[] = { "Removed", "Isolated", "MergedWithPrevious",
                                         "MergedWithNext", "Contiguous" };
    struct str s;
    int rc = field_str(o, "behavior", NULL, &s, p, e);

    *out = def;
    if (rc != OK || !s.p) return rc;
    for (int i = 0; i < 5; i++)
        if (str_is(s, names[i])) {
            *out = (enum split_behavior)i;
            return OK;
        }
    return place_fail(p, e, "'%.*s' is no behavior", STR_ARG(str_take(s, 60)));
}

static int read_split(json_t *o, struct split_step *s, const struct place *p, struct err *e)
{
    int rc;

    if ((rc = read_behavior(o, SPLIT_ISOLATED, &s->behavior, p, e)) != OK ||
        (rc = field_bool(o, "invert", false, &s->invert, p, e)) != OK ||
        (rc = read_pattern(o, &s->text, &s->n_text, &s->regex, p, e)) != OK)
        return rc;
    s->kind = s->regex ? SPLIT_REGEX : SPLIT_TEXT;
    return OK;
}

static int read_bytelevel(json_t *o, struct split_step *s, const struct place *p, struct err *e)
{
    bool use_regex;
    int rc;

    s->kind = SPLIT_BYTES;
    if ((rc = field_bool(o, "add_prefix_space", true, &s->prefix_space, p, e)) != OK ||
        (rc = field_bool(o, "use_regex", true, &use_regex, p, e)) != OK)
        return rc;
    return use_regex ? regex_open(&s->regex, str_c(scan_gpt2_pattern), e) : OK;
}

static int read_metaspace(json_t *o, struct split_step *s, const struct place *p, struct err *e)
{
    struct str mark, scheme;
    bool prefix;
    int rc;

    s->kind = SPLIT_METASPACE;
    s->behavior = SPLIT_WITH_NEXT;
    if ((rc = field_str(o, "replacement", "\xe2\x96\x81", &mark, p, e)) != OK ||
        (rc = field_bool(o, "add_prefix_space", true, &prefix, p, e)) != OK ||
        (rc = field_str(o, "prepend_scheme", prefix ? "always" : "never", &scheme, p, e)) != OK ||
        (rc = field_bool(o, "split", true, &s->cut, p, e)) != OK)
        return rc;
    s->prepend = str_is(scheme, "always")  ? PREPEND_ALWAYS
                 : str_is(scheme, "first") ? PREPEND_FIRST
                                           : PREPEND_NEVER;
    s->text = dup_text(mark, &s->n_text);
    return OK;
}

static int read_digits(json_t *o, struct split_step *s, const struct place *p, struct err *e)
{
    bool single;
    int rc = field_bool(o, "individual_digits", false, &single, p, e);

    s->kind = SPLIT_CLASS;
    s->in_class = char_is_digit;
    s->behavior = single ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
    return rc;
}

static int read_punctuation(json_t *o, struct split_step *s, const struct place *p, struct err *e)
{
    s->kind = SPLIT_CLASS;
    s->in_class = char_is_punct;
    return read_behavior(o, SPLIT_ISOLATED, &s->behavior, p, e);
}

static int read_delimiter(json_t *o, struct split_step *s, const struct place *p, struct err *e)
{
    struct str c;
    int rc = field_str(o, "delimiter", " ", &c, p, e);

    s->kind = SPLIT_CHAR;
    s->behavior = SPLIT_REMOVED;
    if (rc == OK && c.n) utf8_next(c, &s->ch);
    return rc;
}

static int read_length(json_t *o, struct split_step *s, const struct place *p, struct err *e)
{
    int64_t n;
    int rc = field_int(o, "length", 5, &n, p, e);

    s->kind = SPLIT_LENGTH;
    s->length = n < 1 ? 1 : n > 1 << 30 ? 1 << 30 : (int)n;
    return rc;
}

static int read_whitespace_split(json_t *o, struct split_step *s, const struct place *p,
                                 struct err *e)
{
    (void)o, (void)p, (void)e;
    s->kind = SPLIT_CLASS;
    s->behavior = SPLIT_REMOVED;
    s->in_class = char_is_space;
    return OK;
}

/* Only what the pattern matches is kept. */
static int only_matches(struct split_step *s, struct str pattern, struct err *e)
{
    s->kind = SPLIT_REGEX;
    s->behavior = SPLIT_REMOVED;
    s->invert = true;
    return regex_open(&s->regex, pattern, e);
}

static int read_whitespace(json_t *o, struct split_step *s, const struct place *p, struct err *e)
{
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}"
    (void)o, (void)p;
    return only_matches(s, STR("[" WORD "]+|[^" WORD "\\s]+"), e);
}

static int read_scripts(json_t *o, struct split_step *s, const struct place *p, struct err *e)
{
    struct buf pattern = { 0 };
    int rc;

    (void)o, (void)p;
    scripts_pattern(&pattern);
    rc = only_matches(s, buf_str(&pattern), e);
    buf_release(&pattern);
    return rc;
}

int tokjson_splitter(struct tokenizer *t, json_t *o, const struct place *p, int depth,
                     struct err *e)
{
    static const struct {
        const char *name;
        int (*read)(json_t *, struct split_step *, const struct place *, struct err *);
    } kinds[] = {
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
    struct split_step s = { .behavior = SPLIT_ISOLATED };
    struct str type = type_of(o);
    size_t i = 0, n = sizeof kinds / sizeof *kinds;
    int rc;

    if (str_is(type, "Sequence"))
        return read_sequence(t, o, "pretokenizers", p, depth, tokjson_splitter, e);
    if (t->split.n_steps >= MAX_STEPS) return place_fail(p, e, "too many steps");
    while (i < n && !str_is(type, kinds[i].name)) i++;
    if (i == n)
        return place_fail(p, e, "'%.*s' is no pre-tokenizer tern knows",
                          STR_ARG(str_take(type, 60)));
    rc = kinds[i].read(o, &s, p, e);
    split_add(&t->split, s);                          /* also on failure: the chain frees it */
    if (rc == OK && str_is(type, "BertPreTokenizer")) /* at spaces, then at punctuation */
        split_add(&t->split, (struct split_step){ .kind = SPLIT_CLASS,
                                                  .behavior = SPLIT_ISOLATED,
                                                  .in_class = char_is_punct });
    return rc;
}

/* ---- post-processors ---- */

static int add_id(struct tokenizer *t, bool behind, int64_t id, const struct place *p,
                  struct err *e)
{
    int *n = behind ? &t->n_after : &t->n_before;

    if (id < 0 || id >= VOCAB_MAX_ID)
        return place_fail(p, e, "id %lld, expected 0 to %d", (long long)id, VOCAB_MAX_ID - 1);
    if (*n == MAX_POST) return place_fail(p, e, "more than %d tokens on one side", MAX_POST);
    (behind ? t->after : t->before)[(*n)++] = (int32_t)id;
    return OK;
}

/* ["[CLS]", 101] */
static int read_named_id(struct tokenizer *t, json_t *o, const char *key, bool behind,
                         const struct place *p, struct err *e)
{
    json_t *id = json_array_get(json_object_get(o, key), 1);

    if (!json_is_integer(id)) return place_fail(p, e, "'%s' is not a token and its id", key);
    return add_id(t, behind, json_integer_value(id), p, e);
}

/* "[CLS] $A [SEP] $B:1 [SEP]:1". A form that is not of this kind is left unknown: then two texts
 * are not read. */
static void read_pair_form(struct tokenizer *t, json_t *pair, json_t *tokens)
{
    struct pair_form f = { .second = -1 };
    int part = 0;

    for (size_t i = 0; i < json_array_size(pair); i++) {
        json_t *x = json_array_get(pair, i), *seq = json_object_get(x, "Sequence"),
               *tok = json_object_get(x, "SpecialToken");
        const char *name = json_string_value(json_object_get(tok, "id"));
        json_t *ids = json_object_get(json_object_get(tokens, name ? name : ""), "ids");
        bool later = json_integer_value(json_object_get(seq ? seq : tok, "type_id")) == 1;
        int32_t *to = part == 0 ? f.front : part == 1 ? f.mid : f.end;
        int *n = part == 0 ? &f.n_front : part == 1 ? &f.n_mid : &f.n_end;

        if (later && f.second < 0 && part == 1) f.second = f.n_mid;
        if (later != (f.second >= 0)) return;
        if (seq && ++part > 2) return;
        for (size_t k = 0; !seq && k < json_array_size(ids); k++) {
            json_t *id = json_array_get(ids, k);
            if (*n == MAX_POST || json_integer_value(id) < 0 ||
                json_integer_value(id) >= VOCAB_MAX_ID)
                return;
            to[(*n)++] = (int32_t)json_integer_value(id);
        }
    }
    f.known = part == 2;
    if (f.known) t->pair = f;
}

/* [CLS] a [SEP] b [SEP]; Roberta has </s></s> between them, and one type. */
static void named_pair_form(struct tokenizer *t, bool roberta)
{
    struct pair_form f = {
        .known = true, .n_front = 1, .n_mid = 1 + roberta, .n_end = 1, .second = roberta ? -1 : 1
    };

    f.front[0] = t->before[0];
    f.mid[0] = f.mid[1] = f.end[0] = t->after[0];
    t->pair = f;
}

static int read_template(struct tokenizer *t, json_t *o, const struct place *p, struct err *e)
{
    json_t *single = json_object_get(o, "single"), *tokens = json_object_get(o, "special_tokens");
    bool behind = false;
    int rc = OK;

    if (!json_is_array(single)) return place_fail(p, e, "'single' is not a list");
    for (size_t i = 0; i < json_array_size(single) && rc == OK; i++) {
        json_t *x = json_array_get(single, i),
               *name = json_object_get(json_object_get(x, "SpecialToken"), "id");
        if (json_object_get(x, "Sequence")) {
            behind = true;
            continue;
        }
        if (!json_is_string(name))
            return place_fail(p, e, "single[%zu] is neither a token nor a sequence", i);
        json_t *ids = json_object_get(json_object_get(tokens, json_string_value(name)), "ids");
        if (!json_is_array(ids))
            return place_fail(p, e, "special_tokens has no '%.60s'", json_string_value(name));
        for (size_t k = 0; k < json_array_size(ids) && rc == OK; k++) {
            json_t *id = json_array_get(ids, k);
            rc = add_id(t, behind, json_is_integer(id) ? json_integer_value(id) : -1, p, e);
        }
    }
    if (rc == OK) read_pair_form(t, json_object_get(o, "pair"), tokens);
    return rc;
}

int tokjson_post(struct tokenizer *t, json_t *o, const struct place *p, int depth, struct err *e)
{
    struct str type = type_of(o);
    int rc;

    if (str_is(type, "Sequence"))
        return read_sequence(t, o, "processors", p, depth, tokjson_post, e);
    if (str_is(type, "ByteLevel")) return OK; /* about offsets only */
    if (str_is(type, "TemplateProcessing")) return read_template(t, o, p, e);
    if (!str_is(type, "BertProcessing") && !str_is(type, "RobertaProcessing"))
        return place_fail(p, e, "'%.*s' is no post-processor tern knows",
                          STR_ARG(str_take(type, 60)));
    if ((rc = read_named_id(t, o, "cls", false, p, e)) != OK ||
        (rc = read_named_id(t, o, "sep", true, p, e)) != OK)
        return rc;
    named_pair_form(t, str_is(type, "RobertaProcessing"));
    return OK;
}

/* ---- decoders ---- */

static int read_text(json_t *o, const char *key, const char *def, struct decode_step *s,
                     const struct place *p, struct err *e)
{
    struct str text;
    int rc = field_str(o, key, def, &text, p, e);

    if (rc == OK) s->text = dup_text(text, &s->n_text);
    return rc;
}

static int read_decode_metaspace(json_t *o, struct decode_step *s, const struct place *p,
                                 struct err *e)
{
    struct str scheme;
    bool prefix;
    int rc;

    if ((rc = read_text(o, "replacement", "\xe2\x96\x81", s, p, e)) != OK ||
        (rc = field_bool(o, "add_prefix_space", true, &prefix, p, e)) != OK ||
        (rc = field_str(o, "prepend_scheme", prefix ? "always" : "never", &scheme, p, e)) != OK)
        return rc;
    s->keep_first = str_is(scheme, "never");
    return OK;
}

static int read_decode_strip(json_t *o, struct decode_step *s, const struct place *p, struct err *e)
{
    int64_t start, stop;
    int rc;

    if ((rc = read_text(o, "content", " ", s, p, e)) != OK ||
        (rc = field_int(o, "start", 0, &start, p, e)) != OK ||
        (rc = field_int(o, "stop", 0, &stop, p, e)) != OK)
        return rc;
    s->start = start < 0 ? 0 : start > 1 << 20 ? 1 << 20 : (int)start;
    s->stop = stop < 0 ? 0 : stop > 1 << 20 ? 1 << 20 : (int)stop;
    return OK;
}

int tokjson_decoder(struct tokenizer *t, json_t *o, const struct place *p, int depth, struct err *e)
{
    static const struct {
        const char *name;
        enum decode_kind kind;
    } kinds[] = {
        { "ByteLevel", DECODE_BYTES },     { "Metaspace", DECODE_METASPACE },
        { "WordPiece", DECODE_WORDPIECE }, { "ByteFallback", DECODE_FALLBACK },
        { "Fuse", DECODE_FUSE },           { "Strip", DECODE_STRIP },
        { "Replace", DECODE_REPLACE },     { "BPEDecoder", DECODE_SUFFIX },
    };
    struct decode_step s = { 0 };
    struct str type = type_of(o);
    size_t i = 0, n = sizeof kinds / sizeof *kinds;
    int rc = OK;

    if (str_is(type, "Sequence"))
        return read_sequence(t, o, "decoders", p, depth, tokjson_decoder, e);
    if (t->decode.n_steps >= MAX_STEPS) return place_fail(p, e, "too many steps");
    while (i < n && !str_is(type, kinds[i].name)) i++;
    if (i == n)
        return place_fail(p, e, "'%.*s' is no decoder tern knows", STR_ARG(str_take(type, 60)));
    s.kind = kinds[i].kind;
    if (s.kind == DECODE_METASPACE) rc = read_decode_metaspace(o, &s, p, e);
    if (s.kind == DECODE_STRIP) rc = read_decode_strip(o, &s, p, e);
    if (s.kind == DECODE_REPLACE) rc = read_replace(o, &s.replace, p, e);
    if (s.kind == DECODE_SUFFIX) rc = read_text(o, "suffix", "</w>", &s, p, e);
    if (s.kind == DECODE_WORDPIECE && (rc = read_text(o, "prefix", "##", &s, p, e)) == OK)
        rc = field_bool(o, "cleanup", true, &s.cleanup, p, e);
    decode_add(&t->decode, s); /* also on failure: the chain frees it */
    return rc;
}
