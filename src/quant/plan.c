#include "quant/plan.h"

#include "kernel/quant.h"
#include "quant/rtn.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/mem.h"

#include <ctype.h>
#include <stdio.h>

static const struct plan_mix mixes[] = {
    { "Q2_K", DT_Q2_K, 10,
      "2.6 bits and up; attn_v, ffn_down and attn_output in three: for the desperate" },
    { "Q2_K_S", DT_Q2_K, 21, "2.6 bits, the first ffn_down in Q4_K" },
    { "Q3_K_S", DT_Q3_K, 11, "3.4 bits" },
    { "Q3_K_M", DT_Q3_K, 12, "3.4 bits, attn_v, ffn_down and attn_output in Q4_K" },
    { "Q3_K_L", DT_Q3_K, 13, "3.4 bits, attn_v, ffn_down and attn_output in Q5_K" },
    { "Q4_K_S", DT_Q4_K, 14, "4.5 bits, the first attn_v and ffn_down in Q5_K" },
    { "Q4_K_M", DT_Q4_K, 15,
      "4.5 bits, half of attn_v and ffn_down in Q6_K: what most people take" },
    { "Q5_K_S", DT_Q5_K, 16, "5.5 bits" },
    { "Q5_K_M", DT_Q5_K, 17,
      "5.5 bits, half of attn_v and ffn_down in Q6_K: hardly to be told from F16" },
    { "Q6_K", DT_Q6_K, 18, "6.6 bits" },
    { "Q8_0", DT_Q8_0, 7, "8.5 bits: as good as F16" },
    { "Q4_0", DT_Q4_0, 2, "4.5 bits, the oldest format: everything reads it" },
    { "Q4_1", DT_Q4_1, 3, "5 bits" },
    { "Q5_0", DT_Q5_0, 8, "5.5 bits" },
    { "Q5_1", DT_Q5_1, 9, "6 bits" },
    { "IQ4_NL", DT_IQ4_NL, 25,
      "4.5 bits on levels that are no line; also for rows that are no multiple of 256" },
    { "IQ4_XS", DT_IQ4_XS, 30, "4.25 bits on those levels: the best at its size" },
    { "TQ1_0", DT_TQ1_0, 36, "1.7 bits: three values, for models trained on them (BitNet)" },
    { "TQ2_0", DT_TQ2_0, 37, "2.1 bits: the same, faster to read" },
    { "MXFP4", DT_MXFP4, -1, "4.25 bits: floats of four bits, a power of two for 32" },
    { "MXFP4_MOE", DT_MXFP4, 38, "experts in MXFP4, all else in Q8_0" },
    { "F16", DT_F16, 1, "16 bits" },
    { "BF16", DT_BF16, 32, "16 bits, with the range of F32" },
    { "F32", DT_F32, 0, "32 bits" },
};

const struct plan_mix *plan_mix_at(int i)
{
    return i >= 0 && i < (int)(sizeof mixes / sizeof *mixes) ? &mixes[i] : NULL;
}

static bool same_name(struct str a, const char *b)
{
    if (a.n != strlen(b)) return false;
    for (size_t i = 0; i < a.n; i++)
        if (toupper((unsigned char)a.p[i]) != b[i]) return false;
    return true;
}

const struct plan_mix *plan_mix_by_name(struct str name)
{
    static const char *const other[][2] = { { "Q3_K", "Q3_K_M" },
                                            { "Q4_K", "Q4_K_M" },
                                            { "Q5_K", "Q5_K_M" } };

    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (same_name(name, other[i][0])) name = str_c(other[i][1]);
    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i++)
        if (same_name(name, mixes[i].name)) return &mixes[i];
    return NULL;
}

/* ---- rules ---- */

struct plan_rule {
    struct plan_rule *next;
    pcre2_code *code;
    enum dtype type;
};

int plan_rule_add(struct plan_rule **list, const char *text, struct err *e)
{
    const char *eq = strrchr(text, '=');
    struct plan_rule *r, **at = list;
    PCRE2_SIZE where;
    int code;

    if (!eq || eq == text || !eq[1])
        return err_set(e, E_INVALID, "--tensor-type takes PATTERN=TYPE, found '%s'", text);
    enum dtype type = dtype_by_name(str_c(eq + 1));
    if (type == DT_NONE || !rtn_can(type))
        return err_set(e, E_INVALID, "--tensor-type %s: tern writes no type '%s'", text, eq + 1);
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)text, (PCRE2_SIZE)(eq - text),
                                   PCRE2_NEVER_BACKSLASH_C, &code, &where, NULL);
    if (!re) {
        PCRE2_UCHAR why[120] = { 0 };
        pcre2_get_error_message(code, why, sizeof why);
        return err_set(e, E_INVALID, "--tensor-type %s: %s at %zu", text, (const char *)why,
                       (size_t)where);
    }
    while (*at) at = &(*at)->next;
    r = mem_new(struct plan_rule);
    *r = (struct plan_rule){ .code = re, .type = type };
    *at = r;
    return OK;
}

void plan_rules_free(struct plan_rule *list)
{
    while (list) {
        struct plan_rule *next = list->next;
        pcre2_code_free(list->code);
        mem_free(list);
        list = next;
    }
}

static const struct plan_rule *rule_for(const struct plan_rule *r, struct str name)
{
    for (; r; r = r->next) {
        pcre2_match_data *m = pcre2_match_data_create_from_pattern(r->code, NULL);
        int rc = pcre2_match(r->code, (PCRE2_SPTR)name.p, name.n, 0, 0, m, NULL);
        pcre2_match_data_free(m);
        if (rc >= 0) return r;
    }
    return NULL;
}

/* ---- what the mixes do ---- */

/* What the choices look at. */
struct shape {
    const struct plan_model *m;
    const struct plan_opt *opt;
    const char *mix;
    bool tied;
    int n_v, n_down; /* tensors of that kind */
};

/* A tensor's name taken apart: its layer (-1: none) and what follows it. */
static struct str part_of(struct str name, int *layer)
{
    size_t n = 4;
    *layer = -1;
    if (!str_starts(name, STR("blk."))) return name;
    *layer = 0;
    while (n < name.n && name.p[n] >= '0' && name.p[n] <= '9' && *layer < 100000)
        *layer = *layer * 10 + (name.p[n++] - '0');
    return str_skip(name, n + 1);
}

static bool is_v(struct str part)
{
    return str_is(part, "attn_v.weight") || str_is(part, "attn_qkv.weight");
}
static bool is_down(struct str part)
{
    return str_starts(part, STR("ffn_down")) && str_ends(part, STR(".weight"));
}

/* Layers that count more: the first and last eighth, and every third between. */
static bool more_bits(int i, int n) { return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2; }

static bool mix_is(const struct shape *s, const char *list)
{
    size_t n = strlen(s->mix);
    for (const char *p = list; (p = strstr(p, s->mix)); p += n)
        if ((p == list || p[-1] == ' ') && (p[n] == ' ' || !p[n])) return true;
    return false;
}

static enum dtype choose_output(const struct shape *s, enum dtype t, const struct plan_item *it,
                                const char **why)
{
    *why = "the head";
    if (s->m->falcon || it->cols % dtype_info((int)t)->block) return DT_Q8_0;
    return t == DT_Q8_0 ? t : DT_Q6_K;
}

static enum dtype choose_v(const struct shape *s, enum dtype t, int i)
{
    if (s->m->n_experts == 8) return DT_Q8_0;
    if (mix_is(s, "Q2_K")) return s->m->n_gqa >= 4 ? DT_Q4_K : DT_Q3_K;
    if (mix_is(s, "Q2_K_S")) return s->m->n_gqa >= 4 ? DT_Q4_K : t;
    if (mix_is(s, "Q3_K_M")) return i < 2 ? DT_Q5_K : DT_Q4_K;
    if (mix_is(s, "Q3_K_L")) return DT_Q5_K;
    if (mix_is(s, "IQ4_NL IQ4_XS")) return s->m->n_gqa >= 4 ? DT_Q5_K : t;
    if (mix_is(s, "Q4_K_M Q5_K_M")) return more_bits(i, s->n_v) ? DT_Q6_K : t;
    if (mix_is(s, "Q4_K_S")) return i < 4 ? DT_Q5_K : t;
    return t;
}

static enum dtype choose_down(const struct shape *s, enum dtype t, int i)
{
    int n = s->n_down;
    bool early = i < n / 8, more = more_bits(i, n);

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

/* rank: how many of its kind come in layers before. */
static enum dtype choose(const struct shape *s, const struct plan_item *it, int rank,
                         const char **why)
{
    enum dtype t = s->opt->mix->type;
    int layer;
    struct str name = it->from->name, part = part_of(name, &layer);
    bool experts = it->from->n_dims == 3 && it->from->dims[0] > 1;

    *why = "";
    if (s->opt->output != DT_NONE && str_is(name, "output.weight"))
        return *why = "asked for", s->opt->output;
    if (s->opt->embd != DT_NONE && str_is(name, "token_embd.weight"))
        return *why = "asked for", s->opt->embd;
    if (s->opt->pure || !dtype_info((int)t)->quantized) return t;
    if (str_is(name, "output.weight") || (s->tied && str_is(name, "token_embd.weight")))
        return choose_output(s, t, it, why);
    if (mix_is(s, "MXFP4_MOE")) return *why = experts ? "experts" : "", experts ? t : DT_Q8_0;
    if (str_is(name, "token_embd.weight"))
        return mix_is(s, "TQ1_0 TQ2_0") ? (*why = "the embedding", DT_Q4_K) : t;
    *why = "counts more";
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

/* What a type becomes where rows are not whole blocks. */
static enum dtype fallback(enum dtype t, int64_t cols)
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

/* Small and sensitive, or not multiplied with at all. */
static bool stays(struct str name, int n_dims)
{
    static const char *const kept[] = { "_norm.weight",   "ffn_gate_inp", "ssm_conv1d",
                                        "shortconv.conv", "ssm_x",        "ssm_dt",
                                        "time_mix_",      "attn_rel_b",   "pos_embd",
                                        "position_embd",  "token_types",  "rope_freqs",
                                        "rope_factors" };
    if (n_dims < 2 || !str_ends(name, STR("weight"))) return true;
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (str_find(name, str_c(kept[i])) >= 0) return true;
    return false;
}

/* ---- the plan ---- */

static int plan_one(const struct shape *s, struct plan_item *it, int rank, struct err *e)
{
    const struct source_tensor *t = it->from;
    bool was_quantized = dtype_info((int)t->type)->quantized;
    const struct plan_rule *rule;
    enum dtype want;

    it->type = t->type;
    it->why = "stays";
    if (stays(t->name, t->n_dims)) return OK;
    rule = rule_for(s->opt->rules, t->name);
    want = rule ? rule->type : choose(s, it, rank, &it->why);
    if (rule) it->why = "asked for";
    else if (want == s->opt->mix->type) it->why = "";
    it->type = fallback(want, it->cols);
    if (it->type != want) it->why = "rows do not fit";
    if (it->type == t->type) return OK;
    if (!quant_can_decode(t->type))
        return err_set(e, E_UNSUPPORTED, "%s: tensor '%.*s' is %s, which is no weight type",
                       s->m->path, STR_ARG(t->name), dtype_name((int)t->type));
    if (was_quantized && dtype_info((int)it->type)->quantized && !s->opt->requantize)
        return err_set(
            e, E_INVALID,
            "%s: tensor '%.*s' is %s already; from it another quantization is worse than from the "
            "original (--requantize does it all the same)",
            s->m->path, STR_ARG(t->name), dtype_name((int)t->type));
    return OK;
}

static int key_int(const struct source *src, const char *arch, const char *name, int or)
{
    char key[128];
    struct value v, first;
    uint64_t u;

    snprintf(key, sizeof key, "%s.%s", arch, name);
    if (!source_key(src, key, &v)) return or ;
    if (v.kind == VALUE_LIST && value_at(&v, 0, &first)) v = first;
    return value_u64(&v, &u) && u < 1000000 ? (int)u : or ;
}

static void read_shape(struct shape *s, const struct plan *p)
{
    int layer;

    s->tied = true;
    for (int i = 0; i < p->n; i++) {
        struct str part = part_of(p->items[i].from->name, &layer);
        s->n_v += is_v(part);
        s->n_down += is_down(part);
        if (str_is(part, "output.weight")) s->tied = false;
    }
}

static int rank_of(const struct plan *p, int i)
{
    int layer, other, rank = 0;
    struct str part = part_of(p->items[i].from->name, &layer);

    if (!is_v(part) && !is_down(part)) return 0;
    for (int j = 0; j < p->n; j++) {
        struct str q = part_of(p->items[j].from->name, &other);
        rank += other < layer && is_v(q) == is_v(part) && is_down(q) == is_down(part);
    }
    return rank;
}

int plan_make(struct plan *out, struct arena *a, const struct plan_model *m,
              const struct source_tensor *const *list, int n, const struct plan_opt *opt,
              struct err *e)
{
    struct shape s = { .m = m, .opt = opt, .mix = opt->mix->name };
    int rc = OK;

    *out = (struct plan){ .n = n };
    out->items = arena_array(a, (size_t)n + 1, sizeof *out->items);
    for (int i = 0; i < n; i++) {
        struct plan_item *it = &out->items[i];
        it->from = list[i];
        it->cols = it->from->dims[it->from->n_dims - 1];
        it->rows = 1;
        for (int d = 0; d + 1 < it->from->n_dims; d++) it->rows *= it->from->dims[d];
    }
    read_shape(&s, out);
    for (int i = 0; i < n && rc == OK; i++) {
        struct plan_item *it = &out->items[i];
        uint64_t row = 0;
        rc = plan_one(&s, it, rank_of(out, i), e);
        if (rc == OK && !dtype_row_bytes(it->type, (uint64_t)it->cols, &row))
            rc = err_set(e, E_INTERNAL, "rows of %lld as %s", (long long)it->cols,
                         dtype_name((int)it->type));
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
    heads = key_int(src, name, "attention.head_count", 1);
    kv = key_int(src, name, "attention.head_count_kv", heads);
    *m = (struct plan_model){ .path = source_path(src),
                              .falcon = str_is(arch, "falcon"),
                              .n_experts = key_int(src, name, "expert_count", 0),
                              .n_gqa = kv > 0 ? heads / kv : 1 };
    for (int i = 0; i < n; i++) list[i] = source_tensor(src, (size_t)i);
    return plan_make(out, a, m, list, n, opt, e);
}
