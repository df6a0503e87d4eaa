/* cmd_list.c - tern list: the models of this machine that have a name: those of the Hugging Face
 * cache, aliases of the settings file, and the one that ships with tern. */
#include "base/file.h"
#include "base/jsonw.h"
#include "base/mem.h"
#include "cli/args.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "format/hubcache.h"
#include "pool/modelbytes.h"
#include "server/settings.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static const struct verb verb = {
    "list",
    "tern list [--json]",
    "Lists the models that have a name: those of the cache of Hugging Face's tools (tern pull), "
    "the\n"
    "aliases of the settings file (~/.config/tern/tern.yaml), and the one that ships with tern. "
    "Any\n"
    "of the names works with all commands. Models whose download is not complete are left out.\n\n"
    "examples:\n"
    "  tern list\n"
    "  tern list --json",
};

struct row {
    char *name, *path, *commit; /* commit: NULL unless of the cache */
    const char *type, *source;
    uint64_t bytes;
    int64_t when; /* seconds since 1970; 0: unknown */
};

struct rows {
    struct row *at;
    int n, cap;
};

static const char *type_of_path(const char *path)
{
    struct str s = str_c(path);

    if (str_ends(s, STR(".gguf"))) return "gguf";
    if (str_ends(s, STR(".onnx"))) return "onnx";
    return "safetensors";
}

static struct row *add_row(struct rows *l, const char *name, const char *path, const char *source)
{
    struct row *r;
    struct stat st;

    if (!mem_ensure(l->at, l->cap, l->n + 1)) cli_nomem();
    r = &l->at[l->n++];
    *r = (struct row){ .name = cli_need(mem_strdup(name)),
                       .path = cli_need(mem_strdup(path)),
                       .type = type_of_path(path),
                       .source = source };
    if (file_stat(path, &st)) r->when = (int64_t)st.st_mtime;
    r->bytes = model_file_bytes(path);
    return r;
}

static void release_rows(struct rows *l)
{
    for (int i = 0; i < l->n; i++) {
        mem_free(l->at[i].name);
        mem_free(l->at[i].path);
        mem_free(l->at[i].commit);
    }
    mem_free(l->at);
}

/* ---- sources ---- */

static int add_cached(struct rows *l, const char *cache, struct err *e)
{
    static const char *const types[] = { "", "safetensors", "gguf", "onnx" };
    struct hubcache_models m;
    int rc = hubcache_list(&m, cache, e);

    for (int i = 0; i < m.n; i++) {
        const struct hubcache_model *x = &m.at[i];
        struct buf name = { 0 };
        struct row *r;

        buf_printf(&name, "hf:%s", x->name);
        r = add_row(l, cli_text(&name), x->path, "cache");
        r->type = types[x->kind];
        r->bytes = x->bytes;
        r->when = x->when;
        r->commit = cli_need(mem_strdup(x->commit));
        buf_release(&name);
    }
    hubcache_models_release(&m);
    return rc;
}

/* Only aliases whose model is here. */
static void add_alias(struct rows *l, const char *alias)
{
    char *named = NULL, *path = NULL;

    if (!alias || !*alias || settings_alias_path(&named, NULL, alias, NULL) != OK || !named) return;
    if (modelref_find(&path, str_c(named), NULL) == OK) add_row(l, alias, path, "alias");
    mem_free(named);
    mem_free(path);
}

static int add_aliases(struct rows *l, struct err *e)
{
    struct settings s;
    int rc = settings_read_aliases(&s, NULL, e);

    for (int i = 0; rc == OK && i < s.n_models; i++) {
        if (i < s.n_aliases) add_alias(l, s.aliases[i]);
        for (int k = 0; k < s.more[i].n_aliases; k++) add_alias(l, s.more[i].aliases[k]);
    }
    settings_release(&s);
    return rc;
}

static void add_shipped(struct rows *l)
{
    const char *path = cmd_default_model();
    struct buf name = { 0 };
    struct str base;

    if (!path || !file_exists(path)) return;
    base = str_c(path_base(path));
    if (str_ends(base, STR(".gguf"))) base.n -= 5;
    buf_put_str(&name, base);
    add_row(l, cli_text(&name), path, "default");
    buf_release(&name);
}

/* ---- output ---- */

static void write_json(const struct rows *l, const char *cache, struct buf *out)
{
    struct jsonw w = { .out = out };

    jsonw_obj(&w);
    jsonw_key(&w, "cache"), jsonw_str(&w, str_c(cache));
    jsonw_key(&w, "models"), jsonw_arr(&w);
    for (int i = 0; i < l->n; i++) {
        const struct row *r = &l->at[i];
        jsonw_obj(&w);
        jsonw_key(&w, "name"), jsonw_str(&w, str_c(r->name));
        jsonw_key(&w, "path"), jsonw_str(&w, str_c(r->path));
        jsonw_key(&w, "type"), jsonw_str(&w, str_c(r->type));
        jsonw_key(&w, "source"), jsonw_str(&w, str_c(r->source));
        jsonw_key(&w, "bytes"), jsonw_int(&w, (int64_t)r->bytes);
        jsonw_key(&w, "modified"), jsonw_int(&w, r->when);
        if (r->commit) jsonw_key(&w, "commit"), jsonw_str(&w, str_c(r->commit));
        jsonw_end(&w);
    }
    jsonw_end(&w);
    jsonw_end(&w);
    buf_putc(out, '\n');
}

static void write_text(const struct rows *l, struct buf *out)
{
    int width = 4;

    for (int i = 0; i < l->n; i++)
        if ((int)strlen(l->at[i].name) > width) width = (int)strlen(l->at[i].name);
    buf_printf(out, "%-*s  %10s  %-11s  %s\n", width, "NAME", "SIZE", "TYPE", "MODIFIED");
    for (int i = 0; i < l->n; i++) {
        const struct row *r = &l->at[i];
        time_t when = (time_t)r->when;
        struct tm tm;
        char date[32] = "", size[32];

        if (r->when && localtime_r(&when, &tm)) strftime(date, sizeof date, "%Y-%m-%d %H:%M", &tm);
        if (r->bytes >= 1000000000) snprintf(size, sizeof size, "%.2f GB", (double)r->bytes / 1e9);
        else snprintf(size, sizeof size, "%.1f MB", (double)r->bytes / 1e6);
        buf_printf(out, "%-*s  %10s  %-11s  %s%s\n", width, r->name, size, r->type, date,
                   strcmp(r->source, "cache") == 0   ? ""
                   : strcmp(r->source, "alias") == 0 ? "  alias"
                                                     : "  the default model");
    }
}

int cmd_list(int argc, char **argv)
{
    bool json = false, helped;
    const struct arg table[] = {
        { "--json", NULL, ARG_FLAG, &json, NULL, "print one JSON object" },
        { 0 },
    };
    struct rows l = { 0 };
    struct buf out = { 0 };
    struct err e = { 0 };
    char *cache;
    int n_pos, rc;

    if (args_parse(&verb, table, argc, argv, NULL, 0, &n_pos, &helped, &e) != OK)
        return cmd_usage(verb.name, &e);
    if (helped) return EXIT_OK;
    cache = cli_need(hubcache_dir());
    rc = add_cached(&l, cache, &e);
    if (rc == OK) rc = add_aliases(&l, &e);
    if (rc == OK) add_shipped(&l);
    if (rc == OK && json) write_json(&l, cache, &out);
    else if (rc == OK) write_text(&l, &out);
    if (rc == OK) rc = cli_write(stdout, &out, &e);
    release_rows(&l);
    buf_release(&out);
    mem_free(cache);
    return cmd_result(rc, &e);
}
