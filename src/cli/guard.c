#include "cli/guard.h"

#include "base/keyring.h"
#include "base/str.h"
#include "format/manifest.h"

#include <stdlib.h>

/* The flag's value, else that of the environment, else NULL. */
static const char *value_of(const char *flag, const char *variable)
{
    const char *v = flag ? flag : getenv(variable);

    return v && *v ? v : NULL;
}

/* A flag for one of the two overrides a variable for the other. */
int guard_join(struct guard *g, struct err *e)
{
    const char *file = g->key_file, *command = g->key_command;
    int rc;

    if (!file && !command) {
        file = value_of(NULL, "TERN_MODEL_KEY_FILE");
        command = value_of(NULL, "TERN_MODEL_KEY_COMMAND");
    }
    if (g->keys) return OK;
    rc = keyset_open(&g->keys, file, command, 0, e);
    keyset_join(g->keys);
    return rc;
}

void guard_release(struct guard *g)
{
    keyset_close(g->keys);
    g->keys = NULL;
}

int guard_check(struct guard *g, const char *model, struct err *e)
{
    const char *word = value_of(g->manifest, "TERN_VERIFY_MANIFEST");
    enum manifest_mode mode = MANIFEST_OFF;
    int rc;

    if (word && !manifest_mode_by_name(word, &mode))
        return err_set(e, E_INVALID, "--verify-manifest %s: must be off, warn or require", word);
    if ((rc = guard_join(g, e)) != OK) return rc;
    return manifest_enforce(model, mode, e);
}
