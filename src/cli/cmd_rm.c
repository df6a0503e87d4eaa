/* cmd_rm.c - tern rm: remove a model of the Hugging Face cache. */
#include "base/file.h"
#include "base/mem.h"
#include "cli/args.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "format/hubcache.h"

#include <strings.h>
#include <unistd.h>

static const struct verb verb = {
    "rm",
    "tern rm hf:ORG/NAME[@REV][:FILE] [--yes]",
    "Removes a model of the cache of Hugging Face's tools: its snapshot, the revisions that name "
    "it,\n"
    "and the files that no other snapshot uses; with FILE only that model of the snapshot. Asks\n"
    "first on a terminal. Models that are files elsewhere are not removed by tern.\n\n"
    "examples:\n"
    "  tern rm hf:Qwen/Qwen3-0.6B-GGUF\n"
    "  tern rm hf:Qwen/Qwen3-8B-GGUF:Q8_0 --yes",
};

/* The name must be one of the cache, with or without hf:. */
static int check_name(const char *name, struct err *e)
{
    struct hf_ref r;

    if (!modelref_is_hub(str_c(name)) && file_exists(name))
        return err_set(e, E_INVALID,
                       "'%s' is a file or folder: tern rm removes models of the cache only, which "
                       "tern list shows",
                       name);
    return modelref_parse(&r, str_c(name), e);
}

static bool ask_user(const char *name, const char *cache)
{
    char line[16] = "";

    fprintf(stderr, "remove hf:%s from %s? [y/N] ", name, cache);
    if (!fgets(line, sizeof line, stdin)) return false;
    return strncasecmp(line, "y\n", 2) == 0 || strncasecmp(line, "yes", 3) == 0;
}

static int remove_model(const char *name, bool yes, struct err *e)
{
    struct hubcache_removed gone;
    struct hf_ref r;
    char *cache = cli_need(hubcache_dir()), *full = NULL;
    int rc = modelref_complete(&full, str_c(name), e);

    if (rc == E_NOTFOUND)
        err_set(e, rc, "%s is not in the cache %s; tern list shows what is", name, cache);
    if (rc == OK) rc = modelref_parse(&r, str_c(full), e);
    if (rc == OK && !yes && isatty(STDIN_FILENO) && !ask_user(full, cache))
        rc = err_set(e, E_CANCELLED, "nothing was removed");
    if (rc == OK) rc = hubcache_remove(cache, &r, &gone, e);
    if (rc == OK)
        printf("removed hf:%s: %d files and links, %.1f MB\n", full, gone.n_files,
               (double)gone.bytes / 1e6);
    mem_free(cache);
    mem_free(full);
    return rc;
}

int cmd_rm(int argc, char **argv)
{
    bool yes = false, helped;
    const struct arg table[] = {
        { "--yes", "-y", ARG_FLAG, &yes, NULL, "do not ask" },
        { 0 },
    };
    const char *name = NULL;
    struct err e = { 0 };
    int n_pos, rc = args_parse(&verb, table, argc, argv, &name, 1, &n_pos, &helped, &e);

    if (rc == OK && helped) return EXIT_OK;
    if (rc == OK && n_pos == 0) rc = err_set(&e, E_INVALID, "which model? tern list shows them");
    if (rc == OK) rc = cmd_alias(&name, &e);
    if (rc == OK) rc = check_name(name, &e);
    if (rc != OK) return cmd_usage(verb.name, &e);
    return cmd_result(remove_model(name, yes, &e), &e);
}
