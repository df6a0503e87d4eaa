/* The registry without memory: opening it over a folder and a list, and rescans. */
#include "fault.h"

#include "base/log.h"
#include "base/mem.h"
#include "pool/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[300];

static void write_model(const char *name)
{
    char path[400];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", root, name);
    f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
}

static void make_root(void)
{
    char path[400];

    snprintf(root, sizeof root, "%s/models", temp_dir());
    assert_int_equal(mkdir(root, 0777), 0);
    write_model("a.gguf");
    write_model("s-00001-of-00002.gguf");
    write_model("s-00002-of-00002.gguf");
    snprintf(path, sizeof path, "%s/sub", root);
    assert_int_equal(mkdir(path, 0777), 0);
    write_model("sub/b.gguf");
    write_model("sub/config.json");
    write_model("sub/c.onnx");
    snprintf(path, sizeof path, "%s/link.gguf", root);
    assert_int_equal(symlink("a.gguf", path), 0);
    snprintf(path, sizeof path, "%s/out.gguf", root);
    assert_int_equal(symlink("/etc/passwd", path), 0);
}

static int open_registry(struct registry **r, struct err *e)
{
    struct registry_item items[] = {
        { .path = "a.gguf",
          .aliases = { "one", "two" },
          .n_aliases = 2,
          .origin = REGISTRY_CONFIG,
          .where = "t.yaml:1",
          .opt = { .given = 1u << MODEL_DEVICE, .device = "cpu" } },
    };

    return registry_open(
        r, &(struct registry_opt){ .items = items, .n = 1, .models_dir = root, .preload = "two" },
        e);
}

static int open_and_close(void *arg, struct err *e)
{
    struct registry *r = NULL;
    int rc = open_registry(&r, e);

    (void)arg;
    if (rc != OK) assert_null(r);
    registry_close(r);
    return rc;
}

/* A rescan that fails marks nothing as gone, and the next one completes it. */
static int rescan(void *arg, struct err *e)
{
    struct registry *r = NULL;
    char path[400];
    int rc;

    (void)arg;
    if ((rc = open_registry(&r, e)) != OK) return rc;
    fault_pause();
    write_model("new.gguf");
    snprintf(path, sizeof path, "%s/new2.gguf", root);
    symlink("new.gguf", path);
    fault_resume();
    rc = registry_rescan(r, NULL, e);
    if (rc == OK) assert_true(registry_find(r, STR("new2")) >= 0);
    assert_int_equal(registry_find(r, STR("one")), 0);
    assert_true(registry_find(r, STR("s")) > 0);
    for (int i = 0; i < registry_n(r); i++)
        assert_int_equal(registry_find(r, str_c(registry_at(r, i)->id)), i);
    unlink(path);
    snprintf(path, sizeof path, "%s/new.gguf", root);
    unlink(path);
    registry_close(r);
    return rc;
}

#define COMMIT "0123456789012345678901234567890123456789"

static void write_text(const char *name, const char *text)
{
    FILE *f;
    char path[400];

    snprintf(path, sizeof path, "%s/%s", root, name);
    assert_non_null(f = fopen(path, "w"));
    fputs(text, f);
    fclose(f);
}

/* A model in a cache of the hub, below a hidden folder of the folder of models. */
static void make_cache(void)
{
    static const char *const folders[] = { ".hub",
                                           ".hub/models--o--m",
                                           ".hub/models--o--m/blobs",
                                           ".hub/models--o--m/refs",
                                           ".hub/models--o--m/snapshots",
                                           (".hub/models--o--m/snapshots/" COMMIT) };
    char path[400];

    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(path, sizeof path, "%s/%s", root, folders[i]);
        mkdir(path, 0777);
    }
    write_text(".hub/models--o--m/refs/main", COMMIT);
    write_text(".hub/models--o--m/blobs/x", "GGUF");
    snprintf(path, sizeof path, "%s/.hub/models--o--m/snapshots/" COMMIT "/m.gguf", root);
    unlink(path);
    assert_int_equal(symlink("../../blobs/x", path), 0);
    snprintf(path, sizeof path, "%s/.hub", root);
    setenv("HF_HUB_CACHE", path, 1);
}

/* A pulled model comes, gets another name, and goes. */
static int change(void *arg, struct err *e)
{
    struct registry *r = NULL;
    char *id = NULL;
    int i = -1, rc = open_registry(&r, e);

    (void)arg;
    if (rc == OK) rc = registry_hub_id(&id, STR("hf:o/m"), e);
    if (rc == OK) rc = registry_add_hub(r, id, &i, e);
    if (rc == OK) rc = registry_copy(r, i, STR("mine"), e);
    if (rc == OK) assert_int_equal(registry_find(r, STR("mine")), i);
    if (rc == OK) rc = registry_check_hub(r, i, e);
    if (r && i >= 0) assert_int_equal(registry_find_any(r, STR("hf.co/o/m")), i);
    mem_free(id);
    registry_close(r);
    return rc;
}

static void the_registry_reports_every_failure(void **state)
{
    (void)state;
    make_root();
    make_cache();
    fault_run("a registry changed by requests", change, NULL);
    fault_run("a registry opened", open_and_close, NULL);
    fault_run("a registry rescanned", rescan, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(the_registry_reports_every_failure) };

    fault_init();
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
