/* registry_world.h - a folder of models in a temporary folder, and a registry over it. Model files
 * are a few bytes: the registry reads names and file types, never contents. */
#ifndef TERN_TESTS_REGISTRY_WORLD_H
#define TERN_TESTS_REGISTRY_WORLD_H

#include "confine_world.h"

#include "base/err.h"
#include "pool/registry.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The path of name below the folder; valid for the next 7 calls. */
static inline const char *at(const char *name)
{
    static char paths[8][700];
    static int n;
    char *p = paths[n++ % 8];

    snprintf(p, sizeof paths[0], "%s/%s", name[0] == '/' ? "" : root, name);
    return p;
}

static inline void add_file(const char *name) { put_file(at(name), "GGUF"); }
static inline void add_folder(const char *name) { assert_int_equal(mkdir(at(name), 0777), 0); }
static inline void add_link(const char *target, const char *name)
{
    assert_int_equal(symlink(target, at(name)), 0);
}

static inline struct registry *open_folder(void)
{
    struct registry *r = NULL;
    struct err e = { 0 };

    if (registry_open(&r, &(struct registry_opt){ .models_dir = root }, &e) != OK)
        fail_msg("registry_open: %s", e.msg);
    return r;
}

static inline int open_items(struct registry **r, const struct registry_item *items, int n,
                             bool folder, struct err *e)
{
    return registry_open(
        r, &(struct registry_opt){ .items = items, .n = n, .models_dir = folder ? root : NULL }, e);
}

static inline void assert_refused(const struct registry_item *items, int n, int code,
                                  const char *says)
{
    struct registry *r = NULL;
    struct err e = { 0 };

    assert_int_equal(open_items(&r, items, n, true, &e), code);
    assert_null(r);
    if (!strstr(e.msg, says)) fail_msg("the error does not contain '%s': '%s'", says, e.msg);
}

/* All ids that are not gone, in order, separated by spaces. */
static inline const char *list_ids(const struct registry *r)
{
    static char text[2000];
    size_t n = 0;

    text[0] = 0;
    for (int i = 0; i < registry_n(r); i++) {
        const struct registry_model *m = registry_at(r, i);
        if (atomic_load(&m->gone)) continue;
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", n ? " " : "", m->id);
        assert_true(n < sizeof text);
        assert_int_equal(registry_find(r, str_c(m->id)), i);
        assert_int_equal(registry_verify(r, i, NULL), OK);
    }
    return text;
}

static inline const struct registry_model *find_model(const struct registry *r, const char *name)
{
    int i = registry_find(r, str_c(name));
    if (i < 0) fail_msg("no model '%s' among: %s", name, list_ids(r));
    return registry_at(r, i);
}

static inline struct registry_news rescan(struct registry *r)
{
    struct registry_news news;
    struct err e = { 0 };

    if (registry_rescan(r, &news, &e) != OK) fail_msg("registry_rescan: %s", e.msg);
    return news;
}

#endif
