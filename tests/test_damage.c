/* Files that change while they are in use (base/mapfault, base/file, format/source): lost pages
 * read as zeros and are noticed, other maps are not touched, handlers of the program are kept. */
#include "support.h"

#include "base/file.h"
#include "base/mapfault.h"
#include "format/source.h"
#include "gguf_bytes.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 16, FILE_BYTES = PAGES * 4096 };

static const char *write_pages(const char *name, char fill)
{
    static char bytes[FILE_BYTES];

    memset(bytes, fill, sizeof bytes);
    return temp_file(name, bytes, sizeof bytes);
}

static struct filemap map_pages(const char *path)
{
    struct filemap m = { 0 };

    assert_int_equal(filemap_open(&m, path, NULL), OK);
    assert_int_equal(m.n, FILE_BYTES);
    return m;
}

static int sum_map(const struct filemap *m)
{
    const volatile unsigned char *p = m->p;
    int sum = 0;

    for (size_t i = 0; i < m->n; i += 4096) sum += p[i] != 0;
    return sum;
}

static void assert_damaged(const struct filemap *m, bool look, const char *saying)
{
    struct err e = { 0 };

    assert_int_equal(filemap_check(m, look, "f", &e), E_DAMAGED);
    if (!strstr(e.msg, saying)) print_message("result: %s\n", e.msg);
    assert_non_null(strstr(e.msg, saying));
}

static void lost_pages_read_as_zeros(void **state)
{
    const char *path = write_pages("lost", 1), *other = write_pages("kept", 1);
    struct filemap a = map_pages(path), b = map_pages(other);

    (void)state;
    assert_int_equal(sum_map(&a), PAGES);
    assert_int_equal(truncate(path, 3 * 4096), 0);
    assert_int_equal(sum_map(&a), 3);
    assert_damaged(&a, false, "could not be read");
    assert_int_equal(sum_map(&b), PAGES);
    assert_int_equal(filemap_check(&b, true, "f", NULL), OK);
    filemap_release(&a);
    filemap_release(&b);
    /* the entry of the table is used again, and clean */
    a = map_pages(other);
    assert_int_equal(filemap_check(&a, true, "f", NULL), OK);
    filemap_release(&a);
}

static void *sum_often(void *arg)
{
    for (int i = 0; i < 200; i++) sum_map(arg);
    return NULL;
}

/* Maps come and go while several threads lose pages of others. */
static void threads_lose_pages_at_once(void **state)
{
    const char *path = write_pages("many", 1), *other = write_pages("more", 1);
    struct filemap m = map_pages(path);
    pthread_t threads[4];

    (void)state;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, sum_often, &m), 0);
    assert_int_equal(truncate(path, 0), 0);
    for (int i = 0; i < 200; i++) {
        struct filemap n = map_pages(other);
        assert_int_equal(sum_map(&n), PAGES);
        filemap_release(&n);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    assert_int_equal(sum_map(&m), 0);
    assert_damaged(&m, false, "could not be read");
    filemap_release(&m);
}

static void changed_files_are_noticed(void **state)
{
    const char *path = write_pages("changed", 1), *new = write_pages("new", 2);
    struct timespec then[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
    struct filemap m = map_pages(path);

    (void)state;
    assert_int_equal(filemap_check(&m, true, "f", NULL), OK);
    assert_int_equal(utimensat(AT_FDCWD, path, then, 0), 0);
    assert_int_equal(filemap_check(&m, false, "f", NULL), OK);
    assert_damaged(&m, true, "was changed while it was in use");
    assert_int_equal(truncate(path, FILE_BYTES + 1), 0);
    assert_damaged(&m, true, "the file has 65537 bytes, but had 65536");
    filemap_release(&m);

    m = map_pages(new);
    assert_int_equal(rename(path, new), 0); /* the map keeps the old file */
    assert_int_equal(filemap_check(&m, true, "f", NULL), OK);
    assert_int_equal(m.p[0], 2);
    filemap_release(&m);
}

/* ---- SIGBUS elsewhere ---- */

static void end_well(int sig, siginfo_t *info, void *context)
{
    (void)sig, (void)info, (void)context;
    _exit(42);
}

/* A map that is not one of ours loses its pages. */
static void fault_elsewhere(const char *path)
{
    int fd = open(path, O_RDONLY);
    volatile char *p = mmap(NULL, FILE_BYTES, PROT_READ, MAP_PRIVATE, fd, 0);

    if (p == MAP_FAILED || truncate(path, 0) != 0) _exit(1);
    _exit(p[5] ? 2 : 3);
}

/* Runs in a new process, whose first handler is the given one: the table of this one is in use. */
static int status_of_child(const char *mode, const char *path)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        execl("/proc/self/exe", "test_damage", mode, path, (char *)NULL);
        _exit(9);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static int run_child(const char *mode, const char *path)
{
    struct sigaction a = { .sa_sigaction = end_well, .sa_flags = SA_SIGINFO };
    struct filemap m = { 0 };

    if (strcmp(mode, "chain") == 0) sigaction(SIGBUS, &a, NULL);
    else signal(SIGBUS, SIG_DFL);
    if (filemap_open(&m, path, NULL) != OK) return 8;
    fault_elsewhere(path);
    return 7;
}

static void other_faults_go_where_they_went(void **state)
{
    int status = status_of_child("chain", write_pages("chain", 1));

    (void)state;
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 42);
    status = status_of_child("default", write_pages("default", 1));
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGBUS);
}

/* ---- sources ---- */

static const char *write_gguf(const char *name)
{
    struct buf b = { 0 };
    const char *path;

    put_head(&b, 3, 1, 0);
    put_tensor(&b, "x", 64, 1024, DT_F32, 0);
    put_padding(&b, 32);
    put_zeros(&b, 64 * 1024 * 4);
    path = temp_file(name, b.p, b.n);
    buf_release(&b);
    return path;
}

static void a_source_says_that_it_is_damaged(void **state)
{
    const char *path = write_gguf("damaged.gguf"), *other = write_gguf("sound.gguf");
    struct source *s = NULL, *t = NULL;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(source_open(&s, path, &e), OK);
    assert_int_equal(source_open(&t, other, &e), OK);
    assert_false(source_is_damaged(s, &e));
    assert_int_equal(truncate(path, 4096), 0);
    assert_int_equal(((const volatile char *)source_tensor(s, 0)->data)[200000], 0);
    assert_true(source_is_damaged(s, &e));
    assert_int_equal(e.code, E_DAMAGED);
    assert_non_null(strstr(e.msg, "damaged.gguf: a part of the file could not be read"));
    assert_false(source_is_damaged(t, &e));
    source_set_damaged(t, "the tensor x has a NaN in row 3");
    source_set_damaged(t, "something else");
    assert_true(source_is_damaged(t, &e));
    assert_string_equal(e.msg, "the tensor x has a NaN in row 3");
    source_close(s);
    source_close(t);
}

/* ---- what is no file ---- */

static void pipes_are_refused_without_waiting(void **state)
{
    char path[512];
    struct buf b = { 0 };
    struct err e = { 0 };

    (void)state;
    snprintf(path, sizeof path, "%s/pipe", temp_dir());
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(file_read(&b, path, 100, &e), E_IO);
    assert_non_null(strstr(e.msg, "is a FIFO, expected a file"));
    unlink(path);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lost_pages_read_as_zeros),
        cmocka_unit_test(threads_lose_pages_at_once),
        cmocka_unit_test(changed_files_are_noticed),
        cmocka_unit_test(other_faults_go_where_they_went),
        cmocka_unit_test(a_source_says_that_it_is_damaged),
        cmocka_unit_test(pipes_are_refused_without_waiting),
    };

    if (argc == 3) return run_child(argv[1], argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
