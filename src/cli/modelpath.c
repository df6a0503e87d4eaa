/* modelpath.c - from what a user writes to a model's path, a KV cache type or a size. */
#include "base/file.h"
#include "base/mem.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "format/modelref.h"
#include "server/settings.h"

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

int cmd_alias(const char **name, struct err *e)
{
    static char *target; /* a command has one such name; reachable until the program ends */
    char *found = NULL;
    int rc = settings_alias_path(&found, NULL, *name, e);

    if (rc != OK || !found) return rc;
    mem_free(target);
    *name = target = found;
    return OK;
}

/* Is it the name of the default model as tern list shows it: its file name without the ending? */
static bool is_default_name(const char *name)
{
    const char *path = cmd_default_model();
    struct str base = path ? str_c(path_base(path)) : STR("");

    if (str_ends(base, STR(".gguf"))) base.n -= 5;
    return base.n && str_is(base, name);
}

int cmd_model(const char **model, struct err *e)
{
    enum { MAX_PATHS = 8 };        /* a command names far fewer models */
    static char *paths[MAX_PATHS]; /* keeps the results reachable until the program ends */
    static int n_paths;
    char *alias = NULL, *path = NULL;
    int rc;

    if (!*model || n_paths == MAX_PATHS || file_exists(*model)) return OK;
    rc = settings_alias_path(&alias, NULL, *model, e);
    if (rc == OK) rc = modelref_find(&path, str_c(alias ? alias : *model), e);
    if (rc == E_NOTFOUND && alias) err_wrap(e, "alias '%s'", *model);
    if (rc == E_NOTFOUND && !alias && is_default_name(*model)) {
        *model = cmd_default_model();
        return OK;
    }
    mem_free(alias);
    if (rc == OK) *model = paths[n_paths++] = path;
    return rc;
}

/* ---- arguments that are models or prompts ---- */

static bool has_path_ending(struct str s)
{
    return str_ends(s, STR(".gguf")) || str_ends(s, STR(".safetensors")) ||
           str_ends(s, STR(".onnx"));
}

/* The first word of a prompt is seldom a path or a single word of a name's characters. */
enum cmd_word cmd_word_kind(const char *word, struct err *e)
{
    struct str s = str_c(word);
    const char *model = word;

    if (file_exists(word) || modelref_is(s)) return WORD_MODEL;
    if (!modelref_is_word(s) && !has_path_ending(s)) return WORD_PROMPT;
    if (cmd_model(&model, e) == OK) return WORD_MODEL;
    if (e->code != E_NOTFOUND) return WORD_UNKNOWN;
    err_set(e, E_NOTFOUND,
            "'%.60s' is neither a file, an alias nor a model of the cache. As a model: 'tern pull "
            "hf:ORG/NAME' downloads one, 'tern list' shows those that are here. As a prompt: tern "
            "run -p '%.60s'",
            word, word);
    return WORD_UNKNOWN;
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
