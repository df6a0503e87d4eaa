#include "member/plugin.h"

#include "base/buf.h"
#include "base/file.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

/* i from 0; false: no more places. */
static bool name_place(int i, const char *file, const char *env, struct buf *out)
{
    static const char *const below[] = { "", "../lib/tern/" };
    const char *named = getenv(env);
    char exe[3500];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);

    buf_clear(out);
    if (named && *named) return i == 0 && (buf_puts(out, named), true);
    if (i > 1 || n <= 0) return false;
    exe[n] = 0;
    exe[path_base(exe) - exe] = 0;
    buf_printf(out, "%s%s%s", exe, below[i], file);
    return true;
}

int plugin_open(void **out, const char *file, const char *env, const char *symbol,
                const char *package, struct err *e)
{
    struct buf path = { 0 }, looked = { 0 };
    void *lib = NULL;
    int rc = OK;

    *out = NULL;
    for (int i = 0; !lib && rc == OK && name_place(i, file, env, &path); i++) {
        buf_printf(&looked, "%s%s", i ? ", " : "", buf_cstr(&path));
        if (access(buf_cstr(&path), R_OK) != 0) continue;
        if (!(lib = dlopen(buf_cstr(&path), RTLD_NOW | RTLD_LOCAL)))
            rc = err_set(e, E_UNSUPPORTED, "cannot open %s: %s", buf_cstr(&path), dlerror());
    }
    if (lib) *out = dlsym(lib, symbol);
    if (rc == OK && !lib)
        rc = err_set(e, E_UNSUPPORTED, "%s is not here (looked for %s): install %s and run make",
                     file, buf_cstr(&looked), package);
    else if (rc == OK && !*out)
        rc = err_set(e, E_UNSUPPORTED, "%s does not export %s: not tern's library", buf_cstr(&path),
                     symbol);
    buf_release(&path);
    buf_release(&looked);
    return rc;
}
