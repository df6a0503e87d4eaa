/* settings_alias.c - aliases: short names of models, in the list `models` of the operator's settings
 * file. Every command looks them up, also one that has nothing else to do with the server. */
#include "base/file.h"
#include "base/mem.h"
#include "server/settings_impl.h"

#include <stdlib.h>

char *settings_default_file(void)
{
    const char *named = getenv("TERN_CONFIG"), *xdg = getenv("XDG_CONFIG_HOME"),
               *home = getenv("HOME");
    struct buf b = { 0 };

    if (named && *named) buf_puts(&b, named);
    else if (xdg && *xdg) buf_printf(&b, "%s/tern/tern.yaml", xdg);
    else buf_printf(&b, "%s/.config/tern/tern.yaml", home ? home : "");
    buf_cstr(&b);
    if (!b.failed) return b.p;
    buf_release(&b);
    return NULL;
}

/* A relative path of the list is below the folder of models; a name such as hf:ORG/NAME is none. */
static char *path_of_listed(const struct settings *s, const char *listed)
{
    static const char *const names[] = { "hf:", "hf.co/", "huggingface.co/", "file:" };
    bool is_name = false;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        is_name |= strncmp(listed, names[i], strlen(names[i])) == 0;
    if (s->models_dir && *s->models_dir && *listed != '/' && !is_name)
        return path_join(s->models_dir, listed);
    return mem_strdup(listed);
}

int settings_read_aliases(struct settings *s, const char *file, struct err *e)
{
    char *own = file && *file ? NULL : settings_default_file();
    const char *path = own ? own : file;
    int rc = OK;

    *s = (struct settings){ 0 };
    if (!path) return err_nomem(e, "the path of the settings file");
    if (file_exists(path)) rc = settings_yaml_file(s, path, e);
    mem_free(own);
    return rc;
}

int settings_alias_path(char **out, const char *file, const char *name, struct err *e)
{
    struct settings s;
    const char *found;
    int rc;

    *out = NULL;
    if (strchr(name, '/') || file_exists(name)) return OK;
    rc = settings_read_aliases(&s, file, e);
    found = rc == OK ? settings_find_alias(&s, name) : NULL;
    if (found && !(*out = path_of_listed(&s, found))) rc = err_nomem(e, "the path of a model");
    settings_release(&s);
    return rc;
}
