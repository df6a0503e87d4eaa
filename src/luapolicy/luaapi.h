/* luaapi.h - what tern-lua.so exports: a placement policy that is a Lua 5.4 script.
 *
 * The script is text in a sandbox: `math`, and those functions of the base library, `string` and `table` that
 * neither load code nor touch files, and whose time the limit covers: no pcall, no patterns (string.find
 * searches plain text), no string.rep or table.move. It defines
 *
 *     function place(request, workers) return INDEX end       -- from 1; nil: the built-in policy chooses
 *
 * request: model, cost, blocks, tenant; workers[i]: url, loaded, weight, outstanding, assigned, waiting,
 * kv_free, match, running. A call has a bound of time (checked every hundred instructions) and of
 * memory; beyond either, or after an error, the built-in policy chooses. Plain C on liblua alone. */
#ifndef TERN_LUAPOLICY_LUAAPI_H
#define TERN_LUAPOLICY_LUAAPI_H

#include <stddef.h>

#define LUA_LIB_FILE "tern-lua.so"
#define LUA_LIB_ENV "TERN_LUA_LIB"
#define LUA_LIB_SYMBOL "tern_lua_1"
#define LUA_LIB_PACKAGE "liblua5.4-dev"
enum { LUA_TIME_MS = 50, LUA_MEMORY = 2 << 20 };

struct lua_policy;

struct lua_worker {
    int index; /* the caller's */
    const char *url;
    int loaded, running, match;
    double weight, outstanding, assigned, waiting, kv_free;
};
struct lua_request {
    const char *model, *tenant;
    double cost;
    int blocks;
};

struct lua_api {
    /* NULL: the text says what is wrong with the script, with its line. */
    struct lua_policy *(*open)(const char *script, size_t n, const char *name, char *why,
                               size_t n_why);
    void (*close)(struct lua_policy *p);
    /* The index in w [n]; -1: the script left the choice to the built-in policy; -2: it failed. */
    int (*place)(struct lua_policy *p, const struct lua_request *rq, const struct lua_worker *w,
                 int n, char *why, size_t n_why);
};
#endif
