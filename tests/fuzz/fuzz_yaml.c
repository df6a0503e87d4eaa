/* Fuzz target: an arbitrary settings file. It is refused with a message, or every setting is
 * within its range. */
#include "base/mem.h"
#include "server/settings_impl.h"

#include <stdlib.h>

static void check_number(const struct knob *k, const void *p)
{
    double v = k->kind == KNOB_FLOAT ? *(const double *)p : (double)*(const int64_t *)p;

    if (k->words && v < 0 && (int64_t)v == -1) return; /* "auto", "forever" */
    if (!(v >= k->least && v <= k->most)) abort();
}

static bool is_number(const struct knob *k)
{
    return k->kind == KNOB_INT || k->kind == KNOB_SIZE || k->kind == KNOB_TIME ||
           k->kind == KNOB_FLOAT;
}

/* What the registry gets of the list of models. */
static void check_models(const struct settings *s)
{
    struct registry_item items[SETTINGS_MODELS];
    int n = settings_items(s, items);

    for (int i = 0; i < n; i++) {
        const struct registry_item *m = &items[i];

        if (!m->path[0] || m->n_aliases > REGISTRY_ALIASES || !m->where) abort();
        for (int j = 0; j < m->n_aliases; j++)
            if (!m->aliases[j] || (j > 0 && !m->aliases[j][0])) abort();
        for (const struct knob *k = model_knobs; k->name; k++) {
            const char *p = (const char *)&m->opt + k->at;
            if (!model_has(&m->opt, (enum model_key)(k - model_knobs))) continue;
            if (is_number(k)) check_number(k, p);
            if (k->kind == KNOB_TEXT && !*(char *const *)p) abort();
        }
    }
}

static void check_ranges(const struct settings *s)
{
    struct buf b = { 0 };

    for (const struct knob *k = settings_knobs; k->name; k++) {
        const char *p = (const char *)s + k->at;
        if (s->from[knob_index(k)] != FROM_FILE) continue;
        if (is_number(k)) check_number(k, p);
    }
    if (s->n_models > SETTINGS_MODELS || s->n_aliases > SETTINGS_MODELS) abort();
    check_models(s);
    settings_json(s, NULL, &b);
    buf_release(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct settings s = { 0 };
    struct err e = { 0 };
    int rc;

    for (const struct knob *k = settings_knobs; k->name; k++)
        if (k->kind != KNOB_LIST)
            knob_set(&s, k, str_c(k->dflt), (struct knob_source){ FROM_DEFAULT, k->name }, &e);
    rc = settings_yaml(&s, str_of((const char *)data, n), "f.yaml", &e);
    if (rc != OK && (e.code != rc || !e.msg[0])) abort();
    check_ranges(&s);
    settings_release(&s);
    return 0;
}
