/* arch.c - look-ups in the table of architectures. */
#include "model/arch.h"

#include <stdio.h>

static const struct arch *const tables[] = {
    archs_llama, archs_gpt,   archs_moe,    archs_latent,
    archs_gemma, archs_state, archs_hybrid, archs_encoder
};
#define N_TABLES (sizeof tables / sizeof tables[0])

const struct arch *arch_by_gguf(struct str name)
{
    for (size_t t = 0; t < N_TABLES; t++)
        for (const struct arch *a = tables[t]; a->gguf; a++)
            if (str_is(name, a->gguf)) return a;
    for (size_t t = 0; t < N_TABLES; t++)
        for (const struct arch *a = tables[t]; a->gguf; a++)
            if (arch_named(a, name)) return a;
    return NULL;
}

const char *arch_named(const struct arch *a, struct str name)
{
    if (str_is(name, a->gguf)) return a->gguf;
    for (int k = 0; k < 3 && a->gguf_also[k]; k++)
        if (str_is(name, a->gguf_also[k])) return a->gguf_also[k];
    return NULL;
}

/* An entry may have several model_types. */
const struct arch *arch_by_hf(struct str model_type)
{
    for (size_t t = 0; t < N_TABLES; t++)
        for (const struct arch *a = tables[t]; a->gguf; a++)
            for (int k = 0; k < 3 && a->hf[k]; k++)
                if (str_is(model_type, a->hf[k])) return a;
    return NULL;
}

/* Letters that two names begin with in common. */
static size_t count_common(struct str a, const char *b)
{
    size_t n = 0;

    while (n < a.n && b[n] && a.p[n] == b[n]) n++;
    return n;
}

/* A few dozen entries: the best of those not taken yet is found by looking at all of them. Names that
 * the message has already are not repeated. */
const char *arch_near(struct str name, bool hf, char *out, size_t cap)
{
    size_t len = 0;

    out[0] = '\0';
    for (int k = 0; k < ARCH_NEAR; k++) {
        const char *best = NULL;
        for (size_t t = 0; t < N_TABLES; t++)
            for (const struct arch *a = tables[t]; a->gguf; a++) {
                const char *n = hf ? a->hf[0] : a->gguf;
                char sought[64];
                snprintf(sought, sizeof sought, " %s,", n);
                if (strstr(out, sought)) continue;
                if (!best || count_common(name, n) > count_common(name, best)) best = n;
            }
        if (best && len < cap) len += (size_t)snprintf(out + len, cap - len, " %s,", best);
    }
    if (len && len < cap) out[len - 1] = '\0'; /* the last comma */
    return out[0] ? out + 1 : out;
}

int arch_count(void)
{
    int n = 0;

    for (size_t t = 0; t < N_TABLES; t++)
        for (const struct arch *a = tables[t]; a->gguf; a++) n++;
    return n;
}

/* Counts through all tables; they are short, and this runs at load only. */
const struct tensor_row *arch_row(const struct arch *a, int *it)
{
    int n = (*it)++;
    for (const struct tensor_row *const *t = a->rows; *t; t++)
        for (const struct tensor_row *r = *t; r->gguf || r->hf; r++)
            if (n-- == 0) return r;
    return NULL;
}

/* Several names of transformers stand for the same function; the first of each is written. */
static const struct {
    const char *name;
    enum act act;
} acts[] = {
    { "silu", ACT_SILU },
    { "swish", ACT_SILU },
    { "gelu", ACT_GELU },
    { "gelu_python", ACT_GELU },
    { "gelu_pytorch_tanh", ACT_GELU_TANH },
    { "gelu_new", ACT_GELU_TANH },
    { "gelu_fast", ACT_GELU_TANH },
    { "gelu_accurate", ACT_GELU_TANH },
    { "gelu_python_tanh", ACT_GELU_TANH },
    { "relu", ACT_RELU },
    { "relu2", ACT_RELU2 },
    { "quick_gelu", ACT_GELU_QUICK },
    { "xielu", ACT_XIELU },
};

/* Unknown names are an error of the caller: another function would change the results. */
bool act_by_name(struct str name, enum act *out)
{
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++)
        if (str_is(name, acts[i].name)) {
            *out = acts[i].act;
            return true;
        }
    return false;
}

const char *act_name(enum act a)
{
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++)
        if (acts[i].act == a) return acts[i].name;
    return "silu";
}
