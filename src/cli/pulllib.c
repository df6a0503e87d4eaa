#include "cli/pulllib.h"

#include "base/buf.h"
#include "base/file.h"
#include "cli/cliio.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#define PULL_LIB "tern-pull.so"

/* $TERN_PULL_LIB, else beside the program, else in ../lib/tern; i from 0. false: no more places. */
static bool name_place(int i, struct buf *out)
{
    static const char *const below[] = { "", "../lib/tern/" };
    const char *named = getenv("TERN_PULL_LIB");
    char exe[3500];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);

    buf_clear(out);
    if (named && *named) return i == 0 && (buf_puts(out, named), true);
    if (i > 1 || n <= 0) return false;
    exe[n] = 0;
    exe[path_base(exe) - exe] = 0;
    buf_printf(out, "%s%s%s", exe, below[i], PULL_LIB);
    return true;
}

int pulllib_open(pull_run_fn **out, struct err *e)
{
    struct buf path = { 0 }, looked = { 0 };
    void *lib = NULL;
    int rc = OK;

    for (int i = 0; !lib && rc == OK && name_place(i, &path); i++) {
        buf_printf(&looked, "%s%s", i ? ", " : "", cli_text(&path));
        if (access(path.p, R_OK) != 0) continue;
        if (!(lib = dlopen(path.p, RTLD_NOW | RTLD_LOCAL)))
            rc = err_set(e, E_UNSUPPORTED, "cannot open %s: %s", path.p, dlerror());
    }
    if (lib) *(void **)out = dlsym(lib, PULL_SYMBOL);
    if (rc == OK && !lib)
        rc = err_set(e, E_UNSUPPORTED,
                     "tern-pull.so is not here (looked for %s): install libcurl4-openssl-dev and "
                     "run make",
                     cli_text(&looked));
    else if (rc == OK && !*out)
        rc = err_set(e, E_UNSUPPORTED, "%s does not export %s: not tern's library", path.p,
                     PULL_SYMBOL);
    buf_release(&path);
    buf_release(&looked);
    return rc;
}
