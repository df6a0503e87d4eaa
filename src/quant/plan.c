/* plan.c - the mixes and their rules, after llama.cpp's llama_tensor_get_type.
 *
 * The type of a tensor is decided in this order:
 *     1. small and sensitive tensors keep their type (stays_unquantized)
 *     2. a rule of the user (--tensor-type), then --output-type and --embd-type
 *     3. the rules of the mix (choose_type): output head, values, down projections, ...
 *     4. rows that are not a multiple of the block size fall back (find_fallback) */
#include "quant/plan.h"

#include "kernel/quant.h"
#include "quant/rtn.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/mem.h"

#include <ctype.h>
#include <stdio.h>

/* Bits are bits per weight of the main type. */
static const struct plan_mix mixes[] = {
    { "Q2_K", DT_Q2_K, 10,
      "2.6 bits; attn_v, ffn_down and attn_output in Q3_K or more; large loss of quality" },
    { "Q2_K_S", DT_Q2_K, 21, "2.6 bits, the first ffn_down in Q4_K" },
    { "Q3_K_S", DT_Q3_K, 11, "3.4 bits" },
    { "Q3_K_M", DT_Q3_K, 12, "3.4 bits, attn_v, ffn_down and attn_output in Q4_K" },
    { "Q3_K_L", DT_Q3_K, 13, "3.4 bits, attn_v, ffn_down and attn_output in Q5_K" },
    { "Q4_K_S", DT_Q4_K, 14, "4.5 bits, the first attn_v and ffn_down in Q5_K" },
    { "Q4_K_M", DT_Q4_K, 15, "4.5 bits, half of attn_v and ffn_down in Q6_K; the usual choice" },
    { "Q5_K_S", DT_Q5_K, 16, "5.5 bits" },
    { "Q5_K_M", DT_Q5_K, 17, "5.5 bits, half of attn_v and ffn_down in Q6_K; close to F16" },
    { "Q6_K", DT_Q6_K, 18, "6.6 bits" },
    { "Q8_0", DT_Q8_0, 7, "8.5 bits; practically equal to F16" },
    { "Q4_0", DT_Q4_0, 2, "4.5 bits, the oldest format, supported by all programs" },
    { "Q4_1", DT_Q4_1, 3, "5 bits" },
    { "Q5_0", DT_Q5_0, 8, "5.5 bits" },
    { "Q5_1", DT_Q5_1, 9, "6 bits" },
    { "IQ4_NL", DT_IQ4_NL, 25,
      "4.5 bits, non-linear levels; also for rows that are not a multiple of 256" },
    { "IQ4_XS", DT_IQ4_XS, 30, "4.25 bits, non-linear levels; the best quality at this size" },
    { "TQ1_0", DT_TQ1_0, 36,
      "1.7 bits, ternary; for models trained with ternary weights (BitNet)" },
    { "TQ2_0", DT_TQ2_0, 37, "2.1 bits, ternary; faster than TQ1_0" },
    { "MXFP4", DT_MXFP4, -1, "4.25 bits, E2M1 floats with a power-of-two scale per 32 weights" },
    { "MXFP4_MOE", DT_MXFP4, 38, "experts in MXFP4, everything else in Q8_0" },
    { "F16", DT_F16, 1, "16 bits" },
    { "BF16", DT_BF16, 32, "16 bits, with the range of F32" },
    { "F32", DT_F32, 0, "32 bits" },
};

const struct plan_mix *plan_mix_at(int i)
{
    return i >= 0 && i < (int)(sizeof mixes / sizeof *mixes) ? &mixes[i] : NULL;
}

/* Compares without regard to the case of a; b is upper case. */
static bool equals_any_case(struct str a, const char *b)
{
    if (a.n != strlen(b)) return false;
    for (size_t i = 0; i < a.n; i++)
        if (toupper((unsigned char)a.p[i]) != b[i]) return false;
    return true;
}

/* "Q4_K" and the like stand for the medium mix. */
const struct plan_mix *plan_mix_by_name(struct str name)
{
    static const char *const other[][2] = { { "Q3_K", "Q3_K_M" },
                                            { "Q4_K", "Q4_K_M" },
                                            { "Q5_K", "Q5_K_M" } };

    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (equals_any_case(name, other[i][0])) name = str_c(other[i][1]);
    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i++)
        if (equals_any_case(name, mixes[i].name)) return &mixes[i];
    return NULL;
}

/* ---- rules ---- */

struct plan_rule {
    struct plan_rule *next;
    pcre2_code *code;
    pcre2_match_data *match;
    enum dtype type;
};

static void free_rule(struct plan_rule *r)
{
    pcre2_code_free(r->code);
    pcre2_match_data_free(r->match);
    mem_free(r);
}

/* The error of a pattern that PCRE2 does not compile. */
static int fail_pattern(const char *text, int code, size_t where, struct err *e)
{
    PCRE2_UCHAR why[120] = { 0 };

    if (code == PCRE2_ERROR_HEAP_FAILED) return err_nomem(e, "a pattern");
    pcre2_get_error_message(code, why, sizeof why);
    return err_set(e, E_INVALID, "--tensor-type %s: invalid pattern: %s at character %zu", text,
                   (const char *)why, where);
}

int plan_rule_add(struct plan_rule **list, const char *text, struct err *e)
{
    const char *eq = strrchr(text, '=');
    struct plan_rule *r, **at = list;
    enum dtype type;
    PCRE2_SIZE where = 0;
    int code = 0;

    if (!eq || eq == text || !eq[1])
        return err_set(e, E_INVALID, "--tensor-type '%s': must be PATTERN=TYPE", text);
    type = dtype_by_name(str_c(eq + 1));
    if (type == DT_NONE || !rtn_can(type))
        return err_set(e, E_INVALID,
                       "--tensor-type %s: '%s' is not a type that tern can write; "
                       "`tern quantize --types` lists them",
                       text, eq + 1);
    if (!(r = mem_new(struct plan_rule))) return err_nomem(e, "a rule");
    r->type = type;
    r->code = pcre2_compile((PCRE2_SPTR)text, (PCRE2_SIZE)(eq - text), PCRE2_NEVER_BACKSLASH_C,
                            &code, &where, NULL);
    if (r->code) r->match = pcre2_match_data_create_from_pattern(r->code, NULL);
    if (!r->code || !r->match) {
        int rc = r->code ? err_nomem(e, "a pattern") : fail_pattern(text, code, (size_t)where, e);
        free_rule(r);
        return rc;
    }
    while (*at) at = &(*at)->next;
    *at = r;
    return OK;
}

void plan_rules_free(struct plan_rule *list)
{
    while (list) {
        struct plan_rule *next = list->next;
        free_rule(list);
        list = next;
    }
}

/* *out: the first rule that matches, or NULL. */
static int find_rule(const struct plan_rule **out, const struct plan_rule *r, struct str name,
                     struct err *e)
{
    *out = NULL;
    for (; r; r = r->next) {
        int rc = pcre2_match(r->code, (PCRE2_SPTR)name.p, name.n, 0, 0, r->match, NULL);
        if (rc == PCRE2_ERROR_NOMEMORY || rc == PCRE2_ERROR_HEAPLIMIT)
            return err_nomem(e, "matching a pattern");
        if (rc < 0) continue; /* no match, or too many steps of backtracking */
        *out = r;
        break;
    }
    return OK;
}

/* ---- rules of the mixes ---- */

/* What the rules depend on. */
struct shape {
    const struct plan_model *m;
    const struct plan_opt *opt;
    const char *mix;
    bool tied;       /* no output.weight: the embedding is the output head */
    int n_v, n_down; /* number of attn_v (or attn_qkv) and ffn_down tensors */
};

/* "blk.12.attn_v.weight" -> layer 12 and "attn_v.weight"; other names: layer -1 and the name. */
static struct str split_name(struct str name, int *layer)
{
    size_t n = 4;
    *layer = -1;
    if (!str_starts(name, STR("blk."))) return name;
    *layer = 0;
    while (n < name.n && name.p[n] >= '0' && name.p[n] <= '9' && *layer < 100000)
        *layer = *layer * 10 + (name.p[n++] - '0');
    return str_skip(name, n + 1);
}

/* Values, alone or packed with queries and keys. */
static bool is_v(struct str part)
{
    return str_is(part, "attn_v.weight") || str_is(part, "attn_qkv.weight");
}
/* Down projections, also those of experts. */
static bool is_down(struct str part)
{
    return str_starts(part, STR("ffn_down")) && str_ends(part, STR(".weight"));
}

/* llama.cpp's use_more_bits: the first and last eighth of the layers, and every third between. */
static bool use_more_bits(int i, int n)
{
    return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
}

/* The mix is one of the space-separated names. */
static bool mix_is(const struct shape *s, const char *list)
{
    size_t n = strlen(s->mix);
    for (const char *p = list; (p = strstr(p, s->mix)); p += n)
        if ((p == list || p[-1] == ' ') && (p[n] == ' ' || !p[n])) return true;
    return false;
}

/* The output head: Q6_K, or Q8_0 where that does not fit. */
static enum dtype choose_output(const struct shape *s, enum dtype t, const struct plan_item *it,
                                const char **why)
{
    *why = "output head";
    if (s->m->falcon || it->cols % dtype_info((int)t)->block) return DT_Q8_0;
    return t == DT_Q8_0 ? t : DT_Q6_K;
}

/* Attention values. n_gqa >= 4: they are small, so more bits are cheap. */
static enum dtype choose_v(const struct shape *s, enum dtype t, int i)
{
    if (s->m->n_experts == 8) return DT_Q8_0;
    if (mix_is(s, "Q2_K")) return s->m->n_gqa >= 4 ? DT_Q4_K : DT_Q3_K;
    if (mix_is(s, "Q2_K_S")) return s->m->n_gqa >= 4 ? DT_Q4_K : t;
    if (mix_is(s, "Q3_K_M")) return i < 2 ? DT_Q5_K : DT_Q4_K;
    if (mix_is(s, "Q3_K_L")) return DT_Q5_K;
    if (mix_is(s, "IQ4_NL IQ4_XS")) return s->m->n_gqa >= 4 ? DT_Q5_K : t;
    if (mix_is(s, "Q4_K_M Q5_K_M")) return use_more_bits(i, s->n_v) ? DT_Q6_K : t;
    if (mix_is(s, "Q4_K_S")) return i < 4 ? DT_Q5_K : t;
    return t;
}

/* Down projections; i counts them by layer. */
static enum dtype choose_down(const struct shape *s, enum dtype t, int i)
{
    int n = s->n_down;
    bool early = i < n / 8, more = use_more_bits(i, n);

    if (mix_is(s, "Q2_K")) return DT_Q3_K;
    if (mix_is(s, "Q2_K_S")) return early ? DT_Q4_K : t;
    if (mix_is(s, "Q3_K_M"))
        return i < n / 16 ? DT_Q5_K : !s->m->falcon || more ? DT_Q4_K : DT_Q3_K;
    if (mix_is(s, "Q3_K_L")) return s->m->falcon ? DT_Q4_K : DT_Q5_K;
    if (mix_is(s, "Q4_K_M") && s->m->falcon) return i < n / 16 ? DT_Q6_K : more ? DT_Q5_K : DT_Q4_K;
    if (mix_is(s, "Q4_K_M Q5_K_M")) return more ? DT_Q6_K : t;
    if (mix_is(s, "IQ4_NL IQ4_XS")) return early && !s->opt->has_imatrix ? DT_Q5_K : t;
    if (mix_is(s, "Q4_K_S")) return early && !s->m->falcon ? DT_Q5_K : t;
    if (mix_is(s, "Q4_0 Q5_0") && early && s->opt->has_imatrix)
        return t == DT_Q4_0 ? DT_Q4_1 : DT_Q5_1;
    return t;
}

/* Output projections of attention. */
static enum dtype choose_attn_out(const struct shape *s, enum dtype t)
{
    if (s->m->falcon) return mix_is(s, "Q3_K_L") ? DT_Q4_K : t;
    if (s->m->n_experts == 8)
        return mix_is(s, "Q2_K Q3_K_S Q3_K_M IQ4_NL Q4_K_S Q4_K_M IQ4_XS") ? DT_Q5_K : t;
    return mix_is(s, "Q2_K")     ? DT_Q3_K
           : mix_is(s, "Q3_K_M") ? DT_Q4_K
           : mix_is(s, "Q3_K_L") ? DT_Q5_K
                                 : t;
}

/* The type of a matrix by the mix. rank: number of tensors of its kind in earlier layers. */
static enum dtype choose_type(const struct shape *s, const struct plan_item *it, int rank,
                              const char **why)
{
    enum dtype t = s->opt->mix->type;
    int layer;
    struct str name = it->from->name, part = split_name(name, &layer);
    bool experts = it->from->n_dims == 3 && it->from->dims[0] > 1;

    *why = "";
    if (s->opt->output != DT_NONE && str_is(name, "output.weight"))
        return *why = "requested", s->opt->output;
    if (s->opt->embd != DT_NONE && str_is(name, "token_embd.weight"))
        return *why = "requested", s->opt->embd;
    if (s->opt->pure || !dtype_info((int)t)->quantized) return t;
    if (str_is(name, "output.weight") || (s->tied && str_is(name, "token_embd.weight")))
        return choose_output(s, t, it, why);
    if (mix_is(s, "MXFP4_MOE")) return *why = experts ? "experts" : "", experts ? t : DT_Q8_0;
    if (str_is(name, "token_embd.weight"))
        return mix_is(s, "TQ1_0 TQ2_0") ? (*why = "embedding", DT_Q4_K) : t;
    *why = "more bits";
    if (str_is(part, "attn_v.weight")) return choose_v(s, t, rank);
    if (str_is(part, "attn_k.weight") && s->m->n_experts == 8) return DT_Q8_0;
    if (is_down(part)) return choose_down(s, t, rank);
    if (str_is(part, "attn_output.weight")) return choose_attn_out(s, t);
    if (str_is(part, "attn_qkv.weight"))
        return mix_is(s, "Q3_K_M Q3_K_L") ? DT_Q4_K
               : mix_is(s, "Q4_K_M")      ? DT_Q5_K
               : mix_is(s, "Q5_K_M")      ? DT_Q6_K
                                          : t;
    return t;
}

/* The type to use instead if rows are not a multiple of the block size of t. */
static enum dtype find_fallback(enum dtype t, int64_t cols)
{
    if (cols % dtype_info((int)t)->block == 0) return t;
    switch (t) {
    case DT_Q2_K:
    case DT_Q3_K:
    case DT_IQ4_XS: t = DT_IQ4_NL; break;
    case DT_TQ1_0:
    case DT_TQ2_0: t = DT_Q4_0; break;
    case DT_Q4_K: t = DT_Q5_0; break;
    case DT_Q5_K: t = DT_Q5_1; break;
    case DT_Q6_K: t = DT_Q8_0; break;
    default: t = DT_F16;
    }
    return cols % dtype_info((int)t)->block == 0 ? t : DT_F16;
}

/* Tensors that are never quantized: small and sensitive, or not operands of a matrix product. */
static bool stays_unquantized(struct str name, int n_dims)
{
    static const char *const parts[] = { "_norm.weight",   "ffn_gate_inp", "ssm_conv1d",
                                         "shortconv.conv", "ssm_x",        "ssm_dt",
                                         "time_mix_",      "attn_rel_b",   "pos_embd",
                                         "position_embd",  "token_types",  "rope_freqs",
                                         "rope_factors",   "cls." };
    if (n_dims < 2 || !str_ends(name, STR("weight"))) return true;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (str_find(name, str_c(parts[i])) >= 0) return true;
    return false;
}

/* ---- the plan ---- */

/* Decides the type of one tensor. */
static int plan_tensor(const struct shape *s, struct plan_item *it, int rank, struct err *e)
{
    const struct source_tensor *t = it->from;
    bool was_quantized = dtype_info((int)t->type)->quantized;
    const struct plan_rule *rule;
    enum dtype want;
    int rc;

    it->type = t->type;
    it->why = "unchanged";
    if (stays_unquantized(t->name, t->n_dims)) return OK;
    if ((rc = find_rule(&rule, s->opt->rules, t->name, e)) != OK) return rc;
    want = rule ? rule->type : choose_type(s, it, rank, &it->why);
    if (rule) it->why = "requested";
    else if (want == s->opt->mix->type) it->why = "";
    it->type = find_fallback(want, it->cols);
    if (it->type != want) it->why = "row size";
    if (it->type == t->type) return OK;
    if (!quant_can_decode(t->type))
        return err_set(e, E_UNSUPPORTED, "%s: tensor '%.*s' has type %s, which cannot be quantized",
                       s->m->path, STR_ARG(t->name), dtype_name((int)t->type));
    if (was_quantized && dtype_info((int)it->type)->quantized && !s->opt->requantize)
        return err_set(
            e, E_INVALID,
            "%s: tensor '%.*s' is quantized already (%s); quantizing it again loses more than "
            "quantizing the original; --requantize allows it",
            s->m->path, STR_ARG(t->name), dtype_name((int)t->type));
    return OK;
}

/* The integer value of key ARCH.NAME (of a list, its first element), or `other`. */
static int read_key_int(const struct source *src, const char *arch, const char *name, int other)
{
    char key[128];
    struct value v, first;
    uint64_t u;

    snprintf(key, sizeof key, "%s.%s", arch, name);
    if (!source_key(src, key, &v)) return other;
    if (v.kind == VALUE_LIST && value_at(&v, 0, &first)) v = first;
    return value_u64(&v, &u) && u < 1000000 ? (int)u : other;
}

/* Counts the tensors that the rules look at. */
static void fill_shape(struct shape *s, const struct plan *p)
{
    int layer;

    s->tied = true;
    for (int i = 0; i < p->n; i++) {
        struct str part = split_name(p->items[i].from->name, &layer);
        s->n_v += is_v(part);
        s->n_down += is_down(part);
        if (str_is(part, "output.weight")) s->tied = false;
    }
}

/* Number of tensors of the same kind (values, down projections) in earlier layers. */
static int find_rank(const struct plan *p, int i)
{
    int layer, other, rank = 0;
    struct str part = split_name(p->items[i].from->name, &layer);

    if (!is_v(part) && !is_down(part)) return 0;
    for (int j = 0; j < p->n; j++) {
        struct str q = split_name(p->items[j].from->name, &other);
        rank += other < layer && is_v(q) == is_v(part) && is_down(q) == is_down(part);
    }
    return rank;
}

/* Two passes: the rules need the number of tensors of each kind. */
int plan_make(struct plan *out, struct arena *a, const struct plan_model *m,
              const struct source_tensor *const *list, int n, const struct plan_opt *opt,
              struct err *e)
{
    struct shape s = { .m = m, .opt = opt, .mix = opt->mix->name };
    int rc = OK;

    *out = (struct plan){ .n = n };
    out->items = arena_array(a, (size_t)n + 1, sizeof *out->items);
    if (!out->items) return err_nomem(e, "a plan");
    for (int i = 0; i < n; i++) {
        struct plan_item *it = &out->items[i];
        it->from = list[i];
        it->cols = it->from->dims[it->from->n_dims - 1];
        it->rows = 1;
        for (int d = 0; d + 1 < it->from->n_dims; d++) it->rows *= it->from->dims[d];
    }
    fill_shape(&s, out);
    for (int i = 0; i < n && rc == OK; i++) {
        struct plan_item *it = &out->items[i];
        uint64_t row = 0;
        rc = plan_tensor(&s, it, find_rank(out, i), e);
        if (rc == OK && !dtype_row_bytes(it->type, (uint64_t)it->cols, &row))
            rc = err_set(e, E_INTERNAL, "rows of %lld elements cannot have type %s",
                         (long long)it->cols, dtype_name((int)it->type));
        it->bytes = row * (uint64_t)it->rows;
        out->bytes += it->bytes;
        out->from_bytes += it->from->bytes;
    }
    return rc;
}

int plan_gguf(struct plan *out, struct arena *a, const struct source *src,
              const struct plan_opt *opt, struct err *e)
{
    int n = (int)source_n_tensors(src), heads, kv;
    const struct source_tensor **list = arena_array(a, (size_t)n + 1, sizeof *list);
    struct plan_model *m = arena_new(a, struct plan_model);
    struct str arch = STR("");

    source_str(src, "general.architecture", &arch);
    const char *name = arena_cstr(a, arch);
    if (!list || !m || !name) return err_nomem(e, "a plan");
    heads = read_key_int(src, name, "attention.head_count", 1);
    kv = read_key_int(src, name, "attention.head_count_kv", heads);
    *m = (struct plan_model){ .path = source_path(src),
                              .falcon = str_is(arch, "falcon"),
                              .n_experts = read_key_int(src, name, "expert_count", 0),
                              .n_gqa = kv > 0 ? heads / kv : 1 };
    for (int i = 0; i < n; i++) list[i] = source_tensor(src, (size_t)i);
    return plan_make(out, a, m, list, n, opt, e);
}
