/* Fault injection over src/base: every allocation, read, mapping and thread creation of these
 * scenarios fails once. */
#include "fault.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/chan.h"
#include "base/cores.h"
#include "base/file.h"
#include "base/ids.h"
#include "base/jsonw.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/par.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <zlib.h>

static int fill_json(void *arg, struct err *e)
{
    struct buf b = { 0 };
    struct jsonw w = { .out = &b };
    int rc;

    (void)arg;
    jsonw_arr(&w);
    for (int i = 0; i < 200; i++) {
        jsonw_obj(&w);
        jsonw_key(&w, "index"), jsonw_int(&w, i);
        jsonw_key(&w, "text"), jsonw_str(&w, STR("a \"quoted\" line\n"));
        jsonw_end(&w);
    }
    jsonw_end(&w);
    rc = buf_check(&b, e);
    if (rc == OK) assert_int_equal(b.p[b.n - 1], ']');
    else assert_string_equal(buf_cstr(&b), "");
    buf_release(&b);
    return rc;
}

static int fill_arena(void *arg, struct err *e)
{
    struct arena a = { 0 };
    int rc;

    (void)arg;
    for (int round = 0; round < 2; round++) {
        for (size_t n = 1; n < 300000; n = n * 2 + 1) {
            unsigned char *p = arena_alloc(&a, n);
            for (size_t i = 0; p && i < n; i++) assert_int_equal(p[i], 0);
            if (p) memset(p, 1, n);
        }
        arena_printf(&a, "%d", round);
        arena_str(&a, STR("text"));
        if ((rc = arena_check(&a, e)) != OK) break;
        arena_reset(&a);
    }
    arena_release(&a);
    return rc;
}

static int fill_map(void *arg, struct err *e)
{
    static char keys[1000][8];
    struct map m = { 0 };
    uint64_t v;
    int rc = OK;

    (void)arg;
    for (int i = 0; i < 1000 && rc == OK; i++) {
        snprintf(keys[i], sizeof keys[i], "k%d", i);
        if (map_put(&m, str_c(keys[i]), (uint64_t)i) == E_NOMEM) {
            rc = err_nomem(e, "a map");
            assert_int_equal(m.n, i); /* unchanged */
            for (int k = 0; k < i; k++)
                assert_true(map_get(&m, str_c(keys[k]), &v) && v == (uint64_t)k);
        }
    }
    map_release(&m);
    return rc;
}

static int fill_ids(void *arg, struct err *e)
{
    struct ids v = { 0 };
    int32_t more[70] = { 0 };
    int rc;

    (void)arg;
    for (int i = 0; i < 1000; i++) ids_push(&v, i);
    ids_add(&v, more, 70);
    rc = ids_check(&v, e);
    if (rc == OK) assert_int_equal(v.n, 1070);
    ids_release(&v);
    return rc;
}

static int grow_array(void *arg, struct err *e)
{
    int *p = NULL, cap = 0, n = 0, rc = OK;

    (void)arg;
    while (n < 1000) {
        if (!mem_ensure(p, cap, n + 1)) {
            rc = err_nomem(e, "an array");
            break;
        }
        p[n] = n;
        n++;
    }
    for (int i = 0; i < n; i++) assert_int_equal(p[i], i); /* a failure loses nothing */
    mem_free(p);
    return rc;
}

static void count_thread(void *arg, int thread, int n_threads)
{
    (void)thread;
    (void)n_threads;
    __atomic_fetch_add((int *)arg, 1, __ATOMIC_RELAXED);
}

static int run_team(void *arg, struct err *e)
{
    struct par *p = NULL;
    int calls = 0, rc = par_open(&p, (struct par_opt){ .n_threads = 4, .pin = arg != NULL }, e);

    if (rc != OK) {
        assert_null(p);
        return rc;
    }
    assert_int_equal(par_n(p), 4); /* whole, or not at all */
    par_run(p, count_thread, &calls);
    assert_int_equal(calls, 4);
    par_close(p);
    return OK;
}

static int use_queue(void *arg, struct err *e)
{
    struct chan *c = NULL;
    int rc = chan_open(&c, 8, e);

    if (rc != OK) return rc;
    assert_true(chan_push(c, arg));
    assert_ptr_equal(chan_pop(c), arg);
    chan_close(c);
    return OK;
}

static int read_plain(void *arg, struct err *e)
{
    struct buf b = { 0 };
    int rc = file_read(&b, arg, 1 << 20, e);

    if (rc == OK) assert_int_equal(b.n, 10);
    else assert_non_null(strstr(e->msg, arg));
    buf_release(&b);
    return rc;
}

static int read_gzip(void *arg, struct err *e)
{
    struct buf b = { 0 };
    int rc = file_read_gz(&b, arg, 4 << 20, e);

    if (rc == OK) assert_int_equal(b.n, 3000000);
    else assert_non_null(strstr(e->msg, arg));
    buf_release(&b);
    return rc;
}

static int map_file(void *arg, struct err *e)
{
    struct filemap m = { 0 };
    int rc = filemap_open(&m, arg, e);

    if (rc == OK) assert_memory_equal(m.p, "0123456789", 10);
    else assert_null(m.p);
    filemap_release(&m);
    return rc;
}

/* After a failure the old contents are there and no temporary file is. */
static int replace_file(void *arg, struct err *e)
{
    char text[16] = { 0 }, part[700];
    int fd, rc = file_replace(arg, STR("0123456789"), e);

    fault_pause();
    fd = open(arg, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(read(fd, text, sizeof text), 10);
    close(fd);
    assert_string_equal(text, "0123456789");
    snprintf(part, sizeof part, "%s.part-%ld", (char *)arg, (long)getpid());
    assert_false(file_exists(part));
    fault_resume();
    return rc;
}

static int join_paths(void *arg, struct err *e)
{
    char *a = path_join("folder", "name"), *b = NULL;
    int rc = path_under(&b, "folder", STR("shard.safetensors"), e);

    (void)arg;
    if (rc == OK && !a) rc = err_nomem(e, "a path");
    if (rc == OK) assert_string_equal(b, "folder/shard.safetensors");
    mem_free(a);
    mem_free(b);
    return rc;
}

/* A line is written or counted as dropped. */
static int log_lines(void *arg, struct err *e)
{
    struct log_event ev;

    (void)arg;
    log_warn("a line without fields");
    assert_int_equal(log_n_dropped(), 0); /* needs no memory */
    log_begin(&ev, LOG_WARN, "a line with fields");
    for (int i = 0; i < 20; i++) log_str(&ev, "key", STR("a value of some length"));
    log_int(&ev, "status", 200), log_ms(&ev, "ms", 1.5);
    log_end(&ev);
    return log_n_dropped() ? err_nomem(e, "a log line") : OK;
}

static void buffers_arrays_and_tables_fail_without_loss(void **state)
{
    (void)state;
    fault_run("json into a buffer", fill_json, NULL);
    fault_run("an arena", fill_arena, NULL);
    fault_run("a map", fill_map, NULL);
    fault_run("ids", fill_ids, NULL);
    fault_run("an array that grows", grow_array, NULL);
}

static void teams_and_queues_open_whole_or_not_at_all(void **state)
{
    int item;

    (void)state;
    cores_find(); /* once per process: its failures have fallbacks, not errors */
    fault_run("a team of threads", run_team, NULL);
    fault_run("a pinned team of threads", run_team, &item);
    fault_run("a queue", use_queue, &item);
}

static void files_are_read_mapped_and_replaced_or_named_in_an_error(void **state)
{
    char *path = mem_strdup(temp_file("ten", "0123456789", 10)), gz[600];
    gzFile z;

    (void)state;
    snprintf(gz, sizeof gz, "%s/a.gz", temp_dir());
    z = gzopen(gz, "wb");
    for (int i = 0; i < 300000; i++) gzputs(z, "0123456789");
    gzclose(z);
    fault_run("a file read", read_plain, path);
    fault_run("a gzip file read", read_gzip, gz);
    fault_run("a file mapped", map_file, path);
    fault_run("a file replaced", replace_file, path);
    fault_run("paths", join_paths, NULL);
    mem_free(path);
}

static void a_log_line_that_cannot_be_built_is_counted(void **state)
{
    int keep = dup(2), null = open("/dev/null", O_WRONLY);

    (void)state;
    dup2(null, 2);
    for (int f = LOG_PLAIN; f <= LOG_JSON; f++) {
        log_set_format((enum log_format)f);
        fault_run("log lines", log_lines, NULL);
    }
    log_set_format(LOG_PLAIN);
    dup2(keep, 2);
    close(keep), close(null);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_arrays_and_tables_fail_without_loss),
        cmocka_unit_test(teams_and_queues_open_whole_or_not_at_all),
        cmocka_unit_test(files_are_read_mapped_and_replaced_or_named_in_an_error),
        cmocka_unit_test(a_log_line_that_cannot_be_built_is_counted),
    };
    fault_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
