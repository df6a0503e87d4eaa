/* pretok_styles.c - the pre-tokenizers that GGUF files name in tokenizer.ggml.pre.
 *
 * A GGUF file does not hold the splitting pattern of a model, only the name of a style. Names and
 * patterns are those of llama.cpp, which defines the key; each pattern is written as the model's
 * own tokenizer.json has it, so that regex_scan.c recognizes it. "default" is first and stands in
 * for unknown names. */
#include "token/pretok.h"

#include "base/log.h"

enum { MAX_PATTERNS = 6 }; /* of one style */

/* Building blocks of the patterns; names as OpenAI's tiktoken has them where it has them. */
#define ENDINGS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define ENDINGS_BOTH "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
#define LEAD "[^\\r\\n\\p{L}\\p{N}]?"
#define SPACE_TAIL "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define CL100K(digits) \
    ENDINGS_BOTH "|" LEAD "\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACE_TAIL
#define BIG(more) "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}" more "]"
#define SMALL(more) "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}" more "]"
#define CASED(end, more) \
    LEAD BIG(more) "*" SMALL(more) "+" end "|" LEAD BIG(more) "+" SMALL(more) "*" end
#define O200K(end, digits) CASED(end, "") "|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" SPACE_TAIL
#define NOT_HAN "&&[^\\p{Han}]"
#define BLOOM \
    " ?[^(\\s|.,!?\xe2\x80\xa6\xe3\x80\x82\xef\xbc\x8c\xe3\x80\x81\xe0\xa5\xa4\xdb\x94\xd8\x8c)]+"
#define DEEPSEEK3_WORDS                                                               \
    "[!\"#$%&'()*+,\\-./"                                                             \
    ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|" \
    " ?[\\p{P}\\p{S}]+[\\r\\n]*" SPACE_TAIL
/* clang-format off */
#define YOUTU_SCRIPTS \
    "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\\x{3040}-ゟ゠-ヿ]+"
/* clang-format on */
#define HAN_KANA "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+"
#define CJK_HANGUL "[\\x{4e00}-\\x{9fa5}\\x{0800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
/* Letters of cased alphabets, as DeepSeek-LLM lists them. */
#define DEEPSEEK_LETTERS                                                                        \
    "\\s?[A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"         \
    "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}"      \
    "\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}"               \
    "\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}" \
    "\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}"              \
    "\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}"              \
    "\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}"      \
    "\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}"     \
    "\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}"              \
    "\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}"      \
    "\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}"      \
    "\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}"                \
    "\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}"               \
    "\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}"              \
    "\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}"              \
    "\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}"          \
    "\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}"      \
    "\\x{1e900}-\\x{1e943}]+"

static const struct style {
    const char *names; /* with a space before and after each */
    bool ignore_merges;
    const char *patterns[MAX_PATTERNS]; /* one PRETOK_REGEX step each, in this order */
} styles[] = {
    { " default ", false, { "[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]" } },
    { " llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano ",
      true,
      { CL100K("\\p{N}{1,3}") } },
    { " dbrx smaug-bpe chatglm-bpe glm4 minimax-m2 cl100k ", false, { CL100K("\\p{N}{1,3}") } },
    { " qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 megrez hunyuan solar-open grok-2 ",
      false,
      { CL100K("\\p{N}") } },
    { " qwen35 ",
      false,
      { ENDINGS_BOTH "|" LEAD
                     "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" SPACE_TAIL } },
    { " gpt-2 gpt2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe "
      "gigachat a.x-4.0"
      " mellum modern-bert mpt olmo jais exaone4 trillion granite-docling ",
      false,
      { GPT2 } },
    { " starcoder refact command-r smollm codeshell exaone minerva-7b granite ",
      false,
      { "\\p{N}", GPT2 } },
    { " falcon ", false, { "[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]" } },
    { " deepseek-llm ",
      false,
      { "[\\r\\n]", DEEPSEEK_LETTERS,
        "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+",
        "\\s+$", CJK_HANGUL, "\\p{N}+" } },
    { " deepseek-coder ",
      false,
      { "[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", CJK_HANGUL, "\\p{N}" } },
    { " deepseek-v3 hunyuan-dense joyai-llm ",
      false,
      { "\\p{N}{1,3}", HAN_KANA, DEEPSEEK3_WORDS } },
    { " youtu ", false, { YOUTU_SCRIPTS, O200K(ENDINGS "?", "\\p{N}") } },
    { " bloom poro-chat gpt3-finnish ", false, { BLOOM } },
    { " viking ", false, { BLOOM, "\\p{N}" } },
    { " tekken ", true, { O200K("", "\\p{N}") } },
    { " gpt-4o llama4 kanana2 o200k ", true, { O200K(ENDINGS "?", "\\p{N}{1,3}") } },
    { " superbpe ", false, { "\\p{N}+", "(?=(\\d{3})+(?!\\d))" } },
    { " bailingmoe bailingmoe2 llada-moe ",
      false,
      { "'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|" LEAD
        "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]|"
        "\\s+(?!\\S)|\\s+" } },
    { " seed-coder ",
      false,
      { ENDINGS_BOTH "|" LEAD "\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+" SPACE_TAIL } },
    { " kimi-k2 ",
      true,
      { "[\\p{Han}]+|" CASED(ENDINGS "?",
                             NOT_HAN) "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACE_TAIL } },
    { " jais-2 ",
      false,
      { ENDINGS_BOTH
        "|" LEAD "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s{512}(?!\\S)|"
        "\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)|\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)"
        "|\\s{4}(?!\\S)|"
        "\\s{1,2}(?!\\S)|\\s{1}" } },
};

/* Looks for " name " in the lists of names. */
static const struct style *find_style(struct str name)
{
    char key[64];

    if (!name.n || name.n > sizeof key - 3 || memchr(name.p, ' ', name.n) ||
        memchr(name.p, 0, name.n))
        return NULL;
    key[0] = ' ';
    memcpy(key + 1, name.p, name.n);
    memcpy(key + 1 + name.n, " ", 2);
    for (size_t i = 0; i < sizeof styles / sizeof *styles; i++)
        if (strstr(styles[i].names, key)) return &styles[i];
    return NULL;
}

int pretok_add_style(struct pretok *p, struct str name, bool *ignore_merges, struct err *e)
{
    const struct style *style = find_style(name);
    int rc = OK;

    if (!style) {
        log_warn("tokenizer.ggml.pre '%.*s' is not known: the default pre-tokenizer is used, token "
                 "ids may differ from the model's own",
                 STR_ARG(str_take(name, 60)));
        style = &styles[0];
    }
    *ignore_merges = style->ignore_merges;
    for (int i = 0; i < MAX_PATTERNS && style->patterns[i] && rc == OK; i++) {
        struct pretok_step step = { .kind = PRETOK_REGEX, .behavior = SPLIT_ISOLATED };
        rc = regex_open(&step.regex, str_c(style->patterns[i]), e);
        if (rc == OK) rc = pretok_add_step(p, step, e);
    }
    if (rc != OK) return rc;
    return pretok_add_step(
        p, (struct pretok_step){ .kind = PRETOK_BYTES, .behavior = SPLIT_ISOLATED }, e);
}

bool pretok_style_composes(struct str name)
{
    return str_is(name, "qwen2") || str_is(name, "qwen35") || str_is(name, "command-r") ||
           str_is(name, "olmo") || str_is(name, "mpt");
}

/* ---- from steps to a name ---- */

static bool is_class_step(const struct pretok_step *s, char_class *c)
{
    return s->kind == PRETOK_CLASS && s->in_class == c;
}

/* ByteLevel with its own pattern, which is GPT-2's. */
static bool is_gpt2_step(const struct pretok_step *s)
{
    return s->kind == PRETOK_BYTES && s->regex && !s->prefix_space;
}

static bool is_deepseek3(const struct pretok_step *v)
{
    return v[0].kind == PRETOK_REGEX && v[2].kind == PRETOK_REGEX &&
           str_is(regex_pattern(v[0].regex), "\\p{N}{1,3}") &&
           str_starts(regex_pattern(v[2].regex), STR("[!\"#$%"));
}

const char *pretok_find_style(const struct pretok *p, bool ignore_merges)
{
    const struct pretok_step *v = p->steps;
    struct scan scan;

    if (p->n_steps == 1 && is_gpt2_step(v)) return "gpt-2";
    if (p->n_steps == 2 && is_class_step(v, char_is_digit) && v->behavior == SPLIT_ISOLATED &&
        is_gpt2_step(v + 1))
        return "smollm";
    if (p->n_steps == 4 && is_class_step(v, char_is_punct) && is_gpt2_step(v + 1)) return "falcon";
    if (p->n_steps == 4 && is_deepseek3(v)) return "deepseek-v3";
    if (p->n_steps != 2 || v->kind != PRETOK_REGEX || v[1].kind != PRETOK_BYTES || v[1].regex)
        return NULL;
    scan = scan_for(regex_pattern(v->regex));
    if (!scan.known) return NULL;
    if (scan.style == SCAN_CL100K)
        return scan.max_digits == 1 ? "qwen2" : ignore_merges ? "llama-bpe" : "dbrx";
    if (scan.style == SCAN_O200K) return scan.contractions ? "gpt-4o" : "tekken";
    return "gpt-2";
}
