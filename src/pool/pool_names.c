/* pool_names.c - the list of models and their names changes while the pool runs: rescans, and changes
 * by request (registry_live.c). */
#include "base/log.h"
#include "pool/pool_impl.h"
#include "pool/registry.h"

#include <stdio.h>

static bool is_gone(const struct slot *s) { return s->m.entry && atomic_load(&s->m.entry->gone); }

/* A model whose file is gone is served as long as it is loaded. If its name leads to another file now,
 * nobody could ask for it or unload it any more. */
static void unload_renamed(struct pool *p)
{
    for (int i = 0; i < pool_n(p); i++) {
        const struct slot *s = p->slots[i];
        int other = is_gone(s) ? registry_find(p->opt.registry, str_c(s->m.id)) : -1;

        if (other < 0 || other == i || state_of(s) == POOL_UNLOADED) continue;
        log_info("model '%s' is another file now: the old one is unloaded", s->m.id);
        pool_unload(p, i, false, NULL);
    }
}

int pool_rescan(struct pool *p, struct registry_news *news, struct err *e)
{
    int rc = OK;

    if (p->opt.registry && (rc = registry_rescan(p->opt.registry, news, e)) == OK)
        rc = pool_take_entries(p, e);
    if (p->opt.registry) unload_renamed(p);
    pool_report_change(p);
    return rc;
}

/* ---- by request ---- */

static int fail_fixed(struct err *e)
{
    return err_set(e, E_INVALID, "the list of models of this server cannot be changed");
}

/* On the way of a lookup: the name is only parsed, and nothing is allocated. */
bool pool_hub_id(struct str name, char *out, size_t n)
{
    static const char *const forms[] = { "hf:", "huggingface.co/" };

    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        struct str form = str_c(forms[i]);
        if (!str_starts(name, form) || name.n - form.n + 8 > n) continue;
        snprintf(out, n, "hf.co/%.*s", STR_ARG(str_skip(name, form.n)));
        return true;
    }
    return false;
}

int pool_add_hub(struct pool *p, const char *id, int *index, struct err *e)
{
    int rc;

    if (!p->opt.registry) return fail_fixed(e);
    if ((rc = registry_add_hub(p->opt.registry, id, index, e)) != OK) return rc;
    rc = pool_take_entries(p, e);
    unload_renamed(p);
    pool_report_change(p);
    return rc;
}

int pool_remove_hub(struct pool *p, int i, struct err *e)
{
    int rc = p->opt.registry ? registry_remove_hub(p->opt.registry, i, e) : fail_fixed(e);

    if (rc == OK) pool_report_change(p);
    return rc;
}

int pool_check_hub(struct pool *p, int i, struct err *e)
{
    return p->opt.registry ? registry_check_hub(p->opt.registry, i, e) : fail_fixed(e);
}

int pool_copy(struct pool *p, int i, struct str name, struct err *e)
{
    int rc = p->opt.registry ? registry_copy(p->opt.registry, i, name, e) : fail_fixed(e);

    if (rc == OK) pool_report_change(p);
    return rc;
}

bool pool_drop_copy(struct pool *p, struct str name)
{
    if (!p->opt.registry || !registry_drop_copy(p->opt.registry, name)) return false;
    pool_report_change(p);
    return true;
}
