/* script.h - a placement policy as a Lua script: --policy-script FILE (luapolicy/luaapi.h).
 *
 * The script chooses among the workers that are usable. Where it returns nil, fails, or takes more than its
 * time or memory, the built-in policy chooses, and the failure is counted. */
#ifndef TERN_CLUSTER_SCRIPT_H
#define TERN_CLUSTER_SCRIPT_H

#include "base/err.h"
#include "cluster/fleet.h"

struct script;

/* E_INVALID: the script is wrong; E_UNSUPPORTED: tern-lua.so is missing; E_IO. */
int script_open(struct script **out, const char *file, struct err *e);
void script_close(struct script *s); /* NULL is allowed */
/* fleet_opt.choose: an index of all [n], or -1: the built-in policy. */
int script_choose(void *arg, struct fleet *f, const struct fleet_job *job,
                  const struct place_worker *all, int n);
uint64_t script_n_chosen(const struct script *s);
uint64_t script_n_failed(const struct script *s);
#endif
