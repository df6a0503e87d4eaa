/* The registry: names and settings of models from flags and from the list, rescans, readers on other
 * threads. test_models_dir.c has the contents of folders and confinement. */
#include "registry_world.h"

#include "base/log.h"
#include "base/mem.h"
#include "pool/modelname.h"

#include <pthread.h>
#include <stdlib.h>

/* ---- names ---- */

static void an_id_below_a_folder_has_the_folders_before_it(void **state)
{
    static const char *const cases[][2] = {
        { "a.gguf", "a" },
        { "org/a.gguf", "org/a" },
        { "org/sub/a-00001-of-00002.gguf", "org/sub/a" },
        { "x/onnx/model.onnx", "x" },
        { "org/x/onnx/model_int8.onnx", "org/x_int8" },
        { "org/x/model.onnx", "org/x" },
        { "org/other.onnx", "org/other" },
        { "folder", "folder" },
        { "org/folder.v2", "org/folder.v2" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *id = model_id_below(cases[i][0]);
        assert_string_equal(id, cases[i][1]);
        mem_free(id);
    }
}

static void parts_of_a_split_file_are_recognized(void **state)
{
    int part, count;

    (void)state;
    assert_true(model_part_of(STR("m-00002-of-00013.gguf"), &part, &count));
    assert_int_equal(part, 2);
    assert_int_equal(count, 13);
    assert_false(model_part_of(STR("-00002-of-00013.gguf"), &part, &count));
    assert_false(model_part_of(STR("m-0002-of-00013.gguf"), &part, &count));
    assert_false(model_part_of(STR("m-00002-of-00013.onnx"), &part, &count));
    assert_false(model_part_of(STR("m.gguf"), &part, &count));
    assert_false(model_part_of(STR(""), &part, &count));
}

/* ---- models of flags and of the list ---- */

static void models_of_flags_are_named_loaded_and_kept(void **state)
{
    struct registry_item items[] = { { .path = NULL }, { .path = NULL, .n_aliases = 1 } };
    struct registry *r = NULL;
    struct err e = { 0 };

    (void)state;
    make_folders();
    add_file("a.gguf");
    items[0].path = items[1].path = at("a.gguf"); /* one file under two names */
    items[1].aliases[0] = "b";
    assert_int_equal(open_items(&r, items, 2, false, &e), OK);
    assert_string_equal(list_ids(r), "a b");
    assert_string_equal(find_model(r, "b")->path, items[1].path);
    assert_true(find_model(r, "a")->named && find_model(r, "a")->preload);
    assert_int_equal(find_model(r, "a")->origin, REGISTRY_FLAG);
    assert_int_equal(find_model(r, "a")->opt.given, 0);
    assert_int_equal(registry_find(r, STR("c")), -1);
    assert_int_equal(registry_find(r, STR("")), -1);
    assert_null(registry_dir(r));
    registry_close(r);
    items[1].aliases[0] = "a";
    assert_int_equal(open_items(&r, items, 2, false, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "are both named 'a': give one of them an alias"));
    items[0].path = at("none.gguf");
    assert_int_equal(open_items(&r, items, 1, false, &e), E_NOTFOUND);
    assert_non_null(strstr(e.msg, "there is no such file or folder"));
    assert_int_equal(open_items(&r, items, 0, false, &e), E_INVALID);
    registry_close(NULL);
}

static void a_list_gives_models_of_the_folder_names_and_settings(void **state)
{
    struct registry_item items[] = {
        { .path = "a.gguf",
          .aliases = { "main", "chat", "best" },
          .n_aliases = 3,
          .origin = REGISTRY_CONFIG,
          .opt = { .given = 1u << MODEL_CTX | 1u << MODEL_DEVICE, .ctx = 8192, .device = "cpu" } },
        { .path = "one/m.gguf", .origin = REGISTRY_CONFIG },
        { .path = "two",
          .origin = REGISTRY_CONFIG,
          .opt = { .given = 1u << MODEL_PRELOAD, .preload = true } },
    };
    struct registry *r = NULL;
    struct err e = { 0 };
    const struct registry_model *m;

    (void)state;
    make_folders();
    add_file("a.gguf");
    add_file("b.gguf");
    add_folder("one");
    add_file("one/m.gguf");
    add_folder("two");
    add_file("two/x.gguf");
    assert_int_equal(open_items(&r, items, 3, true, &e), OK);
    assert_string_equal(list_ids(r), "main one two b"); /* each file once */
    m = find_model(r, "chat");
    assert_string_equal(m->id, "main");
    assert_string_equal(registry_alias(r, 0, 0), "chat");
    assert_string_equal(registry_alias(r, 0, 1), "best");
    assert_null(registry_alias(r, 0, 2));
    assert_int_equal(m->opt.ctx, 8192);
    assert_string_equal(m->opt.device, "cpu");
    assert_ptr_not_equal(m->opt.device, items[0].opt.device);
    assert_false(model_has(&m->opt, MODEL_THREADS));
    assert_false(m->named || m->preload);
    assert_string_equal(find_model(r, "two")->path, at("two/x.gguf"));
    assert_true(find_model(r, "two")->preload);
    assert_int_equal(registry_find(r, STR("a")), -1); /* the alias is its name */
    assert_int_equal(rescan(r).added, 0);
    assert_string_equal(list_ids(r), "main one two b");
    registry_close(r);
}

static void a_list_without_a_folder_is_as_flags(void **state)
{
    struct registry_item item = { .origin = REGISTRY_CONFIG, .where = "t.yaml:3" };
    struct registry *r = NULL;
    struct err e = { 0 };

    (void)state;
    make_folders();
    add_file("a.gguf");
    item.path = at("a.gguf");
    assert_int_equal(open_items(&r, &item, 1, false, &e), OK);
    assert_true(registry_at(r, 0)->named && registry_at(r, 0)->preload);
    registry_close(r);
    item.opt = (struct model_opt){ .given = 1u << MODEL_PRELOAD };
    assert_int_equal(open_items(&r, &item, 1, false, &e), OK);
    assert_false(registry_at(r, 0)->preload);
    registry_close(r);
    item.path = "nowhere.gguf";
    assert_int_equal(open_items(&r, &item, 1, false, &e), E_NOTFOUND);
    assert_non_null(strstr(e.msg, "t.yaml:3: model 'nowhere.gguf'"));
}

static void preload_names_models(void **state)
{
    struct registry_opt o = { .models_dir = root, .preload = " b ,sub/c," };
    struct registry *r = NULL;
    struct err e = { 0 };

    (void)state;
    make_folders();
    add_file("a.gguf");
    add_file("b.gguf");
    add_folder("sub");
    add_file("sub/c.gguf");
    add_file("sub/d.gguf");
    assert_int_equal(registry_open(&r, &o, &e), OK);
    assert_true(find_model(r, "b")->preload && find_model(r, "sub/c")->preload);
    assert_false(find_model(r, "a")->preload);
    registry_close(r);
    o.preload = "a,nobody";
    assert_int_equal(registry_open(&r, &o, &e), E_INVALID);
    assert_non_null(strstr(e.msg, "preload: there is no model 'nobody'"));
}

/* ---- rescans ---- */

static void a_rescan_finds_new_vanished_and_returned_models(void **state)
{
    struct registry_news news;
    struct registry *r;
    const struct registry_model *a;

    (void)state;
    make_folders();
    add_file("a.gguf");
    add_file("b.gguf");
    r = open_folder();
    a = find_model(r, "a");
    news = rescan(r);
    assert_int_equal(news.added + news.gone + news.back + news.replaced + news.refused, 0);
    unlink(at("a.gguf"));
    add_file("c.gguf");
    news = rescan(r);
    assert_int_equal(news.added, 1);
    assert_int_equal(news.gone, 1);
    assert_true(atomic_load(&a->gone));
    assert_string_equal(list_ids(r), "b c");
    assert_int_equal(registry_find(r, STR("a")), -1);
    assert_string_equal(a->id, "a"); /* whoever uses it still can */
    add_file("a.gguf");
    news = rescan(r);
    assert_int_equal(news.back, 1);
    assert_int_equal(news.added, 0);
    assert_string_equal(list_ids(r), "a b c");
    assert_ptr_equal(find_model(r, "a"), a); /* the same entry */
    assert_int_equal(registry_n(r), 3);
    registry_close(r);
}

static void a_rescan_counts_replaced_files(void **state)
{
    struct registry_item flag = { .path = NULL };
    struct registry *r = NULL;
    struct err e = { 0 };
    const struct registry_model *m;

    (void)state;
    make_folders();
    add_file("a.gguf");
    add_file("s-00001-of-00002.gguf");
    add_file("s-00002-of-00002.gguf");
    add_folder("hf");
    add_file("hf/config.json");
    add_file("hf/model.safetensors");
    snprintf(outside + strlen(outside), 20, "/f.gguf");
    put_file(outside, "GGUF");
    flag.path = outside;
    assert_int_equal(open_items(&r, &flag, 1, true, &e), OK);
    assert_string_equal(list_ids(r), "f a hf s");
    m = find_model(r, "a");
    assert_int_equal(atomic_load(&m->version), 1);
    put_file(at("new"), "GGUF2");
    assert_int_equal(rename(at("new"), at("a.gguf")), 0);
    assert_int_equal(rescan(r).replaced, 1);
    assert_int_equal(atomic_load(&m->version), 2);
    assert_int_equal(rescan(r).replaced, 0);
    put_file(at("hf/model.safetensors"), "longer than before");
    assert_int_equal(rescan(r).replaced, 1);
    assert_int_equal(atomic_load(&find_model(r, "hf")->version), 2);
    put_file(at("s-00002-of-00002.gguf"), "longer than before"); /* a later part */
    assert_int_equal(rescan(r).replaced, 1);
    assert_int_equal(atomic_load(&find_model(r, "s")->version), 2);
    put_file(outside, "longer than before");
    assert_int_equal(rescan(r).replaced, 1);
    assert_int_equal(atomic_load(&find_model(r, "f")->version), 2);
    unlink(outside); /* a model of a flag stays listed; loading it fails */
    assert_int_equal(rescan(r).gone, 0);
    assert_int_equal(registry_verify(r, 0, &e), E_NOTFOUND);
    assert_false(atomic_load(&registry_at(r, 0)->gone));
    registry_close(r);
}

static void a_name_can_go_to_another_file_and_back(void **state)
{
    struct registry *r;

    (void)state;
    make_folders();
    add_folder("x");
    add_file("x/m.gguf");
    r = open_folder();
    assert_string_equal(list_ids(r), "x");
    for (int i = 0; i < 5; i++) {
        add_file("x/other.gguf"); /* x is a folder of two models now */
        assert_int_equal(rescan(r).gone, 1);
        assert_string_equal(list_ids(r), "x/m x/other");
        unlink(at("x/other.gguf"));
        assert_int_equal(rescan(r).gone, 2);
        assert_string_equal(list_ids(r), "x");
    }
    assert_int_equal(registry_n(r), 3); /* entries come back */
    assert_int_equal(rename(at("x/m.gguf"), at("x.gguf")), 0);
    rescan(r);
    assert_string_equal(list_ids(r), "x");
    assert_string_equal(find_model(r, "x")->path, at("x.gguf"));
    assert_int_equal(rename(at("x.gguf"), at("x/m.gguf")), 0);
    rescan(r);
    assert_string_equal(find_model(r, "x")->path, at("x/m.gguf"));
    assert_int_equal(registry_n(r), 4);
    registry_close(r);
}

static void a_folder_that_cannot_be_read_changes_nothing(void **state)
{
    struct registry *r;
    struct err e = { 0 };
    char moved[320];

    (void)state;
    make_folders();
    add_file("a.gguf");
    r = open_folder();
    snprintf(moved, sizeof moved, "%s-moved", root);
    assert_int_equal(rename(root, moved), 0);
    assert_int_equal(registry_rescan(r, NULL, &e), E_IO);
    assert_int_equal(registry_find(r, STR("a")), 0);
    assert_int_equal(rename(moved, root), 0);
    assert_int_equal(rescan(r).gone, 0);
    registry_close(r);
}

/* ---- threads ---- */

struct reader {
    struct registry *r;
    atomic_bool *stop;
    long n_found;
};

static void *read_names(void *arg)
{
    struct reader *w = arg;

    while (!atomic_load(w->stop)) {
        int n = registry_n(w->r), i = registry_find(w->r, STR("steady"));

        if (i >= 0) w->n_found += strcmp(registry_at(w->r, i)->id, "steady") == 0;
        for (int j = 0; j < n; j++) {
            const struct registry_model *m = registry_at(w->r, j);
            if (!m->id[0] || !m->path[0] || atomic_load(&m->version) < 1) abort();
            registry_alias(w->r, j, 0);
        }
        i = registry_find(w->r, STR("coming"));
        if (i >= registry_n(w->r)) abort();
    }
    return NULL;
}

static void threads_read_while_one_rescans(void **state)
{
    enum { READERS = 3, ROUNDS = 60 };
    struct reader readers[READERS];
    pthread_t threads[READERS];
    atomic_bool stop = false;
    struct registry *r;
    char name[40];

    (void)state;
    make_folders();
    add_file("steady.gguf");
    r = open_folder();
    for (int i = 0; i < READERS; i++) {
        readers[i] = (struct reader){ .r = r, .stop = &stop };
        assert_int_equal(pthread_create(&threads[i], NULL, read_names, &readers[i]), 0);
    }
    for (int i = 0; i < ROUNDS; i++) {
        snprintf(name, sizeof name, "m%d.gguf", i);
        add_file(name);
        if (i % 2) add_file("coming.gguf");
        else unlink(at("coming.gguf"));
        rescan(r);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < READERS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(registry_n(r), ROUNDS + 2);
    registry_close(r);
}

/* ---- copies ---- */

static void a_copy_is_a_name_until_it_is_dropped(void **state)
{
    struct registry *r;
    struct err e = { 0 };

    (void)state;
    make_folders();
    add_file("a.gguf");
    add_file("b.gguf");
    r = open_folder();
    assert_int_equal(registry_copy(r, 0, STR("c:latest"), &e), OK);
    assert_int_equal(registry_find(r, STR("c")), 0);
    assert_string_equal(registry_alias(r, 0, 0), "c");
    assert_int_equal(registry_copy(r, 1, STR("c"), &e), OK); /* a copy may move */
    assert_int_equal(registry_find(r, STR("c")), 1);
    assert_int_equal(registry_copy(r, 1, STR("a"), &e), E_INVALID);
    assert_int_equal(registry_copy(r, 1, STR(""), &e), E_INVALID);
    assert_int_equal(registry_copy(r, 1, str_of("x\0y", 3), &e), E_INVALID);
    assert_int_equal(registry_copy(r, 1, STR("x\x01"), &e), E_INVALID);
    assert_false(registry_drop_copy(r, STR("a")));
    add_file("c.gguf"); /* the name is taken */
    rescan(r);
    assert_int_equal(registry_find(r, STR("c")), 1);
    assert_true(registry_drop_copy(r, STR("c")));
    assert_false(registry_drop_copy(r, STR("c")));
    assert_int_equal(registry_find(r, STR("c")), -1);
    rescan(r); /* now the file gets it */
    assert_int_equal(registry_find(r, STR("c")), 2);
    unlink(at("c.gguf"));
    rescan(r);
    assert_int_equal(registry_find(r, STR("c")), -1);
    registry_close(r);
}

static void a_pulled_model_has_the_name_of_the_hub(void **state)
{
    static const char *const same[] = { "hf:Org/M:Q8_0", "hf.co/Org/M:Q8_0",
                                        "huggingface.co/Org/M:Q8_0", "hf.co/Org/M:Q8_0:latest" };
    static const char *const bad[] = { "Org/M", "hf:", "hf:../x", "hf.co/a/b/c", "hf:a/b:../c" };
    struct err e = { 0 };
    char *id = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        assert_int_equal(registry_hub_id(&id, str_c(same[i]), &e), OK);
        assert_string_equal(id, "hf.co/Org/M:Q8_0");
        mem_free(id);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(registry_hub_id(&id, str_c(bad[i]), &e), E_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_id_below_a_folder_has_the_folders_before_it),
        cmocka_unit_test(parts_of_a_split_file_are_recognized),
        cmocka_unit_test(models_of_flags_are_named_loaded_and_kept),
        cmocka_unit_test(a_list_gives_models_of_the_folder_names_and_settings),
        cmocka_unit_test(a_list_without_a_folder_is_as_flags),
        cmocka_unit_test(preload_names_models),
        cmocka_unit_test(a_rescan_finds_new_vanished_and_returned_models),
        cmocka_unit_test(a_rescan_counts_replaced_files),
        cmocka_unit_test(a_name_can_go_to_another_file_and_back),
        cmocka_unit_test(a_folder_that_cannot_be_read_changes_nothing),
        cmocka_unit_test(threads_read_while_one_rescans),
        cmocka_unit_test(a_copy_is_a_name_until_it_is_dropped),
        cmocka_unit_test(a_pulled_model_has_the_name_of_the_hub),
    };

    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
