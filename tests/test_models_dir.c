/* A folder of models: which files and folders are models, what their names are, and that nothing
 * outside of the folder can be reached. */
#include "registry_world.h"

#include "base/file.h"
#include "base/log.h"

#include <sys/socket.h>
#include <sys/un.h>

/* ---- the folder ---- */

static void a_folder_lists_files_folders_and_split_models(void **state)
{
    struct registry *r;

    (void)state;
    make_folders();
    add_file("plain.gguf");
    add_file("UPPER.GGUF");
    add_file("net.onnx");
    add_file("split-00001-of-00002.gguf");
    add_file("split-00002-of-00002.gguf");
    add_file("mmproj-plain.gguf");
    add_file("readme.md");
    add_file(".hidden.gguf");
    add_folder("single");
    add_file("single/weights-q4.gguf");
    add_file("single/mmproj-f16.gguf");
    add_folder("multi");
    add_file("multi/big-00001-of-00002.gguf");
    add_file("multi/big-00002-of-00002.gguf");
    add_folder("hf");
    add_file("hf/config.json");
    add_file("hf/model.safetensors");
    add_folder("exported");
    add_file("exported/config.json");
    add_folder("exported/onnx");
    add_file("exported/onnx/model.onnx");
    add_file("exported/onnx/model_int8.onnx");
    add_folder("org");
    add_file("org/q4.gguf");
    add_file("org/q8.gguf");
    add_folder("org/name");
    add_file("org/name/file.gguf");
    add_folder("org/name2");
    add_file("org/name2/config.json");
    add_file("org/name2/a.safetensors");
    add_folder("org/deep");
    add_folder("org/deep/deeper");
    add_file("org/deep/deeper/x.gguf");
    add_folder("nothing");
    r = open_folder();
    assert_string_equal(list_ids(r), "UPPER exported hf multi net org/name org/name2 org/q4 org/q8 "
                                     "plain single split");
    assert_string_equal(find_model(r, "single")->path, at("single/weights-q4.gguf"));
    assert_string_equal(find_model(r, "multi")->path, at("multi/big-00001-of-00002.gguf"));
    assert_string_equal(find_model(r, "hf")->path, at("hf"));
    assert_string_equal(find_model(r, "hf")->to_open, at("././hf")); /* confined to the folder */
    assert_string_equal(find_model(r, "split")->path, at("split-00001-of-00002.gguf"));
    assert_int_equal(find_model(r, "hf")->origin, REGISTRY_FOLDER);
    assert_false(find_model(r, "hf")->named || find_model(r, "hf")->preload);
    assert_true(find_model(r, "hf")->created > 1600000000);
    assert_string_equal(registry_dir(r), root);
    registry_close(r);
}

static void a_folder_that_is_a_model_is_listed_by_its_name(void **state)
{
    struct registry *r;

    (void)state;
    make_folders();
    add_file("config.json");
    add_file("model.safetensors");
    r = open_folder();
    assert_string_equal(list_ids(r), path_base(root));
    registry_close(r);
}

static void an_empty_folder_is_valid_and_a_missing_one_is_not(void **state)
{
    struct registry_opt o = { .models_dir = "/nowhere/models" };
    struct registry *r;
    struct err e = { 0 };

    (void)state;
    make_folders();
    r = open_folder();
    assert_int_equal(registry_n(r), 0);
    assert_int_equal(registry_find(r, STR("")), -1);
    registry_close(r);
    r = NULL;
    assert_int_equal(registry_open(&r, &o, &e), E_NOTFOUND);
    assert_non_null(strstr(e.msg, "models-dir '/nowhere/models': there is no such folder"));
    add_file("f");
    o.models_dir = at("f");
    assert_int_equal(registry_open(&r, &o, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "not a folder"));
    assert_null(r);
}

static void of_two_models_of_one_name_the_first_is_listed(void **state)
{
    struct registry_item item = {
        .path = "b.gguf", .aliases = { "x" }, .n_aliases = 1, .origin = REGISTRY_CONFIG
    };
    struct registry *r;
    struct err e = { 0 };

    (void)state;
    make_folders();
    add_file("b.gguf");
    add_file("x.gguf");
    add_file("x.onnx");
    add_folder("x");
    add_file("x/config.json");
    add_file("x/model.safetensors");
    r = open_folder();
    assert_string_equal(list_ids(r), "b x");
    assert_string_equal(find_model(r, "x")->path, at("x"));
    assert_int_equal(rescan(r).refused, 2);
    registry_close(r);
    assert_int_equal(open_items(&r, &item, 1, true, &e), OK); /* the list wins over the folder */
    assert_string_equal(find_model(r, "x")->path, at("b.gguf"));
    assert_string_equal(list_ids(r), "x");
    registry_close(r);
}

static void the_list_of_a_folder_is_bounded(void **state)
{
    struct registry *r;
    char name[40];

    (void)state;
    make_folders();
    for (int i = 0; i < REGISTRY_FOLDER_MAX + 5; i++) {
        snprintf(name, sizeof name, "m%04d.gguf", i);
        add_file(name);
    }
    r = open_folder();
    assert_int_equal(registry_n(r), REGISTRY_FOLDER_MAX);
    assert_true(registry_find(r, STR("m0000")) >= 0);
    assert_true(registry_find(r, STR("m0999")) >= 0);
    assert_int_equal(registry_find(r, STR("m1000")), -1);
    unlink(at("m0000.gguf"));
    assert_int_equal(rescan(r).gone, 1);
    assert_int_equal(registry_find(r, STR("m0000")), -1);
    assert_true(registry_find(r, STR("m1000")) >= 0); /* there is room for the next one */
    assert_int_equal(registry_n(r), REGISTRY_FOLDER_MAX + 1);
    registry_close(r);
}

/* ---- confinement ---- */

static void paths_of_the_list_stay_inside_the_folder(void **state)
{
    struct registry_item item = { .origin = REGISTRY_CONFIG, .where = "t.yaml:7" };
    struct registry *r = NULL;
    struct err e = { 0 };
    char text[700];

    (void)state;
    make_folders();
    add_file("in.gguf");
    snprintf(text, sizeof text, "%s/secret.gguf", outside);
    put_file(text, "GGUF");
    item.path = text;
    assert_refused(&item, 1, E_INVALID, "t.yaml:7: ");
    assert_refused(&item, 1, E_INVALID, "is outside the folder of models");
    item.path = "../outside1/secret.gguf";
    assert_refused(&item, 1, E_INVALID, "must be a path below");
    item.path = "sub/../../x.gguf";
    assert_refused(&item, 1, E_INVALID, "without '..'");
    item.path = "..";
    assert_refused(&item, 1, E_INVALID, "without '..'");
    item.path = "/etc/passwd";
    assert_refused(&item, 1, E_INVALID, "/etc/passwd is outside");
    snprintf(text, sizeof text, "%s/../%s/secret.gguf", root, path_base(outside));
    item.path = text;
    assert_refused(&item, 1, E_INVALID, "outside the folder of models");
    snprintf(text, sizeof text, "%s-else.gguf", root); /* the folder's name is only its beginning */
    put_file(text, "GGUF");
    assert_refused(&item, 1, E_INVALID, "outside the folder of models");
    item.path = "none.gguf";
    assert_refused(&item, 1, E_NOTFOUND, "there is no such file or folder");
    item.path = at("in.gguf"); /* absolute, and inside */
    assert_int_equal(open_items(&r, &item, 1, true, &e), OK);
    assert_string_equal(list_ids(r), "in");
    registry_close(r);
    item.origin = REGISTRY_FLAG; /* the operator's command line may name any file */
    item.path = text;
    item.where = NULL;
    assert_int_equal(open_items(&r, &item, 1, true, &e), OK);
    assert_int_equal(registry_n(r), 2);
    assert_true(registry_at(r, 0)->named && !registry_at(r, 1)->named);
    registry_close(r);
}

static void a_template_of_the_list_stays_inside_the_folder(void **state)
{
    struct registry_item item = { .path = "in.gguf",
                                  .origin = REGISTRY_CONFIG,
                                  .opt = { .given = 1u << MODEL_CHAT_TEMPLATE,
                                           .chat_template = "/etc/passwd" } };
    struct registry *r = NULL;
    struct err e = { 0 };

    (void)state;
    make_folders();
    add_file("in.gguf");
    add_file("t.jinja");
    assert_refused(&item, 1, E_INVALID, "chat-template: ");
    item.opt.chat_template = "../t.jinja";
    assert_refused(&item, 1, E_INVALID, "without '..'");
    item.opt.chat_template = "t.jinja";
    assert_int_equal(open_items(&r, &item, 1, true, &e), OK);
    assert_string_equal(registry_at(r, 0)->opt.chat_template, at("././t.jinja")); /* confined */
    registry_close(r);
}

static void links_that_leave_the_folder_are_refused(void **state)
{
    struct registry_item item = { .path = "out.gguf", .origin = REGISTRY_CONFIG };
    struct registry *r;
    char text[700];
    int n;

    (void)state;
    make_folders();
    snprintf(text, sizeof text, "%s/secret.gguf", outside);
    put_file(text, "GGUF");
    add_file("good.gguf");
    add_link(text, "out.gguf");
    add_link("/etc", "etc");
    add_link(outside, "folder");
    add_link("loop2.gguf", "loop1.gguf");
    add_link("loop1.gguf", "loop2.gguf");
    add_link(".", "self");
    add_link("nothing.gguf", "dangling.gguf");
    snprintf(text, sizeof text, "../%s/secret.gguf", path_base(outside));
    add_link(text, "relative.gguf");
    add_folder("hf");
    add_file("hf/config.json");
    add_file("hf/model.safetensors");
    add_link("/etc/passwd", "hf/tokenizer.json");
    add_file("split-00001-of-00002.gguf");
    snprintf(text, sizeof text, "%s/secret.gguf", outside);
    add_link(text, "split-00002-of-00002.gguf");
    add_folder("sub");
    add_file("sub/a.gguf");
    add_file("sub/b.gguf");
    add_link("..", "sub/up");
    r = open_folder();
    assert_string_equal(list_ids(r), "good sub/a sub/b");
    assert_int_equal(registry_find(r, STR("self/good")), -1);
    assert_int_equal(registry_find(r, STR("sub/up/good")), -1);
    n = rescan(r).refused;
    snprintf(text, sizeof text, "%s/secret2.gguf", outside);
    put_file(text, "GGUF");
    assert_int_equal(rescan(r).refused, n); /* folders outside are not even read */
    registry_close(r);
    assert_refused(&item, 1, E_INVALID, "out.gguf is outside the folder of models: it leads to");
    item.path = "hf";
    assert_refused(&item, 1, E_INVALID, "hf/tokenizer.json is outside the folder of models");
    item.path = "folder/secret.gguf";
    assert_refused(&item, 1, E_INVALID, "outside the folder of models");
    item.path = "split-00001-of-00002.gguf";
    assert_refused(&item, 1, E_INVALID, "split-00002-of-00002.gguf is outside");
}

static void a_link_inside_the_folder_is_another_name(void **state)
{
    struct registry *r;
    int a;

    (void)state;
    make_folders();
    add_folder("store");
    add_file("store/a.gguf");
    add_file("store/b.gguf");
    add_link("store/a.gguf", "best.gguf");
    add_link("store", "shelf");
    r = open_folder();
    assert_string_equal(list_ids(r), "store/a store/b"); /* loaded once, whatever its name */
    a = registry_find(r, STR("store/a"));
    assert_int_equal(registry_find(r, STR("best")), a);
    assert_int_equal(registry_find(r, STR("shelf/a")), a);
    assert_string_equal(registry_alias(r, a, 0), "best");
    assert_string_equal(registry_alias(r, a, 1), "shelf/a");
    assert_null(registry_alias(r, a, 2));
    unlink(at("best.gguf")); /* points to another model now */
    unlink(at("shelf"));
    add_link("store/b.gguf", "best.gguf");
    assert_int_equal(rescan(r).gone, 0);
    assert_int_equal(registry_find(r, STR("best")), registry_find(r, STR("store/b")));
    assert_int_equal(registry_find(r, STR("shelf/a")), -1);
    assert_null(registry_alias(r, a, 0));
    registry_close(r);
}

static void add_socket(const char *name)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    assert_true(fd >= 0);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", at(name));
    if (bind(fd, (struct sockaddr *)&a, sizeof a) != 0) print_message("no socket: long path\n");
    close(fd);
}

static void special_files_are_refused_without_waiting(void **state)
{
    struct registry_item item = { .path = "pipe.gguf", .origin = REGISTRY_CONFIG };
    struct registry *r;

    (void)state;
    make_folders();
    add_file("good.gguf");
    assert_int_equal(mkfifo(at("pipe.gguf"), 0666), 0);
    assert_int_equal(mkfifo(at("pipe"), 0666), 0);
    add_link("pipe.gguf", "link.gguf");
    add_link("/dev/zero", "zero.gguf");
    add_socket("s.gguf");
    add_folder("hf");
    add_file("hf/config.json");
    add_file("hf/model.safetensors");
    assert_int_equal(mkfifo(at("hf/tokenizer.json"), 0666), 0);
    add_folder("dir.gguf"); /* a folder of that name is a folder */
    r = open_folder();
    assert_string_equal(list_ids(r), "good");
    assert_true(rescan(r).refused >= 5);
    registry_close(r);
    assert_refused(&item, 1, E_INVALID, "pipe.gguf is a FIFO");
    item.path = "hf";
    assert_refused(&item, 1, E_INVALID, "hf/tokenizer.json is a FIFO");
}

static void odd_names_are_refused(void **state)
{
    struct registry_item item = {
        .path = "ok.gguf", .aliases = { "a\nb" }, .n_aliases = 1, .origin = REGISTRY_CONFIG
    };
    struct registry *r;

    (void)state;
    make_folders();
    add_file("new\nline.gguf");
    add_file("tab\there.gguf");
    add_file("escape\x1b[31m.gguf");
    add_file("delete\x7f.gguf");
    add_file("latin\xe9.gguf");
    add_file("ok.gguf");
    add_file("caf\xc3\xa9 \"quoted\" 100%s.gguf"); /* odd, and harmless */
    add_file("dots..in.name.gguf");
    add_folder("ctl\x01");
    add_file("ctl\x01/x.gguf");
    r = open_folder();
    assert_string_equal(list_ids(r), "caf\xc3\xa9 \"quoted\" 100%s dots..in.name ok");
    assert_int_equal(rescan(r).refused, 6);
    /* What a client may send as a name is only looked up. */
    assert_int_equal(registry_find(r, STR("../ok")), -1);
    assert_int_equal(registry_find(r, STR("./ok")), -1);
    assert_int_equal(registry_find(r, STR("ok.gguf")), -1);
    assert_int_equal(registry_find(r, STR("/etc/passwd")), -1);
    assert_int_equal(registry_find(r, STR("ok\0.gguf")), -1);
    assert_int_equal(registry_find(r, str_of(NULL, 0)), -1);
    registry_close(r);
    assert_refused(&item, 1, E_INVALID, "a name of a model has control characters");
}

static void a_load_checks_again_where_the_files_are(void **state)
{
    struct registry *r;
    struct err e = { 0 };
    char text[700];

    (void)state;
    make_folders();
    add_file("a.gguf");
    snprintf(text, sizeof text, "%s/secret.gguf", outside);
    put_file(text, "GGUF");
    r = open_folder();
    assert_int_equal(registry_verify(r, 0, &e), OK);
    unlink(at("a.gguf"));
    assert_int_equal(registry_verify(r, 0, &e), E_NOTFOUND);
    add_link(text, "a.gguf"); /* swapped after the scan */
    assert_int_equal(registry_verify(r, 0, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "outside the folder of models"));
    registry_close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_lists_files_folders_and_split_models),
        cmocka_unit_test(a_folder_that_is_a_model_is_listed_by_its_name),
        cmocka_unit_test(an_empty_folder_is_valid_and_a_missing_one_is_not),
        cmocka_unit_test(of_two_models_of_one_name_the_first_is_listed),
        cmocka_unit_test(the_list_of_a_folder_is_bounded),
        cmocka_unit_test(paths_of_the_list_stay_inside_the_folder),
        cmocka_unit_test(a_template_of_the_list_stays_inside_the_folder),
        cmocka_unit_test(links_that_leave_the_folder_are_refused),
        cmocka_unit_test(a_link_inside_the_folder_is_another_name),
        cmocka_unit_test(special_files_are_refused_without_waiting),
        cmocka_unit_test(odd_names_are_refused),
        cmocka_unit_test(a_load_checks_again_where_the_files_are),
    };

    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
