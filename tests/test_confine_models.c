/* The files of models at confined paths: no reader opens anything outside, whatever file of the model
 * leads there. The files that a load opens are not listed here: inotify tells which they are. */
#include "confine_world.h"

#include "base/file.h"
#include "base/log.h"
#include "convert/tohf.h"
#include "engine/engine.h"
#include "engine/options.h"
#include "format/safetensors.h"
#include "onnx_world.h"
#include "pool/modelbytes.h"
#include "pool/prompter.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/inotify.h>

/* Loads all that a server would. */
static int load_model(const char *path, struct err *e)
{
    struct engine_opt o = { .n_ctx = 64, .kv_tokens = 64, .max_seqs = 1, .n_threads = 1 };
    struct engine *g = NULL;
    struct prompter *p = NULL;
    int rc = engine_open(&g, path, &o, e);

    model_file_bytes(path);
    if (rc == OK && engine_tokenizer(g)) rc = prompter_open(&p, engine_tokenizer(g), NULL, e);
    prompter_close(p);
    engine_close(g);
    return rc;
}

static void copy_file(const char *from, const char *to)
{
    struct buf b = { 0 };
    struct err e = { 0 };

    if (file_read(&b, from, SIZE_MAX, &e) != OK) fail_msg("%s", e.msg);
    if (file_replace(to, buf_str(&b), &e) != OK) fail_msg("%s", e.msg);
    buf_release(&b);
}

/* Copies the files of a folder and of its subfolders. */
static void copy_folder(const char *from, const char *to)
{
    DIR *d = opendir(from);
    char a[PATH_MAX], b[PATH_MAX];

    assert_non_null(d);
    mkdir(to, 0777);
    for (struct dirent *x; (x = readdir(d));) {
        if (x->d_name[0] == '.') continue;
        set_path(a, "%s/%s", from, x->d_name);
        set_path(b, "%s/%s", to, x->d_name);
        if (file_is_dir(a)) copy_folder(a, b);
        else copy_file(a, b);
    }
    closedir(d);
}

enum { NAMES = 40 };

struct names { /* of files below a folder, relative to it */
    char name[NAMES][100];
    int n;
};

static void add_name(struct names *list, const char *sub, const char *name)
{
    char full[100];

    snprintf(full, sizeof full, "%.40s%s%.50s", sub, *sub ? "/" : "", name);
    for (int i = 0; i < list->n; i++)
        if (strcmp(list->name[i], full) == 0) return;
    assert_true(list->n < NAMES);
    strcpy(list->name[list->n++], full);
}

static bool has_name(const struct names *list, const char *name)
{
    for (int i = 0; i < list->n; i++)
        if (strcmp(list->name[i], name) == 0) return true;
    return false;
}

static int watch_folder(const char *dir)
{
    int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);

    assert_true(fd >= 0);
    assert_true(inotify_add_watch(fd, dir, IN_OPEN) >= 0);
    return fd;
}

/* Adds the files that were opened since; the events are those of the folder `sub`. */
static void read_opened(int fd, const char *sub, struct names *out)
{
    _Alignas(struct inotify_event) char room[16384];
    ssize_t n;

    while ((n = read(fd, room, sizeof room)) > 0)
        for (char *p = room; p < room + n;) {
            const struct inotify_event *x = (const void *)p;
            if (x->len && !(x->mask & IN_ISDIR)) add_name(out, sub, x->name);
            p += sizeof *x + x->len;
        }
    close(fd);
}

/* Which files does a load of the model open? subs: folders below dir; "" is dir itself. */
static struct names find_opened(const char *dir, const char *model, const char *const *subs, int n)
{
    struct names found = { 0 };
    struct err e = { 0 };
    int fds[8];

    for (int i = 0; i < n; i++) fds[i] = watch_folder(in(dir, subs[i]));
    if (load_model(model, &e) != OK) fail_msg("%s: %s", model, e.msg);
    for (int i = 0; i < n; i++) read_opened(fds[i], subs[i], &found);
    return found;
}

/* A load that must fail, without one file of the outside being opened. */
static void assert_load_refused(const char *model, const char *name, const char *says)
{
    struct names opened = { 0 };
    struct err e = { 0 };
    int fd = watch_folder(outside), rc = load_model(model, &e);

    read_opened(fd, "", &opened);
    if (opened.n) fail_msg("%s: %s outside was opened", name, opened.name[0]);
    if (rc == OK) fail_msg("%s: the model was loaded", name);
    if (!strstr(e.msg, says)) fail_msg("%s: '%s', expected '%s'", name, e.msg, says);
}

/* Replaces one file of the model by what must not be opened, and in the end by links to the inside,
 * which may. */
static void attack_file(const char *model, const char *dir, const char *name)
{
    char path[PATH_MAX], out[PATH_MAX], kept[PATH_MAX], text[PATH_MAX];
    struct err e = { 0 };

    set_path(path, "%s/%s", dir, name);
    set_path(out, "%s/secret", outside);
    set_path(kept, "%s/kept", root);
    copy_file(path, out);
    assert_int_equal(rename(path, kept), 0);
    put_link(out, path);
    assert_load_refused(model, name, "leads out of the folder");
    set_path(text, "%s../%s/secret", strchr(name, '/') ? "../../" : "../", path_base(outside));
    put_link(text, path);
    assert_load_refused(model, name, "leads out of the folder");
    put_link("/dev/zero", path);
    assert_load_refused(model, name, "leads out of the folder");
    unlink(path);
    assert_int_equal(mkfifo(path, 0666), 0);
    assert_load_refused(model, name, "is a FIFO");
    unlink(path);
    assert_int_equal(mkdir(path, 0777), 0);
    assert_load_refused(model, name, "");
    rmdir(path);
    put_link(kept, path);
    if (load_model(model, &e) != OK) fail_msg("a link to %s: %s", kept, e.msg);
    set_path(text, "%skept", strchr(name, '/') ? "../../" : "../");
    put_link(text, path);
    if (load_model(model, &e) != OK) fail_msg("a link to %s: %s", text, e.msg);
    unlink(path);
    assert_int_equal(rename(kept, path), 0);
}

static void assert_opens(const struct names *opened, const char *const *names, int n)
{
    for (int i = 0; i < n; i++)
        if (!has_name(opened, names[i])) fail_msg("%s was not opened", names[i]);
}

static void no_file_of_a_folder_leads_out(void **state)
{
    static const char *const subs[] = { "", "additional_chat_templates", "1_Pooling" };
    static const char *const expected[] = { "config.json",
                                            "generation_config.json",
                                            "tokenizer.json",
                                            "tokenizer_config.json",
                                            "chat_template.jinja",
                                            "additional_chat_templates/tool_use.jinja",
                                            "1_Pooling/config.json",
                                            "modules.json",
                                            "model.safetensors.index.json",
                                            "model-00001-of-00002.safetensors",
                                            "model-00002-of-00002.safetensors" };
    char dir[PATH_MAX];
    struct tohf_opt o = { .src = repo("models/tern-tales.gguf"),
                          .dst = dir,
                          .shard_bytes = 28 << 20 };
    struct tohf_result result;
    struct names opened;
    struct err e = { 0 };

    (void)state;
    log_set_level(LOG_ERROR);
    make_folders();
    set_path(dir, "%s/hf", root);
    if (tohf_run(&o, &result, &e) != OK) fail_msg("%s", e.msg);
    assert_int_equal(result.n_files, 2);
    put_file(in(dir, "chat_template.jinja"), "{{ messages }}");
    put_file(in(dir, "modules.json"), "[]");
    mkdir(in(dir, subs[1]), 0777);
    mkdir(in(dir, subs[2]), 0777);
    put_file(in(dir, "additional_chat_templates/tool_use.jinja"), "{{ tools }}");
    put_file(in(dir, "1_Pooling/config.json"), "{}");
    opened = find_opened(dir, confined("hf"), subs, 3);
    assert_opens(&opened, expected, sizeof expected / sizeof *expected);
    for (int i = 0; i < opened.n; i++) attack_file(confined("hf"), dir, opened.name[i]);
    assert_int_equal(load_model(confined("hf"), &e), OK);
}

static void no_file_of_an_onnx_model_leads_out(void **state)
{
    static const char *const subs[] = { "", "onnx", "1_Pooling" };
    static const char *const expected[] = { "config.json",           "tern.json",
                                            "tokenizer.json",        "modules.json",
                                            "1_Pooling/config.json", "onnx/model.onnx" };
    char dir[PATH_MAX];
    struct names opened;
    struct err e = { 0 };

    (void)state;
    log_set_level(LOG_ERROR);
    make_folders();
    set_path(dir, "%s/embed", root);
    copy_folder(repo("tests/golden/onnx/embed"), dir);
    put_file(in(dir, "tern.json"), "{}");
    opened = find_opened(dir, confined("embed"), subs, 3);
    assert_opens(&opened, expected, sizeof expected / sizeof *expected);
    for (int i = 0; i < opened.n; i++) {
        attack_file(confined("embed"), dir, opened.name[i]);
        attack_file(confined("embed/onnx/model.onnx"), dir, opened.name[i]);
    }
    /* the folder of the model as a link */
    assert_int_equal(rename(dir, in(outside, "embed")), 0);
    put_link(in(outside, "embed"), dir);
    assert_int_not_equal(load_model(confined("embed"), &e), OK);
    assert_int_not_equal(load_model(confined("embed/onnx/model.onnx"), &e), OK);
}

/* A model whose only tensor is external data. */
static void write_external_model(const char *path, const char *location)
{
    static const char *const keys[] = { "location", "offset", "length" };
    const char *values[] = { location, "0", "8" };
    struct buf g = { 0 }, t = { 0 }, bytes = { 0 };

    pbw_int(&t, 1, 2);
    pbw_int(&t, 2, 1);
    pbw_bytes(&t, 8, STR("w"));
    for (int i = 0; i < 3; i++) {
        struct buf entry = { 0 };
        pbw_bytes(&entry, 1, str_c(keys[i]));
        pbw_bytes(&entry, 2, str_c(values[i]));
        pbw_buf(&t, 13, &entry);
    }
    pbw_int(&t, 14, 1);
    pbw_buf(&g, 5, &t);
    add_node(&g, "Neg", "w", "x", "");
    add_io(&g, 12, "x", 1, NULL);
    model_bytes(&bytes, &g, 13);
    assert_int_equal(file_replace(path, buf_str(&bytes), NULL), OK);
    buf_release(&bytes);
}

static void assert_onnx(const char *location, const char *says)
{
    struct names opened = { 0 };
    struct onnx *m = NULL;
    struct err e = { 0 };
    int fd = watch_folder(outside), rc;

    write_external_model(in(root, "m.onnx"), location);
    rc = onnx_open(&m, confined("m.onnx"), &e);
    onnx_close(m);
    read_opened(fd, "", &opened);
    if (opened.n) fail_msg("%s: %s outside was opened", location, opened.name[0]);
    if (!says && rc != OK) fail_msg("%s: %s", location, e.msg);
    if (says && rc == OK) fail_msg("%s: was opened", location);
    if (says && !strstr(e.msg, says)) fail_msg("%s: '%s', not '%s'", location, e.msg, says);
}

static void external_data_does_not_lead_out(void **state)
{
    char text[PATH_MAX];

    (void)state;
    make_folders();
    put_file(in(root, "good"), "12345678");
    put_file(in(outside, "secret"), "12345678");
    mkdir(in(root, "deep"), 0777);
    mkdir(in(root, "deep/er"), 0777);
    mkdir(in(root, "deep/er/est"), 0777); /* deeper than the scan looks */
    put_link(in(outside, "secret"), in(root, "deep/er/est/w"));
    put_link(in(outside, "secret"), in(root, ".hidden"));
    put_link(outside, in(root, "folder"));
    put_link("../../../good", in(root, "deep/er/est/v"));
    put_link("/dev/zero", in(root, "zero"));
    mkfifo(in(root, "pipe"), 0666);
    assert_onnx("good", NULL);
    assert_onnx("deep/er/est/v", NULL);
    assert_onnx("deep/er/est/w", "leads out of the folder");
    assert_onnx(".hidden", "leads out of the folder");
    assert_onnx("folder/secret", "leads out of the folder");
    assert_onnx("zero", "leads out of the folder");
    assert_onnx("pipe", "is a FIFO");
    assert_onnx("deep", "is a directory");
    set_path(text, "../%s/secret", path_base(outside));
    assert_onnx(text, "external data");
    assert_onnx(in(outside, "secret"), "external data");
}

static void assert_index(const char *shard, const char *says)
{
    struct safetensors *s = NULL;
    struct names opened = { 0 };
    struct err e = { 0 };
    char json[PATH_MAX + 60];
    int fd = watch_folder(outside), rc;

    snprintf(json, sizeof json, "{\"weight_map\": {\"w\": \"%s\"}}", shard);
    put_file(in(root, "model.safetensors.index.json"), json);
    rc = safetensors_open_dir(&s, confined(""), &e);
    safetensors_close(s);
    read_opened(fd, "", &opened);
    if (opened.n) fail_msg("%s: %s outside was opened", shard, opened.name[0]);
    if (!says && rc != OK) fail_msg("%s: %s", shard, e.msg);
    if (says && rc == OK) fail_msg("%s: was opened", shard);
    if (says && !strstr(e.msg, says)) fail_msg("%s: '%s', not '%s'", shard, e.msg, says);
}

static void shards_that_an_index_names_do_not_lead_out(void **state)
{
    static const char head[] =
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}    ";
    char bytes[8 + sizeof head - 1 + 4] = { sizeof head - 1 }, text[PATH_MAX];
    struct str file = str_of(bytes, sizeof bytes);

    (void)state;
    make_folders();
    memcpy(bytes + 8, head, sizeof head - 1);
    assert_int_equal(file_replace(in(root, "good"), file, NULL), OK);
    assert_int_equal(file_replace(in(outside, "secret"), file, NULL), OK);
    put_link(in(outside, "secret"), in(root, ".hidden"));
    put_link(outside, in(root, "folder"));
    put_link("good", in(root, "fine"));
    mkfifo(in(root, "pipe"), 0666);
    assert_index("good", NULL);
    assert_index("fine", NULL);
    assert_index(".hidden", "leads out of the folder");
    assert_index("folder/secret", "leads out of the folder");
    assert_index("pipe", "is a FIFO");
    assert_index(".", "");
    assert_index("", "");
    assert_index(in(outside, "secret"), "");
    set_path(text, "../%s/secret", path_base(outside));
    assert_index(text, "");
}

static void a_template_file_does_not_lead_out(void **state)
{
    struct err e = { 0 };
    struct buf b = { 0 };
    json_t *vars = json_object();

    (void)state;
    make_folders();
    put_file(in(outside, "secret"), "S");
    put_file(in(root, "good"), "G");
    put_link(in(outside, "secret"), in(root, "t.jinja"));
    assert_int_equal(prompter_render_vars(NULL, confined("good"), vars, &b, &e), OK);
    assert_int_equal(prompter_render_vars(NULL, confined("t.jinja"), vars, &b, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "leads out of the folder"));
    json_decref(vars);
    buf_release(&b);
}

static void no_gguf_file_or_part_leads_out(void **state)
{
    struct err e = { 0 };

    (void)state;
    log_set_level(LOG_ERROR);
    make_folders();
    mkdir(in(root, "g"), 0777);
    copy_file(repo("models/tern-tales.gguf"), in(root, "g/m.gguf"));
    assert_int_equal(load_model(confined("g/m.gguf"), &e), OK);
    attack_file(confined("g/m.gguf"), in(root, "g"), "m.gguf");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_file_of_a_folder_leads_out),
        cmocka_unit_test(no_file_of_an_onnx_model_leads_out),
        cmocka_unit_test(external_data_does_not_lead_out),
        cmocka_unit_test(shards_that_an_index_names_do_not_lead_out),
        cmocka_unit_test(a_template_file_does_not_lead_out),
        cmocka_unit_test(no_gguf_file_or_part_leads_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
