/* modelpath.c - what a person calls a model, as a path. */
#include "base/file.h"
#include "base/mem.h"
#include "cli/cmd.h"
#include "format/modelref.h"
#include "server/settings_impl.h"

#include <stdlib.h>

static char *settings_path(void)
{
    const char *named = getenv("TERN_CONFIG"), *xdg = getenv("XDG_CONFIG_HOME"),
               *home = getenv("HOME");
    struct buf b = { 0 };

    if (named && *named) buf_puts(&b, named);
    else if (xdg && *xdg) buf_printf(&b, "%s/tern/tern.yaml", xdg);
    else buf_printf(&b, "%s/.config/tern/tern.yaml", home ? home : "");
    buf_cstr(&b);
    return b.p;
}

/* The path of the model that the settings file calls so; NULL: none. From mem_alloc. */
static int find_alias(char **out, const char *name, struct err *e)
{
    char *path = settings_path();
    struct settings s = { 0 };
    int rc = file_exists(path) ? settings_yaml_file(&s, path, e) : OK;

    for (int i = 0; rc == OK && i < s.n_models && i < s.n_aliases; i++)
        if (strcmp(s.aliases[i], name) == 0 && !*out) *out = mem_strdup(s.models[i]);
    settings_release(&s);
    mem_free(path);
    return rc;
}

int cmd_model(const char **model, struct err *e)
{
    enum { MAX_KEPT = 8 };
    static char *kept[MAX_KEPT];
    static int n_kept;
    char *alias = NULL, *path = NULL;
    int rc = OK;

    if (!*model || n_kept == MAX_KEPT || file_exists(*model)) return OK;
    if (!strchr(*model, '/') && !modelref_is(str_c(*model))) rc = find_alias(&alias, *model, e);
    if (rc == OK) rc = modelref_resolve(&path, str_c(alias ? alias : *model), e);
    mem_free(alias);
    if (rc == OK) *model = kept[n_kept++] = path;
    return rc;
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
