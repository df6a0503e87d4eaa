/* luapolicy.c - tern-lua.so: see luaapi.h. */
#include "luapolicy/luaapi.h"

#include "base/mem.h"

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Instructions between two looks at the clock: one instruction can copy up to LUA_MEMORY bytes. */
enum { HOOK_EVERY = 100, SORT_MOST = 4096 };

struct lua_policy {
    lua_State *L;
    size_t used;
    uint64_t until_ns; /* of the call under way */
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* lua_Alloc: refuses what would exceed the bound. */
static void *bounded_alloc(void *arg, void *p, size_t old, size_t n)
{
    struct lua_policy *s = arg;
    void *q;

    if (!p) old = 0;
    if (n == 0) {
        s->used -= old;
        mem_free(p);
        return NULL;
    }
    if (n > old && s->used + (n - old) > LUA_MEMORY) return NULL;
    if (!(q = mem_grow(p, n))) return NULL;
    s->used = s->used - old + n;
    return q;
}

static struct lua_policy *policy_of(lua_State *L)
{
    void *arg;
    lua_getallocf(L, &arg);
    return arg;
}

static void on_count(lua_State *L, lua_Debug *d)
{
    (void)d;
    if (now_ns() > policy_of(L)->until_ns)
        luaL_error(L, "the policy took more than %d ms", LUA_TIME_MS);
}

static void say_top(lua_State *L, char *why, size_t n)
{
    const char *s = lua_tostring(L, -1);

    snprintf(why, n, "%s", s ? s : "an error that is no text");
    lua_settop(L, 0);
}

/* Sorting compares numbers without the count hook: 4,096 of them take under a millisecond. */
static int sort_few(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    luaL_argcheck(L, lua_rawlen(L, 1) <= SORT_MOST, 1, "has more elements than a policy may sort");
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_call(L, lua_gettop(L) - 1, 0);
    return 0;
}

/* string.find without patterns: a pattern can backtrack for hours inside of C, where no hook runs. */
static int find_plain(lua_State *L)
{
    luaL_checkstring(L, 1);
    luaL_checkstring(L, 2);
    lua_settop(L, 3);
    if (lua_isnil(L, 3)) {
        lua_pushinteger(L, 1);
        lua_replace(L, 3);
    }
    lua_pushboolean(L, 1);
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_call(L, 4, LUA_MULTRET);
    return lua_gettop(L);
}

/* Keeps the named fields of the table on top of the stack, and removes all others. */
static void keep_only(lua_State *L, const char *const *kept)
{
    lua_pushnil(L);
    while (lua_next(L, -2)) {
        int is_kept = lua_type(L, -2) != LUA_TSTRING;
        lua_pop(L, 1);
        for (int i = 0; !is_kept && kept[i]; i++) is_kept = !strcmp(lua_tostring(L, -1), kept[i]);
        if (is_kept) continue;
        lua_pushvalue(L, -1);
        lua_pushnil(L);
        lua_rawset(L, -4);
    }
}

/* The field of the table on top of the stack is called through `by`. */
static void wrap(lua_State *L, const char *name, lua_CFunction by)
{
    lua_getfield(L, -1, name);
    lua_pushcclosure(L, by, 1);
    lua_setfield(L, -2, name);
}

/* Only functions that neither load code nor reach the system, that cannot catch the error of the time
 * limit (pcall, coroutines), and whose work in C is bounded by the memory limit (no patterns,
 * string.rep, table.move). */
static void open_sandbox(lua_State *L)
{
    static const char *const base[] = { "_VERSION", "assert",   "error",  "ipairs", "math",
                                        "next",     "pairs",    "select", "string", "table",
                                        "tonumber", "tostring", "type",   NULL };
    static const char *const string[] = { "byte",  "char",    "find", "format", "len",
                                          "lower", "reverse", "sub",  "upper",  NULL };
    static const char *const table[] = { "concat", "insert", "remove", "sort", "unpack", NULL };

    luaL_requiref(L, "_G", luaopen_base, 1);
    luaL_requiref(L, LUA_MATHLIBNAME, luaopen_math, 1);
    luaL_requiref(L, LUA_STRLIBNAME, luaopen_string, 1);
    keep_only(L, string);
    wrap(L, "find", find_plain);
    luaL_requiref(L, LUA_TABLIBNAME, luaopen_table, 1);
    keep_only(L, table);
    wrap(L, "sort", sort_few);
    lua_pushglobaltable(L);
    keep_only(L, base);
    lua_settop(L, 0);
}

static void begin_call(struct lua_policy *p)
{
    p->until_ns = now_ns() + (uint64_t)LUA_TIME_MS * 1000000;
    lua_sethook(p->L, on_count, LUA_MASKCOUNT, HOOK_EVERY);
}

static void policy_close(struct lua_policy *p)
{
    if (!p) return;
    if (p->L) lua_close(p->L);
    mem_free(p);
}

static int protected_sandbox(lua_State *L)
{
    open_sandbox(L);
    return 0;
}

static struct lua_policy *policy_open(const char *script, size_t n, const char *name, char *why,
                                      size_t n_why)
{
    struct lua_policy *p = mem_new(struct lua_policy);
    int ok;

    if (!p || !(p->L = lua_newstate(bounded_alloc, p))) {
        snprintf(why, n_why, "out of memory");
        policy_close(p);
        return NULL;
    }
    begin_call(p);
    lua_pushcfunction(p->L, protected_sandbox);
    ok = lua_pcall(p->L, 0, 0, 0) == LUA_OK &&
         luaL_loadbufferx(p->L, script, n, name, "t") == LUA_OK &&
         lua_pcall(p->L, 0, 0, 0) == LUA_OK;
    if (ok && lua_getglobal(p->L, "place") != LUA_TFUNCTION) {
        snprintf(why, n_why, "%s: no function place(request, workers)", name + (*name == '@'));
        policy_close(p);
        return NULL;
    }
    if (!ok) {
        say_top(p->L, why, n_why);
        policy_close(p);
        return NULL;
    }
    lua_settop(p->L, 0);
    return p;
}

static void set_num(lua_State *L, const char *key, double v)
{
    lua_pushnumber(L, v);
    lua_setfield(L, -2, key);
}
static void set_text(lua_State *L, const char *key, const char *v)
{
    lua_pushstring(L, v);
    lua_setfield(L, -2, key);
}
static void set_bool(lua_State *L, const char *key, int v)
{
    lua_pushboolean(L, v);
    lua_setfield(L, -2, key);
}

struct job {
    const struct lua_request *rq;
    const struct lua_worker *w;
    int n;
};

/* Runs protected: building the tables can fail for want of memory, too. */
static int call_place(lua_State *L)
{
    const struct job *j = lua_touserdata(L, 1);

    lua_getglobal(L, "place");
    lua_createtable(L, 0, 4);
    set_text(L, "model", j->rq->model);
    set_text(L, "tenant", j->rq->tenant);
    set_num(L, "cost", j->rq->cost);
    set_num(L, "blocks", j->rq->blocks);
    lua_createtable(L, j->n, 0);
    for (int i = 0; i < j->n; i++) {
        const struct lua_worker *w = &j->w[i];
        lua_createtable(L, 0, 9);
        set_text(L, "url", w->url);
        set_bool(L, "loaded", w->loaded);
        set_num(L, "running", w->running);
        set_num(L, "match", w->match);
        set_num(L, "weight", w->weight);
        set_num(L, "outstanding", w->outstanding);
        set_num(L, "assigned", w->assigned);
        set_num(L, "waiting", w->waiting);
        set_num(L, "kv_free", w->kv_free);
        lua_rawseti(L, -2, i + 1);
    }
    lua_call(L, 2, 1);
    return 1;
}

static int policy_place(struct lua_policy *p, const struct lua_request *rq,
                        const struct lua_worker *w, int n, char *why, size_t n_why)
{
    struct job j = { rq, w, n };
    lua_State *L = p->L;
    int at = -1, is_int = 0;

    begin_call(p);
    lua_settop(L, 0);
    lua_pushcfunction(L, call_place);
    lua_pushlightuserdata(L, &j);
    if (lua_pcall(L, 1, 1, 0) != LUA_OK) {
        say_top(L, why, n_why);
        return -2;
    }
    if (!lua_isnil(L, -1)) {
        at = (int)lua_tointegerx(L, -1, &is_int) - 1;
        if (!is_int || at < 0 || at >= n) {
            snprintf(why, n_why, "place returned no index from 1 to %d", n);
            at = -2;
        }
    }
    lua_settop(L, 0);
    return at;
}

__attribute__((visibility("default")))
const struct lua_api tern_lua_1 = { policy_open, policy_close, policy_place };
