/* Worker processes without memory, descriptors or processes: the server's side of their path.
 *
 * Besides allocations and threads, the calls that start a process fail (posix_spawn, socketpair, dup,
 * memfd_create, pidfd_open), and sends and receives move one byte. The workers are this program again
 * (fake_worker.h). No fault may end this process, leave an allocation, a descriptor or a child, or keep
 * anybody waiting. */
#include "fault.h"

#include "../fake_worker.h"

#include "api/fail.h"
#include "base/clock.h"
#include "base/log.h"
#include "net/http.h"
#include "pool/pool.h"
#include "worker/supervisor.h"

#include <errno.h>
#include <event2/event.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

enum { TURNS_MAX = 100000, ANSWER_MAX = 1 << 16 };

/* ---- wrapped calls ---- */

int __real_posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *fa,
                       const posix_spawnattr_t *at, char *const argv[], char *const env[]);
int __real_socketpair(int domain, int type, int protocol, int fd[2]);
int __real_memfd_create(const char *name, unsigned flags);
int __real_fcntl(int fd, int cmd, ...);
long __real_syscall(long n, ...);
ssize_t __real_sendmsg(int fd, const struct msghdr *m, int flags);
ssize_t __real_recv(int fd, void *p, size_t n, int flags);

static int fail_with(int code)
{
    errno = code;
    return -1;
}

int __wrap_posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *fa,
                       const posix_spawnattr_t *at, char *const argv[], char *const env[])
{
    return fault_fails() ? EAGAIN : __real_posix_spawn(pid, path, fa, at, argv, env);
}

int __wrap_socketpair(int domain, int type, int protocol, int fd[2])
{
    return fault_fails() ? fail_with(EMFILE) : __real_socketpair(domain, type, protocol, fd);
}

int __wrap_memfd_create(const char *name, unsigned flags)
{
    return fault_fails() ? fail_with(EMFILE) : __real_memfd_create(name, flags);
}

int __wrap_fcntl(int fd, int cmd, ...)
{
    va_list ap;
    long arg;

    va_start(ap, cmd);
    arg = va_arg(ap, long);
    va_end(ap);
    if (cmd == F_DUPFD_CLOEXEC && fault_fails()) return fail_with(EMFILE);
    return __real_fcntl(fd, cmd, arg);
}

/* Five arguments are in registers, given or not. The sixth, of futex and mbind, is on the stack. */
long __wrap_syscall(long n, ...)
{
    long a[6] = { 0 };
    va_list ap;

    va_start(ap, n);
    for (int i = 0; i < (n == SYS_futex || n == SYS_mbind ? 6 : 5); i++) a[i] = va_arg(ap, long);
    va_end(ap);
    if (n == SYS_pidfd_open && fault_fails()) return fail_with(EMFILE);
    return __real_syscall(n, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* One byte of many is sent. */
ssize_t __wrap_sendmsg(int fd, const struct msghdr *m, int flags)
{
    struct msghdr part = *m;
    struct iovec one;

    if (m->msg_iovlen == 0 || !fault_fails()) return __real_sendmsg(fd, m, flags);
    one = (struct iovec){ m->msg_iov[0].iov_base, 1 };
    part.msg_iov = &one;
    part.msg_iovlen = 1;
    return __real_sendmsg(fd, &part, flags);
}

ssize_t __wrap_recv(int fd, void *p, size_t n, int flags)
{
    return __real_recv(fd, p, n > 1 && fault_fails() ? 1 : n, flags);
}

/* ---- what may be left ---- */

static void check_nothing_is_left(int fds)
{
    int now = count_fds();

    if (now != fds) fail_msg("%d descriptors before, %d after", fds, now);
    if (waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD) fail_msg("a process is left");
}

/* ---- a server: loop, supervisor, pool; and for requests API and HTTP ---- */

static struct world {
    struct loop *loop;
    struct supervisor *workers;
    struct pool *pool;
    struct api *api;
    struct http *http;
    char path[108];
    char answer[ANSWER_MAX + 1];
    size_t n;
} w;

static void on_wake(void *arg)
{
    (void)arg;
    if (w.api) api_process_events(w.api);
    supervisor_process(w.workers);
}

static void on_pool_change(void *arg)
{
    (void)arg;
    loop_wake(w.loop);
}

static void turn(void) { event_base_loop(loop_base(w.loop), EVLOOP_NONBLOCK); }

static int open_server(const char *id, struct err *e)
{
    static const char *flags[] = { "/dev/null" };
    static const char *path, *alias;
    struct supervisor_opt so = { .build = "test", .flags = flags, .n_flags = 1 };
    struct pool_opt po = { .paths = &path, .aliases = &alias, .n = 1, .retry_ms = 5 };
    int rc;

    path = repo("models/tern-tales.gguf");
    alias = id;
    if ((rc = loop_open(&w.loop, e)) != OK) return rc;
    so.loop = w.loop;
    if ((rc = supervisor_open(&w.workers, &so, e)) != OK) return rc;
    loop_on_wake(w.loop, on_wake, NULL);
    po.host = supervisor_host(w.workers);
    po.changed = on_pool_change;
    return pool_open(&w.pool, &po, e);
}

static void close_server(void)
{
    supervisor_stop(w.workers);
    pool_stop(w.pool);
    api_close(w.api);
    pool_close(w.pool);
    supervisor_close(w.workers);
    http_close(w.http);
    loop_close(w.loop);
    w = (struct world){ 0 };
}

/* READY, or the error of the first load that failed. */
static int wait_loaded(struct err *e)
{
    for (int i = 0; i < TURNS_MAX; i++) {
        enum pool_state state = pool_state(w.pool, 0, e);
        if (state == POOL_READY) return OK;
        if (state == POOL_FAILED) return e->code;
        turn();
        usleep(200);
    }
    fail_msg("the load does not end");
    return E_INTERNAL;
}

static int load_and_unload(void *arg, struct err *e)
{
    int fds, rc;

    fault_pause();
    fds = count_fds();
    fault_resume();
    rc = open_server(arg, e);
    if (rc == OK) rc = wait_loaded(e);
    close_server();
    fault_pause();
    check_nothing_is_left(fds);
    fault_resume();
    return rc;
}

/* ---- a request ---- */

static void handle(void *arg, struct http_req *q)
{
    struct api_who who = { .name = "default" };

    (void)arg;
    snprintf(who.correlation, sizeof who.correlation, "%s", http_id(q));
    api_completions(w.api, q, &who);
}

static void write_failure(void *arg, struct http_req *q, int status, const char *code,
                          const char *why, struct buf *body)
{
    (void)arg, (void)q, (void)status;
    fail_write_body(body, FAIL_OPENAI, &(struct fail){ 500, "error", code }, why, NULL, "");
}

/* Without faults. */
static void open_world(const char *id)
{
    struct api_opt ao = { .forward = &supervisor_forward };
    struct http_opt ho = { .socket_path = w.path,
                           .handler = handle,
                           .fail = write_failure,
                           .nomem_body = FAIL_NOMEM_BODY };
    struct err e = { 0 };

    fault_hold();
    if (open_server(id, &e) != OK) fail_msg("%s", e.msg);
    snprintf(w.path, sizeof w.path, "%s/worker", temp_dir());
    ao.loop = w.loop;
    ao.pool = w.pool;
    if (api_open(&w.api, &ao, &e) != OK || http_open(&w.http, w.loop, &ho, &e) != OK ||
        wait_loaded(&e) != OK)
        fail_msg("%s", e.msg);
    fault_release();
}

static int send_request(void)
{
    static const char text[] = "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                               "Content-Length: 14\r\n\r\n{\"prompt\":\"x\"}";
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memcpy(at.sun_path, w.path, sizeof w.path);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(send(fd, text, sizeof text - 1, MSG_NOSIGNAL), sizeof text - 1);
    return fd;
}

/* true: the server has closed. */
static bool read_some(int fd)
{
    ssize_t k = __real_recv(fd, w.answer + w.n, ANSWER_MAX - w.n, MSG_DONTWAIT);

    if (k > 0) w.n += (size_t)k;
    w.answer[w.n] = 0;
    return k == 0 || (k < 0 && errno != EAGAIN && errno != EINTR);
}

/* A complete answer, or a typed error: memory, or the process that was given up for want of it. */
static int judge(struct err *e)
{
    int status = 0;

    if (w.n == 0) return err_set(e, E_IO, "the connection was closed");
    if (sscanf(w.answer, "HTTP/1.1 %d", &status) != 1) fail_msg("not HTTP: %s", w.answer);
    if (status == 200 && strstr(w.answer, "{\"ok\":true}")) return OK;
    if (status == 200) return err_set(e, E_IO, "the connection was closed within the answer");
    if (status != 503) fail_msg("status %d: %s", status, w.answer);
    if (!strstr(w.answer, "memory_admission") && !strstr(w.answer, "worker_lost"))
        fail_msg("%s", w.answer);
    return err_set(e, E_NOMEM, "503");
}

static int relay_one(void *arg, struct err *e)
{
    bool closed = false;
    int fds, fd, rc;

    fault_pause();
    fds = count_fds();
    open_world(arg);
    fd = send_request();
    fault_resume();
    for (int i = 0; !closed; i++) {
        turn();
        closed = read_some(fd);
        if (i > 100) usleep(100);
        if (i > TURNS_MAX) fail_msg("no end; so far: %s", w.answer);
    }
    fault_pause();
    close(fd);
    rc = judge(e);
    fault_hold();
    close_server();
    fault_release();
    check_nothing_is_left(fds);
    fault_resume();
    return rc;
}

/* ---- tests ---- */

static void a_load_reports_every_failure(void **state)
{
    (void)state;
    fault_run("a model in a process", load_and_unload, "good");
}

static void a_relayed_request_ends_whatever_fails(void **state)
{
    (void)state;
    fault_run("a relayed request", relay_one, "good");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_load_reports_every_failure),
        cmocka_unit_test(a_relayed_request_ends_whatever_fails),
    };

    if (argc > 1 && strcmp(argv[1], "worker") == 0) return run_fake(argc, argv);
    fault_init();
    log_set_level(LOG_ERROR + 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
