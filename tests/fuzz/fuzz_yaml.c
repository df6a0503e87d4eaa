/* Fuzz target: an arbitrary settings file. It is refused with a message, or every setting is
 * within its range. */
#include "base/mem.h"
#include "server/settings_impl.h"

#include <stdlib.h>

static void check_ranges(const struct settings *s)
{
    struct buf b = { 0 };

    for (const struct knob *k = settings_knobs; k->name; k++) {
        const char *p = (const char *)s + k->at;
        if (s->from[knob_index(k)] != FROM_FILE) continue;
        if (k->kind == KNOB_INT || k->kind == KNOB_SIZE || k->kind == KNOB_TIME) {
            double v = (double)*(const int64_t *)p;
            if (v < k->least || v > k->most) abort();
        }
        if (k->kind == KNOB_FLOAT &&
            !(*(const double *)p >= k->least && *(const double *)p <= k->most))
            abort();
    }
    if (s->n_models > SETTINGS_MODELS || s->n_aliases > SETTINGS_MODELS) abort();
    settings_json(s, &b);
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
