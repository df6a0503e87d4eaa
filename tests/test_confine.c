/* Confined paths: nothing outside their folder can be opened through them, by whatever name, link or
 * race. */
#include "confine_world.h"

#include "base/confine.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>

/* ---- the text of a path ---- */

static void a_mark_is_made_found_and_removed(void **state)
{
    static const struct {
        const char *path, *clean;
    } cases[] = {
        { "/m/././a.gguf", "/m/a.gguf" },
        { "/m/./.", "/m" },
        { "/./.", "/" },
        { "/././a", "/a" },
        { "/m/./.hidden", "/m/./.hidden" },
        { "/m/./../a", "/m/./../a" },
        { "/m/./a", "/m/./a" },
        { "a '/m/./.' and /m/././b: no", "a '/m' and /m/b: no" },
        { "", "" },
    };
    char text[100], *path;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(text, sizeof text, "%s", cases[i].path);
        confine_clean(text);
        assert_string_equal(text, cases[i].clean);
    }
    assert_true(confine_is("/m/././a") && confine_is("/m/./.") && confine_is("m/././a"));
    assert_false(confine_is("/m/./a") || confine_is("/m/./.a") || confine_is("././a"));
    path = confine_path("/m/", "a/b");
    assert_string_equal(path, "/m/././a/b");
    mem_free(path);
    path = confine_path("/m/./.", "a");
    assert_string_equal(path, "/m/././a");
    mem_free(path);
    path = confine_path("/", "");
    assert_string_equal(path, "/./.");
    mem_free(path);
}

static void the_part_below_the_root_is_found_however_it_is_spelled(void **state)
{
    const char *other;

    (void)state;
    make_folders();
    other = in(temp_dir(), "other-name");
    put_link(root, other);
    assert_string_equal(confine_below(root, in(root, "a/b")), "a/b");
    assert_string_equal(confine_below(root, in(other, "a//b")), "a//b");
    assert_string_equal(confine_below(root, root), "");
    assert_null(confine_below(root, in(outside, "a")));
    assert_null(confine_below(root, "relative"));
    assert_null(confine_below(root, "/nowhere/a"));
    assert_null(confine_below("/nowhere", root));
    unlink(other);
}

/* ---- opening ---- */

/* The text of the file at a confined path; "": it could not be read, and errno says why. */
static const char *read_text(const char *name)
{
    static char text[64];
    int fd = confine_open(confined(name), O_RDONLY);
    ssize_t n;

    text[0] = 0;
    if (fd < 0) return text;
    n = read(fd, text, sizeof text - 1);
    text[n > 0 ? n : 0] = 0;
    close(fd);
    return text;
}

static void assert_fails(const char *name, int why)
{
    assert_string_equal(read_text(name), "");
    if (errno != why) fail_msg("%s: %s, expected %s", name, strerror(errno), strerror(why));
}

static void names_and_links_inside_are_followed(void **state)
{
    (void)state;
    make_folders();
    mkdir(in(root, "sub"), 0777);
    mkdir(in(root, "sub/deep"), 0777);
    put_file(in(root, "a"), "A");
    put_file(in(root, "sub/b"), "B");
    put_link("../a", in(root, "sub/up"));
    put_link("../../sub/b", in(root, "sub/deep/round"));
    put_link(in(root, "sub/b"), in(root, "absolute"));
    put_link(in(root, "sub"), in(root, "folder"));
    put_link("folder/up", in(root, "chain"));
    put_link(".", in(root, "self"));
    assert_string_equal(read_text("a"), "A");
    assert_string_equal(read_text("sub//b"), "B");
    assert_string_equal(read_text("sub/../a"), "A");
    assert_string_equal(read_text("./sub/./b"), "B");
    assert_string_equal(read_text("sub/deep/../../a"), "A");
    assert_string_equal(read_text("sub/up"), "A");
    assert_string_equal(read_text("sub/deep/round"), "B");
    assert_string_equal(read_text("absolute"), "B");
    assert_string_equal(read_text("folder/b"), "B");
    assert_string_equal(read_text("chain"), "A");
    assert_string_equal(read_text("self/self/self/a"), "A");
    assert_true(file_is_dir(confined("folder")) && file_is_dir(confined("")));
    assert_true(file_is_dir(confined("sub/..")) && !file_is_dir(confined("a")));
    assert_true(file_exists(confined("a")) && !file_exists(confined("none")));
}

static void nothing_leads_out(void **state)
{
    char text[PATH_MAX], link[40];

    (void)state;
    make_folders();
    mkdir(in(root, "sub"), 0777);
    put_file(in(outside, "secret"), "S");
    put_file(in(root, "a"), "A");
    set_path(text, "../%s/secret", path_base(outside));
    put_link(text, in(root, "relative"));
    put_link(in(outside, "secret"), in(root, "absolute"));
    put_link(outside, in(root, "folder"));
    put_link("relative", in(root, "chain"));
    put_link("..", in(root, "sub/up"));
    put_link("/", in(root, "top"));
    put_link("/proc/self/root", in(root, "magic"));
    put_link("loop2", in(root, "loop1"));
    put_link("loop1", in(root, "loop2"));
    put_link("nothing", in(root, "dangling"));
    assert_fails(text, EXDEV);
    assert_fails("..", EXDEV);
    assert_fails("sub/../../x", EXDEV);
    assert_fails("sub/up/../x", EXDEV);
    assert_fails("relative", EXDEV);
    assert_fails("absolute", EXDEV);
    assert_fails("folder/secret", EXDEV);
    assert_fails("chain", EXDEV);
    assert_fails("top/etc/passwd", EXDEV);
    assert_fails("magic/etc/passwd", EXDEV);
    assert_fails("loop1", ELOOP);
    assert_fails("dangling", ENOENT);
    assert_fails("a/b", ENOTDIR);
    for (int i = 0; i < 50; i++) { /* as many links as the kernel follows, and not more */
        snprintf(link, sizeof link, "link%d", i);
        set_path(text, "link%d", i - 1);
        put_link(i ? text : "a", in(root, link));
    }
    assert_string_equal(read_text("link39"), "A");
    assert_fails("link40", ELOOP);
    assert_true(file_exists(confined("relative"))); /* and whoever opens it is told */
    assert_false(file_is_dir(confined("folder")));
}

static void long_and_deep_paths_are_refused(void **state)
{
    char text[PATH_MAX];
    int n = 0;

    (void)state;
    make_folders();
    memset(text, 'x', sizeof text);
    text[NAME_MAX + 1] = 0;
    assert_fails(text, ENAMETOOLONG);
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    put_link(text, in(root, "long"));
    assert_fails("long/a", ENAMETOOLONG);
    for (int i = 0; i < 100; i++) {
        n += snprintf(text + n, sizeof text - (size_t)n, "d/");
        mkdir(in(root, text), 0777);
    }
    assert_fails(text, ENAMETOOLONG);
}

static void special_files_are_not_opened(void **state)
{
    struct buf b = { 0 };
    struct err e = { 0 };
    struct stat st;
    int fd;

    (void)state;
    make_folders();
    assert_int_equal(mkfifo(in(root, "pipe"), 0666), 0);
    put_link("pipe", in(root, "link"));
    for (int i = 0; i < 2; i++) {
        fd = confine_open(confined(i ? "link" : "pipe"), O_RDONLY);
        assert_true(fd >= 0);
        assert_int_equal(fstat(fd, &st), 0);
        assert_true(S_ISFIFO(st.st_mode));
        assert_true(fcntl(fd, F_GETFL) & O_PATH);
        close(fd);
    }
    assert_int_equal(file_read(&b, confined("pipe"), 100, &e), E_IO);
    assert_non_null(strstr(e.msg, "is a FIFO"));
    assert_int_equal(confine_open(confined("pipe"), O_RDONLY | O_DIRECTORY), -1);
    assert_int_equal(errno, ENOTDIR);
    buf_release(&b);
}

static void no_descriptor_is_left_open(void **state)
{
    int before;

    (void)state;
    make_folders();
    mkdir(in(root, "sub"), 0777);
    put_file(in(root, "sub/a"), "A");
    put_link("sub/a", in(root, "link"));
    put_link("../../x", in(root, "sub/out"));
    before = count_fds();
    read_text("sub/a");
    read_text("link");
    read_text("sub/out");
    read_text("sub/a/b");
    read_text("none");
    file_exists(confined("sub"));
    assert_int_equal(count_fds(), before);
}

/* Swaps a folder, and a file in it, for links to the outside and back. */
static atomic_bool stop_swapping;

static void *swap_names(void *arg)
{
    (void)arg;
    while (!atomic_load(&stop_swapping)) {
        rename(in(root, "to-secret"), in(root, "sub/a"));
        put_link(in(outside, "a"), in(root, "to-secret"));
        rename(in(root, "good"), in(root, "sub/a"));
        put_file(in(root, "good"), "A");
        rename(in(root, "sub"), in(root, "aside"));
        put_link(outside, in(root, "sub"));
        unlink(in(root, "sub"));
        rename(in(root, "aside"), in(root, "sub"));
    }
    return NULL;
}

static void a_swap_while_it_is_opened_leads_nowhere(void **state)
{
    char path[PATH_MAX], text[8];
    pthread_t thread;
    int n_read = 0;

    (void)state;
    make_folders();
    mkdir(in(root, "sub"), 0777);
    put_file(in(outside, "a"), "S");
    put_file(in(root, "sub/a"), "A");
    put_file(in(root, "good"), "A");
    set_path(path, "%s/././sub/a", root);
    assert_int_equal(thread_start(&thread, "swap", swap_names, NULL, NULL), OK);
    for (int i = 0; i < 50000 / THIN; i++) {
        int fd = confine_open(path, O_RDONLY);
        ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text);

        if (n > 0 && text[0] != 'A') fail_msg("a file outside was read");
        n_read += n > 0;
        if (fd >= 0) close(fd);
    }
    atomic_store(&stop_swapping, true);
    pthread_join(thread, NULL);
    print_message("%d reads\n", n_read);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mark_is_made_found_and_removed),
        cmocka_unit_test(the_part_below_the_root_is_found_however_it_is_spelled),
        cmocka_unit_test(names_and_links_inside_are_followed),
        cmocka_unit_test(nothing_leads_out),
        cmocka_unit_test(long_and_deep_paths_are_refused),
        cmocka_unit_test(special_files_are_not_opened),
        cmocka_unit_test(no_descriptor_is_left_open),
        cmocka_unit_test(a_swap_while_it_is_opened_leads_nowhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
