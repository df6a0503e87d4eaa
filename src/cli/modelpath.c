/* modelpath.c - from what a user writes to a model's path, a KV cache type or a size. */
#include "base/file.h"
#include "base/mem.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "format/modelref.h"
#include "server/settings_impl.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- models ---- */

const char *cmd_default_model(void)
{
    /* Relative to the folder of the program: a checkout's build/, a variant such as build/asan/,
     * and PREFIX/bin. */
    static const char *const places[] = { "models/tern-tales.gguf", "../models/tern-tales.gguf",
                                          "../../models/tern-tales.gguf",
                                          "../share/tern/models/tern-tales.gguf" };
    static char path[4096];
    const char *named = getenv("TERN_MODEL");
    char exe[3500];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);

    if (named && *named) return named;
    if (n <= 0) return NULL;
    exe[n] = 0;
    exe[path_base(exe) - exe] = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(path, sizeof path, "%s%s", exe, places[i]);
        if (file_exists(path)) return path;
    }
    return NULL;
}

int cmd_need_model(const char **model, struct err *e)
{
    if (!*model) *model = cmd_default_model();
    return *model ? OK
                  : err_set(e, E_INVALID,
                            "no model: name one with -m (the model that ships with tern was not "
                            "found)");
}

/* $TERN_CONFIG, else tern.yaml in the XDG configuration folder. From mem_alloc. */
static char *settings_path(void)
{
    const char *named = getenv("TERN_CONFIG"), *xdg = getenv("XDG_CONFIG_HOME"),
               *home = getenv("HOME");
    struct buf b = { 0 };

    if (named && *named) buf_puts(&b, named);
    else if (xdg && *xdg) buf_printf(&b, "%s/tern/tern.yaml", xdg);
    else buf_printf(&b, "%s/.config/tern/tern.yaml", home ? home : "");
    cli_text(&b);
    return b.p;
}

/* The path of the model with that alias in the settings file, from mem_alloc; NULL: no such alias. */
static int find_alias(char **out, const char *alias, struct err *e)
{
    char *path = settings_path();
    struct settings s = { 0 };
    int rc = file_exists(path) ? settings_yaml_file(&s, path, e) : OK;
    const char *found = rc == OK ? settings_find_alias(&s, alias) : NULL;

    if (found && s.models_dir && *s.models_dir && *found != '/')
        *out = cli_need(path_join(s.models_dir, found));
    else if (found) *out = cli_need(mem_strdup(found));
    settings_release(&s);
    mem_free(path);
    return rc;
}

/* A name with a slash, or one that exists as a file, is never an alias. */
int cmd_model(const char **model, struct err *e)
{
    enum { MAX_PATHS = 8 };        /* a command names far fewer models */
    static char *paths[MAX_PATHS]; /* keeps the results reachable until the program ends */
    static int n_paths;
    char *alias = NULL, *path = NULL;
    int rc = OK;

    if (!*model || n_paths == MAX_PATHS || file_exists(*model)) return OK;
    if (!strchr(*model, '/') && !modelref_is(str_c(*model))) rc = find_alias(&alias, *model, e);
    if (rc == OK) rc = modelref_resolve(&path, str_c(alias ? alias : *model), e);
    mem_free(alias);
    if (rc == OK) *model = paths[n_paths++] = path;
    return rc;
}

/* ---- types and sizes ---- */

int cmd_kv_type(enum dtype *out, const char *name, struct err *e)
{
    static const enum dtype known[] = { DT_F16, DT_BF16, DT_Q8_0, DT_F8_E4M3, DT_F32 };
    enum dtype t = dtype_by_name(str_c(name));

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i] == t) return *out = t, OK;
    return err_set(e, E_INVALID, "--kv-type %s: must be f16, bf16, q8_0, f8 or f32", name);
}

bool cmd_size(const char *s, uint64_t *out)
{
    char *end;
    double v = strtod(s, &end), unit = 1;

    if (*end == 'K' || *end == 'k') unit = 1e3;
    if (*end == 'M' || *end == 'm') unit = 1e6;
    if (*end == 'G' || *end == 'g') unit = 1e9;
    if (end == s || !(v > 0) || v * unit > 1e18) return false;
    if (unit > 1) end++;
    if (*end == 'B' || *end == 'b') end++;
    *out = (uint64_t)(v * unit);
    return *end == 0;
}
