/* conf.c - a gang's configuration from the words of flags and settings. */
#include "gang/launch.h"

#include "base/cores.h"
#include "base/str.h"

#include <string.h>

/* "3,1": one share for each. */
static int read_shares(int *out, const char *list, int n, struct err *e)
{
    struct str rest = str_c(list);

    for (int i = 0; rest.n; i++) {
        ptrdiff_t comma = str_find(rest, STR(","));
        struct str one = comma < 0 ? rest : str_take(rest, (size_t)comma);
        int64_t v;
        if (!str_to_i64(one, &v) || v < 1 || v > 1000 || i >= n)
            return err_set(e, E_INVALID, "split %s: must be %d numbers from 1 to 1000", list, n);
        out[i] = (int)v;
        rest = str_skip(rest, one.n + 1);
    }
    return OK;
}

static const char *word(const char *s) { return s && *s ? s : NULL; }

int gang_conf_of(struct gang_conf *c, const struct gang_words *w, struct err *e)
{
    bool q8 = word(w->wire) && strcmp(w->wire, "q8") == 0;
    int rc;

    *c = (struct gang_conf){ .shape = { .tp = w->tp,
                                        .pp = w->pp,
                                        .ep = w->ep,
                                        .wire = q8 ? COMM_Q8 : COMM_F32,
                                        .step_ns = (uint64_t)w->step_ms * 1000000u },
                             .transport = word(w->transport),
                             .hosts = word(w->hosts),
                             .agent = word(w->agent),
                             .listen = word(w->listen),
                             .program = word(w->program) };
    if (word(w->wire) && !q8 && strcmp(w->wire, "f32") != 0)
        return err_set(e, E_INVALID, "wire %s: must be f32 or q8", w->wire);
    if (w->step_ms < 1000 || w->step_ms > 86400000)
        return err_set(e, E_INVALID, "step-timeout of %lld ms: must be 1 s to a day",
                       (long long)w->step_ms);
    if ((rc = gang_check(c, e)) != OK) return rc;
    return word(w->split) ? read_shares(c->shape.shares, w->split, w->tp > 1 ? w->tp : w->pp, e)
                          : OK;
}

int gang_threads(const struct gang_conf *c, int given)
{
    int n = c->shape.tp * c->shape.pp, cores = cores_find()->n;

    if (given || n < 2 || c->hosts) return given; /* zeroed: no gang */
    return cores / n > 0 ? cores / n : 1;
}

static int open_source(void *arg, struct gang **out, struct err *e)
{
    return gang_open(out, arg, e);
}

struct gang_source gang_source_of(const struct gang_conf *c)
{
    if (c->shape.tp * c->shape.pp < 2) return (struct gang_source){ 0 };
    return (struct gang_source){ .shape = c->shape, .open = open_source, .arg = (void *)c };
}
