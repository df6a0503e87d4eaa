#include "cluster/script.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "luapolicy/luaapi.h"
#include "member/plugin.h"

#include <stdio.h>

enum { SCRIPT_BYTES = 1 << 20, SAY_MS = 10000 };

struct script {
    const struct lua_api *api;
    struct lua_policy *p;
    uint64_t n_chosen, n_failed, said_ns;
    struct lua_worker seen[FLEET_MAX];
};

int script_open(struct script **out, const char *file, struct err *e)
{
    struct script *s = mem_new(struct script);
    struct buf text = { 0 };
    char why[300] = "", name[300];
    int rc;

    if (!s) return err_nomem(e, "the policy");
    snprintf(name, sizeof name, "@%s", file);
    if ((rc = file_read(&text, file, SCRIPT_BYTES, e)) == OK)
        rc = plugin_open((void **)&s->api, LUA_LIB_FILE, LUA_LIB_ENV, LUA_LIB_SYMBOL,
                         LUA_LIB_PACKAGE, e);
    if (rc == OK && !(s->p = s->api->open(text.p, text.n, name, why, sizeof why)))
        rc = err_set(e, E_INVALID, "policy-script: %s", why);
    buf_release(&text);
    if (rc == OK) *out = s;
    else script_close(s);
    return rc;
}

void script_close(struct script *s)
{
    if (!s) return;
    if (s->p) s->api->close(s->p);
    mem_free(s);
}

/* At most once in SAY_MS: a script that always fails would fill the log. */
static void note_failure(struct script *s, const char *why)
{
    s->n_failed++;
    if (s->said_ns && clock_ms_since(s->said_ns) < SAY_MS) return;
    s->said_ns = clock_ns();
    log_warn("policy-script: %s; the built-in policy chooses", why);
}

int script_choose(void *arg, struct fleet *f, const struct fleet_job *job,
                  const struct place_worker *all, int n)
{
    struct script *s = arg;
    char model[256], why[300] = "";
    struct lua_request rq = { model, job->tenant ? job->tenant : "", job->cost, job->n_hashes };
    int k = 0, at;

    snprintf(model, sizeof model, "%.*s", STR_ARG(str_take(job->model, sizeof model - 1)));
    for (int i = 0; i < n; i++) {
        const struct worker *w = fleet_at(f, i);
        if (!all[i].usable || !w) continue;
        s->seen[k++] = (struct lua_worker){ .index = i,
                                            .url = w->url,
                                            .loaded = all[i].loaded,
                                            .running = w->running,
                                            .match = all[i].match,
                                            .weight = all[i].weight,
                                            .outstanding = all[i].outstanding,
                                            .assigned = all[i].assigned,
                                            .waiting = all[i].waiting,
                                            .kv_free = all[i].kv_free };
    }
    if (k == 0) return -1;
    at = s->api->place(s->p, &rq, s->seen, k, why, sizeof why);
    if (at == -2) note_failure(s, why);
    if (at < 0) return -1;
    s->n_chosen++;
    return s->seen[at].index;
}

uint64_t script_n_chosen(const struct script *s) { return s ? s->n_chosen : 0; }
uint64_t script_n_failed(const struct script *s) { return s ? s->n_failed : 0; }
