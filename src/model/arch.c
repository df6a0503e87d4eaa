/* arch.c - look-ups in the table of architectures. */
#include "model/arch.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static const struct arch *const tables[] = { archs_llama, archs_gpt, archs_moe, archs_state,
                                             archs_encoder };
#define N_TABLES (sizeof tables / sizeof tables[0])

const struct arch *arch_by_gguf(struct str name)
{
    for (size_t t = 0; t < N_TABLES; t++)
        for (const struct arch *a = tables[t]; a->gguf; a++)
            if (str_is(name, a->gguf)) return a;
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

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static char lists[2][1024]; /* [hf] */

static void make_list(bool hf)
{
    const char *names[256], *last = "";
    size_t n = 0, len = 0, size = sizeof lists[hf];

    for (size_t t = 0; t < N_TABLES; t++)
        for (const struct arch *a = tables[t]; a->gguf && n < 256; a++)
            names[n++] = hf ? a->hf[0] : a->gguf;
    qsort(names, n, sizeof *names, compare_names);
    for (size_t i = 0; i < n && len < size; last = names[i++])
        if (strcmp(names[i], last) != 0)
            len += (size_t)snprintf(lists[hf] + len, size - len, "%s%s", len ? ", " : "", names[i]);
}

static void make_lists(void) { make_list(false), make_list(true); }

const char *arch_list(bool hf)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, make_lists);
    return lists[hf];
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
